package faultwire

import (
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Stage is a point on a command's way.
type Stage int

const (
	_         Stage = iota
	Seen            // the client has written the command
	Forwarded       // the server can see it from now on
	Answered        // the server's reply has come
	Given           // the client can read its reply from now on, whether or not it still does
	Lost            // the client's connection ended without a reply
)

// String names the stage.
func (s Stage) String() string {
	switch s {
	case Seen:
		return "seen"
	case Forwarded:
		return "forwarded"
	case Answered:
		return "answered"
	case Given:
		return "given"
	case Lost:
		return "lost"
	}
	return "no stage"
}

// Mark says when something happened. The zero Mark says that it has not.
type Mark struct {
	Order int           // the place among all marks of the wire, counted from 1
	At    time.Duration // since the wire was made
}

// Happened reports whether it has happened.
func (m Mark) Happened() bool { return m.Order > 0 }

// Before reports whether m happened, and happened before other, or other has not happened.
func (m Mark) Before(other Mark) bool {
	return m.Happened() && (!other.Happened() || m.Order < other.Order)
}

// Event is one command and what became of it. Events are values: one that was taken while the command was under way does
// not change any more.
type Event struct {
	*Request
	Seq     int    // counted from 1, in the order in which the commands were seen
	Conn    int    // the connection, counted from 1 in the order in which they were made
	Address string // the server's, as the client dialed it
	Fault   string // what was done to the command; empty if nothing was

	// Forwarded is the moment just before the request is written to the server, Answered the one just after its reply was
	// read. Given and Lost exclude each other; an unacknowledged write has neither.
	Seen, Forwarded, Answered, Given, Lost Mark

	ServerReply bson.Raw // what the server said; nil before Answered
	ClientReply bson.Raw // what the client was told; nil before Given
}

// Change is one step of a command: the event as it is just after the stage was reached.
type Change struct {
	Stage Stage
	Event Event
}

func (e *Event) mark(stage Stage) *Mark {
	switch stage {
	case Seen:
		return &e.Seen
	case Forwarded:
		return &e.Forwarded
	case Answered:
		return &e.Answered
	case Given:
		return &e.Given
	}
	return &e.Lost
}

// String tells the event in one line. Numbers after the stages are their places in the order. Documents appear by their
// _id only.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: conn %d %s %s", e.Seq, e.Conn, e.Name, e.Namespace())
	if n := len(e.Statements()); n > 0 {
		fmt.Fprintf(&b, " n=%d", n)
	}
	if ids := e.IDs(); len(ids) > 0 {
		fmt.Fprintf(&b, " _id=%s", shorten(ids))
	}
	if w := e.WriteConcern().Lookup("w"); !w.IsZero() {
		fmt.Fprintf(&b, " w=%s", w)
	}
	if txn, ok := e.TxnNumber(); ok {
		fmt.Fprintf(&b, " txn=%d", txn)
	}
	if e.Fault != "" {
		fmt.Fprintf(&b, " [%s]", e.Fault)
	}
	separator := ": "
	for stage := Seen; stage <= Lost; stage++ {
		mark := e.mark(stage)
		if !mark.Happened() {
			continue
		}
		fmt.Fprintf(&b, "%s%s %d", separator, stage, mark.Order)
		separator = ", "
		switch stage {
		case Answered:
			b.WriteString(describe(e.ServerReply))
		case Given:
			if string(e.ClientReply) != string(e.ServerReply) {
				b.WriteString(describe(e.ClientReply))
			}
		}
	}
	return b.String()
}

// shorten lists the first ids and counts the rest.
func shorten(ids []bson.RawValue) string {
	const most = 4
	var shown []string
	for _, id := range ids[:min(len(ids), most)] {
		text := "none"
		if !id.IsZero() {
			text = id.String()
		}
		if len(text) > 40 {
			text = text[:40] + "…"
		}
		shown = append(shown, text)
	}
	list := "[" + strings.Join(shown, " ")
	if more := len(ids) - most; more > 0 {
		list += fmt.Sprintf(" +%d more", more)
	}
	return list + "]"
}

// describe tells a reply by its numbers and codes.
func describe(reply bson.Raw) string {
	var parts []string
	for _, key := range []string{"ok", "n", "nModified", "code", "errorLabels"} {
		if v := reply.Lookup(key); !v.IsZero() {
			text := v.String()
			if n, ok := v.AsInt64OK(); ok {
				text = fmt.Sprint(n)
			}
			parts = append(parts, key+"="+text)
		}
	}
	if failed, ok := reply.Lookup("writeErrors").ArrayOK(); ok {
		values, _ := failed.Values()
		codes := fmt.Sprintf("writeErrors=%d", len(values))
		if len(values) > 0 {
			if first, ok := values[0].DocumentOK(); ok {
				code, _ := first.Lookup("code").AsInt64OK()
				codes += fmt.Sprintf(" of code %d", code)
			}
		}
		parts = append(parts, codes)
	}
	if code, ok := reply.Lookup("writeConcernError", "code").AsInt64OK(); ok {
		parts = append(parts, fmt.Sprintf("writeConcernError=%d", code))
	}
	return " {" + strings.Join(parts, " ") + "}"
}
