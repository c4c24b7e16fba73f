package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

// The first failure stops further inserts; those that run are waited for, and what they stored is removed. None is
// cancelled, and none is sent once deleting has begun.
func TestRunningInsertsAreWaitedFor(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"minted": unnumbered(8), "claimed": numbered(1, 8)} {
		for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
			t.Run(kind+" "+stamp.String(), func(t *testing.T) {
				eachServer(t, func(w *world) {
					// Of four inserts that run, one is refused; the other three reach the server only when the batch has failed.
					var held *faultwire.Rule
					w.wire.On(faultwire.Insert).Nth(1).Do(faultwire.Before(func(ctx context.Context, _ *faultwire.Request) {
						select {
						case <-held.ArrivedN(3):
						case <-ctx.Done():
						}
					}), faultwire.WriteErrors(faultwire.WriteError{Index: 0, Code: 121, Message: "no"}))
					held = w.wire.On(faultwire.Insert).Hold()
					config := batch.Config{ChunkSize: 1, Concurrency: 4, Stamp: stamp, Observe: func(e batch.Event) {
						switch e.Kind {
						case batch.Failed:
							held.Release()
						case batch.RollbackStarted:
							if n := len(w.wire.Events(faultwire.Delete)); n > 0 {
								w.Errorf("%d deletes before the rollback", n)
							}
						}
					}}
					failed := w.mustRollBack(config, batch.Into(w.coll("c"), documents))
					if n := w.wire.Count(faultwire.Insert); n != 4 {
						w.Errorf("%d inserts were sent, want the 4 that ran", n)
					}
					if failed.Rollback.Deleted != 3 {
						w.Errorf("%d documents were deleted, want those of the 3 that were waited for", failed.Rollback.Deleted)
					}
					for _, e := range w.wire.Events(faultwire.Insert) {
						if e.Lost.Happened() {
							w.Errorf("an insert was cancelled: %v", e)
						}
					}
				})
			})
		}
	}
}

type ctxKey struct{}

// The caller's context ends in the middle: what is stored is removed all the same, with the context's values and without
// its end. The reasons can be reached.
func TestCallerGivesUp(t *testing.T) {
	why := errors.New("the user closed the window")
	tests := []struct {
		name string
		end  func(ctx context.Context) (context.Context, func())
		want []error
	}{
		{"cancel", func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel
		}, []error{context.Canceled}},
		{"cancel with a cause", func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(why) }
		}, []error{context.Canceled, why}},
		{"deadline", func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithDeadline(ctx, time.Now().Add(200*time.Millisecond))
			t.Cleanup(cancel)
			return ctx, func() { <-ctx.Done() }
		}, []error{context.DeadlineExceeded}},
	}
	for _, test := range tests {
		for kind, documents := range map[string][]bson.D{"minted": unnumbered(40), "claimed": numbered(1, 40)} {
			t.Run(test.name+" "+kind, func(t *testing.T) {
				eachServer(t, func(w *world) {
					ctx, end := test.end(context.WithValue(w.Context(), ctxKey{}, "kept"))
					w.wire.On(faultwire.Insert).Nth(3).After(func(context.Context, *faultwire.Request) { end() })
					_, failed := w.insertWith(ctx, batch.New(quick(batch.Config{ChunkSize: 1, Concurrency: 1})), batch.Into(w.coll("c"), documents))
					if failed == nil || !failed.RolledBack() {
						w.Fatalf("want a rollback, got %v", failed)
					}
					for _, want := range test.want {
						if !errors.Is(failed, want) {
							w.Errorf("%v does not tell of %v", failed, want)
						}
					}
					// A deadline reaches the contexts made from it one after the other: other inserts may just begin.
					n := w.wire.Count(faultwire.Insert)
					if n != 3 && !(n > 3 && test.name == "deadline") {
						w.Errorf("%d inserts were sent, want 3", n)
					}
					if failed.Rollback.Deleted != int64(n) {
						w.Errorf("%d documents were deleted, want %d", failed.Rollback.Deleted, n)
					}
				})
			})
		}
	}
}

