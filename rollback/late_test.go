package rollback_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// lose sends inserts, one after the other, whose requests are held on the wire while their client gives up.
func (s *site) lose(t testing.TB, session *mongo.Session, documents ...any) *faultwire.Rule {
	t.Helper()
	held := s.wire.On(faultwire.Insert).Hold()
	for i, d := range documents {
		ctx, cancel := context.WithCancel(ending(t))
		if session != nil {
			ctx = mongo.NewSessionContext(ctx, session)
		}
		arrived := held.ArrivedN(i + 1)
		go func() { <-arrived; cancel() }()
		if _, err := s.coll.InsertOne(ctx, d); err == nil {
			t.Fatal("the insert was answered")
		}
	}
	return held
}

// arrive lets the n-th held insert go on to the server, and returns when the server has answered it.
func arrive(t testing.TB, held *faultwire.Rule, n int) {
	t.Helper()
	if !held.ReleaseNext() {
		t.Error("no insert is held")
		return
	}
	select {
	case <-held.DoneN(n):
	case <-ending(t).Done():
		t.Error("the server did not answer the late insert")
	}
}

// proofsOfOne are two ways of proving one document, whose id is an ObjectID.
func proofsOfOne(s *site, id bson.ObjectID) map[string]rollback.Target {
	return map[string]rollback.Target{
		"range":   {Collection: s.coll, Ranges: []rollback.Range{{First: id, Count: 1}}},
		"stamped": {Collection: s.coll, IDs: []any{id}, Stamp: ours},
	}
}

// An insert arrives when the first deletes are over.
func TestLateWrite(t *testing.T) {
	for _, proof := range []string{"range", "stamped"} {
		t.Run(proof, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				id := first(5)
				foreign := s.store(t, doc("bystander"))
				held := s.lose(t, nil, stamped(id))
				target := proofsOfOne(s, id)[proof]
				target.Late = true
				policy := quick()
				arrived := false
				policy.Observe = func(e rollback.Event) {
					if e.Kind == rollback.Settling && !arrived {
						if e.Delay != policy.Settle {
							t.Errorf("event %+v, want a delay of %v", e, policy.Settle)
						}
						arrived = true
						arrive(t, held, 1)
						s.has(t, append(foreign, raw(t, stamped(id)))...)
					}
				}
				report := s.undo(t, policy, target)
				if !arrived {
					t.Fatal("Undo did not settle")
				}
				s.has(t, foreign...)
				if report.Deleted != 1 || report.Passes != 3 { // before it, with it, and one that finds nothing
					t.Errorf("report %+v, want one deleted in three passes", report)
				}
			})
		})
	}
}

// The same without Late and without a fence: such an insert stays, which is why there are both.
func TestLateWriteUnexpected(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		id := first(5)
		held := s.lose(t, nil, stamped(id))
		report := s.undo(t, quick(), proofsOfOne(s, id)["stamped"])
		arrive(t, held, 1)
		if n := s.count(t); n != 1 {
			t.Errorf("%d documents, want the late one", n)
		}
		if report.Passes != 1 {
			t.Errorf("report %+v, want one pass", report)
		}
	})
}

// As long as something arrives, Undo goes on.
func TestLateWritesOneByOne(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		from := first(5)
		documents := run(from, 3)
		held := s.lose(t, nil, documents...)
		settled := 0
		policy := quick()
		policy.Observe = func(e rollback.Event) {
			if e.Kind == rollback.Settling {
				if settled++; settled <= len(documents) {
					arrive(t, held, settled)
				}
			}
		}
		target := rollback.Target{Collection: s.coll, Late: true, Ranges: []rollback.Range{{First: from, Count: len(documents)}}}
		report := s.undo(t, policy, target)
		s.has(t)
		if report.Deleted != 3 || report.Passes != 5 || settled != 4 {
			t.Errorf("report %+v after settling %d times, want 3 deleted in 5 passes", report, settled)
		}
	})
}

// Only what is late is waited for and deleted again.
func TestOnlyLateTargetsAreRepeated(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		s.store(t, stamped("early"), stamped("late"))
		target := rollback.Target{Collection: s.coll, Stamp: ours, IDs: []any{"early"}}
		late := target
		late.Late, late.IDs = true, []any{"late"}
		report := s.undo(t, quick(), target, late)
		s.has(t)
		if report.Commands != 3 || report.Passes != 2 || report.Elapsed < quick().Settle {
			t.Errorf("report %+v, want three deletes in two passes and the settle time at least", report)
		}
	})
}

// fences returns the fences on the wire: deletes of one document.
func (s *site) fences() []faultwire.Event { return s.wire.Events(isFence) }

var isFence = faultwire.Delete.Where(func(r *faultwire.Request) bool {
	limit, _ := r.Statements()[0].Lookup("limit").AsInt64OK()
	return limit == 1
})

