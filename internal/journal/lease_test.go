package journal_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/intact-go/intact/internal/journal"
)

// TestLeaseBeats: the owner shows life well within the lease, whatever the clocks say, and no longer than it holds it.
func TestLeaseBeats(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		lease := f.Hold(r, time.Now())
		for before := int64(0); before < 20; {
			time.Sleep(r.Lease() / 2)
			now := f.stored("record").Beat
			if now <= before {
				t.Fatalf("half a lease has passed without a beat: it is %d", now)
			}
			before = now
		}
		lease.Release()
		lease.Release()
		at := f.stored("record").Beat
		time.Sleep(10 * r.Lease())
		if now := f.stored("record").Beat; now != at {
			t.Errorf("after the release, the beat went from %d to %d", at, now)
		}
	})
}

// TestCheckIsQuietWhileFresh: a look at the clock costs nothing while a beat is young.
func TestCheckIsQuietWhileFresh(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		f.wire.On(updates).DropRequest() // no beat gets through
		lease := f.Hold(r, time.Now())
		defer lease.Release()
		time.Sleep(r.Lease()/2 - 10*time.Millisecond)
		if err := lease.Check(f.Context()); err != nil {
			t.Errorf("before half a lease: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
		began := time.Now()
		if err := lease.Check(f.Context()); err == nil || errors.Is(err, journal.ErrLost) {
			t.Errorf("after half a lease without a beat: %v", err)
		}
		if took := time.Since(began); took > r.Lease() {
			t.Errorf("it took %s to say so; the lease is %s", took, r.Lease())
		}
	})
}

// TestCheckFindsOut: whoever was taken over hears it from its next look, and from every later one without asking.
func TestCheckFindsOut(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		held := f.wire.On(updates).Once().Hold() // the first beat; the owner stands still with it
		lease := f.Hold(r, time.Now())
		defer lease.Release()
		<-held.Arrived()
		f.takeOver(r)
		held.Release()
		time.Sleep(r.Lease())
		if err := lease.Check(f.Context()); !errors.Is(err, journal.ErrLost) {
			t.Errorf("after a takeover: %v", err)
		}
		asked := f.wire.Count()
		if err := lease.Swap(f.Context(), journal.Change{To: journal.Committed}); !errors.Is(err, journal.ErrLost) {
			t.Errorf("the commit after a takeover: %v", err)
		}
		if err := lease.Check(f.Context()); !errors.Is(err, journal.ErrLost) || f.wire.Count() != asked {
			t.Errorf("a later look: %v, after %d more commands", err, f.wire.Count()-asked)
		}
		if now := f.stored("record"); now.State != journal.Aborting || now.Beat != 0 {
			t.Errorf("the record is %s with beat %d", now.State, now.Beat)
		}
	})
}

// TestHungBeat: one connection on which nothing comes back does not cost the lease.
func TestHungBeat(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		patient := limits()
		patient.Command, patient.Patience = time.Minute, time.Minute // one sending could use up the lease
		f.Journal = journal.New(f.coll, patient)
		r := record("record")
		r.LeaseMS = 9_000
		if err := f.Create(f.Context(), r); err != nil {
			t.Fatal(err)
		}
		hung := f.wire.On(updates).Nth(1).Hold()
		defer hung.Release()
		lease := f.Hold(r, time.Now())
		defer lease.Release()
		<-hung.Arrived()
		time.Sleep(r.Lease() / 2)
		if err := lease.Check(f.Context()); err != nil {
			t.Errorf("the lease is lost to one beat that hangs: %v", err)
		}
		if f.stored("record").Beat == 0 {
			t.Error("no beat arrived within a lease")
		}
	})
}

// TestLeaseChangesOneThingAtATime: beats and changes of state that meet must not take each other for a stranger's.
func TestLeaseChangesOneThingAtATime(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		f.wire.On(updates).Delay(100 * time.Millisecond)
		lease := f.Hold(r, time.Now())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 5 {
					time.Sleep(r.Lease()/2 + time.Millisecond)
					if err := lease.Check(context.Background()); err != nil {
						t.Errorf("a look: %v", err)
					}
				}
			})
		}
		all.Go(func() {
			for _, to := range []journal.State{journal.Aborting, journal.Aborting, journal.Watching, journal.Watching} {
				if err := lease.Swap(context.Background(), journal.Change{To: to}); err != nil {
					t.Errorf("to %s: %v", to, err)
				}
				time.Sleep(r.Lease() / 3)
			}
		})
		all.Wait()
		lease.Release()
		if now := f.stored("record"); now.State != journal.Watching || now.Version != 5 || now.Owner != r.Owner {
			t.Errorf("the record is %s in version %d, of %s", now.State, now.Version, now.Owner)
		}
	})
}

// TestWaitingForATurnEnds: who waits for its turn to write stops when its context ends.
func TestWaitingForATurnEnds(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		hung := f.wire.On(updates).Hold()
		defer hung.Release()
		lease := f.Hold(r, time.Now())
		defer lease.Release()
		<-hung.Arrived()
		ctx, cancel := context.WithTimeout(f.Context(), 10*time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := lease.Swap(ctx, journal.Change{To: journal.Committed}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the change: %v", err)
		}
		if took := time.Since(began); took > 20*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
}
