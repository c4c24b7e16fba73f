package retry_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/intact-go/intact/internal/retry"
)

// series is how many series of delays are drawn: that none of so many uniform draws falls into the upper half of its
// range has the probability 2^-200.
const series = 200

// settings are backoffs with the first ceiling and the cap that they must come to.
var settings = []struct {
	name         string
	backoff      retry.Backoff
	initial, cap time.Duration
}{
	{"tiny start", retry.Backoff{Initial: 1, Max: 30 * time.Second}, 1, 30 * time.Second},
	{"usual start", retry.Backoff{Initial: 100 * time.Millisecond, Max: 30 * time.Second}, 100 * time.Millisecond, 30 * time.Second},
	{"start above the cap", retry.Backoff{Initial: time.Hour, Max: 30 * time.Second}, 30 * time.Second, 30 * time.Second},
	{"start equals cap", retry.Backoff{Initial: time.Second, Max: time.Second}, time.Second, time.Second},
	{"cap of one", retry.Backoff{Initial: 1, Max: 1}, 1, 1},
	{"zero", retry.Backoff{}, retry.DefaultInitial, retry.DefaultMax},
	{"negative", retry.Backoff{Initial: -1, Max: -time.Hour}, retry.DefaultInitial, retry.DefaultMax},
	{"lowest", retry.Backoff{Initial: math.MinInt64, Max: math.MinInt64}, retry.DefaultInitial, retry.DefaultMax},
	{"cap only, below the default start", retry.Backoff{Max: time.Millisecond}, time.Millisecond, time.Millisecond},
	{"start only, above the default cap", retry.Backoff{Initial: time.Hour}, time.Hour, time.Hour},
	{"start only", retry.Backoff{Initial: time.Second}, time.Second, retry.DefaultMax},
	{"largest", retry.Backoff{Initial: math.MaxInt64, Max: math.MaxInt64}, math.MaxInt64, math.MaxInt64},
	{"no cap to speak of", retry.Backoff{Initial: 3, Max: math.MaxInt64}, 3, math.MaxInt64},
}

// ceiling is what attempt number i (from 0) may wait at most.
func ceiling(initial, most time.Duration, i int) time.Duration {
	c := initial
	for range i {
		if c > most/2 {
			return most
		}
		c *= 2
	}
	return min(c, most)
}

func TestDelaysGrowToTheCap(t *testing.T) {
	for _, set := range settings {
		t.Run(set.name, func(t *testing.T) {
			const attempts = 201
			var highest [attempts]time.Duration
			for range series {
				delays := set.backoff.Start()
				for i := range attempts {
					d := delays.Next(0)
					if d <= 0 || d > ceiling(set.initial, set.cap, i) {
						t.Fatalf("attempt %d: %v, want more than 0 and at most %v", i, d, ceiling(set.initial, set.cap, i))
					}
					highest[i] = max(highest[i], d)
				}
			}
			before := time.Duration(0)
			for i, high := range highest {
				want := ceiling(set.initial, set.cap, i)
				if want < before {
					t.Fatalf("attempt %d: the ceiling falls from %v to %v", i, before, want)
				}
				if high <= want/2 {
					t.Errorf("attempt %d: the highest of %d delays is %v, so the ceiling is not %v", i, series, high, want)
				}
				before = want
			}
		})
	}
}

// A rollback without a budget may go on for weeks.
func TestDelaysFarBeyond(t *testing.T) {
	for _, set := range settings {
		t.Run(set.name, func(t *testing.T) {
			delays := set.backoff.Start()
			for range 100_000 {
				delays.Next(0)
			}
			var high, low time.Duration = 0, math.MaxInt64
			for range series {
				d := delays.Next(0)
				high, low = max(high, d), min(low, d)
			}
			if low <= 0 || high > set.cap || high <= set.cap/2 {
				t.Errorf("delays between %v and %v, want them in the range up to %v", low, high, set.cap)
			}
		})
	}
}

// Delays are spread over the whole range: clients that failed together must not come back together.
func TestDelaysAreJittered(t *testing.T) {
	var quarter [4]int
	for range 4 * series {
		d := retry.Backoff{Initial: time.Second}.Start().Next(0)
		quarter[(d-1)*4/time.Second]++
	}
	for i, n := range quarter {
		if n < series/2 { // expected are 200; 100 is more than eight standard deviations away
			t.Errorf("quarter %d of the range got %d of %d delays: %v", i, n, 4*series, quarter)
		}
	}
}

func TestHint(t *testing.T) {
	for _, hint := range []time.Duration{1, 34 * time.Millisecond, 300 * time.Millisecond, time.Hour, math.MaxInt64 - 1, math.MaxInt64} {
		for _, set := range settings {
			t.Run(fmt.Sprint(hint, " ", set.name), func(t *testing.T) {
				different := map[time.Duration]bool{}
				for range series {
					delays := set.backoff.Start()
					for i := range 40 {
						d := delays.Next(hint)
						if d < hint {
							t.Fatalf("attempt %d: %v is before the server's %v", i, d, hint)
						}
						if most := max(ceiling(set.initial, set.cap, i), hint+min(hint/2, math.MaxInt64-hint)); d > most {
							t.Fatalf("attempt %d: %v, want at most %v", i, d, most)
						}
						if i == 0 {
							different[d] = true
						}
					}
				}
				if hint >= time.Millisecond && hint < time.Hour*2 && len(different) < series/2 {
					t.Errorf("%d series came to only %d different first delays: throttled clients come back together", series, len(different))
				}
			})
		}
	}
}

// A hint is for one delay: the growth goes on beside it.
func TestHintDoesNotStopTheGrowth(t *testing.T) {
	var high time.Duration
	for range series {
		delays := retry.Backoff{Initial: time.Millisecond, Max: time.Hour}.Start()
		for range 10 {
			delays.Next(time.Microsecond)
		}
		d := delays.Next(-time.Hour) // a negative hint is none
		if d <= 0 {
			t.Fatalf("delay %v", d)
		}
		high = max(high, d)
	}
	if want := 1024 * time.Millisecond; high > want || high <= want/2 {
		t.Errorf("after ten delays the highest is %v, want it in the upper half of %v", high, want)
	}
}

// A Backoff is a value that many series may be started from.
func TestBackoffIsShared(t *testing.T) {
	backoff := retry.Backoff{Initial: time.Second, Max: time.Hour}
	first := backoff.Start()
	for range 20 {
		first.Next(0)
	}
	for range series {
		if d := backoff.Start().Next(0); d > time.Second {
			t.Fatalf("a new series begins with %v: it goes on where another one was", d)
		}
	}
}
