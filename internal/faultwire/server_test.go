package faultwire_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// server counts what reaches it. It reads messages with the driver's code, not with this package's: a mistake there would
// else be made on both sides. It stores the documents of inserts, refuses an _id that is there, and deletes by equality of
// _id. Everything else is answered with ok: 1.
type server struct {
	listener net.Listener
	set      string // name of a replica set, which makes the driver retry writes; empty for a standalone server
	broken   int32  // if not 0, the code with which every insert fails
	forget   bool   // inserts are acknowledged, and nothing is kept of them
	stream   bool   // hellos go on by themselves, as those of servers from 4.4 on
	wait     sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]bool
	executed []bson.Raw // in order; without hellos
	stored   []stored
	messages int           // of any kind
	inBody   int           // commands whose statements travelled in the body
	stall    chan struct{} // if not nil, inserts wait for it before they are executed
}

type stored struct {
	collection string
	id         bson.RawValue
}

func (s stored) is(collection string, id bson.RawValue) bool {
	return s.collection == collection && s.id.Equal(id)
}

func start(t testing.TB, configure ...func(*server)) *server {
	t.Helper()
	s, err := newServer(configure...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

func newServer(configure ...func(*server)) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{listener: listener, conns: map[net.Conn]bool{}}
	for _, c := range configure {
		c(s)
	}
	s.wait.Go(s.accept)
	return s, nil
}

func (s *server) stop() {
	_ = s.listener.Close()
	s.disconnect()
	s.wait.Wait()
}

func (s *server) uri() string { return "mongodb://" + s.listener.Addr().String() }

func replicaSet(s *server) { s.set = "rs" }

// streaming implies a replica set: the driver believes standalone servers too, but tests need one only.
func streaming(s *server) { s.stream = true }

func (s *server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[conn] = true
		s.mu.Unlock()
		s.wait.Go(func() { s.serve(conn) })
	}
}

// disconnect is the server cutting all its connections.
func (s *server) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// connections returns how many connections the server knows of.
func (s *server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *server) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	r := bufio.NewReader(conn)
	for {
		head, err := r.Peek(4)
		if err != nil {
			return
		}
		message := make([]byte, binary.LittleEndian.Uint32(head))
		if _, err := io.ReadFull(r, message); err != nil {
			return
		}
		s.mu.Lock()
		s.messages++
		s.mu.Unlock()
		_, id, _, opcode, rest, _ := wiremessage.ReadHeader(message)
		//lint:ignore SA1019 the first hello of a handshake is still an OP_QUERY
		if opcode == wiremessage.OpQuery {
			if _, err := conn.Write(opReply(id, s.hello())); err != nil {
				return
			}
			continue
		}
		flags, rest, _ := wiremessage.ReadMsgFlags(rest)
		if flags&wiremessage.ChecksumPresent != 0 {
			rest = rest[:len(rest)-4]
		}
		command, sequences := sections(rest)
		reply := s.run(command, sequences)
		if flags&wiremessage.MoreToCome != 0 {
			continue
		}
		more := s.stream && flags&wiremessage.ExhaustAllowed != 0
		if _, err := conn.Write(opMsg(id, more, reply)); err != nil {
			return
		}
		for more {
			if _, err := r.Peek(1); err != nil { // the client never asks again, it only leaves
				return
			}
		}
	}
}

func sections(rest []byte) (bson.Raw, map[string][]bson.Raw) {
	var command bson.Raw
	sequences := map[string][]bson.Raw{}
	for len(rest) > 0 {
		var kind wiremessage.SectionType
		kind, rest, _ = wiremessage.ReadMsgSectionType(rest)
		if kind == wiremessage.SingleDocument {
			var doc bsoncore.Document
			doc, rest, _ = wiremessage.ReadMsgSectionSingleDocument(rest)
			command = bson.Raw(doc)
			continue
		}
		var name string
		var docs []bsoncore.Document
		name, docs, rest, _ = wiremessage.ReadMsgSectionDocumentSequence(rest)
		for _, d := range docs {
			sequences[name] = append(sequences[name], bson.Raw(d))
		}
	}
	return command, sequences
}

func (s *server) hello() bson.D {
	d := bson.D{
		{Key: "ok", Value: 1.0}, {Key: "isWritablePrimary", Value: true}, {Key: "maxWireVersion", Value: int32(21)},
		{Key: "minWireVersion", Value: int32(0)}, {Key: "maxBsonObjectSize", Value: int32(16 << 20)},
		{Key: "maxMessageSizeBytes", Value: int32(48_000_000)}, {Key: "maxWriteBatchSize", Value: int32(100_000)},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(30)}, {Key: "helloOk", Value: true},
	}
	if s.set != "" {
		address := s.listener.Addr().String()
		d = append(d, bson.E{Key: "setName", Value: s.set}, bson.E{Key: "hosts", Value: bson.A{address}},
			bson.E{Key: "me", Value: address}, bson.E{Key: "primary", Value: address})
	}
	if s.stream {
		d = append(d, bson.E{Key: "topologyVersion", Value: bson.D{
			{Key: "processId", Value: bson.ObjectID{1}}, {Key: "counter", Value: int64(1)}}})
	}
	return d
}

func (s *server) run(command bson.Raw, sequences map[string][]bson.Raw) bson.D {
	name := command.Index(0).Key()
	if name == "hello" || name == "isMaster" {
		return s.hello()
	}
	s.mu.Lock()
	stall := s.stall
	s.mu.Unlock()
	if stall != nil && name == "insert" {
		<-stall
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forget {
		return bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(len(sequences["documents"]))}}
	}
	s.executed = append(s.executed, command)
	switch name {
	case "insert":
		return s.insert(command, s.statements(command, sequences, "documents"))
	case "delete":
		return s.remove(command, s.statements(command, sequences, "deletes"))
	}
	return bson.D{{Key: "ok", Value: 1.0}}
}

