package retry_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/intact-go/intact/internal/retry"
)

// enter fails the test unless there is a place at once.
func enter(t *testing.T, g *retry.Gate) {
	t.Helper()
	if err := tryEnter(t, g); err != nil {
		t.Fatalf("no place at once: %v", err)
	}
}

// tryEnter enters if there is a place, and returns an error if Enter waits. It runs in a synctest bubble.
func tryEnter(t *testing.T, g *retry.Gate) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	entered := make(chan error, 1)
	go func() { entered <- g.Enter(ctx) }()
	synctest.Wait()
	select {
	case err := <-entered:
		return err
	default:
	}
	cancel()
	if err := <-entered; err == nil {
		t.Fatal("Enter waited, and returned nil when its context ended")
	}
	return errors.New("Enter waited")
}

// places enters until Enter waits, and gives the places back as commands that failed without being throttled.
func places(t *testing.T, g *retry.Gate) int {
	t.Helper()
	n := 0
	for tryEnter(t, g) == nil {
		n++
	}
	for range n {
		g.Leave(false)
	}
	return n
}

func TestGateLetsAsManyThrough(t *testing.T) {
	for _, test := range []struct{ made, want int }{{-3, 1}, {0, 1}, {1, 1}, {2, 2}, {7, 7}} {
		synctest.Test(t, func(t *testing.T) {
			g := retry.NewGate(test.made)
			if got := g.Limit(); got != test.want {
				t.Errorf("NewGate(%d): limit %d, want %d", test.made, got, test.want)
			}
			// A second look: places that are given back can be taken again.
			for range 2 {
				if got := places(t, g); got != test.want {
					t.Errorf("NewGate(%d): %d places, want %d", test.made, got, test.want)
				}
			}
		})
	}
}

func TestGateNarrowsAndWidens(t *testing.T) {
	for _, made := range []int{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			g := retry.NewGate(made)
			enter(t, g)
			g.Leave(true)
			for successes := range made + 3 {
				if want := min(1+successes, made); g.Limit() != want {
					t.Errorf("gate of %d after throttling and %d successes: limit %d, want %d", made, successes, g.Limit(), want)
				}
				enter(t, g)
				g.Leave(false)
			}
			for range 2 { // throttled again and again it stays at one
				enter(t, g)
				g.Leave(true)
				if got := g.Limit(); got != 1 {
					t.Errorf("gate of %d throttled again: limit %d", made, got)
				}
			}
		})
	}
}

// What was sent before the server complained says nothing about what it can bear now.
func TestGateOldSuccessesDoNotWiden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := retry.NewGate(4)
		for range 4 {
			enter(t, g)
		}
		g.Leave(true)
		g.Leave(false)
		g.Leave(false)
		if err := tryEnter(t, g); err == nil {
			t.Fatal("one of the four is still running, and another one was let in at a limit of one")
		}
		if got := g.Limit(); got != 1 {
			t.Errorf("limit %d after the answers to commands of before, want 1", got)
		}
		g.Leave(false) // the last one: from now on there is one at a time
		enter(t, g)
		if got := g.Limit(); got > 2 {
			t.Errorf("limit %d, want at most 2", got)
		}
	})
}

// A command that was throttled keeps its place while it waits, so that nobody else visits the server meanwhile.
func TestGateNarrowKeepsThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := retry.NewGate(3)
		enter(t, g)
		g.Narrow()
		if err := tryEnter(t, g); err == nil {
			t.Fatal("somebody was let in although the only place is taken")
		}
		g.Leave(true)
		enter(t, g)
		if err := tryEnter(t, g); err == nil {
			t.Fatal("two were let in at a limit of one")
		}
		g.Leave(false)
		if got := g.Limit(); got != 2 {
			t.Errorf("limit %d after a success, want 2", got)
		}
	})
}

func TestGateEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := retry.NewGate(1)
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Enter(done); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that is done was let in: %v", err)
		}
		enter(t, g) // so the place was not taken

		waiting, cancel := context.WithCancel(t.Context())
		left := make(chan error, 2)
		go func() { left <- g.Enter(waiting) }()
		go func() { left <- g.Enter(t.Context()) }()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatalf("the waiting Enter returned %v when its context ended", err)
		}
		synctest.Wait()
		select {
		case err := <-left:
			t.Fatalf("the other Enter returned %v although there is no place", err)
		default:
		}
		g.Leave(false)
		if err := <-left; err != nil {
			t.Errorf("the other Enter got %v, want the place", err)
		}
		g.Leave(false)
	})
}

// Everybody who waits gets in at last, however the gate narrows and widens.
func TestGateManyAtOnce(t *testing.T) {
	const made, workers, rounds = 4, 16, 300
	g := retry.NewGate(made)
	var running, highest, entered atomic.Int64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for range rounds {
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(4) == 0 {
					go cancel() // somewhere around the Enter
				}
				if g.Enter(ctx) == nil {
					now := running.Add(1)
					for high := highest.Load(); now > high && !highest.CompareAndSwap(high, now); high = highest.Load() {
					}
					entered.Add(1)
					running.Add(-1)
					g.Leave(random.IntN(8) == 0)
				}
				cancel()
			}
		})
	}
	group.Wait()
	if highest.Load() > made {
		t.Errorf("%d at a time, want at most %d", highest.Load(), made)
	}
	if entered.Load() < workers*rounds/2 {
		t.Errorf("only %d of %d were let in", entered.Load(), workers*rounds)
	}
	for range 2 * made {
		if err := g.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.Leave(false)
	}
	if got := g.Limit(); got != made {
		t.Errorf("limit %d at the end, want %d: a place was lost", got, made)
	}
}
