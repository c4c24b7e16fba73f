package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/outcome"
)

const (
	allUnknown  = "UUUUUU"
	allRejected = "RRRRRR"
)

// check compares what is known after an insert with what should be.
func check(t *testing.T, report outcome.Insert, letters string, class outcome.Class) {
	t.Helper()
	if got := verdicts(report); got != letters {
		t.Errorf("verdicts %s, want %s", got, letters)
	}
	if report.Class != class {
		t.Errorf("class %+v, want %+v", report.Class, class)
	}
	if report.Err == nil {
		t.Error("no error")
	} else if t.Failed() {
		t.Logf("the driver's error: %v", report.Err)
	}
	if report.Refusals != nil {
		t.Errorf("refusals %v of an answer that names no document", report.Refusals)
	}
}

// Answers of servers that did not run the command, or not to its end.
func TestCommandErrors(t *testing.T) {
	permanent := func(code int) outcome.Class { return outcome.Class{Kind: outcome.Permanent, Code: code} }
	refused := func(code int) outcome.Class {
		return outcome.Class{Kind: outcome.Permanent, Code: code, Refused: true}
	}
	transient := func(code int) outcome.Class { return outcome.Class{Kind: outcome.Transient, Code: code} }
	throttled := func(code int, after time.Duration) outcome.Class {
		return outcome.Class{Kind: outcome.Transient, Code: code, Throttled: true, After: after}
	}
	of := func(code int, message string, labels ...string) faultwire.CommandError {
		return faultwire.CommandError{Code: code, Message: message, Labels: labels}
	}
	tests := []struct {
		name    string
		answer  faultwire.Answer
		letters string
		class   outcome.Class
	}{
		{"no rights", of(13, "not authorized on shop"), allRejected, refused(13)},
		{"invalid namespace", of(73, "Invalid namespace specified"), allRejected, refused(73)},
		{"a view", of(166, "cannot insert into a view"), allRejected, refused(166)},
		{"unknown command", of(59, "no such command"), allRejected, refused(59)},
		// Permanent, but a server may find out half-way, or afterwards.
		{"unknown write concern", of(79, "no replication mode of that name"), allUnknown, permanent(79)},
		{"illegal operation", of(20, "cannot"), allUnknown, permanent(20)},
		{"document validation", of(121, "failed"), allUnknown, permanent(121)},
		{"not primary", of(10107, "not primary"), allUnknown, transient(10107)},
		{"not primary, nothing written", of(10107, "not primary", "RetryableWriteError", "NoWritesPerformed"), allUnknown, transient(10107)},
		{"interrupted by a step-down", of(11602, "interrupted"), allUnknown, transient(11602)},
		{"shutting down", of(91, "shutting down"), allUnknown, transient(91)},
		{"write conflict", of(112, "write conflict"), allUnknown, transient(112)},
		{"lock timeout", of(24, "lock"), allUnknown, transient(24)},
		{"time limit", of(50, "operation exceeded time limit"), allUnknown, transient(50)},
		{"throttled, hint in the text", of(16500, "Error=16500, RetryAfterMs=34, Details='Request rate is large'"), allUnknown, throttled(16500, 34*time.Millisecond)},
		{"throttled, hint at the end of the text", of(16500, "RetryAfterMs=7"), allUnknown, throttled(16500, 7*time.Millisecond)},
		{"throttled, hint in a field", faultwire.CommandError{Code: 16500, Message: "slow down", RetryAfter: 300 * time.Millisecond}, allUnknown, throttled(16500, 300*time.Millisecond)},
		{"throttled, two hints", faultwire.CommandError{Code: 16500, Message: "RetryAfterMs=7", RetryAfter: 300 * time.Millisecond}, allUnknown, throttled(16500, 300*time.Millisecond)},
		{"throttled, no hint", of(16500, "slow down"), allUnknown, throttled(16500, 0)},
		{"throttled, hint is no number", of(16500, "RetryAfterMs=soon"), allUnknown, throttled(16500, 0)},
		{"throttled, negative hint", of(16500, "RetryAfterMs=-5"), allUnknown, throttled(16500, 0)},
		{"throttled, negative field", faultwire.CommandError{Code: 16500, More: bson.D{{Key: "RetryAfterMs", Value: -5}}}, allUnknown, throttled(16500, 0)},
		{"throttled for a year", of(16500, "RetryAfterMs=31536000000"), allUnknown, throttled(16500, time.Hour)},
		{"throttled for ever", of(16500, "RetryAfterMs=99999999999999999999"), allUnknown, throttled(16500, time.Hour)},
		{"overloaded", faultwire.Overloaded(250 * time.Millisecond), allUnknown, throttled(462, 250*time.Millisecond)},
		{"overloaded, no hint", faultwire.Overloaded(0), allUnknown, throttled(462, 0)},
		{"label of overload alone", of(1, "internal", "SystemOverloadedError"), allUnknown, throttled(1, 0)},
		{"label RetryableError alone", of(1, "internal", "RetryableError"), allUnknown, transient(1)},
		{"label RetryableWriteError alone", of(1, "internal", "RetryableWriteError"), allUnknown, transient(1)},
		{"an unknown label", of(1, "internal", "Odd"), allUnknown, outcome.Class{Code: 1}},
		{"label on a permanent error", of(13, "not authorized", "RetryableWriteError"), allRejected, refused(13)},
		{"Atlas", of(8000, "not allowed to do action [insert]"), allUnknown, outcome.Class{Code: 8000}},
		{"internal error", of(1, "RetryAfterNothing"), allUnknown, outcome.Class{Code: 1}},
		{"no code", made("ok", 0), allUnknown, outcome.Class{}},
		{"an empty reply", made(), allUnknown, outcome.Class{}},
		{"no rights, but some stored", made("ok", 0, "code", 13, "n", 5), allUnknown, permanent(13)},
		{"no rights, none stored", made("ok", 0, "code", 13, "n", 0), allRejected, refused(13)},
		{"a failure that names documents", made("ok", 0, "n", 5, "code", 112, "writeErrors", bson.A{bson.D{{Key: "index", Value: 1}, {Key: "code", Value: 11000}}}), allUnknown, transient(112)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // some end with the driver's looking for a server again
			// Overload is repeated by the driver itself if it may repeat anything, which is not the matter here.
			r := newRig(t, "", options.Client().SetMaxAdaptiveRetries(0))
			r.wire.On(faultwire.Insert).Reply(test.answer)
			inserted, err := r.insert(within(t, time.Minute))
			check(t, outcome.OfInsert(sent, inserted, err), test.letters, test.class)
		})
	}
}

