package idgen

import (
	"context"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Periodic gives out numbers that begin with the date and count from 1 in each period:
//
//	2601310017 is the 17th number of 31 January 2026
//
// The period is part of the number and of the counter's key, so that nothing is ever reset: when the date changes, another
// counter is used. A number is therefore unique for ever, also when two processes disagree about the time or the zone, or
// a clock is set back; their order is that of the dates that the processes saw.
//
// Each call looks at the clock once: the numbers of one call, and of one batch, belong to one period, however long the
// call takes. The period is the date in the configured zone. As with all settings, programs that share a sequence should
// agree on it.
//
// When a period's counter has reached the width (9,999 for four digits), further numbers are an [Error] with reason
// [Exhausted] until the next period, never a number of another period or of more digits.
//
// For text such as "260131-0017" see [Format.Of]. What is said of [Counter] about repetitions, sessions, concerns and
// stored values holds here. Make one with [NewPeriodic]; it may be used by any number of goroutines at once.
type Periodic struct {
	config   PeriodicConfig
	calendar calendar
	unit     int64 // 10 to the power of the digits: the numbers of one period
	key      part
	scope    part
	index    *uniqueIndex
	refused  error
	invalid  error
}

// PeriodicConfig holds the settings of a [Periodic]. The zero value is ready to use: days in UTC, four digits.
type PeriodicConfig struct {
	// Period is how long a counter is used. Defaults to Day.
	Period Period
	// Zone is where the date is read. Defaults to UTC.
	Zone *time.Location
	// Digits is the width of the count; a period has 10^Digits - 1 numbers. Adding digits later makes the numbers
	// longer, removing some can repeat numbers. Defaults to 4.
	Digits int
	// LongYear writes the year with four digits, from 1000 to 9999. Defaults to two, from 2000 to 2099; other years
	// are an [Error] with reason [Exhausted].
	LongYear bool
	// Clock tells the time. Defaults to time.Now.
	Clock func() time.Time
	// Fields adopts a collection of another shape. With a nil key, {prefix: 260131, count: 17} has
	// Fields{Period: "prefix", Value: "count"}. Defaults to {_id: {key: key, period: 260131}, seq: 17}.
	Fields Fields
	// Retry limits repetitions. Its zero value has the defaults.
	Retry Retry
}

// clocksDiffer is by how much Purge stays behind this process's clock: 26 hours between the first and the last time zone on
// Earth (UTC-12 and UTC+14), and one for clocks that go wrong.
const clocksDiffer = 27 * time.Hour

// NewPeriodic returns the sequence of the given key in coll. A nil key is for a collection of one sequence, whose documents
// are told apart by the period (and the scope) alone. At most one config is used. Nothing is sent; settings that make no
// sense are reported by every later call.
func NewPeriodic(coll *mongo.Collection, key any, config ...PeriodicConfig) *Periodic {
	p := new(Periodic)
	p.config, p.refused = only(config)
	p.calendar = calendar{p.config.Period, p.config.Zone, p.config.LongYear}
	if p.calendar.zone == nil {
		p.calendar.zone = time.UTC
	}
	if p.config.Digits == 0 {
		p.config.Digits = 4
	}
	if p.config.Clock == nil {
		p.config.Clock = time.Now
	}
	if p.refused == nil && (p.config.Period < Day || p.config.Period > Hour) {
		p.refused = misused("", "there is no %v", p.config.Period)
	}
	if width := p.calendar.digits() + p.config.Digits; p.refused == nil && (p.config.Digits < 1 || width > 18) {
		p.refused = misused("", "Digits is %d; with the %d digits of the %v it must be from 1 to %d to fit an int64",
			p.config.Digits, p.calendar.digits(), p.config.Period, 18-p.calendar.digits())
	}
	if p.refused == nil {
		p.unit = int64(math.Pow10(p.config.Digits))
		p.key, p.refused = newPart("key", key)
	}
	if p.refused == nil {
		p.index, p.refused = newKeyIndex(coll, p.config.Fields)
	}
	p.build()
	return p
}

// Scope returns the sequence of the same key for one value of any BSON type, such as a tenant. Every scope counts for
// itself, so that numbers are unique within it. It costs nothing to call each time, and sends nothing.
func (p *Periodic) Scope(value any) *Periodic {
	scoped := *p
	if scoped.refused == nil && p.scope.role != "" {
		scoped.refused = misused(p.name(), "a scope within a scope; use one document as the scope")
	}
	if scoped.refused == nil {
		scoped.scope, scoped.refused = newPart("scope", value)
	}
	scoped.build()
	return &scoped
}

// Next gives out one number.
func (p *Periodic) Next(ctx context.Context) (int64, error) {
	block, err := p.Take(ctx, 1)
	return block.First, err
}

// Take gives out n consecutive numbers of the current period in one round trip.
func (p *Periodic) Take(ctx context.Context, n int) (Block, error) {
	if p.invalid != nil {
		return Block{}, p.invalid
	}
	label, err := p.now()
	if err != nil {
		return Block{}, err
	}
	t, err := p.tally(label)
	if err != nil {
		return Block{}, err
	}
	block, err := t.take(ctx, n)
	if err != nil {
		return Block{}, err
	}
	block.First += label * p.unit
	return block, nil
}

// Reserve is Take for package batch: the numbers as int64 values, in order. Fewer than one is an error.
func (p *Periodic) Reserve(ctx context.Context, n int) ([]any, error) {
	block, err := p.Take(ctx, n)
	if err != nil {
		return nil, err
	}
	return block.values(), nil
}

// RaiseTo makes sure that further numbers of the period that number belongs to are above it. It never lowers a counter.
func (p *Periodic) RaiseTo(ctx context.Context, number int64) error {
	if p.invalid != nil {
		return p.invalid
	}
	label, count := number/p.unit, number%p.unit
	if _, ok := p.calendar.split(label); !ok || number < 0 {
		return misused(p.name(), "%d does not begin with a %v", number, p.config.Period)
	}
	t, err := p.tally(label)
	if err != nil {
		return err
	}
	return t.raise(ctx, count)
}

// RaiseToMax raises the current period's counter to the highest of the period's numbers in field of coll's documents. See
// [Counter.RaiseToMax].
func (p *Periodic) RaiseToMax(ctx context.Context, coll *mongo.Collection, field string, where bson.D) error {
	if p.invalid != nil {
		return p.invalid
	}
	label, err := p.now()
	if err != nil {
		return err
	}
	within := bson.A{
		bson.D{{Key: field, Value: bson.D{{Key: "$gte", Value: label * p.unit}}}},
		bson.D{{Key: field, Value: bson.D{{Key: "$lt", Value: (label + 1) * p.unit}}}},
	}
	if len(where) > 0 {
		within = append(within, where)
	}
	highest, found, err := highestIn(ctx, p.config.Retry, coll, field, bson.D{{Key: "$and", Value: within}})
	if err != nil || !found {
		return err
	}
	return p.RaiseTo(ctx, highest)
}

// Purge removes the counters of periods that were over before the given time, and returns how many it removed. A sequence
// with a key that is not narrowed to a scope covers all scopes of the key.
//
// It never removes a counter that may still be in use, since that would start from 1 again and repeat numbers: whatever
// the argument, it keeps the current period, all later ones, and those that were current less than 27 hours ago, when some
// place on Earth may still have had that date.
//
// It may be repeated, and run by several processes. After an error some counters may have been removed.
func (p *Periodic) Purge(ctx context.Context, before time.Time) (int64, error) {
	if p.refused != nil {
		return 0, p.refused
	}
	if latest := p.config.Clock().Add(-clocksDiffer); latest.Before(before) {
		before = latest
	}
	limit, err := p.calendar.label(before)
	if err != nil {
		return 0, &Error{Reason: Exhausted, Sequence: p.name(), Problem: err.Error()}
	}
	filter, period := p.periodsBefore(limit)
	if period == "" {
		return 0, p.invalid
	}
	coll := p.index.coll
	var removed int64
	err = p.config.Retry.withDefaults().do(ctx, p.name(), func(ctx context.Context) error {
		cursor, err := coll.Find(ctx, filter, options.Find().SetProjection(bson.D{{Key: period, Value: 1}}))
		if err != nil {
			return err
		}
		var documents []bson.Raw
		if err := cursor.All(ctx, &documents); err != nil {
			return err
		}
		var ids bson.A
		for _, document := range documents {
			value, _ := lookup(document, period)
			label, _, isWhole := whole(value)
			if _, ok := p.calendar.split(label); ok && isWhole && label < limit {
				ids = append(ids, document.Lookup("_id"))
			}
		}
		// FerretDB 1.24 fails to delete more than 32,766 documents at a time.
		for chunk := range slices.Chunk(ids, 10_000) {
			result, err := coll.DeleteMany(ctx, append(bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: chunk}}}}, filter...))
			if err != nil {
				return err
			}
			removed += result.DeletedCount
		}
		return nil
	})
	return removed, err
}

