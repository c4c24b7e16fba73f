package rollback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/internal/retry"
)

const (
	// idleAttempts is how often a server may acknowledge a delete, remove nothing and still hold a document, before
	// it counts as unable to delete there (capped collections of some servers).
	idleAttempts = 5
	// narrowTimeout bounds the read that finds out what is left of a step that was given up.
	narrowTimeout = 10 * time.Second
)

// undo is one run of Undo.
type undo struct {
	policy  Policy
	targets []Target
	steps   []*step
	gate    *retry.Gate
	start   time.Time

	unfenced atomic.Bool // something may arrive for targets that are not Late

	mu     sync.Mutex // protects report and makes calls of policy.Observe one at a time
	report Report
}

func newUndo(policy Policy, targets []Target, steps []*step) *undo {
	return &undo{policy: policy, targets: targets, steps: steps, gate: retry.NewGate(policy.Concurrency), start: time.Now()}
}

func (u *undo) run(ctx context.Context) {
	u.fence(ctx)
	var unproven, late []*step
	pending := slices.DeleteFunc(slices.Clone(u.steps), func(s *step) bool {
		if s.unproven {
			unproven = append(unproven, s)
		}
		return s.unproven
	})
	u.pass(ctx, pending)
	for _, s := range pending {
		if s.late || u.unfenced.Load() && !s.bare {
			late = append(late, s)
		}
	}
	settled := len(unproven) == 0
	for {
		late = slices.DeleteFunc(late, func(s *step) bool { return s.err != nil })
		if len(late) == 0 && settled {
			return
		}
		u.tell(Event{Kind: Settling, Delay: u.policy.Settle})
		if retry.Sleep(ctx, u.policy.Settle) != nil {
			if !settled {
				late = append(late, unproven...)
			}
			for _, s := range late {
				s.giveUp(u, context.Cause(ctx), s.leftovers())
			}
			return
		}
		found := u.pass(ctx, late)
		late = slices.DeleteFunc(late, func(s *step) bool { return found[s] == 0 })
		if !settled {
			u.each(ctx, unproven, u.readBack)
			settled = true
		}
	}
}

// pass deletes every step once, however many attempts that takes, and returns how many documents each removed.
func (u *undo) pass(ctx context.Context, steps []*step) map[*step]int64 {
	var mu sync.Mutex // protects found
	found := make(map[*step]int64, len(steps))
	u.each(ctx, steps, func(ctx context.Context, s *step) {
		n := u.delete(ctx, s)
		mu.Lock()
		defer mu.Unlock()
		found[s] = n
	})
	if len(steps) > 0 {
		u.mu.Lock()
		u.report.Passes++
		u.mu.Unlock()
	}
	return found
}

func (u *undo) each(ctx context.Context, steps []*step, work func(context.Context, *step)) {
	var group errgroup.Group
	group.SetLimit(u.policy.Concurrency)
	for _, s := range steps {
		group.Go(func() error {
			work(ctx, s)
			return nil
		})
	}
	_ = group.Wait() // work reports through its step
}

// delete removes what the step's filter matches until nothing is left of it, and returns how many documents that were.
func (u *undo) delete(ctx context.Context, s *step) (found int64) {
	idle := 0
	doubt := false // something may be deleted that a failover brings back
	err := u.retry(ctx, s.namespace(), func(ctx context.Context) error {
		result, err := s.coll.DeleteMany(ctx, s.filter)
		// What the server acknowledges, at the write concern, includes what it did before.
		doubt = err != nil && (doubt || outcome.Command(err).Kind != outcome.Permanent || isWriteConcern(err))
		u.count(func(r *Report) { r.Commands++ })
		if result != nil && result.DeletedCount > 0 {
			found += result.DeletedCount
			u.removed(s.namespace(), result.DeletedCount, s.size)
		}
		if err != nil || result.DeletedCount == int64(s.size) {
			return err
		}
		// Fewer than planned is usual (refused documents, a second attempt), but it is looked at, not believed. More is
		// no reason to believe the rest.
		left, err := u.present(ctx, s, 1)
		if err != nil || len(left) == 0 {
			return err
		}
		if result.DeletedCount > 0 {
			idle = 0
		} else if idle++; idle == idleAttempts {
			return permanent{errStillThere}
		}
		return errStillThere
	})
	if err == nil {
		return found
	}
	left := u.narrow(ctx, s, err, doubt)
	if len(left) == 0 { // the server will not delete, and there is nothing to delete
		u.policy.Logger.Info("rollback: nothing to delete where it is impossible", "collection", s.namespace(), "error", describe(err))
		return found
	}
	s.giveUp(u, err, left)
	return found
}

// removed counts what a delete command removed, which named so many documents.
func (u *undo) removed(namespace string, n int64, named int) {
	excess := max(0, n-int64(named))
	u.count(func(r *Report) {
		r.Deleted += n
		r.Excess += excess
	})
	u.tell(Event{Kind: Deleted, Collection: namespace, Documents: n})
}

