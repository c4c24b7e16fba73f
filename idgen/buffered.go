package idgen

import (
	"context"
	"sync"
)

// Buffered takes numbers from a [Counter] in blocks, ahead of need, for callers that need one at a time: most calls touch
// no network. While one block is used up, the next is fetched in the background; a caller waits only when both are empty.
//
// The numbers that one Buffered gives out increase. Those of several processes interleave by blocks, so that the order of
// numbers is not the order of time.
//
// Numbers that were fetched and not given out are a gap when the process ends: fewer than two blocks, whether it is closed
// or crashes, and one more block for each answer of the server that was lost. (A request for more numbers than a block has
// makes a block of its size.)
//
// Make one with [NewBuffered], and close it. It may be used by any number of goroutines at once, which are served in the
// order in which they came.
type Buffered struct {
	counter *Counter
	block   int
	invalid error
	life    context.Context // of fetches: they serve all callers, so no caller's context may end them
	end     context.CancelFunc
	fetches sync.WaitGroup // one at most

	mu       sync.Mutex // guards all below
	closed   bool
	blocks   []Block   // not used up, lowest numbers first
	left     int       // numbers in blocks
	waiters  []*waiter // while there are any, a fetch is running
	fetching bool
	// failed keeps the next fetch from being started ahead of need: until somebody has to wait, there is nobody to
	// tell what is wrong, and the server is left in peace.
	failed bool
}

// waiter is a call that was not served at once.
type waiter struct {
	n      int
	served chan struct{} // closed when either of the next two is set
	blocks []Block
	err    error
}

// BufferedConfig holds the settings of a [Buffered]. The zero value is ready to use.
type BufferedConfig struct {
	// Block is how many numbers one round trip fetches. Defaults to 1,000.
	Block int
}

// NewBuffered returns a buffer of the counter's numbers. At most one config is used. Nothing is fetched before the first
// call.
func NewBuffered(counter *Counter, config ...BufferedConfig) *Buffered {
	c, err := only(config)
	if err == nil && counter == nil {
		err = misused("", "the counter is nil")
	}
	if err == nil {
		err = counter.invalid
	}
	if err == nil && c.Block < 0 {
		err = misused(counter.name(), "Block is %d; it must be positive", c.Block)
	}
	if c.Block <= 0 {
		c.Block = 1000
	}
	b := &Buffered{counter: counter, block: c.Block, invalid: err}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Next gives out one number, and waits for it if need be.
func (b *Buffered) Next(ctx context.Context) (int64, error) {
	blocks, err := b.take(ctx, 1)
	if err != nil {
		return 0, err
	}
	return blocks[0].First, nil
}

// Reserve gives out n increasing numbers as int64 values, for package batch. They may come from several blocks, and are
// then not consecutive. More numbers than a block has are fetched at once. Fewer than one is an error.
func (b *Buffered) Reserve(ctx context.Context, n int) ([]any, error) {
	blocks, err := b.take(ctx, n)
	if err != nil {
		return nil, err
	}
	values := make([]any, 0, n)
	for _, block := range blocks {
		values = append(values, block.values()...)
	}
	return values, nil
}

// Close ends the fetching and waits for its end. Callers that wait, and all later ones, get [ErrClosed]. The numbers that
// were fetched and not given out are a gap. It may be called again.
func (b *Buffered) Close() error {
	b.mu.Lock()
	b.closed = true
	b.blocks, b.left = nil, 0
	b.fail(ErrClosed)
	b.mu.Unlock()
	b.end()
	b.fetches.Wait()
	return nil
}

// take returns n numbers, or waits for them. When ctx ends while they are being fetched, nothing is lost: they stay for
// others.
func (b *Buffered) take(ctx context.Context, n int) ([]Block, error) {
	if b.invalid != nil {
		return nil, b.invalid
	}
	if n < 1 {
		return nil, misused(b.counter.name(), "%d numbers asked for; at least 1 is possible", n)
	}
	if err := ctx.Err(); err != nil {
		return nil, b.ended(err)
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, ErrClosed
	}
	if len(b.waiters) == 0 && b.left >= n {
		blocks := b.remove(n)
		b.fetch()
		b.mu.Unlock()
		return blocks, nil
	}
	w := &waiter{n: n, served: make(chan struct{})}
	b.waiters = append(b.waiters, w)
	b.fetch()
	b.mu.Unlock()

	select {
	case <-w.served:
		return w.blocks, w.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiters {
		if other == w {
			b.waiters = append(b.waiters[:i:i], b.waiters[i+1:]...)
			b.serve() // those behind may need less
			return nil, b.ended(ctx.Err())
		}
	}
	return w.blocks, w.err // served in the same moment
}

func (b *Buffered) ended(err error) error {
	return &Error{Reason: Unavailable, Sequence: b.counter.name(), Problem: "the context ended before a number was there", Err: err}
}

// fetch starts a fetch if one is needed and none is running. b.mu is held.
func (b *Buffered) fetch() {
	n := b.block
	if len(b.waiters) > 0 {
		n = max(n, b.waiters[0].n-b.left)
	} else if b.failed || b.left > b.block/2 {
		return
	}
	if b.fetching || b.closed {
		return
	}
	b.fetching = true
	ahead := len(b.waiters) == 0
	b.fetches.Go(func() {
		block, err := b.counter.Take(b.life, n)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.fetching = false
		if b.closed {
			return
		}
		b.failed = err != nil
		if err != nil {
			if !ahead {
				b.fail(err)
			}
			b.fetch() // whoever came while a fetch ahead of need was failing gets one of his own
			return
		}
		b.blocks = append(b.blocks, block)
		b.left += block.Count
		b.serve()
		b.fetch()
	})
}

// serve gives waiters their numbers, first come first served. b.mu is held.
func (b *Buffered) serve() {
	for len(b.waiters) > 0 && b.left >= b.waiters[0].n {
		w := b.waiters[0]
		b.waiters = b.waiters[1:]
		w.blocks = b.remove(w.n)
		close(w.served)
	}
}

// fail tells all who wait, and nobody else. b.mu is held.
func (b *Buffered) fail(err error) {
	for _, w := range b.waiters {
		w.err = err
		close(w.served)
	}
	b.waiters = nil
}

// remove takes n of the numbers that are left. b.mu is held.
func (b *Buffered) remove(n int) []Block {
	var out []Block
	b.left -= n
	for n > 0 {
		first := &b.blocks[0]
		part := min(n, first.Count)
		out = append(out, Block{First: first.First, Step: first.Step, Count: part})
		n -= part
		if first.Count -= part; first.Count == 0 {
			b.blocks = b.blocks[1:]
		} else {
			first.First += int64(part) * first.Step
		}
	}
	return out
}
