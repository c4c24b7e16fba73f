// Package idgen numbers documents in MongoDB: invoices, orders, customers, whatever people call by a number. A number is
// given out once, to one caller in one process, whatever happens to answers, connections and primaries.
//
//	number := idgen.NewCounter(db.Collection("counters"), "orderNo")
//	n, err := number.Next(ctx)             // one number
//	block, err := number.Take(ctx, 1000)   // a thousand in one round trip
//
// # Which one
//
// Take a [Counter] unless you know why not. A number that people read is better printed by a [Format] than stored as text.
//
//	                Counter         Buffered        Striped         Periodic        Optimistic
//	for             most uses       one at a time,  one document    dates in the    data without a
//	                                very often      is too hot      number          counter
//	unique across   yes             yes             yes             yes, for ever   when stored: the
//	processes                                                                       index decides
//	ordered         by time, over   within one      within a        within a        by time
//	                all processes   Buffered        stripe          period
//	gaps            lost answers,   the same        the same, and   as Counter      deleted docu-
//	                failed batches                  till all catch                  ments, failed
//	                                                up                              batches
//	gaps after      what was taken  < 2 blocks of   what was taken  what was taken  within the batch
//	a crash         and not used    each process    and not used    and not used    under way
//	round trips     1,000 by Next,  1 (blocks of    1,000 by Next,  1,000 by Next,  2,000; 1 read a
//	per 1,000       1 by one Take   1,000)          1 by one Take   1 by one Take   batch, and more
//	                                                                for clashes
//	concurrent use  yes; calls      yes; mostly in  yes; calls      yes; as         yes, but writers
//	                queue at one    memory          spread over k   Counter         clash, the more
//	                document                        documents                       the slower
//	at the end      error, counter  the same        the same, once  error until     error
//	                unchanged                       all are full    the next period
//	used again      never           never           never           never           if the highest
//	                                                                                is deleted
//
// Buffered's bound holds per answer that comes: each answer that is lost costs a further block. A document's number in a
// batch that was rolled back is a gap like any other; nothing ever decrements, because the next number may be in somebody's
// hands already.
//
// # Adopting what is there
//
// Every kind goes on from data that other programs wrote, and beside programs that still write it. [Fields] names the fields
// of a counters collection of any usual shape. CounterConfig.MustExist refuses to start what should be there. Scope makes
// a sequence for each tenant, parent document or other value. RaiseTo and RaiseToMax catch up with data that is ahead. Integers
// of 32 and 64 bits and whole doubles below 2^53 are understood, anything else is reported and left alone.
//
// # Many clients
//
// A counter is one document, and a server carries out its writes one after the other: with a millisecond for each, all
// clients together get a thousand numbers a second by Next, whether they are 4 or 256. What helps is to write less often:
// a batch takes all its numbers in one write, Take and Buffered take blocks. Where numbers must be taken singly, Striped
// spreads the writes over k documents. docs/measured.md in the repository has a model of this with 1 to 256 clients.
//
// # In a batch
//
// Every kind has a method Reserve as package batch wants it. An [Optimistic] also tells a batch which refused documents
// have only lost their number, so that these alone are numbered again.
//
// # What the server must do
//
// Only find, findAndModify, update, delete and listIndexes are used, with $inc, $set, $setOnInsert and $max: no
// transactions, no update pipelines. findAndModify must be atomic. It is not in FerretDB 1.24 as it comes (two clients can
// get the same number); behind this project's embedded server, which lets one write through at a time, it is.
//
// # Errors
//
// Methods return an [Error] whose [Reason] says what to think of it; no number was given out then. Exceptions are [ErrClosed],
// and what the caller's own function returns in [Optimistic.Insert].
package idgen

import (
	"context"
	"errors"
	"iter"
	"strings"
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

// Block is a run of numbers that belong to the caller alone: First, First+Step, and so on, Count of them.
// It is a value: it needs no closing, and numbers that are not used are a gap.
type Block struct {
	First, Step int64
	Count       int
}

// At returns the i-th number, counted from 0. It panics when i is not less than Count.
func (b Block) At(i int) int64 {
	if i < 0 || i >= b.Count {
		panic("idgen: index out of the block's range")
	}
	return b.First + int64(i)*b.Step
}

// All iterates over the numbers in order.
func (b Block) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for i := range b.Count {
			if !yield(b.At(i)) {
				return
			}
		}
	}
}

// values returns the numbers as package batch takes them.
func (b Block) values() []any {
	values := make([]any, b.Count)
	for i := range values {
		values[i] = b.At(i)
	}
	return values
}

