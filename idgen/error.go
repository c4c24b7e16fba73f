package idgen

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrClosed is returned by a [Buffered] that was closed.
var ErrClosed = errors.New("idgen: the sequence is closed")

// Reason says why a sequence gave out no number. Whatever the reason, no number was given out, and none that was given
// out before is affected.
type Reason int

const (
	// Unavailable: no answer that can be believed. The server refused, or every attempt's answer was lost, or the
	// context ended. Numbers may have been used up without being given out: a gap, never a repetition.
	Unavailable Reason = iota
	// Misused: the settings or arguments make no sense. Nothing was sent.
	Misused
	// Unreadable: the database holds something that is not a whole number of 64 bits where the number should be.
	// It was left as it is.
	Unreadable
	// Exhausted: the numbers left up to the maximum, or up to the width, are fewer than those asked for. The
	// counter was left as it is: a smaller request may still succeed.
	Exhausted
	// Missing: a counter that must exist does not. It was not created.
	Missing
	// NoIndex: the unique index that the sequence relies on does not exist, or does not cover every document.
	NoIndex
	// Clashing: other writers took the proposed numbers first, as often as the attempts allow.
	Clashing
)

func (r Reason) String() string {
	switch r {
	case Unavailable:
		return "unavailable"
	case Misused:
		return "misused"
	case Unreadable:
		return "unreadable"
	case Exhausted:
		return "exhausted"
	case Missing:
		return "missing"
	case NoIndex:
		return "no index"
	case Clashing:
		return "clashing"
	}
	return "Reason(" + strconv.Itoa(int(r)) + ")"
}

// Error is the error of every method of this package that gives out numbers. Find it with errors.As.
type Error struct {
	Reason Reason
	// Sequence names the collection and the counter, or the collection and the field.
	Sequence string
	// Problem is one sentence about what was found.
	Problem string
	// Repair says what to do about it, if there is something: often a command for mongosh.
	Repair string
	// Err is what the driver or the context returned, if this is why.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("idgen: ")
	if e.Sequence != "" {
		b.WriteString(e.Sequence)
		b.WriteString(": ")
	}
	b.WriteString(e.Problem)
	if e.Repair != "" {
		b.WriteString("; ")
		b.WriteString(e.Repair)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(bounded(e.Err.Error(), 500))
	}
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

func misused(sequence, format string, args ...any) *Error {
	return &Error{Reason: Misused, Sequence: sequence, Problem: fmt.Sprintf(format, args...)}
}

// bounded cuts a text of unknown length; it may split a character.
func bounded(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
