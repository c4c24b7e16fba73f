package crashtest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

// spoilt refuses one document of the last chunk, so that the batch has to be rolled back.
func (j *journaled) spoilt() {
	j.wire.On(onDocuments(faultwire.Insert)).Nth(4).WriteErrors(faultwire.WriteError{Code: 121, Message: "Document failed validation"})
}

// TestRollbackInTrouble: the database, the journal, or both refuse what a rollback needs. What the owner says is true, it
// says it in time, and whatever it leaves is in the journal.
func TestRollbackInTrouble(t *testing.T) {
	deletes, changes := onDocuments(faultwire.Delete), onJournal(faultwire.Update, faultwire.Insert)
	code := func(code int, text string) faultwire.Fault {
		return faultwire.Reply(faultwire.CommandError{Code: code, Message: text})
	}
	for _, c := range []struct {
		name    string
		deletes faultwire.Fault
		times   int // how often deletes are refused; 0 is for ever
		changes faultwire.Fault
		whole   bool   // the rollback could be finished
		state   string // of the record afterwards
		reason  error  // of an incomplete rollback
	}{
		{"no trouble", faultwire.Pass(), 0, faultwire.Pass(), true, "aborted", nil},
		{"no right to delete", faultwire.Reply(refuse), 0, faultwire.Pass(), false, "aborting", nil},
		{"no right to delete, of a hosted service", code(8000, "user is not allowed to do action [remove] on [d.a]"), 0, faultwire.Pass(), false, "aborting", rollback.ErrBudget},
		{"deletes are refused for a while", code(8000, "quota"), 5, faultwire.Pass(), true, "aborted", nil},
		{"deletes are lost for a while", faultwire.DropReply(), 5, faultwire.Pass(), true, "aborted", nil},
		{"the journal cannot be written any more", faultwire.Pass(), 0, code(8000, "quota"), true, "open", nil},
		{"the journal is silent", faultwire.Pass(), 0, faultwire.DropRequest(), true, "open", nil},
		{"out of space for everything, deletes for a while", code(12501, "quota exceeded"), 5, code(12501, "quota exceeded"), true, "open", nil},
		{"out of space for everything", code(14031, "out of disk space"), 0, code(14031, "out of disk space"), false, "open", rollback.ErrBudget},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachBubble(t, func(j *journaled) {
				t := j.T
				j.spoilt()
				if c.times > 0 {
					j.wire.On(deletes).Times(c.times).Do(c.deletes)
				} else {
					j.wire.On(deletes).Do(c.deletes)
				}
				// The journal fails when the rollback begins.
				var begun atomic.Bool
				j.wire.On(changes.Where(func(*faultwire.Request) bool { return begun.Load() })).Do(c.changes)
				config := j.config(func(c *batch.Config) {
					c.Observe = func(e batch.Event) {
						if e.Kind == batch.Failed {
							begun.Store(true)
						}
					}
				})
				began := time.Now()
				failed := j.failed(batch.New(config).Insert(context.Background(), j.parts()...))
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %s", took)
				}
				var cause mongo.WriteError
				if !errors.As(failed.Cause, &cause) || cause.Code != 121 {
					t.Errorf("the cause is %v", failed.Cause)
				}
				if failed.RolledBack() != c.whole || (failed.Incomplete == nil) != c.whole {
					t.Errorf("rolled back %t: %v", failed.RolledBack(), failed)
				}
				if c.reason != nil && !errors.Is(failed, c.reason) {
					t.Errorf("the rollback is incomplete because of %v, not %v", failed.Incomplete, c.reason)
				}
				left := j.there()
				if c.whole != (left == 0) || !c.whole && len(failed.Leftovers()) < left {
					t.Errorf("%d documents are left, %d are named: %v", left, len(failed.Leftovers()), failed)
				}
				j.wire.Calm()
				j.expect(left, c.state)
				if id := failed.JournalID; id != failed.BatchID.Hex() {
					t.Errorf("the record is said to be %q", id)
				}
				time.Sleep(time.Minute) // the owner beats no more
				j.recover(2)
				j.expect(0, "aborted")
			})
		})
	}
}

// TestLateInsertOfAWatchedBatch: an insert that arrives when its batch has long been rolled back is deleted by the
// recovery's last look.
func TestLateInsertOfAWatchedBatch(t *testing.T) {
	inBubble(t, "", func(j *journaled) {
		t := j.T
		held := j.wire.On(onDocuments(faultwire.Insert)).Nth(3).Hold()
		config := j.config(func(c *batch.Config) { c.RetryTime = -1 })
		failed := j.failed(batch.New(config).Insert(context.Background(), j.parts()...))
		if !failed.RolledBack() {
			t.Fatalf("the batch: %v", failed)
		}
		j.expect(0, "watching")
		held.Release() // later than the settle time, which is more than was promised
		<-held.Done()
		if n := j.there(); n == 0 {
			t.Fatal("nothing arrived")
		}
		j.recover(1)
		j.expect(0, "watching") // there was something, so it is looked at once more
		j.recover(1)
		j.expect(0, "aborted")
	})
}

// TestRollbackIsLeftToRecovery: an owner that has no time for its rollback leaves it in the journal.
func TestRollbackIsLeftToRecovery(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		j.spoilt()
		j.wire.On(onDocuments(faultwire.Delete)).Hold()
		stop := make(chan struct{})
		config := j.config(func(c *batch.Config) {
			c.Lease = time.Second
			c.Rollback.Stop = stop
			c.Rollback.Observe = nil
		})
		time.AfterFunc(3*time.Second, func() { close(stop) })
		failed := j.failed(batch.New(config).Insert(context.Background(), j.parts()...))
		if failed.RolledBack() || !errors.Is(failed, rollback.ErrStopped) || len(failed.Leftovers()) == 0 {
			t.Errorf("the batch: %v", failed)
		}
		j.wire.Calm()
		if err := j.wire.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		j.recover(2)
		j.expect(0, "aborted")
	})
}

// TestBystandersOfARecovery: a recovery leaves alone what was there before the batch, and what came after it.
func TestBystandersOfARecovery(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		foreign := []bson.D{{{Key: "_id", Value: "mine 1"}, {Key: "of", Value: "somebody else"}}, {{Key: "_id", Value: bson.NewObjectID()}}}
		for _, name := range []string{"a", "b"} {
			if _, err := j.around.Collection(name).InsertMany(t.Context(), foreign); err != nil {
				t.Fatal(err)
			}
		}
		// "mine 1" is taken, so that the batch fails; and the owner may delete nothing, nor say so.
		j.wire.On(onDocuments(faultwire.Delete)).Reply(refuse)
		j.wire.On(to("aborting")).Reply(refuse)
		config := j.config(func(c *batch.Config) { c.Lease = 200 * time.Millisecond })
		failed := j.failed(batch.New(config).Insert(t.Context(), j.parts()...))
		if failed.RolledBack() || j.there() <= 4 {
			t.Fatalf("the batch: %v", failed)
		}
		j.recover(2)
		j.expect(4, "aborted")
		raw, err := j.around.Collection("b").FindOne(t.Context(), bson.D{{Key: "_id", Value: "mine 1"}}).Raw()
		if err != nil || raw.Lookup("of").StringValue() != "somebody else" {
			t.Errorf("somebody else's document is %v, %v", raw, err)
		}
	})
}
