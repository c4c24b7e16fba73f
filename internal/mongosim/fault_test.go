package mongosim_test

import (
	"context"
	"errors"
	"fmt"
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
