package mongosim

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// longestAwait bounds how long a monitor waits for news, whatever it asks for.
const longestAwait = time.Second

// runHello answers the handshake and the monitors. A request with topologyVersion and maxAwaitTimeMS is answered when
// something has changed since, or when that time is over: the one wait here that is in real time, because it belongs to
// the driver's monitor and to no test.
//
// A client that disconnects can lose the signal that stops its monitor, between two of its checks (driver 2.10,
// Server.Disconnect), and then waits for this answer. So the end of any connection is a reason to answer too, and the wait
// is shorter than asked for. Both are allowed: whether there is news is told by topologyVersion.
func runHello(op *operation) ([]byte, error) {
	s := op.server
	if v, ok := op.argument("client"); ok && v.Type == bsoncore.TypeEmbeddedDocument {
		if app, ok := at(v.Data, []string{"application", "name"}); ok && app.Type == bsoncore.TypeString {
			op.conn.app = app.StringValue()
		}
	}
	v, known := op.argument("topologyVersion")
	wait, err := op.integer("maxAwaitTimeMS", 0)
	if err != nil {
		return nil, err
	}
	if known && wait > 0 && v.Type == bsoncore.TypeEmbeddedDocument {
		counter, _ := lookup(v.Data, "counter")
		seen, _ := wholeNumber(counter)
		over := make(chan struct{})
		timer := time.AfterFunc(min(time.Duration(wait)*time.Millisecond, longestAwait), func() { close(over) })
		defer timer.Stop()
		for seen == s.topology && op.conn.ended == s.ended {
			if err := op.waitEither(s.changed, over); err != nil {
				return nil, err
			}
			select {
			case <-over:
				seen = -1
			default:
			}
		}
	}
	op.conn.ended = s.ended
	return s.hello(op), nil
}

func (s *Server) hello(op *operation) []byte {
	primary := s.config.ReplicaSet == "" || op.member.index == s.primary
	name := "isWritablePrimary"
	if op.name != "hello" {
		name = "ismaster"
	}
	out := bsoncore.AppendBooleanElement(nil, "helloOk", true)
	out = bsoncore.AppendBooleanElement(out, name, primary)
	if !s.config.NoStreaming {
		out = append(out, s.topologyVersion()...)
	}
	switch {
	case s.config.ReplicaSet != "":
		out = append(out, s.setFields(op.member, primary)...)
	case s.config.ShardKeys != nil:
		out = bsoncore.AppendStringElement(out, "msg", "isdbgrid")
	}
	out = bsoncore.AppendInt32Element(out, "maxBsonObjectSize", int32(s.config.MaxDocumentBytes))
	out = bsoncore.AppendInt32Element(out, "maxMessageSizeBytes", int32(s.config.MaxMessageBytes))
	out = bsoncore.AppendInt32Element(out, "maxWriteBatchSize", int32(s.config.MaxBatch))
	out = bsoncore.AppendDateTimeElement(out, "localTime", s.now().UnixMilli())
	out = bsoncore.AppendInt32Element(out, "logicalSessionTimeoutMinutes", 30)
	out = bsoncore.AppendInt32Element(out, "connectionId", int32(op.conn.id))
	out = bsoncore.AppendInt32Element(out, "minWireVersion", 0)
	out = bsoncore.AppendInt32Element(out, "maxWireVersion", int32(s.config.MaxWireVersion))
	return bsoncore.AppendBooleanElement(out, "readOnly", false)
}

func (s *Server) setFields(m *member, primary bool) []byte {
	out := bsoncore.AppendStringElement(nil, "setName", s.config.ReplicaSet)
	out = bsoncore.AppendInt32Element(out, "setVersion", 1)
	out = bsoncore.AppendBooleanElement(out, "secondary", !primary)
	var hosts []bsoncore.Value
	for _, other := range s.members {
		if other.address != "" {
			hosts = append(hosts, text(other.address))
		}
	}
	out = bsoncore.BuildArrayElement(out, "hosts", hosts...)
	if s.primary >= 0 {
		out = bsoncore.AppendStringElement(out, "primary", s.members[s.primary].address)
	}
	out = bsoncore.AppendStringElement(out, "me", m.address)
	if primary {
		// A later election has a higher id, so that drivers know an old primary when they see one.
		id := [12]byte{0: 0x7f, 1: 0xff, 2: 0xff, 3: 0xff}
		for i := range 8 {
			id[11-i] = byte(s.term >> (8 * i))
		}
		out = bsoncore.AppendObjectIDElement(out, "electionId", id)
	}
	t, i := timestamp(s.memberData(m).position)
	optime := bsoncore.AppendInt64Element(bsoncore.AppendTimestampElement(nil, "ts", t, i), "t", s.term)
	write := bsoncore.BuildDocumentElement(nil, "opTime", optime)
	write = bsoncore.AppendDateTimeElement(write, "lastWriteDate", s.now().UnixMilli())
	return bsoncore.BuildDocumentElement(out, "lastWrite", write)
}

func runBuildInfo(op *operation) ([]byte, error) {
	version := map[int]string{9: "4.4.0", 13: "5.0.0", 17: "6.0.0", 21: "7.0.0", 25: "8.0.0"}[op.server.config.MaxWireVersion]
	if version == "" {
		version = "7.0.0"
	}
	var numbers []bsoncore.Value
	for _, n := range []int32{int32(version[0] - '0'), int32(version[2] - '0'), 0, 0} {
		numbers = append(numbers, bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, n)})
	}
	out := bsoncore.AppendStringElement(nil, "version", version)
	out = bsoncore.BuildArrayElement(out, "versionArray", numbers...)
	out = bsoncore.BuildArrayElement(out, "modules", text("mongosim"))
	return bsoncore.AppendInt32Element(out, "maxBsonObjectSize", int32(op.server.config.MaxDocumentBytes)), nil
}

func runConnectionStatus(op *operation) ([]byte, error) {
	info := bsoncore.BuildArrayElement(nil, "authenticatedUsers")
	info = bsoncore.BuildArrayElement(info, "authenticatedUserRoles")
	return bsoncore.BuildDocumentElement(nil, "authInfo", info), nil
}

// runKillSessions interrupts what the sessions are running and closes their cursors. It leaves no mark: what arrives
// later in those sessions runs.
func runKillSessions(op *operation) ([]byte, error) {
	s := op.server
	v, _ := op.argument("killSessions")
	if v.Type != bsoncore.TypeArray {
		return nil, wrongType(op.name, op.name, v, "array")
	}
	victims := map[string]bool{}
	for it := fieldsOf(v.Data); it.next(); {
		id, err := sessionID(it.value)
		if err != nil {
			return nil, err
		}
		victims[id] = true
	}
	for other := range s.running {
		if other != op && other.lsid != "" && (victims[other.lsid] || len(victims) == 0) {
			other.kill(errorf(codeInterrupted, "operation was interrupted"))
		}
	}
	for id, c := range s.cursors {
		if c.lsid != "" && (victims[c.lsid] || len(victims) == 0) {
			delete(s.cursors, id)
		}
	}
	return nil, nil
}
