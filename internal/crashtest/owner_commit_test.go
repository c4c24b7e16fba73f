package crashtest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

// verdict is how a batch ends whose commit meets trouble.
type verdict string

const (
	isStored     verdict = "stored"
	isRolledBack verdict = "rolled back"
	isUnresolved verdict = "unresolved"
	isFenced     verdict = "fenced"
)

// TestCommitInTrouble loses and refuses a commit in every way. Whatever the owner says must be true at once, and stay true
// through what is still on its way and through recoveries; and nothing may be half there.
func TestCommitInTrouble(t *testing.T) {
	commit, abort := to("committed"), to("aborting")
	space := faultwire.Reply(faultwire.CommandError{Code: 14031, Message: "out of disk space"})
	lostReply, lostRequest, refused, held := faultwire.DropReply(), faultwire.DropRequest(), faultwire.Reply(refuse), faultwire.HoldRequest()
	type trouble struct {
		on    faultwire.Match
		fault faultwire.Fault
		first bool // the first time only
	}
	commitSeen := new(atomic.Bool)
	any := onJournal().Where(func(*faultwire.Request) bool { return commitSeen.Load() })
	for _, c := range []struct {
		name     string
		troubles []trouble
		want     verdict
		stored   bool // in the end
	}{
		{"none", nil, isStored, true},
		{"the reply is lost", []trouble{{commit, lostReply, true}}, isStored, true},
		{"the request is lost", []trouble{{commit, lostRequest, true}}, isStored, true},
		{"every reply is lost", []trouble{{commit, lostReply, false}}, isUnresolved, true},
		{"every request is lost", []trouble{{commit, lostRequest, false}}, isUnresolved, false},
		{"refused", []trouble{{commit, refused, false}}, isRolledBack, false},
		{"refused, and so is the abort", []trouble{{commit, refused, false}, {abort, refused, false}}, isRolledBack, false},
		{"the reply is lost, then it is refused, and so is the abort", []trouble{{commit, lostReply, true}, {commit, refused, false}, {abort, refused, false}}, isStored, true},
		{"the request is lost, then it is refused, and so is the abort", []trouble{{commit, lostRequest, true}, {commit, refused, false}, {abort, refused, false}}, isRolledBack, false},
		{"the reply is lost, then the journal is silent", []trouble{{commit, lostReply, true}, {any, lostRequest, false}}, isUnresolved, true},
		{"the request is lost, and the journal is silent", []trouble{{commit, lostRequest, false}, {any, lostRequest, false}}, isUnresolved, false},
		{"not durable", []trouble{{commit, faultwire.Lie(faultwire.WriteConcernError{Code: 79, Message: "no such mode"}), false}}, isStored, true},
		{"the request is late, the rest is fast", []trouble{{commit, held, true}, {commit, refused, false}}, isRolledBack, false},
		{"out of space, for everything", []trouble{{commit, space, false}, {any, space, false}}, isUnresolved, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachBubble(t, func(j *journaled) {
				t := j.T
				commitSeen.Store(false)
				j.wire.On(commit.Where(func(*faultwire.Request) bool { commitSeen.Store(true); return false })).Pass()
				var rules []*faultwire.Rule
				for _, trouble := range c.troubles {
					when := j.wire.On(trouble.on)
					if trouble.first {
						when = when.Once()
					}
					rules = append(rules, when.Do(trouble.fault))
				}
				config := j.config(func(c *batch.Config) { c.CommandTimeout, c.RetryTime = 2*time.Second, 10*time.Second })
				began := time.Now()
				result, err := batch.New(config).InsertOnce(context.Background(), "key", j.parts()...)
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %s", took)
				}
				said := isStored
				var failed *batch.Error
				if err != nil {
					failed = j.failed(result, err)
					switch {
					case failed.Unresolved():
						said = isUnresolved
					case errors.Is(err, batch.ErrFenced):
						said = isFenced
					case failed.RolledBack():
						said = isRolledBack
					default:
						t.Errorf("the owner says: %v", err)
					}
				}
				if said != c.want {
					t.Errorf("the owner says %s, not %s: %v", said, c.want, err)
				}
				if len(rules) > 0 && rules[0].Fired() == 0 {
					t.Error("the trouble did not happen")
				}
				now := map[verdict]int{isStored: partsSize, isRolledBack: 0, isFenced: 0, isUnresolved: partsSize}[said]
				if n := j.there(); n != now {
					t.Errorf("the owner says %s, and %d documents are there", said, n)
				}
				if said == isUnresolved {
					j.unresolved(failed, config)
				}
				j.wire.Calm() // what was held arrives now
				if err := j.wire.Drain(context.Background()); err != nil {
					t.Error(err)
				}
				j.resolved(config, said, c.stored)
			})
		})
	}
}

