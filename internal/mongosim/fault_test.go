package mongosim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/mongosim"
)

func insertOne(id any) bson.D { return d("insert", "c", "documents", bson.A{d("_id", id)}) }

// plain is a server with one raw connection.
func plain(t testing.TB, config mongosim.Config) (*mongosim.Server, rawConn) {
	config.InProcess = true
	s := start(t, config)
	return s, member(t, s, 0)
}

func TestFaults(t *testing.T) {
	failed := &mongosim.Error{Code: 8000, Message: "no space"}
	for _, c := range []struct {
		name    string
		fault   mongosim.Fault
		code    int32 // of the command's error
		cut     bool
		concern int64
		stored  bool
	}{
		{name: "refused", fault: mongosim.Fault{Err: failed}, code: 8000},
		{name: "request lost", fault: mongosim.Fault{CloseBefore: true}, cut: true},
		{name: "reply lost", fault: mongosim.Fault{CloseAfter: true}, cut: true, stored: true},
		{name: "concern", fault: mongosim.Fault{WriteConcernErr: &mongosim.Error{Code: 91, Message: "shutting down"}}, concern: 91, stored: true},
		{name: "statement", fault: mongosim.Fault{Refuse: func(i int) *mongosim.Error { return failed }}},
		{name: "statement let through", fault: mongosim.Fault{Refuse: func(i int) *mongosim.Error { return nil }}, stored: true},
		{name: "rewritten", fault: mongosim.Fault{Rewrite: func(bson.Raw) bson.Raw {
			doc, err := bson.Marshal(d("ok", 0, "code", 5, "errmsg", "not true"))
			must(t, err)
			return doc
		}}, code: 5, stored: true},
		{name: "another command", fault: mongosim.Fault{Commands: []string{"update"}, Err: failed}, stored: true},
		{name: "this command", fault: mongosim.Fault{Commands: []string{"update", "insert"}, Err: failed}, code: 8000},
		{name: "another namespace", fault: mongosim.Fault{Namespace: "db.d", Err: failed}, stored: true},
		{name: "this namespace", fault: mongosim.Fault{Namespace: "db.c", Err: failed}, code: 8000},
		{name: "another client", fault: mongosim.Fault{AppName: "x", Err: failed}, stored: true},
		{name: "skipped", fault: mongosim.Fault{Commands: []string{"insert"}, Skip: 1, Err: failed}, stored: true},
		{name: "matched", fault: mongosim.Fault{Match: func(s mongosim.Step, raw bson.Raw) bool {
			return s.Command == "insert" && raw.Lookup("insert").StringValue() == "c"
		}, Err: failed}, code: 8000},
		{name: "not matched", fault: mongosim.Fault{Match: func(mongosim.Step, bson.Raw) bool { return false }, Err: failed}, stored: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, conn := plain(t, mongosim.Config{})
			f := &c.fault
			f.Times = 1
			s.AddFault(f)
			reply, err := conn.command("db", insertOne(1))
			var refused mongo.CommandError
			switch {
			case c.cut:
				if err == nil || errors.As(err, &refused) {
					t.Fatalf("the connection was not cut: %v, %v", reply, err)
				}
				conn = member(t, s, 0)
			case c.code != 0:
				if !errors.As(err, &refused) || refused.Code != c.code {
					t.Fatalf("refused with %v, want %d", err, c.code)
				}
			default:
				must(t, err)
			}
			if c.concern != 0 {
				want(t, "concern", reply.Lookup("writeConcernError", "code").AsInt64(), c.concern)
			}
			n := 0
			if c.stored {
				n = 1
			}
			want(t, "stored", len(conn.ids(t, everything)), n)
			s.RemoveFault(f)
			conn.ok(t, insertOne(2))
		})
	}
}

func TestFaultTimes(t *testing.T) {
	s, c := plain(t, mongosim.Config{})
	f := &mongosim.Fault{Skip: 1, Times: 2, Err: &mongosim.Error{Code: 7}}
	s.AddFault(f)
	var got []int32
	for i := range 5 {
		got = append(got, c.code(t, insertOne(i)))
	}
	want(t, "codes", fmt.Sprint(got), "[0 7 7 0 0]")
	want(t, "hits", s.Hits(f), 2)
}

