package rollback_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/rollback"
)

// job is a thousand stored documents, with two of somebody else's around them.
type job struct {
	from    bson.ObjectID
	foreign []bson.Raw
}

const jobSize = 1_000

func (s *site) job(t testing.TB) job {
	t.Helper()
	from := first(1_000)
	foreign := s.store(t, doc(after(from, -1)), doc(after(from, jobSize)))
	s.store(t, run(from, jobSize)...)
	return job{from: from, foreign: foreign}
}

func (j job) target(s *site) rollback.Target {
	return rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: j.from, Count: jobSize}}}
}

// A deleteMany is not repeated by the driver, whatever happens to it; it is by Undo.
func TestDeleteIsRepeated(t *testing.T) {
	tests := []struct {
		fault    faultwire.Fault
		deleted  int64 // of the answers that arrived; -1 for any
		commands int   // -1 for two or more
	}{
		{faultwire.DropReply(), 0, 2},
		{faultwire.DropRequest(), jobSize, 2},
		{faultwire.Cut(), -1, -1}, // the second delete races with the first
		{faultwire.CutReply(30), 0, 2},
		{faultwire.Reply(faultwire.CommandError{Code: 11602, Message: "interrupted"}), jobSize, 2},
		{faultwire.Reply(faultwire.CommandError{Code: 8000, Message: "quota exceeded"}), jobSize, 2},
		{faultwire.Reply(faultwire.CommandError{Code: 1, Message: "something odd"}), jobSize, 2},
		{faultwire.Lie(faultwire.CommandError{Code: 50, Message: "exceeded time limit"}), 0, 2},
		{faultwire.Lie(faultwire.WriteConcernError{Code: 64, Message: "waiting for replication timed out"}), jobSize, 2},
		{faultwire.Lie(faultwire.WriteConcernError{Code: 100, Message: "not enough members"}), jobSize, 2},
	}
	for _, test := range tests {
		t.Run(test.fault.String(), func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				j := s.job(t)
				s.wire.On(faultwire.Delete).Once().Do(test.fault)
				report := s.undo(t, quick(), j.target(s))
				if err := s.wire.Drain(ending(t)); err != nil {
					t.Fatal(err)
				}
				s.has(t, j.foreign...)
				if report.Deleted != test.deleted && test.deleted >= 0 || report.Excess != 0 {
					t.Errorf("report %+v, want %d deleted", report, test.deleted)
				}
				if n := s.wire.Count(faultwire.Delete); n != report.Commands || n < 2 || n != test.commands && test.commands >= 0 {
					t.Errorf("%d deletes on the wire, report %+v, want %d", n, report, test.commands)
				}
			})
		})
	}
}

// A server stops after 400 of 1,000, and says so.
func TestDeleteStopsHalfWay(t *testing.T) {
	some := func(j job, n int) func(bson.Raw) bson.Raw {
		return func(command bson.Raw) bson.Raw {
			return withFilter(command, bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: j.from}, {Key: "$lt", Value: after(j.from, n)}}}})
		}
	}
	answers := []struct {
		name   string
		answer faultwire.Answer
	}{
		{"a write error", faultwire.WriteError{Code: 11602, Message: "interrupted"}},
		{"a command error", faultwire.CommandError{Code: 11602, Message: "interrupted"}},
		{"no error", faultwire.Set("ok", 1)},
	}
	for _, test := range answers {
		t.Run(test.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				j := s.job(t)
				s.wire.On(faultwire.Delete).Once().Do(faultwire.RewriteRequest(some(j, 400)), faultwire.Lie(test.answer))
				s.wire.On(faultwire.Delete).Once().Do(faultwire.Before(func(context.Context, *faultwire.Request) {
					if n := s.count(t); n != 600+2 {
						t.Errorf("%d documents before the second delete, want 602: the test does not test what it says", n)
					}
				}))
				report := s.undo(t, quick(), j.target(s))
				s.has(t, j.foreign...)
				if report.Commands != 2 || report.Excess != 0 {
					t.Errorf("report %+v, want 2 commands", report)
				}
			})
		})
	}
}

