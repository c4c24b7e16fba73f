package rollback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/retry"
)

// Recovery holds the settings of Recover. The zero value is ready to use.
type Recovery struct {
	// Policy is how each batch is undone. Its Budget is for one batch, and for each read or write of the journal; it
	// defaults to one minute here; negative means unlimited. Its Concurrency is also the number of batches at a time. Its
	// Logger is used for the recovery too.
	Policy Policy

	// Deployments are the clients of collections that are not on the journal's client, by the names that batch.Config
	// gave them. A record that needs a name which is not here is reported and left alone, and so is one whose replica set
	// has another name than the client's. Of two deployments with the same name, the right one cannot be told.
	Deployments map[string]*mongo.Client

	// Retention is how long finished records are kept, which is how long the keys of batches are remembered. It is judged
	// by the wall clocks of those who wrote and who recover, so it should be far longer than they differ. A pass removes
	// at most 10,000. Defaults to 24 hours; negative means for ever.
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
	Alive      []string // somebody works on them, or it is not known yet that nobody does
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
// returns when one pass over the journal is done, or, with Recovery.Every, when ctx is done; the report is then of the
// last pass.
//
// An owner is dead when its beat has not moved for a whole lease, by the clock of this process. A single pass waits until
// it knows which owners are dead, which takes up to twice the longest lease of an unfinished record. The passes of a loop
// do not wait; a later one knows. A record whose owner lives is left alone. Batches are undone as Undo does, with their late writes in mind, and looked at once more by a later pass,
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
	for {
		report, err := r.pass(ctx)
		if r.Every <= 0 {
			return report, err
		}
		if err != nil {
			r.Policy.Logger.Error("recovery: a pass could not finish everything", "error", err)
		}
		if retry.Sleep(ctx, r.Every) != nil {
			return report, context.Cause(ctx)
		}
	}
}
