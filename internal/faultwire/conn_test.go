package faultwire_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/intact-go/intact/internal/faultwire"
)

// message is an insert of one document as the driver sends it: the document in a sequence.
func message(t testing.TB, id int, checksum bool) []byte {
	t.Helper()
	body, err := bson.Marshal(bson.D{{Key: "insert", Value: "orders"}, {Key: "$db", Value: "shop"}})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: int32(id)}})
	if err != nil {
		t.Fatal(err)
	}
	index, b := wiremessage.AppendHeaderStart(nil, int32(id), 0, wiremessage.OpMsg)
	var flags wiremessage.MsgFlag
	if checksum {
		flags = wiremessage.ChecksumPresent
	}
	b = wiremessage.AppendMsgFlags(b, flags)
	b = wiremessage.AppendMsgSectionType(b, wiremessage.DocumentSequence) // before the body, which is legal
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, "documents\x00"...)
	b = append(b, doc...)
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at))
	b = wiremessage.AppendMsgSectionType(b, wiremessage.SingleDocument)
	b = append(b, body...)
	if checksum {
		b = append(b, 0, 0, 0, 0)
		b = bsoncore.UpdateLength(b, index, int32(len(b)))
		binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli)))
		return b
	}
	return bsoncore.UpdateLength(b, index, int32(len(b)))
}

// receive reads a whole reply and returns its document.
func receive(t testing.TB, c net.Conn) bson.Raw {
	t.Helper()
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, binary.LittleEndian.Uint32(head[:])-4)
	if _, err := io.ReadFull(c, rest); err != nil {
		t.Fatal(err)
	}
	return bson.Raw(rest[17:])
}

func TestMessages(t *testing.T) {
	for _, row := range []struct {
		name     string
		checksum bool
		fault    faultwire.Fault
	}{
		{"plain", false, faultwire.Pass()},
		{"with a checksum", true, faultwire.Pass()},
		{"with a checksum, rewritten", true, faultwire.RewriteRequest(func(command bson.Raw) bson.Raw { return command })},
	} {
		t.Run(row.name, func(t *testing.T) {
			wire := faultwire.ForTest(t)
			s := start(t)
			wire.On(faultwire.Insert).Do(row.fault)
			c := s.dial(t, wire)
			whole := append(message(t, 1, row.checksum), message(t, 2, row.checksum)...)
			for _, b := range whole { // byte by byte
				if n, err := c.Write([]byte{b}); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			}
			for range 2 {
				same(t, "reply", receive(t, c).String(), `{"n": {"$numberInt":"1"},"ok": {"$numberDouble":"1.0"}}`)
			}
			same(t, "stored", s.ids(), []int{1, 2})
			same(t, "recorded", wire.Events()[1].IDs(), `[{"$numberInt":"2"}]`)
			same(t, "messages", s.messages, 2)
		})
	}
}

// What is passed is passed to the byte.
func TestPassesBytes(t *testing.T) {
	var sent, arrived []byte
	for id := range 3 {
		sent = append(sent, message(t, id, id == 1)...)
	}
	there, here := net.Pipe()
	wire := faultwire.ForTest(t, faultwire.Over(dialer(func() (net.Conn, error) { return here, nil })))
	c, err := wire.DialContext(t.Context(), "tcp", "ignored")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	var answers []byte
	for range 3 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(there, head); err != nil {
			t.Fatal(err)
		}
		rest := make([]byte, binary.LittleEndian.Uint32(head)-4)
		if _, err := io.ReadFull(there, rest); err != nil {
			t.Fatal(err)
		}
		arrived = append(append(arrived, head...), rest...)
		answer := opMsg(int32(binary.LittleEndian.Uint32(rest)), false, bson.D{{Key: "ok", Value: 1}})
		answers = append(answers, answer...)
		if _, err := there.Write(answer); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "what the server gets", string(arrived) == string(sent), true)
	got := make([]byte, len(answers))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	same(t, "what the client gets", string(got) == string(answers), true)
}

