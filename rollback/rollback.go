// Package rollback deletes documents that an unfinished job stored, again and again until none is left, without ever
// touching a document that somebody else stored.
//
// Package batch uses it for its own batches. Whoever inserts in another way can use it alone:
//
//	report, err := rollback.Undo(ctx, rollback.Policy{}, rollback.Target{
//		Collection:   orders,
//		IDs:          result.InsertedIDs,
//		Acknowledged: true, // the server said that it stored these very documents
//	})
//
// # Proof
//
// No delete is sent without a proof that what it matches is ours. A proof is one of: a Range of ObjectIDs that only the
// job itself could make; a Stamp, a field whose value only the job's documents carry; or the server's acknowledgement of
// the inserts, for which the caller vouches. Ids for which there is no proof go into Unproven: they are read, never
// deleted, and reported when they are there. That a document has the expected content proves nothing: a file that is
// imported twice makes equal documents.
//
// # Late writes
//
// An insert whose answer was lost may still arrive after a delete that found nothing; so may the first copy of one that
// the driver has repeated, of which the server tries again what it had refused. Against that, Undo first sends a
// write in each session of Target.Fence, which makes a replica set or a sharded cluster refuse what comes later with an
// older transaction number, and then, for targets that are Late, waits for the settle time and deletes again, until a
// pass that began a settle time after the previous one finds nothing. On servers that know no transaction numbers
// (standalone servers, FerretDB, Cosmos DB, or a client with retryWrites=false), and after a change of primary that a
// fence did not outlive, only the settle time protects: the promise then holds provided that no request travels longer
// than that.
package rollback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Target is what has to go from one collection. The fields can be combined; all are optional but Collection.
type Target struct {
	// Collection holds the documents. Its write concern, read concern and read preference do not matter: deletes use
	// the Policy's write concern, reads go to the primary.
	Collection *mongo.Collection

	// Ranges are ObjectIDs that only the job could make; being in one is the proof.
	Ranges []Range

	// IDs are the _id values of documents for which Stamp or Acknowledged is the proof; without either, Undo refuses
	// to run. A value is what the driver encodes to the stored _id; bson.RawValue gives it byte for byte. Values that
	// would act as a query operator (documents with keys that begin with $, regular expressions, arrays) are refused.
	IDs []any

	// Stamp is the proof for IDs: only documents that carry it are deleted.
	Stamp Stamp

	// Acknowledged vouches for IDs that the server acknowledged their very inserts, so that the id alone is the proof.
	// Do not set it for ids whose insert failed or whose answer was lost.
	Acknowledged bool

	// ShardKeys, if not nil, has one entry per entry of IDs and then one per entry of Unproven: the values of the shard
	// key's fields, by their names or dotted paths, which then are part of the filter. An _id is unique per shard only.
	// With a Stamp or with Ranges deletes are right without: mongos sends them to all shards.
	ShardKeys []bson.D

	// Unproven are _id values of inserts whose answer was lost and for which there is no proof. They are read back
	// after the settle time; whatever is there with one of them is reported as a leftover.
	Unproven []any

	// Late says that an insert of these documents may still be on its way.
	Late bool

	// Fence holds the sessions in which the answers of inserts were lost, for the fence described above. Nobody else
	// may use them meanwhile; Undo does not end them. They must belong to Collection's client. A session whose insert was
	// answered, and refused in part or whole, belongs here too: a late copy of it, if the driver has repeated it, would be
	// tried again. For a target that is not Late, a fence has to outlive a change of primary: it is the deletion of one of
	// the documents, and where there is none left for it, or no answer, the documents count as Late. A target with nothing
	// but a Fence deletes nothing and waits for nothing.
	Fence []*mongo.Session
}

// Stamp is a field by which a job marks the documents that it stored. The zero Stamp means none.
type Stamp struct {
	Field string // name of a top-level field
	Value any    // a value that no other job ever writes, for example a random ObjectID
}

// Range is a run of ObjectIDs with the same first nine bytes whose last three bytes, a big-endian counter, go up by one:
// First and the Count-1 ids after it. Undo refuses a range whose counter would pass 0xffffff.
type Range struct {
	First bson.ObjectID
	Count int
	// Except are ids of the range that turned out to belong to somebody else.
	Except []bson.ObjectID
}