// A fence in the insert's session makes a replica set refuse the insert when it arrives at last, however short the settle time.
func TestFence(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		session := s.session(t)
		id := first(5)
		foreign := s.store(t, doc("bystander"))
		held := s.lose(t, session, stamped(id))
		target := proofsOfOne(s, id)["range"]
		target.Late, target.Fence = true, []*mongo.Session{session, session}
		var seen observed
		policy := quick()
		policy.Settle, policy.Observe = time.Nanosecond, seen.observe
		report := s.undo(t, policy, target)
		if report.Fenced != 1 || report.Commands != 2 || report.Deleted != 0 {
			t.Errorf("report %+v, want one session fenced, although it is named twice, and two deletes", report)
		}
		if events := seen.of(rollback.Fenced); len(events) != 1 || events[0].Collection != s.name() {
			t.Errorf("events %+v", events)
		}
		fences, inserts := s.fences(), s.wire.Events(faultwire.Insert)
		if len(fences) != 1 {
			t.Fatalf("%d fences on the wire, want 1:\n%v", len(fences), s.wire)
		}
		for _, e := range s.wire.Events(faultwire.Delete)[1:] {
			if !fences[0].Given.Before(e.Seen) {
				t.Errorf("a delete was sent before the fence was answered:\n%v", s.wire)
			}
		}
		if string(fences[0].Session()) != string(inserts[0].Session()) {
			t.Error("the fence is not in the insert's session")
		}

		if s.server.Kind == servertest.KindEmbedded { // knows no transaction numbers: the fence does nothing, and no harm
			s.has(t, foreign...)
			held.Drop()
			return
		}
		number, _ := fences[0].TxnNumber()
		if before, ok := inserts[0].TxnNumber(); !ok || number <= before {
			t.Errorf("the fence has transaction number %d, the insert %d", number, before)
		}
		arrive(t, held, 1)
		s.has(t, foreign...)
		reply := s.wire.Events(faultwire.Insert)[0].ServerReply
		if code, _ := reply.Lookup("code").AsInt64OK(); code != 225 {
			t.Errorf("the server's reply to the late insert is %v, want code 225", reply)
		}
	})
}

// An insert that the server is running keeps the fence waiting, so that the deletes after it find what it stores.
func TestFenceWaitsForARunningInsert(t *testing.T) {
	running, goOn := make(chan struct{}), make(chan struct{})
	var inserting, deleting sync.Once
	s := onSim(t, mongosim.Config{ReplicaSet: "rs", Step: func(step mongosim.Step) {
		switch {
		case step.Command == "insert" && step.Point == mongosim.PointStarted:
			inserting.Do(func() { close(running); <-goOn })
		case step.Command == "delete" && step.Point == mongosim.PointArrived:
			deleting.Do(func() { close(goOn) }) // the insert goes on when the first delete is on the server
		}
	}})
	session, err := s.coll.Database().Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(ending(t))
	ctx, cancel := context.WithCancel(mongo.NewSessionContext(ending(t), session))
	go func() { <-running; cancel() }()
	id := first(5)
	if _, err := s.coll.InsertOne(ctx, doc(id)); err == nil {
		t.Fatal("the insert was answered")
	}
	target := proofsOfOne(s, id)["range"]
	target.Fence = []*mongo.Session{session}
	report := s.undo(t, quick(), target)
	if err := s.wire.Drain(ending(t)); err != nil {
		t.Fatal(err)
	}
	s.has(t)
	if report.Fenced != 1 || report.Deleted != 1 {
		t.Errorf("report %+v, want one fence and one document deleted", report)
	}
	if n := s.wire.Count(faultwire.Delete); n != 2 {
		t.Errorf("%d deletes, want the fence and one more:\n%v", n, s.wire)
	}
}

// Where no fence can be put up, the settle time has to do.
func TestFenceThatFails(t *testing.T) {
	tests := []struct {
		name  string
		code  int
		times int
		sent  int // fences
		up    int
	}{
		{"for good", 20, 100, 1, 0},
		{"again and again", 1, 100, 5, 0},
		{"at first", 1, 3, 4, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				session := s.session(t)
				s.store(t, stamped("a"))
				s.wire.On(isFence).First(test.times).Reply(faultwire.CommandError{Code: test.code, Message: "no fence"})
				target := rollback.Target{Collection: s.coll, IDs: []any{"a"}, Stamp: ours, Late: true, Fence: []*mongo.Session{session}}
				report := s.undo(t, quick(), target)
				s.has(t)
				if n := len(s.fences()); n != test.sent || report.Fenced != test.up || report.Passes != 2 {
					t.Errorf("%d fences, report %+v, want %d fences, %d of them up, and two passes", n, report, test.sent, test.up)
				}
			})
		})
	}
}