// periodsBefore selects the sequence's documents of periods before the limit, and names the field of the period. The name
// is empty when the settings are wrong in more than the scope that Purge can do without.
func (p *Periodic) periodsBefore(limit int64) (filter bson.D, field string) {
	f := p.config.Fields
	names := map[string]string{"key": f.Key, "scope": f.Scope, "period": f.Period}
	if f.Key == "" && f.Scope == "" && f.Period == "" {
		names = map[string]string{"key": "_id.key", "scope": "_id.scope", "period": "_id.period"}
		if p.key.role == "" && p.scope.role == "" {
			names["period"] = "_id"
		}
	}
	for _, part := range []part{p.key, p.scope} {
		if part.role == "" {
			continue
		}
		if names[part.role] == "" {
			return nil, ""
		}
		filter = append(filter, bson.E{Key: names[part.role], Value: part.value})
	}
	return append(filter, bson.E{Key: names["period"], Value: bson.D{{Key: "$lt", Value: limit}}}), names["period"]
}

// now returns the current period's label.
func (p *Periodic) now() (int64, error) {
	label, err := p.calendar.label(p.config.Clock())
	if err != nil {
		return 0, &Error{Reason: Exhausted, Sequence: p.name(), Problem: err.Error()}
	}
	return label, nil
}

