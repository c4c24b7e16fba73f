package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// pretender makes the world of a server that says it knows retryable writes and carries out repetitions anew, as FerretDB
// does when it is given a replica set's name.
func pretender(t *testing.T) *world {
	t.Helper()
	w := balanced(t, servertest.Embedded(t))
	w.wire.On(faultwire.Hello).Lie(faultwire.Set("setName", "rs"))
	return w
}

// The driver repeats an insert by itself and is answered that all its documents exist. They are ours.
func TestDriverRepeatsInsert(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"minted": unnumbered(3), "claimed": numbered(1, 3), "one": unnumbered(1)} {
		for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampAll} {
			t.Run(kind+" "+stamp.String(), func(t *testing.T) {
				w := pretender(t)
				lost := w.wire.On(faultwire.Insert).Once().DropReply()
				w.mustStore(batch.Config{Stamp: stamp}, batch.Into(w.coll("c"), documents))
				if lost.Fired() != 1 || w.wire.Count(faultwire.Insert) != 2 {
					t.Errorf("%d answers were lost\n%s", lost.Fired(), w.wire)
				}
				for _, e := range w.wire.Events(faultwire.Insert) {
					if _, retryable := e.TxnNumber(); !retryable {
						t.Errorf("the driver does not take this server for what it pretends: %v", e)
					}
				}
			})
		}
	}
}

// The driver gives a connection up and repeats an insert, which is answered; the batch fails over something else and is
// rolled back; then the first sending arrives. The second look finds its documents.
func TestFirstSendingArrivesAfterRollback(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"minted": unnumbered(3), "claimed": numbered(1, 3)} {
		for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
			for server, make := range map[string]func(*testing.T) *world{
				"history":    func(t *testing.T) *world { return balanced(t, simulatedServer(t, mongosim.Config{ReplicaSet: "rs"})) },
				"no history": pretender,
			} {
				t.Run(fmt.Sprintf("%s, %s, %s", kind, stamp, server), func(t *testing.T) {
					w := make(t)
					w.uniqueIndex("c", "u")
					w.plant("c", bson.D{{Key: "u", Value: 1}})
					refused := bson.D{{Key: "u", Value: 1}}
					if kind == "claimed" {
						refused = append(refused, bson.E{Key: "_id", Value: 4})
					}
					held := w.wire.On(faultwire.Insert).Once().Hold()
					go func() {
						<-held.Arrived()
						w.wire.Cut()
					}()
					w.wire.On(faultwire.Delete.Where(many)).Once().After(func(context.Context, *faultwire.Request) {
						held.Release()
						<-held.Done()
					})
					_, failed := w.insert(batch.Config{Stamp: stamp}, batch.Into(w.coll("c"), append(slices.Clone(documents), refused)))
					if failed == nil {
						t.Fatalf("the batch had to fail\n%s", w.wire)
					}
					if unproven := server == "no history" && stamp == batch.StampNone && kind == "claimed"; failed.RolledBack() == unproven {
						t.Errorf("want leftovers %t, got %v\n%s", unproven, failed, w.wire)
					}
				})
			}
		}
	}
}

// The server writes the time in the place of an empty timestamp: the document is the batch's all the same.
func TestDriverRepeatsInsertWithTimestamp(t *testing.T) {
	w := balanced(t, simulatedServer(t, mongosim.Config{ReplicaSet: "rs", NoHistory: true}))
	lost := w.wire.On(faultwire.Insert).Once().DropReply()
	w.mustStore(batch.Config{}, batch.Into(w.coll("c"), []bson.D{{{Key: "at", Value: bson.Timestamp{}}, {Key: "x", Value: 1}}, {{Key: "x", Value: 2}}}))
	if lost.Fired() != 1 {
		t.Errorf("no answer was lost\n%s", w.wire)
	}
}

// The same, and a document is truly refused: the others are removed.
func TestDriverRepeatsInsertThatFails(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"minted": unnumbered(3), "claimed": numbered(1, 3)} {
		t.Run(kind, func(t *testing.T) {
			w := pretender(t)
			w.plant("c", bson.D{{Key: "_id", Value: "taken"}, {Key: "x", Value: "ours"}})
			w.wire.On(faultwire.Insert).Once().DropReply()
			failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), append(slices.Clone(documents), bson.D{{Key: "_id", Value: "taken"}, {Key: "x", Value: "ours"}})))
			if at := indexes(failed); !slices.Equal(at, []int{3}) {
				t.Errorf("documents %v are refused, want the last: %v", at, failed)
			}
		})
	}
}