func (s *server) statements(command bson.Raw, sequences map[string][]bson.Raw, field string) []bson.Raw {
	if docs, ok := sequences[field]; ok {
		return docs
	}
	s.inBody++
	var docs []bson.Raw
	if array, ok := command.Lookup(field).ArrayOK(); ok {
		values, _ := array.Values()
		for _, v := range values {
			docs = append(docs, v.Document())
		}
	}
	return docs
}

func (s *server) insert(command bson.Raw, docs []bson.Raw) bson.D {
	if s.broken != 0 {
		return bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: s.broken}}
	}
	ordered, ok := command.Lookup("ordered").BooleanOK()
	collection := command.Index(0).Value().StringValue()
	n := int32(0)
	var failed bson.A
	for i, doc := range docs {
		id := doc.Lookup("_id")
		if slices.ContainsFunc(s.stored, func(x stored) bool { return x.is(collection, id) }) {
			failed = append(failed, bson.D{{Key: "index", Value: int32(i)}, {Key: "code", Value: int32(11000)},
				{Key: "errmsg", Value: "E11000 duplicate key error"}})
			if ordered || !ok {
				break
			}
			continue
		}
		s.stored = append(s.stored, stored{collection, id})
		n++
	}
	reply := bson.D{{Key: "n", Value: n}, {Key: "ok", Value: 1.0}}
	if failed != nil {
		reply = append(reply, bson.E{Key: "writeErrors", Value: failed})
	}
	return reply
}

func (s *server) remove(command bson.Raw, deletes []bson.Raw) bson.D {
	collection := command.Index(0).Value().StringValue()
	before := len(s.stored)
	for _, d := range deletes {
		id := d.Lookup("q", "_id")
		s.stored = slices.DeleteFunc(s.stored, func(x stored) bool { return x.is(collection, id) })
	}
	return bson.D{{Key: "n", Value: int32(before - len(s.stored))}, {Key: "ok", Value: 1.0}}
}

// count returns how often a command was executed.
func (s *server) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.executed {
		if c.Index(0).Key() == name {
			n++
		}
	}
	return n
}

// ids returns the _id of all that is stored in orders, in the order of storing.
func (s *server) ids() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := []int{}
	for _, x := range s.stored {
		if x.collection == "orders" {
			ids = append(ids, int(x.id.AsInt64()))
		}
	}
	return ids
}

func opMsg(responseTo int32, more bool, doc bson.D) []byte {
	body, err := bson.Marshal(doc)
	if err != nil {
		panic(err)
	}
	index, b := wiremessage.AppendHeaderStart(nil, wiremessage.NextRequestID(), responseTo, wiremessage.OpMsg)
	var flags wiremessage.MsgFlag
	if more {
		flags = wiremessage.MoreToCome
	}
	b = wiremessage.AppendMsgFlags(b, flags)
	b = wiremessage.AppendMsgSectionType(b, wiremessage.SingleDocument)
	b = append(b, body...)
	return bsoncore.UpdateLength(b, index, int32(len(b)))
}

func opReply(responseTo int32, doc bson.D) []byte {
	body, err := bson.Marshal(doc)
	if err != nil {
		panic(err)
	}
	index, b := wiremessage.AppendHeaderStart(nil, wiremessage.NextRequestID(), responseTo, wiremessage.OpReply)
	b = wiremessage.AppendReplyFlags(b, 0)
	b = wiremessage.AppendReplyCursorID(b, 0)
	b = wiremessage.AppendReplyStartingFrom(b, 0)
	b = wiremessage.AppendReplyNumberReturned(b, 1)
	b = append(b, body...)
	return bsoncore.UpdateLength(b, index, int32(len(b)))
}

// connect returns shop.orders on the server through the wire. The driver retries nothing unless an option says so.
func (s *server) connect(t testing.TB, wire *faultwire.Wire, more ...*options.ClientOptions) *mongo.Collection {
	t.Helper()
	uri := s.uri()
	if s.set != "" {
		uri += "/?replicaSet=" + s.set
	}
	all := []*options.ClientOptions{options.Client().ApplyURI(uri).SetDialer(wire).SetRetryWrites(false).
		SetServerSelectionTimeout(10 * time.Second)}
	client, err := mongo.Connect(append(all, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = client.Disconnect(ctx)
	})
	return client.Database("shop").Collection("orders")
}

// dial returns a bare connection through the wire.
func (s *server) dial(t testing.TB, wire *faultwire.Wire) net.Conn {
	t.Helper()
	c, err := wire.DialContext(t.Context(), "tcp", s.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil { // a test that hangs tells less than one that fails
		t.Fatal(err)
	}
	return c
}

func docs(ids ...int) []any {
	var all []any
	for _, id := range ids {
		all = append(all, bson.D{{Key: "_id", Value: int32(id)}, {Key: "text", Value: fmt.Sprint("number ", id)}})
	}
	return all
}

// within waits for a channel to be closed.
func within(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: not within 10 seconds", what)
	}
}

// take waits for what a client's call returned.
func take(t testing.TB, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the client's call has not returned within 10 seconds")
		return nil
	}
}

// eventually waits for a condition that has no channel.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 seconds", what)
		}
	}
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}
