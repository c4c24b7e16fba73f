package rollback

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/outcome"
)

// Reasons for which an undo ends early, besides the errors of the server.
var (
	// ErrBudget: Policy.Budget was used up.
	ErrBudget = errors.New("the time that the policy allows for a rollback is used up")
	// ErrStopped: Policy.Stop was closed.
	ErrStopped = errors.New("the rollback was told to stop")
	// ErrUnproven: documents with the ids of Target.Unproven are there, and nothing proves whose they are.
	ErrUnproven = errors.New("documents are there for which nothing proves that this job stored them; they were not touched")
	// ErrExcess: a delete removed more documents than it named. Either the same _id was on several shards, or the
	// server does not do what it says. What is gone too much cannot be told from the server's answer.
	ErrExcess = errors.New("ALARM: deletes removed more documents than they named")

	errStillThere = errors.New("the server acknowledged a delete, but documents that match it are still there")
)

// Leftover is a document that may still be there after an undo that had to give up.
type Leftover struct {
	Collection string // database.collection
	ID         bson.RawValue
	// Seen is true if the document was read after the last attempt, false if nobody could look.
	Seen bool
}

func (l Leftover) String() string {
	return fmt.Sprintf("%s _id %s", l.Collection, clip(l.ID.String(), 80))
}

// clip shortens a text to at most n bytes, and not within a character.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-3], "") + "..."
}

// Report says what an undo did. It is complete whether or not the undo succeeded.
type Report struct {
	Deleted  int64         // documents that deletes removed, as far as the answers arrived
	Commands int           // attempts of delete commands, repetitions included
	Passes   int           // rounds over the targets: one, and one more for each settle time
	Fenced   int           // sessions in which the server acknowledged a fence
	Excess   int64         // documents that deletes removed beyond those they named; not zero is an alarm
	Elapsed  time.Duration // from the first command to the last
}

// Error says that an undo could not finish. errors.Is and errors.As reach each of Reasons.
type Error struct {
	// Leftovers are the documents that may still be there. It is empty if only Excess is wrong.
	Leftovers []Leftover
	// Excess is the number of documents removed beyond those named.
	Excess int64
	// Reasons are the different errors for which parts of the undo ended.
	Reasons []error
}

// maxNamed is how many items an error message names before it counts the rest.
const maxNamed = 3

func (e *Error) Error() string {
	var text strings.Builder
	if n := len(e.Leftovers); n > 0 {
		documents := "documents"
		if n == 1 {
			documents = "document"
		}
		fmt.Fprintf(&text, "%d %s may still be there (", n, documents)
		for i, left := range e.Leftovers {
			if i == maxNamed {
				fmt.Fprintf(&text, ", +%d more", len(e.Leftovers)-i)
				break
			}
			if i > 0 {
				text.WriteString(", ")
			}
			text.WriteString(left.String())
		}
		text.WriteString(")")
	} else {
		text.WriteString("everything named is gone")
	}
	for i, reason := range e.Reasons {
		if i == maxNamed {
			fmt.Fprintf(&text, "; +%d more reasons", len(e.Reasons)-i)
			break
		}
		fmt.Fprintf(&text, "; %s", describe(reason))
	}
	return text.String()
}

// describe keeps a server's words short, and documents that it quotes out of the message.
func describe(reason error) string {
	class := outcome.Command(reason)
	text, _, _ := strings.Cut(reason.Error(), " dup key:")
	text = clip(text, 200)
	if class.Code != 0 {
		return fmt.Sprintf("server error %d: %s", class.Code, text)
	}
	return text
}

// Unwrap returns Reasons.
func (e *Error) Unwrap() []error { return e.Reasons }

// add keeps one of each kind of reason.
func (e *Error) add(reason error) {
	for _, have := range e.Reasons {
		if have.Error() == reason.Error() {
			return
		}
	}
	e.Reasons = append(e.Reasons, reason)
}

// EventKind names a step of an undo.
type EventKind uint8

// The steps that Policy.Observe is told.
const (
	_        EventKind = iota
	Fenced             // a session was fenced
	Deleted            // a delete removed Documents from Collection
	Retrying           // an attempt on Collection failed with Err; the next follows after Delay
	Settling           // waiting for Delay before late documents are deleted again
	GaveUp             // a part of Collection was given up with Err; Documents may be left
)

func (k EventKind) String() string {
	switch k {
	case Fenced:
		return "fenced"
	case Deleted:
		return "deleted"
	case Retrying:
		return "retrying"
	case Settling:
		return "settling"
	case GaveUp:
		return "gave up"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is one step of an undo. Fields that a kind does not mention are zero.
type Event struct {
	Kind       EventKind
	Collection string // database.collection
	Documents  int64
	Attempt    int
	Delay      time.Duration
	Err        error
}