// An answer may go on by itself, and the next request comes after its last part.
func TestPassesStreamedAnswer(t *testing.T) {
	there, here := net.Pipe()
	wire := faultwire.ForTest(t, faultwire.Over(dialer(func() (net.Conn, error) { return here, nil })))
	c, err := wire.DialContext(t.Context(), "tcp", "ignored")
	if err != nil {
		t.Fatal(err)
	}
	for id := range int32(2) {
		request := message(t, int(id), false)
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(there, request); err != nil {
			t.Fatal(err)
		}
		for part := range 3 {
			if _, err := there.Write(opMsg(id, part < 2, bson.D{{Key: "part", Value: part}})); err != nil {
				t.Fatal(err)
			}
		}
		for part := range 3 {
			same(t, "part", receive(t, c).Lookup("part").AsInt64(), part)
		}
	}
}

type dialer func() (net.Conn, error)

func (d dialer) DialContext(context.Context, string, string) (net.Conn, error) { return d() }

func TestMisunderstandings(t *testing.T) {
	compressed := message(t, 1, false)
	binary.LittleEndian.PutUint32(compressed[12:], 2012)
	insert := message(t, 1, false)
	binary.LittleEndian.PutUint32(insert[12:], 2002)
	section := message(t, 1, false)
	section[20] = 7
	long := message(t, 1, false)
	binary.LittleEndian.PutUint32(long[21:], 1<<20)
	empty := bsoncore.UpdateLength(append(message(t, 1, false)[:16], 0, 0, 0, 0), 0, 20)
	for _, row := range []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"TLS", []byte{0x16, 0x03, 0x01, 0x00, 0xf8}, "TLS"},
		{"compression", compressed, "OP_COMPRESSED"},
		{"legacy insert", insert, "opcode 2002"},
		{"unknown section", section, "malformed"},
		{"sequence beyond the message", long, "malformed"},
		{"no body", empty, "malformed"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), "not of the MongoDB wire protocol"},
		{"short", []byte{3, 0, 0, 0}, "3 bytes is not of"},
	} {
		t.Run(row.name, func(t *testing.T) {
			wire := faultwire.New()
			s := start(t)
			c := s.dial(t, wire)
			if _, err := c.Write(row.bytes); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("writing: %v", err)
			}
			if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("reading: %v", err)
			}
			if err := wire.Err(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("the wire's error: %v", err)
			}
			if err := wire.Close(); err == nil {
				t.Error("Close has no error")
			}
			same(t, "messages at the server", s.messages, 0)
		})
	}
}

func TestServerMisunderstood(t *testing.T) {
	for _, row := range []struct {
		name  string
		reply []byte
		want  string
	}{
		{"answer to another question", opMsg(99, false, bson.D{{Key: "ok", Value: 1}}), "answered request 99"},
		{"no message", []byte("HTTP/1.1 400 Bad Request\r\n"), "not of the MongoDB wire protocol"},
		{"a message with no body", bsoncore.UpdateLength(append(opMsg(1, false, bson.D{})[:16], 0, 0, 0, 0), 0, 20), "malformed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			there, here := net.Pipe()
			wire := faultwire.New(faultwire.Over(dialer(func() (net.Conn, error) { return here, nil })))
			c, err := wire.DialContext(t.Context(), "tcp", "ignored")
			if err != nil {
				t.Fatal(err)
			}
			request := message(t, 1, false)
			if _, err := c.Write(request); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(there, request); err != nil {
				t.Fatal(err)
			}
			_, _ = there.Write(row.reply)
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reading: %v", err)
			}
			if err := wire.Close(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("the wire's error: %v", err)
			}
		})
	}
}

func TestServerLeaves(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	c := s.dial(t, wire)
	held := wire.On(faultwire.Insert).Hold()
	if _, err := c.Write(message(t, 1, false)); err != nil {
		t.Fatal(err)
	}
	within(t, "arriving", held.Arrived())
	eventually(t, "accepting", func() bool { return s.connections() == 1 })
	s.disconnect()
	held.Release()
	within(t, "being over", held.Done())
	if held.Err() == nil {
		t.Error("the rule has no error although the server did not answer")
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection stands")
	}
	if err := wire.Err(); err != nil {
		t.Errorf("the wire's error: %v", err)
	}
}

