package idgen

import (
	"context"
	"errors"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// tally is one counter document. Its value field holds the number that was given out last.
//
// It uses nothing but find, findAndModify and update with $inc, $set and $max, which every server knows. Two choices
// need a reason:
//
// An increment carries a guard in its filter (an integer, not above the maximum), so that no server is ever asked to
// add to a text or past the end of the integers: what servers do then differs (MongoDB refuses, others have been seen
// to wrap). A guard that does not match an existing document makes the upsert collide with it, and the collision is
// looked into.
//
// A counter that does not start with its step (1000, 1001, …) cannot be created by an upserted increment, which starts
// from nothing. It is created holding the number before the first, and then incremented.
type tally struct {
	coll      *mongo.Collection
	filter    bson.D // selects this document by equality
	field     string // of the value
	index     *uniqueIndex
	base      int64 // the value before the first number
	step, max int64
	mustExist bool
	retry     Retry
	name      string // for messages
}

// take gives out n numbers.
func (t *tally) take(ctx context.Context, n int) (Block, error) {
	if n < 1 {
		return Block{}, misused(t.name, "%d numbers asked for; at least 1 is possible", n)
	}
	d, ok := product(int64(n), t.step)
	if !ok {
		return Block{}, t.exhausted(n, nil)
	}
	var last int64
	err := t.retry.do(ctx, t.name, func(ctx context.Context) (err error) {
		if err := t.index.check(ctx, t.name); err != nil {
			return err
		}
		last, err = t.increment(ctx, d)
		if notLet(err) {
			return t.explain(ctx, n, d, err)
		}
		return err
	})
	if err != nil {
		return Block{}, err
	}
	return Block{First: last - d + t.step, Step: t.step, Count: n}, nil
}

// notLet reports whether an increment failed because of what the counter holds: the upsert collided with it, or nothing
// matched where there is no upsert. The guard is deceived by an array that holds an integer; the update is then refused
// as TypeMismatch or PathNotViable.
func notLet(err error) bool {
	var command mongo.CommandError
	_, isDuplicate := duplicate(err)
	return isDuplicate || errors.Is(err, mongo.ErrNoDocuments) ||
		errors.As(err, &command) && (command.Code == 14 || command.Code == 28)
}

// increment adds d and returns the new value. See notLet for its errors.
//
// int64 throughout: adding an int32 to an int32 wraps on FerretDB 1.24.
func (t *tally) increment(ctx context.Context, d int64) (int64, error) {
	guarded := append(t.filter[:len(t.filter):len(t.filter)],
		// Two conditions side by side, not {$type, $lte}: FerretDB 1.24 takes a document of two operators for a
		// value and stores it on upsert.
		bson.E{Key: "$and", Value: bson.A{
			bson.D{{Key: t.field, Value: bson.D{{Key: "$type", Value: bson.A{"int", "long"}}}}},
			bson.D{{Key: t.field, Value: bson.D{{Key: "$lte", Value: t.max - d}}}},
		}})
	upsert := !t.mustExist && t.base == 0 && d <= t.max
	return t.findAndModify(ctx, guarded, bson.D{{Key: "$inc", Value: bson.D{{Key: t.field, Value: d}}}}, upsert)
}

// findAndModify returns the value after the update. A reply that carries a writeConcernError is an error (the driver
// drops the document then): the value may be taken back by a failover, so nobody may have it.
// No projection: FerretDB 1.24 refuses one here.
func (t *tally) findAndModify(ctx context.Context, filter, update bson.D, upsert bool) (int64, error) {
	reply, err := t.coll.FindOneAndUpdate(ctx, filter, update,
		options.FindOneAndUpdate().SetReturnDocument(options.After).SetUpsert(upsert)).Raw()
	if err != nil {
		return 0, err
	}
	value, _ := lookup(reply, t.field)
	n, what, ok := whole(value)
	if !ok {
		return 0, t.unreadable(what)
	}
	return n, nil
}

// explain finds out why an increment by d was not let through. It returns a raced error when the next attempt has a
// chance.
func (t *tally) explain(ctx context.Context, n int, d int64, cause error) error {
	// Not the whole path: a projection leaves out what stands in its way.
	projection := bson.D{{Key: path(t.field)[0], Value: 1}}
	document, err := t.coll.FindOne(ctx, t.filter, options.FindOne().SetProjection(projection)).Raw()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments) && t.mustExist:
		return t.missing()
	case errors.Is(err, mongo.ErrNoDocuments):
		return t.begin(ctx, cause)
	case err != nil:
		return err
	}
	value, blocked := lookup(document, t.field)
	if value.IsZero() {
		return t.begin(ctx, cause)
	}
	last, what, ok := whole(value)
	switch {
	case !ok || blocked:
		return t.unreadable(what)
	case last > t.max-d:
		return t.exhausted(n, &last)
	case value.Type == bson.TypeDouble:
		return t.convert(ctx, last, cause)
	}
	return raced{cause}
}