// Policy holds the settings of an undo. The zero value is ready to use.
type Policy struct {
	// InitialDelay and MaxDelay bound the growing, jittered delay between attempts. Default to 100 ms and 10 s. A
	// server that asks for a longer delay gets it.
	InitialDelay, MaxDelay time.Duration

	// Budget is how long Undo may go on altogether. Defaults to zero: until nothing is left.
	Budget time.Duration

	// Stop, once closed, ends Undo early, for a process that has to exit; if it is closed beforehand, nothing is sent.
	// Defaults to nil: never.
	Stop <-chan struct{}

	// Settle is how long a request may travel before it reaches the server: the pause before Late targets are deleted
	// again. Defaults to 2 s.
	Settle time.Duration

	// Concurrency is the number of deletes at a time. Defaults to 4. A server that says it has too much to do gets one
	// at a time until it recovers.
	Concurrency int

	// ChunkIDs is the number of ids in one delete command. Defaults to 1,000; 10,000 at most.
	ChunkIDs int

	// ChunkRange is the number of ids that one delete command's range spans. Defaults to 10,000, which is also the
	// most: FerretDB 1.24 cannot delete more than 32,766 documents at once.
	ChunkRange int

	// CommandTimeout bounds the first attempt of each command; an attempt that follows a timeout gets twice the time
	// of the one before, up to sixteen times. Defaults to 30 s.
	CommandTimeout time.Duration

	// WriteConcern of the deletes. Defaults to majority, journaled. Unacknowledged (w:0) is refused.
	WriteConcern *writeconcern.WriteConcern

	// Logger gets a line for each retry and each result. Defaults to nil: silent.
	Logger *slog.Logger

	// Observe, if not nil, is told each step. Calls do not overlap; a slow observer slows the undo.
	Observe func(Event)
}

// DefaultSettle is Policy.Settle where that is not set.
const DefaultSettle = 2 * time.Second

const (
	defaultConcurrency    = 4
	defaultChunkIDs       = 1_000
	defaultChunkRange     = 10_000
	maxChunk              = 10_000
	defaultCommandTimeout = 30 * time.Second
)

func (p Policy) withDefaults() (Policy, error) {
	def := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	def(&p.Settle, DefaultSettle)
	def(&p.CommandTimeout, defaultCommandTimeout)
	count := func(n *int, value, most int) {
		if *n <= 0 {
			*n = value
		}
		*n = min(*n, most)
	}
	count(&p.Concurrency, defaultConcurrency, 1_000)
	count(&p.ChunkIDs, defaultChunkIDs, maxChunk)
	count(&p.ChunkRange, defaultChunkRange, maxChunk)
	if p.WriteConcern == nil {
		journal := true
		p.WriteConcern = &writeconcern.WriteConcern{W: "majority", Journal: &journal}
	}
	if !p.WriteConcern.Acknowledged() {
		return p, errors.New("rollback: an unacknowledged write concern (w:0) cannot show that anything was deleted; use an acknowledged one")
	}
	if p.Logger == nil {
		p.Logger = slog.New(slog.DiscardHandler)
	}
	return p, nil
}

// Undo deletes what the targets name until nothing of it is left, and returns nil once that is so.
//
// The cancellation and the deadline of ctx are not heeded, because their end is the usual reason to undo; its values
// are kept, except for a session, which is not used. Policy.Budget and Policy.Stop end Undo early.
//
// Every attempt is idempotent: a document that is already gone is not an error. Attempts are repeated with backoff,
// unless the server's answer says that they can never succeed (no privilege, not a collection that documents can be
// deleted from); then a last look decides what is left, which may be nothing. When Undo returns an error, it is an *Error
// that lists the documents which may still be there and holds the reasons, or, if a target or the policy makes no sense, a
// plain error, in which case nothing was sent.
//
// Undo may be called again with the same targets, also concurrently and from other processes. It starts no goroutine
// that outlives the call.
func Undo(ctx context.Context, policy Policy, targets ...Target) (Report, error) {
	policy, err := policy.withDefaults()
	if err != nil {
		return Report{}, err
	}
	var steps []*step
	for i, target := range targets {
		planned, err := plan(target, policy)
		if err != nil {
			return Report{}, fmt.Errorf("rollback: target %d: %w; nothing was deleted", i, err)
		}
		steps = append(steps, planned...)
	}
	ctx = mongo.NewSessionContext(context.WithoutCancel(ctx), nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if policy.Budget > 0 {
		timer := time.AfterFunc(policy.Budget, func() { cancel(ErrBudget) })
		defer timer.Stop()
	}
	if policy.Stop != nil {
		select {
		case <-policy.Stop:
			cancel(ErrStopped) // before anything is sent, not soon after
		default:
		}
		done := make(chan struct{})
		defer close(done)
		go func() {
			select {
			case <-policy.Stop:
				cancel(ErrStopped)
			case <-done:
			}
		}()
	}
	u := newUndo(policy, targets, steps)
	u.run(ctx)
	return u.result()
}
