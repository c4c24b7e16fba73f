package idgen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Striped spreads a sequence over several counter documents, for one so hot that a single document cannot keep up: every
// increment of one document waits for those before it. Try a [Buffered] or larger blocks first, which cost nothing.
//
// The i-th of k stripes gives out every k-th number from the i-th on: of three, the first has 1, 4, 7, …, the second
// 2, 5, 8, …, the third 3, 6, 9, …. A call takes its numbers from one stripe, chosen at random. So no number comes twice,
// each stripe's numbers increase, and between stripes there is no order at all. At any time some numbers below the highest
// are still to come.
//
// The stripes are documents {_id: {key: "eventNo", stripe: 0}, seq: 4}. Beside them stands one that records their number,
// the first number and the step, and every Striped compares its settings with it once: two programs that divide one
// sequence in different ways would give out the same numbers. It is a [Reason] Misused if they differ; to change them, use
// a new key and raise it.
//
// What is said of [Counter] about repetitions, sessions, concerns and stored values holds here. Make one with
// [NewStriped]; it may be used by any number of goroutines at once.
type Striped struct {
	config  StripedConfig
	start   int64
	key     part
	scope   part
	index   *uniqueIndex
	stripes []*tally
	checked *atomic.Bool // the recorded layout is known to be this one
	refused error
	invalid error
}

// StripedConfig holds the settings of a [Striped]. The zero value is ready to use: 1, 2, 3, … over eight documents.
type StripedConfig struct {
	// Stripes is the number of counter documents. Defaults to 8.
	Stripes int
	// Start is the lowest number. Defaults to 1.
	Start int64
	// FromZero makes 0 the lowest number; Start is then left at 0. Defaults to false.
	FromZero bool
	// Step is the distance between numbers of the whole sequence. Defaults to 1.
	Step int64
	// Max is the largest number that may be given out. Defaults to the largest int64.
	Max int64
	// Retry limits repetitions. Its zero value has the defaults.
	Retry Retry
}

// layoutStripe is the last part of the _id of the document that records how the sequence is divided.
const layoutStripe = "layout"

// NewStriped returns the sequence of the given key in coll. At most one config is used. Nothing is sent; settings that
// make no sense are reported by every later call.
func NewStriped(coll *mongo.Collection, key any, config ...StripedConfig) *Striped {
	s := new(Striped)
	s.config, s.refused = only(config)
	if s.config.Stripes == 0 {
		s.config.Stripes = 8
	}
	if s.refused == nil {
		s.key, s.refused = newPart("key", key)
	}
	if s.refused == nil {
		s.index, s.refused = newKeyIndex(coll, Fields{})
	}
	if s.refused == nil && (s.config.Stripes < 1 || s.config.Stripes > 10_000) {
		s.refused = misused(s.name(), "Stripes is %d; it must be from 1 to 10,000", s.config.Stripes)
	}
	if s.refused == nil {
		s.start, s.refused = firstNumber(s.name(), s.config.Start, s.config.FromZero, &s.config.Step, &s.config.Max)
	}
	s.build()
	return s
}

// Scope returns the sequence of the same key for one value of any BSON type, such as a tenant. Every scope counts for
// itself and has stripes of its own. It sends nothing. Keep what it returns: the division is compared once for each.
func (s *Striped) Scope(value any) *Striped {
	scoped := *s
	if scoped.refused == nil && s.scope.role != "" {
		scoped.refused = misused(s.name(), "a scope within a scope; use one document as the scope")
	}
	if scoped.refused == nil {
		scoped.scope, scoped.refused = newPart("scope", value)
	}
	scoped.build()
	return &scoped
}

// Next gives out one number.
func (s *Striped) Next(ctx context.Context) (int64, error) {
	block, err := s.Take(ctx, 1)
	return block.First, err
}

// Take gives out n numbers of one stripe in one round trip; the distance between them is the number of stripes times the
// step. When a stripe has too few left up to the maximum, it tries the others.
func (s *Striped) Take(ctx context.Context, n int) (Block, error) {
	if s.invalid != nil {
		return Block{}, s.invalid
	}
	if n < 1 {
		return Block{}, misused(s.name(), "%d numbers asked for; at least 1 is possible", n)
	}
	if err := s.check(ctx); err != nil {
		return Block{}, err
	}
	first := rand.IntN(len(s.stripes))
	for i := 0; ; i++ {
		stripe := s.stripes[(first+i)%len(s.stripes)]
		block, err := stripe.take(ctx, n)
		var own *Error
		if errors.As(err, &own) && own.Reason == Exhausted && i < len(s.stripes)-1 {
			continue
		}
		if err != nil {
			return Block{}, err
		}
		if aligned, ok := stripe.align(block.First); !ok || aligned != block.First {
			return Block{}, &Error{
				Reason: Unreadable, Sequence: stripe.name,
				Problem: fmt.Sprintf("it holds %d, which is not a number of this stripe", block.First-stripe.step),
				Repair:  "raise the sequence above all numbers in use with RaiseTo",
			}
		}
		return block, nil
	}
}