// begin writes the number before the first into a counter that has none, creating the document if need be. Whoever
// comes second finds the field there, tries to insert, and is refused by the unique index.
func (t *tally) begin(ctx context.Context, cause error) error {
	absent := append(t.filter[:len(t.filter):len(t.filter)], bson.E{Key: t.field, Value: bson.D{{Key: "$exists", Value: false}}})
	_, err := t.coll.UpdateOne(ctx, absent,
		bson.D{{Key: "$set", Value: bson.D{{Key: t.field, Value: t.base}}}},
		options.UpdateOne().SetUpsert(!t.mustExist))
	if _, isDuplicate := duplicate(err); err == nil || isDuplicate {
		return raced{cause}
	}
	return err
}

// convert makes an integer of a whole double, which legacy shells store: doubles cannot count beyond 2^53. It is a
// compare-and-set.
func (t *tally) convert(ctx context.Context, value int64, cause error) error {
	same := append(t.filter[:len(t.filter):len(t.filter)], bson.E{Key: t.field, Value: float64(value)})
	_, err := t.coll.UpdateOne(ctx, same, bson.D{{Key: "$set", Value: bson.D{{Key: t.field, Value: value}}}})
	if err != nil {
		return err
	}
	return raced{cause}
}

// raise makes sure that the next number is above value, and never lowers the counter.
func (t *tally) raise(ctx context.Context, value int64) error {
	value, ok := t.align(value)
	if !ok || value > t.max {
		return &Error{
			Reason: Exhausted, Sequence: t.name,
			Problem: fmt.Sprintf("the counter cannot be raised above its maximum %d", t.max),
		}
	}
	return t.retry.do(ctx, t.name, func(ctx context.Context) error {
		if err := t.index.check(ctx, t.name); err != nil {
			return err
		}
		_, err := t.findAndModify(ctx, t.filter, bson.D{{Key: "$max", Value: bson.D{{Key: t.field, Value: value}}}}, !t.mustExist)
		if _, isDuplicate := duplicate(err); isDuplicate {
			return raced{err}
		}
		if errors.Is(err, mongo.ErrNoDocuments) && t.mustExist {
			return t.missing()
		}
		return err
	})
}

// align returns the lowest number of the sequence (or the one before its first) that is not below value, so that a
// raised sequence of steps keeps to its own numbers.
func (t *tally) align(value int64) (int64, bool) {
	if value <= t.base {
		return t.base, true
	}
	// The difference may not fit an int64, but always fits a uint64.
	rest := (uint64(value) - uint64(t.base)) % uint64(t.step)
	if rest == 0 {
		return value, true
	}
	missing := t.step - int64(rest)
	return value + missing, value <= math.MaxInt64-missing
}

func (t *tally) exhausted(n int, last *int64) error {
	e := &Error{Reason: Exhausted, Sequence: t.name}
	if last == nil {
		e.Problem = fmt.Sprintf("%d numbers in steps of %d are more than there are", n, t.step)
		return e
	}
	e.Problem = fmt.Sprintf("the last number given out is %d, and %d more in steps of %d would pass the maximum %d", *last, n, t.step, t.max)
	return e
}

func (t *tally) unreadable(what string) error {
	set := bson.D{{Key: "$set", Value: bson.D{{Key: t.field, Value: placeholder}}}}
	return &Error{
		Reason: Unreadable, Sequence: t.name,
		Problem: fmt.Sprintf("field %q holds %s, not a whole number", t.field, what),
		Repair: fmt.Sprintf("set it to the last number in use: db.getCollection(%q).updateOne(%s, %s)",
			t.coll.Name(), literal(t.filter), literal(set)),
	}
}

func (t *tally) missing() error {
	document := append(t.filter[:len(t.filter):len(t.filter)], bson.E{Key: t.field, Value: t.base})
	return &Error{
		Reason: Missing, Sequence: t.name,
		Problem: "the counter does not exist",
		Repair: fmt.Sprintf("create it, holding the number before the first: db.getCollection(%q).insertOne(%s)",
			t.coll.Name(), literal(nested(document))),
	}
}
