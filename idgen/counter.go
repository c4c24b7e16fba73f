package idgen

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Counter gives out numbers from a document in a counters collection that holds the last one:
//
//	{_id: "orderNo", seq: 41}
//
// One round trip gives out any count of numbers. Make one with [NewCounter]; it may be used by any number of goroutines
// at once, and any number of Counters, processes and other programs that increment the same field may share a document.
//
// A Counter never gives out a number twice. A lost answer, a failed batch, a crash leave a gap: it increments again,
// and nothing ever decrements. It joins no transaction or session of the caller's context, because an abort would give
// the number back while somebody holds it. It reads and writes at majority on the primary, whatever the collection's
// handle or the client are set to.
//
// A stored int32, int64 or whole double below 2^53 is understood, and becomes an int64 with the first use. Anything
// else (text, null, fractions, decimals) is an [Error] with reason [Unreadable] after one try, and is left as it is.
type Counter struct {
	config  CounterConfig
	key     part
	scope   part
	index   *uniqueIndex // shared with all scopes
	tally   *tally       // nil as long as something is wrong
	refused error        // what is wrong with the arguments of NewCounter, whatever the scope
	invalid error        // what is wrong in all; returned by every call before anything is sent
}

// CounterConfig holds the settings of a [Counter]. The zero value is ready to use: 1, 2, 3, …
type CounterConfig struct {
	// Start is the first number of a counter that does not exist yet, or has no value yet; an existing one goes on
	// from where it is. It is the int64 that BSON has: negative values are refused, which is also what a uint64
	// above the maximum of int64 turns into. Defaults to 1.
	Start int64
	// FromZero makes 0 the first number; Start is then left at 0. Defaults to false.
	FromZero bool
	// Step is the distance between numbers. Defaults to 1.
	Step int64
	// Max is the largest number that may be given out, for instance 9999 where four digits must do. Defaults to
	// the largest int64.
	Max int64
	// MustExist makes a missing counter an [Error] with reason [Missing] that says how to create it, where a
	// counter that starts by itself would hide a mistyped key. Defaults to false: it is created on first use.
	MustExist bool
	// Fields adopts a collection of another shape. Defaults to {_id: key, seq: number}.
	Fields Fields
	// Retry limits repetitions. Its zero value has the defaults.
	Retry Retry
}

// NewCounter returns the counter of the given key in coll: a string, a number, an ObjectID, a date, a document or any
// other value that stands for itself in a filter. A nil key is for collections that tell counters apart by the scope
// alone. It is encoded by the driver's default registry, as are scopes; what yours encodes otherwise, give as a
// bson.RawValue. At most one config is used.
//
// Nothing is sent. Settings that make no sense are reported by every later call, before it sends anything.
func NewCounter(coll *mongo.Collection, key any, config ...CounterConfig) *Counter {
	c := new(Counter)
	c.config, c.refused = only(config)
	if c.refused == nil {
		c.key, c.refused = newPart("key", key)
	}
	if c.refused == nil {
		c.index, c.refused = newKeyIndex(coll, c.config.Fields)
	}
	c.build()
	return c
}

// Scope returns the counter of the same key for one value of any BSON type: a tenant, a parent document, a year. Every
// scope counts for itself. It costs nothing to call each time, and sends nothing.
func (c *Counter) Scope(value any) *Counter {
	scoped := *c
	if scoped.refused == nil && c.scope.role != "" {
		scoped.refused = misused(c.name(), "a scope within a scope; use one document as the scope")
	}
	if scoped.refused == nil {
		scoped.scope, scoped.refused = newPart("scope", value)
	}
	scoped.build()
	return &scoped
}

// Next gives out one number.
func (c *Counter) Next(ctx context.Context) (int64, error) {
	block, err := c.Take(ctx, 1)
	return block.First, err
}

// Take gives out n consecutive numbers in one round trip. On the first use, and when another client interferes with it,
// it takes a few more.
//
// A cancelled context ends it; the numbers may then be used up without being given out.
func (c *Counter) Take(ctx context.Context, n int) (Block, error) {
	if c.invalid != nil {
		return Block{}, c.invalid
	}
	return c.tally.take(ctx, n)
}