// The context ends while an insert waits to be repeated: nobody waits any longer.
func TestCallerGivesUpBetweenAttempts(t *testing.T) {
	eachServer(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		w.wire.On(faultwire.Insert).Nth(2).WriteErrors(faultwire.WriteError{Index: 0, Code: 16500, RetryAfter: time.Hour})
		config := batch.Config{ChunkSize: 2, Concurrency: 1, RetryTime: 3 * time.Hour, Observe: func(e batch.Event) {
			if e.Kind == batch.Retrying {
				if e.Delay < time.Hour {
					w.Errorf("the delay is %v, the server asked for an hour", e.Delay)
				}
				cancel()
			}
		}}
		_, failed := w.insertWith(ctx, batch.New(quick(config)), batch.Into(w.coll("c"), unnumbered(6)))
		if failed == nil || !failed.RolledBack() || !errors.Is(failed, context.Canceled) || failed.Rollback.Deleted != 3 {
			w.Errorf("want a rollback of 3 documents, got %v, %+v", failed, failed.Rollback)
		}
	})
}

// A throttled server is not visited before the time that it asked for, and with one delete at a time.
func TestThrottledRollback(t *testing.T) {
	const hint = 60 * time.Millisecond
	tests := map[string]struct {
		answer faultwire.Answer
		waits  bool
	}{
		"Cosmos DB": {faultwire.Throttled(hint), true},
		// The driver repeats these by itself first, and waits for a random part of what the server asks for.
		"overload of MongoDB": {faultwire.Overloaded(hint), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
				running, most := 0, 0
				end := w.wire.Observe(func(c faultwire.Change) {
					if c.Event.Name != faultwire.Delete || !many(c.Event.Request) || c.Event.Fault != "" {
						return
					}
					switch c.Stage {
					case faultwire.Seen:
						running++
						most = max(most, running)
					case faultwire.Given, faultwire.Lost:
						running--
					}
				})
				defer end()
				throttled := w.wire.On(faultwire.Delete.Where(many)).First(5).Reply(test.answer)
				config := batch.Config{ChunkSize: 10, Concurrency: 1}
				config.Rollback.ChunkIDs = 10
				config.Rollback.Concurrency = 4
				failed := w.mustRollBack(config, batch.Into(w.coll("c"), append(numbered(1, 60), bson.D{{Key: "_id", Value: "taken"}})))
				if most > 4 {
					w.Errorf("%d deletes at a time, want 4 at most", most)
				}
				if throttled.Fired() != 5 || failed.Rollback.Deleted != 60 {
					w.Errorf("throttled %d times, %d documents deleted", throttled.Fired(), failed.Rollback.Deleted)
				}
				if test.waits {
					w.neverEarly(throttled, hint)
				}
			})
		})
	}
}

// neverEarly checks that after a throttled command the next one on its filter came no earlier than the server asked for.
func (w *world) neverEarly(throttled *faultwire.Rule, hint time.Duration) {
	w.Helper()
	last := make(map[string]faultwire.Mark)
	refused := 0
	for _, e := range w.wire.Events(faultwire.Delete.Where(many)) {
		filter := string(e.Filters()[0])
		if before := last[filter]; before.Happened() && e.Seen.At-before.At < hint {
			w.Errorf("%v came %v after it was throttled, the server asked for %v", e, e.Seen.At-before.At, hint)
		}
		delete(last, filter)
		if e.Fault != "" {
			last[filter] = e.Given
			refused++
		}
	}
	if refused != throttled.Fired() {
		w.Errorf("%d throttled deletes are on record, %d happened", refused, throttled.Fired())
	}
}

// Deletes whose answer is lost are sent again, as often as it takes; that they find less then is no failure.
func TestDeletesAreRepeated(t *testing.T) {
	faults := map[string]faultwire.Fault{
		"request lost": faultwire.DropRequest(), "reply lost": faultwire.DropReply(), "cut": faultwire.Cut(),
		"failover":           faultwire.Reply(faultwire.CommandError{Code: 10107, CodeName: "NotWritablePrimary", Labels: []string{"RetryableWriteError"}}),
		"interrupted":        faultwire.Reply(faultwire.CommandError{Code: 11602}),
		"conflict":           faultwire.WriteErrors(faultwire.WriteError{Index: 0, Code: 112}),
		"unknown":            faultwire.Reply(faultwire.CommandError{Code: 999_999}),
		"not durable enough": faultwire.Lie(faultwire.WriteConcernError{Code: 64}),
		"said to be nothing": faultwire.Reply(faultwire.Document(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 0}})),
	}
	for name, fault := range faults {
		for kind, documents := range map[string][]bson.D{"minted": unnumbered(5), "claimed": numbered(1, 5)} {
			t.Run(name+" "+kind, func(t *testing.T) {
				lossy(t, func(w *world) {
					w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
					again := w.wire.On(faultwire.Delete.Where(many)).First(3).Do(fault)
					failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), append(slices.Clone(documents), bson.D{{Key: "_id", Value: "taken"}})))
					if again.Fired() != 3 || failed.Rollback.Commands < 4 {
						w.Errorf("%d deletes failed, %d were sent", again.Fired(), failed.Rollback.Commands)
					}
				})
			})
		}
	}
}