// Answers that were lost, and commands that were never sent.
func TestNoAnswer(t *testing.T) {
	transient := outcome.Class{Kind: outcome.Transient}
	neverSent := outcome.Class{Kind: outcome.Transient, Refused: true}
	for _, fault := range []faultwire.Fault{
		faultwire.DropRequest(), faultwire.DropReply(), faultwire.Cut(), faultwire.CutReply(0), faultwire.CutReply(40),
	} {
		t.Run(fault.String(), func(t *testing.T) {
			r := newRig(t, "")
			r.wire.On(faultwire.Insert).Do(fault)
			inserted, err := r.insert(within(t, time.Minute))
			check(t, outcome.OfInsert(sent, inserted, err), allUnknown, transient)
		})
	}
	t.Run("deadline", func(t *testing.T) {
		r := newRig(t, "")
		held := r.wire.On(faultwire.Insert).HoldReply()
		inserted, err := r.insert(within(t, 100*time.Millisecond))
		for limit := time.Second; held.Fired() == 0; limit *= 2 { // the deadline passed before the command was sent
			inserted, err = r.insert(within(t, limit))
		}
		check(t, outcome.OfInsert(sent, inserted, err), allUnknown, transient)
	})
	t.Run("cancelled", func(t *testing.T) {
		r := newRig(t, "")
		held := r.wire.On(faultwire.Insert).HoldReply()
		ctx, cancel := context.WithCancel(within(t, time.Minute))
		go func() { <-held.Arrived(); cancel() }()
		inserted, err := r.insert(ctx)
		check(t, outcome.OfInsert(sent, inserted, err), allUnknown, transient)
	})
	t.Run("client closed meanwhile", func(t *testing.T) {
		r := newRig(t, "")
		held := r.wire.On(faultwire.Insert).HoldReply()
		go func() {
			<-held.Arrived()
			done, cancel := context.WithCancel(context.Background())
			cancel()
			_ = r.client.Disconnect(done) // at once, whatever is under way
		}()
		inserted, err := r.insert(within(t, time.Minute))
		check(t, outcome.OfInsert(sent, inserted, err), allUnknown, transient)
	})
	t.Run("no server", func(t *testing.T) {
		r := newRig(t, "", options.Client().SetServerSelectionTimeout(50*time.Millisecond).SetDialer(noServer{}))
		inserted, err := r.insert(within(t, time.Minute))
		if is := (topology.ServerSelectionError{}); !errors.As(err, &is) {
			t.Fatalf("the driver's error is no longer a ServerSelectionError: %T", err)
		}
		check(t, outcome.OfInsert(sent, inserted, err), allRejected, neverSent)
	})
	t.Run("no free connection", func(t *testing.T) {
		r := newRig(t, "", options.Client().SetMaxPoolSize(1))
		held := r.wire.On(faultwire.Find).Hold()
		found := make(chan error)
		go func() { found <- r.coll.FindOne(within(t, time.Minute), bson.D{}).Err() }()
		<-held.Arrived()
		inserted, err := r.insert(within(t, 50*time.Millisecond))
		if is := (topology.WaitQueueTimeoutError{}); !errors.As(err, &is) {
			t.Fatalf("the driver's error is no longer a WaitQueueTimeoutError: %T", err)
		}
		check(t, outcome.OfInsert(sent, inserted, err), allRejected, neverSent)
		held.Release()
		if err := <-found; !errors.Is(err, mongo.ErrNoDocuments) {
			t.Error(err)
		}
	})
	t.Run("client closed before", func(t *testing.T) {
		r := newRig(t, "")
		if err := r.client.Disconnect(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		inserted, err := r.insert(within(t, time.Minute))
		check(t, outcome.OfInsert(sent, inserted, err), allRejected, outcome.Class{Kind: outcome.Permanent, Refused: true})
	})
	t.Run("no sessions", func(t *testing.T) {
		r := newRig(t, "")
		r.wire.On(faultwire.Hello).RewriteReply(func(reply bson.Raw) bson.Raw {
			var hello, without bson.D
			if err := bson.Unmarshal(reply, &hello); err != nil {
				t.Error(err)
			}
			for _, e := range hello {
				if e.Key != "logicalSessionTimeoutMinutes" {
					without = append(without, e)
				}
			}
			raw, err := bson.Marshal(without)
			if err != nil {
				t.Error(err)
			}
			return raw
		})
		session, err := r.client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(context.Background())
		inserted, err := r.insert(mongo.NewSessionContext(within(t, time.Minute), session))
		// The driver's error has no type: it cannot be told from others, and is not.
		check(t, outcome.OfInsert(sent, inserted, err), allUnknown, outcome.Class{})
	})
}

// noServer is a dialer on a machine where nobody listens.
type noServer struct{}

func (noServer) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("connection refused")
}