func TestAppName(t *testing.T) {
	s := start(t, mongosim.Config{InProcess: true})
	s.AddFault(&mongosim.Fault{AppName: "mine", Err: &mongosim.Error{Code: 8000}})
	_, err := connect(t, s, options.Client().SetAppName("mine")).Database("db").Collection("c").InsertOne(t.Context(), d())
	must(t, refused(err, 8000))
	_, err = connect(t, s, options.Client().SetAppName("other")).Database("db").Collection("c").InsertOne(t.Context(), d())
	must(t, err)
}

// TestExecutedLate: the client gives up, and the server executes the command afterwards.
func TestExecutedLate(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true})
	client := connect(t, s)
	coll := client.Database("db").Collection("c")
	must(t, client.Ping(t.Context(), nil))
	f := &mongosim.Fault{Commands: []string{"insert"}, Times: 1, AfterClientGone: true}
	s.AddFault(f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := coll.InsertOne(ctx, d("_id", 1)); done <- err }()
	must(t, eventually(t.Context(), func() error { return equal("hits", s.Hits(f), 1) }))
	n, err := coll.CountDocuments(t.Context(), d())
	must(t, err)
	want(t, "before the client is gone", n, 0)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, eventually(t.Context(), func() error {
		n, err := coll.CountDocuments(t.Context(), d())
		return lines(err, equal("afterwards", n, int64(1)))
	}))
}

func TestHeldRequest(t *testing.T) {
	s, c := plain(t, mongosim.Config{})
	release := make(chan struct{})
	f := &mongosim.Fault{Commands: []string{"insert"}, Times: 1, Hold: release}
	s.AddFault(f)
	must(t, c.send("db", insertOne(1)))
	other := member(t, s, 0)
	must(t, eventually(t.Context(), func() error { return equal("hits", s.Hits(f), 1) }))
	want(t, "deleted", other.ok(t, d("delete", "c", "deletes", bson.A{d("q", d("_id", 1), "limit", 0)})).Lookup("n").AsInt64(), 0)
	close(release)
	reply, err := c.receive()
	must(t, err, commandError(reply))
	want(t, "stored", len(other.ids(t, everything)), 1)
}

