package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

// dead stores a batch under a key whose owner dies before the commit: all of it is there, and the record is open.
func (j *journaled) dead(key string) {
	j.Helper()
	commit := false
	gone := j.wire.On(onRecords().Where(func(r *faultwire.Request) bool {
		commit = commit || isTo(r, "committed")
		return commit
	})).Reply(refuse) // which is faster than silence
	config := j.config(func(c *batch.Config) { c.Lease = time.Second })
	parts := []batch.Part{batch.Into(j.db.Collection("a"), minted(6)), batch.Into(j.db.Collection("b"), claimed(key, 5))}
	failed := j.failed(batch.New(config).InsertOnce(context.Background(), key, parts...))
	if !failed.Unresolved() {
		j.Fatalf("the owner of %q did not die where it should: %v", key, failed)
	}
	gone.Off()
}

// pass is one pass of a recovery, not over the wire.
func (j *journaled) pass(change ...func(*rollback.Recovery)) (rollback.RecoveryReport, error) {
	recovery := rollback.Recovery{Policy: rollback.Policy{Settle: 50 * time.Millisecond, InitialDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond}}
	for _, c := range change {
		c(&recovery)
	}
	return rollback.Recover(context.Background(), j.around.Collection("journal"), recovery)
}

// overWire is pass with everything that goes over the wire.
func (j *journaled) overWire(ctx context.Context, change ...func(*rollback.Recovery)) (rollback.RecoveryReport, error) {
	recovery := rollback.Recovery{Policy: rollback.Policy{Settle: 50 * time.Millisecond, InitialDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond}}
	for _, c := range change {
		c(&recovery)
	}
	return rollback.Recover(ctx, j.db.Collection("journal"), recovery)
}

func (j *journaled) record(id string) rollback.Record {
	j.Helper()
	records, err := rollback.List(context.Background(), j.around.Collection("journal"))
	if err != nil {
		j.Fatal(err)
	}
	for _, r := range records {
		if r.ID == id {
			return r
		}
	}
	j.Fatalf("there is no record %q", id)
	return rollback.Record{}
}

// TestRecoverInPasses: the first pass deletes, the second looks once more and closes, the third writes nothing.
func TestRecoverInPasses(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		j.dead("key")
		j.expect(partsSize, "open")
		for i, want := range []rollback.RecoveryReport{
			{RolledBack: []string{"key"}, Deleted: partsSize}, {Closed: []string{"key"}}, {}, {},
		} {
			before := j.written()
			report, err := j.overWire(t.Context())
			if err != nil || fmt.Sprint(report) != fmt.Sprint(want) {
				t.Errorf("pass %d: %+v, %v; want %+v", i+1, report, err, want)
			}
			if n := j.written() - before; i >= 2 && n > 0 {
				t.Errorf("pass %d made %d writes", i+1, n)
			}
			j.expect(0, []string{"watching", "aborted", "aborted", "aborted"}[i])
		}
	})
}

