package faultwire

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Fault is what happens to one command. The zero Fault is Pass. Its fields are the points of a command's way, in the
// order in which the wire comes to them; a Fault made of several has several set.
type Fault struct {
	name    string
	before  func(context.Context, *Request)
	hold    bool
	down    bool
	drop    bool
	rewrite func(bson.Raw) bson.Raw
	refused []WriteError
	refuse  bool // the server is not asked: answers stand alone
	cut     bool
	after   func(context.Context, *Request)

	holdReply bool
	answers   []Answer
	dropReply bool
	cutReply  int // bytes of the reply that arrive, counted from 1: 1 stands for none
}

// Pass does nothing: it shields a command from the rules after this one.
func Pass() Fault { return Fault{name: "pass"} }

// DropRequest loses the request: it never reaches the server, and the connection is closed.
func DropRequest() Fault { return Fault{name: "drop request", drop: true} }

// DropReply loses the reply: once the server has answered, the connection is closed and the client gets nothing. After an
// unacknowledged write the connection is closed as soon as the request was sent.
func DropReply() Fault { return Fault{name: "drop reply", dropReply: true} }

// HoldRequest keeps the request until Rule.Release. If the client has left by then, the request is sent to the server all
// the same, over the connection that is still open there: a late write.
func HoldRequest() Fault { return Fault{name: "hold request", hold: true} }

// HoldReply lets the server answer and keeps the reply until Rule.Release.
func HoldReply() Fault { return Fault{name: "hold reply", holdReply: true} }

// Cut sends the request and resets the connection without waiting for the reply. The server runs the command, at a time
// that the client cannot know; Rule.Done tells a test.
func Cut() Fault { return Fault{name: "cut", cut: true} }

// CutReply lets the first n bytes of the reply through, at most all but the last, and then resets the connection.
func CutReply(n int) Fault { return Fault{name: "cut reply", cutReply: max(n, 0) + 1} }

// ServerDown loses the request and takes the server down, see Wire.Down, until Rule.Release.
func ServerDown() Fault { return Fault{name: "server down", down: true} }

// Reply answers in the server's place: the server never sees the request. The answers are applied one upon the other.
func Reply(answers ...Answer) Fault {
	return Fault{name: phrase("reply", answers, "without asking"), refuse: true, answers: answers}
}

// Lie lets the server run the command and applies the answers, one upon the other, to what it replied.
func Lie(answers ...Answer) Fault {
	return Fault{name: phrase("run and reply", answers), answers: answers}
}

// WriteErrors refuses some statements of a write and lets the server run the others, so that the answer is the truth. An
// ordered write ends at the first of them, as it would on a server. Nothing is sent when no statement is left. An index
// outside the request refuses nothing, but is reported.
func WriteErrors(errors ...WriteError) Fault {
	return Fault{name: "refuse statements", refused: errors}
}

// RewriteRequest lets the server run another command instead. It is given the full command, see Request.Document.
func RewriteRequest(rewrite func(command bson.Raw) bson.Raw) Fault {
	return Fault{name: "rewrite request", rewrite: rewrite}
}

// RewriteReply lets the server run the command and changes its reply at will.
func RewriteReply(rewrite func(reply bson.Raw) bson.Raw) Fault {
	f := Lie(Edit(func(_ *Request, reply bson.Raw) bson.Raw { return rewrite(reply) }))
	f.name = "rewrite reply"
	return f
}

// Before calls a function before the request is sent. Its context ends when the wire is closed.
func Before(f func(context.Context, *Request)) Fault { return Fault{name: "before", before: f} }

// After calls a function when the server has answered, before the client is. Its context ends when the wire is closed.
func After(f func(context.Context, *Request)) Fault { return Fault{name: "after", after: f} }

// Delay sends the request a while later. Where a condition can be waited for, HoldRequest or Before make a better test.
func Delay(d time.Duration) Fault {
	return Fault{name: "delay request", before: func(ctx context.Context, _ *Request) { pause(ctx, d) }}
}

// DelayReply hands over the reply a while later. Where a condition can be waited for, HoldReply or After make a better
// test.
func DelayReply(d time.Duration) Fault {
	return Fault{name: "delay reply", after: func(ctx context.Context, _ *Request) { pause(ctx, d) }}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Faults returns every fault in a plain form, for tests that go through all of them. Names are unique.
func Faults() []Fault {
	refusal := CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized"}
	invalid := WriteError{Index: 0, Code: 121, Message: "Document failed validation"}
	return []Fault{
		DropRequest(),
		DropReply(),
		HoldRequest(),
		HoldReply(),
		Cut(),
		CutReply(20),
		ServerDown(),
		Reply(refusal),
		Reply(invalid),
		Lie(refusal),
		Lie(invalid),
		Lie(WriteConcernError{Code: 64, CodeName: "WriteConcernTimeout", Message: "waiting for replication timed out"}),
		Lie(Labels{"RetryableWriteError"}),
		WriteErrors(invalid),
		RewriteRequest(func(command bson.Raw) bson.Raw { return command }),
		RewriteReply(func(reply bson.Raw) bson.Raw { return reply }),
		Delay(time.Millisecond),
		DelayReply(time.Millisecond),
	}
}

// String returns the fault's name.
func (f Fault) String() string {
	if f.name == "" {
		return Pass().name
	}
	return f.name
}

// Runs reports whether the server runs the command, or what is left of it after WriteErrors. With a fault that Holds it
// does so once released.
func (f Fault) Runs() bool { return !f.drop && !f.down && !f.refuse }

// Answers reports whether the client gets an answer, true or not; otherwise it loses the connection. With a fault that
// Holds it gets it once released.
func (f Fault) Answers() bool {
	return !f.drop && !f.down && !f.cut && !f.dropReply && f.cutReply == 0
}

// Holds reports whether the fault lasts until Rule.Release.
func (f Fault) Holds() bool { return f.hold || f.holdReply || f.down }

// and makes one fault of two. Where both have something to do at the same point, f comes first.
func (f Fault) and(g Fault) Fault {
	if f.name == "" {
		return g
	}
	f.name = f.name + ", " + g.name
	f.before = both(f.before, g.before)
	f.after = both(f.after, g.after)
	f.hold = f.hold || g.hold
	f.holdReply = f.holdReply || g.holdReply
	f.down = f.down || g.down
	f.drop = f.drop || g.drop
	f.refuse = f.refuse || g.refuse
	f.cut = f.cut || g.cut
	f.dropReply = f.dropReply || g.dropReply
	f.cutReply = max(f.cutReply, g.cutReply)
	f.refused = slices.Concat(f.refused, g.refused)
	f.answers = slices.Concat(f.answers, g.answers)
	if first, second := f.rewrite, g.rewrite; first != nil && second != nil {
		f.rewrite = func(command bson.Raw) bson.Raw { return second(first(command)) }
	} else if second != nil {
		f.rewrite = second
	}
	return f
}

func both(f, g func(context.Context, *Request)) func(context.Context, *Request) {
	if f == nil || g == nil {
		if f == nil {
			return g
		}
		return f
	}
	return func(ctx context.Context, r *Request) { f(ctx, r); g(ctx, r) }
}

// phrase makes a name that has the answers in it.
func phrase(start string, answers []Answer, end ...string) string {
	words := []string{start}
	for i, a := range answers {
		if i > 0 {
			words = append(words, "and")
		}
		words = append(words, a.String())
	}
	return strings.Join(append(words, end...), " ")
}
