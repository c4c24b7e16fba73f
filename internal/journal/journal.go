// Package journal keeps one record per batch, so that a batch can be undone after its process has died.
//
// # The protocol
//
// The owner of a batch writes the record before its first insert, and a page with the claimed ids of a chunk before that
// chunk. It beats: it counts the record's beat up, well within the lease, from a goroutine of its own, and before each
// chunk and before the commit it looks at its own clock. The commit is one compare-and-set of the record, open to
// committed; whoever loses it obeys.
//
// A recovery watches the beats of unfinished records by its own clock. When a beat has not moved for a whole lease, it
// takes over with a compare-and-set that names the beat, and thereby raises the version: whatever the old owner writes to
// the record from then on changes nothing, by which it learns that it has to stop and to remove what it wrote. No two
// clocks are ever compared.
//
// A commit whose answer was lost may have arrived, or may still arrive. Before the owner deletes anything it therefore
// aborts the record, which of the two makes one lose; or finds the record still open when no command can be on its way any
// more. If it can do neither, it leaves everything as it is and says that the verdict is not known.
//
// A recovery deletes, waits for the settle time, deletes again, and has the record watched: a later pass, again a settle
// time later, looks once more before it closes the record.
//
//	the process dies …                  the record is     what is left         who cleans up
//	before the record is written        absent            nothing              nobody
//	after it, before the first insert   open              nothing              recovery closes it
//	between inserts, or during one      open              some documents       recovery deletes them
//	after the last insert               open              all documents        recovery deletes them
//	during the commit                   open or committed all documents        as the record says
//	after the commit                    committed         all, for good        recovery removes the record later
//	during the rollback                 aborting, or open some documents       recovery deletes the rest
//	                                    if the journal
//	                                    did not answer
//	after the rollback                  watching          none, maybe a late   recovery looks once more
//	                                                      insert
//	                                    aborted           none                 recovery removes the record later
//	during a recovery                   aborting          some documents       the next recovery
//	                                    watching          none                 the next recovery
//	while a finished record is removed  as it was, maybe  all or none, as      the next recovery
//	                                    without pages     the record says
//
// Two things are taken for granted. No request travels longer than the settle time. And an owner that was stopped for longer
// than its lease between its look at the clock and an insert, and goes on after a recovery has closed its record, lives long
// enough to find out and to remove what that insert stored.
//
// Everything is done with insert, find, update ($set, $inc) and delete, at majority and on the primary, outside any
// session. Heads are in the collection that the caller names, pages in a second one beside it with ".pages" appended.
package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/internal/retry"
)

// PagesSuffix is appended to the journal collection's name for the collection of pages.
const PagesSuffix = ".pages"

var (
	// ErrLost: the record is not as the writer left it. Somebody else took over, or the record is gone.
	ErrLost = errors.New("the batch's journal record was taken over or is gone")
	// ErrUnclear: nobody answered whether a change was made; it may have been, and it may still be made.
	ErrUnclear = errors.New("whether the journal record was changed is not known")
	// ErrExists: there is a record with this id, of another attempt.
	ErrExists = errors.New("there is a journal record with this id already")
	// ErrDamaged: the record or page cannot be read as one.
	ErrDamaged = errors.New("the journal record is damaged")
)

// Journal reads and writes records. It may be used by several goroutines.
type Journal struct {
	heads, pages *mongo.Collection
	limits       Limits
}

// Limits say how long a journal tries.
type Limits struct {
	Backoff retry.Backoff
	Command time.Duration // one command
	// Patience bounds a read or write with all its repetitions. Zero or less is no bound but the context's.
	Patience time.Duration
}

// New returns the journal in a collection. Nothing is sent.
func New(coll *mongo.Collection, limits Limits) *Journal {
	journaled := true
	opts := options.Collection().
		SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: &journaled}).
		SetReadConcern(readconcern.Majority()).
		SetReadPreference(readpref.Primary()).
		SetRegistry(bson.NewRegistry()).
		SetBSONOptions(&options.BSONOptions{})
	return &Journal{
		heads:  coll.Clone(opts),
		pages:  coll.Database().Collection(coll.Name()+PagesSuffix, opts),
		limits: limits,
	}
}

// Client returns the client of the journal's own deployment.
func (j *Journal) Client() *mongo.Client { return j.heads.Database().Client() }

// repeat calls command until it succeeds, fails for good, or there is no time left.
func (j *Journal) repeat(ctx context.Context, command func(context.Context) error) error {
	return j.repeatWithin(ctx, j.limits.Command, command)
}