// TestPoisonousRecords: what cannot be finished is reported with its reason and keeps nobody else from being finished.
func TestPoisonousRecords(t *testing.T) {
	type poison struct {
		name  string
		spoil func(j *journaled, id string)
		say   string // part of the reason
		tried bool   // the record counts the attempt, and says the reason
		state string // which it keeps
	}
	page := func(j *journaled, id string, change bson.D) {
		attempt := j.record(id).Attempt.Hex()
		result, err := j.around.Collection("journal.pages").UpdateOne(context.Background(),
			bson.D{{Key: "_id", Value: attempt + "/ids/000000000"}}, bson.D{{Key: "$set", Value: change}})
		if err != nil || result.MatchedCount != 1 {
			j.Fatalf("changing a page: %v, %v", result, err)
		}
	}
	refusedIn := func(coll string, code int) func(j *journaled, id string) {
		return func(j *journaled, id string) {
			j.set(id, bson.D{{Key: "targets.0.collection", Value: coll}})
			j.wire.On(faultwire.Delete.Where(func(r *faultwire.Request) bool { return r.Collection == coll })).
				Reply(faultwire.CommandError{Code: code, Message: "no"})
		}
	}
	poisons := []poison{
		{"a newer format", func(j *journaled, id string) { j.set(id, bson.D{{Key: "format", Value: int32(2)}}) }, "format 2", false, "open"},
		{"a state of the future", func(j *journaled, id string) { j.set(id, bson.D{{Key: "state", Value: "frozen"}}) }, "frozen", false, "frozen"},
		{"damaged targets", func(j *journaled, id string) { j.set(id, bson.D{{Key: "targets", Value: "none"}}) }, "damaged", false, ""},
		{"an id that is an operator", func(j *journaled, id string) {
			page(j, id, bson.D{{Key: "values.0", Value: bson.D{{Key: "$gt", Value: ""}}}})
		}, "$gt", true, "open"},
		{"an id that is a regular expression", func(j *journaled, id string) { page(j, id, bson.D{{Key: "values.0", Value: bson.Regex{Pattern: "."}}}) }, "regex", true, "open"},
		{"a page of a part that there is not", func(j *journaled, id string) { page(j, id, bson.D{{Key: "target", Value: int32(7)}}) }, "part 7 of 2", true, "open"},
		{"a stamp that is an operator", func(j *journaled, id string) { j.set(id, bson.D{{Key: "stamp", Value: "$where"}}) }, "stamp field", true, "open"},
		{"another deployment", func(j *journaled, id string) { j.set(id, bson.D{{Key: "targets.0.deployment", Value: "moon"}}) }, "moon", false, "open"},
		{"another replica set", func(j *journaled, id string) { j.set(id, bson.D{{Key: "targets.0.set", Value: "other"}}) }, "other", false, "open"},
		{"a view", refusedIn("view", 166), "166", true, "aborting"},
		{"no right to delete", refusedIn("secret", 13), "13", true, "aborting"},
	}
	inBubble(t, "", func(j *journaled) {
		t := j.T
		var ids []string
		for i, p := range poisons {
			j.dead(p.name)
			j.dead(fmt.Sprint("sound ", i))
			p.spoil(j, p.name)
			ids = append(ids, p.name)
		}
		slices.Sort(ids)
		if _, err := j.around.Collection("journal").InsertOne(context.Background(), bson.D{{Key: "_id", Value: int32(7)}, {Key: "state", Value: "open"}}); err != nil {
			t.Fatal(err)
		}
		for pass := range 2 {
			report, err := j.overWire(context.Background())
			if len(report.RolledBack)+len(report.Closed) != len(poisons) || len(report.Failed) != len(poisons)+1 {
				t.Errorf("pass %d: %+v", pass+1, report)
			}
			for _, p := range poisons {
				if failed := recordError(err, p.name); failed == nil || !strings.Contains(failed.Error(), p.say) {
					t.Errorf("pass %d, %s: %v", pass+1, p.name, failed)
				}
			}
		}
		for _, p := range poisons {
			r := j.record(p.name)
			if r.State != p.state || (r.Attempts == 2) != p.tried || (r.Problem != "" && strings.Contains(r.Problem, p.say)) != p.tried {
				t.Errorf("%s: the record is %s, tried %d times, because of %q", p.name, r.State, r.Attempts, r.Problem)
			}
		}
		for i := range poisons {
			if r := j.record(fmt.Sprint("sound ", i)); r.State != "aborted" {
				t.Errorf("%s is %s: %s", r.ID, r.State, r.Problem)
			}
		}
	})
}

// recordError finds a record's error among joined ones.
func recordError(err error, id string) *rollback.RecordError {
	switch e := err.(type) {
	case *rollback.RecordError:
		if e.ID == id {
			return e
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if found := recordError(inner, id); found != nil {
				return found
			}
		}
	}
	return nil
}

