package journal

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// beatsPerLease is how often a living owner beats within a lease.
const beatsPerLease = 4

// beatSendings is how many sendings of one beat fit into a lease if none is answered.
const beatSendings = 3

// minBeat is what a sending of a beat gets at least, however short the lease.
const minBeat = time.Second

// Lease keeps a record alive for the one who works on the batch, and is the only one to change the record meanwhile. It
// may be used by several goroutines.
type Lease struct {
	journal *Journal
	stop    context.CancelFunc
	stopped chan struct{}

	// writing has an element during a write of the record, so that writes do not overtake each other. It is no mutex,
	// because a write can take long, and who waits for it has a context.
	writing chan struct{}

	mu     sync.Mutex // protects the rest; never held during a write
	record Record
	fresh  time.Time // when the last beat that arrived was sent: until a lease later nobody can have taken over
	err    error     // ErrLost once that is known
}

// Hold begins to beat for a record that the caller just wrote. written is when that write was sent.
func (j *Journal) Hold(record Record, written time.Time) *Lease {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lease{journal: j, stop: cancel, stopped: make(chan struct{}), writing: make(chan struct{}, 1), record: record, fresh: written}
	go l.run(ctx, max(record.Lease()/beatsPerLease, time.Millisecond))
	return l
}

func (l *Lease) run(ctx context.Context, interval time.Duration) {
	defer close(l.stopped)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = l.beat(ctx, 0) // an error is kept, or the next beat is the repetition
		case <-ctx.Done():
			return
		}
	}
}

// beat writes a beat unless one that is younger than old arrived. It gives up after a lease: what comes later proves
// nothing.
func (l *Lease) beat(ctx context.Context, old time.Duration) error {
	if done, err := l.young(old); done {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.Record().Lease())
	defer cancel()
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	if done, err := l.young(old); done { // another one arrived meanwhile
		return err
	}
	record := l.Record()
	sent := time.Now()
	return l.wrote(record, sent, l.journal.beat(ctx, record))
}

// begin waits until no other write is under way.
func (l *Lease) begin(ctx context.Context) error {
	select {
	case l.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Lease) end() { <-l.writing }

// young reports whether no beat is needed: the last one is younger than old, or the record is lost.
func (l *Lease) young(old time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil || time.Since(l.fresh) < old, l.err
}

// wrote takes down how a write of the record ended that was sent at the given time.
func (l *Lease) wrote(record Record, sent time.Time, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.record, l.fresh = record, sent
	case errors.Is(err, ErrLost):
		l.err = err
	}
	return err
}

// Check returns nil if the batch is still the caller's: if a beat arrived within the last half of a lease, or one does
// now. It returns ErrLost if somebody took over, and another error if the journal cannot be asked.
func (l *Lease) Check(ctx context.Context) error {
	return l.beat(ctx, l.Record().Lease()/2)
}

// Swap changes the record's state; see Journal.Swap. The lease goes on with the changed record.
func (l *Lease) Swap(ctx context.Context, change Change) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	if _, err := l.young(0); err != nil {
		return err
	}
	from := l.Record()
	change.Owner = from.Owner
	sent := time.Now()
	record, err := l.journal.Swap(ctx, from, change)
	return l.wrote(record, sent, err)
}

// Note sets fields of the record that decide nothing. It returns ErrLost if the record is not the caller's any more.
func (l *Lease) Note(ctx context.Context, set bson.D) error {
	if err := l.begin(ctx); err != nil {
		return err
	}
	defer l.end()
	if _, err := l.young(0); err != nil {
		return err
	}
	record := l.Record()
	return l.wrote(record, time.Now(), l.journal.Note(ctx, record, set))
}

// Record returns the record as this lease last wrote it.
func (l *Lease) Record() Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record
}

// Release ends the beating. It may be called more than once.
func (l *Lease) Release() {
	l.stop()
	<-l.stopped
}