// repeatWithin is repeat with another limit for one command.
func (j *Journal) repeatWithin(ctx context.Context, limit time.Duration, command func(context.Context) error) error {
	ctx = mongo.NewSessionContext(ctx, nil)
	if j.limits.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, j.limits.Patience)
		defer cancel()
	}
	delays := j.limits.Backoff.Start()
	for {
		limited, cancel := context.WithTimeout(ctx, limit)
		err := command(limited)
		cancel()
		if err == nil {
			return nil
		}
		class := outcome.Command(err)
		if conclusive(err) || class.Kind == outcome.Permanent {
			return err
		}
		if retry.Sleep(ctx, delays.Next(class.After)) != nil {
			return fmt.Errorf("%w; last attempt: %w", context.Cause(ctx), err)
		}
	}
}

// conclusive reports whether the error is this package's own, which no repetition changes.
func conclusive(err error) bool {
	return errors.Is(err, ErrLost) || errors.Is(err, ErrUnclear) || errors.Is(err, ErrExists) || errors.Is(err, ErrDamaged)
}

// duplicate reports whether a document with this _id was there already. If it may not be durable yet, that is the error.
func duplicate(err error) (bool, error) {
	if !mongo.IsDuplicateKeyError(err) {
		return false, err
	}
	var exception mongo.BulkWriteException
	if errors.As(err, &exception) && exception.WriteConcernError != nil {
		return false, mongo.BulkWriteException{WriteConcernError: exception.WriteConcernError, Labels: exception.Labels}
	}
	return true, nil
}

// neverSent reports whether an error proves that nothing left. A server's refusal is no such proof: the driver may have
// repeated the command by itself, and the refusal be the answer to the repetition only.
func neverSent(err error) bool {
	class := outcome.Command(err)
	return class.Refused && class.Code == 0
}

// Create writes the record of a new batch. It returns ErrExists if there is one of another attempt.
func (j *Journal) Create(ctx context.Context, record Record) error {
	return j.repeat(ctx, func(ctx context.Context) error {
		if known, err := duplicate(outcome.SendOne(ctx, j.heads, record)); !known {
			return err
		}
		// It may be our own, from a sending whose answer was lost.
		have, found, err := j.get(ctx, record.ID)
		switch {
		case err != nil:
			return err
		case found && have.Attempt == record.Attempt:
			return nil
		}
		return ErrExists
	})
}

// Get reads a record.
func (j *Journal) Get(ctx context.Context, id string) (record Record, found bool, err error) {
	err = j.repeat(ctx, func(ctx context.Context) (err error) {
		record, found, err = j.get(ctx, id)
		return err
	})
	return record, found, err
}

func (j *Journal) get(ctx context.Context, id string) (record Record, found bool, err error) {
	raw, err := j.heads.FindOne(ctx, byID(id)).Raw()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return Record{}, false, nil
	case err != nil:
		return Record{}, false, err
	}
	record, err = Decode(raw)
	return record, err == nil, err
}

// Decode reads a head; the error is ErrDamaged if it is not one.
func Decode(raw bson.Raw) (Record, error) {
	var record Record
	if err := bson.Unmarshal(raw, &record); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return record, nil
}

func byID(id string) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}
}

// unchanged selects a record as long as nobody has changed its state. The attempt is part of it because a key can be used
// again after an abort, and the record of the new attempt counts its versions from 1 too.
func unchanged(from Record) bson.D {
	return append(byID(from.ID), bson.E{Key: "attempt", Value: from.Attempt}, bson.E{Key: "version", Value: from.Version})
}

// Change is one compare-and-set: from is the record as the writer knows it.
type Change struct {
	To    State
	Owner string
	// Beat also compares the beat: nobody may have shown life since from was read.
	Beat bool
	// Set holds further fields to set.
	Set bson.D
}

// Swap makes a change and returns the record as it is afterwards. It returns ErrLost, and changes nothing, if the record
// is not in from's state and version any more. After a lost answer it looks whether its own write arrived. If that cannot
// be told, the error is ErrUnclear; any other error says that nothing was changed.
func (j *Journal) Swap(ctx context.Context, from Record, change Change) (Record, error) {
	filter := append(unchanged(from), bson.E{Key: "state", Value: string(from.State)})
	if change.Beat {
		filter = append(filter, bson.E{Key: "beat", Value: from.Beat})
	}
	set := append(bson.D{{Key: "state", Value: string(change.To)}, {Key: "owner", Value: change.Owner}}, change.Set...)
	if change.To.Final() {
		set = append(set, bson.E{Key: "finished", Value: time.Now()})
	}
	update := bson.D{{Key: "$set", Value: set}, {Key: "$inc", Value: bson.D{{Key: "version", Value: int64(1)}}}}
	var now Record
	unclear := false // a sending may have arrived, or may still arrive
	err := j.repeat(ctx, func(ctx context.Context) error {
		result, err := j.heads.UpdateOne(ctx, filter, update)
		if err != nil {
			unclear = unclear || !neverSent(err)
			return err
		}
		now = from
		now.State, now.Owner, now.Version = change.To, change.Owner, from.Version+1
		if result.MatchedCount == 1 {
			return nil
		}
		have, found, err := j.get(ctx, from.ID)
		switch {
		case err != nil:
			return err
		case found && have.State == now.State && have.Owner == now.Owner && have.Version == now.Version && have.Attempt == from.Attempt:
			return nil
		case unclear && (!found || have.Attempt != from.Attempt):
			// It may have been changed, and then removed as finished.
			return fmt.Errorf("%w: it is gone", ErrUnclear)
		case !found:
			return fmt.Errorf("%w: it is gone", ErrLost)
		}
		return fmt.Errorf("%w: it is %s now, by %s", ErrLost, have.State, have.Owner)
	})
	if err != nil && unclear && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnclear) {
		err = fmt.Errorf("%w: %w", ErrUnclear, err)
	}
	return now, err
}