// TestHalfReadJournal: a journal that could be read to a part only is an error, for everybody who reads it.
func TestHalfReadJournal(t *testing.T) {
	inBubble(t, "", func(j *journaled) {
		t := j.T
		j.dead("real")
		var heads []any
		for i := range 150 { // more than the first batch of a cursor
			heads = append(heads, bson.D{{Key: "_id", Value: fmt.Sprintf("a %03d", i)}, {Key: "state", Value: "of the future"}, {Key: "format", Value: int32(2)}})
		}
		if _, err := j.around.Collection("journal").InsertMany(context.Background(), heads); err != nil {
			t.Fatal(err)
		}
		rule := j.wire.On(onRecords(faultwire.GetMore)).Reply(refuse)
		for name, read := range map[string]func() error{
			"Recover": func() error { _, err := j.overWire(context.Background()); return err },
			"List":    func() error { _, err := rollback.List(context.Background(), j.db.Collection("journal")); return err },
			"Check": func() error {
				_, err := rollback.Check(context.Background(), j.db.Collection("journal"), rollback.Recovery{})
				return err
			},
		} {
			before := rule.Fired()
			if err := read(); err == nil || !strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("%s: %v", name, err)
			}
			if rule.Fired() == before {
				t.Errorf("%s did not come to the cursor's second batch", name)
			}
		}
		rule.Off()
		if report, _ := j.overWire(context.Background()); !slices.Contains(report.RolledBack, "real") {
			t.Errorf("afterwards: %+v", report)
		}
	})
}

// TestSeveralRecoveries: any number of recoveries may run at once. One of them deals with a record, the others leave it.
func TestSeveralRecoveries(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		const dead = 6
		for i := range dead {
			j.dead(fmt.Sprint("key ", i))
		}
		var rolledBack, closed atomic.Int64
		for range 2 {
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					report, err := j.pass()
					if err != nil {
						t.Errorf("a recovery among others: %v", err)
					}
					rolledBack.Add(int64(len(report.RolledBack)))
					closed.Add(int64(len(report.Closed)))
				})
			}
			all.Wait()
		}
		j.recover(1)
		if rolledBack.Load() != dead {
			t.Errorf("%d records were rolled back %d times", dead, rolledBack.Load())
		}
		j.expect(0, slices.Repeat([]string{"aborted"}, dead)...)
	})
}

// TestRecoveryTellsStepsOneAtATime: an observer need not be safe for concurrent use.
func TestRecoveryTellsStepsOneAtATime(t *testing.T) {
	inBubble(t, "", func(j *journaled) {
		t := j.T
		for i := range 6 {
			j.dead(fmt.Sprint("key ", i))
		}
		var inside, calls atomic.Int64
		_, err := j.pass(func(r *rollback.Recovery) {
			r.Policy.Concurrency = 6
			r.Policy.Observe = func(rollback.Event) {
				if inside.Add(1) > 1 {
					t.Error("two calls at a time")
				}
				for range 100 {
					runtime.Gosched() // sleeping would keep the bubble's time from passing: a lock is held
				}
				inside.Add(-1)
				calls.Add(1)
			}
		})
		if err != nil || calls.Load() < 12 {
			t.Errorf("%d calls, %v", calls.Load(), err)
		}
	})
}

// TestNoClockIsCompared: what clocks wrote into a record, however wrong they are, decides nothing about its owner's life.
func TestNoClockIsCompared(t *testing.T) {
	for name, started := range map[string]time.Time{
		"long ago": time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), "ten minutes ahead": time.Now().Add(10 * time.Minute),
		"in the far future": time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "ten minutes behind": time.Now().Add(-10 * time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "", func(j *journaled) {
				t := j.T
				held := j.wire.On(onDocuments(faultwire.Insert)).Nth(2).Hold()
				done := make(chan error)
				config := j.config(func(c *batch.Config) { c.Lease, c.CommandTimeout = time.Second, time.Hour })
				go func() {
					_, err := batch.New(config).InsertOnce(context.Background(), "alive", j.parts()...)
					done <- err
				}()
				<-held.Arrived()
				j.dead("dead")
				for _, id := range []string{"alive", "dead"} {
					j.set(id, bson.D{{Key: "started", Value: started}})
				}
				began := time.Now()
				report, err := j.pass()
				if err != nil || !slices.Equal(report.Alive, []string{"alive"}) || !slices.Equal(report.RolledBack, []string{"dead"}) {
					t.Errorf("a recovery: %+v, %v", report, err)
				}
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("it took %s, with leases of a second", took)
				}
				held.Release()
				if err := <-done; err != nil {
					t.Errorf("the living owner: %v", err)
				}
			})
		})
	}
}