// TestFailPoints drives configureFailPoint as MongoDB's own tests do.
func TestFailPoints(t *testing.T) {
	clock := mongosim.NewClock(time.Unix(1_700_000_000, 0))
	s, c := plain(t, mongosim.Config{ReplicaSet: "rs", Clock: clock})
	arm := func(mode any, data bson.D) {
		t.Helper()
		_, err := c.command("admin", d("configureFailPoint", "failCommand", "mode", mode, "data", data))
		must(t, err)
	}
	inserts := func(more ...any) bson.D { return append(d("failCommands", bson.A{"insert"}), d(more...)...) }
	labels := func(err error) string {
		var e mongo.CommandError
		errors.As(err, &e)
		return fmt.Sprint(e.Code, e.Labels)
	}

	arm(d("times", 1), inserts("errorCode", 11600))
	_, err := c.command("db", retryable(1, 1, d("_id", 1)))
	want(t, "retryable", labels(err), "11600 [RetryableWriteError NoWritesPerformed]")
	arm(d("times", 1), inserts("errorCode", 11600, "errorLabels", bson.A{}))
	_, err = c.command("db", retryable(1, 1, d("_id", 1)))
	want(t, "without labels", labels(err), "11600 []")
	arm(d("times", 1), inserts("errorCode", 462, "errorLabels", bson.A{"SystemOverloadedError", "RetryableError"}))
	_, err = c.command("db", insertOne(1))
	want(t, "overload", labels(err), "462 [SystemOverloadedError RetryableError]")

	arm(d("skip", 1), inserts("errorCode", 8000))
	want(t, "skipped", c.code(t, insertOne(1)), 0)
	want(t, "not skipped", c.code(t, insertOne(2)), 8000)
	want(t, "and always", c.code(t, insertOne(2)), 8000)
	arm("off", nil)
	want(t, "off", c.code(t, insertOne(2)), 0)

	arm(d("times", 1), inserts("writeConcernError", d("code", 91, "errmsg", "x", "codeName", "ShutdownInProgress")))
	reply := c.ok(t, retryable(1, 2, d("_id", 3)))
	want(t, "concern", reply.Lookup("writeConcernError", "code").AsInt64(), 91)
	want(t, "label", reply.Lookup("errorLabels").String(), `["RetryableWriteError"]`)

	arm(d("times", 1), inserts("blockConnection", true, "blockTimeMS", 5000))
	must(t, c.send("db", insertOne(4)))
	clock.BlockUntil(1, t.Context().Done())
	want(t, "blocked", len(member(t, s, 0).ids(t, everything)), 3)
	clock.Advance(5 * time.Second)
	reply, err = c.receive()
	must(t, err, commandError(reply))

	// maxTimeMS runs out while the command is blocked.
	arm(d("times", 1), inserts("blockConnection", true, "blockTimeMS", 5000))
	must(t, c.send("db", append(insertOne(5), d("maxTimeMS", 1000)...)))
	clock.BlockUntil(2, t.Context().Done())
	want(t, "woken", clock.Next(), true)
	reply, err = c.receive()
	must(t, err, refused(commandError(reply), 50))

	arm(d("times", 1), inserts("closeConnection", true))
	if _, err := c.command("db", insertOne(6)); err == nil {
		t.Fatal("the connection is still open")
	}
	want(t, "stored", len(member(t, s, 0).ids(t, everything)), 4)

	c = member(t, s, 0)
	for _, wrong := range []bson.D{
		d("configureFailPoint", "nonsense", "mode", "alwaysOn"),
		d("configureFailPoint", "failCommand", "mode", "sometimes"),
		d("configureFailPoint", "failCommand", "mode", "alwaysOn", "data", inserts("nonsense", 1)),
		d("configureFailPoint", "failCommand", "mode", "alwaysOn", "data", d("errorCode", 5)),
		d("configureFailPoint", "failCommand", "mode", "alwaysOn", "data", inserts("blockConnection", true)),
	} {
		if _, err := c.command("admin", wrong); err == nil {
			t.Errorf("accepted: %v", wrong)
		}
	}
}

// TestThrottle: part of an unordered insert is refused with a hint, by rate and by script.
func TestThrottle(t *testing.T) {
	clock := mongosim.NewClock(time.Unix(1_700_000_000, 0))
	s, c := plain(t, mongosim.Config{Clock: clock})
	docs := bson.A{}
	for i := range 40 {
		docs = append(docs, d("_id", i))
	}
	batch := d("insert", "c", "ordered", false, "documents", docs)
	refusals := func(reply bson.Raw) (n int, text string) {
		list, ok := reply.Lookup("writeErrors").ArrayOK()
		if !ok {
			return 0, ""
		}
		values, err := list.Values()
		must(t, err)
		for _, v := range values {
			if v.Document().Lookup("code").AsInt64() == 16500 {
				n, text = n+1, v.Document().Lookup("errmsg").StringValue()
			}
		}
		return n, text
	}
	s.SetThrottle(&mongosim.Throttle{Rate: 100, Burst: 25})
	reply := c.ok(t, batch)
	n, text := refusals(reply)
	want(t, "refused", n, 15)
	want(t, "stored", reply.Lookup("n").AsInt64(), 25)
	must(t, contains(text, "RetryAfterMs=10,"))
	clock.Advance(50 * time.Millisecond)
	n, _ = refusals(c.ok(t, batch))
	want(t, "refused after 50 ms", n, 35) // five were let through, to find that they are there
	calls := 0
	s.SetThrottle(&mongosim.Throttle{Refuse: func() time.Duration {
		calls++
		if calls%2 == 0 {
			return 300 * time.Millisecond
		}
		return 0
	}})
	n, text = refusals(c.ok(t, batch))
	want(t, "refused by the script", n, 20)
	must(t, contains(text, "RetryAfterMs=300,"))
	s.SetThrottle(nil)
	n, _ = refusals(c.ok(t, batch))
	want(t, "refused at last", n, 0)
}