// beat counts the record's beat up. It returns ErrLost if the version is another one.
func (j *Journal) beat(ctx context.Context, from Record) error {
	filter := append(unchanged(from), bson.E{Key: "owner", Value: from.Owner})
	// A connection that hangs must not use up the lease, for others may work; nor must a slow server be given up.
	limit := min(j.limits.Command, max(from.Lease()/beatSendings, minBeat))
	return j.repeatWithin(ctx, limit, func(ctx context.Context) error {
		result, err := j.heads.UpdateOne(ctx, filter, bson.D{{Key: "$inc", Value: bson.D{{Key: "beat", Value: int64(1)}}}})
		if err == nil && result.MatchedCount == 0 {
			return ErrLost
		}
		return err
	})
}

// Note sets fields of a record that do not decide anything. It returns ErrLost if the record is not as from says.
func (j *Journal) Note(ctx context.Context, from Record, set bson.D) error {
	filter := unchanged(from)
	return j.repeat(ctx, func(ctx context.Context) error {
		result, err := j.heads.UpdateOne(ctx, filter, bson.D{{Key: "$set", Value: set}})
		if err == nil && result.MatchedCount == 0 {
			return ErrLost
		}
		return err
	})
}

// All reads the heads, in the order of their ids. They are raw so that one that cannot be decoded does not hide the
// others; so are those of Unfinished and Overdue.
func (j *Journal) All(ctx context.Context) ([]bson.Raw, error) {
	return j.find(ctx, bson.D{}, 0)
}

// Unfinished reads the heads that wait for their owner or for a recovery: all of them, or the one with an id.
func (j *Journal) Unfinished(ctx context.Context, id string) ([]bson.Raw, error) {
	filter := bson.D{{Key: "state", Value: bson.D{{Key: "$nin", Value: final[:]}}}}
	if id != "" {
		filter = append(filter, byID(id)...)
	}
	return j.find(ctx, filter, 0)
}

// maxOverdue bounds what is read of finished records at a time.
const maxOverdue = 10_000

// Overdue reads heads that are to be removed because they were finished before a time; the one with an id, if it is one
// of them, or at most 10,000. Forgotten records are none of them, nor are those of a newer format.
func (j *Journal) Overdue(ctx context.Context, id string, before time.Time) ([]bson.Raw, error) {
	filter := bson.D{
		{Key: "state", Value: bson.D{{Key: "$in", Value: bson.A{Committed, Aborted}}}},
		{Key: "finished", Value: bson.D{{Key: "$lt", Value: before}}},
		{Key: "format", Value: bson.D{{Key: "$lte", Value: int32(Format)}}},
	}
	if id != "" {
		filter = append(filter, byID(id)...)
	}
	return j.find(ctx, filter, maxOverdue)
}

func (j *Journal) find(ctx context.Context, filter bson.D, limit int64) (heads []bson.Raw, err error) {
	err = j.repeat(ctx, func(ctx context.Context) error {
		cursor, err := j.heads.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(limit))
		if err != nil {
			return err
		}
		heads = nil
		return cursor.All(ctx, &heads)
	})
	return heads, err
}

// Remove deletes a finished record and its pages, the pages first, so that no page is ever left without its record.
func (j *Journal) Remove(ctx context.Context, record Record) error {
	if !record.State.Final() {
		return fmt.Errorf("record %q is %s; only finished records are removed", record.ID, record.State)
	}
	return j.repeat(ctx, func(ctx context.Context) error {
		if _, err := j.pages.DeleteMany(ctx, pagesOf(record.Attempt, "")); err != nil {
			return err
		}
		_, err := j.heads.DeleteOne(ctx, unchanged(record))
		return err
	})
}