// For a target that is not late, a fence is one of its documents, so that it outlives a change of primary. Where there is
// none, or no answer, the settle time is waited for; where the server refuses it for good, waiting would not help.
func TestFenceOfOneOfTheDocuments(t *testing.T) {
	one := func(r *faultwire.Request) bool { return r.Statements()[0].Lookup("limit").AsInt64() == 1 }
	tests := []struct {
		name    string
		stored  []any
		refusal int // the code with which fences are refused
		fenced  int
		passes  int
	}{
		{"it is one", []any{stamped("a"), stamped("b")}, 0, 1, 1},
		{"there is none", nil, 0, 1, 2},
		{"no answer", []any{stamped("a"), stamped("b")}, 112, 0, 2},
		{"refused for good", []any{stamped("a"), stamped("b")}, 13, 0, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				session := s.session(t)
				if test.stored != nil {
					s.store(t, test.stored...)
				}
				foreign := s.store(t, doc("c"))
				if test.refusal != 0 {
					s.wire.On(faultwire.Delete.Where(one)).Reply(faultwire.CommandError{Code: test.refusal, Message: "no fence"})
				}
				target := rollback.Target{Collection: s.coll, IDs: []any{"a", "b", "c"}, Stamp: ours, Fence: []*mongo.Session{session}}
				report := s.undo(t, quick(), target)
				s.has(t, foreign...)
				if report.Fenced != test.fenced || report.Passes != test.passes || report.Deleted != int64(len(test.stored)) || report.Excess != 0 {
					t.Errorf("report %+v, want %d fences, %d passes, %d deleted", report, test.fenced, test.passes, len(test.stored))
				}
			})
		})
	}
}

// A fence that was the deletion of an id which alone was the proof is not repeated: who has it now is somebody else. One that
// got no answer is.
func TestFenceOfAnAcknowledgedID(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%t", lost), func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				session := s.session(t)
				s.store(t, doc("a"), doc("b"))
				if lost {
					s.wire.On(faultwire.Delete).First(5).Reply(faultwire.CommandError{Code: 112, Message: "no fence"})
				}
				policy := quick()
				var foreign []bson.Raw
				policy.Observe = func(e rollback.Event) {
					if e.Kind == rollback.Fenced {
						foreign = s.store(t, doc("a", bson.E{Key: "theirs", Value: true}))
					}
				}
				s.undo(t, policy, rollback.Target{Collection: s.coll, IDs: []any{"a", "b"}, Acknowledged: true, Fence: []*mongo.Session{session}})
				s.has(t, foreign...)
				if (foreign == nil) != lost {
					t.Errorf("there was a fence, against what was planned: %v", s.wire)
				}
			})
		})
	}
}

// Ids that alone are the proof are deleted once: by the settle time, who has one is somebody else.
func TestAcknowledgedIDsAreNotDeletedAgain(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		session := s.session(t)
		s.store(t, doc("a"), stamped("b"))
		s.wire.On(isFence).Reply(faultwire.CommandError{Code: 112, Message: "no fence"})
		policy := quick()
		var foreign []bson.Raw
		policy.Observe = func(e rollback.Event) {
			if e.Kind == rollback.Settling && foreign == nil {
				foreign = s.store(t, doc("a", bson.E{Key: "theirs", Value: true}))
			}
		}
		fence := []*mongo.Session{session}
		s.undo(t, policy,
			rollback.Target{Collection: s.coll, IDs: []any{"b"}, Stamp: ours, Fence: fence},
			rollback.Target{Collection: s.coll, IDs: []any{"a"}, Acknowledged: true, Fence: fence})
		s.has(t, foreign...)
		if foreign == nil {
			t.Error("the settle time was not waited for")
		}
	})
}

// Unproven documents are read after the settle time, and not before: they may be on their way.
func TestUnprovenIsReadAfterTheSettleTime(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		held := s.lose(t, nil, doc("mine, perhaps"))
		policy := quick()
		policy.Observe = func(e rollback.Event) {
			if e.Kind == rollback.Settling {
				if n := s.wire.Count(faultwire.Find); n != 0 {
					t.Errorf("%d reads before the settle time", n)
				}
				arrive(t, held, 1)
			}
		}
		report, err := rollback.Undo(ending(t), policy, rollback.Target{Collection: s.coll, Unproven: []any{"mine, perhaps", "absent"}})
		left(t, failure(t, err, rollback.ErrUnproven), seen(s.name(), value(t, "mine, perhaps")))
		if n := s.wire.Count(faultwire.Delete); n != 0 || report.Commands != 0 {
			t.Errorf("%d deletes, report %+v, want no delete", n, report)
		}
		if n := s.count(t); n != 1 {
			t.Errorf("%d documents", n)
		}
	})
}

// Whether unproven documents are there may be impossible, or hard, to find out.
func TestUnprovenReadFails(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		target := rollback.Target{Collection: s.coll, Unproven: []any{"a", "b"}}
		forbidden := s.wire.On(faultwire.Find).Reply(faultwire.CommandError{Code: 13, Message: "not authorized"})
		_, err := rollback.Undo(ending(t), quick(), target)
		left(t, failure(t, err, nil), rollback.Leftover{Collection: s.name(), ID: value(t, "a")}, rollback.Leftover{Collection: s.name(), ID: value(t, "b")})
		if forbidden.Fired() != 1 {
			t.Errorf("%d reads, want one", forbidden.Fired())
		}
		forbidden.Off()
		odd := s.wire.On(faultwire.Find).First(3).Reply(faultwire.CommandError{Code: 1, Message: "something odd"})
		s.undo(t, quick(), target)
		if odd.Fired() != 3 {
			t.Errorf("%d reads that failed, want three", odd.Fired())
		}
	})
}
