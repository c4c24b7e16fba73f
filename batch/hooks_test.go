package batch_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
)

// Progress never goes back, never passes the total, and ends at it once, after success only.
func TestProgress(t *testing.T) {
	for _, bad := range []bool{false, true} {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprintf("bad=%t, RemoveStamp=%t", bad, remove), func(t *testing.T) {
				lossy(t, func(w *world) {
					w.plant("c", bson.D{{Key: "_id", Value: 300}})
					var calls []batch.Progress
					var inside atomic.Int32
					config := batch.Config{ChunkSize: 10, Concurrency: 8, RemoveStamp: remove, Progress: func(p batch.Progress) {
						if inside.Add(1) != 1 {
							w.Error("two calls at a time")
						}
						calls = append(calls, p)
						inside.Add(-1)
					}}
					size := 300
					if bad {
						size++
					}
					w.wire.On(faultwire.Insert).Nth(20).DropReply() // a repetition is not counted twice
					_, failed := w.insert(config, batch.Into(w.coll("c"), numbered(0, size)))
					if bad != (failed != nil) {
						w.Fatal(failed)
					}
					phases := make(map[batch.Phase]int)
					for i, p := range calls {
						if i > 0 && (p.Phase < calls[i-1].Phase || p.Phase == calls[i-1].Phase && p.Done < calls[i-1].Done) {
							w.Errorf("%+v after %+v", p, calls[i-1])
						}
						if p.Done > p.Total || p.Total != size {
							w.Errorf("%+v of %d documents", p, size)
						}
						if p.Done == p.Total && p.Phase == batch.Inserting {
							phases[p.Phase]++
						}
					}
					last := calls[len(calls)-1]
					switch {
					case bad && (last.Phase != batch.RollingBack || phases[batch.Inserting] > 0):
						w.Errorf("the last call is %+v, and %d said that all is stored", last, phases[batch.Inserting])
					case !bad && (last.Done != size || phases[batch.Inserting] != 1):
						w.Errorf("the last call is %+v, and %d said that all is stored", last, phases[batch.Inserting])
					case !bad && remove != (last.Phase == batch.Committing):
						w.Errorf("the last call is %+v", last)
					}
				})
			})
		}
	}
}

// The events of a batch's life come in order, one at a time, and never after the call has returned.
func TestEvents(t *testing.T) {
	type event struct {
		kind      batch.EventKind
		documents int
	}
	tests := map[string]struct {
		fault func(w *world)
		want  []event
	}{
		"stored": {func(*world) {}, []event{{batch.Prepared, 4}, {batch.Numbered, 4}, {batch.Inserted, 2}, {batch.Inserted, 2}, {batch.Committed, 4}}},
		"refused": {func(w *world) {
			w.wire.On(faultwire.Insert).Nth(2).WriteErrors(faultwire.WriteError{Index: 0, Code: 121})
		}, []event{{batch.Prepared, 4}, {batch.Numbered, 4}, {batch.Inserted, 2}, {batch.Inserted, 1}, {batch.Refused, 1}, {batch.Failed, 4}, {batch.RollbackStarted, 3}, {batch.RollbackStep, 3}, {batch.RolledBack, 3}}},
		"repeated": {func(w *world) {
			w.wire.On(faultwire.Insert).Nth(2).Reply(faultwire.CommandError{Code: 112})
		}, []event{{batch.Prepared, 4}, {batch.Numbered, 4}, {batch.Inserted, 2}, {batch.Retrying, 2}, {batch.Inserted, 2}, {batch.Committed, 4}}},
		"incomplete": {func(w *world) {
			w.wire.On(faultwire.Insert).Nth(2).Reply(faultwire.CommandError{Code: 13})
			w.wire.On(faultwire.Delete).Reply(faultwire.CommandError{Code: 13})
		}, []event{{batch.Prepared, 4}, {batch.Numbered, 4}, {batch.Inserted, 2}, {batch.Failed, 4}, {batch.RollbackStarted, 2}, {batch.RollbackStep, 2}, {batch.Incomplete, 2}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				test.fault(w)
				var have []event
				id := bson.ObjectID{}
				returned := false
				config := quick(batch.Config{ChunkSize: 2, Concurrency: 1, Observe: func(e batch.Event) {
					switch n := len(have); {
					case e.Kind == batch.RollbackStep && e.Documents == 0: // a fence, where there are any
					case e.Kind == batch.RollbackStep && have[n-1].kind == batch.RollbackStep: // the rest, after a fence
						have[n-1].documents += e.Documents
					default:
						have = append(have, event{e.Kind, e.Documents})
					}
					if returned || id != (bson.ObjectID{}) && id != e.BatchID {
						w.Errorf("%v of batch %v, after the call has returned: %t", e.Kind, e.BatchID, returned)
					}
					id = e.BatchID
				}})
				result, failed := w.note(batch.New(config).Insert(w.Context(), batch.Into(w.coll("c"), numbered(1, 4)).Number("n", idgen.NewCounter(w.db.Collection(counters), "n"))))
				returned = true
				if failed != nil && failed.BatchID != id || failed == nil && result.BatchID != id {
					w.Errorf("the events were of batch %v", id)
				}
				if !slices.Equal(have, test.want) {
					w.Errorf("events\n%v, want\n%v", have, test.want)
				}
			})
		})
	}
}

