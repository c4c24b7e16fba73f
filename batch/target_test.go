package batch_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
)

const listCollections faultwire.Name = "listCollections"

// listed answers listCollections with one collection of a kind.
func listed(name, kind string, opts bson.D) faultwire.Answer {
	return faultwire.Document(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.$cmd.listCollections"},
		{Key: "firstBatch", Value: bson.A{bson.D{{Key: "name", Value: name}, {Key: "type", Value: kind}, {Key: "options", Value: opts}}}},
	}}})
}

// A collection on which all or nothing cannot be kept is refused before anything is written and any number is used.
func TestUnfitTargets(t *testing.T) {
	tests := map[string]struct {
		answer faultwire.Answer
		says   string
	}{
		"view":        {listed("c", "view", bson.D{{Key: "viewOn", Value: "x"}}), "is a view"},
		"time series": {listed("c", "timeseries", bson.D{{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}}), "time-series"},
		"capped":      {listed("c", "collection", bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 4096}}), "capped"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: 1}})
				w.wire.On(listCollections).Reply(test.answer)
				number := idgen.NewCounter(w.db.Collection(counters), "n")
				inserter := batch.New(batch.Config{})
				for range 2 { // it is looked at again: what is wrong with it can be mended
					_, failed := w.insertWith(w.Context(), inserter, batch.Into(w.coll("c"), numbered(5, 3)).Number("n", number))
					if failed == nil || failed.Sent || !strings.Contains(failed.Error(), test.says) {
						w.Errorf("want a refusal that says %q, got %v", test.says, failed)
					}
				}
				if n := w.wire.Count(faultwire.Insert, faultwire.Delete, faultwire.FindAndModify); n > 0 {
					w.Errorf("%d writes:\n%s", n, w.wire)
				}
			})
		})
	}
}

// The kinds of collections as a server makes them.
func TestUnfitTargetsForReal(t *testing.T) {
	eachServer(t, func(w *world) {
		if err := w.around.CreateCollection(w.Context(), "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(4096)); err != nil {
			w.Skipf("the server makes no capped collections: %v", err)
		}
		for i := range 10 {
			w.plant("capped", bson.D{{Key: "_id", Value: i}})
		}
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("a"), unnumbered(3)), batch.Into(w.coll("capped"), unnumbered(20)))
		if failed.Sent || !strings.Contains(failed.Error(), "capped") {
			w.Errorf("want a refusal, got %v", failed)
		}
	})
}

// Names that no collection can have, and collections that belong to the server.
func TestImpossibleNames(t *testing.T) {
	eachServer(t, func(w *world) {
		client := w.db.Client()
		for _, name := range [][2]string{
			{w.db.Name(), ""}, {w.db.Name(), "a\x00b"}, {w.db.Name(), "system.users"}, {w.db.Name(), "a$b"}, {w.db.Name(), ".a"}, {w.db.Name(), "a."},
			{"", "c"}, {"a.b", "c"}, {"a b", "c"}, {"a/b", "c"}, {"a\x00", "c"}, {"$a", "c"},
		} {
			number := idgen.NewCounter(w.db.Collection(counters), "n")
			part := batch.Into(client.Database(name[0]).Collection(name[1]), numbered(1, 3)).Number("n", number)
			failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("fine"), numbered(1, 2)), part)
			if failed.Sent {
				w.Errorf("%q: something was sent: %v", name, failed)
			}
		}
		if n := w.wire.Count(); n > 0 {
			w.Errorf("%d commands were sent:\n%s", n, w.wire)
		}
		// Odd names that a collection can have.
		for _, name := range []string{"a.b", "système", "x system.y", "system"} {
			w.mustStore(batch.Config{}, batch.Into(w.coll(name), numbered(1, 2)))
		}
	})
}

// A server that refuses the first insert for the kind of collection is believed: nothing was written.
func TestServerRefusesTarget(t *testing.T) {
	for _, code := range []int{166, 73, 13, 20} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.wire.On(faultwire.Insert).Reply(faultwire.CommandError{Code: code, Message: "no"})
				started := time.Now()
				w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), numbered(1, 30)))
				if waited := time.Since(started); waited > 10*time.Second {
					w.Errorf("it took %v", waited)
				}
				if n := w.wire.Count(faultwire.Insert); n != 1 {
					w.Errorf("%d inserts, repeating does not help", n)
				}
			})
		})
	}
}

