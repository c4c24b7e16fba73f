package rollback_test

import (
	"bytes"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/rollback"
)

// Nothing is sent that is not needed.
func TestNothingToDelete(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		empty := rollback.Target{Collection: s.coll, Late: true, Acknowledged: true, IDs: []any{}, ShardKeys: []bson.D{}, Ranges: []rollback.Range{}, Unproven: []any{}}
		for _, targets := range [][]rollback.Target{nil, {}, {empty}, {empty, {Collection: s.coll}}} {
			report := s.undo(t, quick(), targets...)
			report.Elapsed = 0
			if n := s.wire.Count(); n != 0 || report != (rollback.Report{}) {
				t.Errorf("%d commands, report %+v", n, report)
			}
		}
		gone := rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: first(1), Count: 5}}}
		collections := []struct {
			name string
			make func()
		}{
			{"missing", func() {}},
			{"empty", func() { s.store(t, doc(1)); _, _ = s.past.DeleteMany(ending(t), bson.D{}) }},
			{"dropped", func() {
				s.store(t, doc(1))
				if err := s.past.Drop(ending(t)); err != nil {
					t.Error(err)
				}
			}},
		}
		for _, c := range collections {
			c.make()
			before, deletes := s.wire.Count(), s.wire.Count(faultwire.Delete)
			report := s.undo(t, quick(), gone)
			if report.Commands != 1 || report.Deleted != 0 || s.wire.Count(faultwire.Delete)-deletes != 1 || s.wire.Count()-before != 2 {
				t.Errorf("%s collection: report %+v, %d commands, want a delete, and a look at what it left", c.name, report, s.wire.Count()-before)
			}
		}
	})
}

// Fewer documents than named is not an error: some were refused, some deleted by others.
func TestSomeAreGone(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		s.store(t, stamped(1), stamped(3), stamped(5))
		report := s.undo(t, quick(), rollback.Target{Collection: s.coll, IDs: []any{1, 2, 3, 4, 5}, Stamp: ours})
		s.has(t)
		if report.Deleted != 3 || report.Commands != 1 || report.Excess != 0 {
			t.Errorf("report %+v, want 3 deleted by one delete", report)
		}
	})
}

// Undoing twice, or by several at a time, is the same as once.
func TestAgainAndAtTheSameTime(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		from := first(9)
		foreign := s.store(t, doc("bystander"), doc("same id"))
		s.store(t, append(run(from, 500), stamped("a"), stamped("b"))...)
		targets := []rollback.Target{
			{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: 500}}, Late: true},
			{Collection: s.coll, IDs: []any{"a", "b", "same id"}, Stamp: ours},
		}
		policy := quick()
		policy.ChunkRange = 50
		var group sync.WaitGroup
		reports, failures := make([]rollback.Report, 6), make([]error, 6)
		for i := range reports {
			group.Go(func() { reports[i], failures[i] = rollback.Undo(ending(t), policy, targets...) })
		}
		group.Wait()
		deleted := int64(0)
		for i, r := range reports {
			deleted += r.Deleted
			if failures[i] != nil || r.Excess != 0 {
				t.Errorf("report %+v, error %v", r, failures[i])
			}
		}
		if deleted != 502 {
			t.Errorf("%d deleted by all together, want 502", deleted)
		}
		s.has(t, foreign...)
		if again := s.undo(t, policy, targets...); again.Deleted != 0 {
			t.Errorf("report %+v of doing it again", again)
		}
		s.has(t, foreign...)
	})
}

