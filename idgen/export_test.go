package idgen

// State tells a test what a Buffered is doing: whether a fetch is running, and how many callers wait.
func (b *Buffered) State() (fetching bool, waiting int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fetching, len(b.waiters)
}
