package storm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
)

// faultPlan is one thing that goes wrong on an inserter's wire.
type faultPlan struct {
	inserter int
	command  faultwire.Name
	kind     faultKind
	skip     int // commands of this name that pass first
	times    int
	arg      int
}

func (f faultPlan) String() string {
	return fmt.Sprintf("%s on inserter %d's %s, after %d, %d times, arg %d", f.kind, f.inserter, f.command, f.skip, f.times, f.arg)
}

type faultKind int

// The kinds of faults. Each is something that a network or a server can do: an answer may be lost, late, or contradict
// itself, but no kind has a server claim a reason for a refusal that is not true.
const (
	faultDropRequest faultKind = iota
	faultDropReply
	faultCut
	faultCutReply
	faultDelay
	faultDelayReply
	faultHold         // a late write: released when it is most harmful
	faultHoldCut      // a late write, of which the driver loses the connection, and which it repeats
	faultHoldReply    // until the client has given up
	faultDown         // the server is away for a moment
	faultNotPrimary   // refused for certain: NoWritesPerformed
	faultInterrupted  // run, and answered with an error that does not say how far
	faultThrottled    // the whole command refused
	faultOverloaded   //
	faultPartly       // some documents throttled
	faultRefused      // some documents refused for good
	faultConcern      // run, but not as durably as asked
	faultCount        // run, with a count that does not add up
	faultShort        // some documents are not stored, and all that tells is the count
	faultIndex        // run, with an error about a document that was not sent
	faultUnauthorized // not run, and never will be
	faultKinds
)

var faultNames = [...]string{
	"request lost", "reply lost", "connection cut", "reply cut", "request late", "reply late", "request held", "request held by a broken network", "reply held",
	"server away", "not primary", "interrupted", "throttled", "overloaded", "partly throttled", "partly refused",
	"write concern not met", "wrong count", "short count", "impossible index", "unauthorized",
}

func (k faultKind) String() string { return faultNames[k] }

func drawFault(r *rand.Rand, inserters int) faultPlan {
	commands := []faultwire.Name{
		faultwire.Insert, faultwire.Insert, faultwire.Insert, faultwire.Insert, faultwire.Delete, faultwire.Find,
		faultwire.FindAndModify, faultwire.Update,
	}
	f := faultPlan{
		inserter: r.IntN(inserters),
		command:  commands[r.IntN(len(commands))],
		kind:     faultKind(r.IntN(int(faultKinds))),
		skip:     r.IntN(6),
		times:    1,
		arg:      r.IntN(100),
	}
	if r.IntN(3) == 0 {
		f.times = 1 + r.IntN(4)
	}
	switch f.kind {
	case faultHold, faultHoldCut, faultHoldReply, faultPartly, faultRefused, faultIndex, faultCount, faultShort, faultConcern:
		if f.command != faultwire.Insert && f.command != faultwire.Delete {
			f.command = faultwire.Insert // what they do is about writes
		}
		if f.kind == faultHold || f.kind == faultHoldCut || f.kind == faultRefused || f.kind == faultShort {
			f.command = faultwire.Insert
		}
		if f.kind == faultHold && r.IntN(2) == 0 {
			f.command = faultwire.Update // the journal's changes of state
		}
	}
	return f
}

