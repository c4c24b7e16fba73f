package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/intact-go/intact/internal/retry"
)

func TestSleepWaits(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, time.Nanosecond, time.Hour} {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				if err := retry.Sleep(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				if passed := time.Since(start); passed != max(d, 0) {
					t.Errorf("slept %v, want %v", passed, max(d, 0))
				}
			})
		})
	}
}

func TestSleepEndsWithTheContext(t *testing.T) {
	tests := []struct {
		name string
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want error
		// passes is how long Sleep may take.
		passes time.Duration
	}{
		{"cancelled before", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, context.Canceled, 0},
		{"cancelled meanwhile", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Minute, cancel)
			return ctx, cancel
		}, context.Canceled, time.Minute},
		{"deadline passes", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, context.DeadlineExceeded, time.Second},
	}
	for _, test := range tests {
		// A delay of nothing does not save a context that is done.
		for _, d := range []time.Duration{0, time.Hour} {
			if d == 0 && test.passes > 0 {
				continue
			}
			t.Run(test.name+" "+d.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := test.ctx(t.Context())
					defer cancel()
					start := time.Now()
					if err := retry.Sleep(ctx, d); !errors.Is(err, test.want) {
						t.Errorf("got %v, want %v", err, test.want)
					}
					if passed := time.Since(start); passed != test.passes {
						t.Errorf("slept %v, want %v", passed, test.passes)
					}
				})
			})
		}
	}
}