// A hook may cancel, use the library, take its time or panic; the batch keeps its promise.
func TestHooksThatMisbehave(t *testing.T) {
	for _, kind := range []batch.EventKind{batch.Prepared, batch.Inserted, batch.Refused, batch.Failed, batch.RollbackStarted, batch.RollbackStep, batch.RolledBack} {
		t.Run("panics when "+kind.String(), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: 30}})
				var log strings.Builder
				calls := 0
				config := batch.Config{ChunkSize: 10, Concurrency: 2, Logger: slog.New(slog.NewTextHandler(&log, nil)), Observe: func(e batch.Event) {
					if e.Kind == kind {
						calls++
						panic("the hook is broken")
					}
				}}
				w.mustRollBack(config, batch.Into(w.coll("c"), numbered(1, 40)))
				if calls != 1 || !strings.Contains(log.String(), "hook panicked") {
					w.Errorf("the hook was called %d times, and the log says\n%s", calls, &log)
				}
			})
		})
	}
	t.Run("cancels", func(t *testing.T) {
		eachServer(t, func(w *world) {
			ctx, cancel := context.WithCancel(w.Context())
			defer cancel()
			inserter := batch.New(quick(batch.Config{ChunkSize: 10, Progress: func(p batch.Progress) {
				if p.Phase == batch.Inserting && p.Done >= 20 {
					cancel()
				}
			}}))
			_, failed := w.insertWith(ctx, inserter, batch.Into(w.coll("c"), numbered(1, 100)))
			if failed == nil || !failed.RolledBack() || !errors.Is(failed, context.Canceled) {
				w.Errorf("want a rollback, got %v", failed)
			}
		})
	})
	t.Run("uses the library", func(t *testing.T) {
		eachServer(t, func(w *world) {
			var inserter *batch.Inserter
			inner := 0
			inserter = batch.New(quick(batch.Config{ChunkSize: 10, Observe: func(e batch.Event) {
				if e.Kind != batch.Inserted || !strings.HasSuffix(e.Collection, ".c") {
					return
				}
				inner++
				if _, failed := w.note(inserter.Insert(w.Context(), batch.Into(w.coll("log"), unnumbered(1)))); failed != nil {
					w.Error(failed)
				}
			}}))
			if _, failed := w.insertWith(w.Context(), inserter, batch.Into(w.coll("c"), numbered(1, 50))); failed != nil || inner != 5 {
				w.Errorf("%d inner batches: %v", inner, failed)
			}
		})
	})
	t.Run("is slow", func(t *testing.T) {
		eachServer(t, func(w *world) {
			w.mustStore(batch.Config{ChunkSize: 10, Concurrency: 4, Progress: func(batch.Progress) { time.Sleep(time.Millisecond) }}, batch.Into(w.coll("c"), numbered(1, 100)))
		})
	})
}

// Documents whose answer was lost, and that turn out to be stored, are told of like all others.
func TestEventsAfterALostAnswer(t *testing.T) {
	eachRetry(t, func(w *world) {
		w.wire.On(faultwire.Insert).Nth(2).DropReply()
		told := 0
		w.mustStore(batch.Config{ChunkSize: 2, Concurrency: 1, Observe: func(e batch.Event) {
			if e.Kind == batch.Inserted {
				told += e.Documents
			}
		}}, batch.Into(w.coll("c"), numbered(1, 6)))
		if told != 6 {
			w.Errorf("%d of 6 documents were told of", told)
		}
	})
}

// A hook that takes longer than the lease does not cost the batch its journal: the lease is kept by itself.
func TestSlowHookKeepsTheLease(t *testing.T) {
	eachServer(t, func(w *world) {
		beats := faultwire.Update.In(w.db.Name() + ".journal")
		config := batch.Config{ChunkSize: 10, Journal: w.coll("journal"), Lease: 400 * time.Millisecond, Progress: func(p batch.Progress) {
			if p.Phase != batch.Inserting || p.Done != 10 {
				return
			}
			for beaten := w.wire.Count(faultwire.Update); w.wire.Count(faultwire.Update) < beaten+6 && w.Context().Err() == nil; { // a lease and a half
				time.Sleep(time.Millisecond)
			}
		}}
		w.mustStore(config, batch.Into(w.coll("c"), numbered(1, 30)))
		if n := len(w.wire.Events(beats)); n < 6 {
			w.Errorf("%d writes of the journal's record", n)
		}
	})
}

// Stamps that cannot be removed are a warning: everything is stored.
func TestStampsThatCannotBeRemoved(t *testing.T) {
	eachServer(t, func(w *world) {
		w.wire.On(faultwire.Update).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized"})
		result := w.mustStore(batch.Config{RemoveStamp: true}, batch.Into(w.coll("c"), numbered(1, 5)))
		if len(result.Warnings) != 1 {
			w.Errorf("warnings: %v", result.Warnings)
		}
	})
	eachServer(t, func(w *world) { // one that passes is none
		w.wire.On(faultwire.Update).First(3).Reply(faultwire.CommandError{Code: 112})
		if result := w.mustStore(batch.Config{RemoveStamp: true}, batch.Into(w.coll("c"), numbered(1, 5))); result.Warnings != nil {
			w.Errorf("warnings: %v", result.Warnings)
		}
		for _, raw := range w.read("c") {
			if _, err := raw.LookupErr("_batch"); err == nil {
				w.Errorf("the stamp is still there: %v", raw)
			}
		}
	})
}