// Reserve is Take for package batch: the numbers as int64 values, in order. Fewer than one is an error.
func (s *Striped) Reserve(ctx context.Context, n int) ([]any, error) {
	block, err := s.Take(ctx, n)
	if err != nil {
		return nil, err
	}
	return block.values(), nil
}

// RaiseTo makes sure that all further numbers are above value, one stripe after the other: calls that run meanwhile may
// still get lower ones. After an error some stripes are raised. It never lowers one.
func (s *Striped) RaiseTo(ctx context.Context, value int64) error {
	if s.invalid != nil {
		return s.invalid
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	for _, stripe := range s.stripes {
		if err := stripe.raise(ctx, value); err != nil {
			return err
		}
	}
	return nil
}

// RaiseToMax raises the sequence to the highest number in field of coll's documents. See [Counter.RaiseToMax].
func (s *Striped) RaiseToMax(ctx context.Context, coll *mongo.Collection, field string, where bson.D) error {
	if s.invalid != nil {
		return s.invalid
	}
	highest, found, err := highestIn(ctx, s.config.Retry, coll, field, where)
	if err != nil || !found {
		return err
	}
	return s.RaiseTo(ctx, highest)
}

// check records how the sequence is divided, or compares with what is recorded.
func (s *Striped) check(ctx context.Context) error {
	if s.checked.Load() {
		return nil
	}
	stripe, _ := newPart("stripe", layoutStripe)
	filter, err := identity(s.name(), Fields{}, s.key, s.scope, stripe)
	if err != nil {
		return err
	}
	layout := bson.D{
		{Key: "stripes", Value: int64(len(s.stripes))},
		{Key: "start", Value: s.start},
		{Key: "step", Value: s.config.Step},
	}
	err = s.config.Retry.withDefaults().do(ctx, s.name(), func(ctx context.Context) error {
		recorded, err := s.index.coll.FindOneAndUpdate(ctx, filter, bson.D{{Key: "$setOnInsert", Value: layout}},
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Raw()
		if _, isDuplicate := duplicate(err); isDuplicate {
			return raced{err}
		}
		if err != nil {
			return err
		}
		for _, e := range layout {
			value, _ := lookup(recorded, e.Key)
			if n, _, ok := whole(value); !ok || n != e.Value.(int64) {
				return &Error{
					Reason: Misused, Sequence: s.name(),
					Problem: fmt.Sprintf("the sequence was begun with other settings: %s is %s, not %d", e.Key, bounded(value.String(), 40), e.Value),
					Repair:  "use those, or begin one with a new key and raise it above all numbers in use",
				}
			}
		}
		return nil
	})
	if err == nil {
		s.checked.Store(true)
	}
	return err
}

// build prepares the stripes, or says what is wrong.
func (s *Striped) build() {
	s.stripes, s.checked, s.invalid = nil, new(atomic.Bool), s.refused
	if s.invalid != nil {
		return
	}
	if s.key.role == "" && s.scope.role == "" {
		s.invalid = misused(s.name(), "neither a key nor a scope tells this sequence from others")
		return
	}
	s.stripes = make([]*tally, s.config.Stripes)
	for i := range s.stripes {
		if s.stripes[i], s.invalid = s.stripe(i); s.invalid != nil {
			return
		}
	}
}

func (s *Striped) stripe(i int) (*tally, error) {
	step, ok := product(s.config.Step, int64(len(s.stripes)))
	if !ok || s.start > s.config.Max-step {
		return nil, misused(s.name(), "%d stripes in steps of %d do not fit below the maximum %d", len(s.stripes), s.config.Step, s.config.Max)
	}
	last, err := newPart("stripe", int32(i))
	if err != nil {
		return nil, err
	}
	name := sequenceName(s.index.coll, s.key, s.scope, last)
	filter, err := identity(name, Fields{}, s.key, s.scope, last)
	if err != nil {
		return nil, err
	}
	first := s.start + int64(i)*s.config.Step
	return newTally(s.index, filter, name, CounterConfig{
		Start: first, FromZero: first == 0, Step: step, Max: s.config.Max, Retry: s.config.Retry,
	})
}

func (s *Striped) name() string { return sequenceName(s.index.coll, s.key, s.scope) }
