package batch_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
)

// What is refused or done with before the first insert leaves no record in the journal and uses no number.
func TestNothingIsJournaledBeforehand(t *testing.T) {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	const reached = "c"
	tests := map[string]struct {
		ctx       context.Context
		coll      string
		documents []any
		config    batch.Config
		stored    bool
	}{
		"no documents":           {nil, reached, nil, batch.Config{}, true},
		"a nil document":         {nil, reached, []any{note{"a"}, nil}, batch.Config{}, false},
		"one without a BSON":     {nil, reached, []any{note{"a"}, stubborn{}}, batch.Config{}, false},
		"one too large":          {nil, reached, []any{note{"a"}, sized(t, maxDocument+1)}, batch.Config{}, false},
		"an _id like a filter":   {nil, reached, []any{bson.M{"_id": bson.M{"$gt": ""}}, note{"a"}}, batch.Config{}, false},
		"the same _id twice":     {nil, reached, []any{bson.M{"_id": 1}, bson.M{"_id": 1.0}}, batch.Config{}, false},
		"claims without a proof": {nil, reached, []any{bson.M{"_id": 1}, bson.M{"_id": 2}}, batch.Config{Stamp: batch.StampNone}, false},
		"a context that is done": {done, reached, []any{note{"a"}, note{"b"}}, batch.Config{}, false},
		"a capped collection":    {nil, "capped", []any{note{"a"}, note{"b"}}, batch.Config{}, false},
		"a system collection":    {nil, "system.users", []any{note{"a"}, note{"b"}}, batch.Config{}, false},
		"a name with a NUL":      {nil, "a\x00b", []any{note{"a"}, note{"b"}}, batch.Config{}, false},
		"no name":                {nil, "", []any{note{"a"}, note{"b"}}, batch.Config{}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.wire.On(listCollections.Where(func(r *faultwire.Request) bool {
					return r.Lookup("filter", "name").StringValue() == "capped"
				})).Reply(listed("capped", "collection", bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 4096}}))
				ctx := test.ctx
				if ctx == nil {
					ctx = w.Context()
				}
				config := test.config
				config.Journal = w.coll(journalName)
				number := idgen.NewCounter(w.db.Collection(counters), "n")
				part := batch.Into(w.coll(test.coll), test.documents).Number("no", number)
				inserter := batch.New(quick(config))
				_, failed := w.note(inserter.Insert(ctx, part))
				if (failed == nil) != test.stored || failed != nil && failed.Sent {
					w.Errorf("want stored: %t, nothing sent; got %v", test.stored, failed)
				}
				if !test.stored { // an empty batch under a key is remembered like any other
					if _, failed := w.note(inserter.InsertOnce(ctx, "key", part)); failed == nil || failed.Sent {
						w.Errorf("under a key: %v", failed)
					}
				}
				for _, e := range w.wire.Events(faultwire.Insert, faultwire.Update, faultwire.Delete, faultwire.FindAndModify) {
					w.Errorf("something was written: %v", e)
				}
			})
		})
	}
}

// The kinds of collections that a server makes when it is asked to; mongosim makes them all.
func TestUnfitTargetsOfEveryKind(t *testing.T) {
	for kind, create := range map[string]*options.CreateCollectionOptionsBuilder{
		"capped":      options.CreateCollection().SetCapped(true).SetSizeInBytes(4096),
		"time-series": options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t")),
		"view":        nil,
	} {
		for _, set := range []string{"", "rs"} {
			t.Run(kind+" in "+set, func(t *testing.T) {
				w := simulated(t, mongosim.Config{ReplicaSet: set})
				var err error
				if create == nil {
					err = w.around.CreateView(t.Context(), "odd", "base", bson.A{})
				} else {
					err = w.around.CreateCollection(t.Context(), "odd", create)
				}
				if err != nil {
					t.Fatal(err)
				}
				number := idgen.NewCounter(w.db.Collection(counters), "n")
				config := batch.Config{Journal: w.coll(journalName)}
				_, failed := w.insert(config, batch.Into(w.coll("a"), unnumbered(2)).Number("no", number), batch.Into(w.coll("odd"), unnumbered(2)))
				if failed == nil || failed.Sent || !strings.Contains(failed.Error(), kind) {
					t.Errorf("want a refusal that says %q, got %v", kind, failed)
				}
				if n := w.wire.Count(faultwire.Insert, faultwire.FindAndModify, faultwire.Delete); n > 0 {
					t.Errorf("%d writes:\n%s", n, w.wire)
				}
			})
		}
	}
}

// counted counts how often it is encoded.
type counted struct {
	id    int
	times *atomic.Int64
}

func (c counted) MarshalBSON() ([]byte, error) {
	return bson.Marshal(bson.D{{Key: "_id", Value: c.id}, {Key: "encoding", Value: c.times.Add(1)}})
}

// A document is encoded once, whatever is repeated and rolled back: what is stored, sent again, looked for and deleted
// are the same bytes.
func TestDocumentsAreEncodedOnce(t *testing.T) {
	for _, bad := range []bool{false, true} {
		lossy(t, func(w *world) {
			w.plant("c", bson.D{{Key: "_id", Value: 1_000}})
			var times atomic.Int64
			documents := make([]counted, 20)
			for i := range documents {
				documents[i] = counted{i, &times}
			}
			if bad {
				documents[19].id = 1_000
			}
			lost := w.wire.On(faultwire.Insert).First(3).DropReply()
			number := idgen.NewCounter(w.db.Collection(counters), "n")
			config := batch.Config{ChunkSize: 5, Concurrency: 2, Journal: w.coll(journalName), Lease: time.Hour}
			part := batch.Into(w.coll("c"), documents).Number("no", number)
			if bad {
				w.mustRollBack(config, part)
			} else {
				w.mustStore(config, part)
			}
			if n := times.Load(); n != 20 || lost.Fired() == 0 {
				w.Errorf("20 documents were encoded %d times, with %d lost answers", n, lost.Fired())
			}
		})
	}
}

// Every command of a batch and of its rollback runs with the values of the caller's context, and none with its end.
func TestValuesOfTheContext(t *testing.T) {
	eachServer(t, func(w *world) {
		var without atomic.Int64
		monitored := w.monitor(func(ctx context.Context) {
			if ctx.Value(ctxKey{}) != "kept" {
				without.Add(1)
			}
		})
		ctx, cancel := context.WithCancel(context.WithValue(w.Context(), ctxKey{}, "kept"))
		w.wire.On(faultwire.Insert).Nth(2).After(func(context.Context, *faultwire.Request) { cancel() })
		number := idgen.NewCounter(monitored.Collection(counters), "n")
		_, failed := w.insertWith(ctx, batch.New(quick(batch.Config{ChunkSize: 1, Concurrency: 1})), batch.Into(monitored.Collection("c"), numbered(1, 4)).Number("no", number))
		if failed == nil || !failed.RolledBack() || failed.Rollback.Deleted != 2 {
			w.Fatalf("want a rollback of two documents, got %v", failed)
		}
		if n := without.Load(); n > 0 || w.wire.Count(faultwire.Delete) == 0 {
			w.Errorf("%d commands did not see the context's values", n)
		}
	})
}
