package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
)

// once has every insert's first failure be the last word.
func once(config batch.Config) batch.Config {
	config.RetryTime = -1
	return config
}

func numbered(from, n int) []bson.D {
	documents := make([]bson.D, n)
	for i := range documents {
		documents[i] = bson.D{{Key: "_id", Value: from + i}, {Key: "x", Value: "ours"}}
	}
	return documents
}

func unnumbered(n int) []bson.D {
	documents := make([]bson.D, n)
	for i := range documents {
		documents[i] = bson.D{{Key: "x", Value: "ours"}}
	}
	return documents
}

// The answer to an insert is lost, and one of its ids belongs to somebody else: only the stamp tells which. The foreign
// document has the very same content, which proves nothing.
func TestLostAnswerBesideForeignID(t *testing.T) {
	for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampAll, batch.StampNone} {
		// The driver's own repetitions of a retryable write end with the command's timeout.
		config := batch.Config{Stamp: stamp, RetryTime: 200 * time.Millisecond, CommandTimeout: 200 * time.Millisecond}
		for _, config := range []batch.Config{config, once(config)} {
			t.Run(fmt.Sprintf("%v, RetryTime %v", stamp, config.RetryTime), func(t *testing.T) {
				lossy(t, func(w *world) {
					documents := numbered(1, 3)
					w.plant("c", documents[1])
					lost := w.wire.On(faultwire.Insert).DropReply()
					_, failed := w.insert(config, batch.Into(w.coll("c"), append(documents, unnumbered(2)...)))
					if failed == nil {
						w.Fatal("the batch was stored beside a document with one of its ids")
					}
					if lost.Fired() == 0 {
						w.Fatal("no answer was lost")
					}
					if stamp != batch.StampNone && !failed.RolledBack() {
						w.Errorf("with a stamp everything can be told apart: %v", failed)
					}
					if stamp == batch.StampNone {
						// Nothing proves whose they are: all three are there, and named, and untouched.
						for _, left := range failed.Leftovers() {
							if !left.Seen || left.Collection != w.db.Name()+".c" {
								w.Errorf("leftover %+v, want one that was read", left)
							}
						}
						if n := len(failed.Leftovers()); n != 3 {
							w.Errorf("%d leftovers, want the three claimed ids: %v", n, failed)
						}
						if w.count("c") != 3 {
							w.Errorf("%d documents are there, want 3", w.count("c"))
						}
					}
					var network mongo.CommandError
					if config.RetryTime < 0 && !errors.Is(failed, context.DeadlineExceeded) && (!errors.As(failed, &network) || !network.HasErrorLabel("NetworkError")) {
						w.Errorf("the error tells neither of the network nor of the time: %v", failed)
					}
				})
			})
		}
	}
}

// Without a proof, ids whose insert never arrived are read back: there is nothing, so all is well.
func TestUnprovenButAbsent(t *testing.T) {
	lossy(t, func(w *world) {
		w.wire.On(faultwire.Insert).DropRequest()
		failed := w.mustRollBack(once(batch.Config{Stamp: batch.StampNone, CommandTimeout: 200 * time.Millisecond}), batch.Into(w.coll("c"), numbered(1, 3)))
		if len(failed.Leftovers()) != 0 || w.wire.Count(faultwire.Delete) > 1 { // one may be the fence
			w.Errorf("leftovers %v after\n%s", failed.Leftovers(), w.wire)
		}
	})
}

// The insert reaches the server after the rollback's delete found nothing.
func TestLateInsert(t *testing.T) {
	kinds := map[string]func() []bson.D{
		"claimed": func() []bson.D { return numbered(1, 5) },
		"minted":  func() []bson.D { return unnumbered(5) },
		"mixed":   func() []bson.D { return append(numbered(1, 3), unnumbered(3)...) },
	}
	for name, documents := range kinds {
		for _, size := range []int{1, 100} { // chunks
			t.Run(fmt.Sprintf("%s by %d", name, size), func(t *testing.T) {
				lossy(t, func(w *world) {
					held := w.wire.On(faultwire.Insert).Nth(1).Hold()
					deleted := w.wire.On(faultwire.Delete.Where(many)).Pass()
					go func() {
						select {
						case <-deleted.Done(): // the first delete found nothing
						case <-w.Context().Done():
						}
						held.Release()
					}()
					config := once(batch.Config{CommandTimeout: 50 * time.Millisecond, ChunkSize: size})
					config.Rollback.Settle = 150 * time.Millisecond
					failed := w.mustRollBack(config, batch.Into(w.coll("c"), documents()))
					if !errors.Is(failed, context.DeadlineExceeded) {
						w.Errorf("the cause is %v, want a deadline", failed.Cause)
					}
					<-held.Done()
					if deleted.Fired() == 0 {
						w.Error("nothing was deleted")
					}
				})
			})
		}
	}
}

// many tells a rollback's deletes from its fences.
func many(r *faultwire.Request) bool {
	statements := r.Statements()
	return len(statements) > 0 && statements[0].Lookup("limit").AsInt64() == 0
}

// The caller's deadline passes while an insert is held: it is waited for, and rolled back when it comes.
func TestLateInsertAfterCallersDeadline(t *testing.T) {
	lossy(t, func(w *world) {
		held := w.wire.On(faultwire.Insert).Hold()
		ctx, cancel := context.WithCancel(w.Context())
		go func() {
			<-held.Arrived()
			cancel()
			held.Release()
		}()
		_, failed := w.insertWith(ctx, batch.New(quick(batch.Config{})), batch.Into(w.coll("c"), unnumbered(3)))
		// A command that was under way is never cancelled. If all documents are stored by then, so is the batch.
		if failed != nil {
			w.Errorf("the only insert succeeded: %v", failed)
		}
	})
}