// readBack looks at documents that must not be deleted.
func (u *undo) readBack(ctx context.Context, s *step) {
	var left []Leftover
	err := u.retry(ctx, s.namespace(), func(ctx context.Context) (err error) {
		left, err = u.present(ctx, s, 0) // on a sharded cluster there may be more documents than ids
		return err
	})
	switch {
	case err != nil:
		s.giveUp(u, err, s.leftovers())
	case len(left) > 0:
		s.giveUp(u, ErrUnproven, left)
	}
}

// present reads up to limit ids, or all, of what the step's filter matches.
func (u *undo) present(ctx context.Context, s *step, limit int) ([]Leftover, error) {
	cursor, err := s.coll.Find(ctx, s.filter, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetLimit(int64(limit)))
	if err != nil {
		return nil, err
	}
	var found []struct {
		ID bson.RawValue `bson:"_id"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return nil, err
	}
	left := make([]Leftover, len(found))
	for i, document := range found {
		left[i] = Leftover{Collection: s.namespace(), ID: document.ID, Seen: true}
	}
	return left, nil
}

func isWriteConcern(err error) bool {
	var exception mongo.WriteException
	return errors.As(err, &exception) && exception.WriteConcernError != nil
}

// narrow finds out what is really left of a step that the server will not delete. It falls back on everything that may
// be left: when the server does not answer, when a late insert may add to it, and when what is gone may come back.
func (u *undo) narrow(ctx context.Context, s *step, why error, doubt bool) []Leftover {
	if s.late || doubt || outcome.Command(why).Kind != outcome.Permanent && !errors.As(why, &permanent{}) {
		return s.leftovers()
	}
	ctx, cancel := context.WithTimeout(ctx, narrowTimeout)
	defer cancel()
	left, err := u.present(ctx, s, 0)
	if err != nil {
		return s.leftovers()
	}
	return left
}

// permanent marks an error that no repetition heals.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// retry calls command until it succeeds, its error is permanent, or ctx is done.
func (u *undo) retry(ctx context.Context, namespace string, command func(context.Context) error) error {
	delays := retry.Backoff{Initial: u.policy.InitialDelay, Max: u.policy.MaxDelay}.Start()
	timeout := u.policy.CommandTimeout
	var last error // of the attempt before
	stop := func() error {
		if last == nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w; last attempt: %w", context.Cause(ctx), last)
	}
	for attempt := 1; ; attempt++ {
		if u.gate.Enter(ctx) != nil {
			return stop()
		}
		limited, cancel := context.WithTimeout(ctx, timeout)
		err := command(limited)
		cancel()
		class := outcome.Command(err)
		final := err == nil || class.Kind == outcome.Permanent || errors.As(err, &permanent{})
		stopped := ctx.Err() != nil
		if final || stopped || !class.Throttled {
			u.gate.Leave(class.Throttled)
		} else {
			// The place is kept until the server wants to be asked again: another step must not ask it earlier.
			u.gate.Narrow()
		}
		if final {
			return err
		}
		if !stopped || last == nil { // otherwise err may tell only that this attempt was cut short
			last = err
		}
		if stopped {
			return stop()
		}
		if mongo.IsTimeout(err) {
			timeout = min(2*timeout, 16*u.policy.CommandTimeout)
		}
		delay := delays.Next(class.After)
		u.policy.Logger.Warn("rollback: will try again", "collection", namespace, "attempt", attempt, "delay", delay, "code", class.Code, "error", describe(err))
		u.tell(Event{Kind: Retrying, Collection: namespace, Attempt: attempt, Delay: delay, Err: err})
		slept := retry.Sleep(ctx, delay)
		if class.Throttled {
			u.gate.Leave(true)
		}
		if slept != nil {
			return stop()
		}
	}
}

func (u *undo) count(change func(*Report)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(&u.report)
}

func (u *undo) tell(event Event) {
	if u.policy.Observe == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.policy.Observe(event)
}

func (s *step) giveUp(u *undo, why error, left []Leftover) {
	s.err, s.left = why, left
	u.policy.Logger.Error("rollback: gave up", "collection", s.namespace(), "leftovers", len(left), "error", describe(why))
	u.tell(Event{Kind: GaveUp, Collection: s.namespace(), Documents: int64(len(left)), Err: why})
}

// result sums up.
func (u *undo) result() (Report, error) {
	u.report.Elapsed = time.Since(u.start)
	failed := &Error{Excess: u.report.Excess}
	for _, s := range u.steps {
		if s.err == nil {
			continue
		}
		failed.Leftovers = append(failed.Leftovers, s.left...)
		failed.add(s.err)
	}
	if u.report.Excess > 0 {
		failed.add(ErrExcess)
		u.policy.Logger.Error("rollback: ALARM, deletes removed more documents than they named", "excess", u.report.Excess)
	}
	if len(failed.Reasons) == 0 {
		return u.report, nil
	}
	return u.report, failed
}
