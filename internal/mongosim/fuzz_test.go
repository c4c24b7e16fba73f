package mongosim

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"
)

// opMsg frames commands for the seeds of the fuzz tests.
func opMsg(t interface{ Fatal(...any) }, command bson.D, sequence string, docs ...bson.D) []byte {
	at, m := wiremessage.AppendHeaderStart(nil, 1, 0, wiremessage.OpMsg)
	m = wiremessage.AppendMsgFlags(m, 0)
	m = wiremessage.AppendMsgSectionType(m, wiremessage.SingleDocument)
	doc, err := bson.Marshal(append(command, bson.E{Key: "$db", Value: "db"}))
	if err != nil {
		t.Fatal(err)
	}
	m = append(m, doc...)
	if sequence != "" {
		m = wiremessage.AppendMsgSectionType(m, wiremessage.DocumentSequence)
		start, rest := bsoncore.ReserveLength(m)
		m = append(append(rest, sequence...), 0)
		for _, d := range docs {
			doc, err := bson.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			m = append(m, doc...)
		}
		m = bsoncore.UpdateLength(m, start, int32(len(m))-start)
	}
	return bsoncore.UpdateLength(m, at, int32(len(m)))
}

func seeds(t interface{ Fatal(...any) }) [][]byte {
	one := bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.A{1, bson.D{{Key: "b", Value: "x"}}}}}
	session := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}
	return [][]byte{
		opMsg(t, bson.D{{Key: "hello", Value: 1}}, ""),
		opMsg(t, bson.D{{Key: "insert", Value: "c"}, {Key: "ordered", Value: false}}, "documents", one, one),
		opMsg(t, bson.D{{Key: "insert", Value: "c"}, {Key: "lsid", Value: session}, {Key: "txnNumber", Value: int64(1)}}, "documents", one),
		opMsg(t, bson.D{{Key: "update", Value: "c"}}, "updates", bson.D{{Key: "q", Value: bson.D{{Key: "a.b", Value: "x"}}},
			{Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n.m", Value: 1.5}}}, {Key: "$unset", Value: bson.D{{Key: "a.0", Value: ""}}}}}, {Key: "upsert", Value: true}, {Key: "multi", Value: true}}),
		opMsg(t, bson.D{{Key: "delete", Value: "c"}}, "deletes", bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: bson.A{1, "x"}}}}}}, {Key: "limit", Value: 0}}),
		opMsg(t, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "a", Value: bson.Regex{Pattern: "x", Options: "i"}}}, bson.D{{Key: "a", Value: bson.D{{Key: "$type", Value: "number"}}}}}}}},
			{Key: "sort", Value: bson.D{{Key: "a.b", Value: -1}}}, {Key: "projection", Value: bson.D{{Key: "a.b", Value: 1}}}, {Key: "batchSize", Value: 1}}, ""),
		opMsg(t, bson.D{{Key: "findAndModify", Value: "c"}, {Key: "query", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "update", Value: bson.D{{Key: "$max", Value: bson.D{{Key: "n", Value: 5}}}}}, {Key: "upsert", Value: true}}, ""),
		opMsg(t, bson.D{{Key: "create", Value: "d"}, {Key: "validator", Value: bson.D{{Key: "$jsonSchema", Value: bson.D{{Key: "required", Value: bson.A{"a"}}, {Key: "properties", Value: bson.D{{Key: "a", Value: bson.D{{Key: "bsonType", Value: "int"}}}}}}}}}}, ""),
		opMsg(t, bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a.b", Value: -1}}}, {Key: "name", Value: "x"}, {Key: "unique", Value: true}, {Key: "partialFilterExpression", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$gt", Value: 1}}}}}}}}}, ""),
		opMsg(t, bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{}}}, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}}}}, {Key: "cursor", Value: bson.D{}}}, ""),
		opMsg(t, bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: 1}}}, {Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"find"}}, {Key: "errorCode", Value: 1}}}}, ""),
		opMsg(t, bson.D{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: "c"}}}}, ""),
		opMsg(t, bson.D{{Key: "killSessions", Value: bson.A{session}}}, ""),
		opMsg(t, bson.D{{Key: "distinct", Value: "c"}, {Key: "key", Value: "a.b"}}, ""),
		opMsg(t, bson.D{{Key: "count", Value: "c"}, {Key: "query", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: bson.MinKey{}}}}}}}}}, ""),
	}
}

// tape is a connection that plays what a client has sent and records what the server answers.
type tape struct {
	net.Conn // nil: whatever else is called is a bug
	in       *bytes.Reader
	out      bytes.Buffer
}

func (c *tape) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *tape) Write(b []byte) (int, error) { return c.out.Write(b) }
func (c *tape) Close() error                { return nil }

// play serves one connection to its end and returns the replies. A command that waits for something is interrupted by
// closing the server after a moment.
func play(t interface{ Fatal(...any) }, s *Server, stream []byte) [][]byte {
	c := &tape{in: bytes.NewReader(stream)}
	s.serve(s.members[0], c)
	ended := make(chan struct{})
	go func() { s.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Millisecond):
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		<-ended
	}
	var replies [][]byte
	for c.out.Len() > 0 {
		m, err := readMessage(&c.out, 1<<30)
		if err != nil {
			t.Fatal("half a reply: ", err)
		}
		replies = append(replies, m)
	}
	return replies
}

// FuzzServe sends a stream of bytes to a server that holds some documents. Whatever it is, the server answers with
// well-formed replies or closes the connection, and it serves the next client.
func FuzzServe(f *testing.F) {
	for _, m := range seeds(f) {
		f.Add(m, false)
		f.Add(append(slices.Clone(seeds(f)[2]), m...), true)
	}
	f.Fuzz(func(t *testing.T, stream []byte, set bool) {
		config := Config{InProcess: true, Clock: NewClock(time.Unix(1_700_000_000, 0)), MaxMessageBytes: 1 << 20}
		if set {
			config.ReplicaSet = "rs"
		}
		s, err := Start(config)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(play(t, s, seeds(t)[1])); n != 1 {
			t.Fatalf("%d replies to a good message", n)
		}
		for _, reply := range play(t, s, stream) {
			if bytes.Equal(reply[12:16], []byte{1, 0, 0, 0}) {
				continue // OP_REPLY
			}
			doc := reply[headerLength+5:]
			if err := checkFields(doc, -1000); err != nil {
				t.Fatalf("the reply is no document: %v", err)
			}
			if v, ok := lookup(doc, "ok"); !ok || v.Type != bsoncore.TypeDouble {
				t.Fatal("the reply has no ok")
			}
		}
		if s.closed {
			return
		}
		if n := len(play(t, s, opMsg(t, bson.D{{Key: "ping", Value: 1}}, ""))); n != 1 {
			t.Fatal("the server does not answer any more")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