// TestStrayBeat: the last beat of a dead owner may arrive when a recovery has begun to watch the record. It does not make
// the owner live.
func TestStrayBeat(t *testing.T) {
	inBubble(t, "", func(j *journaled) {
		t := j.T
		stray := j.wire.On(beats).Nth(1).Hold()
		j.wire.On(beats).DropRequest()
		chunk := j.wire.On(onDocuments(faultwire.Insert)).Nth(3).Hold()
		j.wire.On(to("aborting")).DropRequest()
		config := j.config(func(c *batch.Config) {
			c.Lease, c.RetryTime, c.CommandTimeout, c.Rollback.Budget = time.Second, -1, time.Second, time.Millisecond
		})
		j.wire.On(onDocuments(faultwire.Delete)).DropRequest()
		failed := j.failed(batch.New(config).InsertOnce(context.Background(), "key", j.parts()...))
		chunk.Drop()
		if failed.RolledBack() || j.record("key").Beat != 0 {
			t.Fatalf("the owner did not die as it should: %v", failed)
		}
		time.AfterFunc(400*time.Millisecond, stray.Release)
		report, err := j.pass()
		if err != nil || !slices.Equal(report.RolledBack, []string{"key"}) {
			t.Errorf("a recovery that met a stray beat: %+v, %v", report, err)
		}
		if j.record("key").Beat != 1 {
			t.Error("the beat did not arrive")
		}
	})
}

// TestLateInsertOfADeadOwner: what a dead owner had sent may arrive between the deletes of a recovery, or between two of
// its passes.
func TestLateInsertOfADeadOwner(t *testing.T) {
	for _, c := range []struct {
		name   string
		settle time.Duration // of the recovery
		after  time.Duration // from the first delete on
		want   []string      // the states after each pass
	}{
		{"within the settle time", 10 * time.Second, 5 * time.Second, []string{"watching", "aborted"}},
		{"between two passes", 10 * time.Millisecond, 5 * time.Second, []string{"watching", "watching", "aborted"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, "", func(j *journaled) {
				t := j.T
				held := j.wire.On(onDocuments(faultwire.Insert)).Nth(4).Hold()
				config := j.config(func(c *batch.Config) {
					c.Lease, c.RetryTime, c.CommandTimeout, c.Rollback.Budget = time.Second, -1, time.Second, time.Millisecond
				})
				gone := j.wire.On(to("aborting"), onDocuments(faultwire.Delete)).DropRequest()
				failed := j.failed(batch.New(config).InsertOnce(context.Background(), "key", j.parts()...))
				gone.Off()
				if failed.RolledBack() {
					t.Fatalf("the owner did not die as it should: %v", failed)
				}
				first := true
				for i, state := range c.want {
					if i == 1 { // time for it to arrive, if it has not yet
						time.Sleep(c.after)
					}
					_, err := j.pass(func(r *rollback.Recovery) {
						r.Policy.Settle = c.settle
						r.Policy.Observe = func(e rollback.Event) {
							if e.Kind == rollback.Settling && first {
								first = false
								time.AfterFunc(c.after, held.Release)
							}
						}
					})
					if err != nil {
						t.Errorf("pass %d: %v", i+1, err)
					}
					if got := j.record("key").State; got != state {
						t.Errorf("after pass %d the record is %s, not %s", i+1, got, state)
					}
				}
				if held.Err() != nil || held.Fired() != 1 {
					t.Errorf("the late insert: %v", held.Err())
				}
				j.expect(0, "aborted")
			})
		})
	}
}

