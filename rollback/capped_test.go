package rollback_test

import (
	"errors"
	"fmt"
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

// A capped collection gives documents back from MongoDB 5.0 on. Before, the refusal, whose code differs between versions,
// ends the undo at once, with everything named.
func TestCappedCollection(t *testing.T) {
	for _, server := range []mongosim.Config{
		{MaxWireVersion: 9, CappedDeleteCode: 20}, {MaxWireVersion: 9, CappedDeleteCode: 10089}, {MaxWireVersion: 13}, {},
	} {
		t.Run(fmt.Sprintf("wire version %d, code %d", server.MaxWireVersion, server.CappedDeleteCode), func(t *testing.T) {
			s := onSim(t, server)
			if err := s.past.Database().CreateCollection(ending(t), s.past.Name(), options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<16)); err != nil {
				t.Fatal(err)
			}
			foreign := s.store(t, doc("bystander"), doc("b"))
			mine := s.store(t, stamped("a"), stamped("c"))
			report, err := rollback.Undo(ending(t), quick(), rollback.Target{Collection: s.coll, IDs: []any{"a", "b", "c"}, Stamp: ours})
			if server.CappedDeleteCode == 0 {
				if err != nil || report.Deleted != 2 {
					t.Errorf("report %+v, error %v", report, err)
				}
				s.has(t, foreign...)
				return
			}
			left(t, failure(t, err, nil), leftovers(s, mine, true)...)
			var refused mongo.WriteException
			if !errors.As(err, &refused) || !refused.HasErrorCode(int(server.CappedDeleteCode)) {
				t.Errorf("the server's reason cannot be reached: %v", err)
			}
			if n := s.wire.Count(faultwire.Delete); n > 2 {
				t.Errorf("%d deletes, repeating does not help", n)
			}
			s.has(t, append(foreign, mine...)...)
		})
	}
}

// A server that is busy with others turns nineteen of twenty deletes away for as long as it takes. Undo does not starve:
// its delays do not grow without bound, and it ends with nothing left.
func TestThrottledAllTheTime(t *testing.T) {
	s := onSim(t, mongosim.Config{})
	j := s.job(t)
	var asked atomic.Int64
	s.server.Sim.SetThrottle(&mongosim.Throttle{Refuse: func() time.Duration {
		if asked.Add(1)%20 == 0 {
			return 0
		}
		return time.Millisecond
	}})
	policy := quick()
	policy.ChunkRange, policy.MaxDelay = jobSize/10, 2*time.Millisecond
	report := s.undo(t, policy, j.target(s))
	s.has(t, j.foreign...)
	if report.Deleted != jobSize || report.Commands < 10*20 {
		t.Errorf("report %+v, want %d deleted by %d attempts or more", report, jobSize, 10*20)
	}
	if count, err := s.past.CountDocuments(ending(t), bson.D{}); count != 2 || err != nil {
		t.Errorf("%d documents are there, %v", count, err)
	}
}
