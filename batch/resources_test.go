package batch_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
)

// Commands and goroutines are bounded by the setting, not by the number of documents; a connection pool that is smaller
// still is waited for. Then the batch is stored, or rolled back through the same small pool.
func TestConcurrencyIsBounded(t *testing.T) {
	for _, bad := range []int{-1, 1_000} {
		for _, concurrency := range []int{1, 3, 8} {
			t.Run(fmt.Sprintf("document %d bad, %d at a time", bad, concurrency), func(t *testing.T) {
				eachServer(t, func(w *world) {
					var running, most, goroutines atomic.Int64
					before := int64(runtime.NumGoroutine())
					end := w.wire.Observe(func(c faultwire.Change) {
						if c.Event.Name != faultwire.Insert && c.Event.Name != faultwire.Delete {
							return
						}
						switch c.Stage {
						case faultwire.Seen:
							raise(&most, running.Add(1))
							raise(&goroutines, int64(runtime.NumGoroutine()))
						case faultwire.Given, faultwire.Lost:
							running.Add(-1)
						}
					})
					defer end()
					documents := make([]bson.D, 2_000)
					for i := range documents {
						documents[i] = bson.D{{Key: "i", Value: i}}
					}
					config := batch.Config{ChunkSize: 10, Concurrency: concurrency}
					config.Rollback.Concurrency = concurrency
					config.Rollback.ChunkRange = 100
					if bad < 0 {
						w.mustStore(config, batch.Into(w.coll("c"), documents))
					} else {
						w.plant("c", bson.D{{Key: "_id", Value: 1}})
						documents[bad] = bson.D{{Key: "_id", Value: 1}}
						w.mustRollBack(config, batch.Into(w.coll("c"), documents))
					}
					if n := most.Load(); n > int64(min(concurrency, 2)) {
						w.Errorf("%d commands at a time through 2 connections, for a concurrency of %d", n, concurrency)
					}
					// Besides the workers there are those of the driver and of the wire, a few for each connection.
					if n := goroutines.Load() - before; n > int64(concurrency)+30 {
						w.Errorf("%d more goroutines than before", n)
					}
				}, options.Client().SetMaxPoolSize(2))
			})
		}
	}
}

func raise(most *atomic.Int64, n int64) {
	for {
		if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
			return
		}
	}
}

// Sixteen batches at a time into collections that do not exist yet, numbers included.
func TestFirstInsertsIntoMissingCollections(t *testing.T) {
	eachServer(t, func(w *world) {
		inserter := batch.New(quick(batch.Config{ChunkSize: 2}))
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		var all sync.WaitGroup
		var mu sync.Mutex // protects numbers
		var numbers []int64
		for i := range 16 {
			all.Go(func() {
				result, failed := w.note(inserter.Insert(w.Context(),
					batch.Into(w.coll("a"), numbered(10*i, 5)).Number("no", number), batch.Into(w.coll("b"), unnumbered(3)).Number("no", number)))
				if failed != nil {
					w.Error(failed)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, part := range result.Parts {
					for _, n := range part.Numbers["no"] {
						numbers = append(numbers, n.(int64))
					}
				}
			})
		}
		all.Wait()
		w.check()
		slices.Sort(numbers)
		for i, n := range numbers {
			if i > 0 && numbers[i-1] == n {
				w.Errorf("the number %d was given twice", n)
			}
		}
	})
}

// Creating a collection by inserting into it is a race that servers report in several ways; it passes.
func TestRaceToCreateCollection(t *testing.T) {
	for _, code := range []int{48, 112} {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("code %d, whole command=%t", code, whole), func(t *testing.T) {
				eachServer(t, func(w *world) {
					fault := faultwire.WriteErrors(faultwire.WriteError{Index: 0, Code: code})
					if whole {
						fault = faultwire.Reply(faultwire.CommandError{Code: code})
					}
					w.wire.On(faultwire.Insert).First(3).Do(fault)
					w.mustStore(batch.Config{}, batch.Into(w.coll("c"), append(numbered(1, 2), unnumbered(2)...)))
				})
			})
		}
	}
}

// One document is one command once the Inserter has looked at its collection, whether stored or refused.
func TestOneDocumentIsOneCommand(t *testing.T) {
	for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampAll, batch.StampNone} {
		t.Run(stamp.String(), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
				inserter := batch.New(quick(batch.Config{Stamp: stamp}))
				if _, failed := w.insertWith(w.Context(), inserter, batch.Into(w.coll("c"), numbered(0, 1))); failed != nil {
					w.Fatal(failed)
				}
				for i, document := range []bson.D{{{Key: "_id", Value: 1}}, {{Key: "x", Value: 1}}} {
					before := w.wire.Count()
					if _, failed := w.insertWith(w.Context(), inserter, batch.Into(w.coll("c"), []bson.D{document})); failed != nil {
						w.Fatal(failed)
					}
					if n := w.wire.Count() - before; n != 1 {
						w.Errorf("document %d cost %d commands", i, n)
					}
				}
				w.wire.On(faultwire.Insert).WriteErrors(faultwire.WriteError{Index: 0, Code: 121, Message: "no"})
				before := w.wire.Count()
				if _, failed := w.insertWith(w.Context(), inserter, batch.Into(w.coll("c"), numbered(7, 1))); failed == nil || !failed.RolledBack() {
					w.Errorf("want a refusal, got %v", failed)
				}
				if n := w.wire.Count() - before; n != 1 {
					w.Errorf("a refused document cost %d commands", n)
				}
			})
		})
	}
}

// A throttled server gets one command at a time until it recovers.
func TestThrottledServerGetsOneAtATime(t *testing.T) {
	eachServer(t, func(w *world) {
		w.wire.On(faultwire.Insert).Skip(7).Times(8).Reply(faultwire.Throttled(5 * time.Millisecond))
		w.mustStore(batch.Config{ChunkSize: 5, Concurrency: 4}, batch.Into(w.coll("c"), unnumbered(300)))
		inserts := w.wire.Events(faultwire.Insert)
		var last faultwire.Event // by then the commands that ran at the first refusal have been answered
		for _, e := range inserts {
			if e.Fault != "" {
				last = e
			}
		}
		for _, other := range inserts {
			if other.Seq != last.Seq && other.Seen.Before(last.Given) && last.Seen.Before(other.Given) {
				w.Errorf("%v and %v ran at the same time although the server had asked for less", last, other)
			}
		}
	})
}