// withFilter replaces the filter of a delete.
func withFilter(command bson.Raw, filter bson.D) bson.Raw {
	var d bson.D
	if err := bson.Unmarshal(command, &d); err != nil {
		panic(err)
	}
	for i := range d {
		if d[i].Key == "deletes" {
			d[i].Value = bson.A{bson.D{{Key: "q", Value: filter}, {Key: "limit", Value: 0}}}
		}
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// What a server will never delete ends at once, with a list of what is really there.
func TestPermanentErrors(t *testing.T) {
	for _, code := range []int{13, 20, 73, 166} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				foreign := s.store(t, doc("bystander"))
				mine := s.store(t, stamped("a"), stamped("b"))
				var seen observed
				policy := quick()
				policy.Observe = seen.observe
				rule := s.wire.On(faultwire.Delete).Reply(faultwire.CommandError{Code: code, CodeName: "Odd", Message: "it cannot be done"})
				target := rollback.Target{Collection: s.coll, IDs: []any{"a", "never stored", "b"}, Stamp: ours}
				report, err := rollback.Undo(ending(t), policy, target)
				failed := failure(t, err, nil)
				left(t, failed, leftovers(s, mine, true)...)
				var command mongo.CommandError
				if !errors.As(err, &command) || int(command.Code) != code {
					t.Errorf("the server's error cannot be reached through %v", err)
				}
				if rule.Fired() != 1 || report.Commands != 1 || report.Passes != 1 || report.Deleted != 0 {
					t.Errorf("%d deletes, report %+v, want one delete", rule.Fired(), report)
				}
				if retries, ends := seen.of(rollback.Retrying), seen.of(rollback.GaveUp); len(retries) != 0 || len(ends) != 1 || ends[0].Documents != 2 {
					t.Errorf("events %+v and %+v, want that it gave up 2 documents", retries, ends)
				}
				s.has(t, append(foreign, mine...)...)

				// Somebody with more rights finishes it.
				rule.Off()
				s.undo(t, quick(), target)
				s.has(t, foreign...)
			})
		})
	}
}

func leftovers(s *site, documents []bson.Raw, seen bool) []rollback.Leftover {
	var list []rollback.Leftover
	for _, d := range documents {
		list = append(list, rollback.Leftover{Collection: s.name(), ID: d.Lookup("_id"), Seen: seen})
	}
	return list
}

// Who may not even read gets a list of all that may be there; so does who would otherwise be told less than the truth.
func TestPermanentErrorsThatCannotBeLookedInto(t *testing.T) {
	const late = "inserts may still arrive"
	refusal := faultwire.CommandError{Code: 13, Message: "not authorized"}
	tests := []struct {
		name     string
		rig      func(*site)
		commands int
	}{
		{"reading is forbidden", func(s *site) { s.wire.On(faultwire.Delete, faultwire.Find).Reply(refusal) }, 1},
		{late, func(s *site) { s.wire.On(faultwire.Delete).Reply(refusal) }, 1},
		{"deleted, but not for good", func(s *site) {
			s.wire.On(faultwire.Delete).Lie(faultwire.WriteConcernError{Code: 79, Message: "no such write concern"})
		}, 1},
		{"deleted, but nobody said for good", func(s *site) {
			s.wire.On(faultwire.Delete).Once().DropReply()
			s.wire.On(faultwire.Delete).Reply(refusal)
		}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				s.store(t, stamped("a"))
				test.rig(s)
				target := rollback.Target{Collection: s.coll, IDs: []any{"a", "never stored"}, Stamp: ours, Late: test.name == late}
				report, err := rollback.Undo(ending(t), quick(), target)
				left(t, failure(t, err, nil), rollback.Leftover{Collection: s.name(), ID: value(t, "a")}, rollback.Leftover{Collection: s.name(), ID: value(t, "never stored")})
				if report.Commands != test.commands {
					t.Errorf("report %+v, want %d commands", report, test.commands)
				}
			})
		})
	}
}

// Where nothing can be deleted but there is nothing to delete either, nothing is wrong.
func TestPermanentErrorsWithNothingLeft(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		foreign := s.store(t, doc("bystander"))
		s.wire.On(faultwire.Delete).Reply(faultwire.CommandError{Code: 13, Message: "not authorized"})
		s.undo(t, quick(), rollback.Target{Collection: s.coll, IDs: []any{"a"}, Stamp: ours, Ranges: []rollback.Range{{First: first(1), Count: 5}}})
		s.has(t, foreign...)
	})
}

func TestView(t *testing.T) {
	s := onSim(t, mongosim.Config{}) // FerretDB 1.24 has no views
	foreign := s.store(t, doc("bystander"))
	if err := s.past.Database().CreateView(ending(t), "view", "orders", mongo.Pipeline{}); err != nil {
		t.Fatal(err)
	}
	view := s.coll.Database().Collection("view")
	s.undo(t, quick(), rollback.Target{Collection: view, Acknowledged: true, IDs: []any{"never stored"}})
	_, err := rollback.Undo(ending(t), quick(), rollback.Target{Collection: view, Acknowledged: true, IDs: []any{"bystander"}})
	if failed := failure(t, err, nil); len(failed.Leftovers) != 1 || !strings.Contains(err.Error(), "166") {
		t.Errorf("error %v, want code 166 and one leftover", err)
	}
	s.has(t, foreign...)
}

