package batch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/internal/retry"
	"github.com/intact-go/intact/rollback"
)

var (
	// ErrFenced: a recovery took the batch over, because its owner showed no life for a lease, or its journal record is
	// gone. The batch is not stored.
	ErrFenced = errors.New("a recovery took over the batch, so it was stopped and not committed")
	// ErrInProgress: another call with the same key has not ended, or ended without saying how and waits for recovery.
	ErrInProgress = errors.New("a batch with this key is in progress")
	// ErrKeyReused: the key belongs to a stored batch that cannot be this one, because its collections or the number of
	// documents differ.
	ErrKeyReused = errors.New("the key belongs to another batch")
	// ErrCommitUnknown: all documents are stored, but the answer to the commit was lost and the journal cannot be
	// asked. The batch stays as it is: whole if the commit arrived; else a recovery removes it whole. Inserter.Resolve
	// tells which, once the journal can be asked.
	ErrCommitUnknown = errors.New("whether the batch was committed is not known yet")
)

const (
	defaultLease           = 30 * time.Second
	defaultJournaledBudget = time.Minute
)

// ledger is the journal's side of a run. It is nil for a run without a journal.
type ledger struct {
	journal *journal.Journal
	record  journal.Record // before the lease begins
	lease   *journal.Lease
	keyed   bool
	pages   int // written so far; protected by run.state
}

// journalOf returns the journal of a configuration. Its patience is what bounds a call whose context has no deadline.
func journalOf(config *Config) *journal.Journal {
	return journal.New(config.Journal, journal.Limits{
		Backoff:  retry.Backoff{Initial: config.InitialDelay, Max: config.MaxDelay},
		Command:  config.CommandTimeout,
		Patience: max(config.RetryTime, config.CommandTimeout),
	})
}

func newLedger(config *Config, id bson.ObjectID, key string) *ledger {
	l := &ledger{journal: journalOf(config), keyed: key != ""}
	if key == "" {
		key = id.Hex()
	}
	l.record = journal.Record{
		ID: key, Keyed: l.keyed, Format: journal.Format, State: journal.Open, Version: 1, Attempt: id,
		Owner: owner(), LeaseMS: config.Lease.Milliseconds(), Stamp: config.StampField,
	}
	return l
}

// owner names this process for people, and this call by random bits.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), randomID().Hex()[8:])
}

// journalID returns the id of the run's record; empty without a journal.
func (r *run) journalID() string {
	if r.ledger == nil {
		return ""
	}
	return r.ledger.record.ID
}

// release ends the lease, if there is one.
func (r *run) release() {
	if r.ledger != nil && r.ledger.lease != nil {
		r.ledger.lease.Release()
	}
}

// limit gives the journal its own time: the caller's context may be what has just ended.
func (r *run) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), max(r.config.RetryTime, r.config.CommandTimeout))
}

// checkJournal refuses what a journal cannot undo after a crash.
func (r *run) checkJournal(context.Context) error {
	if r.ledger == nil {
		return nil
	}
	for _, p := range r.parts {
		if _, err := r.deployment(p.coll.Database().Client()); err != nil {
			return fmt.Errorf("%s: %w", p.namespace, err)
		}
		if r.config.Stamp == StampNone && p.claims() {
			return fmt.Errorf("%s: %w", p.namespace, errUnstamped)
		}
	}
	return nil
}

// deployment returns the name under which a recovery finds a client: none for the journal's own.
func (r *run) deployment(client *mongo.Client) (string, error) {
	if client == r.config.Journal.Database().Client() {
		return "", nil
	}
	for name, known := range r.config.Deployments {
		if known == client && name != "" {
			return name, nil
		}
	}
	return "", errors.New("its client is not the journal's, so a recovery would not find it: give it a name in Config.Deployments")
}

// openJournal writes the record; when it returns nil, the first insert may leave.
func (r *run) openJournal(ctx context.Context) error {
	l := r.ledger
	if l == nil {
		return nil
	}
	for _, p := range r.parts {
		target, err := r.journalTarget(ctx, p)
		if err != nil {
			return err
		}
		l.record.Targets = append(l.record.Targets, target)
	}
	ctx, cancel := r.limit(ctx)
	defer cancel()
	sent := time.Now()
	l.record.Started = sent
	err := l.journal.Create(ctx, l.record)
	if errors.Is(err, journal.ErrExists) {
		return ErrInProgress
	}
	if err != nil {
		return fmt.Errorf("the journal record could not be written, so nothing was inserted: %w", err)
	}
	l.lease = l.journal.Hold(l.record, sent)
	return nil
}

func (r *run) journalTarget(ctx context.Context, p *part) (journal.Target, error) {
	client := p.coll.Database().Client()
	name, err := r.deployment(client)
	if err != nil {
		return journal.Target{}, err
	}
	server, err := r.server(ctx, client)
	if err != nil {
		return journal.Target{}, fmt.Errorf("cannot tell which deployment %s is on: %w", p.namespace, err)
	}
	target := journal.Target{Deployment: name, Set: server.set, Database: p.coll.Database().Name(), Collection: p.coll.Name(), Documents: int64(len(p.documents))}
	// That a minted id turns out to be somebody else's (64 random bits in the same second) is not journaled.
	var minted track
	for i := range p.documents {
		if d := &p.documents[i]; d.minted {
			minted.list(p, d)
		} else {
			target.Claimed++
		}
	}
	for _, run := range minted.ranges() {
		target.Minted = append(target.Minted, journal.Run{First: run.First, Count: int64(run.Count)})
	}
	return target, nil
}

