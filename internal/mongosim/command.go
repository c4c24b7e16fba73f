package mongosim

import (
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// command is what the dispatcher knows about one command.
type command struct {
	run    func(*operation) ([]byte, error) // returns the reply's elements without ok; s.mu is held
	fields string                           // accepted fields besides the generic ones, separated by spaces
	write  bool                             // needs a primary, takes a write concern, may carry a transaction number
	read   bool                             // a secondary may answer it, if the client allows
	named  bool                             // its own value is a collection's name
	loose  bool                             // unknown fields are nothing to it, as hello's are to MongoDB
}

// generic are the fields every command may carry.
var generic = strings.Fields("$db lsid $clusterTime $readPreference readConcern maxTimeMS comment apiVersion apiStrict apiDeprecationErrors")

func commandFor(name string) *command {
	switch name {
	case "hello", "isMaster", "ismaster":
		return &command{run: runHello, loose: true}
	case "ping":
		return &command{run: func(*operation) ([]byte, error) { return nil, nil }}
	case "buildInfo", "buildinfo":
		return &command{run: runBuildInfo}
	case "connectionStatus":
		return &command{run: runConnectionStatus, fields: "showPrivileges"}
	case "endSessions":
		// The server only marks the sessions as no longer needed; what they did stays known for a while.
		return &command{run: func(*operation) ([]byte, error) { return nil, nil }}
	case "killSessions":
		return &command{run: runKillSessions}
	case "configureFailPoint":
		return &command{run: runConfigureFailPoint, fields: "mode data"}
	case "insert":
		return &command{run: runInsert, write: true, named: true, fields: "documents ordered bypassDocumentValidation writeConcern txnNumber stmtId stmtIds"}
	case "update":
		return &command{run: runUpdate, write: true, named: true, fields: "updates ordered bypassDocumentValidation writeConcern txnNumber stmtId stmtIds let"}
	case "delete":
		return &command{run: runDelete, write: true, named: true, fields: "deletes ordered writeConcern txnNumber stmtId stmtIds let"}
	case "findAndModify", "findandmodify":
		return &command{run: runFindAndModify, write: true, named: true,
			fields: "query sort remove update new fields upsert bypassDocumentValidation writeConcern txnNumber stmtId stmtIds collation hint let arrayFilters"}
	case "find":
		return &command{run: runFind, read: true, named: true, fields: "filter projection sort limit skip batchSize singleBatch collation hint noCursorTimeout allowDiskUse let"}
	case "getMore":
		return &command{run: runGetMore, read: true, fields: "collection batchSize"}
	case "killCursors":
		return &command{run: runKillCursors, read: true, named: true, fields: "cursors"}
	case "count":
		return &command{run: runCount, read: true, named: true, fields: "query limit skip collation hint"}
	case "distinct":
		return &command{run: runDistinct, read: true, named: true, fields: "key query collation"}
	case "aggregate":
		return &command{run: runAggregate, read: true, fields: "pipeline cursor allowDiskUse collation hint let"}
	case "create":
		return &command{run: runCreate, write: true, named: true, fields: createFields + " writeConcern"}
	case "drop":
		return &command{run: runDrop, write: true, named: true, fields: "writeConcern"}
	case "dropDatabase":
		return &command{run: runDropDatabase, write: true, fields: "writeConcern"}
	case "createIndexes":
		return &command{run: runCreateIndexes, write: true, named: true, fields: "indexes commitQuorum writeConcern"}
	case "dropIndexes":
		return &command{run: runDropIndexes, write: true, named: true, fields: "index writeConcern"}
	case "listCollections":
		return &command{run: runListCollections, read: true, fields: "filter nameOnly authorizedCollections cursor"}
	case "listIndexes":
		return &command{run: runListIndexes, read: true, named: true, fields: "cursor"}
	}
	return nil
}

// execute runs one command to its reply. stay is false if the connection is to be closed, more is true if another reply
// follows without a request.
func (s *Server) execute(c *conn, req *request) (doc []byte, more, stay bool) {
	op := &operation{server: s, conn: c, member: c.member, req: req, number: -1, killed: make(chan struct{})}
	err := op.parse()
	if err != nil {
		return op.finish(nil, err), false, true
	}
	s.mu.Lock()
	s.running[op] = true // from here on a crash takes the operation with it
	s.mu.Unlock()
	op.step(PointArrived)
	s.mu.Lock()
	body, err := op.run()
	delete(s.running, op)
	s.mu.Unlock()
	op.step(PointReply)
	return op.answer(body, err)
}

// run takes the faults that apply, the session, and then executes the command and waits for its write concern.
func (op *operation) run() ([]byte, error) {
	s := op.server
	if err := op.interrupted(); err != nil {
		return nil, err
	}
	op.effects = s.strike(op)
	if err := op.before(); err != nil {
		return nil, err
	}
	if err := op.allowed(); err != nil {
		return nil, err
	}
	if err := op.checkOut(); err != nil {
		return nil, err
	}
	defer op.checkIn()
	s.mu.Unlock()
	op.step(PointStarted)
	s.mu.Lock()
	if err := op.interrupted(); err != nil {
		return nil, err
	}
	if err := op.catchUp(); err != nil {
		return nil, err
	}
	body, err := op.command.run(op)
	if op.command.write {
		s.mu.Unlock()
		op.step(PointWritten)
		s.mu.Lock()
		if err == nil {
			body = append(body, op.awaitConcern()...)
		}
	}
	return body, err
}

// finish turns elements or an error into a reply document.
func finish(body []byte, err error) []byte {
	if err != nil {
		return bsoncore.BuildDocument(nil, asError(err).body())
	}
	return bsoncore.BuildDocument(nil, body, bsoncore.AppendDoubleElement(nil, "ok", 1))
}

// finish adds what a member of a set adds to every reply, and the labels (error_labels.cpp).
func (op *operation) finish(body []byte, err error) []byte {
	s := op.server
	var e *Error
	if err != nil {
		e = asError(err)
		body = append(e.body(), labels(op.labelsFor(e, 0))...)
	} else {
		if op.concernCode != 0 {
			body = append(body, labels(op.labelsFor(nil, op.concernCode))...)
		}
		body = append(body, bsoncore.AppendDoubleElement(nil, "ok", 1)...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e != nil && slices.Contains(notPrimary, e.Code) && !s.config.NoStreaming {
		body = append(body, s.topologyVersion()...)
	}
	if (s.config.ReplicaSet != "" || s.config.ShardKeys != nil) && !s.config.NoHistory {
		body = append(body, s.times(op)...)
	}
	return bsoncore.BuildDocument(nil, body)
}

func labels(names []string) []byte {
	if len(names) == 0 {
		return nil
	}
	var values []bsoncore.Value
	for _, n := range names {
		values = append(values, text(n))
	}
	return bsoncore.BuildArrayElement(nil, "errorLabels", values...)
}

// labelsFor decides about RetryableWriteError and NoWritesPerformed, unless a fault brings labels of its own.
func (op *operation) labelsFor(e *Error, concern int32) []string {
	if op.effects.labels != nil {
		return op.effects.labels
	}
	code := concern
	if e != nil {
		code = e.Code
	}
	if op.number < 0 || !slices.Contains(retriable, code) {
		return nil
	}
	names := []string{"RetryableWriteError"}
	// The second label exists since 6.0 (SERVER-66479).
	if op.position == 0 && op.server.config.MaxWireVersion >= 17 {
		names = append(names, "NoWritesPerformed")
	}
	return names
}

// errNoReply closes the connection instead of answering.
var errNoReply = errors.New("mongosim: no reply")

func (op *operation) answer(body []byte, err error) (doc []byte, more, stay bool) {
	if errors.Is(err, errNoReply) {
		return nil, false, false
	}
	doc = op.finish(body, err)
	if op.effects.rewrite != nil {
		doc = op.effects.rewrite(doc)
	}
	if op.effects.closeAfter {
		return nil, false, false
	}
	more = err == nil && op.req.exhaust && (op.name == "hello" || op.name == "isMaster" || op.name == "ismaster")
	if more {
		_, more = lookup(doc, "topologyVersion")
	}
	return doc, more, true
}