func TestDuplicateStyles(t *testing.T) {
	for style, wantText := range map[mongosim.DuplicateStyle]string{
		mongosim.DuplicateModern: `E11000 duplicate key error collection: db.c index: by_mail dup key: { mail: "x" }`,
		mongosim.DuplicateText:   `E11000 duplicate key error collection: db.c index: by_mail dup key: { : "x" }`,
		mongosim.DuplicateBare:   `E11000 duplicate key error collection: db.c`,
	} {
		_, c := plain(t, mongosim.Config{Duplicates: style})
		c.ok(t, d("createIndexes", "c", "indexes", bson.A{d("key", d("mail", 1), "name", "by_mail", "unique", true)}))
		c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1, "mail", "x")}))
		reply := c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 2, "mail", "x")}))
		e := reply.Lookup("writeErrors", "0")
		want(t, "text", e.Document().Lookup("errmsg").StringValue(), wantText)
		_, err := e.Document().LookupErr("keyPattern")
		want(t, "has keyPattern", err == nil, style == mongosim.DuplicateModern)
	}
}

func TestCappedDeleteCode(t *testing.T) {
	for code, config := range map[int32]mongosim.Config{20: {MaxWireVersion: 9}, 10089: {MaxWireVersion: 9, CappedDeleteCode: 10089}} {
		_, c := plain(t, config)
		c.ok(t, d("create", "c", "capped", true, "size", 4096))
		c.ok(t, insertOne(1))
		reply := c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d(), "limit", 0)}))
		want(t, "code", reply.Lookup("writeErrors", "0", "code").AsInt64(), int64(code))
	}
}

func TestDiscard(t *testing.T) {
	_, c := plain(t, mongosim.Config{Discard: true})
	want(t, "n", c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1), d("_id", 1)})).Lookup("n").AsInt64(), 2)
	want(t, "counted", c.ok(t, d("count", "c")).Lookup("n").AsInt64(), 2)
	want(t, "kept", len(c.ids(t, everything)), 0)
}

func TestLimits(t *testing.T) {
	_, c := plain(t, mongosim.Config{MaxBatch: 3, MaxDocumentBytes: 1000, MaxMessageBytes: 100_000})
	want(t, "too many", c.code(t, d("insert", "c", "documents", bson.A{d(), d(), d(), d()})), 16)
	big := d("_id", 1, "b", strings.Repeat("x", 1000))
	reply := c.ok(t, d("insert", "c", "documents", bson.A{big}))
	want(t, "too large", reply.Lookup("writeErrors", "0", "code").AsInt64(), 2)
	c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1, "b", strings.Repeat("x", 900))}))
	reply = c.ok(t, d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$set", d("c", strings.Repeat("x", 200))))}))
	want(t, "grown too large", reply.Lookup("writeErrors", "0", "code").AsInt64(), 10334)
	want(t, "too large for the wire", c.code(t, d("insert", "c", "documents", bson.A{d("b", strings.Repeat("x", 30_000))})), 10334)
	if err := c.send("db", d("insert", "c", "documents", bson.A{d("b", strings.Repeat("x", 200_000))})); err == nil {
		if reply, err := c.receive(); err == nil {
			t.Fatalf("a message over the limit is answered: %v", reply)
		}
	}
}

// TestSessionRunsOneOperationAtATime holds an insert in mid-flight: the fence of the same session waits for it, other
// sessions do not, and an interrupted wait leaves the session to the next.
func TestSessionRunsOneOperationAtATime(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	clock := mongosim.NewClock(time.Unix(1_700_000_000, 0))
	s, c := plain(t, mongosim.Config{ReplicaSet: "rs", Clock: clock, Step: func(step mongosim.Step) {
		if step.Point == mongosim.PointStarted && step.Command == "insert" && held.CompareAndSwap(false, true) {
			close(reached)
			<-release
		}
	}})
	must(t, c.send("db", retryable(1, 1, d("_id", 1))))
	<-reached
	other, waiting, third := member(t, s, 0), member(t, s, 0), member(t, s, 0)
	other.ok(t, retryable(2, 1, d("_id", 2)))
	must(t, waiting.send("db", append(fence(1, 2), d("maxTimeMS", 1000)...)))
	clock.BlockUntil(1, t.Context().Done())
	must(t, third.send("db", fence(1, 3)))
	clock.Advance(time.Second)
	reply, err := waiting.receive()
	must(t, err, refused(commandError(reply), 50))
	close(release)
	reply, err = c.receive()
	must(t, err, commandError(reply))
	reply, err = third.receive()
	must(t, err, commandError(reply))
	want(t, "documents", other.ids(t, everything), []int{1, 2})
	want(t, "a late one", c.code(t, retryable(1, 2, d("_id", 3))), 225)
}

