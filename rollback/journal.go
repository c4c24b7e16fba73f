package rollback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/journal"
)

// Record is a batch's journal record, for people and programs that look at a journal.
type Record struct {
	ID      string        // the key given to batch.Inserter.InsertOnce, or the hex form of Attempt
	Attempt bson.ObjectID // the batch's id, and the value of its stamps
	State   string        // open, committed, aborting, watching, aborted or forgotten
	Owner   string        // host/process/random of who works on it, or did last
	Beat    int64         // counts up while somebody works on it
	Lease   time.Duration // how long the beat has to stand still before a recovery takes over
	// Started and Finished are by the clocks of those who wrote them; Finished is zero while the record is unfinished.
	Started, Finished time.Time
	Documents         int64
	Targets           []RecordTarget
	Attempts          int    // how often a recovery tried
	Problem           string // why the batch was rolled back, or what kept it from being so
	Reason            string // why it was forgotten
	// Err is why the record cannot be acted on (a newer format, damage); nil if it can. The other fields may be empty
	// then.
	Err error
}

// Unfinished reports whether the record waits for its owner or for a recovery.
func (r Record) Unfinished() bool { return !journal.State(r.State).Final() }

// RecordTarget is what a batch stores in one collection.
type RecordTarget struct {
	Deployment string // name of the client; empty for the journal's own
	Collection string // database.collection
	Documents  int64
}

func public(record journal.Record, err error) Record {
	r := Record{
		ID: record.ID, Attempt: record.Attempt, State: string(record.State), Owner: record.Owner, Beat: record.Beat,
		Lease: record.Lease(), Started: record.Started, Attempts: int(record.Attempts), Problem: record.Problem,
		Reason: record.Reason, Err: err,
	}
	if record.Finished != nil {
		r.Finished = *record.Finished
	}
	for _, t := range record.Targets {
		r.Documents += t.Documents
		r.Targets = append(r.Targets, RecordTarget{Deployment: t.Deployment, Collection: t.Namespace(), Documents: t.Documents})
	}
	return r
}

// List returns the journal's records, finished ones included, in the order of their ids. It changes nothing.
func List(ctx context.Context, coll *mongo.Collection) ([]Record, error) {
	r, err := newRecoverer(coll, Recovery{})
	if err != nil {
		return nil, err
	}
	heads, err := r.journal.All(ctx)
	if err != nil {
		return nil, fmt.Errorf("the journal cannot be read: %w", err)
	}
	records := make([]Record, len(heads))
	for i, head := range heads {
		record, err := decode(head)
		records[i] = public(record, err)
	}
	return records, nil
}

// Finding is what Check found out about an unfinished record.
type Finding struct {
	Record
	// Stored lists the documents of the batch that are in the database now. While the owner lives, that is its work in
	// progress; after that, it is what Recover would delete.
	Stored []Leftover
	// Err is why they could not be looked up, or Record.Err.
	Err error
}

// Check looks which documents of the journal's unfinished batches are stored. It changes nothing and does not judge
// whether the owners live. Of Recovery, the Policy's timeouts and chunks, Deployments and ID are used.
func Check(ctx context.Context, coll *mongo.Collection, recovery Recovery) ([]Finding, error) {
	r, err := newRecoverer(coll, recovery)
	if err != nil {
		return nil, err
	}
	heads, err := r.journal.Unfinished(ctx, r.ID)
	if err != nil {
		return nil, fmt.Errorf("the journal cannot be read: %w", err)
	}
	var findings []Finding
	for _, head := range heads {
		record, err := decode(head)
		finding := Finding{Record: public(record, err), Err: err}
		if err == nil {
			finding.Stored, finding.Err = r.stored(ctx, record)
		}
		findings = append(findings, finding)
	}
	return findings, ctx.Err()
}

// stored reads which documents of a record are there.
func (r *recoverer) stored(ctx context.Context, record journal.Record) ([]Leftover, error) {
	targets, err := r.targets(ctx, record)
	if err != nil {
		return nil, err
	}
	u := newUndo(r.Policy, nil, nil)
	var stored []Leftover
	for _, target := range targets {
		steps, err := plan(target, r.Policy)
		if err != nil {
			return nil, err
		}
		for _, s := range steps {
			limited, cancel := context.WithTimeout(ctx, r.Policy.CommandTimeout)
			left, err := u.present(limited, s, s.size)
			cancel()
			if err != nil {
				return nil, err
			}
			stored = append(stored, left...)
		}
	}
	return stored, nil
}

// ErrFinished: a record that is finished already cannot be forgotten.
var ErrFinished = errors.New("the record is finished")

// Forget takes an unfinished record out of recovery's hands, for a person who has cleaned up otherwise. The reason is
// stored in the record, which is kept. Documents of the batch that are stored stay; if the owner lives, its next write to
// the journal fails, and it stops and removes what it wrote. A record that cannot be decoded or that has a newer format is
// not changed.
func Forget(ctx context.Context, coll *mongo.Collection, id, reason string) error {
	if reason == "" {
		return errors.New("rollback: Forget needs a reason, for those who look at the journal later")
	}
	r, err := newRecoverer(coll, Recovery{})
	if err != nil {
		return err
	}
	record, found, err := r.journal.Get(ctx, id)
	if err == nil && found {
		err = record.Check()
	}
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("there is no journal record %q", id)
	case record.State.Final():
		return fmt.Errorf("%w: %q is %s", ErrFinished, id, record.State)
	}
	_, err = r.journal.Swap(ctx, record, journal.Change{To: journal.Forgotten, Owner: r.owner, Set: bson.D{{Key: "reason", Value: reason}}})
	return err
}