// mayInsert is asked before each insert command: whether the batch is still this run's, and, if the documents have
// claimed ids, whether these are in the journal.
func (s *sending) mayInsert() error {
	l := s.ledger
	if l == nil {
		return nil
	}
	ctx, cancel := s.limit(s.going)
	defer cancel()
	if !s.paged {
		if err := s.writePages(ctx); err != nil {
			return fmt.Errorf("claimed ids could not be written to the journal: %w", err)
		}
		s.paged = true
	}
	if err := l.lease.Check(ctx); err != nil {
		return s.fenced(err)
	}
	return nil
}

// writePages writes one page, as a rule; more if the ids would not fit.
func (s *sending) writePages(ctx context.Context) error {
	var ids []bson.RawValue
	for _, d := range s.pending {
		if !d.minted {
			ids = append(ids, d.id())
		}
	}
	for values := range journal.Paged(ids) {
		s.state.Lock()
		id := journal.PageID(s.id, journal.Claimed, s.ledger.pages)
		s.ledger.pages++
		s.state.Unlock()
		page := journal.Page{ID: id, Target: int32(s.part.position), Values: values}
		if err := s.ledger.journal.AddPage(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

// fenced turns the journal's ErrLost into the public error.
func (r *run) fenced(err error) error {
	if errors.Is(err, journal.ErrLost) {
		return fmt.Errorf("%w (%w)", ErrFenced, err)
	}
	return fmt.Errorf("the journal cannot be asked whether the batch is still alive: %w", err)
}

// commitJournal is the point from which the batch stays. On failure it sets r.failure.
func (r *run) commitJournal(ctx context.Context) {
	l := r.ledger
	if l == nil {
		return
	}
	ctx, cancel := r.limit(ctx)
	defer cancel()
	change := journal.Change{To: journal.Committed}
	if l.keyed {
		results, err := r.storeResult(ctx)
		if err != nil {
			r.fail(fmt.Errorf("the result could not be written to the journal: %w", err))
			return
		}
		change.Set = bson.D{{Key: "results", Value: results}}
	}
	if r.streams { // now it is known how many documents there are
		for i, p := range r.parts {
			l.record.Targets[i].Documents = int64(p.size())
		}
		change.Set = append(change.Set, bson.E{Key: "targets", Value: l.record.Targets})
	}
	if err := l.lease.Check(ctx); err != nil {
		r.fail(r.fenced(err))
		return
	}
	switch err := l.lease.Swap(ctx, change); {
	case err == nil:
	case errors.Is(err, journal.ErrLost):
		r.fail(r.fenced(err))
	default:
		r.decideCommit(ctx, err)
	}
}

// decideCommit finds out what became of a commit that failed with an error. To delete anything while the commit may have
// arrived, or may still arrive, would undo a committed batch; so first the record is aborted: of the two one loses. If that
// cannot be done either, the record is read once no command can be on its way any more.
func (r *run) decideCommit(ctx context.Context, failed error) {
	l := r.ledger
	err := l.lease.Swap(ctx, journal.Change{To: journal.Aborting, Set: bson.D{{Key: "problem", Value: describe(failed)}}})
	if err == nil {
		r.fail(fmt.Errorf("the commit failed: %w", failed))
		return
	}
	if !errors.Is(err, journal.ErrLost) {
		settle := r.config.Rollback.Settle
		if settle <= 0 {
			settle = rollback.DefaultSettle
		}
		_ = retry.Sleep(ctx, settle) // if there is no time for that, there is none for reading
	}
	have, found, readErr := l.journal.Get(ctx, l.record.ID)
	ours := found && have.Attempt == r.id
	switch {
	case ours && have.State == journal.Committed:
	case ours && errors.Is(err, journal.ErrLost):
		r.fail(r.fenced(err))
	case ours:
		r.fail(fmt.Errorf("the commit failed: %w", failed))
	case readErr == nil && !errors.Is(failed, journal.ErrUnclear):
		r.fail(r.fenced(fmt.Errorf("%w: it is gone", journal.ErrLost)))
	default: // nobody answers, or the record is gone and may have been a committed one
		r.fail(fmt.Errorf("%w: %w", ErrCommitUnknown, failed))
	}
}

// abortJournal says in the journal that the batch is being rolled back. The rollback does not depend on it: a record that
// stays open is found by recovery.
func (r *run) abortJournal(ctx context.Context) {
	if r.ledger == nil || r.ledger.lease == nil || r.ledger.lease.Record().State == journal.Aborting {
		return
	}
	ctx, cancel := r.limit(ctx)
	defer cancel()
	r.swap(ctx, journal.Change{To: journal.Aborting, Set: bson.D{{Key: "problem", Value: describe(r.failure)}}})
}

// closeJournal says how the rollback ended.
func (r *run) closeJournal(ctx context.Context, late bool, incomplete error) {
	if r.ledger == nil || r.ledger.lease == nil {
		return
	}
	ctx, cancel := r.limit(ctx)
	defer cancel()
	switch {
	case incomplete != nil:
		// The record stays as it is, so that recovery goes on.
	case late:
		r.swap(ctx, journal.Change{To: journal.Watching})
	default:
		r.swap(ctx, journal.Change{To: journal.Aborted})
	}
}

func (r *run) swap(ctx context.Context, change journal.Change) {
	record := r.ledger.lease.Record()
	if change.To != journal.Aborting && record.State != journal.Aborting {
		return // the record did not get as far; recovery will close it
	}
	if err := r.ledger.lease.Swap(ctx, change); err != nil {
		r.config.Logger.Warn("batch: the journal record could not be changed; recovery will", "record", record.ID, "to", string(change.To), "error", describe(err))
	}
}