// What was written before a close arrives, in order; also what waits behind a request that is held.
func TestClientLeavesRequestsBehind(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	c := s.dial(t, wire)
	held := wire.On(faultwire.Insert).Nth(2).Hold()
	for id := 1; id <= 3; id++ {
		if _, err := c.Write(message(t, id, false)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(message(t, 4, false)[:30]); err != nil { // not written completely
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "arriving", held.Arrived())
	same(t, "stored while the second is held", s.ids(), []int{1})
	held.Release()
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "stored in the end", s.ids(), []int{1, 2, 3})
	same(t, "lost for the client", wire.Events()[2].Lost.Happened(), true)
	eventually(t, "leaving the server", func() bool { return wire.Connections() == 0 && s.connections() == 0 })
}

// What waits behind a fault that ends the connection does not arrive.
func TestFaultEndsWhatIsBehind(t *testing.T) {
	for _, fault := range []faultwire.Fault{faultwire.DropRequest(), faultwire.DropReply(), faultwire.Cut(), faultwire.CutReply(3)} {
		t.Run(fault.String(), func(t *testing.T) {
			wire := faultwire.ForTest(t)
			s := start(t)
			c := s.dial(t, wire)
			held := wire.On(faultwire.Insert).First(1).Do(faultwire.HoldRequest(), fault)
			for id := 1; id <= 3; id++ {
				if _, err := c.Write(message(t, id, false)); err != nil {
					t.Fatal(err)
				}
			}
			held.Release()
			if err := wire.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			same(t, "inserts run", s.count("insert"), map[bool]int{true: 1, false: 0}[fault.Runs()])
			if _, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reading: %v", err)
			}
			if _, err := c.Write(message(t, 4, false)); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("writing afterwards: %v", err)
			}
			same(t, "recorded", wire.Count(), 3)
		})
	}
}

func TestCutReply(t *testing.T) {
	for _, row := range []struct{ n, arrive int }{{-1, 0}, {0, 0}, {1, 1}, {16, 16}, {1000, 44}} {
		wire := faultwire.ForTest(t)
		s := start(t)
		c := s.dial(t, wire)
		wire.On(faultwire.Insert).CutReply(row.n)
		if _, err := c.Write(message(t, 1, false)); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("reading: %v", err)
		}
		same(t, "bytes that arrive", len(b), row.arrive)
		same(t, "stored", s.ids(), []int{1})
	}
}

func TestDeadlines(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	c := s.dial(t, wire)
	held := wire.On(faultwire.Insert).Hold()
	if _, err := c.Write(message(t, 1, false)); err != nil {
		t.Fatal(err)
	}
	timeout := func(what string, err error) {
		t.Helper()
		var netErr net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &netErr) || !netErr.Timeout() {
			t.Errorf("%s: %v", what, err)
		}
	}
	read := func() error { _, err := c.Read(make([]byte, 4)); return err }
	write := func() error { _, err := c.Write(message(t, 2, false)); return err }

	if err := c.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	timeout("reading after the deadline", read())
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	timeout("reading until the deadline", read())
	timeout("reading again", read())
	if err := write(); err != nil {
		t.Errorf("writing under a read deadline: %v", err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	timeout("writing after the deadline", write())
	if err := c.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	timeout("reading after both", read())
	timeout("writing after both", write())

	// A deadline that comes while a read waits wakes it, as the driver's cancelling does.
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- read() }()
	blocked(t, "faultwire.(*conn).Read")
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	timeout("reading when the deadline comes", take(t, result))

	// A deadline that was taken back does not.
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	go func() { result <- read() }()
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-result:
		t.Errorf("a read without a deadline ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	held.Release()
	same(t, "the read", take(t, result), nil)

	// A close wakes a read, and ends everything else.
	go func() {
		for {
			if err := read(); err != nil {
				result <- err
				return
			}
		}
	}()
	blocked(t, "faultwire.(*conn).Read")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"the waiting read": take(t, result), "read": read(), "write": write(), "close": c.Close(),
		"read deadline": c.SetReadDeadline(time.Time{}), "write deadline": c.SetWriteDeadline(time.Time{}),
		"deadline": c.SetDeadline(time.Time{}),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after the close: %v", what, err)
		}
	}
	same(t, "addresses", c.RemoteAddr().String() == s.listener.Addr().String() && c.LocalAddr() != nil, true)
}

// blocked waits until a goroutine waits in the function.
func blocked(t testing.TB, function string) {
	t.Helper()
	eventually(t, "blocking in "+function, func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for _, g := range strings.Split(string(stacks), "\n\n") {
			if strings.Contains(g, function) && strings.Contains(g, "sync.Cond.Wait") {
				return true
			}
		}
		return false
	})
}