// The answer to an insert that was carried out is lost, and the second sending clashes with the first: these documents
// are ours. They are kept if that was all, and removed if another document truly fails.
func TestClashWithOwnInsert(t *testing.T) {
	for _, chunk := range []int{1, 3, 100} {
		for _, nth := range []int{1, 2} {
			for _, bad := range []bool{false, true} {
				t.Run(fmt.Sprintf("by %d, answer %d lost, bad=%t", chunk, nth, bad), func(t *testing.T) {
					lossy(t, func(w *world) {
						w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
						documents := append(numbered(1, 4), unnumbered(3)...)
						if bad {
							documents = append(documents, bson.D{{Key: "_id", Value: "taken"}})
						}
						lost := w.wire.On(faultwire.Insert).Nth(nth).DropReply()
						config := batch.Config{ChunkSize: chunk, Concurrency: 1}
						if bad {
							if at := indexes(w.mustRollBack(config, batch.Into(w.coll("c"), documents))); !slices.Equal(at, []int{7}) {
								w.Errorf("documents %v are refused, want the last", at)
							}
						} else {
							w.mustStore(config, batch.Into(w.coll("c"), documents))
						}
						if want := min(1, max(0, w.wire.Count(faultwire.Insert)-nth)); lost.Fired() != want {
							w.Errorf("%d answers were lost, want %d\n%s", lost.Fired(), want, w.wire)
						}
					})
				})
			}
		}
	}
}

// Half of an insert was carried out when the connection broke; the second sending stores the rest.
func TestHalfAnInsert(t *testing.T) {
	lossy(t, func(w *world) {
		stamp := bson.ObjectID{}
		w.wire.On(faultwire.Insert).Once().Do(faultwire.Before(func(ctx context.Context, r *faultwire.Request) {
			half := r.Documents()[:3]
			stamp = half[0].Lookup("_batch").ObjectID()
			if _, err := w.around.Collection("c").InsertMany(ctx, []any{half[0], half[1], half[2]}); err != nil {
				w.Error(err)
			}
		}), faultwire.DropRequest())
		result := w.mustStore(batch.Config{}, batch.Into(w.coll("c"), numbered(1, 6)))
		if result.BatchID != stamp {
			w.Errorf("the stamp was %v, the batch is %v", stamp, result.BatchID)
		}
	})
}

// All that the server says is lost, for good: the answers to deletes as well. The budget ends it, and what may be left
// is named.
func TestEverythingIsLost(t *testing.T) {
	for name, documents := range map[string][]bson.D{"claimed": numbered(1, 4), "minted": unnumbered(4)} {
		t.Run(name, func(t *testing.T) {
			lossy(t, func(w *world) {
				lost := w.wire.On(faultwire.Insert, faultwire.Delete, faultwire.Find).DropReply()
				config := once(batch.Config{CommandTimeout: 100 * time.Millisecond})
				config.Rollback.CommandTimeout = 100 * time.Millisecond
				config.Rollback.Budget = 300 * time.Millisecond
				_, failed := w.insert(config, batch.Into(w.coll("c"), documents))
				switch {
				case failed == nil:
					w.Fatal("the batch was stored without an answer")
				case failed.RolledBack():
					w.Errorf("nobody could know that it is rolled back: %v", failed)
				case len(failed.Leftovers()) != len(documents):
					w.Errorf("%d leftovers, want all %d: %v", len(failed.Leftovers()), len(documents), failed)
				}
				for _, left := range failed.Leftovers() {
					if left.Seen {
						w.Errorf("leftover %v was seen by nobody", left)
					}
				}
				if lost.Fired() == 0 {
					w.Error("nothing was lost")
				}
			})
		})
	}
}

// Another client edits a document before its batch fails: it goes with its batch, on every path.
func TestDocumentEditedBeforeRollback(t *testing.T) {
	edits := map[string]bson.D{
		"a field set":       {{Key: "$set", Value: bson.D{{Key: "x", Value: "theirs"}}}},
		"everything but it": {{Key: "$set", Value: bson.D{{Key: "y", Value: 1}}}, {Key: "$unset", Value: bson.D{{Key: "x", Value: ""}}}},
	}
	for name, edit := range edits {
		for kind, first := range map[string]bson.D{"claimed": {{Key: "_id", Value: 1}, {Key: "x", Value: 1}}, "minted": {{Key: "x", Value: 1}}} {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, lost=%t", name, kind, lost), func(t *testing.T) {
					lossy(t, func(w *world) {
						w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
						faults := []faultwire.Fault{faultwire.After(func(ctx context.Context, r *faultwire.Request) {
							result, err := w.around.Collection("c").UpdateOne(ctx, bson.D{{Key: "_id", Value: r.IDs()[0]}}, edit)
							if err != nil || result.ModifiedCount != 1 {
								w.Errorf("editing: %v, %v", result, err)
							}
						})}
						if lost {
							faults = append(faults, faultwire.DropReply())
						}
						w.wire.On(faultwire.Insert).Once().Do(faults...)
						documents := []bson.D{first, {{Key: "_id", Value: "taken"}}}
						w.mustRollBack(batch.Config{ChunkSize: 1, Concurrency: 1}, batch.Into(w.coll("c"), documents))
					})
				})
			}
		}
	}
}