// A rollback that cannot succeed ends, says so, and names exactly what is left. It carries both reasons.
func TestRollbackRefused(t *testing.T) {
	refusals := map[string]faultwire.Fault{
		"no privilege": faultwire.Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized"}),
		"not for this": faultwire.WriteErrors(faultwire.WriteError{Index: 0, Code: 20, Message: "cannot remove from a capped collection"}),
		"pretended":    faultwire.Reply(faultwire.Document(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 0}})),
	}
	for name, fault := range refusals {
		for kind, documents := range map[string][]bson.D{"minted": unnumbered(5), "claimed": numbered(1, 5)} {
			for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
				t.Run(fmt.Sprintf("%s, %s, %s", name, kind, stamp), func(t *testing.T) {
					eachServer(t, func(w *world) {
						w.plant("c", bson.D{{Key: "_id", Value: 3}, {Key: "theirs", Value: true}})
						w.wire.On(faultwire.Delete).Do(fault)
						documents := append(slices.Clone(documents), bson.D{{Key: "_id", Value: 3}})
						if kind == "claimed" {
							documents = documents[:5]
						}
						_, failed := w.insert(batch.Config{Stamp: stamp, ChunkSize: 100}, batch.Into(w.coll("c"), documents))
						if failed == nil || failed.RolledBack() {
							w.Fatalf("want an incomplete rollback, got %v", failed)
						}
						var undo *rollback.Error
						var clash mongo.WriteError
						if !errors.As(failed, &undo) || !errors.As(failed, &clash) || clash.Code != 11000 {
							w.Errorf("the error does not carry both reasons: %v", failed)
						}
						there := make(map[string]bool)
						for place := range w.readAll() {
							there[place] = true
						}
						for _, left := range failed.Leftovers() {
							place := placeOf(left.Collection, left.ID)
							if !there[place] || w.planted[place] != nil || !left.Seen {
								w.Errorf("leftover %v (seen=%t) is not there, or somebody else's", left, left.Seen)
							}
							delete(there, place)
						}
						if len(there) != len(w.planted) {
							w.Errorf("the leftovers do not name all: %v", there)
						}
					})
				})
			}
		}
	}
}

// Refused documents are somebody else's or nobody's: they are never named as what may be left, not even when nobody
// could look.
func TestLeftoversAreNotTheRefused(t *testing.T) {
	eachServer(t, func(w *world) {
		w.plant("c", bson.D{{Key: "_id", Value: 3}, {Key: "theirs", Value: true}})
		w.wire.On(faultwire.Find).Once().Pass() // whose the refused document is
		w.wire.On(faultwire.Delete, faultwire.Find).Reply(faultwire.CommandError{Code: 112, Message: "conflict"})
		config := batch.Config{}
		config.Rollback.Budget = 100 * time.Millisecond
		_, failed := w.insert(config, batch.Into(w.coll("c"), numbered(1, 5)))
		if failed == nil || failed.RolledBack() || !errors.Is(failed, rollback.ErrBudget) {
			w.Fatalf("want the budget to end, got %v", failed)
		}
		if n := len(failed.Leftovers()); n != 4 {
			w.Errorf("%d leftovers, want the 4 documents that were stored: %v", n, failed.Leftovers())
		}
		for _, left := range failed.Leftovers() {
			if left.ID.Equal(marshal(w.T, 3)) {
				w.Error("somebody else's document is named as a leftover")
			}
		}
	})
}

// A closed Stop ends a rollback that gets nowhere; so does its budget.
func TestRollbackIsStopped(t *testing.T) {
	for _, by := range []error{rollback.ErrStopped, rollback.ErrBudget} {
		t.Run(by.Error(), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: 3}})
				stop := make(chan struct{})
				refused := w.wire.On(faultwire.Delete).Reply(faultwire.CommandError{Code: 112, Message: "conflict"})
				config := batch.Config{}
				if by == rollback.ErrStopped {
					config.Rollback.Stop = stop
					go func() {
						<-refused.ArrivedN(3)
						close(stop)
					}()
				} else {
					config.Rollback.Budget = 100 * time.Millisecond
				}
				_, failed := w.insert(config, batch.Into(w.coll("c"), numbered(1, 5)))
				if failed == nil || failed.RolledBack() || !errors.Is(failed, by) {
					w.Fatalf("want %v, got %v", by, failed)
				}
			})
		})
	}
}
