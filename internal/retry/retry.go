// Package retry decides how long to wait before a command is sent again.
//
// The exponential growth is that of github.com/cenkalti/backoff; the jitter is "full jitter" (a delay anywhere between
// nothing and the current ceiling, so that clients that failed together do not come back together, as described in the
// AWS Architecture Blog, "Exponential Backoff And Jitter", 2015). A server that names a delay is never visited earlier.
package retry

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Defaults of a Backoff whose fields are zero or negative.
const (
	DefaultInitial = 100 * time.Millisecond
	DefaultMax     = 10 * time.Second
)

// Backoff holds the limits of a growing delay. The zero value is ready to use. It is not changed by use and may be
// shared.
type Backoff struct {
	// Initial is the ceiling of the first delay. Defaults to 100 ms when zero or negative; lowered to Max when it is
	// more.
	Initial time.Duration
	// Max is the ceiling that the delays grow to. Defaults to 10 s when zero or negative, or to Initial if that is
	// more.
	Max time.Duration
}

// Start returns the delays of one series of attempts.
func (b Backoff) Start() *Delays {
	initial, ceiling := b.Initial, b.Max
	if initial <= 0 {
		initial = DefaultInitial
	}
	if ceiling <= 0 {
		ceiling = max(DefaultMax, initial)
	}
	initial = min(initial, ceiling)
	grow := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(initial),
		backoff.WithMaxInterval(ceiling),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(0), // jitter is ours: the library's is centred on the interval
		backoff.WithMaxElapsedTime(0),      // the caller owns the budget; the library's default stops after 15 minutes
	)
	return &Delays{grow: grow}
}

// Delays is one series of delays. It is for one goroutine.
type Delays struct {
	grow *backoff.ExponentialBackOff
}

// Next returns how long to wait before the next attempt: more than zero and at most the current ceiling, but never
// less than hint, the delay that the server asked for (zero if it did not). Each call raises the ceiling.
func (d *Delays) Next(hint time.Duration) time.Duration {
	delay := 1 + rand.N(d.grow.NextBackOff())
	if hint > 0 && delay < hint {
		// Spread above the hint, by at most half of it: everybody who was throttled got a similar one. The sum must not
		// pass the largest duration.
		delay = hint + rand.N(min(hint/2, math.MaxInt64-hint)+1)
	}
	return delay
}

// Sleep waits for d or until ctx is done, and returns ctx's error in that case.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
