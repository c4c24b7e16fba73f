package rollback

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/internal/retry"
)

// recoverer is one run of Recover.
type recoverer struct {
	Recovery
	journal *journal.Journal
	owner   string
	// seen is when, by this process's clock, each unfinished record was first seen as it is. Only the goroutine of the
	// pass uses it.
	seen map[string]sighting

	mu       sync.Mutex // protects the rest
	report   RecoveryReport
	problems []error
}

// sighting is a record as it was first seen.
type sighting struct {
	version, beat int64
	attempt       bson.ObjectID
	at            time.Time
	moves         int // how often it was seen to change since the pass began
}

func newRecoverer(coll *mongo.Collection, recovery Recovery) (*recoverer, error) {
	if coll == nil {
		return nil, errors.New("rollback: no journal collection")
	}
	policy, err := recovery.Policy.withDefaults()
	if err != nil {
		return nil, err
	}
	if policy.Budget == 0 {
		policy.Budget = defaultBudget
	}
	if observe := policy.Observe; observe != nil {
		var one sync.Mutex // several batches are undone at a time
		policy.Observe = func(event Event) {
			one.Lock()
			defer one.Unlock()
			observe(event)
		}
	}
	recovery.Policy = policy
	if recovery.Retention == 0 {
		recovery.Retention = defaultRetention
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	limits := journal.Limits{
		Backoff: retry.Backoff{Initial: policy.InitialDelay, Max: policy.MaxDelay},
		Command: policy.CommandTimeout, Patience: policy.Budget,
	}
	return &recoverer{
		Recovery: recovery,
		journal:  journal.New(coll, limits),
		owner:    fmt.Sprintf("recovery on %s/%d/%s", host, os.Getpid(), rand.Text()[:16]),
		seen:     make(map[string]sighting),
	}, nil
}

// pass goes over the journal once.
func (r *recoverer) pass(ctx context.Context) (RecoveryReport, error) {
	r.report, r.problems = RecoveryReport{}, nil
	r.removeOverdue(ctx)
	pending := r.unfinished(ctx, true)
	r.forgetSightings(pending)
	for len(pending) > 0 {
		due, waiting, wait := r.sort(pending)
		r.finishAll(ctx, due)
		if len(waiting) == 0 || r.Every > 0 || retry.Sleep(ctx, wait) != nil {
			r.alive(waiting...)
			break
		}
		pending = r.lookAgain(ctx, waiting)
	}
	if ctx.Err() != nil {
		r.problems = append(r.problems, context.Cause(ctx))
	}
	for _, ids := range [][]string{r.report.Alive, r.report.RolledBack, r.report.Closed, r.report.Removed, r.report.Failed} {
		slices.Sort(ids)
	}
	return r.report, errors.Join(r.problems...)
}

// note changes the report.
func (r *recoverer) note(change func(*RecoveryReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.report)
}

func (r *recoverer) alive(records ...journal.Record) {
	r.note(func(report *RecoveryReport) {
		for _, record := range records {
			report.Alive = append(report.Alive, record.ID)
		}
	})
}

func (r *recoverer) failed(id string, err error) {
	r.Policy.Logger.Error("recovery: a record could not be finished", "record", id, "error", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Failed = append(r.report.Failed, id)
	r.problems = append(r.problems, &RecordError{ID: id, Err: err})
}

func (r *recoverer) unreadable(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Errorf("the journal cannot be read: %w", err))
}

// unfinished reads what is to be judged. What nobody can act on is reported, if that is asked for.
func (r *recoverer) unfinished(ctx context.Context, report bool) (pending []journal.Record) {
	heads, err := r.journal.Unfinished(ctx, r.ID)
	if err != nil {
		r.unreadable(err)
	}
	for _, head := range heads {
		record, err := decode(head)
		if err == nil {
			pending = append(pending, record)
		} else if report {
			r.failed(record.ID, err)
		}
	}
	return pending
}

// decode reads a head. Of one that is damaged it returns the id, as far as that can be told.
func decode(head bson.Raw) (journal.Record, error) {
	record, err := journal.Decode(head)
	if err != nil {
		id, ok := head.Lookup("_id").StringValueOK()
		if !ok {
			id = head.Lookup("_id").String()
		}
		return journal.Record{ID: id}, err
	}
	return record, record.Check()
}

// removeOverdue removes finished records whose retention is over.
func (r *recoverer) removeOverdue(ctx context.Context) {
	if r.Retention < 0 {
		return
	}
	heads, err := r.journal.Overdue(ctx, r.ID, time.Now().Add(-r.Retention))
	if err != nil {
		r.unreadable(err)
	}
	for _, head := range heads {
		record, err := decode(head)
		if err == nil {
			err = r.journal.Remove(ctx, record)
		}
		if err != nil {
			r.failed(record.ID, fmt.Errorf("finished, but it could not be removed: %w", err))
			continue
		}
		r.note(func(report *RecoveryReport) { report.Removed = append(report.Removed, record.ID) })
	}
}

// forgetSightings keeps what is known of pending records only, for a new pass.
func (r *recoverer) forgetSightings(pending []journal.Record) {
	kept := make(map[string]sighting, len(pending))
	for _, record := range pending {
		if seen, known := r.seen[record.ID]; known {
			seen.moves = 0
			kept[record.ID] = seen
		}
	}
	r.seen = kept
}

// sort tells records that may be finished now from those that have to stay as they are for a while, and says when to look
// again: as soon as the first may be finished, but twice within each lease, so as to notice life.
func (r *recoverer) sort(pending []journal.Record) (due, waiting []journal.Record, wait time.Duration) {
	for _, record := range pending {
		left := r.timeLeft(record)
		if left <= 0 {
			due = append(due, record)
			continue
		}
		waiting = append(waiting, record)
		if next := min(left, record.Lease()/2); wait == 0 || next < wait {
			wait = next
		}
	}
	return due, waiting, max(wait, time.Millisecond)
}

// timeLeft returns how long the record has to stay as it is until it may be finished: a lease for one that somebody works
// on; for one that is watched, the settle time.
func (r *recoverer) timeLeft(record journal.Record) time.Duration {
	now := time.Now()
	seen, known := r.seen[record.ID]
	if !known || seen.version != record.Version || seen.beat != record.Beat || seen.attempt != record.Attempt {
		if known {
			seen.moves++
		}
		seen = sighting{version: record.Version, beat: record.Beat, attempt: record.Attempt, at: now, moves: seen.moves}
		r.seen[record.ID] = seen
	}
	wait := record.Lease()
	if record.State == journal.Watching {
		wait = r.Policy.Settle
	}
	return wait - now.Sub(seen.at)
}

// lookAgain reads the journal after a wait, and returns those of the waiting records that are still to be judged. One that
// moved twice is alive. Once is not enough: a write that its owner had sent before it died may have arrived meanwhile.
func (r *recoverer) lookAgain(ctx context.Context, waiting []journal.Record) (still []journal.Record) {
	before := make(map[string]bool, len(waiting))
	for _, record := range waiting {
		before[record.ID] = true
	}
	for _, now := range r.unfinished(ctx, false) {
		if !before[now.ID] {
			continue // it began after this pass
		}
		r.timeLeft(now) // takes down whether it moved
		if r.seen[now.ID].moves < 2 {
			still = append(still, now)
			continue
		}
		r.alive(now)
	}
	return still
}

// finishAll finishes records, some at a time.
func (r *recoverer) finishAll(ctx context.Context, due []journal.Record) {
	var group errgroup.Group
	group.SetLimit(r.Policy.Concurrency)
	for _, record := range due {
		if ctx.Err() != nil {
			break
		}
		delete(r.seen, record.ID)
		group.Go(func() error {
			if err := r.finish(ctx, record); err != nil {
				r.failed(record.ID, err)
			}
			return nil
		})
	}
	_ = group.Wait() // finish reports through r
}
