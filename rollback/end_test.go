package rollback_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/rollback"
)

type contextKey struct{}

// The caller's context has ended, which is the usual reason to undo.
func TestContextIsNotHeeded(t *testing.T) {
	ends := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		},
		"past its deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Now().Add(-time.Hour))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				var mu sync.Mutex
				var values []any
				monitored := newSite(t, s.server, options.Client().SetMonitor(&event.CommandMonitor{
					Started: func(ctx context.Context, _ *event.CommandStartedEvent) {
						mu.Lock()
						defer mu.Unlock()
						values = append(values, ctx.Value(contextKey{}))
					},
				}))
				foreign := monitored.store(t, doc("bystander"))
				monitored.store(t, stamped("a"), stamped("b"))
				ctx, cancel := end(context.WithValue(ending(t), contextKey{}, "mine"))
				defer cancel()
				report, err := rollback.Undo(ctx, quick(), rollback.Target{
					Collection: monitored.coll, IDs: []any{"a", "b"}, Stamp: ours, Late: true, Unproven: []any{"absent"},
				})
				if err != nil || report.Deleted != 2 {
					t.Errorf("report %+v, error %v", report, err)
				}
				monitored.has(t, foreign...)
				mu.Lock()
				defer mu.Unlock()
				if len(values) < 3 {
					t.Fatalf("%d commands seen", len(values))
				}
				for i, v := range values {
					if v != "mine" {
						t.Errorf("command %d: the context's value is %v", i, v)
					}
				}
			})
		})
	}
}

// A session in the context belongs to the caller's work: a transaction in it is none of ours.
func TestSessionOfTheContextIsNotUsed(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		s.store(t, stamped("a"))
		session, err := s.coll.Database().Client().StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(ending(t))
		if err := session.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		ctx := mongo.NewSessionContext(ending(t), session)
		if _, err := rollback.Undo(ctx, quick(), rollback.Target{Collection: s.coll, IDs: []any{"a", "b"}, Stamp: ours}); err != nil {
			t.Fatal(err)
		}
		s.has(t)
		events := s.wire.Events(faultwire.Delete, faultwire.Find)
		if len(events) != 2 {
			t.Errorf("%d commands, want a delete and a find", len(events))
		}
		for _, e := range events {
			if bytes.Equal(e.Session().Lookup("id").Value, session.ID().Lookup("id").Value) {
				t.Errorf("%v uses the caller's session", e)
			}
			if in := e.Lookup("autocommit"); !in.IsZero() {
				t.Errorf("%v is in a transaction", e)
			}
		}
	})
}

// stoppers are the two ways to end an undo that does not come to an end by itself.
var stoppers = []struct {
	name   string
	reason error
	stop   func(*rollback.Policy, <-chan struct{}) // ends it after the channel is closed
}{
	{"budget", rollback.ErrBudget, func(p *rollback.Policy, _ <-chan struct{}) { p.Budget = 300 * time.Millisecond }},
	{"stop", rollback.ErrStopped, func(p *rollback.Policy, after <-chan struct{}) { p.Stop = after }},
}

// Undo goes on for ever unless it is told how long it may, and then it tells everything that may be left.
func TestEndedWhileRetrying(t *testing.T) {
	for _, stopper := range stoppers {
		t.Run(stopper.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				from := first(7)
				s.store(t, append(run(from, 10), stamped("a"))...)
				throttled := s.wire.On(faultwire.Delete).Reply(faultwire.CommandError{Code: 16500, Message: "too much"})
				policy := quick()
				stopper.stop(&policy, throttled.ArrivedN(4))
				policy.ChunkRange = 5
				target := rollback.Target{
					Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: 10, Except: []bson.ObjectID{after(from, 7)}}},
					IDs: []any{"a", "never stored"}, Stamp: ours, Unproven: []any{"u"}, Late: true,
				}
				_, err := rollback.Undo(ending(t), policy, target)
				failed := failure(t, err, stopper.reason)
				var want []rollback.Leftover
				for i := range 10 {
					if i != 7 {
						want = append(want, rollback.Leftover{Collection: s.name(), ID: value(t, after(from, i))})
					}
				}
				for _, id := range []any{"a", "never stored", "u"} {
					want = append(want, rollback.Leftover{Collection: s.name(), ID: value(t, id)})
				}
				left(t, failed, want...)
				var command mongo.CommandError
				if throttled.Fired() > 0 && (!errors.As(err, &command) || command.Code != 16500) {
					t.Errorf("why it took so long cannot be reached through %v", err)
				}
				if n := s.count(t); n != 11 {
					t.Errorf("%d documents", n)
				}
			})
		})
	}
}