// TestNothingToUndo: documents that never were, or are gone already, are no reason not to close a record.
func TestNothingToUndo(t *testing.T) {
	for name, c := range map[string]struct {
		remove  func(j *journaled) error
		deleted int64
	}{
		"all there": {func(*journaled) error { return nil }, partsSize},
		"some gone": {func(j *journaled) error {
			_, err := j.around.Collection("b").DeleteMany(context.Background(), bson.D{{Key: "n", Value: bson.D{{Key: "$lt", Value: 2}}}})
			return err
		}, partsSize - 2},
		"all gone": {func(j *journaled) error { return j.empty("a", "b") }, 0},
		"the collections dropped": {func(j *journaled) error {
			return errors.Join(j.around.Collection("a").Drop(context.Background()), j.around.Collection("b").Drop(context.Background()))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			eachJournal(t, func(j *journaled) {
				t := j.T
				j.dead("key")
				if err := c.remove(j); err != nil {
					t.Fatal(err)
				}
				report, err := j.pass()
				if err != nil || report.Deleted != c.deleted || len(report.RolledBack) != 1 {
					t.Errorf("the recovery: %+v, %v", report, err)
				}
				j.recover(1)
				j.expect(0, "aborted")
			})
		})
	}
}

func (j *journaled) empty(names ...string) error {
	var errs []error
	for _, name := range names {
		_, err := j.around.Collection(name).DeleteMany(context.Background(), bson.D{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// TestRetention: finished records go when their time is over, with their pages; unfinished ones never, nor forgotten ones,
// nor those of a newer version.
func TestRetention(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		for _, key := range []string{"committed", "younger", "aborted", "forgotten", "newer", "future"} {
			parts := []batch.Part{batch.Into(j.db.Collection("b"), claimed(key, 5))}
			if _, err := batch.New(j.config()).InsertOnce(t.Context(), key, parts...); err != nil {
				t.Fatal(err)
			}
		}
		old := bson.E{Key: "finished", Value: time.Now().Add(-2 * time.Hour)}
		j.set("committed", bson.D{old})
		j.set("aborted", bson.D{old, {Key: "state", Value: "aborted"}})
		j.set("forgotten", bson.D{old, {Key: "state", Value: "forgotten"}})
		j.set("newer", bson.D{old, {Key: "format", Value: int32(2)}})
		j.set("future", bson.D{{Key: "finished", Value: time.Now().Add(1000 * time.Hour)}})
		for _, c := range []struct {
			retention time.Duration
			removed   []string
		}{
			{-1, nil}, {3 * time.Hour, nil}, {0, nil}, {time.Hour, []string{"aborted", "committed"}}, {time.Nanosecond, []string{"younger"}},
		} {
			report, err := j.pass(func(r *rollback.Recovery) { r.Retention = c.retention })
			if err != nil || !slices.Equal(report.Removed, c.removed) {
				t.Errorf("a retention of %s: %+v, %v", c.retention, report, err)
			}
		}
		pages, err := j.around.Collection("journal.pages").CountDocuments(t.Context(), bson.D{})
		if err != nil || pages != 3*3 { // two of ids, one of the result
			t.Errorf("%d pages are left, %v", pages, err)
		}
		j.expect(6*5, "forgotten", "committed", "committed")
	})
}

// TestForget: a person's word ends the matter for recoveries, and for the owner too.
func TestForget(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		coll := j.around.Collection("journal")
		j.dead("dead")
		if err := rollback.Forget(context.Background(), coll, "dead", ""); err == nil {
			t.Error("a record was forgotten without a reason")
		}
		if err := rollback.Forget(context.Background(), coll, "none", "why"); err == nil || errors.Is(err, rollback.ErrFinished) {
			t.Errorf("forgetting what is not there: %v", err)
		}
		if err := rollback.Forget(context.Background(), coll, "dead", "restored from a backup"); err != nil {
			t.Errorf("forgetting: %v", err)
		}
		if r := j.record("dead"); r.State != "forgotten" || r.Reason != "restored from a backup" || r.Unfinished() {
			t.Errorf("the record is %+v", r)
		}
		if err := rollback.Forget(context.Background(), coll, "dead", "again"); !errors.Is(err, rollback.ErrFinished) {
			t.Errorf("forgetting again: %v", err)
		}
		if report, err := j.pass(func(r *rollback.Recovery) { r.Retention = time.Nanosecond }); err != nil || fmt.Sprint(report) != fmt.Sprint(rollback.RecoveryReport{}) {
			t.Errorf("a recovery afterwards: %+v, %v", report, err)
		}
		j.expect(partsSize, "forgotten")

		// An owner that lives removes what it wrote.
		held := j.wire.On(onDocuments(faultwire.Insert)).Nth(2).Hold()
		done := make(chan error)
		go func() {
			alone := j.config(func(c *batch.Config) { c.Concurrency = 1 })
			_, err := batch.New(alone).InsertOnce(context.Background(), "alive", j.parts()...)
			done <- err
		}()
		<-held.Arrived()
		if err := rollback.Forget(context.Background(), coll, "alive", "stuck"); err != nil {
			t.Errorf("forgetting the living: %v", err)
		}
		held.Release()
		if err := <-done; !errors.Is(err, batch.ErrFenced) {
			t.Errorf("the living owner: %v", err)
		}
		j.expect(partsSize, "forgotten", "forgotten")
		if err := rollback.Forget(context.Background(), coll, "dead", "x"); !errors.Is(err, rollback.ErrFinished) {
			t.Errorf("forgetting once more: %v", err)
		}
	})
}

