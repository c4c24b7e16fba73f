package mongosim

import (
	"container/heap"
	"sync"
	"time"
)

// Clock is the server's time: blockTimeMS, wtimeout, maxTimeMS, the throttle's refill and the time in ObjectIDs the
// server makes are all counted on it. A clock from NewClock stands still until it is driven, so that nothing in a test
// waits for the wall. The nil Clock is the wall clock. (The driver's own timeouts, and the server's answers to its
// monitors, are in real time in any case.)
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	timers timerHeap
	joined chan struct{} // closed and renewed whenever a timer is added
}

type clockTimer struct {
	at    time.Time
	fire  chan struct{}
	index int
}

// NewClock is a clock that shows start and stands still.
func NewClock(start time.Time) *Clock {
	return &Clock{now: start, joined: make(chan struct{})}
}

// Now is the time the clock shows.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock and wakes everything that was waiting for a time up to the new one, in order of time.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(c.now.Add(d))
}

func (c *Clock) set(to time.Time) {
	if to.After(c.now) {
		c.now = to
	}
	for len(c.timers) > 0 && !c.timers[0].at.After(c.now) {
		close(heap.Pop(&c.timers).(*clockTimer).fire)
	}
}

// Next moves the clock to the earliest time that somebody waits for. It says false if nobody waits.
func (c *Clock) Next() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.timers) == 0 {
		return false
	}
	c.set(c.timers[0].at)
	return true
}

// Waiting is the number of waits for this clock that are under way.
func (c *Clock) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// BlockUntil returns when at least n waits for this clock are under way, so that a test can advance it without a race.
// It returns early, with false, when stop is closed.
func (c *Clock) BlockUntil(n int, stop <-chan struct{}) bool {
	for {
		c.mu.Lock()
		if len(c.timers) >= n {
			c.mu.Unlock()
			return true
		}
		joined := c.joined
		c.mu.Unlock()
		select {
		case <-joined:
		case <-stop:
			return false
		}
	}
}

// timer returns a channel that is closed at the given time, and what releases it earlier.
func (c *Clock) timer(at time.Time) (<-chan struct{}, func()) {
	fire := make(chan struct{})
	if c == nil {
		t := time.AfterFunc(time.Until(at), func() { close(fire) })
		return fire, func() { t.Stop() }
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !at.After(c.now) {
		close(fire)
		return fire, func() {}
	}
	t := &clockTimer{at: at, fire: fire}
	heap.Push(&c.timers, t)
	close(c.joined)
	c.joined = make(chan struct{})
	return fire, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.index >= 0 {
			heap.Remove(&c.timers, t.index)
		}
	}
}

type timerHeap []*clockTimer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*clockTimer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
