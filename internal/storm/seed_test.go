package storm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSeedDecides carries out plans twice. What a seed does not decide is the order of what happens at the same instant,
// and the library's random delays; so most runs repeat to the last command, and nearly all end in the same way.
func TestSeedDecides(t *testing.T) {
	const plans = 200
	sameOrder, sameEnd := 0, 0
	for seed := range uint64(plans) {
		order, end := trace(t, makePlan(seed))
		again, endAgain := trace(t, makePlan(seed))
		if order == again {
			sameOrder++
		}
		if end == endAgain {
			sameEnd++
		}
	}
	t.Logf("of %d plans, %d sent the same commands in the same order, and %d had the same outcomes", plans, sameOrder, sameEnd)
	if sameOrder < plans/2 || sameEnd < plans*9/10 {
		t.Errorf("of %d plans, only %d sent the same commands in the same order, and only %d had the same outcomes", plans, sameOrder, sameEnd)
	}
}

// trace carries a plan out, and returns the inserters' commands in their order, and how the batches ended.
func trace(t *testing.T, p plan) (order, end string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w, err := newWorld(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.prepare(ctx); err != nil {
			t.Fatal(err)
		}
		w.run(ctx)
		var commands strings.Builder
		for i, wire := range w.wires {
			for _, e := range wire.Events() {
				fmt.Fprintln(&commands, i, e.Name, e.Fault)
			}
		}
		var ends []string
		for _, o := range w.outcomes {
			ends = append(ends, fmt.Sprint(o.batch.id, " ", kindOf(o)))
		}
		slices.Sort(ends)
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		order, end = commands.String(), strings.Join(ends, ", ")
	})
	return order, end
}
