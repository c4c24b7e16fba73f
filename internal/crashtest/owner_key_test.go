package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

// TestSameKeyAgain: a key that is stored gives back what was stored, to any process, and writes nothing.
func TestSameKeyAgain(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		a, b := j.db.Collection("a"), j.db.Collection("b")
		mixed := func(prefix string) []bson.D {
			all := append(claimed(prefix, 5), minted(3)...)
			return append(all, bson.D{{Key: "_id", Value: bson.D{{Key: "of", Value: prefix}, {Key: "n", Value: int64(7)}}}})
		}
		for name, parts := range map[string]func() []batch.Part{
			"minted":       func() []batch.Part { return []batch.Part{batch.Into(a, minted(6))} },
			"claimed":      func() []batch.Part { return []batch.Part{batch.Into(a, claimed("c", 6))} },
			"mixed":        func() []batch.Part { return []batch.Part{batch.Into(a, mixed("mixed")), batch.Into(b, mixed("mixed"))} },
			"numbers":      func() []batch.Part { return []batch.Part{batch.Into(a, minted(6)).Number("no", plainNumbers())} },
			"texts":        func() []batch.Part { return []batch.Part{batch.Into(a, minted(6)).Number("no", textNumbers())} },
			"numbered ids": func() []batch.Part { return []batch.Part{batch.Into(b, minted(6)).Number("_id", plainNumbers())} },
			"several numbers": func() []batch.Part {
				return []batch.Part{batch.Into(a, minted(6)).Number("no", plainNumbers()).Number("label.text", textNumbers())}
			},
			"a part of nothing": func() []batch.Part { return []batch.Part{batch.Into(a, minted(2)), batch.Into[bson.D](b, nil)} },
		} {
			first, err := batch.New(j.config()).InsertOnce(t.Context(), name, parts()...)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if first.Replayed || first.JournalID != name {
				t.Errorf("%s: the first result is %+v", name, first)
			}
			before, documents := j.written(), j.there()
			again, err := batch.New(j.config()).InsertOnce(t.Context(), name, parts()...)
			if err != nil {
				t.Errorf("%s, again: %v", name, err)
				continue
			}
			resolution, resolved, err := batch.New(j.config()).Resolve(t.Context(), name)
			if resolution != batch.Stored || err != nil {
				t.Errorf("%s is said to be %v, %v", name, resolution, err)
			}
			if !again.Replayed {
				t.Errorf("%s, again: it does not say that it was replayed", name)
			}
			first.Replayed = true
			if !reflect.DeepEqual(first, again) || !reflect.DeepEqual(first, resolved) {
				t.Errorf("%s: the results are\n%+v\n%+v\n%+v", name, first, again, resolved)
			}
			if j.written() != before || j.there() != documents {
				t.Errorf("%s, again: %d writes, %d documents more", name, j.written()-before, j.there()-documents)
			}
		}
	})
}

// TestSameKeyWithManyIDs: the result of a large batch is in several pages.
func TestSameKeyWithManyIDs(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		documents := claimed("many", 25_000)
		config := j.config(func(c *batch.Config) { c.ChunkSize = 1_000 })
		first, err := batch.New(config).InsertOnce(t.Context(), "many", batch.Into(j.db.Collection("b"), documents))
		if err != nil {
			t.Fatal(err)
		}
		before := j.written()
		again, err := batch.New(config).InsertOnce(t.Context(), "many", batch.Into(j.db.Collection("b"), documents))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(first.Parts, again.Parts) || len(again.Parts[0].IDs) != 25_000 || j.written() != before {
			t.Errorf("%d ids came back, after %d writes", len(again.Parts[0].IDs), j.written()-before)
		}
		raw, err := j.around.Collection("journal").FindOne(t.Context(), bson.D{}).Raw()
		if err != nil || len(raw) > 1_000 {
			t.Errorf("the record has %d bytes, %v", len(raw), err)
		}
	})
}

