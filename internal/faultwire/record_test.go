package faultwire_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/faultwire"
)

func TestRequest(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t, replicaSet)
	orders := s.connect(t, wire, options.Client().SetRetryWrites(true)).Clone(options.Collection().
		SetWriteConcern(writeconcern.Majority()).SetReadConcern(readconcern.Local()).
		SetReadPreference(readpref.SecondaryPreferred()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := orders.InsertMany(ctx, docs(7, 8), options.InsertMany().SetOrdered(false)); err != nil {
		t.Fatal(err)
	}
	if _, err := orders.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 7}}); err != nil {
		t.Fatal(err)
	}
	if _, err := orders.UpdateOne(t.Context(), bson.D{{Key: "a", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: 2}}}}); err != nil {
		t.Fatal(err)
	}
	wire.On(faultwire.Find).Reply()
	if _, err := orders.Find(ctx, bson.D{{Key: "c", Value: 3}}); err != nil {
		t.Fatal(err)
	}
	_ = orders.FindOneAndDelete(t.Context(), bson.D{{Key: "d", Value: 4}})
	if err := orders.Database().Client().Database("x").RunCommand(t.Context(), bson.D{{Key: "getMore", Value: int64(5)},
		{Key: "collection", Value: "y"}}).Err(); err != nil {
		t.Fatal(err)
	}

	events := wire.Events()
	var names []string
	for _, e := range events {
		names = append(names, string(e.Name)+" "+e.Namespace())
	}
	same(t, "commands", names, []string{"insert shop.orders", "delete shop.orders", "update shop.orders", "find shop.orders",
		"findAndModify shop.orders", "getMore x.y"})

	insert := events[0]
	same(t, "documents", insert.Documents(), []string{
		`{"_id": {"$numberInt":"7"},"text": "number 7"}`, `{"_id": {"$numberInt":"8"},"text": "number 8"}`})
	same(t, "_id", insert.IDs(), []string{`{"$numberInt":"7"}`, `{"$numberInt":"8"}`})
	same(t, "documents in the whole command", insert.Document().Lookup("documents", "1", "text"), `"number 8"`)
	same(t, "database in the whole command", insert.Document().Lookup("$db"), `"shop"`)
	same(t, "writeConcern", insert.WriteConcern(), `{"w": "majority"}`)
	same(t, "ordered", insert.Ordered(), false)
	same(t, "session", insert.Session().Lookup("id").Type, bson.TypeBinary)
	txn, ok := insert.TxnNumber()
	same(t, "txnNumber", fmt.Sprint(txn, ok), "1 true")
	if ms, ok := insert.MaxTimeMS(); !ok || ms <= 0 || ms > 60_000 { // the driver takes it from the context
		t.Errorf("the insert's maxTimeMS: %d, %v", ms, ok)
	}
	same(t, "acknowledged", insert.Acknowledged(), true)
	same(t, "the insert's filters", len(insert.Filters()), 0)

	remove := events[1]
	same(t, "delete's filters", remove.Filters(), `[{"_id": {"$numberInt":"7"}}]`)
	same(t, "delete's documents", len(remove.Documents()), 0)
	same(t, "delete's statements", len(remove.Statements()), 1)
	_, ok = remove.MaxTimeMS()
	same(t, "delete's maxTimeMS", ok, false)
	same(t, "delete is ordered", remove.Ordered(), true)
	same(t, "update's filters", events[2].Filters(), `[{"a": {"$numberInt":"1"}}]`)

	find := events[3]
	same(t, "find's filters", find.Filters(), `[{"c": {"$numberInt":"3"}}]`)
	same(t, "readConcern", find.ReadConcern(), `{"level": "local"}`)
	same(t, "$readPreference", find.ReadPreference(), `{"mode": "secondaryPreferred"}`)
	same(t, "find's writeConcern", find.WriteConcern() == nil, true)
	_, ok = find.TxnNumber()
	same(t, "find's txnNumber", ok, false)
	same(t, "findAndModify's filters", events[4].Filters(), `[{"d": {"$numberInt":"4"}}]`)
}