// The same without a stamp: nothing tells the documents that the first sending stored from those of somebody else, so they
// are left, and named.
func TestDriverRepeatsInsertWithoutProof(t *testing.T) {
	w := pretender(t)
	w.wire.On(faultwire.Insert).Once().DropReply()
	w.plant("c", bson.D{{Key: "_id", Value: 2}, {Key: "x", Value: "theirs"}})
	w.mustNameAsLeft(batch.Config{Stamp: batch.StampNone}, []int{1, 2, 3}, batch.Into(w.coll("c"), numbered(1, 3)))
}

// A number that is the _id may be taken by the batch's own document: it is not given out anew, which would store that twice.
func TestDriverRepeatsInsertOfProposedIDs(t *testing.T) {
	w := pretender(t)
	w.wire.On(faultwire.Insert).Once().DropReply()
	part := batch.Into(w.coll("c"), unnumbered(3)).Number("_id", idgen.NewOptimistic(w.coll("c"), "_id"))
	w.mustNameAsLeft(batch.Config{Stamp: batch.StampNone}, []int{1, 2, 3}, part)
}

// mustNameAsLeft is insert where documents must be named as left for want of a proof.
func (w *world) mustNameAsLeft(config batch.Config, want []int, parts ...batch.Part) {
	w.Helper()
	result, failed := w.insert(config, parts...)
	if failed == nil {
		w.Fatalf("%d documents were stored, but the batch had to fail\n%s", result.Inserted, w.wire)
	}
	var left []int
	for _, l := range failed.Leftovers() {
		left = append(left, int(l.ID.AsInt64()))
	}
	if slices.Sort(left); !slices.Equal(left, want) || !errors.Is(failed, rollback.ErrUnproven) {
		w.Errorf("%v are named as left, want %v for want of a proof: %v\n%s", left, want, failed, w.wire)
	}
}

// A server with a history knows repetitions, and its refusals are believed; so are those of a server to which the driver
// sends nothing twice. Nobody is told of leftovers because somebody else's document was there before, an equal one even.
func TestClashWithoutProof(t *testing.T) {
	eachRetry(t, func(w *world) {
		w.plant("c", numbered(2, 1)[0])
		failed := w.mustRollBack(batch.Config{Stamp: batch.StampNone}, batch.Into(w.coll("c"), numbered(1, 3)))
		if at := indexes(failed); !slices.Equal(at, []int{1}) {
			w.Errorf("documents %v are refused, want the second: %v", at, failed)
		}
	})
}

// The driver's repetition is refused as a whole, for good or for a while. In the second case the batch sends the documents
// once more, and they clash with what the first sending stored; on a server with a history, too.
func TestRepetitionIsRefusedWithoutProof(t *testing.T) {
	for name, refusal := range map[string]faultwire.CommandError{
		"for good": {Code: 13, CodeName: "Unauthorized"}, "for a while": faultwire.Throttled(0),
	} {
		t.Run(name, func(t *testing.T) {
			w := balanced(t, simulatedServer(t, mongosim.Config{ReplicaSet: "rs"}))
			w.wire.On(faultwire.Insert).Once().DropReply()
			w.wire.On(faultwire.Insert).Once().Reply(refusal)
			w.mustNameAsLeft(batch.Config{Stamp: batch.StampNone}, []int{1, 2, 3}, batch.Into(w.coll("c"), numbered(1, 3)))
		})
	}
}

// The driver's first sending was carried out, and somebody has changed one of its documents since: it can no longer be told
// from somebody else's.
func TestDriverRepeatsInsertOfDocumentThatIsChanged(t *testing.T) {
	w := pretender(t)
	change := func(ctx context.Context, r *faultwire.Request) {
		id := r.Documents()[1].Lookup("_id")
		if _, err := w.around.Collection("c").UpdateByID(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "y", Value: 1}}}}); err != nil {
			t.Error(err)
		}
	}
	w.wire.On(faultwire.Insert).Once().DropReply()
	w.wire.On(faultwire.Insert).Once().Before(change)
	_, failed := w.insert(batch.Config{}, batch.Into(w.coll("c"), unnumbered(3)))
	if failed == nil || len(failed.Leftovers()) != 1 || failed.Rollback.Deleted != 2 || !errors.Is(failed, rollback.ErrUnproven) {
		t.Errorf("want the changed document as the only leftover, got %v\n%s", failed, w.wire)
	}
}