// TestKeyInProgress: while nobody knows how an attempt ends, the key is not attempted again, and nothing is written.
func TestKeyInProgress(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		held := j.wire.On(onDocuments(faultwire.Insert)).Nth(2).Hold()
		done := make(chan error)
		go func() {
			alone := j.config(func(c *batch.Config) { c.Concurrency = 1 })
			_, err := batch.New(alone).InsertOnce(context.Background(), "key", j.parts()...)
			done <- err
		}()
		<-held.Arrived()
		before := len(j.wire.Events(onJournal(writes...)))
		failed := j.failed(batch.New(j.config()).InsertOnce(t.Context(), "key", j.parts()...))
		if !errors.Is(failed, batch.ErrInProgress) || failed.Sent || failed.JournalID != "key" {
			t.Errorf("meanwhile: %v", failed)
		}
		if resolution, _, err := batch.New(j.config()).Resolve(t.Context(), "key"); resolution != batch.InProgress || err != nil {
			t.Errorf("meanwhile the batch is said to be %v, %v", resolution, err)
		}
		if n := len(j.wire.Events(onJournal(writes...))) - before; n > 0 {
			t.Errorf("meanwhile %d writes of the journal were made", n)
		}
		held.Release()
		if err := <-done; err != nil {
			t.Errorf("the batch: %v", err)
		}
		j.expect(partsSize, "committed")
	})
}

// TestKeyAfterAnAbort: what was not stored is attempted again, whatever became of the attempt before.
func TestKeyAfterAnAbort(t *testing.T) {
	for name, spoil := range map[string]func(j *journaled) (fix func()){
		"refused": func(j *journaled) func() {
			rule := j.wire.On(onDocuments(faultwire.Insert)).Nth(4).WriteErrors(faultwire.WriteError{Code: 121, Message: "Document failed validation"})
			return rule.Off
		},
		"an answer lost, so that it is watched": func(j *journaled) func() {
			rule := j.wire.On(onDocuments(faultwire.Insert)).Skip(3).DropReply()
			return rule.Off
		},
		"dead, and recovered once": func(j *journaled) func() {
			rule := j.wire.On(faultwire.Any).Skip(6).DropRequest()
			return func() {
				rule.Off()
				time.Sleep(time.Minute)
				j.recover(1)
			}
		},
		"dead, and recovered twice": func(j *journaled) func() {
			rule := j.wire.On(faultwire.Any).Skip(6).DropRequest()
			return func() {
				rule.Off()
				time.Sleep(time.Minute)
				j.recover(2)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachBubble(t, func(j *journaled) {
				t := j.T
				fix := spoil(j)
				once := j.config(func(c *batch.Config) { c.RetryTime = -1 })
				failed := j.failed(batch.New(once).InsertOnce(context.Background(), "key", j.parts()...))
				fix()
				second, err := batch.New(j.config()).InsertOnce(context.Background(), "key", j.parts()...)
				if err != nil {
					t.Fatalf("the second attempt: %v; the first: %v", err, failed)
				}
				if second.Replayed || second.BatchID == failed.BatchID {
					t.Errorf("the second attempt's result is %+v", second)
				}
				j.expect(partsSize, "committed")
				j.recover(2)
				j.expect(partsSize, "committed")
			})
		})
	}
}

// TestKeyOfADeadOwner: until a recovery has dealt with it, the key is in progress.
func TestKeyOfADeadOwner(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		dead := j.wire.On(faultwire.Any).Skip(6).DropRequest()
		j.failed(batch.New(j.config(func(c *batch.Config) { c.RetryTime = -1 })).InsertOnce(context.Background(), "key", j.parts()...))
		dead.Off()
		failed := j.failed(batch.New(j.config()).InsertOnce(context.Background(), "key", j.parts()...))
		if !errors.Is(failed, batch.ErrInProgress) || failed.Sent {
			t.Errorf("before a recovery: %v", failed)
		}
	})
}

