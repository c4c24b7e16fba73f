package faultwire

import (
	"context"
	"slices"
	"strings"
	"time"
)

// exchange is one request on its way, and the only owner of its place in the record.
type exchange struct {
	conn    *conn
	request *Request
	fault   Fault
	rule    *Rule  // nil if no rule took the request
	event   *Event // guarded by wire.mu; nil if the request is not recorded
	over    bool   // guarded by wire.mu
}

// monitoring says that nobody would miss the reply after the client has left. A hello may otherwise keep the connection
// for ten seconds, until the server has something to tell or not.
func (x *exchange) monitoring() bool { return x.rule == nil && x.request.Name.quiet() }

// saw records a request and decides its fate. It holds the order while predicates and observers run, so that they see the
// requests one after the other, and rules count them in the order of the record.
func (w *Wire) saw(c *conn, m *message) *exchange {
	x := &exchange{conn: c, request: newRequest(m)}
	w.order.Lock()
	defer w.order.Unlock()

	w.mu.Lock()
	rules := w.rules
	w.mu.Unlock()
	for _, rule := range rules {
		if rule.fires(x.request) {
			x.rule, x.fault = rule, rule.fault
			break
		}
	}
	if balanced, _ := x.request.Lookup("loadBalanced").BooleanOK(); balanced && Hello.match(x.request) {
		x.fault = w.balancing.and(x.fault)
	}
	if x.rule == nil && x.request.Name.quiet() && !w.recordAll {
		return x
	}

	w.mu.Lock()
	w.seq++
	if !x.monitoring() {
		w.underWay++
	}
	w.counts[x.request.Name]++
	x.event = &Event{Request: x.request, Seq: w.seq, Conn: c.id, Address: c.address}
	if x.rule != nil {
		x.event.Fault = x.fault.String()
	}
	if w.keep != 0 {
		w.events = append(w.events, x.event)
	}
	if w.keep > 0 && len(w.events) > w.keep {
		w.events[0] = nil // append makes a new array now and then, which leaves the old events behind
		w.events = w.events[1:]
	}
	w.mu.Unlock()
	w.advance(x, Seen, nil)
	return x
}

// mark records that a request has reached a stage. It returns false, and records nothing, where the opposite has been
// recorded already: a reply is given or lost, whichever comes first.
func (w *Wire) mark(x *exchange, stage Stage, reply *message) bool {
	w.order.Lock()
	defer w.order.Unlock()
	return w.advance(x, stage, reply)
}

// advance is mark for those who hold the order.
func (w *Wire) advance(x *exchange, stage Stage, reply *message) bool {
	if x.event == nil {
		return true
	}
	w.mu.Lock()
	e := x.event
	end := stage == Given || stage == Lost
	if end && (e.Given.Happened() || e.Lost.Happened() || !e.Acknowledged()) {
		w.mu.Unlock()
		return false
	}
	w.marks++
	*e.mark(stage) = Mark{Order: w.marks, At: time.Since(w.start)}
	if reply != nil && stage == Answered {
		e.ServerReply = reply.body
	}
	if reply != nil && stage == Given {
		e.ClientReply = reply.body
	}
	observers := w.observers
	var change Change
	if len(observers) > 0 {
		change = Change{stage, *e}
	}
	w.mu.Unlock()
	for _, o := range observers {
		(*o)(change)
	}
	return true
}

// finish ends an exchange; once, however often it is called.
func (w *Wire) finish(x *exchange, err error) {
	w.mu.Lock()
	first := !x.over
	x.over = true
	if first && x.event != nil && !x.monitoring() {
		w.underWay--
		if w.underWay == 0 {
			for _, waiting := range w.drained {
				close(waiting)
			}
			w.drained = nil
		}
	}
	w.mu.Unlock()
	if first && x.rule != nil {
		x.rule.finish(err)
	}
}

// Events returns the recorded commands that one of the matchers selects, all without matchers, in the order in which they
// were seen. A command is in the record before the client's write returns, and its reply before the client can read it.
func (w *Wire) Events(matchers ...Matcher) []Event {
	w.mu.Lock()
	events := make([]Event, len(w.events))
	for i, e := range w.events {
		events[i] = *e
	}
	w.mu.Unlock()
	if len(matchers) == 0 {
		return events
	}
	return slices.DeleteFunc(events, func(e Event) bool { return !matchesAny(matchers, e.Request) })
}

// Count returns how many recorded commands were seen of these names, of all names without any. It counts on where events
// are no longer kept.
func (w *Wire) Count(names ...Name) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	total := 0
	for name, n := range w.counts {
		if len(names) == 0 || slices.ContainsFunc(names, func(n Name) bool { return n.covers(name) }) {
			total += n
		}
	}
	return total
}

// Observe calls a function at every stage of every recorded command, one call at a time and in the order of the marks,
// before the command goes on: what is seen is not yet forwarded, what is given cannot yet be read. The function may ask
// the wire for events and counts and may make and release rules. It must not wait for other commands, nor cut connections
// or close the wire: everything stands still meanwhile. The returned function ends the observation.
func (w *Wire) Observe(observer func(Change)) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.observers = append(slices.Clip(w.observers), &observer)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.observers = slices.DeleteFunc(slices.Clone(w.observers), func(o *func(Change)) bool { return o == &observer })
	}
}

// Drain waits until no recorded command is under way: each was answered, dropped or refused, whether or not its client
// still listens. A held command is under way; a hello, ping or the like is not unless a rule took it. It returns the context's error if that ends first.
func (w *Wire) Drain(ctx context.Context) error {
	w.mu.Lock()
	if w.underWay == 0 {
		w.mu.Unlock()
		return nil
	}
	drained := make(chan struct{})
	w.drained = append(w.drained, drained)
	w.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// String tells the story: the recorded commands, one in a line.
func (w *Wire) String() string {
	var b strings.Builder
	for _, e := range w.Events() {
		b.WriteString(e.String())
		b.WriteByte('\n')
	}
	return b.String()
}
