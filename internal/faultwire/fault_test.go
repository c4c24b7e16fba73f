package faultwire_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// promise is what an insert of one document comes to under a fault. It is written out, not taken from Fault.Runs and its
// like: these are checked against it.
type promise struct {
	before bool   // the document is there while the fault holds, or at once if it does not
	after  bool   // it is there in the end
	client string // what the client gets: ok, lost, command error 13, write error 121, write concern error 64
	holds  bool
	sent   bool // something was sent to the server
	also   func(*testing.T, faultwire.Event)
}

// promises has an entry for each of Faults.
var promises = map[string]promise{
	"drop request":  {client: "lost"},
	"drop reply":    {before: true, after: true, sent: true, client: "lost", also: lostBeforeAnswer(false)},
	"hold request":  {before: false, after: true, sent: true, client: "ok", holds: true},
	"hold reply":    {before: true, after: true, sent: true, client: "ok", holds: true},
	"cut":           {before: true, after: true, sent: true, client: "lost", also: lostBeforeAnswer(true)},
	"cut reply":     {before: true, after: true, sent: true, client: "lost"},
	"server down":   {client: "lost", holds: true},
	"delay request": {before: true, after: true, sent: true, client: "ok", also: apart(faultwire.Seen, faultwire.Forwarded)},
	"delay reply":   {before: true, after: true, sent: true, client: "ok", also: apart(faultwire.Answered, faultwire.Given)},

	"reply command error 13 without asking":  {client: "command error 13"},
	"reply write error 121 without asking":   {client: "write error 121"},
	"run and reply command error 13":         {before: true, after: true, sent: true, client: "command error 13"},
	"run and reply write error 121":          {before: true, after: true, sent: true, client: "write error 121"},
	"run and reply write concern error 64":   {before: true, after: true, sent: true, client: "write concern error 64"},
	"run and reply labels":                   {before: true, after: true, sent: true, client: "ok", also: told("errorLabels", `["RetryableWriteError"]`)},
	"refuse statements":                      {client: "write error 121"},
	"rewrite request":                        {before: true, after: true, sent: true, client: "ok"},
	"rewrite reply":                          {before: true, after: true, sent: true, client: "ok"},
	"rewrite request, before, rewrite reply": {before: false, after: false, sent: true, client: "ok", also: told("n", `{"$numberInt":"7"}`)},
}

// elsewhere makes visible that the plain rewriting of Faults, which changes nothing, would rewrite.
var elsewhere = []faultwire.Fault{
	faultwire.RewriteRequest(func(command bson.Raw) bson.Raw {
		return faultwire.Set("insert", "lines").Apply(nil, command)
	}),
	faultwire.Before(func(context.Context, *faultwire.Request) {}),
	faultwire.RewriteReply(func(reply bson.Raw) bson.Raw { return faultwire.Set("n", 7).Apply(nil, reply) }),
}

// apart checks that the plain delay of Faults, a millisecond, lies between two stages.
func apart(from, to faultwire.Stage) func(*testing.T, faultwire.Event) {
	return func(t *testing.T, e faultwire.Event) {
		at := map[faultwire.Stage]time.Duration{
			faultwire.Seen: e.Seen.At, faultwire.Forwarded: e.Forwarded.At, faultwire.Answered: e.Answered.At, faultwire.Given: e.Given.At,
		}
		if d := at[to] - at[from]; d < time.Millisecond {
			t.Errorf("%v came %v after %v", to, d, from)
		}
	}
}

// lostBeforeAnswer checks on which side of the server's answer the client lost its connection.
func lostBeforeAnswer(want bool) func(*testing.T, faultwire.Event) {
	return func(t *testing.T, e faultwire.Event) {
		same(t, "lost before the answer", e.Lost.Before(e.Answered), want)
	}
}

// told checks a field of what the client was told.
func told(key, value string) func(*testing.T, faultwire.Event) {
	return func(t *testing.T, e faultwire.Event) {
		same(t, "the client's "+key, e.ClientReply.Lookup(key).String(), value)
	}
}

func outcome(err error) string {
	var command mongo.CommandError
	var write mongo.WriteException
	switch {
	case err == nil:
		return "ok"
	case mongo.IsNetworkError(err):
		return "lost"
	case errors.As(err, &command):
		return fmt.Sprintf("command error %d", command.Code)
	case errors.As(err, &write) && len(write.WriteErrors) == 1:
		return fmt.Sprintf("write error %d", write.WriteErrors[0].Code)
	case errors.As(err, &write) && write.WriteConcernError != nil:
		return fmt.Sprintf("write concern error %d", write.WriteConcernError.Code)
	}
	return err.Error()
}