// unresolved checks what an owner says that does not know.
func (j *journaled) unresolved(failed *batch.Error, config batch.Config) {
	j.Helper()
	if failed.RolledBack() || !errors.Is(failed, batch.ErrCommitUnknown) || failed.Incomplete != nil || len(failed.Leftovers()) > 0 {
		j.Errorf("rolled back %t, incomplete %v: %v", failed.RolledBack(), failed.Incomplete, failed)
	}
	if text := failed.Error(); !strings.Contains(text, `Resolve("key")`) || strings.Contains(text, "nothing of it is left") {
		j.Errorf("it says: %s", text)
	}
	if resolution, _, err := batch.New(config).Resolve(context.Background(), failed.JournalID); err == nil && resolution == batch.NotStored {
		j.Errorf("while the journal is silent, the batch is said to be %v", resolution)
	}
}

// resolved checks that the truth can be had now, before a recovery and after it.
func (j *journaled) resolved(config batch.Config, said verdict, stored bool) {
	j.Helper()
	inserter := batch.New(config)
	first, _, err := inserter.Resolve(context.Background(), "key")
	if err != nil || stored != (first == batch.Stored) {
		j.Errorf("the batch is said to be %v, %v", first, err)
	}
	j.recover(2)
	want, state := batch.NotStored, "aborted"
	documents := 0
	if stored {
		want, state, documents = batch.Stored, "committed", partsSize
	}
	resolution, result, err := inserter.Resolve(context.Background(), "key")
	if resolution != want || err != nil || stored != (result != nil) {
		j.Errorf("in the end the batch is said to be %v, with %v, %v", resolution, result, err)
	}
	j.expect(documents, state)
	if said == isStored && !stored {
		j.Error("the owner said stored")
	}
}

// TestCommitOfARecordThatIsGone: when the answer to a commit is lost and the record is gone, it may have been a committed
// one whose retention was over, or whose retention was judged by a clock that is ahead. Nothing is deleted then.
func TestCommitOfARecordThatIsGone(t *testing.T) {
	for name, lost := range map[string]faultwire.Fault{"it arrived": faultwire.DropReply(), "it did not arrive": faultwire.DropRequest()} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "", func(j *journaled) {
				t := j.T
				remove := func(context.Context, *faultwire.Request) {
					if _, err := j.around.Collection("journal").DeleteMany(context.Background(), bson.D{}); err != nil {
						t.Error(err)
					}
				}
				if lost.Runs() {
					j.wire.On(to("committed")).Once().Do(faultwire.After(remove), lost)
				} else {
					j.wire.On(to("committed")).Once().Do(faultwire.Before(remove), lost)
				}
				failed := j.failed(batch.New(j.config()).Insert(context.Background(), j.parts()...))
				if !failed.Unresolved() {
					t.Errorf("the owner says: %v", failed)
				}
				j.expect(partsSize)
				if resolution, _, err := batch.New(j.config()).Resolve(context.Background(), failed.JournalID); resolution != batch.NotKnown || err != nil {
					t.Errorf("the batch is said to be %v, %v", resolution, err)
				}
			})
		})
	}
}

// TestCommittedRecordThatStays: tidying up is a matter of its own. Whatever happens to it, the batch stays.
func TestCommittedRecordThatStays(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		if _, err := batch.New(j.config()).Insert(context.Background(), j.parts()...); err != nil {
			t.Fatal(err)
		}
		j.wire.On(onJournal(faultwire.Delete)).Reply(refuse)
		time.Sleep(2 * time.Minute)
		overdue := rollback.Recovery{Retention: time.Minute}
		for range 2 {
			report, err := rollback.Recover(context.Background(), j.db.Collection("journal"), overdue)
			var failed *rollback.RecordError
			if !errors.As(err, &failed) || len(report.Failed) != 1 || report.Deleted > 0 {
				t.Errorf("a recovery that may not remove the record: %+v, %v", report, err)
			}
			j.expect(partsSize, "committed")
		}
		j.wire.Calm()
		report, err := rollback.Recover(context.Background(), j.db.Collection("journal"), overdue)
		if err != nil || len(report.Removed) != 1 {
			t.Errorf("a recovery that may: %+v, %v", report, err)
		}
		j.expect(partsSize)
	})
}