// TestKillSessions stops what runs and what waits in the session.
func TestKillSessions(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	s, c := plain(t, mongosim.Config{ReplicaSet: "rs", Step: func(step mongosim.Step) {
		if step.Point == mongosim.PointYield && held.CompareAndSwap(false, true) {
			close(reached)
			<-release
		}
	}})
	docs := bson.A{}
	for i := range 100 {
		docs = append(docs, d("_id", i))
	}
	must(t, c.send("db", retryable(1, 1, docs...)))
	<-reached
	killer := member(t, s, 0)
	killer.ok(t, d("killSessions", bson.A{d("id", bson.Binary{Subtype: 4, Data: append(make([]byte, 15), 1)})}))
	close(release)
	reply, err := c.receive()
	must(t, err, refused(commandError(reply), 11601))
	want(t, "stored", len(killer.ids(t, everything)), 64)
	want(t, "again", c.ok(t, retryable(1, 1, docs...)).Lookup("n").AsInt64(), 100)
}

func TestObserver(t *testing.T) {
	var seen journal
	_, c := plain(t, mongosim.Config{ReplicaSet: "rs", Observe: seen.observe})
	c.ok(t, retryable(1, 4, d("_id", 1, "x", "a"), d("_id", 1), d("_id", 2)))
	c.ok(t, d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$set", d("x", "b"))), d("q", d("_id", 1), "u", d("$set", d("x", "b")))}))
	c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d("_id", 2), "limit", 1)}))
	c.ok(t, d("drop", "c"))
	var got []string
	for i, w := range seen.all() {
		got = append(got, fmt.Sprintf("%v %v %v>%v", w.Kind, w.ID, w.Before != nil, w.After != nil))
		want(t, "position", w.Position, int64(i+1))
		want(t, "namespace", w.Namespace, "db.c")
	}
	want(t, "writes", strings.Join(got, "; "), `insert {"$numberInt":"1"} false>true; insert {"$numberInt":"2"} false>true; `+
		`update {"$numberInt":"1"} true>true; delete {"$numberInt":"2"} true>false; drop  false>false`)
	first, third := seen.all()[0], seen.all()[2]
	want(t, "txnNumber", first.TxnNumber, 4)
	want(t, "lsid", first.LSID, strings.Repeat("00", 15)+"01")
	want(t, "statement", seen.all()[1].Statement, 2)
	want(t, "no txnNumber", third.TxnNumber, -1)
	want(t, "before", third.Before.Lookup("x").StringValue(), "a")
	want(t, "after", third.After.Lookup("x").StringValue(), "b")
}

// TestSeed: a run is a function of its seed.
func TestSeed(t *testing.T) {
	made := func(seed uint64) string {
		_, c := plain(t, mongosim.Config{Seed: seed, Clock: mongosim.NewClock(time.Unix(1_700_000_000, 0))})
		c.ok(t, d("insert", "c", "documents", bson.A{d("x", 1)}))
		return c.ok(t, d("find", "c")).Lookup("cursor", "firstBatch", "0", "_id").ObjectID().Hex()
	}
	want(t, "same seed", made(5), made(5))
	want(t, "another seed differs", made(5) != made(6), true)
}

func TestStartRefusesNonsense(t *testing.T) {
	for _, config := range []mongosim.Config{{Members: 2}, {MaxWireVersion: 5}} {
		if s, err := mongosim.Start(config); err == nil {
			must(t, s.Close())
			t.Errorf("started with %+v", config)
		}
	}
}

func TestTransactionsAreRefused(t *testing.T) {
	_, c := plain(t, mongosim.Config{ReplicaSet: "rs"})
	want(t, "code", c.code(t, append(retryable(1, 1, d("_id", 1)), d("startTransaction", true, "autocommit", false)...)), 238)
	want(t, "documents", len(c.ids(t, everything)), 0)
}