// TestKeyReused: a key that stands for another batch is an error of the caller's.
func TestKeyReused(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		a, b := j.db.Collection("a"), j.db.Collection("b")
		if _, err := batch.New(j.config()).InsertOnce(t.Context(), "key", batch.Into(a, minted(3))); err != nil {
			t.Fatal(err)
		}
		before := j.written()
		elsewhere := j.config()
		elsewhere.Deployments = map[string]*mongo.Client{"other": j.around.Client()}
		for name, c := range map[string]struct {
			config batch.Config
			parts  []batch.Part
			reused bool
		}{
			"the same":           {j.config(), []batch.Part{batch.Into(a, minted(3))}, false},
			"fewer documents":    {j.config(), []batch.Part{batch.Into(a, minted(2))}, true},
			"more documents":     {j.config(), []batch.Part{batch.Into(a, minted(4))}, true},
			"another collection": {j.config(), []batch.Part{batch.Into(b, minted(3))}, true},
			"another part":       {j.config(), []batch.Part{batch.Into(a, minted(3)), batch.Into(b, minted(1))}, true},
			"another deployment": {elsewhere, []batch.Part{batch.Into(j.around.Collection("a"), minted(3))}, true},
			"other documents":    {j.config(), []batch.Part{batch.Into(a, claimed("c", 3))}, false}, // they are not compared
		} {
			result, err := batch.New(c.config).InsertOnce(t.Context(), "key", c.parts...)
			if errors.Is(err, batch.ErrKeyReused) != c.reused || !c.reused && (err != nil || !result.Replayed) {
				t.Errorf("%s: %v, %v", name, result, err)
			}
		}
		if j.written() != before {
			t.Errorf("%d writes were made", j.written()-before)
		}
		j.expect(3, "committed")
	})
}

// TestForgottenKey: a person took the record out of everybody's hands, so nothing is known of the documents.
func TestForgottenKey(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		dead := j.wire.On(faultwire.Any).Skip(6).DropRequest()
		j.failed(batch.New(j.config(func(c *batch.Config) { c.RetryTime = -1 })).InsertOnce(context.Background(), "key", j.parts()...))
		dead.Off()
		if err := rollback.Forget(context.Background(), j.around.Collection("journal"), "key", "cleaned up by hand"); err != nil {
			t.Fatal(err)
		}
		before := j.written()
		failed := j.failed(batch.New(j.config()).InsertOnce(context.Background(), "key", j.parts()...))
		if !strings.Contains(failed.Error(), "cleaned up by hand") || failed.Sent || j.written() != before {
			t.Errorf("after the record was forgotten, and %d writes: %v", j.written()-before, failed)
		}
	})
}

// TestKeysFromEverywhere: whoever is first stores the batch; all others hear of that, or that it is in progress.
func TestKeysFromEverywhere(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		for round := range 5 {
			key := fmt.Sprint("key ", round)
			parts := func() []batch.Part {
				return []batch.Part{batch.Into(j.db.Collection("a"), minted(6)), batch.Into(j.db.Collection("b"), claimed(key, 5))}
			}
			var all sync.WaitGroup
			var mu sync.Mutex // protects stored, ids and progress
			stored, progress, ids := 0, 0, make(map[bson.ObjectID]bool)
			for range 8 {
				all.Go(func() {
					result, err := batch.New(j.config()).InsertOnce(t.Context(), key, parts()...)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case errors.Is(err, batch.ErrInProgress):
						progress++
					case err != nil:
						t.Errorf("%s: %v", key, err)
					default:
						ids[result.BatchID] = true
						if !result.Replayed {
							stored++
						}
					}
				})
			}
			all.Wait()
			if stored != 1 || len(ids) != 1 {
				t.Errorf("%s: stored %d times, under %d ids; %d heard that it is in progress", key, stored, len(ids), progress)
			}
			if n := j.there(); n != (round+1)*partsSize {
				t.Errorf("%d documents are there after %d batches of %d", n, round+1, partsSize)
			}
		}
	})
}