func TestEventsInOrder(t *testing.T) {
	wire := faultwire.ForTest(t)
	orders := start(t).connect(t, wire)
	for i := range 3 {
		if _, err := orders.InsertMany(t.Context(), docs(i)); err != nil {
			t.Fatal(err)
		}
		events := wire.Events()
		e := events[len(events)-1]
		// All of it is recorded when the call returns.
		same(t, "marks", []int{e.Seen.Order, e.Forwarded.Order, e.Answered.Order, e.Given.Order, e.Lost.Order},
			[]int{4*i + 1, 4*i + 2, 4*i + 3, 4*i + 4, 0})
		same(t, "sequence", e.Seq, i+1)
		if e.Seen.At > e.Given.At || e.Given.At <= 0 {
			t.Errorf("times go from %v to %v", e.Seen.At, e.Given.At)
		}
		same(t, "server's reply", e.ServerReply.String(), `{"n": {"$numberInt":"1"},"ok": {"$numberDouble":"1.0"}}`)
		same(t, "client's reply", e.ClientReply.String(), e.ServerReply.String())
		if !strings.HasPrefix(e.Address, "127.0.0.1:") || e.Conn == 0 {
			t.Errorf("address %s, connection %d", e.Address, e.Conn)
		}
	}
	same(t, "filtered", len(wire.Events(faultwire.Insert.In("shop.lines"))), 0)
	same(t, "not filtered", len(wire.Events(faultwire.Insert.In("shop.orders"), faultwire.Delete)), 3)
}

func TestBefore(t *testing.T) {
	never, first, second := faultwire.Mark{}, faultwire.Mark{Order: 1}, faultwire.Mark{Order: 2}
	for _, row := range []struct {
		a, b faultwire.Mark
		want bool
	}{
		{first, second, true}, {second, first, false}, {first, first, false},
		{first, never, true}, {never, first, false}, {never, never, false},
	} {
		same(t, fmt.Sprint(row.a, " before ", row.b), row.a.Before(row.b), row.want)
	}
}

