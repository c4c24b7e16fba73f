package faultwire

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Do ends the sentence with a fault, or with several that happen to the same command: each at its own point of the
// command's way, HoldRequest before DropReply for example. Without any it is Pass.
func (w *When) Do(faults ...Fault) *Rule {
	rule := &Rule{wire: w.wire, when: &When{
		wire:     w.wire,
		matchers: slices.Clone(w.matchers),
		turns:    slices.Clone(w.turns),
	}}
	for _, f := range faults {
		rule.fault = rule.fault.and(f)
	}
	w.wire.enforce(rule)
	return rule
}

// Pass ends the sentence with the fault of this name, as all the methods below do.
func (w *When) Pass() *Rule { return w.Do(Pass()) }

// DropRequest loses the request: see the fault DropRequest.
func (w *When) DropRequest() *Rule { return w.Do(DropRequest()) }

// DropReply loses the reply of a command that the server ran: see the fault DropReply.
func (w *When) DropReply() *Rule { return w.Do(DropReply()) }

// Hold keeps the request until Rule.Release: see the fault HoldRequest.
func (w *When) Hold() *Rule { return w.Do(HoldRequest()) }

// HoldReply keeps the reply until Rule.Release: see the fault HoldReply.
func (w *When) HoldReply() *Rule { return w.Do(HoldReply()) }

// Cut resets the connection behind the request: see the fault Cut.
func (w *When) Cut() *Rule { return w.Do(Cut()) }

// CutReply resets the connection after n bytes of the reply: see the fault CutReply.
func (w *When) CutReply(n int) *Rule { return w.Do(CutReply(n)) }

// ServerDown takes the server down until Rule.Release: see the fault ServerDown.
func (w *When) ServerDown() *Rule { return w.Do(ServerDown()) }

// Reply answers in the server's place: see the fault Reply.
func (w *When) Reply(answers ...Answer) *Rule { return w.Do(Reply(answers...)) }

// Lie changes the answer to a command that the server ran: see the fault Lie.
func (w *When) Lie(answers ...Answer) *Rule { return w.Do(Lie(answers...)) }

// WriteErrors refuses some statements of a write, and only these: see the fault WriteErrors.
func (w *When) WriteErrors(errors ...WriteError) *Rule { return w.Do(WriteErrors(errors...)) }

// WriteConcernError adds a write concern error to the answer to a command that the server ran.
func (w *When) WriteConcernError(code int, message string) *Rule {
	return w.Lie(WriteConcernError{Code: code, Message: message})
}

// Labels adds error labels to the answer to a command that the server ran.
func (w *When) Labels(labels ...string) *Rule { return w.Lie(Labels(labels)) }

// RewriteRequest lets the server run another command: see the fault RewriteRequest.
func (w *When) RewriteRequest(rewrite func(command bson.Raw) bson.Raw) *Rule {
	return w.Do(RewriteRequest(rewrite))
}

// RewriteReply changes the reply at will: see the fault RewriteReply.
func (w *When) RewriteReply(rewrite func(reply bson.Raw) bson.Raw) *Rule {
	return w.Do(RewriteReply(rewrite))
}

// Before calls a function before the request is sent: see the fault Before.
func (w *When) Before(f func(context.Context, *Request)) *Rule { return w.Do(Before(f)) }

// After calls a function when the server has answered: see the fault After.
func (w *When) After(f func(context.Context, *Request)) *Rule { return w.Do(After(f)) }

// Delay sends the request a while later: see the fault Delay.
func (w *When) Delay(d time.Duration) *Rule { return w.Do(Delay(d)) }

// DelayReply hands over the reply a while later: see the fault DelayReply.
func (w *When) DelayReply(d time.Duration) *Rule { return w.Do(DelayReply(d)) }