// Whoever may not list collections may insert all the same. A question that is lost is put again, and when there is never
// an answer, nothing is written: it might be a collection that evicts other documents.
func TestQuestionsBeforeInserting(t *testing.T) {
	tests := []struct {
		name   string
		fault  faultwire.Fault
		times  int
		stored bool
	}{
		{"not allowed", faultwire.Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized"}), 1 << 30, true},
		{"unknown command", faultwire.Reply(faultwire.CommandError{Code: 59, CodeName: "CommandNotFound"}), 1 << 30, true},
		{"lost", faultwire.DropReply(), 5, true},
		{"throttled", faultwire.Reply(faultwire.Throttled(time.Millisecond)), 5, true},
		{"lost for ever", faultwire.DropReply(), 1 << 30, false},
		{"throttled for ever", faultwire.Reply(faultwire.Throttled(time.Millisecond)), 1 << 30, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lossy(t, func(w *world) {
				w.wire.On(listCollections).First(test.times).Do(test.fault)
				config := batch.Config{RetryTime: 150 * time.Millisecond, CommandTimeout: 100 * time.Millisecond}
				if test.times < 100 {
					config = batch.Config{}
				}
				if test.stored {
					w.mustStore(config, batch.Into(w.coll("c"), numbered(1, 3)))
					return
				}
				if failed := w.mustRollBack(config, batch.Into(w.coll("c"), numbered(1, 3))); failed.Sent {
					w.Errorf("something was sent to a collection of unknown kind: %v", failed)
				}
			})
		})
	}
}

// A question that is never answered ends with its time, or with the caller's context.
func TestQuestionWithoutAnswer(t *testing.T) {
	eachServer(t, func(w *world) {
		held := w.wire.On(listCollections).Hold()
		started := time.Now()
		failed := w.mustRollBack(batch.Config{RetryTime: 100 * time.Millisecond, CommandTimeout: 100 * time.Millisecond}, batch.Into(w.coll("c"), numbered(1, 3)))
		if waited := time.Since(started); failed.Sent || waited > 10*time.Second {
			w.Errorf("after %v: %v", waited, failed)
		}
		ctx, cancel := context.WithCancel(w.Context())
		go func() {
			<-held.ArrivedN(held.Fired() + 1)
			cancel()
		}()
		if _, failed := w.insertWith(ctx, batch.New(batch.Config{}), batch.Into(w.coll("c"), numbered(1, 3))); failed == nil || failed.Sent {
			w.Errorf("want an error before anything is sent, got %v", failed)
		}
	})
}

// On a sharded cluster an _id is unique per shard only: claimed ids without a stamp need the shard key, which is then part
// of every delete.
func TestShardedCluster(t *testing.T) {
	sharded := func(t *testing.T) *world {
		wire := faultwire.ForTest(t)
		wire.On(faultwire.Hello).Lie(faultwire.Set("msg", "isdbgrid"))
		return makeWorld(t, simulatedServer(t, mongosim.Config{ReplicaSet: "rs", NoStreaming: true}), wire, options.Client().SetRetryWrites(false))
	}
	documents := []bson.D{
		{{Key: "_id", Value: 1}, {Key: "tenant", Value: "y"}, {Key: "at", Value: bson.D{{Key: "zip", Value: 1}}}},
		{{Key: "_id", Value: 2}, {Key: "at", Value: bson.D{{Key: "zip", Value: 2}}}},
	}
	t.Run("without a shard key", func(t *testing.T) {
		w := sharded(t)
		failed := w.mustRollBack(batch.Config{Stamp: batch.StampNone}, batch.Into(w.coll("c"), documents))
		if failed.Sent || !strings.Contains(failed.Error(), "ShardKey") {
			t.Errorf("want a refusal, got %v", failed)
		}
		w.mustStore(batch.Config{}, batch.Into(w.coll("c"), documents))
		w.mustStore(batch.Config{Stamp: batch.StampNone}, batch.Into(w.coll("c"), unnumbered(3)))
	})
	t.Run("with a shard key", func(t *testing.T) {
		w := sharded(t)
		w.plant("c", bson.D{{Key: "_id", Value: "taken"}, {Key: "x", Value: "theirs"}})
		failed := w.mustRollBack(batch.Config{Stamp: batch.StampNone, ChunkSize: 1, Concurrency: 1},
			batch.Into(w.coll("c"), append(documents, bson.D{{Key: "_id", Value: "taken"}})).ShardKey("tenant", "at.zip"))
		if failed.Rollback.Deleted != 2 {
			t.Errorf("%d documents were deleted, want 2", failed.Rollback.Deleted)
		}
		for _, e := range w.wire.Events(faultwire.Delete.Where(many)) {
			for _, filter := range e.Filters() {
				branches, _ := filter.Lookup("$or").Array().Values()
				if len(branches) != 2 {
					t.Fatalf("the filter %v does not name two documents", filter)
				}
				if v := branches[0].Document().Lookup("tenant", "$eq"); !v.Equal(marshal(t, "y")) {
					t.Errorf("the first document's shard key is %v", branches[0])
				}
				if v := branches[1].Document().Lookup("tenant", "$eq"); v.Type != bson.TypeNull {
					t.Errorf("the second document's shard key is %v, want null for a missing field", branches[1])
				}
				if v := branches[1].Document().Lookup("at.zip", "$eq"); v.AsInt64() != 2 {
					t.Errorf("the second document's shard key is %v", branches[1])
				}
			}
		}
	})
}
