package batch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Phase is what a batch is doing.
type Phase uint8

const (
	_ Phase = iota
	// Preparing: documents are encoded and checked; nothing is sent.
	Preparing
	// Inserting: insert commands run.
	Inserting
	// Committing: everything is stored; stamps are removed, if so configured.
	Committing
	// RollingBack: what was stored is being deleted.
	RollingBack
)

func (p Phase) String() string {
	switch p {
	case Preparing:
		return "preparing"
	case Inserting:
		return "inserting"
	case Committing:
		return "committing"
	case RollingBack:
		return "rolling back"
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// Progress is how far a batch is. Within a phase, Done never decreases and never exceeds Total; phases come in the order
// of their constants. When a batch is stored, its last call is Inserting (or Committing) with Done equal to Total.
// While rolling back, Done counts deleted documents and need not reach Total, because a document whose insert was
// refused or whose answer was lost may not be there.
type Progress struct {
	Phase Phase
	Done  int
	// Total is 0 while it is not known, because the batch has a stream.
	Total int
}

// EventKind names an event of a batch's life.
type EventKind uint8

const (
	_ EventKind = iota
	// Prepared: all documents are encoded and fit.
	Prepared
	// Numbered: a sequence gave numbers to Documents documents, the first of them in Collection.
	Numbered
	// Inserted: the server acknowledged Documents documents of a chunk in Collection.
	Inserted
	// Refused: the server refused Documents documents in Collection, the first with Err.
	Refused
	// Retrying: Documents documents in Collection will be sent again after Delay, because of Err.
	Retrying
	// Renumbering: Documents documents in Collection clashed with another writer's numbers and get new ones.
	Renumbering
	// Failed: the batch cannot be stored because of Err. No insert is sent from here on.
	Failed
	// RollbackStarted: all running inserts have ended and deleting begins. Documents is how many may be stored; with 0,
	// late copies of refused inserts are kept out.
	RollbackStarted
	// RollbackStep: the rollback did something; Err is the reason if it has to try again.
	RollbackStep
	// RolledBack: nothing is left.
	RolledBack
	// Incomplete: the rollback gave up with Err; Documents may be left.
	Incomplete
	// Committed: all documents are stored.
	Committed
)

var eventNames = [...]string{
	Prepared: "prepared", Numbered: "numbered", Inserted: "inserted", Refused: "refused", Retrying: "retrying",
	Renumbering: "renumbering", Failed: "failed", RollbackStarted: "rollback started", RollbackStep: "rollback step",
	RolledBack: "rolled back", Incomplete: "incomplete", Committed: "committed",
}

func (k EventKind) String() string {
	if k == 0 || int(k) >= len(eventNames) {
		return fmt.Sprintf("EventKind(%d)", uint8(k))
	}
	return eventNames[k]
}

// level is how loudly an event is logged.
func (k EventKind) level() slog.Level {
	switch k {
	case Refused, Retrying, Renumbering, Failed, RollbackStarted, RolledBack:
		return slog.LevelWarn
	case Incomplete:
		return slog.LevelError
	case Committed:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// Event is one event of a batch's life. Fields that its kind does not mention are zero.
type Event struct {
	Kind       EventKind
	BatchID    bson.ObjectID
	Collection string // database.collection
	Documents  int
	Delay      time.Duration
	Err        error
}

// hooks calls what the caller configured: one call at a time, in the order of events, never after Insert has returned.
// A hook that panics is switched off for the rest of the batch, so that it can neither stop an insert half-way nor keep
// a rollback from running.
type hooks struct {
	config *Config
	id     bson.ObjectID

	mu     sync.Mutex // protects the rest and makes calls one at a time
	total  int        // documents; of a stream those that were read
	open   bool       // a stream has not ended, so that total is not final
	phase  Phase
	done   int
	broken bool
}

func (h *hooks) tell(event Event) {
	event.BatchID = h.id
	if logger := h.config.Logger; logger.Enabled(context.Background(), event.Kind.level()) {
		attributes := []slog.Attr{slog.String("batch", h.id.Hex()), slog.String("collection", event.Collection), slog.Int("documents", event.Documents)}
		if event.Delay > 0 {
			attributes = append(attributes, slog.Duration("delay", event.Delay))
		}
		if event.Err != nil {
			attributes = append(attributes, slog.String("error", describe(event.Err)))
		}
		logger.LogAttrs(context.Background(), event.Kind.level(), "batch: "+event.Kind.String(), attributes...)
	}
	if h.config.Observe == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call(func() { h.config.Observe(event) })
}

// progress adds n documents to what is done in a phase.
func (h *hooks) progress(phase Phase, n int) {
	if h.config.Progress == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if phase != h.phase {
		h.phase, h.done = phase, 0
	} else if n == 0 {
		return
	}
	h.done = min(h.done+n, h.total)
	now := Progress{Phase: h.phase, Done: h.done, Total: h.total}
	if h.open {
		now.Total = 0
	}
	h.call(func() { h.config.Progress(now) })
}

// closeTotal says that every stream was read to its end, or will be read no further.
func (h *hooks) closeTotal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = false
}

// size returns how many documents the batch has, as far as they were read.
func (h *hooks) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total
}

// addTotal counts a document of a stream as it is read.
func (h *hooks) addTotal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total++
}

func (h *hooks) call(hook func()) {
	if h.broken {
		return
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			h.broken = true
			h.config.Logger.Error("batch: a hook panicked and is not called again for this batch", "batch", h.id.Hex(), "panic", panicked)
		}
	}()
	hook()
}
