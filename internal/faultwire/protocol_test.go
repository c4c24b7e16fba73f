package faultwire_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/intact-go/intact/internal/faultwire"
)

// message is an insert of one document as the driver sends it: the document in a sequence.
func message(t testing.TB, id int, checksum bool) []byte {
	t.Helper()
	return build(t, id, checksum, bson.D{{Key: "_id", Value: int32(id)}})
}

func build(t testing.TB, id int, checksum bool, document bson.D) []byte {
	t.Helper()
	body, err := bson.Marshal(bson.D{{Key: "insert", Value: "orders"}, {Key: "$db", Value: "shop"}})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := bson.Marshal(document)
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
			same(t, "ordered, without saying so", wire.Events()[1].Ordered(), true)
			same(t, "messages", s.messages, 2)
			same(t, "commands with their statements in the body", s.inBody, 0) // where no more than 16 MB have room
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

// What was asked by OP_QUERY is answered by OP_REPLY, also in the server's place.
func TestAnswersQuery(t *testing.T) {
	for _, fault := range []faultwire.Fault{faultwire.Pass(), faultwire.Reply(), faultwire.Lie(faultwire.Set("x", 1))} {
		wire := faultwire.ForTest(t)
		s := start(t)
		wire.On(faultwire.Hello).Do(fault)
		c := s.dial(t, wire)
		body, err := bson.Marshal(bson.D{{Key: "isMaster", Value: 1}})
		if err != nil {
			t.Fatal(err)
		}
		//lint:ignore SA1019 the first hello of a handshake is still an OP_QUERY
		index, b := wiremessage.AppendHeaderStart(nil, 1, 0, wiremessage.OpQuery)
		b = wiremessage.AppendQueryFlags(b, 0)
		b = wiremessage.AppendQueryFullCollectionName(b, "admin.$cmd")
		b = wiremessage.AppendQueryNumberToSkip(b, 0)
		b = wiremessage.AppendQueryNumberToReturn(b, -1)
		b = append(b, body...)
		if _, err := c.Write(bsoncore.UpdateLength(b, index, int32(len(b)))); err != nil {
			t.Fatal(err)
		}
		reply := make([]byte, 36)
		if _, err := io.ReadFull(c, reply); err != nil {
			t.Fatal(err)
		}
		_, _, to, opcode, rest, _ := wiremessage.ReadHeader(reply)
		same(t, fault.String()+": opcode", opcode, wiremessage.OpReply)
		same(t, fault.String()+": request", to, 1)
		same(t, fault.String()+": documents", binary.LittleEndian.Uint32(rest[16:]), 1)
		same(t, fault.String()+": database", wire.Events()[0].DB, "admin")
	}
}

// An answer may go on by itself, and the next request comes after its last part.
func TestPassesStreamedAnswer(t *testing.T) {
	there, here := net.Pipe()
	wire := faultwire.ForTest(t, faultwire.Over(dialer(func() (net.Conn, error) { return here, nil })))
	c, err := wire.DialContext(t.Context(), "tcp", "ignored")
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []net.Conn{c, there} {
		if err := end.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
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

// A client that speaks TLS is told so, and a message that begins like a TLS record is none.
func TestTLS(t *testing.T) {
	wire := faultwire.New()
	s := start(t)
	client := tls.Client(s.dial(t, wire), &tls.Config{ServerName: "localhost"})
	if err := client.HandshakeContext(t.Context()); err == nil || !strings.Contains(err.Error(), "speaks TLS") {
		t.Errorf("shaking hands: %v", err)
	}
	if err := wire.Close(); err == nil || !strings.Contains(err.Error(), "speaks TLS") {
		t.Errorf("the wire's error: %v", err)
	}

	wire = faultwire.ForTest(t)
	c := s.dial(t, wire)
	for _, size := range []int{0x0316, 0x010316, 0x020316, 0x030316, 0x040316} {
		bare := build(t, size, false, bson.D{{Key: "_id", Value: size}, {Key: "pad", Value: ""}})
		padded := build(t, size, false, bson.D{{Key: "_id", Value: size}, {Key: "pad", Value: strings.Repeat("x", size-len(bare))}})
		if _, err := c.Write(padded); err != nil {
			t.Fatalf("writing a message of %d bytes: %v", size, err)
		}
		same(t, "size", len(padded), size)
		same(t, "n", receive(t, c).Lookup("n").AsInt64(), 1)
	}
}