func TestClose(t *testing.T) {
	wire := faultwire.New()
	s := start(t)
	orders := s.connect(t, wire)
	requests := wire.On(faultwire.Insert).Hold()
	replies := wire.On(faultwire.Delete).HoldReply()
	functions := wire.On(faultwire.Update).Before(func(ctx context.Context, _ *faultwire.Request) { <-ctx.Done() })
	delayed := wire.On(faultwire.Find).Delay(time.Hour)
	results := make(chan error, 4)
	go func() { _, err := orders.InsertMany(context.Background(), docs(1)); results <- err }()
	go func() { _, err := orders.DeleteMany(context.Background(), bson.D{}); results <- err }()
	go func() {
		_, err := orders.UpdateMany(context.Background(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}})
		results <- err
	}()
	go func() {
		results <- orders.Database().RunCommand(context.Background(), bson.D{{Key: "find", Value: "orders"}}).Err()
	}()
	for _, rule := range []*faultwire.Rule{requests, replies, functions, delayed} {
		within(t, "arriving", rule.Arrived())
	}
	if err := wire.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	same(t, "connections left", wire.Connections(), 0)
	for range 4 {
		if err := take(t, results); err == nil {
			t.Error("a client has got an answer")
		}
	}
	same(t, "inserts run", s.count("insert"), 0)
	same(t, "deletes run", s.count("delete"), 1)
	for _, rule := range []*faultwire.Rule{requests, replies} {
		within(t, "being over", rule.Done())
		if !errors.Is(rule.Err(), faultwire.ErrClosed) {
			t.Errorf("%v ended with %v", rule, rule.Err())
		}
	}
	if _, err := wire.DialContext(t.Context(), "tcp", s.listener.Addr().String()); !errors.Is(err, faultwire.ErrClosed) {
		t.Errorf("dialing a closed wire: %v", err)
	}
	if err := wire.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	eventually(t, "leaving the server", func() bool { return s.connections() == 0 })
}

// The wire may be closed or taken down while a connection is being made.
func TestDialMeetsChange(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*faultwire.Wire)
		want   error
	}{
		{"close", func(w *faultwire.Wire) { _ = w.Close() }, faultwire.ErrClosed},
		{"down", (*faultwire.Wire).Down, syscall.ECONNREFUSED},
	} {
		t.Run(row.name, func(t *testing.T) {
			var wire *faultwire.Wire
			there, here := net.Pipe()
			wire = faultwire.New(faultwire.Over(dialer(func() (net.Conn, error) {
				row.change(wire)
				return here, nil
			})))
			defer func() { _ = wire.Close() }()
			if _, err := wire.DialContext(t.Context(), "tcp", "ignored"); !errors.Is(err, row.want) {
				t.Errorf("dialing: %v", err)
			}
			if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the server's end: %v", err)
			}
		})
	}
}

func TestOverTLSWithoutClient(t *testing.T) {
	// A *tls.Dialer fits; that it reaches a server is its own affair.
	wire := faultwire.ForTest(t, faultwire.Over(&tls.Dialer{Config: &tls.Config{ServerName: "localhost"}}))
	if c, err := wire.DialContext(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
		_ = c.Close()
		t.Error("connected to a port where nothing listens")
	}
	same(t, "connections", wire.Connections(), 0)
}

// A client behind a load balancer watches no server: all its connections are for commands.
func TestLoadBalanced(t *testing.T) {
	wire := faultwire.ForTest(t, faultwire.LoadBalanced())
	s := start(t)
	orders := s.connect(t, wire, options.Client().SetLoadBalanced(true))
	lost := wire.On(faultwire.Insert).EveryNth(2).DropReply()
	for id := range 20 {
		_, err := orders.InsertMany(t.Context(), docs(id))
		same(t, "the client has lost its connection", err != nil, id%2 == 1)
	}
	same(t, "lost", lost.Fired(), 10)
	same(t, "stored", len(s.ids()), 20)
	if _, err := orders.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: 3}}); err != nil {
		t.Error(err)
	}
	same(t, "connections made", wire.Events(faultwire.Delete)[0].Conn, 11)
}