// Several collections, with everything that a target can have.
func TestSeveralTargets(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		other := s.past.Database().Collection("lines")
		if _, err := other.InsertMany(ending(t), []any{stamped(1), doc(2), doc("acknowledged")}); err != nil {
			t.Fatal(err)
		}
		from := first(9)
		foreign := s.store(t, doc("bystander"))
		s.store(t, append(run(from, 3), stamped(1))...)
		var seen observed
		policy := quick()
		policy.Observe = seen.observe
		lines := s.coll.Database().Collection("lines")
		report := s.undo(t, policy,
			rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: 2}, {First: after(from, 2), Count: 1}}, IDs: []any{1}, Stamp: ours, Unproven: []any{"u"}},
			rollback.Target{Collection: lines, IDs: []any{1, 2}, Stamp: ours},
			rollback.Target{Collection: lines, IDs: []any{"acknowledged"}, Acknowledged: true})
		s.has(t, foreign...)
		if n, err := other.CountDocuments(ending(t), bson.D{}); n != 1 || err != nil {
			t.Errorf("%d documents in the other collection, want somebody else's only; %v", n, err)
		}
		if report.Deleted != 6 || report.Commands != 5 || report.Passes != 1 || report.Elapsed < policy.Settle {
			t.Errorf("report %+v, want 6 deleted by 5 deletes", report)
		}
		deleted := map[string]int64{}
		for _, e := range seen.of(rollback.Deleted) {
			deleted[e.Collection] += e.Documents
		}
		if want := map[string]int64{s.name(): 4, s.past.Database().Name() + ".lines": 2}; !reflect.DeepEqual(deleted, want) {
			t.Errorf("told of %v, want %v", deleted, want)
		}
	})
}

// A delete that removed more than it named is the one thing that must not go unnoticed.
func TestExcess(t *testing.T) {
	tests := []struct {
		name   string
		answer func(*faultwire.When) *faultwire.Rule
		excess int64
		times  int // deletes
	}{
		{"removed", func(w *faultwire.When) *faultwire.Rule { return w.Lie(faultwire.Set("n", 5)) }, 3, 1},
		{"removed one too many", func(w *faultwire.When) *faultwire.Rule { return w.Lie(faultwire.Set("n", 3)) }, 1, 1},
		// Who says something impossible is not believed the rest.
		{"said so and did nothing", func(w *faultwire.When) *faultwire.Rule { return w.Reply(faultwire.Set("n", 5)) }, 3, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				foreign := s.store(t, doc("bystander"))
				s.store(t, stamped("a"), stamped("b"))
				test.answer(s.wire.On(faultwire.Delete).Once())
				var log bytes.Buffer
				policy := quick()
				policy.Logger = slog.New(slog.NewTextHandler(&log, nil))
				report, err := rollback.Undo(ending(t), policy, rollback.Target{Collection: s.coll, IDs: []any{"a", "b"}, Stamp: ours})
				failed := failure(t, err, rollback.ErrExcess)
				left(t, failed)
				if failed.Excess != test.excess || report.Excess != test.excess || report.Commands != test.times {
					t.Errorf("excess %d, report %+v, want an excess of %d", failed.Excess, report, test.excess)
				}
				for what, text := range map[string]string{"message": err.Error(), "log": log.String()} {
					if !strings.Contains(text, "ALARM") {
						t.Errorf("the %s %q does not tell the alarm", what, text)
					}
				}
				if !strings.Contains(log.String(), "level=ERROR") {
					t.Errorf("the log %q is not loud", log.String())
				}
				s.has(t, foreign...)
			})
		})
	}
}

