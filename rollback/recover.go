package rollback

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/internal/retry"
)

// Recovery holds the settings of Recover. The zero value is ready to use.
type Recovery struct {
	// Policy is how each batch is undone. Its Budget is for one batch, and defaults to one minute here; negative means
	// unlimited. Its Logger is used for the recovery too.
	Policy Policy

	// Deployments are the clients of collections that are not on the journal's client, by the names that batch.Config
	// gave them. A record that needs a name which is not here is reported and left alone.
	Deployments map[string]*mongo.Client

	// Retention is how long finished records are kept, which is how long the keys of batches are remembered. It is judged
	// by the wall clocks of those who wrote and who recover, so it should be far longer than they differ. Defaults to 24
	// hours; negative means for ever.
	Retention time.Duration

	// Every, if not zero, makes Recover a loop with this pause between two passes. Defaults to zero: one pass.
	Every time.Duration

	// ID limits the recovery to one record. Defaults to all.
	ID string
}

const (
	defaultRetention = 24 * time.Hour
	defaultBudget    = time.Minute
)

// RecoveryReport says what a recovery did, by record ids.
type RecoveryReport struct {
	Alive      []string // somebody works on them
	RolledBack []string // everything was deleted; they are looked at once more by a later pass
	Closed     []string // nothing more can arrive
	Removed    []string // finished records whose retention was over
	Failed     []string // reported in the error
	Deleted    int64    // documents that were deleted
}

// RecordError is a record that a recovery could not finish. The record stays, and the next pass tries again.
type RecordError struct {
	ID  string
	Err error
}

func (e *RecordError) Error() string { return fmt.Sprintf("journal record %q: %v", e.ID, e.Err) }

// Unwrap returns Err.
func (e *RecordError) Unwrap() error { return e.Err }

// ErrElsewhere: a record is about a deployment that this recovery was given no client for, or another client than the
// batch had.
var ErrElsewhere = errors.New("the batch's documents are on another deployment")

// Recover finishes the batches whose owners have died: everything of a batch that was not committed is deleted. It
// returns when one pass over the journal is done, or, with Recovery.Every, when ctx is done.
//
// A pass waits until it knows which owners are dead, which takes as long as the longest lease of an unfinished record:
// an owner is dead when its beat has not moved for a whole lease, by the clock of this process. A record whose owner lives
// is left alone. Batches are undone as Undo does, with their late writes in mind, and looked at once more by a later pass,
// after which their records are closed. Finished records are removed when the retention is over.
//
// One record that cannot be finished never keeps the others from being so: the error joins a *RecordError for each, which
// errors.As finds, and the record stays for the next pass. Records of a newer format and records of other deployments are
// reported and not touched.
//
// Any number of recoveries may run at once, and a pass that has nothing to do changes nothing. When ctx ends, the batch in
// hand is given up at once; its record stays.
func Recover(ctx context.Context, coll *mongo.Collection, recovery Recovery) (RecoveryReport, error) {
	r, err := newRecoverer(coll, recovery)
	if err != nil {
		return RecoveryReport{}, err
	}
	var total RecoveryReport
	for {
		report, err := r.pass(ctx)
		total.add(report)
		if r.Every <= 0 {
			return total, err
		}
		if err != nil {
			r.Policy.Logger.Error("recovery: a pass could not finish everything", "error", err)
		}
		if retry.Sleep(ctx, r.Every) != nil {
			return total, context.Cause(ctx)
		}
	}
}

func (r *RecoveryReport) add(more RecoveryReport) {
	r.Alive = more.Alive
	r.Failed = more.Failed
	r.RolledBack = append(r.RolledBack, more.RolledBack...)
	r.Closed = append(r.Closed, more.Closed...)
	r.Removed = append(r.Removed, more.Removed...)
	r.Deleted += more.Deleted
}

// recoverer is one run of Recover.
type recoverer struct {
	Recovery
	journal *journal.Journal
	owner   string
	// seen is when, by this process's clock, each unfinished record was first seen as it is.
	seen map[string]sighting
}