// Command is also asked about commands that are no inserts.
func TestCommand(t *testing.T) {
	for _, err := range []error{nil, errors.New("not authorized"), context.Canceled, mongo.ErrNoDocuments} {
		if class := outcome.Command(err); class != (outcome.Class{}) {
			t.Errorf("%v: class %+v, want the zero Class", err, class)
		}
	}
	if class := outcome.Command(context.DeadlineExceeded); class != (outcome.Class{Kind: outcome.Transient}) {
		t.Errorf("a deadline: class %+v", class)
	}
	r := newRig(t, "")
	ctx := within(t, time.Minute)
	// A deleteMany that met a document which it could not delete may have deleted others.
	stopped := r.wire.On(faultwire.Delete).Reply(faultwire.Set("n", 401), faultwire.WriteError{Code: 20, Message: "stopped half-way"})
	_, err := r.coll.DeleteMany(ctx, bson.D{})
	if class, want := outcome.Command(fmt.Errorf("wrapped: %w", err)), (outcome.Class{Kind: outcome.Permanent, Code: 20}); class != want {
		t.Errorf("a delete that stopped half-way: class %+v, want %+v", class, want)
	}
	stopped.Off()
	stopped = r.wire.On(faultwire.Delete).Reply(faultwire.Set("n", 400), faultwire.WriteConcernError{Code: 64})
	_, err = r.coll.DeleteMany(ctx, bson.D{})
	if class, want := outcome.Command(err), (outcome.Class{Kind: outcome.Transient, Code: 64}); class != want {
		t.Errorf("a delete that was not replicated: class %+v, want %+v", class, want)
	}
	stopped.Off()
	// Of an unordered bulk write, one document was refused and five were stored.
	r.wire.On(faultwire.Insert).Reply(faultwire.Set("n", sent), duplicate(1))
	_, err = r.insert(ctx)
	if class, want := outcome.Command(err), (outcome.Class{Kind: outcome.Permanent, Code: 11000}); class != want {
		t.Errorf("a bulk write: class %+v, want %+v", class, want)
	}
}