// What is done is done: only the rest may be left.
func TestEndedWhileSettling(t *testing.T) {
	for _, stopper := range stoppers {
		t.Run(stopper.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				s.store(t, stamped("early"), stamped("late"))
				settling := make(chan struct{})
				policy := quick()
				policy.Settle = time.Hour
				policy.Observe = func(e rollback.Event) {
					if e.Kind == rollback.Settling {
						close(settling)
					}
				}
				stopper.stop(&policy, settling)
				if policy.Budget > 0 {
					policy.Budget = time.Second // enough for the two deletes before
				}
				early := rollback.Target{Collection: s.coll, IDs: []any{"early"}, Stamp: ours}
				late := rollback.Target{Collection: s.coll, IDs: []any{"late"}, Stamp: ours, Late: true, Unproven: []any{"u"}}
				report, err := rollback.Undo(ending(t), policy, early, late)
				left(t, failure(t, err, stopper.reason),
					rollback.Leftover{Collection: s.name(), ID: value(t, "late")}, rollback.Leftover{Collection: s.name(), ID: value(t, "u")})
				if report.Deleted != 2 || report.Passes != 1 {
					t.Errorf("report %+v, want two deleted in one pass", report)
				}
				s.has(t)
			})
		})
	}
}

// A delete that hangs is cut short too.
func TestEndedWhileADeleteHangs(t *testing.T) {
	for _, stopper := range stoppers {
		t.Run(stopper.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				s.store(t, stamped("a"))
				held := s.wire.On(faultwire.Delete).HoldReply()
				policy := quick()
				policy.CommandTimeout = time.Hour
				stopper.stop(&policy, held.Arrived())
				_, err := rollback.Undo(ending(t), policy, rollback.Target{Collection: s.coll, IDs: []any{"a"}, Stamp: ours})
				left(t, failure(t, err, stopper.reason), rollback.Leftover{Collection: s.name(), ID: value(t, "a")})
			})
		})
	}
}

func TestStoppedBefore(t *testing.T) {
	s := onSim(t, mongosim.Config{})
	stored := s.store(t, stamped("a"))
	stop := make(chan struct{})
	close(stop)
	policy := quick()
	policy.Stop = stop
	session := s.session(t)
	target := rollback.Target{Collection: s.coll, IDs: []any{"a"}, Stamp: ours, Late: true, Unproven: []any{"u"}, Fence: []*mongo.Session{session}}
	report, err := rollback.Undo(ending(t), policy, target)
	left(t, failure(t, err, rollback.ErrStopped),
		rollback.Leftover{Collection: s.name(), ID: value(t, "a")}, rollback.Leftover{Collection: s.name(), ID: value(t, "u")})
	if n := s.wire.Count(); n != 0 || report.Commands != 0 {
		t.Errorf("%d commands, report %+v, want none", n, report)
	}
	s.has(t, stored...)
}

// A delete that takes longer than it may is given twice the time, up to sixteen times.
func TestTimeoutGrows(t *testing.T) {
	s := onSim(t, mongosim.Config{})
	s.store(t, stamped("a"))
	slow := s.wire.On(faultwire.Delete).First(6).HoldReply()
	const limit = 50 * time.Millisecond
	var times []time.Duration
	policy := quick()
	policy.CommandTimeout = limit
	start := time.Now()
	policy.Observe = func(e rollback.Event) {
		if e.Kind == rollback.Retrying {
			times = append(times, time.Since(start)+e.Delay)
			start = time.Now().Add(e.Delay)
		}
	}
	s.undo(t, policy, rollback.Target{Collection: s.coll, IDs: []any{"a"}, Stamp: ours})
	if slow.Fired() != 6 || len(times) != 6 {
		t.Fatalf("%d deletes hung, %d were repeated, want 6", slow.Fired(), len(times))
	}
	for i, want := range []time.Duration{limit, 2 * limit, 4 * limit, 8 * limit, 16 * limit, 16 * limit} {
		// Not less; more only by what the machine needs, which is not measured. The last two tell that it ends.
		if times[i] < want*9/10 {
			t.Errorf("attempt %d was given up after %v, want %v", i+1, times[i], want)
		}
	}
	if times[5] >= 32*limit {
		t.Errorf("the sixth attempt took %v, want 16 times %v", times[5], limit)
	}
}

// Without a server there is nothing to do but wait for it.
func TestServerComesBack(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		away := newSite(t, s.server, options.Client().SetServerSelectionTimeout(20*time.Millisecond))
		stored := away.store(t, stamped("a"))
		away.wire.Down()
		var seen observed
		policy := quick()
		policy.Observe = func(e rollback.Event) {
			seen.observe(e)
			if len(seen.of(rollback.Retrying)) == 3 {
				away.wire.Up()
			}
		}
		report := away.undo(t, policy, rollback.Target{Collection: away.coll, IDs: idsOf(stored), Stamp: ours})
		away.has(t)
		n := len(seen.of(rollback.Retrying))
		if n < 3 || report.Commands != n+1 || report.Deleted != 1 {
			t.Errorf("report %+v and %d repetitions, want 3 at least", report, n)
		}
	})
}
