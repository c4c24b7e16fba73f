package idgen

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/internal/retry"
)

// Optimistic numbers documents without a counter: the next number is the highest in the collection plus the step, and
// the unique index on the field decides who gets it when several writers try the same. Who loses tries the next one.
//
// What it proposes is not given out until the document with the number is stored. Use [Optimistic.Insert], or hand it to
// package batch, which sends those documents again that clashed, with new numbers; do not use numbers from Reserve
// without either.
//
// There are no gaps except where documents were deleted or a batch was not stored as a whole, and the number of the highest
// document is used again once it is deleted. Where that matters, or where many write at once, use a [Counter].
//
// It is not for use inside a server transaction: a clash aborts that, and the highest number is read outside of it.
//
// The unique index must exist, and must cover every document: [Error] with reason [NoIndex] says how to create it. It is
// looked for until it is found, once per Optimistic; dropping it afterwards goes unnoticed. A sparse one is accepted, but
// servers do not use it to find the highest number.
//
// The highest number is read from the primary with a read concern of its own, whatever the handle says: a secondary may
// lag behind. A text, fraction or decimal in the field is an error with reason [Unreadable], because text sorts above
// numbers and "9999" above "10000".
//
// Make one with [NewOptimistic]; it may be used by any number of goroutines at once.
type Optimistic struct {
	coll    *mongo.Collection
	field   string
	scope   bson.D
	step    int64
	start   int64
	max     int64
	tries   int
	retry   Retry
	index   *uniqueIndex
	name    string
	refused error
	invalid error
}

// OptimisticConfig holds the settings of an [Optimistic]. The zero value is ready to use.
type OptimisticConfig struct {
	// Start is the first number where there is none yet. Defaults to 1.
	Start int64
	// FromZero makes 0 the first number; Start is then left at 0. Defaults to false.
	FromZero bool
	// Step is the distance from the highest number to the next. Defaults to 1.
	Step int64
	// Max is the largest number that may be proposed. Defaults to the largest int64.
	Max int64
	// Attempts is how often a document is tried with ever new numbers before the clashes are an [Error] with
	// reason [Clashing]. Waiting between them grows from up to 2 ms to up to 1 s, with jitter. Defaults to 50.
	Attempts int
	// Retry limits the repetitions of a read that fails.
	Retry Retry
}

// NewOptimistic returns the sequence of the numbers in field of coll's documents. The field may be nested or the _id. At
// most one config is used. Nothing is sent; settings that make no sense are reported by every later call.
func NewOptimistic(coll *mongo.Collection, field string, config ...OptimisticConfig) *Optimistic {
	c, err := only(config)
	o := &Optimistic{field: field, step: c.Step, max: c.Max, tries: c.Attempts, retry: c.Retry.withDefaults(), refused: err}
	if o.tries <= 0 {
		o.tries = 50
	}
	if o.refused == nil && coll == nil {
		o.refused = misused("", "the collection is nil")
	}
	if o.refused == nil {
		o.name = namespace(coll) + " " + field
		if err := checkField(field); err != nil {
			o.refused = misused(o.name, "%v", err)
		}
	}
	if o.refused == nil {
		o.coll = own(coll, readconcern.Local())
		o.start, o.refused = firstNumber(o.name, c.Start, c.FromZero, &o.step, &o.max)
	}
	o.index = &uniqueIndex{coll: o.coll, fields: []string{field}}
	o.invalid = o.refused
	return o
}

// Scope returns the sequence among the documents that have these values, for instance {tenant: "a"}: the maximum is
// taken among them, and the unique index must be on exactly these fields and the number's. It sends nothing. The values
// must have the BSON form that they have in the documents: they are encoded by the driver's default registry, so give what
// yours encodes otherwise as a bson.RawValue.
//
// Keep what it returns: the index is looked for once for each.
func (o *Optimistic) Scope(fields bson.D) *Optimistic {
	scoped := *o
	scoped.scope = nil
	scoped.index = &uniqueIndex{coll: o.coll, fields: []string{o.field}}
	if o.refused != nil {
		return &scoped
	}
	scoped.refused = func() error {
		if len(o.scope) > 0 {
			return misused(o.name, "a scope within a scope; name all fields in one")
		}
		if len(fields) == 0 {
			return misused(o.name, "the scope has no fields")
		}
		if o.field == "_id" {
			return misused(o.name, "the _id is unique by itself and has no scopes")
		}
		for _, e := range fields {
			if err := checkField(e.Key); err != nil {
				return misused(o.name, "%v", err)
			}
			for _, other := range scoped.index.fields {
				if other == e.Key {
					return misused(o.name, "field %q is used twice", e.Key)
				}
			}
			value, err := keyValue(e.Value)
			if err != nil {
				return misused(o.name, "the scope's %s %v", e.Key, err)
			}
			scoped.scope = append(scoped.scope, bson.E{Key: e.Key, Value: value})
			scoped.index.fields = append(scoped.index.fields, e.Key)
		}
		scoped.name = o.name + " of " + bounded(literal(scoped.scope), 120)
		return nil
	}()
	scoped.invalid = scoped.refused
	return &scoped
}