// eachFault inserts one document under each fault and compares with its promise. The test brings a collection that is
// reached through the wire, and a view of the server that is not.
func eachFault(t *testing.T, open func(*testing.T, *faultwire.Wire) (through *mongo.Collection, stored func() int)) {
	type row struct {
		name   string
		faults []faultwire.Fault
	}
	var rows []row
	for _, f := range faultwire.Faults() {
		rows = append(rows, row{f.String(), []faultwire.Fault{f}})
	}
	rows = append(rows, row{"rewrite request, before, rewrite reply", elsewhere})
	same(t, "rows", len(rows), len(promises))
	for _, row := range rows {
		promise, ok := promises[row.name]
		if !ok {
			t.Fatalf("nothing is promised of %s", row.name)
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // the driver takes half a second to come back from a lost connection
			if len(row.faults) == 1 {
				f := row.faults[0]
				same(t, "Runs", f.Runs(), promise.sent || row.name == "refuse statements")
				same(t, "Answers", f.Answers(), promise.client != "lost")
				same(t, "Holds", f.Holds(), promise.holds)
			}

			wire := faultwire.ForTest(t)
			orders, stored := open(t, wire)
			rule := wire.On(faultwire.Insert).Once().Do(row.faults...)
			result := make(chan error, 1)
			go func() {
				_, err := orders.InsertOne(context.Background(), bson.D{{Key: "_id", Value: 1}})
				result <- err
			}()

			var err error
			if promise.holds && promise.client == "ok" {
				within(t, "arriving", rule.Arrived())
				same(t, "documents while it is held", stored() == 1, promise.before)
				select {
				case err := <-result:
					t.Fatalf("the client has a result already: %v", err)
				default:
				}
				rule.Release()
				err = take(t, result)
			} else {
				err = take(t, result)
				if row.name == "cut" {
					within(t, "running", rule.Done()) // only here can the client be ahead of the server
				}
				same(t, "documents when the client has its result", stored() == 1, promise.before)
			}
			if row.name == "server down" {
				server := wire.Events()[0].Address
				if c, err := wire.DialContext(t.Context(), "tcp", server); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("dialing a server that is down: %v, %v", c, err)
				}
				eventually(t, "losing all connections", func() bool { return wire.Connections() == 0 })
				rule.Release()
				c, err := wire.DialContext(t.Context(), "tcp", server)
				if err != nil {
					t.Fatalf("dialing a server that is up again: %v", err)
				}
				_ = c.Close()
			}
			same(t, "what the client gets", outcome(err), promise.client)
			within(t, "being over", rule.Done())
			same(t, "document in the end", stored() == 1, promise.after)
			same(t, "Fired", rule.Fired(), 1)
			same(t, "rule's error", rule.Err(), nil)

			events := wire.Events(faultwire.Insert)
			if len(events) != 1 {
				t.Fatalf("recorded %d inserts", len(events))
			}
			e := events[0]
			same(t, "recorded fault", e.Fault, row.name)
			same(t, "recorded forwarding", e.Forwarded.Happened(), promise.sent)
			same(t, "recorded answer", e.Answered.Happened(), promise.sent)
			same(t, "recorded giving", e.Given.Happened(), promise.client != "lost")
			same(t, "recorded loss", e.Lost.Happened(), promise.client == "lost")

			if promise.also != nil {
				promise.also(t, e)
			}

			// The rule is spent: the next insert passes, over a new connection where the old one was lost.
			if _, err := orders.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 2}}); err != nil {
				t.Errorf("the insert after the fault: %v", err)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	eachFault(t, func(t *testing.T, wire *faultwire.Wire) (*mongo.Collection, func() int) {
		s := start(t)
		return s.connect(t, wire), func() int {
			forwarded := 0
			for _, e := range wire.Events(faultwire.Insert) {
				if e.Forwarded.Happened() {
					forwarded++
				}
			}
			same(t, "inserts run", s.count("insert"), forwarded) // each was sent once, or not at all
			return len(s.ids())
		}
	})
}

// The same against servers that know nothing of this package, one of them a replica set.
func TestFaultsOnRealServer(t *testing.T) {
	servertest.Each(t, func(t *testing.T, real *servertest.Server) {
		eachFault(t, func(t *testing.T, wire *faultwire.Wire) (*mongo.Collection, func() int) {
			direct := real.Database(t, real.Client(t)).Collection("orders")
			client := real.Client(t, options.Client().SetDialer(wire).SetRetryWrites(false))
			return client.Database(direct.Database().Name()).Collection("orders"), func() int {
				n, err := direct.CountDocuments(t.Context(), bson.D{})
				if err != nil {
					t.Fatal(err)
				}
				return int(n)
			}
		})
	})
}

