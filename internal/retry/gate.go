package retry

import (
	"context"
	"sync"
)

// Gate lets a limited number of commands through at a time. A throttled server narrows it to one; every command that
// was let in since then and was not throttled widens it by one again, up to what it was made with. It may be used by
// several goroutines.
type Gate struct {
	mu      sync.Mutex // protects the rest
	limit   int
	most    int
	running int
	changed chan struct{} // closed and replaced whenever somebody who waits should look again
}

// NewGate returns a Gate for at most n commands at a time, at least one.
func NewGate(n int) *Gate {
	n = max(n, 1)
	return &Gate{limit: n, most: n, changed: make(chan struct{})}
}

// Enter waits for a place, or returns ctx's error. Every successful Enter is followed by one Leave.
func (g *Gate) Enter(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		g.mu.Lock()
		if g.running < g.limit {
			g.running++
			g.mu.Unlock()
			return nil
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Narrow lets one command in at a time from now on. Who calls it before the delay that the server asked for, and Leave
// after it, keeps the others out meanwhile.
func (g *Gate) Narrow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit = 1
}

// Leave gives the place back. throttled tells how the server answered.
func (g *Gate) Leave(throttled bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if throttled {
		g.limit = 1
	} else if g.running <= g.limit {
		// More than the limit means that some were let in before it was narrowed. Which ones is not known, so that
		// the last of them may count as a success; that is one command more than it should be.
		g.limit = min(g.limit+1, g.most)
	}
	g.running--
	close(g.changed)
	g.changed = make(chan struct{})
}

// Limit returns how many commands may run at a time now.
func (g *Gate) Limit() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit
}
