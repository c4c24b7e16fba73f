package mongosim

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// operation is one command while it runs.
type operation struct {
	server *Server
	conn   *conn
	member *member
	req    *request

	name    string // of the command
	db      string
	ns      string // db and collection, for commands that name one
	command *command

	lsid    string // the session's id, "" without one
	number  int64  // transaction number, -1 without one
	session *session

	concern  writeConcern
	read     string // level of the read concern
	after    int64  // afterClusterTime as a position
	readPref string
	deadline time.Time // by the server's clock; zero is none

	killed chan struct{} // closed together with setting cause
	cause  *Error        // why it was killed; guarded by server.mu

	position int64 // of the last write, 0 if it has written nothing
	effects  effects

	concernCode int32 // code of the reply's writeConcernError
}

// Point is a place where Config.Step is called.
type Point int

// The points an operation passes, in order.
const (
	// PointArrived is before anything is done: no session is taken, no fault has struck.
	PointArrived Point = iota + 1
	// PointStarted is after the session was taken and before the first document is touched.
	PointStarted
	// PointYield is between two pieces of a command that touches many documents.
	PointYield
	// PointWritten is after the last write and before the wait for the write concern.
	PointWritten
	// PointReply is before the reply is sent; everything is done.
	PointReply
)

func (p Point) String() string {
	switch p {
	case PointArrived:
		return "arrived"
	case PointStarted:
		return "started"
	case PointYield:
		return "yield"
	case PointWritten:
		return "written"
	case PointReply:
		return "reply"
	}
	return "invalid"
}

// Step is what Config.Step is told.
type Step struct {
	Point      Point
	Command    string
	Namespace  string
	Connection int64
	LSID       string
	TxnNumber  int64 // -1 without one
}

func (op *operation) step(p Point) {
	if f := op.server.config.Step; f != nil {
		f(Step{Point: p, Command: op.name, Namespace: op.ns, Connection: op.conn.id, LSID: op.lsid, TxnNumber: op.number})
	}
}

// kill interrupts the operation at its next yield or wait. s.mu is held.
func (op *operation) kill(cause *Error) {
	if op.cause == nil {
		op.cause = cause
		close(op.killed)
	}
}

// interrupted is why the operation must stop now, or nil. s.mu is held.
func (op *operation) interrupted() error {
	switch {
	case op.cause != nil:
		return op.cause
	case op.server.closed:
		return errorf(codeInterruptedAtShutdown, "interrupted at shutdown")
	case !op.deadline.IsZero() && !op.server.now().Before(op.deadline):
		return errorf(codeMaxTimeMSExpired, "operation exceeded time limit")
	}
	return nil
}

// yield lets other operations in and reports whether this one may go on. s.mu is held before and after.
func (op *operation) yield() error {
	op.server.mu.Unlock()
	op.step(PointYield)
	op.server.mu.Lock()
	return op.interrupted()
}

// wait waits for ready, unless the operation is interrupted first. s.mu is held before and after, not while waiting.
func (op *operation) wait(ready <-chan struct{}) error { return op.waitEither(ready, nil) }

// waitEither is wait for the first of two channels; a nil one never comes.
func (op *operation) waitEither(ready, other <-chan struct{}) error {
	s := op.server
	if err := op.interrupted(); err != nil {
		return err
	}
	var expired <-chan struct{}
	if !op.deadline.IsZero() {
		fire, stop := s.clock.timer(op.deadline)
		defer stop()
		expired = fire
	}
	s.mu.Unlock()
	select {
	case <-ready:
	case <-other:
	case <-op.killed:
	case <-expired:
	case <-s.done:
	}
	s.mu.Lock()
	if op.cause != nil {
		return op.cause
	}
	select {
	case <-ready:
		return nil
	case <-other:
		return nil
	default:
	}
	if err := op.interrupted(); err != nil {
		return err
	}
	return errorf(codeInterruptedAtShutdown, "interrupted at shutdown")
}

// sleep waits on the server's clock.
func (op *operation) sleep(d time.Duration) error {
	fire, stop := op.server.clock.timer(op.server.now().Add(d))
	defer stop()
	return op.wait(fire)
}

// data is what this operation reads: the primary's data, the member's own state if it lags, or the state that the
// majority has.
func (op *operation) data() *dataset {
	s := op.server
	if op.read == "majority" {
		return s.majorityData(op.member)
	}
	return s.memberData(op.member)
}

// collection is the collection an operation reads or writes, nil if there is none.
func (op *operation) collection() *collection { return op.data().collections[op.ns] }

// argument is a field of the command.
func (op *operation) argument(name string) (bsoncore.Value, bool) { return lookup(op.req.body, name) }

// flag is a boolean argument; MongoDB takes numbers for booleans in most places.
func (op *operation) flag(name string, otherwise bool) (bool, error) {
	v, ok := op.argument(name)
	if !ok {
		return otherwise, nil
	}
	switch v.Type {
	case bsoncore.TypeBoolean, bsoncore.TypeInt32, bsoncore.TypeInt64, bsoncore.TypeDouble, bsoncore.TypeDecimal128:
		return truthy(v), nil
	}
	return false, wrongType(op.name, name, v, "bool")
}

// integer is a whole number argument.
func (op *operation) integer(name string, otherwise int64) (int64, error) {
	v, ok := op.argument(name)
	if !ok {
		return otherwise, nil
	}
	n, ok := wholeNumber(v)
	if !ok {
		return 0, wrongType(op.name, name, v, "long")
	}
	return n, nil
}

// subdocument is a document argument; absent and null are an empty document.
func (op *operation) subdocument(name string) (bsoncore.Document, error) {
	v, ok := op.argument(name)
	switch {
	case !ok || v.Type == bsoncore.TypeNull:
		return emptyDocument, nil
	case v.Type != bsoncore.TypeEmbeddedDocument:
		return nil, wrongType(op.name, name, v, "object")
	}
	return v.Data, nil
}

func wrongType(command, field string, v bsoncore.Value, want string) *Error {
	return errorf(codeTypeMismatch, "BSON field '%s.%s' is the wrong type '%s', expected type '%s'", command, field, v.Type, want)
}

// list is an array-of-documents argument, wherever it travelled: in a document sequence or in the body.
func (op *operation) list(name string) ([]bsoncore.Document, error) {
	if docs, ok := op.req.sequences[name]; ok {
		return docs, nil
	}
	v, ok := op.argument(name)
	if !ok {
		return nil, errorf(codeMissingField, "BSON field '%s.%s' is missing but a required field", op.name, name)
	}
	if v.Type != bsoncore.TypeArray {
		return nil, wrongType(op.name, name, v, "array")
	}
	var docs []bsoncore.Document
	for it := fieldsOf(v.Data); it.next(); {
		if it.value.Type != bsoncore.TypeEmbeddedDocument {
			return nil, wrongType(op.name, name+"."+string(it.name), it.value, "object")
		}
		docs = append(docs, it.value.Data)
	}
	return docs, nil
}
