package storm

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

var (
	runs    = flag.Int("storm.runs", 0, "how many plans to carry out; 0 for the test's own number")
	during  = flag.Duration("storm.for", 0, "how long to search; 0 for a number of runs")
	seed    = flag.Uint64("storm.seed", 0, "carry out this one plan, and tell its story; 0 for many plans")
	repeats = flag.Int("storm.repeat", 20, "how often to carry out the one plan, or one that is being shrunk")
	workers = flag.Int("storm.workers", runtime.GOMAXPROCS(0), "plans carried out at a time")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verdict is how a run ended.
type verdict struct {
	problems []string
	story    string
	faults   map[string]int
	outcomes map[string]int
	elapsed  time.Duration // by the run's own clock
}

// carryOut runs a plan in a world of its own, with a clock of its own that goes on when nothing else does: a run waits for
// nothing, and no machine is too slow for it. A world that stands still for good ends the test program, with all its stacks.
func carryOut(t *testing.T, p plan) (v verdict) {
	synctest.Test(t, func(*testing.T) { v = live(p) })
	return v
}

// live is a run, inside its bubble.
func live(p plan) verdict {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Now()
	w, err := newWorld(p)
	if err != nil {
		return verdict{problems: []string{"the world cannot be made: " + err.Error()}}
	}
	v := verdict{faults: make(map[string]int), outcomes: make(map[string]int)}
	if err := w.prepare(ctx); err != nil {
		v.problems = []string{"the world cannot be prepared: " + err.Error()}
	} else {
		w.run(ctx)
		v.problems = w.judge(ctx)
	}
	for _, a := range w.rules {
		v.faults[a.plan.kind.String()] += a.rule.Fired()
	}
	for _, e := range p.events {
		v.faults[e.kind.String()]++
	}
	for _, o := range w.outcomes {
		v.outcomes[kindOf(o)]++
	}
	if len(v.problems) > 0 {
		v.story = w.story()
	}
	if err := w.close(); err != nil {
		v.problems = append(v.problems, "the world cannot be closed: "+err.Error())
	}
	if ctx.Err() != nil {
		v.problems = append(v.problems, "the run takes longer than a minute")
	}
	v.elapsed = time.Since(start)
	return v
}

func kindOf(o outcome) string {
	switch text := fmt.Sprint(o.err); {
	case o.err == nil:
		return "stored"
	case strings.Contains(text, "INCOMPLETE"):
		return "incomplete"
	case strings.Contains(text, "rolled back"):
		return "rolled back"
	case strings.Contains(text, "verdict is not known"):
		return "unresolved"
	}
	return "not sent"
}

func (w *world) story() string {
	var s strings.Builder
	for i, wire := range w.wires {
		fmt.Fprintf(&s, "--- wire of inserter %d\n%s\n", i, wire)
	}
	fmt.Fprintf(&s, "--- wire of recovery and of others\n%s\n", w.calmly)
	for _, o := range w.outcomes {
		fmt.Fprintf(&s, "--- batch %d: %v\n", o.batch.id, o.err)
	}
	return s.String()
}

// TestSearch looks for a plan that breaks a promise.
func TestSearch(t *testing.T) {
	if *seed != 0 {
		for i := range *repeats {
			if v := carryOut(t, makePlan(*seed)); len(v.problems) > 0 {
				t.Fatalf("run %d of\n%sbreaks a promise:\n%s\n%s", i, makePlan(*seed), strings.Join(v.problems, "\n"), v.story)
			}
		}
		return
	}
	n := *runs
	if n == 0 {
		n = ownRuns
		if testing.Short() {
			n = 100
		}
	}
	first := rand.Uint64N(1 << 40)
	search(t, first, n, *during)
}

func search(t *testing.T, first uint64, n int, d time.Duration) {
	t.Logf("seeds from %d on; one alone: -storm.seed N", first)
	start := time.Now()
	var next, done atomic.Int64
	var failed atomic.Bool
	var mu sync.Mutex // protects the totals
	faults, outcomes := make(map[string]int), make(map[string]int)
	var group sync.WaitGroup
	for range *workers {
		group.Go(func() {
			for !failed.Load() {
				i := next.Add(1) - 1
				if d == 0 && i >= int64(n) || d > 0 && time.Since(start) >= d {
					return
				}
				p := makePlan(first + uint64(i))
				v := carryOut(t, p)
				done.Add(1)
				mu.Lock()
				for k, c := range v.faults {
					faults[k] += c
				}
				for k, c := range v.outcomes {
					outcomes[k] += c
				}
				mu.Unlock()
				if len(v.problems) > 0 && !failed.Swap(true) {
					report(t, p, v)
				}
			}
		})
	}
	group.Wait()
	elapsed := time.Since(start)
	t.Logf("%d schedules in %s, %.0f a second", done.Load(), elapsed.Round(time.Second), float64(done.Load())/elapsed.Seconds())
	for _, totals := range []map[string]int{faults, outcomes} {
		for _, k := range slices.Sorted(maps.Keys(totals)) {
			t.Logf("%8d %s", totals[k], k)
		}
	}
}

// report tells of a violation, first as it was found, then in the smallest form that can be had.
func report(t *testing.T, p plan, v verdict) {
	t.Errorf("a promise is broken by\n%s%s\n%s", p, strings.Join(v.problems, "\n"), v.story)
	small, v := shrink(t, p, v)
	t.Logf("shrunk to\n%s%s\n%s", small, strings.Join(v.problems, "\n"), v.story)
}

// shrink leaves out whatever can be left out with the promise still being broken.
func shrink(t *testing.T, p plan, v verdict) (plan, verdict) {
	broken := func(p plan) (verdict, bool) {
		for range *repeats {
			if v := carryOut(t, p); len(v.problems) > 0 {
				return v, true
			}
		}
		return verdict{}, false
	}
	deadline := time.Now().Add(2 * time.Minute)
	for changed := true; changed && time.Now().Before(deadline); {
		changed = false
		for _, smaller := range p.smaller() {
			if less, still := broken(smaller); still {
				p, v, changed = smaller, less, true
				break
			}
		}
	}
	return p, v
}

// smaller returns the plans that lack one thing.
func (p plan) smaller() (plans []plan) {
	add := func(change func(*plan)) {
		q := p
		change(&q)
		plans = append(plans, q)
	}
	for i := range p.inserters {
		add(func(q *plan) {
			if len(p.inserters) == 1 {
				return
			}
			q.inserters = without(p.inserters, i)
			q.faults = nil
			for _, f := range p.faults {
				switch {
				case f.inserter < i:
					q.faults = append(q.faults, f)
				case f.inserter > i:
					f.inserter--
					q.faults = append(q.faults, f)
				}
			}
		})
		for j := range p.inserters[i].batches {
			add(func(q *plan) {
				q.inserters = slices.Clone(p.inserters)
				q.inserters[i].batches = without(p.inserters[i].batches, j)
			})
		}
	}
	for i := range p.faults {
		add(func(q *plan) { q.faults = without(p.faults, i) })
	}
	for i := range p.foreign {
		add(func(q *plan) { q.foreign = without(p.foreign, i) })
	}
	for i := range p.events {
		add(func(q *plan) { q.events = without(p.events, i) })
	}
	if p.recoverers > 0 {
		add(func(q *plan) { q.recoverers-- })
	}
	return slices.DeleteFunc(plans, func(q plan) bool { return q.String() == p.String() })
}

func without[T any](all []T, i int) []T {
	return slices.Delete(slices.Clone(all), i, i+1)
}
