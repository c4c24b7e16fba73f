package mongosim_test

import (
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/mongosim"
)

// TestSessionRunsOneOperationAtATime holds an insert in mid-flight: the fence of the same session waits for it, other
// sessions do not, and an interrupted wait leaves the session to the next.
func TestSessionRunsOneOperationAtATime(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	clock := mongosim.NewClock(time.Unix(1_700_000_000, 0))
	s, c := plain(t, mongosim.Config{ReplicaSet: "rs", Clock: clock, Step: func(step mongosim.Step) {
		if step.Point == mongosim.PointStarted && step.Command == "insert" && held.CompareAndSwap(false, true) {
			close(reached)
			<-release
		}
	}})
	must(t, c.send("db", retryable(1, 1, d("_id", 1))))
	<-reached
	other, waiting, third := member(t, s, 0), member(t, s, 0), member(t, s, 0)
	other.ok(t, retryable(2, 1, d("_id", 2)))
	must(t, waiting.send("db", append(fence(1, 2), d("maxTimeMS", 1000)...)))
	clock.BlockUntil(1, t.Context().Done())
	must(t, third.send("db", fence(1, 3)))
	clock.Advance(time.Second)
	reply, err := waiting.receive()
	must(t, err, refused(commandError(reply), 50))
	close(release)
	reply, err = c.receive()
	must(t, err, commandError(reply))
	reply, err = third.receive()
	must(t, err, commandError(reply))
	want(t, "documents", other.ids(t, everything), []int{1, 2})
	want(t, "a late one", c.code(t, retryable(1, 2, d("_id", 3))), 225)
}

// TestKillSessions stops what runs and what waits in the session.
func TestKillSessions(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	s, c := plain(t, mongosim.Config{ReplicaSet: "rs", Step: func(step mongosim.Step) {
		if step.Point == mongosim.PointYield && held.CompareAndSwap(false, true) {
			close(reached)
			<-release
		}
	}})
	docs := bson.A{}
	for i := range 100 {
		docs = append(docs, d("_id", i))
	}
	must(t, c.send("db", retryable(1, 1, docs...)))
	<-reached
	killer := member(t, s, 0)
	killer.ok(t, d("killSessions", bson.A{d("id", bson.Binary{Subtype: 4, Data: append(make([]byte, 15), 1)})}))
	close(release)
	reply, err := c.receive()
	must(t, err, refused(commandError(reply), 11601))
	want(t, "stored", len(killer.ids(t, everything)), 64)
	want(t, "again", c.ok(t, retryable(1, 1, docs...)).Lookup("n").AsInt64(), 100)
}

// TestYieldEvery: with 1, an insert of three documents can be cut after each of them.
func TestYieldEvery(t *testing.T) {
	for _, c := range []struct{ every, stored int }{{1, 1}, {2, 2}, {0, 3}} {
		var s *mongosim.Server
		s, conn := plain(t, mongosim.Config{ReplicaSet: "rs", YieldEvery: c.every, Step: func(step mongosim.Step) {
			if step.Point == mongosim.PointYield && step.Command == "insert" {
				must(t, s.StepDown())
			}
		}})
		code := conn.code(t, retryable(1, 1, d("_id", 1), d("_id", 2), d("_id", 3)))
		want(t, "interrupted", code == 11602, c.stored < 3)
		_, err := s.StepUp(0)
		must(t, err)
		want(t, "stored", len(conn.ids(t, everything)), c.stored)
	}
}