func TestSeveralFaultsOnOneCommand(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	var order []string
	note := func(what string) func(context.Context, *faultwire.Request) {
		return func(context.Context, *faultwire.Request) { order = append(order, what) }
	}
	rule := wire.On(faultwire.Insert).Once().Do(
		faultwire.DropReply(), faultwire.After(note("after")), faultwire.HoldRequest(),
		faultwire.Before(note("first")), faultwire.Before(note("second")),
		faultwire.RewriteRequest(func(command bson.Raw) bson.Raw { return without(command, 1) }),
		faultwire.RewriteRequest(func(command bson.Raw) bson.Raw { return without(command, 1) }),
	)
	rule.Release()
	if _, err := orders.InsertMany(t.Context(), docs(1, 2, 3)); !mongo.IsNetworkError(err) {
		t.Errorf("the client whose reply was dropped: %v", err)
	}
	same(t, "stored", s.ids(), []int{1})
	same(t, "functions called", order, []string{"first", "second", "after"})
	same(t, "the story's fault", wire.Events(faultwire.Insert)[0].Fault,
		"drop reply, after, hold request, before, before, rewrite request, rewrite request")
}

// without removes the document at a position from an insert.
func without(command bson.Raw, position int) bson.Raw {
	var d bson.D
	if err := bson.Unmarshal(command, &d); err != nil {
		panic(err)
	}
	for i := range d {
		if d[i].Key == "documents" {
			d[i].Value = slices.Delete(d[i].Value.(bson.A), position, position+1)
		}
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

func TestDriverRetriesLostReply(t *testing.T) {
	for _, row := range []struct {
		fault  faultwire.Fault
		runs   int  // this server knows no numbers, so that it runs a retry like any other insert
		failed bool // the retry is a duplicate
	}{
		{faultwire.DropReply(), 2, true},
		{faultwire.DropRequest(), 1, false},
	} {
		t.Run(row.fault.String(), func(t *testing.T) {
			t.Parallel()
			wire := faultwire.ForTest(t, faultwire.LoadBalanced()) // else a monitor may use up the driver's attempts
			wire.On(faultwire.Hello).Lie(faultwire.Set("setName", "rs"))
			s := start(t)
			orders := s.connect(t, wire, options.Client().SetLoadBalanced(true).SetRetryWrites(true))
			rule := wire.On(faultwire.Insert).Once().Do(row.fault)
			_, err := orders.InsertMany(t.Context(), docs(1))
			within(t, "being over", rule.Done())
			events := wire.Events(faultwire.Insert)
			if len(events) != 2 {
				t.Fatalf("%d inserts were sent:\n%s", len(events), wire)
			}
			first, _ := events[0].TxnNumber()
			second, ok := events[1].TxnNumber()
			same(t, "number of the second", second, first)
			same(t, "there is a number", ok, true)
			same(t, "session of the second", events[1].Session(), events[0].Session())
			same(t, "inserts run", s.count("insert"), row.runs)
			same(t, "the retry is a duplicate", mongo.IsDuplicateKeyError(err), row.failed)
		})
	}
}

func TestUnacknowledged(t *testing.T) {
	for _, row := range []struct {
		fault  faultwire.Fault
		stored bool
		stands bool // the connection
	}{
		{faultwire.Pass(), true, true},
		{faultwire.DropRequest(), false, false},
		{faultwire.DropReply(), true, false},
		{faultwire.Cut(), true, false},
		{faultwire.CutReply(3), true, false},
		{faultwire.Lie(faultwire.Throttled(0)), true, true},
		{faultwire.Reply(faultwire.Throttled(0)), false, true},
		{faultwire.HoldReply(), true, true},
	} {
		t.Run(row.fault.String(), func(t *testing.T) {
			wire := faultwire.ForTest(t)
			s := start(t)
			orders := s.connect(t, wire)
			w0 := orders.Clone(options.Collection().SetWriteConcern(writeconcern.Unacknowledged()))
			rule := wire.On(faultwire.Insert).Once().Do(row.fault)
			if _, err := w0.InsertMany(t.Context(), docs(1)); err != nil {
				t.Fatal(err)
			}
			within(t, "being over", rule.Done())
			e := wire.Events(faultwire.Insert)[0]
			same(t, "Acknowledged", e.Acknowledged(), false)
			same(t, "Forwarded", e.Forwarded.Happened(), row.stored)
			same(t, "Answered, given or lost", e.Answered.Happened() || e.Given.Happened() || e.Lost.Happened(), false)
			_, err := orders.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 5}})
			same(t, "the connection stands", err == nil, row.stands)
			eventually(t, "what is stored", func() bool { return (len(s.ids()) == 1) == row.stored })
		})
	}
}