// What the collection and its client are set to does not matter: what is deleted, and how safely, is the policy's.
func TestSettingsOfTheCollectionDoNotMatter(t *testing.T) {
	yes := true
	tests := []struct {
		name    string
		concern *writeconcern.WriteConcern
		want    bson.D
	}{
		{"default", nil, bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}},
		{"own", &writeconcern.WriteConcern{W: 1, Journal: &yes}, bson.D{{Key: "w", Value: int32(1)}, {Key: "j", Value: true}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := onSim(t, mongosim.Config{ReplicaSet: "rs"})
			// A registry that writes an ObjectID and a stamp in another way than they are stored.
			odd := bson.NewRegistry()
			odd.RegisterTypeEncoder(reflect.TypeFor[bson.ObjectID](), bson.ValueEncoderFunc(func(_ bson.EncodeContext, w bson.ValueWriter, v reflect.Value) error {
				return w.WriteString(v.Interface().(bson.ObjectID).Hex())
			}))
			client := newSite(t, s.server, options.Client().SetDialer(s.wire).SetRegistry(odd).SetBSONOptions(&options.BSONOptions{ObjectIDAsHexString: true})).coll.Database().Client()
			coll := client.Database(s.past.Database().Name()).Collection("orders", options.Collection().
				SetWriteConcern(writeconcern.Unacknowledged()).SetReadPreference(readpref.SecondaryPreferred()).SetReadConcern(readconcern.Available()))
			session, err := client.StartSession()
			if err != nil {
				t.Fatal(err)
			}
			defer session.EndSession(ending(t))
			from := first(3)
			s.store(t, append(run(from, 2), stamped("a"))...)
			policy := quick()
			policy.WriteConcern = test.concern
			target := rollback.Target{Collection: coll, Ranges: []rollback.Range{{First: from, Count: 3}}, IDs: []any{"a", "b"}, Stamp: ours, Unproven: []any{"u"}}
			target.Fence = append(target.Fence, session)
			report := s.undo(t, policy, target)
			s.has(t)
			if report.Deleted != 3 || report.Fenced != 1 {
				t.Errorf("report %+v, want 3 deleted", report)
			}
			for _, e := range s.wire.Events() {
				switch e.Name {
				case faultwire.Delete:
					if got := e.WriteConcern(); !bytes.Equal(got, raw(t, test.want)) {
						t.Errorf("write concern %v, want %v", got, test.want)
					}
				case faultwire.Find:
					if level, _ := e.ReadConcern().Lookup("level").StringValueOK(); level != "local" {
						t.Errorf("read concern %v, want local", e.ReadConcern())
					}
					if mode, ok := e.ReadPreference().Lookup("mode").StringValueOK(); ok && mode != "primary" && mode != "primaryPreferred" {
						t.Errorf("read preference %v, want the primary", e.ReadPreference())
					}
				}
			}
			if n := s.wire.Count(faultwire.Find); n != 3 {
				t.Errorf("%d reads, want 3", n)
			}
		})
	}
}

// No more deletes at a time than allowed, and as many.
func TestConcurrency(t *testing.T) {
	for _, test := range []struct{ allowed, want int }{{0, 4}, {-1, 4}, {1, 1}, {3, 3}} {
		s := onSim(t, mongosim.Config{})
		from := first(9)
		s.store(t, run(from, 100)...)
		together := s.wire.On(faultwire.Delete).First(test.want).HoldReply()
		running, most := 0, 0 // the observer's calls do not overlap
		s.wire.Observe(func(c faultwire.Change) {
			switch {
			case c.Event.Name != faultwire.Delete:
			case c.Stage == faultwire.Seen:
				running++
				most = max(most, running)
			case c.Stage == faultwire.Given:
				running--
			}
		})
		go func() {
			select {
			case <-together.ArrivedN(test.want):
			case <-time.After(10 * time.Second):
				t.Errorf("concurrency %d: fewer than %d at a time", test.allowed, test.want)
			}
			together.Release()
		}()
		policy := quick()
		policy.Concurrency, policy.ChunkRange = test.allowed, 10
		s.undo(t, policy, rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: 100}}})
		s.has(t)
		if err := s.wire.Drain(ending(t)); err != nil {
			t.Fatal(err)
		}
		if most != test.want {
			t.Errorf("concurrency %d: %d at a time, want %d", test.allowed, most, test.want)
		}
	}
}

// Calls of the observer do not overlap, whatever happens at the same time.
func TestObserverIsCalledOneAtATime(t *testing.T) {
	s := onSim(t, mongosim.Config{})
	from := first(9)
	s.store(t, run(from, 200)...)
	s.wire.On(faultwire.Delete).EveryNth(3).DropReply()
	var inside sync.Mutex
	calls := 0
	policy := quick()
	policy.ChunkRange, policy.Concurrency = 5, 8
	policy.Observe = func(rollback.Event) {
		if !inside.TryLock() {
			t.Error("two calls at a time")
			return
		}
		defer inside.Unlock()
		calls++
		time.Sleep(100 * time.Microsecond) // give another call a chance to be wrong
	}
	s.undo(t, policy, rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: 200}}})
	s.has(t)
	if calls < 40 {
		t.Errorf("%d calls", calls)
	}
}