// Insert calls insert with one number after another until it stores a document with it, and returns that number. insert
// must store exactly one document, with the number in the field (and the scope's values in theirs), and return the
// driver's error, wrapped or not. It is called again only when the server refused the document because of the number;
// any other error is returned as it is (or wrapped, where the server names no index), and what is then true of the
// document is for insert to know. ctx is passed on with the caller's session, if it has one.
func (o *Optimistic) Insert(ctx context.Context, insert func(ctx context.Context, number int64) error) (int64, error) {
	for attempt := 1; ; attempt++ {
		block, err := o.propose(ctx, 1)
		if err != nil {
			return 0, err
		}
		err = insert(ctx, block.First)
		if err == nil {
			return block.First, nil
		}
		refused, isDuplicate := duplicate(err)
		if !isDuplicate {
			return 0, err
		}
		if !o.Clashed(ctx, refused, block.First) {
			if d, _ := outcome.DuplicateKey(refused.Code, refused.Message, refused.Raw); !d.Known {
				return 0, fmt.Errorf("idgen: %s: a duplicate key of an unknown index, not shown to be that of the number: %w", o.name, err)
			}
			return 0, err
		}
		if err := o.Again(ctx, attempt, 1); err != nil {
			return 0, err
		}
	}
}

// Reserve proposes n numbers in order, as int64 values: the highest plus the step, and so on. It costs one read; the
// next call proposes the same ones unless documents were stored meanwhile. Fewer than one is an error.
func (o *Optimistic) Reserve(ctx context.Context, n int) ([]any, error) {
	block, err := o.propose(ctx, n)
	if err != nil {
		return nil, err
	}
	return block.values(), nil
}

func (o *Optimistic) propose(ctx context.Context, n int) (Block, error) {
	if o.invalid != nil {
		return Block{}, o.invalid
	}
	if n < 1 {
		return Block{}, misused(o.name, "%d numbers asked for; at least 1 is possible", n)
	}
	err := o.retry.do(ctx, o.name, func(ctx context.Context) error { return o.index.check(ctx, o.name) })
	if err != nil {
		return Block{}, err
	}
	highest, found, err := highestIn(ctx, o.retry, o.coll, o.field, o.scope)
	if err != nil {
		return Block{}, err
	}
	first := o.start
	d, ok := product(int64(n-1), o.step)
	if found {
		ok = ok && highest <= o.max-o.step
		first = highest + o.step
	}
	if !ok || first > o.max-d {
		return Block{}, &Error{
			Reason: Exhausted, Sequence: o.name,
			Problem: fmt.Sprintf("the highest number is %d, and %d more in steps of %d would pass the maximum %d", highest, n, o.step, o.max),
		}
	}
	return Block{First: first, Step: o.step, Count: n}, nil
}

// Clashed reports whether the server refused a document because another one has taken its number meanwhile: the error is
// a duplicate key of the sequence's own unique index. Where the server does not name the index, Clashed looks whether a
// document with the number exists, on the primary; when that cannot be found out, it returns false, so that the refusal
// counts as final.
//
// Ask only about documents that are known not to be stored: one whose own earlier insert went through unnoticed would
// clash with itself.
func (o *Optimistic) Clashed(ctx context.Context, refused mongo.WriteError, number any) bool {
	duplicate, isDuplicate := outcome.DuplicateKey(refused.Code, refused.Message, refused.Raw)
	if !isDuplicate || o.invalid != nil {
		return false
	}
	if is, known := o.index.is(duplicate); known {
		return is
	}
	value, err := keyValue(number)
	if err != nil {
		return false
	}
	filter := append(o.scope[:len(o.scope):len(o.scope)], bson.E{Key: o.field, Value: value})
	taken := false
	err = o.retry.do(ctx, o.name, func(ctx context.Context) error {
		err := o.coll.FindOne(ctx, filter, options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Err()
		taken = err == nil
		if errors.Is(err, mongo.ErrNoDocuments) {
			return nil
		}
		return err
	})
	return err == nil && taken
}

// Again waits before another attempt, longer from one to the next and never the same as other writers. attempt counts
// those that were made, from 1; clashed is the number of documents that clashed in the last. When the attempts are used
// up it returns an [Error] with reason [Clashing] instead.
func (o *Optimistic) Again(ctx context.Context, attempt, clashed int) error {
	if attempt >= o.tries {
		return &Error{
			Reason: Clashing, Sequence: o.name,
			Problem: fmt.Sprintf("%d documents still without a number after %s: other writers took each of the numbers first", clashed, times(attempt)),
			Repair:  "let fewer write at once, or raise Attempts, or take the numbers from a Counter",
		}
	}
	delays := retry.Backoff{Initial: 2 * time.Millisecond, Max: time.Second}.Start()
	for range min(attempt-1, 9) { // 2 ms doubled nine times is above 1 s
		delays.Next(0)
	}
	if err := retry.Sleep(ctx, delays.Next(0)); err != nil {
		return &Error{Reason: Unavailable, Sequence: o.name, Problem: "the context ended between two attempts", Err: err}
	}
	return nil
}