// A minted _id that somebody else has, against all odds, is theirs: it is not deleted, and it is not taken for ours.
func TestMintedIDTaken(t *testing.T) {
	eachRetry(t, func(w *world) {
		w.wire.On(faultwire.Insert).Once().Before(w.plantInPlace("c", 1))
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), unnumbered(3)))
		if at := indexes(failed); !slices.Equal(at, []int{1}) {
			w.Errorf("documents %v are refused, want the second: %v", at, failed)
		}
		if failed.Rollback.Deleted != 2 {
			w.Errorf("%d documents were deleted, want 2", failed.Rollback.Deleted)
		}
	})
}

// An account that may insert and not read cannot look whose a document is: the refusal is believed.
func TestClashThatNobodyMayLookAt(t *testing.T) {
	for kind, id := range map[string]any{"claimed": 2, "minted": nil} {
		t.Run(kind, func(t *testing.T) {
			eachServer(t, func(w *world) {
				documents := unnumbered(3)
				if id != nil {
					documents = numbered(1, 3)
					w.plant("c", bson.D{{Key: "_id", Value: id}})
				} else {
					w.wire.On(faultwire.Insert).Once().Before(w.plantInPlace("c", 1))
				}
				w.wire.On(faultwire.Find).Once().Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized"})
				failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), documents))
				if at := indexes(failed); !slices.Equal(at, []int{1}) || failed.Documents[0].Code != 11000 {
					w.Errorf("documents %v are refused, want the second: %v", at, failed)
				}
			})
		})
	}
}

// The look at whose a document is gets lost, once or for as long as anybody tries.
func TestLookIsLost(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"minted": unnumbered(3), "claimed": numbered(1, 3)} {
		t.Run(kind, func(t *testing.T) {
			lossy(t, func(w *world) {
				w.wire.On(faultwire.Insert).Once().DropReply()
				w.wire.On(faultwire.Find).Once().DropReply()
				w.mustStore(batch.Config{}, batch.Into(w.coll("a"), documents))

				w.wire.On(faultwire.Insert).Once().DropReply()
				w.plant("b", bson.D{{Key: "_id", Value: "taken"}})
				look := w.wire.On(faultwire.Find.Where(func(r *faultwire.Request) bool { return r.Collection == "b" })).First(4).DropReply()
				failed := w.mustRollBack(once(batch.Config{}), batch.Into(w.coll("b"), append(slices.Clone(documents), bson.D{{Key: "_id", Value: "taken"}})))
				if failed.Rollback.Deleted != 3 {
					w.Errorf("%d documents were deleted after %d lost looks, want 3", failed.Rollback.Deleted, look.Fired())
				}
			})
		})
	}
}

// The driver repeats an insert that was carried out, and the repetition is refused as a whole: what is there is removed.
func TestRepetitionIsRefused(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"minted": unnumbered(3), "claimed": numbered(1, 3)} {
		for nth, stored := range map[int]int64{1: 2, 2: 3} { // of the first chunk, nothing else tells that something is stored
			t.Run(fmt.Sprintf("%s, chunk %d", kind, nth), func(t *testing.T) {
				w := balanced(t, simulatedServer(t, mongosim.Config{ReplicaSet: "rs"}))
				w.wire.On(faultwire.Insert).Nth(nth).DropReply()
				w.wire.On(faultwire.Insert).Nth(nth).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized"})
				failed := w.mustRollBack(batch.Config{Concurrency: 1, ChunkSize: 2}, batch.Into(w.coll("c"), documents))
				if failed.Rollback.Deleted != stored {
					t.Errorf("%d documents were deleted, want %d: %v", failed.Rollback.Deleted, stored, failed)
				}
			})
		}
	}
}

// Where nobody may look, what was refused is deleted with the rest: the stamp tells whether it is the batch's.
func TestRepetitionIsRefusedAndNobodyMayLook(t *testing.T) {
	w := balanced(t, simulatedServer(t, mongosim.Config{ReplicaSet: "rs"}))
	unauthorized := faultwire.CommandError{Code: 13, CodeName: "Unauthorized"}
	w.wire.On(faultwire.Insert).Nth(2).DropReply()
	w.wire.On(faultwire.Insert).Nth(2).Reply(unauthorized)
	w.wire.On(faultwire.Find).Reply(unauthorized)
	failed := w.mustRollBack(batch.Config{Concurrency: 1, ChunkSize: 2}, batch.Into(w.coll("c"), numbered(1, 3)))
	if failed.Rollback.Deleted != 3 {
		t.Errorf("%d documents were deleted, want 3: %v", failed.Rollback.Deleted, failed)
	}
}