func TestQuiet(t *testing.T) {
	ping := func(t *testing.T, orders *mongo.Collection) {
		t.Helper()
		if err := orders.Database().Client().Ping(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("not recorded", func(t *testing.T) {
		wire := faultwire.ForTest(t)
		orders := start(t).connect(t, wire)
		ping(t, orders)
		same(t, "recorded", wire.String(), "")
		same(t, "counted", wire.Count(), 0)
	})
	t.Run("recorded when asked", func(t *testing.T) {
		wire := faultwire.ForTest(t, faultwire.RecordAll())
		orders := start(t).connect(t, wire)
		ping(t, orders)
		same(t, "pings", wire.Count(faultwire.Ping), 1)
		hellos := len(wire.Events(faultwire.Hello))
		if hellos == 0 {
			t.Errorf("no hello in\n%s", wire)
		}
		same(t, "hellos of either spelling", wire.Count(faultwire.Hello) >= hellos, true)
		same(t, "others", wire.Count(faultwire.Any), 0)
	})
	t.Run("recorded when a rule takes it", func(t *testing.T) {
		wire := faultwire.ForTest(t)
		orders := start(t).connect(t, wire)
		rule := wire.On(faultwire.Ping).Once().Pass()
		ping(t, orders)
		ping(t, orders)
		same(t, "fired", rule.Fired(), 1)
		same(t, "pings", wire.Count(faultwire.Ping), 1)
	})
}

// The first hello is an OP_QUERY, answered by an OP_REPLY.
func TestHello(t *testing.T) {
	for _, row := range []struct {
		fault faultwire.Fault
		found bool
	}{
		{faultwire.Pass(), true},
		{faultwire.Lie(faultwire.Set("setName", "other")), false}, // so that the standalone server is none any more
		{faultwire.Reply(faultwire.CommandError{Code: 91}), false},
		{faultwire.DropRequest(), false},
	} {
		t.Run(row.fault.String(), func(t *testing.T) {
			t.Parallel()
			wire := faultwire.ForTest(t)
			s := start(t, replicaSet)
			rule := wire.On(faultwire.Hello).Do(row.fault)
			orders := s.connect(t, wire, options.Client().SetServerSelectionTimeout(300*time.Millisecond))
			_, err := orders.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
			same(t, "the server is found", err == nil, row.found)
			if rule.Fired() == 0 {
				t.Error("no hello was seen")
			}
		})
	}
}

func TestStreamingHello(t *testing.T) {
	wire := faultwire.ForTest(t, faultwire.RecordAll())
	s := start(t, replicaSet, streaming)
	orders := s.connect(t, wire)
	if _, err := orders.InsertMany(t.Context(), docs(1)); err != nil {
		t.Fatal(err)
	}
	streamed := func(e faultwire.Event) bool { return !e.Lookup("topologyVersion").IsZero() && e.Given.Happened() }
	eventually(t, "streaming", func() bool { return slices.ContainsFunc(wire.Events(faultwire.Hello), streamed) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := wire.Drain(ctx); err != nil {
		t.Errorf("draining beside a hello that goes on: %v", err)
	}
	if err := orders.Database().Client().Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The monitor's hello is never answered any more. Its connection ends with the client nevertheless.
	eventually(t, "leaving the server", func() bool { return wire.Connections() == 0 && s.connections() == 0 })
}

func TestObserve(t *testing.T) {
	wire := faultwire.ForTest(t)
	orders := start(t).connect(t, wire)
	wire.On(faultwire.Delete).DropReply()
	var seen []string
	end := wire.Observe(func(c faultwire.Change) {
		seen = append(seen, fmt.Sprintf("%d%s", c.Event.Seq, c.Stage))
		if c.Stage != faultwire.Seen && c.Event.Seen.Order == 0 {
			t.Errorf("%v without having been seen", c.Stage)
		}
		if len(wire.Events()) != c.Event.Seq {
			t.Errorf("%d events at %v of %d", len(wire.Events()), c.Stage, c.Event.Seq)
		}
	})
	other := 0
	wire.Observe(func(faultwire.Change) { other++ })
	if _, err := orders.InsertMany(t.Context(), docs(1)); err != nil {
		t.Fatal(err)
	}
	_, _ = orders.DeleteMany(t.Context(), bson.D{})
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"1seen", "1forwarded", "1answered", "1given", "2seen", "2forwarded", "2answered", "2lost"}
	same(t, "stages", seen, want)
	end()
	if _, err := orders.InsertMany(t.Context(), docs(2)); err != nil {
		t.Fatal(err)
	}
	same(t, "stages after the end", len(seen), len(want))
	same(t, "stages of the other observer", other, len(want)+4)
}

// An observer can hold an invariant: no insert after the first delete.
func TestObserverBlocksCommand(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	entered, leave := make(chan struct{}), make(chan struct{})
	wire.Observe(func(c faultwire.Change) {
		if c.Stage == faultwire.Seen {
			close(entered)
			<-leave
		}
	})
	result := make(chan error, 1)
	go func() {
		_, err := orders.InsertMany(context.Background(), docs(1))
		result <- err
	}()
	within(t, "being seen", entered)
	same(t, "stored while the observer looks", s.ids(), []int{})
	close(leave)
	same(t, "the insert", take(t, result), nil)
	same(t, "stored afterwards", s.ids(), []int{1})
}

// Observers are called one at a time and in the order of the marks, whatever goes on at once.
func TestObserverIsAlone(t *testing.T) {
	wire := faultwire.ForTest(t)
	orders := start(t).connect(t, wire)
	var inside atomic.Int32
	last := 0
	wire.Observe(func(c faultwire.Change) {
		if inside.Add(1) != 1 {
			t.Error("two at a time")
		}
		order := map[faultwire.Stage]int{
			faultwire.Seen: c.Event.Seen.Order, faultwire.Forwarded: c.Event.Forwarded.Order,
			faultwire.Answered: c.Event.Answered.Order, faultwire.Given: c.Event.Given.Order,
		}[c.Stage]
		if order != last+1 {
			t.Errorf("mark %d after mark %d", order, last)
		}
		last = order
		runtime.Gosched()
		inside.Add(-1)
	})
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for i := range 25 {
				if _, err := orders.InsertMany(context.Background(), docs(100*w+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	same(t, "marks", last, 400)
}

// When a reply is said to be given, the client cannot have read it yet.
func TestGivenBeforeRead(t *testing.T) {
	wire := faultwire.ForTest(t)
	c := start(t).dial(t, wire)
	wire.Observe(func(change faultwire.Change) {
		if change.Stage != faultwire.Given {
			return
		}
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read while the reply is being given: %v", err)
		}
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Write(message(t, 1, false)); err != nil {
		t.Fatal(err)
	}
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "n", receive(t, c).Lookup("n").AsInt64(), 1)
}

func TestKeepLast(t *testing.T) {
	for _, row := range []struct {
		keep int
		kept []int // sequence numbers
	}{
		{0, []int{}}, {1, []int{5}}, {3, []int{3, 4, 5}}, {9, []int{1, 2, 3, 4, 5}},
	} {
		t.Run(fmt.Sprint(row.keep), func(t *testing.T) {
			wire := faultwire.ForTest(t, faultwire.KeepLast(row.keep))
			orders := start(t).connect(t, wire)
			rule := wire.On(faultwire.Insert).Pass()
			for i := range 5 {
				if _, err := orders.InsertMany(t.Context(), docs(i)); err != nil {
					t.Fatal(err)
				}
			}
			kept := []int{}
			for _, e := range wire.Events() {
				kept = append(kept, e.Seq)
			}
			same(t, "kept", kept, row.kept)
			same(t, "counted", []int{wire.Count("insert"), wire.Count(faultwire.Delete), wire.Count(), rule.Fired()}, []int{5, 0, 5, 5})
		})
	}
}

func TestStory(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire).Clone(options.Collection().SetWriteConcern(writeconcern.Majority()))
	wire.On(faultwire.Insert).Nth(2).WriteErrors(faultwire.WriteError{Index: 0, Code: 121})
	wire.On(faultwire.Delete).DropReply()
	if _, err := orders.InsertMany(t.Context(), docs(1, 2, 3, 4, 5, 6)); err != nil {
		t.Fatal(err)
	}
	_, _ = orders.InsertOne(t.Context(), bson.D{{Key: "_id", Value: strings.Repeat("long", 20)}, {Key: "secret", Value: "4711"}})
	_, _ = orders.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, line := range strings.Split(wire.String(), "\n") {
		if at := strings.Index(line, "conn "); at >= 0 {
			_, after, _ := strings.Cut(line[at+len("conn "):], " ") // connections are numbered as they come
			line = line[:at] + after
		}
		lines = append(lines, line)
	}
	same(t, "story", strings.Join(lines, "\n"), `1: insert shop.orders n=6 _id=[{"$numberInt":"1"} {"$numberInt":"2"} {"$numberInt":"3"} {"$numberInt":"4"} +2 more] `+
		`w="majority": seen 1, forwarded 2, answered 3 {ok=1 n=6}, given 4
2: insert shop.orders n=1 _id=["longlonglonglonglonglonglonglonglonglon…] w="majority" [refuse statements]: `+
		`seen 5, given 6 {ok=1 n=0 writeErrors=1 of code 121}
3: delete shop.orders n=1 w="majority" [drop reply]: seen 7, forwarded 8, answered 9 {ok=1 n=1}, lost 10
`)
}

// tester is a testing.TB that keeps what it is told.
type tester struct {
	testing.TB
	cleanup func()
	errors  []string
	log     string
}

func (t *tester) Helper()          {}
func (t *tester) Cleanup(f func()) { t.cleanup = f }
func (t *tester) Errorf(format string, args ...any) {
	t.errors = append(t.errors, fmt.Sprintf(format, args...))
}
func (t *tester) Failed() bool                    { return len(t.errors) > 0 }
func (t *tester) Logf(format string, args ...any) { t.log += fmt.Sprintf(format, args...) }

func TestForTest(t *testing.T) {
	s := start(t)
	for _, row := range []struct {
		name     string
		rubbish  bool // the client ends with something that is no message
		inserts  int
		errors   int
		logged   int // lines of the story
		shortens bool
	}{
		{"all well", false, 3, 0, 0, false},
		{"not understood", true, 3, 1, 3, false},
		{"not understood after a long story", true, 103, 1, 100, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			fake := &tester{TB: t}
			wire := faultwire.ForTest(fake)
			c := s.dial(t, wire)
			for id := range row.inserts {
				if _, err := c.Write(message(t, id, false)); err != nil {
					t.Fatal(err)
				}
				receive(t, c)
			}
			if row.rubbish {
				_, _ = c.Write([]byte("rubbish"))
			}
			fake.cleanup()
			same(t, "errors", len(fake.errors), row.errors)
			same(t, "lines in the log", strings.Count(fake.log, "insert shop.orders"), row.logged)
			same(t, "shortened", strings.Contains(fake.log, "…\n"), row.shortens)
			same(t, "connections", wire.Connections(), 0)
		})
	}
}
