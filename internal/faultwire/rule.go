package faultwire

import (
	"sync"
	"sync/atomic"
)

// Rule is a fault in force. It counts how often the fault happened, and is the handle of what it holds back. A Rule may be
// used concurrently.
type Rule struct {
	wire  *Wire
	fault Fault
	when  *When
	off   atomic.Bool

	mu       sync.Mutex
	matched  int // commands that matched, whether or not it was their turn
	fired    int
	reached  int // times that a command got to the point where the fault happens
	finished int
	waiting  []waiter
	held     []chan bool // one for each command held, oldest first; true releases it, false drops it
	open     bool        // Release was called
	err      error
}

// waiter is a channel to close when the counter gets to n.
type waiter struct {
	counter *int
	n       int
	done    chan struct{}
}

// fires counts the command and decides whether the fault happens to it. The wire calls it for one command at a time.
func (r *Rule) fires(request *Request) bool {
	if r.off.Load() || !matchesAny(r.when.matchers, request) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.matched++
	for _, turn := range r.when.turns {
		if !turn(r.matched, r.fired) {
			return false
		}
	}
	r.fired++
	if !r.fault.hold && !r.fault.holdReply {
		r.reach()
	}
	return true
}

func (r *Rule) reach() {
	r.reached++
	r.wake()
}

func (r *Rule) wake() {
	rest := r.waiting[:0]
	for _, w := range r.waiting {
		if *w.counter >= w.n {
			close(w.done)
		} else {
			rest = append(rest, w)
		}
	}
	r.waiting = rest
}

func (r *Rule) reaches(counter *int, n int) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := waiter{counter, n, make(chan struct{})}
	r.waiting = append(r.waiting, w)
	r.wake()
	return w.done
}

// String names the fault.
func (r *Rule) String() string { return r.fault.String() }

// Fired returns how often the fault happened. A command is counted before the client's write returns.
func (r *Rule) Fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired
}

// Matched returns how many commands matched and were not taken by an earlier rule, whether or not it was their turn.
func (r *Rule) Matched() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.matched
}

// Arrived returns a channel that is closed when the fault first happens: a held request has come to the point where it
// waits, a held reply has come from the server (which has therefore run the command). It is ArrivedN(1).
func (r *Rule) Arrived() <-chan struct{} { return r.ArrivedN(1) }

// ArrivedN returns a channel that is closed when the fault has happened n times.
func (r *Rule) ArrivedN(n int) <-chan struct{} { return r.reaches(&r.reached, n) }

// Done returns a channel that is closed when the first command that the fault happened to is over: the server has
// answered it, or never will. It is DoneN(1).
func (r *Rule) Done() <-chan struct{} { return r.DoneN(1) }

// DoneN returns a channel that is closed when n commands that the fault happened to are over. See Err.
func (r *Rule) DoneN(n int) <-chan struct{} { return r.reaches(&r.finished, n) }

// Err returns why a command of this rule was not answered although it should have been: the server's connection broke,
// or the wire was closed. The first reason is kept.
func (r *Rule) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Release lets go on what the rule holds and what it would hold later. A request whose client has left is sent
// nevertheless; its reply is thrown away. Requests on several connections race from here on, as on any network; ReleaseNext
// sends them in turn. After ServerDown, the server is up again.
func (r *Rule) Release() {
	r.mu.Lock()
	r.open = true
	held := r.held
	r.held = nil
	r.mu.Unlock()
	for _, command := range held {
		command <- true
	}
	if r.fault.down {
		r.wire.Up()
	}
}

// ReleaseNext lets the command go on that was held first, and reports whether there was one.
func (r *Rule) ReleaseNext() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 {
		return false
	}
	r.held[0] <- true
	r.held = r.held[1:]
	return true
}

// Drop gives up what the rule holds now: held requests never reach the server, held replies never reach the client, and
// their connections are closed. What comes later is held as before.
func (r *Rule) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, command := range r.held {
		command <- false
	}
	r.held = nil
}

// Off ends the rule: the fault does not happen any more. What it holds stays held.
func (r *Rule) Off() { r.off.Store(true) }

// wait is the point where a command is held. It reports whether the command goes on.
func (r *Rule) wait() bool {
	r.mu.Lock()
	r.reach()
	if r.open {
		r.mu.Unlock()
		return true
	}
	verdict := make(chan bool, 1) // buffered: the wire may close before the verdict is read
	r.held = append(r.held, verdict)
	r.mu.Unlock()
	select {
	case goOn := <-verdict:
		return goOn
	case <-r.wire.life.Done():
		return false
	}
}

// takeDown takes the server down unless the rule has been released: holding the lock, it cannot come after Release's Up.
func (r *Rule) takeDown() {
	r.mu.Lock()
	open := r.open
	if !open {
		r.wire.Refuse()
	}
	r.mu.Unlock()
	if !open {
		r.wire.Cut()
	}
}

func (r *Rule) finish(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished++
	if r.err == nil {
		r.err = err
	}
	r.wake()
}
