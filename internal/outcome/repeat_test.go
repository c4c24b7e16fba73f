package outcome_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/outcome"
)

// newRepeatingRig makes a rig whose driver repeats writes by itself.
func newRepeatingRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, "rs", options.Client().SetRetryWrites(true).SetServerSelectionTimeout(1500*time.Millisecond))
}

// stored counts what the server has, when the wire is quiet again.
func (r *rig) stored(t *testing.T) int64 {
	t.Helper()
	ctx := within(t, time.Minute)
	r.wire.Calm()
	if err := r.wire.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	for { // the driver may have to find the server again first
		n, err := r.coll.CountDocuments(ctx, bson.D{})
		if err == nil {
			return n
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// The first answers are lost or refusals, the driver repeats, and what it returns in the end is the error of one of the
// sendings. In each case the server has stored the documents, so that nothing may be called rejected.
func TestErrorsOfLaterSendings(t *testing.T) {
	notPrimary := faultwire.CommandError{Code: 10107, Message: "not primary", Labels: []string{"RetryableWriteError", "NoWritesPerformed"}}
	nothingWritten := faultwire.CommandError{Code: 112, Message: "conflict", Labels: []string{"NoWritesPerformed"}}
	overloaded := faultwire.CommandError{Code: 462, Message: "overloaded", Labels: []string{"SystemOverloadedError", "RetryableError", "NoWritesPerformed"}}
	lost := faultwire.DropReply()
	tests := []struct {
		name     string
		sendings func(*rig) [][]faultwire.Fault // what happens to each; the last one to all further ones
	}{
		{"lost, then no server", func(r *rig) [][]faultwire.Fault {
			return [][]faultwire.Fault{{r.vanish(), lost}}
		}},
		{"lost, nothing written, then no server", func(r *rig) [][]faultwire.Fault {
			return [][]faultwire.Fault{{lost}, {r.vanish(), faultwire.Reply(notPrimary)}}
		}},
		{"nothing written, lost, nothing written", func(*rig) [][]faultwire.Fault {
			return [][]faultwire.Fault{{faultwire.Reply(notPrimary)}, {lost}, {faultwire.Reply(nothingWritten)}}
		}},
		{"overloaded, lost, overloaded for good", func(*rig) [][]faultwire.Fault {
			return [][]faultwire.Fault{{faultwire.Reply(overloaded)}, {lost}, {faultwire.Reply(overloaded)}}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRepeatingRig(t)
			faults := test.sendings(r)
			for i, fault := range faults {
				rule := r.wire.On(faultwire.Insert)
				if i < len(faults)-1 {
					rule = rule.Once()
				}
				rule.Do(fault...)
			}
			inserted, err := r.insert(within(t, 3*time.Second)) // until then, the driver repeats some of them
			report := outcome.OfInsert(sent, inserted, err)
			if err == nil {
				t.Fatal("the insert succeeded")
			}
			if got := verdicts(report); got != allUnknown || report.Class.Refused {
				t.Errorf("verdicts %s, class %+v, want all unknown; the driver's error: %v", got, report.Class, err)
			}
			if report.Class.Kind != outcome.Transient {
				t.Errorf("class %+v, want a transient one", report.Class)
			}
			if n := r.stored(t); n != sent {
				t.Errorf("%d documents stored, want %d: the test does not test what it says", n, sent)
			}
		})
	}
}

// vanish takes the server away before the command is sent; the connection on which it is stays.
func (r *rig) vanish() faultwire.Fault {
	return faultwire.Before(func(context.Context, *faultwire.Request) { r.wire.Refuse() })
}

// What the driver repeats on its own and gets answered is as good as an answer to the first sending. Now and then the
// driver finds no connection to repeat on; then it is unknown what happened.
func TestAnswerToALaterSending(t *testing.T) {
	answered := false
	for try := 0; try < 20 && !answered; try++ {
		r := newRepeatingRig(t)
		r.wire.On(faultwire.Insert).Once().DropReply()
		inserted, err := r.insert(within(t, 30*time.Second))
		report := outcome.OfInsert(sent, inserted, err)
		answered = r.wire.Count(faultwire.Insert) == 2
		if !answered {
			check(t, report, allUnknown, outcome.Class{Kind: outcome.Transient})
		} else if got := verdicts(report); got != "AAAAAA" || report.Err != nil {
			t.Errorf("verdicts %s, error %v", got, report.Err)
		}
	}
	if !answered {
		t.Error("the driver never repeated the insert")
	}
}

// The answer is lost, the driver waits for another connection to repeat on, the pool is cleared meanwhile, and then no
// server can be found: the driver returns the error of the pool, which says nothing about the sending before it.
func TestClearedPool(t *testing.T) {
	t.Parallel()
	for try := 1; ; try++ {
		inserted, stored, err := insertIntoClearedPool(t)
		var cleared driver.RetryablePoolError
		if !errors.As(err, &cleared) {
			// The driver's monitor had lost its own connection too, and found no server before the pool was cleared.
			if try == 10 {
				t.Fatalf("the driver's error is not that of a cleared pool: %v", err)
			}
			continue
		}
		check(t, outcome.OfInsert(sent, inserted, err), allUnknown, outcome.Class{Kind: outcome.Transient})
		if stored != sent {
			t.Errorf("%d documents stored, want %d: the test does not test what it says", stored, sent)
		}
		return
	}
}

func insertIntoClearedPool(t *testing.T) (inserted, stored int64, err error) {
	sim, err := mongosim.Start(mongosim.Config{ReplicaSet: "rs", InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	dialer := &stuckDialer{Dialer: sim.Dialer(), stuck: make(chan struct{})}
	beats := make(chan struct{}, 1)
	r := connect(t, sim, faultwire.ForTest(t, faultwire.Over(dialer)), options.Client().SetRetryWrites(true).
		SetServerSelectionTimeout(time.Second).SetServerMonitoringMode("poll").SetHeartbeatInterval(500*time.Millisecond).
		SetServerMonitor(&event.ServerMonitor{ServerHeartbeatSucceeded: func(*event.ServerHeartbeatSucceededEvent) {
			select {
			case beats <- struct{}{}:
			default:
			}
		}}))
	for range 2 {
		<-beats // the monitor has a connection and is at rest now
	}
	// The monitor keeps its connection, so that the server is found again, but no new connection comes about.
	r.wire.On(faultwire.Insert).Once().Do(faultwire.Before(func(context.Context, *faultwire.Request) { dialer.jam.Store(true) }), faultwire.DropReply())
	ctx := within(t, time.Minute)
	go func() {
		select {
		case <-dialer.stuck:
			r.wire.Down() // the monitor finds out, and clears the pool
		case <-ctx.Done():
		}
	}()
	inserted, err = r.insert(ctx)
	dialer.jam.Store(false)
	return inserted, r.stored(t), err
}

// stuckDialer is a dialer that, once jammed, waits until it is given up.
type stuckDialer struct {
	*mongosim.Dialer
	jam   atomic.Bool
	once  sync.Once
	stuck chan struct{} // closed when the first dialing waits
}

func (d *stuckDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if d.jam.Load() {
		d.once.Do(func() { close(d.stuck) })
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.Dialer.DialContext(ctx, network, address)
}