// TestLookingChangesNothing: List and Check only read, and tell what there is.
func TestLookingChangesNothing(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		if _, err := batch.New(j.config()).InsertOnce(t.Context(), "stored", batch.Into(j.db.Collection("a"), minted(3))); err != nil {
			t.Fatal(err)
		}
		j.dead("dead")
		j.dead("worse")
		j.set("worse", bson.D{{Key: "format", Value: int32(2)}})
		if _, err := j.around.Collection("b").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "dead 0"}}); err != nil {
			t.Fatal(err)
		}
		before := j.written()
		records, err := rollback.List(t.Context(), j.db.Collection("journal"))
		if err != nil || len(records) != 3 {
			t.Fatalf("List: %+v, %v", records, err)
		}
		for i, want := range []struct {
			id, state  string
			unfinished bool
			err        bool
		}{{"dead", "open", true, false}, {"stored", "committed", false, false}, {"worse", "open", true, true}} {
			r := records[i]
			if r.ID != want.id || r.State != want.state || r.Unfinished() != want.unfinished || (r.Err != nil) != want.err {
				t.Errorf("List: %+v", r)
			}
			if r.Finished.IsZero() != want.unfinished || r.Started.IsZero() {
				t.Errorf("List: %s started %v, finished %v", r.ID, r.Started, r.Finished)
			}
		}
		if r := records[0]; r.Documents != partsSize || len(r.Targets) != 2 || r.Targets[1].Documents != 5 || r.Lease != time.Second {
			t.Errorf("List: %+v", r)
		}
		findings, err := rollback.Check(t.Context(), j.db.Collection("journal"), rollback.Recovery{})
		if err != nil || len(findings) != 2 {
			t.Fatalf("Check: %+v, %v", findings, err)
		}
		if f := findings[0]; f.ID != "dead" || len(f.Stored) != partsSize-1 || f.Err != nil || !f.Stored[0].Seen {
			t.Errorf("Check: %s has %d documents, %v", f.ID, len(f.Stored), f.Err)
		}
		if f := findings[1]; f.ID != "worse" || f.Err == nil || f.Stored != nil {
			t.Errorf("Check: %+v", f)
		}
		one, err := rollback.Check(t.Context(), j.db.Collection("journal"), rollback.Recovery{ID: "dead"})
		if err != nil || len(one) != 1 {
			t.Errorf("Check of one: %+v, %v", one, err)
		}
		if n := j.written() - before; n > 0 {
			t.Errorf("looking made %d writes", n)
		}
	})
}