// Reserve is Take for package batch: the numbers as int64 values, in order. Fewer than one is an error.
func (c *Counter) Reserve(ctx context.Context, n int) ([]any, error) {
	block, err := c.Take(ctx, n)
	if err != nil {
		return nil, err
	}
	return block.values(), nil
}

// RaiseTo makes sure that all further numbers are above value, for data that is ahead of its counter. It creates a
// missing counter unless it must exist, and never lowers one, so that it is safe to call at every start of a program
// and while others take numbers. A counter with a step goes on with its own numbers: one that gives 1, 6, 11 and is
// raised to 12 gives 21 next, having been raised to 16.
func (c *Counter) RaiseTo(ctx context.Context, value int64) error {
	if c.invalid != nil {
		return c.invalid
	}
	return c.tally.raise(ctx, value)
}

// RaiseToMax raises the counter to the highest number in field of coll's documents, as after an import with explicit
// numbers. where limits the documents, to those of a scope for instance; nil means all. Without an index on field (and
// where) the server reads all of them. Documents without the field, or with null, do not count; a text or a fraction
// there is an [Error] with reason [Unreadable].
//
// Numbers that others store in the meantime without taking them from the counter are not seen.
func (c *Counter) RaiseToMax(ctx context.Context, coll *mongo.Collection, field string, where bson.D) error {
	if c.invalid != nil {
		return c.invalid
	}
	highest, found, err := highestIn(ctx, c.config.Retry, coll, field, where)
	if err != nil || !found {
		return err
	}
	return c.tally.raise(ctx, highest)
}

// build prepares the counter's document, or says what is wrong.
func (c *Counter) build() {
	c.tally, c.invalid = nil, c.refused
	if c.invalid != nil {
		return
	}
	filter, err := identity(c.name(), c.config.Fields, c.key, c.scope)
	if err == nil {
		c.tally, err = newTally(c.index, filter, c.name(), c.config)
	}
	c.invalid = err
}

func (c *Counter) name() string { return sequenceName(c.index.coll, c.key, c.scope) }

// newTally applies the defaults of the settings and checks them.
func newTally(index *uniqueIndex, filter bson.D, name string, config CounterConfig) (*tally, error) {
	t := &tally{
		coll:      index.coll,
		filter:    filter,
		field:     valueField(config.Fields),
		index:     index,
		step:      config.Step,
		max:       config.Max,
		mustExist: config.MustExist,
		retry:     config.Retry.withDefaults(),
		name:      name,
	}
	start, err := firstNumber(name, config.Start, config.FromZero, &t.step, &t.max)
	if err != nil {
		return nil, err
	}
	t.base = start - t.step
	return t, nil
}

// firstNumber applies the defaults of the settings that all kinds share, and checks them.
func firstNumber(name string, start int64, fromZero bool, step, limit *int64) (int64, error) {
	switch {
	case start < 0:
		return 0, misused(name, "Start is %d; numbers start at 0 or above (a uint64 above %d turns negative as an int64)", start, int64(math.MaxInt64))
	case *step < 0:
		return 0, misused(name, "Step is %d; it must be at least 1", *step)
	case *limit < 0:
		return 0, misused(name, "Max is %d; it must be positive (a uint64 above %d turns negative as an int64)", *limit, int64(math.MaxInt64))
	case fromZero && start != 0:
		return 0, misused(name, "Start is %d although FromZero is set", start)
	case start == 0 && !fromZero:
		start = 1
	}
	if *step == 0 {
		*step = 1
	}
	if *limit == 0 {
		*limit = math.MaxInt64
	}
	if start > *limit {
		return 0, misused(name, "Start is %d, above Max, which is %d", start, *limit)
	}
	return start, nil
}

func valueField(f Fields) string {
	if f.Value == "" {
		return "seq"
	}
	return f.Value
}

// only returns the config that was given, or the zero value.
func only[C any](configs []C) (config C, err error) {
	switch len(configs) {
	case 0:
		return config, nil
	case 1:
		return configs[0], nil
	}
	return config, misused("", "more than one config")
}