// A server that acknowledges deletes and removes nothing (some do so in capped collections) is not asked for ever.
func TestDeleteThatDoesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		foreign := s.store(t, doc("bystander"))
		mine := s.store(t, stamped("a"), stamped("b"))
		idle := s.wire.On(faultwire.Delete).Reply(faultwire.Set("n", 0))
		target := rollback.Target{Collection: s.coll, IDs: []any{"a", "b", "never stored"}, Stamp: ours}
		report, err := rollback.Undo(ending(t), quick(), target)
		left(t, failure(t, err, nil), leftovers(s, mine, true)...)
		if idle.Fired() != 5 || report.Commands != 5 || report.Deleted != 0 {
			t.Errorf("%d deletes, report %+v, want 5 deletes", idle.Fired(), report)
		}
		s.has(t, append(foreign, mine...)...)
		idle.Off()

		// That an answer was lost before does not matter: what is acknowledged afterwards includes it.
		lost := s.wire.On(faultwire.Delete).Once().DropRequest()
		idle = s.wire.On(faultwire.Delete).Reply(faultwire.Set("n", 0))
		report, err = rollback.Undo(ending(t), quick(), target)
		left(t, failure(t, err, nil), leftovers(s, mine, true)...)
		if lost.Fired() != 1 || report.Commands != 6 {
			t.Errorf("%d lost deletes, report %+v, want 6 deletes", lost.Fired(), report)
		}
		idle.Off()

		// Now and then doing nothing is not it: what is removed meanwhile counts.
		lazy := s.wire.On(faultwire.Delete).First(4).Reply(faultwire.Set("n", 0))
		s.undo(t, quick(), target)
		s.has(t, foreign...)
		if lazy.Fired() != 4 {
			t.Errorf("%d idle deletes", lazy.Fired())
		}
	})
}

// Throttled is no reason to give up, but one to wait as long as the server wants, and to come with one delete at a time.
func TestThrottled(t *testing.T) {
	const hint = 300 * time.Millisecond
	refusals := []struct {
		name   string
		answer faultwire.Answer
	}{
		{"Cosmos DB", faultwire.Throttled(hint)},
		{"hint in the text only", faultwire.CommandError{Code: 16500, Message: "Error=16500, RetryAfterMs=300, Details='too much'"}},
		{"MongoDB", faultwire.Overloaded(hint)},
	}
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // most of the time it waits
			// By itself, the driver repeats what is labelled as MongoDB's overload, with delays of its own.
			throttle(t, onSim(t, mongosim.Config{}, options.Client().SetMaxAdaptiveRetries(0)), hint, test.answer)
		})
	}
}

func throttle(t *testing.T, s *site, hint time.Duration, answer faultwire.Answer) {
	const places, refusals = 4, 5
	j := s.job(t)
	var seen observed
	policy := quick()
	policy.Observe, policy.Concurrency, policy.ChunkRange = seen.observe, places, jobSize/12

	// The first deletes are under way together when the server complains; then it complains once more.
	together := s.wire.On(faultwire.Delete).First(places).Do(faultwire.Reply(answer), faultwire.HoldReply())
	s.wire.On(faultwire.Delete).Times(refusals - places).Reply(answer)
	var running, after, most atomic.Int64
	var complained atomic.Bool
	s.wire.Observe(func(c faultwire.Change) {
		if c.Event.Name != faultwire.Delete {
			return
		}
		switch c.Stage {
		case faultwire.Seen:
			now := running.Add(1)
			if complained.Load() && after.Add(1) <= 2 { // from the third on, a success may have widened it
				most.Store(max(most.Load(), now))
			}
		case faultwire.Given:
			running.Add(-1)
		}
	})
	go func() {
		<-together.ArrivedN(places)
		complained.Store(true)
		together.Release()
	}()
	report := s.undo(t, policy, j.target(s))
	s.has(t, j.foreign...)
	if report.Deleted != jobSize {
		t.Errorf("report %+v, want all deleted", report)
	}
	retries := seen.of(rollback.Retrying)
	if len(retries) != refusals {
		t.Errorf("%d repetitions, want %d", len(retries), refusals)
	}
	for _, retry := range retries {
		if retry.Delay < hint || retry.Err == nil || retry.Collection != s.name() || retry.Attempt < 1 {
			t.Errorf("repetition %+v, want a delay of %v at least", retry, hint)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d deletes at a time after the server had complained, want 1", most.Load())
	}
	// No delete, of whatever part, comes before the delay is over that the last complaint asked for.
	var last faultwire.Mark
	for i, e := range s.wire.Events(faultwire.Delete) {
		if i >= places && e.Seen.At < last.At+hint {
			t.Errorf("delete %d was sent %v after a complaint, want %v at least", i, e.Seen.At-last.At, hint)
		}
		if e.Fault != "" && e.Given.At > last.At {
			last = e.Given
		}
	}
}