// build checks the settings with a period that any calendar has.
func (p *Periodic) build() {
	p.invalid = p.refused
	if p.invalid == nil {
		_, p.invalid = p.tally(1)
	}
}

// tally returns the counter of a period.
func (p *Periodic) tally(label int64) (*tally, error) {
	var value any = label
	if label <= math.MaxInt32 {
		value = int32(label) // as other programs store it; servers take both for the same key
	}
	period, err := newPart("period", value)
	if err != nil {
		return nil, err
	}
	name := sequenceName(p.index.coll, p.key, p.scope, period)
	filter, err := identity(name, p.config.Fields, p.key, p.scope, period)
	if err != nil {
		return nil, err
	}
	return newTally(p.index, filter, name, CounterConfig{Max: p.unit - 1, Fields: p.config.Fields, Retry: p.config.Retry})
}

func (p *Periodic) name() string { return sequenceName(p.index.coll, p.key, p.scope) }

// text prints a number of the sequence.
func (p *Periodic) text(f Format, number int64) (string, error) {
	if p.invalid != nil {
		return "", p.invalid
	}
	date, ok := p.calendar.text(number/p.unit, f.DateSeparator)
	if !ok || number < 0 {
		return "", misused(p.name(), "%d does not begin with a %v", number, p.config.Period)
	}
	return f.Prefix + date + f.Separator + padded(uint64(number%p.unit), max(p.config.Digits, f.Width)), nil
}