// Fields names the fields of counter documents, so that a collection that exists already can be adopted.
//
// A counter document is told apart by up to three things: the sequence's key, the scope (see [Counter.Scope]) and, for
// [Periodic], the period. As long as Key, Scope and Period are empty, they make up the _id: the key alone is the _id
// itself, and more than one make an embedded document
//
//	{_id: {key: "invoiceNo", scope: "tenant-7", period: 260131}, seq: 17}
//
// Where one of the three is given a field name, all that the sequence uses must be, and a unique index on exactly these
// fields must exist. It is looked for once; without it two clients that use a counter first would create two.
type Fields struct {
	// Key is the field of the sequence's key. Defaults to "_id".
	Key string
	// Scope is the field of the scope. Defaults to a part of the _id.
	Scope string
	// Period is the field of the period. Defaults to a part of the _id.
	Period string
	// Value is the field of the number that was given out last. It may be nested: "counters.invoice". Defaults to
	// "seq".
	Value string
}

// Retry limits how a command is repeated when the server is busy, between two primaries, or does not answer. Waiting
// between two attempts grows from up to 100 ms to up to 10 s, with jitter, and is never less than the server asks for.
type Retry struct {
	// Attempts is the most times that a command is sent. Defaults to 8.
	Attempts int
	// Timeout is how long one attempt may take. The caller's context still bounds the whole. Defaults to 30 s.
	Timeout time.Duration
}

func (r Retry) withDefaults() Retry {
	if r.Attempts <= 0 {
		r.Attempts = 8
	}
	if r.Timeout <= 0 {
		r.Timeout = 30 * time.Second
	}
	return r
}

// raced is the error of an attempt that found the database in a state that somebody else's work, or its own, has just
// changed: the next attempt finds it right.
type raced struct{ error }

// do sends until an attempt succeeds, an *Error says why none will, or the attempts are used up. A lost answer is
// nothing special: what send does is either repeatable or, for an increment, costs a gap.
func (r Retry) do(ctx context.Context, sequence string, send func(context.Context) error) error {
	// A transaction that aborts would give the number back although it is in somebody's hands. Counters therefore
	// never join the session of the caller's context. (The driver takes a nil session for none.)
	ctx = mongo.NewSessionContext(ctx, nil)
	delays := retry.Backoff{}.Start()
	for attempt := 1; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return &Error{Reason: Unavailable, Sequence: sequence, Problem: "the context ended before an answer", Err: err}
		}
		err := r.once(ctx, send)
		if own := (*Error)(nil); err == nil || errors.As(err, &own) {
			return err
		}
		if ended := ctx.Err(); ended != nil {
			return &Error{Reason: Unavailable, Sequence: sequence, Problem: "the context ended before an answer", Err: errors.Join(ended, err)}
		}
		race, isRace := err.(raced)
		if isRace {
			err = race.error
		}
		class := outcome.Command(err)
		if class.Kind == outcome.Permanent && !isRace {
			return &Error{Reason: Unavailable, Sequence: sequence, Problem: "the server refused", Err: err}
		}
		if attempt >= r.Attempts {
			return &Error{Reason: Unavailable, Sequence: sequence, Problem: "no usable answer after " + times(attempt), Err: err}
		}
		if isRace && attempt == 1 {
			continue // somebody was first by a hair: nothing to wait for
		}
		if err := retry.Sleep(ctx, delays.Next(class.After)); err != nil {
			continue // the loop's head words it
		}
	}
}

func (r Retry) once(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	return send(ctx)
}

// own returns a handle whose behaviour does not depend on how the caller's was made. Writes are acknowledged by a
// majority and journaled: a number that a failover or a crash takes back would be given out twice.
func own(coll *mongo.Collection, concern *readconcern.ReadConcern) *mongo.Collection {
	majority := writeconcern.Majority()
	journal := true
	majority.Journal = &journal
	return coll.Clone(options.Collection().
		SetWriteConcern(majority).
		SetReadConcern(concern).
		SetReadPreference(readpref.Primary()).
		SetRegistry(bson.NewRegistry()).
		SetBSONOptions(&options.BSONOptions{}))
}

// duplicate returns what a duplicate-key error says, wherever the server put it: findAndModify reports it as an error
// of the command, other commands as a write error.
func duplicate(err error) (refused mongo.WriteError, ok bool) {
	var command mongo.CommandError
	var exception mongo.WriteException
	var bulk mongo.BulkWriteException
	switch {
	case errors.As(err, &command):
		refused = mongo.WriteError{Code: int(command.Code), Message: command.Message, Raw: command.Raw}
	case errors.As(err, &exception) && len(exception.WriteErrors) == 1:
		refused = exception.WriteErrors[0]
	case errors.As(err, &bulk) && len(bulk.WriteErrors) == 1:
		refused = bulk.WriteErrors[0].WriteError
	}
	_, ok = outcome.DuplicateKey(refused.Code, refused.Message, refused.Raw)
	return refused, ok
}

func namespace(coll *mongo.Collection) string {
	return coll.Database().Name() + "." + coll.Name()
}

// path splits a field name for bson.Raw.Lookup.
func path(field string) []string { return strings.Split(field, ".") }
