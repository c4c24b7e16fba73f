package main

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// task is something to be timed. It returns how long the part of it took that counts.
type task func(ctx context.Context) (time.Duration, error)

// whole times all of something.
func whole(do func(ctx context.Context) error) task {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := do(ctx)
		return time.Since(start), err
	}
}

// comparison is what two tasks took, round by round.
type comparison struct {
	ours, theirs []sample
}

type sample struct {
	time   time.Duration
	allocs uint64
}

// compare runs both tasks once to warm up and then so many rounds, whoever was first last time being second. clean is
// called before each of them and is not timed.
func compare(ctx context.Context, rounds int, ours, theirs task, clean func(context.Context) error) (c comparison, err error) {
	one := func(t task, to *[]sample) error {
		if err := clean(ctx); err != nil {
			return err
		}
		s, err := timed(ctx, t)
		*to = append(*to, s)
		return err
	}
	for round := range rounds + 1 {
		order := []func() error{
			func() error { return one(ours, &c.ours) },
			func() error { return one(theirs, &c.theirs) },
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, step := range order {
			if err := step(); err != nil {
				return c, err
			}
		}
	}
	c.ours, c.theirs = c.ours[1:], c.theirs[1:]
	return c, clean(ctx)
}

func timed(ctx context.Context, t task) (sample, error) {
	var before, after runtime.MemStats
	runtime.GC() // the garbage of the one before is not this one's
	runtime.ReadMemStats(&before)
	took, err := t(ctx)
	runtime.ReadMemStats(&after)
	return sample{took, after.Mallocs - before.Mallocs}, err
}

// ratio is the median of ours divided by theirs.
func (c comparison) ratio() float64 {
	return median(c, func(ours, theirs sample) float64 { return ours.time.Seconds() / theirs.time.Seconds() })
}

// allocRatio is the same of allocations.
func (c comparison) allocRatio() float64 {
	return median(c, func(ours, theirs sample) float64 { return float64(ours.allocs) / float64(theirs.allocs) })
}

func median(c comparison, of func(ours, theirs sample) float64) float64 {
	values := make([]float64, len(c.ours))
	for i := range c.ours {
		values[i] = of(c.ours[i], c.theirs[i])
	}
	slices.Sort(values)
	return values[len(values)/2]
}