// sighting is a record as it was first seen.
type sighting struct {
	version, beat int64
	attempt       bson.ObjectID
	at            time.Time
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
	recovery.Policy = policy
	if recovery.Retention == 0 {
		recovery.Retention = defaultRetention
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	backoff := retry.Backoff{Initial: policy.InitialDelay, Max: policy.MaxDelay}
	return &recoverer{
		Recovery: recovery,
		journal:  journal.New(coll, backoff, policy.CommandTimeout),
		owner:    fmt.Sprintf("recovery on %s/%d/%s", host, os.Getpid(), rand.Text()[:16]),
		seen:     make(map[string]sighting),
	}, nil
}

// pass goes over the journal once.
func (r *recoverer) pass(ctx context.Context) (RecoveryReport, error) {
	var report RecoveryReport
	pending, problems := r.read(ctx, &report)
	for len(pending) > 0 && ctx.Err() == nil {
		var waiting []journal.Record
		var wait time.Duration
		for _, record := range pending {
			left := r.timeLeft(record)
			if left <= 0 {
				problems = append(problems, r.finish(ctx, record, &report)...)
				continue
			}
			waiting = append(waiting, record)
			if wait == 0 || left < wait {
				wait = left
			}
		}
		if len(waiting) == 0 || retry.Sleep(ctx, wait) != nil {
			pending = waiting
			break
		}
		pending, problems = r.look(ctx, waiting, &report, problems)
	}
	if ctx.Err() != nil {
		problems = append(problems, context.Cause(ctx))
	}
	return report, errors.Join(problems...)
}

// read takes down every record, removes what is finished for long enough, and returns what is to be judged.
func (r *recoverer) read(ctx context.Context, report *RecoveryReport) (pending []journal.Record, problems []error) {
	heads, err := r.journal.Heads(ctx, true)
	if err != nil {
		return nil, []error{fmt.Errorf("the journal cannot be read: %w", err)}
	}
	for _, head := range heads {
		record, err := r.decode(head)
		switch {
		case r.ID != "" && record.ID != r.ID:
		case err != nil:
			problems = append(problems, r.failed(report, record.ID, err))
		case record.State.Final():
			if err := r.removeOld(ctx, record, report); err != nil {
				problems = append(problems, r.failed(report, record.ID, err))
			}
		default:
			pending = append(pending, record)
		}
	}
	return pending, problems
}

// decode reads a head. Of one that is damaged it returns the id, as far as that can be told.
func (r *recoverer) decode(head bson.Raw) (journal.Record, error) {
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

func (r *recoverer) failed(report *RecoveryReport, id string, err error) error {
	report.Failed = append(report.Failed, id)
	r.Policy.Logger.Error("recovery: a record could not be finished", "record", id, "error", err)
	return &RecordError{ID: id, Err: err}
}

func (r *recoverer) removeOld(ctx context.Context, record journal.Record, report *RecoveryReport) error {
	if r.Retention < 0 || record.State == journal.Forgotten || record.Finished == nil || time.Since(*record.Finished) < r.Retention {
		return nil
	}
	if err := r.journal.Remove(ctx, record); err != nil {
		return fmt.Errorf("finished, but it could not be removed: %w", err)
	}
	report.Removed = append(report.Removed, record.ID)
	return nil
}

// timeLeft returns how long the record has to stay as it is until it may be finished: a lease for one that somebody works
// on; for one that is watched, the settle time.
func (r *recoverer) timeLeft(record journal.Record) time.Duration {
	now := time.Now()
	seen, known := r.seen[record.ID]
	if !known || seen.version != record.Version || seen.beat != record.Beat || seen.attempt != record.Attempt {
		seen = sighting{version: record.Version, beat: record.Beat, attempt: record.Attempt, at: now}
		r.seen[record.ID] = seen
	}
	wait := record.Lease()
	if record.State == journal.Watching {
		wait = r.Policy.Settle
	}
	return wait - now.Sub(seen.at)
}

// look reads records again after a wait. One that shows life is left alone.
func (r *recoverer) look(ctx context.Context, waiting []journal.Record, report *RecoveryReport, problems []error) ([]journal.Record, []error) {
	var still []journal.Record
	for _, before := range waiting {
		now, found, err := r.journal.Get(ctx, before.ID)
		switch {
		case err != nil:
			problems = append(problems, r.failed(report, before.ID, err))
		case !found || now.State.Final():
			delete(r.seen, before.ID)
		case now.Version != before.Version || now.Beat != before.Beat || now.Attempt != before.Attempt:
			r.timeLeft(now) // seen as it is from now on
			report.Alive = append(report.Alive, before.ID)
		default:
			still = append(still, now)
		}
	}
	return still, problems
}

// finish brings a record whose owner is dead, or that waited for its last look, to its end.
func (r *recoverer) finish(ctx context.Context, record journal.Record, report *RecoveryReport) []error {
	delete(r.seen, record.ID)
	targets, err := r.targets(ctx, record)
	if err != nil {
		return []error{r.failed(report, record.ID, err)}
	}
	to := journal.Aborting
	if record.State == journal.Watching {
		to = journal.Watching
	}
	sent := time.Now()
	record, err = r.journal.Swap(ctx, record, journal.Change{
		To: to, Owner: r.owner, Beat: true,
		Set: bson.D{{Key: "attempts", Value: record.Attempts + 1}},
	})
	if errors.Is(err, journal.ErrLost) { // it lives after all, or another recovery was faster
		report.Alive = append(report.Alive, record.ID)
		return nil
	}
	if err != nil {
		return []error{r.failed(report, record.ID, err)}
	}
	lease := r.journal.Hold(record, sent)
	defer lease.Release()
	if err := r.undo(ctx, lease, targets, report); err != nil {
		return []error{r.failed(report, record.ID, err)}
	}
	return nil
}

// undo deletes a record's documents and moves the record on.
func (r *recoverer) undo(ctx context.Context, lease *journal.Lease, targets []Target, report *RecoveryReport) error {
	record := lease.Record()
	policy := r.Policy
	policy.Stop = ctx.Done()
	done, err := Undo(ctx, policy, targets...)
	report.Deleted += done.Deleted
	if err != nil {
		note := r.journal.Note(context.WithoutCancel(ctx), record, bson.D{{Key: "problem", Value: firstWords(err)}})
		return errors.Join(err, note)
	}
	watched := record.State == journal.Watching && done.Deleted == 0
	next := journal.Watching
	if watched {
		next = journal.Aborted
	}
	if record.State != journal.Watching || watched {
		err := lease.Swap(ctx, journal.Change{To: next})
		if errors.Is(err, journal.ErrLost) { // another recovery does the rest
			return nil
		}
		if err != nil {
			return fmt.Errorf("everything is deleted, but the record could not be changed: %w", err)
		}
	}
	if watched {
		report.Closed = append(report.Closed, record.ID)
	} else {
		report.RolledBack = append(report.RolledBack, record.ID)
	}
	r.Policy.Logger.LogAttrs(ctx, slog.LevelInfo, "recovery: rolled back", slog.String("record", record.ID), slog.String("state", string(next)), slog.Int64("deleted", done.Deleted))
	return nil
}

func firstWords(err error) string {
	text := err.Error()
	if len(text) > 500 {
		text = text[:497] + "..."
	}
	return text
}

// targets turns a record into what has to go. All of it may still be on its way, for the owner is dead, not its requests.
func (r *recoverer) targets(ctx context.Context, record journal.Record) ([]Target, error) {
	targets := make([]Target, len(record.Targets))
	for i, t := range record.Targets {
		client, err := r.client(ctx, t)
		if err != nil {
			return nil, err
		}
		targets[i] = Target{
			Collection: client.Database(t.Database).Collection(t.Collection),
			Stamp:      Stamp{Field: record.Stamp, Value: record.Attempt},
			Late:       record.State != journal.Watching,
		}
		for _, run := range t.Minted {
			targets[i].Ranges = append(targets[i].Ranges, Range{First: run.First, Count: int(run.Count)})
		}
	}
	err := r.journal.Claims(ctx, record.Attempt, func(page journal.Page) error {
		if page.Target < 0 || int(page.Target) >= len(targets) {
			return fmt.Errorf("%w: a page is about part %d of %d", journal.ErrDamaged, page.Target, len(targets))
		}
		for _, id := range page.Values {
			targets[page.Target].IDs = append(targets[page.Target].IDs, id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range targets {
		if _, err := plan(targets[i], r.Policy); err != nil {
			return nil, fmt.Errorf("%w: %w", journal.ErrDamaged, err)
		}
	}
	return targets, nil
}

// client returns the client that a target's documents were stored with.
func (r *recoverer) client(ctx context.Context, target journal.Target) (*mongo.Client, error) {
	client := r.journal.Client()
	if target.Deployment != "" {
		client = r.Deployments[target.Deployment]
	}
	if client == nil {
		return nil, fmt.Errorf("%w: %q, for %s; name its client in Recovery.Deployments", ErrElsewhere, target.Deployment, target.Namespace())
	}
	hello, err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
	if err != nil {
		return nil, fmt.Errorf("cannot tell which deployment the client of %s is for: %w", target.Namespace(), err)
	}
	if set, _ := hello.Lookup("setName").StringValueOK(); set != target.Set {
		return nil, fmt.Errorf("%w: %s was stored on the replica set %q, this client is for %q", ErrElsewhere, target.Namespace(), target.Set, set)
	}
	return client, nil
}