// TestBadKeys: a key that no journal could keep is refused before anything else.
func TestBadKeys(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		for name, c := range map[string]struct {
			key     string
			journal bool
			fine    bool
		}{
			"none":              {"", true, false},
			"too long":          {strings.Repeat("x", 513), true, false},
			"as long as can be": {strings.Repeat("x", 512), true, true},
			"with a NUL":        {"a\x00b", true, false},
			"without journal":   {"key", false, false},
		} {
			config := j.config()
			if !c.journal {
				config.Journal = nil
			}
			_, err := batch.New(config).InsertOnce(t.Context(), c.key, batch.Into(j.db.Collection("a"), minted(1)))
			if (err == nil) != c.fine {
				t.Errorf("%s: %v", name, err)
			}
			if _, _, err := batch.New(config).Resolve(t.Context(), c.key); (err == nil) != c.journal {
				t.Errorf("resolving, %s: %v", name, err)
			}
		}
		if n := j.there(); n != 1 {
			t.Errorf("%d documents are there", n)
		}
	})
}

// TestUnreachableJournalEndsCalls: a caller without a deadline is not held for ever.
func TestUnreachableJournalEndsCalls(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		j.wire.On(onJournal()).Hold()
		inserter := batch.New(j.config())
		for name, call := range map[string]func() error{
			"InsertOnce": func() error { _, err := inserter.InsertOnce(context.Background(), "key", j.parts()...); return err },
			"Insert":     func() error { _, err := inserter.Insert(context.Background(), j.parts()...); return err },
			"Resolve":    func() error { _, _, err := inserter.Resolve(context.Background(), "key"); return err },
		} {
			began := time.Now()
			if err := call(); err == nil || time.Since(began) > time.Minute {
				t.Errorf("%s returned after %s: %v", name, time.Since(began), err)
			}
		}
		if n := j.there(); n > 0 {
			t.Errorf("%d documents are there", n)
		}
	})
}

// TestResolve asks for batches in every state.
func TestResolve(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		result, err := batch.New(j.config()).Insert(t.Context(), j.parts()...)
		if err != nil {
			t.Fatal(err)
		}
		inserter := batch.New(j.config())
		if resolution, nothing, err := inserter.Resolve(t.Context(), result.BatchID.Hex()); resolution != batch.Stored || nothing != nil || err != nil {
			t.Errorf("a batch without a key is said to be %v, %v, %v", resolution, nothing, err)
		}
		if resolution, _, err := inserter.Resolve(t.Context(), "never heard of"); resolution != batch.NotKnown || err != nil {
			t.Errorf("no batch at all is said to be %v, %v", resolution, err)
		}
		for state, want := range map[string]batch.Resolution{
			"open": batch.InProgress, "aborting": batch.NotStored, "watching": batch.NotStored, "aborted": batch.NotStored, "forgotten": batch.NotStored,
		} {
			j.set(result.BatchID.Hex(), bson.D{{Key: "state", Value: state}})
			if resolution, _, err := inserter.Resolve(t.Context(), result.BatchID.Hex()); resolution != want || err != nil {
				t.Errorf("a batch that is %s is said to be %v, %v", state, resolution, err)
			}
		}
		j.set(result.BatchID.Hex(), bson.D{{Key: "format", Value: int32(2)}})
		if resolution, _, err := inserter.Resolve(t.Context(), result.BatchID.Hex()); err == nil {
			t.Errorf("a record of a newer format is said to be %v", resolution)
		}
	})
}

// set changes fields of a record behind everybody's back.
func (j *journaled) set(id string, fields bson.D) {
	j.Helper()
	result, err := j.around.Collection("journal").UpdateOne(context.Background(), bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: fields}})
	if err != nil || result.MatchedCount != 1 {
		j.Fatalf("changing the record %q: %v, %v", id, result, err)
	}
}
