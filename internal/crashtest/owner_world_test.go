package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// journaled is a database with a journal, seen over a wire that can fail and around it.
type journaled struct {
	*testing.T
	wire   *faultwire.Wire
	db     *mongo.Database // over the wire
	around *mongo.Database // not over the wire
}

// The commands that tests of journals speak of. Documents are in the collections a and b.
var (
	onRecords = func(names ...faultwire.Name) faultwire.Match {
		return faultwire.Command(names...).Where(func(r *faultwire.Request) bool { return r.Collection == "journal" })
	}
	onPages = func(names ...faultwire.Name) faultwire.Match {
		return faultwire.Command(names...).Where(func(r *faultwire.Request) bool { return r.Collection == "journal.pages" })
	}
	onJournal = func(names ...faultwire.Name) faultwire.Match {
		return faultwire.Command(names...).Where(func(r *faultwire.Request) bool {
			return r.Collection == "journal" || r.Collection == "journal.pages"
		})
	}
	onDocuments = func(names ...faultwire.Name) faultwire.Match {
		return faultwire.Command(names...).Where(func(r *faultwire.Request) bool { return r.Collection == "a" || r.Collection == "b" })
	}
)

// to is a record's change to a state.
func to(state string) faultwire.Match {
	return onRecords(faultwire.Update).Where(func(r *faultwire.Request) bool { return isTo(r, state) })
}

func isTo(r *faultwire.Request, state string) bool {
	if r.Name != faultwire.Update {
		return false
	}
	set, _ := r.Statements()[0].Lookup("u", "$set", "state").StringValueOK()
	return set == state
}

// beats are an owner's signs of life.
var beats = onRecords(faultwire.Update).Where(func(r *faultwire.Request) bool {
	_, err := r.Statements()[0].LookupErr("u", "$inc", "beat")
	return err == nil
})

var writes = []faultwire.Name{faultwire.Insert, faultwire.Update, faultwire.Delete, faultwire.FindAndModify}

// refuse is a server's answer that no repetition changes.
var refuse = faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized"}

// eachJournal runs a test on every kind of server.
func eachJournal(t *testing.T, test func(j *journaled)) {
	t.Helper()
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		around := s.Database(t, s.Client(t))
		db := s.Client(t, options.Client().SetDialer(wire)).Database(around.Name())
		test(&journaled{t, wire, db, around})
	})
}

// inBubble runs a test with synctest's time, on a simulated standalone server or replica set.
func inBubble(t *testing.T, set string, test func(j *journaled)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sim, err := mongosim.Start(mongosim.Config{ReplicaSet: set, InProcess: true})
		if err != nil {
			t.Fatal(err)
		}
		wire := faultwire.New(faultwire.Over(sim.Dialer()))
		var clients []*mongo.Client
		for _, dialer := range []options.ContextDialer{wire, sim.Dialer()} {
			client, err := mongo.Connect(options.Client().ApplyURI(sim.URI()).SetDialer(dialer).SetServerSelectionTimeout(5 * time.Second))
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, client)
		}
		defer func() {
			wire.Calm()
			for _, client := range clients {
				// Without a deadline, because driver v2.10.0 spins until it passes, and time would stand still meanwhile.
				if err := client.Disconnect(context.Background()); err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(wire.Close(), sim.Close()); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("what went over the wire:\n%s", wire)
			}
		}()
		test(&journaled{t, wire, clients[0].Database("d"), clients[1].Database("d")})
	})
}

// eachBubble runs a test in a bubble with a standalone server and in one with a replica set, where the driver repeats
// writes by itself.
func eachBubble(t *testing.T, test func(j *journaled)) {
	t.Helper()
	for _, set := range []string{"", "set"} {
		t.Run(fmt.Sprintf("replica set %q", set), func(t *testing.T) { inBubble(t, set, test) })
	}
}

// config is a configuration with a journal, and short waiting times.
func (j *journaled) config(change ...func(*batch.Config)) batch.Config {
	config := batch.Config{
		Journal: j.db.Collection("journal"), ChunkSize: 4, Concurrency: 2,
		InitialDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond, CommandTimeout: 5 * time.Second, RetryTime: time.Second,
		Rollback: rollback.Policy{Settle: 50 * time.Millisecond, Budget: 5 * time.Second, CommandTimeout: 5 * time.Second},
	}
	for _, c := range change {
		c(&config)
	}
	return config
}

// minted returns documents that get their _id from the batch, claimed ones that bring it along.
func minted(n int) []bson.D {
	all := make([]bson.D, n)
	for i := range all {
		all[i] = bson.D{{Key: "n", Value: int32(i)}}
	}
	return all
}

func claimed(prefix string, n int) []bson.D {
	all := make([]bson.D, n)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: fmt.Sprintf("%s %d", prefix, i)}, {Key: "n", Value: int32(i)}}
	}
	return all
}

// parts is a batch of six minted documents and five claimed ones: two chunks of each, and two pages.
func (j *journaled) parts() []batch.Part {
	return []batch.Part{batch.Into(j.db.Collection("a"), minted(6)), batch.Into(j.db.Collection("b"), claimed("mine", 5))}
}

const partsSize = 11

// failed takes the *batch.Error out of an error.
func (j *journaled) failed(result *batch.Result, err error) *batch.Error {
	j.Helper()
	var failed *batch.Error
	if result != nil || !errors.As(err, &failed) {
		j.Fatalf("the batch did not fail: %v, %v", result, err)
	}
	return failed
}

// there returns how many documents the two collections have.
func (j *journaled) there() int {
	j.Helper()
	total := 0
	for _, name := range []string{"a", "b"} {
		n, err := j.around.Collection(name).CountDocuments(context.Background(), bson.D{})
		if err != nil {
			j.Fatal(err)
		}
		total += int(n)
	}
	return total
}

func (j *journaled) expect(documents int, states ...string) {
	j.Helper()
	if n := j.there(); n != documents {
		j.Errorf("%d documents are there, not %d", n, documents)
	}
	records, err := rollback.List(context.Background(), j.around.Collection("journal"))
	if err != nil {
		j.Fatal(err)
	}
	var have []string
	for _, r := range records {
		have = append(have, r.State)
	}
	if fmt.Sprint(have) != fmt.Sprint(states) {
		j.Errorf("the records are %v, not %v", have, states)
	}
}

// recover makes passes of a recovery, not over the wire.
func (j *journaled) recover(passes int) {
	j.Helper()
	for range passes {
		recovery := rollback.Recovery{Policy: rollback.Policy{Settle: 50 * time.Millisecond}}
		if _, err := rollback.Recover(context.Background(), j.around.Collection("journal"), recovery); err != nil {
			j.Errorf("recovering: %v", err)
		}
	}
}

// written counts the writes on the wire since an earlier count.
func (j *journaled) written() int { return j.wire.Count(writes...) }

// sequence gives out numbers, made into something by a function.
type sequence struct {
	make func(n int64) any
	mu   sync.Mutex // protects next
	next int64
}

func (s *sequence) Reserve(_ context.Context, n int) ([]any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]any, n)
	for i := range all {
		s.next++
		all[i] = s.make(s.next)
	}
	return all, nil
}

func plainNumbers() *sequence { return &sequence{make: func(n int64) any { return n }} }

func textNumbers() *sequence {
	return &sequence{make: func(n int64) any { return fmt.Sprintf("no. %d", n) }}
}