// TestEndOfARecovery: when its context ends, a recovery gives up the batch in hand at once, and nothing is lost by it.
func TestEndOfARecovery(t *testing.T) {
	inBubble(t, "", func(j *journaled) {
		t := j.T
		j.dead("key")
		held := j.wire.On(onDocuments(faultwire.Delete)).Hold()
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		over := errors.New("the service has to stop")
		var at time.Time
		go func() {
			<-held.Arrived()
			at = time.Now()
			cancel(over)
		}()
		report, err := j.overWire(ctx)
		if !errors.Is(err, over) || !slices.Equal(report.Failed, []string{"key"}) {
			t.Errorf("the recovery: %+v, %v", report, err)
		}
		if took := time.Since(at); took > 100*time.Millisecond {
			t.Errorf("it took %s to give up", took)
		}
		j.wire.Calm()
		if j.record("key").State != "aborting" {
			t.Errorf("the record is %+v", j.record("key"))
		}
		j.recover(2)
		j.expect(0, "aborted")
		cancelled, stop := context.WithCancel(context.Background())
		stop()
		before := j.wire.Count()
		if _, err := j.overWire(cancelled); !errors.Is(err, context.Canceled) || j.wire.Count() != before {
			t.Errorf("with a context that is done: %v, after %d commands", err, j.wire.Count()-before)
		}
	})
}

// TestRecoveryLoop: a loop finds what dies while it runs, even beside a record that it has to wait for long, and one pass's
// failure is not its end.
func TestRecoveryLoop(t *testing.T) {
	inBubble(t, "", func(j *journaled) {
		t := j.T
		j.dead("patient")
		j.set("patient", bson.D{{Key: "leaseMS", Value: (5 * time.Minute).Milliseconds()}})
		j.dead("bad")
		j.set("bad", bson.D{{Key: "format", Value: int32(2)}})
		ctx, cancel := context.WithCancelCause(context.Background())
		type outcome struct {
			report rollback.RecoveryReport
			err    error
		}
		done := make(chan outcome)
		go func() {
			report, err := rollback.Recover(ctx, j.around.Collection("journal"), rollback.Recovery{Every: time.Second, Policy: rollback.Policy{Settle: time.Second}})
			done <- outcome{report, err}
		}()
		time.Sleep(10 * time.Second)
		j.dead("later")
		time.Sleep(10 * time.Second)
		if s := j.record("later").State; s != "aborted" {
			t.Errorf("a record that was left behind while the loop ran is %s", s)
		}
		if s := j.record("patient").State; s != "open" {
			t.Errorf("a record whose lease is five minutes is %s", s)
		}
		time.Sleep(6*time.Minute + 500*time.Millisecond) // between two passes
		if s := j.record("patient").State; s != "aborted" {
			t.Errorf("after its lease, it is %s", s)
		}
		over := errors.New("over")
		cancel(over)
		o := <-done
		if !errors.Is(o.err, over) || !slices.Equal(o.report.Failed, []string{"bad"}) {
			t.Errorf("the loop: %+v, %v", o.report, o.err)
		}
	})
}

// TestSilentJournalEndsARecovery: a pass without a deadline is not held for ever, nor is the reading of a journal.
func TestSilentJournalEndsARecovery(t *testing.T) {
	inBubble(t, "", func(j *journaled) {
		t := j.T
		j.dead("key")
		for name, silence := range map[string]faultwire.Match{
			"everything": faultwire.Command().Where(func(*faultwire.Request) bool { return true }), "changes": onRecords(faultwire.Update), "pages": onPages(),
			"hello": faultwire.Command(faultwire.Hello).Where(func(r *faultwire.Request) bool { return r.Session() != nil }),
		} {
			rule := j.wire.On(silence).Hold()
			began := time.Now()
			_, err := j.overWire(context.Background())
			if took := time.Since(began); err == nil || took > 5*time.Minute {
				t.Errorf("%s is silent: after %s: %v", name, took, err)
			}
			rule.Off()
			rule.Drop()
		}
	})
}