// arm puts a fault in force.
func (w *world) arm(i int, f faultPlan) {
	wire := w.wires[f.inserter]
	on := func() *faultwire.When {
		return wire.On(f.command.Where(func(r *faultwire.Request) bool {
			if f.refusals() != nil {
				// A server answers the driver's repetition from its history; it does not refuse what it has stored.
				return r.Collection != journalName && w.firstSending(r)
			}
			if f.kind == faultHold && f.command == faultwire.Update {
				return r.Collection == journalName // a counter would wait for as long as its context allows
			}
			return r.Collection != journalName || f.kind != faultIndex && f.kind != faultCount
		})).Skip(f.skip).Times(f.times)
	}
	var rule *faultwire.Rule
	switch f.kind {
	case faultDropRequest:
		rule = on().DropRequest()
	case faultDropReply:
		rule = on().DropReply()
	case faultCut:
		rule = on().Cut()
	case faultCutReply:
		rule = on().CutReply(f.arg % 20)
	case faultDelay:
		rule = on().Delay(time.Duration(f.arg%8) * time.Millisecond)
	case faultDelayReply:
		rule = on().DelayReply(time.Duration(f.arg%8) * time.Millisecond)
	case faultHold:
		rule = on().Hold()
		w.late = append(w.late, rule)
	case faultHoldCut:
		rule = on().Hold()
		w.late = append(w.late, rule)
		go func() {
			for n := 1; ; n++ {
				select {
				case <-rule.ArrivedN(n):
					wire.Cut()
				case <-w.over:
					return
				}
			}
		}()
	case faultHoldReply:
		rule = on().HoldReply()
		w.late = append(w.late, rule)
	case faultDown:
		rule = on().ServerDown()
		go func() { // the wire's Calm ends it at the latest
			select {
			case <-rule.Arrived():
			case <-w.over:
				return
			}
			away := time.NewTimer(time.Duration(f.arg%10) * time.Millisecond)
			defer away.Stop()
			select {
			case <-away.C:
				rule.Release()
			case <-w.over:
			}
		}()
	case faultNotPrimary:
		rule = on().Reply(faultwire.CommandError{Code: 10107, CodeName: "NotWritablePrimary", Message: "not primary", Labels: []string{"RetryableWriteError", "NoWritesPerformed"}})
	case faultInterrupted:
		rule = on().Lie(faultwire.CommandError{Code: 11602, CodeName: "InterruptedDueToReplStateChange", Message: "interrupted"})
	case faultThrottled:
		rule = on().Reply(faultwire.Throttled(time.Duration(f.arg%5) * time.Millisecond))
	case faultOverloaded:
		rule = on().Reply(faultwire.Overloaded(0))
	case faultPartly, faultRefused, faultShort:
		rule = w.refuse(i, on, f)
	case faultConcern:
		rule = on().Do(faultwire.RewriteRequest(onPrimary), faultwire.Lie(faultwire.WriteConcernError{Code: 64, Message: "waiting for replication timed out"}))
	case faultCount:
		rule = on().Lie(faultwire.Set("n", int32(f.arg%7)))
	case faultIndex:
		rule = on().Lie(faultwire.Edit(func(_ *faultwire.Request, reply bson.Raw) bson.Raw { return impossibleIndex(reply, f.arg) }))
	case faultUnauthorized:
		rule = on().Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized"})
	}
	w.rules = append(w.rules, armed{f, rule})
}

// refusal is a command of which a fault has refused a statement.
type refusal struct {
	fault   int
	command string // its sendingKey
}

// refuse has a statement refused, for refuseAgain to remember.
func (w *world) refuse(i int, on func() *faultwire.When, f faultPlan) *faultwire.Rule {
	return on().Do(append(f.refusals(), faultwire.Before(func(_ context.Context, r *faultwire.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.refused[refusal{i, sendingKey(r)}] = true
	}))...)
}

// refuseAgain has what a fault refused refused again when the driver repeats the command: the server never sees the
// statement, and takes those that it does see for the first ones, as which it knows them again.
func (w *world) refuseAgain(i int, f faultPlan) {
	if f.refusals() == nil {
		return
	}
	w.wires[f.inserter].On(f.command.Where(func(r *faultwire.Request) bool {
		if w.firstSending(r) {
			return false
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.refused[refusal{i, sendingKey(r)}]
	})).Do(f.refusals()...)
}

// refusals are what refuses a statement; nil if the fault does not.
func (f faultPlan) refusals() []faultwire.Fault {
	index := f.arg % 3
	switch f.kind {
	case faultPartly:
		return []faultwire.Fault{faultwire.WriteErrors(faultwire.WriteError{Index: index, Code: 16500, Message: "busy", RetryAfter: time.Millisecond})}
	case faultRefused:
		return []faultwire.Fault{faultwire.WriteErrors(faultwire.WriteError{Index: index, Code: 121, Message: "Document failed validation"})}
	case faultShort:
		return []faultwire.Fault{faultwire.WriteErrors(faultwire.WriteError{Index: index, Code: 1}), faultwire.Lie(faultwire.Edit(withoutErrors))}
	}
	return nil
}

// onPrimary has a write wait for nobody but the primary.
func onPrimary(command bson.Raw) bson.Raw {
	return edit(command, func(d bson.D) bson.D {
		for i := range d {
			if d[i].Key == "writeConcern" {
				d[i].Value = bson.D{{Key: "w", Value: int32(1)}}
			}
		}
		return d
	})
}

// withoutErrors leaves the count alone to tell that statements were refused.
func withoutErrors(_ *faultwire.Request, reply bson.Raw) bson.Raw {
	return edit(reply, func(d bson.D) bson.D {
		return slices.DeleteFunc(d, func(e bson.E) bool { return e.Key == "writeErrors" })
	})
}

// impossibleIndex adds an error about a statement that was not sent.
func impossibleIndex(reply bson.Raw, arg int) bson.Raw {
	index := int32(1000 + arg)
	if arg%2 == 0 {
		index = -1
	}
	return edit(reply, func(d bson.D) bson.D {
		return append(d, bson.E{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: index}, {Key: "code", Value: int32(11000)}, {Key: "errmsg", Value: "E11000"}}}})
	})
}

// edit changes a document.
func edit(raw bson.Raw, change func(bson.D) bson.D) bson.Raw {
	var d bson.D
	if err := bson.Unmarshal(raw, &d); err != nil {
		panic(err)
	}
	changed, err := bson.Marshal(change(d))
	if err != nil {
		panic(err)
	}
	return changed
}

type armed struct {
	plan faultPlan
	rule *faultwire.Rule
}
