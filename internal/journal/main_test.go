package journal_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/retry"
	"github.com/intact-go/intact/internal/servertest"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// fixture is a journal behind a wire.
type fixture struct {
	*testing.T
	*journal.Journal
	wire *faultwire.Wire
	coll *mongo.Collection
}

// The namespaces of a fixture's journal.
const (
	heads = "journal"
	pages = heads + journal.PagesSuffix
)

// limits give a command more than a second. Driver v2.10.0 does not send what has less time than the shortest round trip that
// it measured, and after a lost connection it can take a monitor's waiting for news for one: a second, with a simulated
// server.
func limits() journal.Limits {
	return journal.Limits{
		Backoff: retry.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond},
		Command: 3 * time.Second, Patience: 9 * time.Second,
	}
}

// onEach runs a test on every kind of server, in real time: whatever the machine is busy with, no command is given up.
func onEach(t *testing.T, test func(f *fixture)) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		db := s.Database(t, s.Client(t, options.Client().SetDialer(wire)))
		coll := db.Collection(heads)
		patient := limits()
		patient.Command, patient.Patience = time.Minute, 3*time.Minute
		test(&fixture{t, journal.New(coll, patient), wire, coll})
	})
}

// inBubble runs a test with synctest's time, on a simulated standalone server, where the driver repeats nothing.
func inBubble(t *testing.T, test func(f *fixture)) {
	t.Helper()
	bubble(t, "", test)
}

// bubble is inBubble with the name of a replica set.
func bubble(t *testing.T, set string, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sim, err := mongosim.Start(mongosim.Config{ReplicaSet: set, InProcess: true})
		if err != nil {
			t.Fatal(err)
		}
		wire := faultwire.New(faultwire.Over(sim.Dialer()))
		client, err := mongo.Connect(options.Client().ApplyURI(sim.URI()).SetDialer(wire))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			wire.Calm()
			// Without a deadline, because driver v2.10.0 spins until it passes, and time would stand still meanwhile.
			if err := client.Disconnect(context.Background()); err != nil {
				t.Error(err)
			}
			if err := wire.Close(); err != nil {
				t.Error(err)
			}
			if err := sim.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("what went over the wire:\n%s", wire)
			}
		}()
		coll := client.Database("d").Collection(heads)
		test(&fixture{t, journal.New(coll, limits()), wire, coll})
	})
}

// record returns the record of a new attempt.
func record(id string) journal.Record {
	return journal.Record{
		ID: id, Format: journal.Format, State: journal.Open, Version: 1, LeaseMS: 1_000,
		Owner: "host/1/owner", Attempt: bson.NewObjectID(), Stamp: "_batch", Started: time.Now(),
	}
}

// create writes a record.
func (f *fixture) create(id string) journal.Record {
	f.Helper()
	r := record(id)
	if err := f.Create(f.Context(), r); err != nil {
		f.Fatalf("creating a record: %v", err)
	}
	return r
}

// stored reads a record as it is.
func (f *fixture) stored(id string) journal.Record {
	f.Helper()
	r, found, err := f.Get(f.Context(), id)
	if err != nil || !found {
		f.Fatalf("reading record %q: found %t, %v", id, found, err)
	}
	return r
}

// updates matches the updates of heads.
var updates = faultwire.Update.Where(func(r *faultwire.Request) bool { return r.Collection == heads })
