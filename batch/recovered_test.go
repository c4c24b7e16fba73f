package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// abandon stores a batch whose owner can neither commit nor roll back, nor says so: a crash before the commit, as far as
// anybody can see. It returns what the batch stored.
func (w *world) abandon(config batch.Config, parts ...batch.Part) int {
	w.Helper()
	committing := false
	silent := w.wire.On(faultwire.Any.In(w.db.Name() + "." + journalName).Where(func(r *faultwire.Request) bool {
		if r.Name == faultwire.Update {
			state, _ := r.Statements()[0].Lookup("u", "$set", "state").StringValueOK()
			committing = committing || state == "committed"
		}
		return committing // from then on the journal answers nothing
	})).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized"})
	config.Journal, config.Lease = w.coll(journalName), time.Second
	_, err := batch.New(quick(config)).Insert(w.Context(), parts...)
	var failed *batch.Error
	if !errors.As(err, &failed) || !failed.Unresolved() {
		w.Fatalf("the owner did not die where it should: %v", err)
	}
	silent.Off()
	return len(w.readAll()) - len(w.planted)
}

// recover makes the two passes that a recovery takes.
func (w *world) recover() rollback.RecoveryReport {
	w.Helper()
	var first rollback.RecoveryReport
	for pass := range 2 {
		report, err := rollback.Recover(w.Context(), w.around.Collection(journalName), rollback.Recovery{Policy: rollback.Policy{Settle: 20 * time.Millisecond}})
		if err != nil {
			w.Fatalf("pass %d: %+v, %v", pass+1, report, err)
		}
		if pass == 0 {
			first = report
		}
	}
	return first
}

// Every kind of _id comes back from the journal as it was stored: a recovery deletes exactly those documents, and none
// with an _id that looks alike.
func TestEveryKindOfIDIsRecovered(t *testing.T) {
	uuid := [16]byte{0: 0xca, 7: 0xfe, 15: 1}
	at := time.Date(2024, 2, 29, 12, 0, 0, 123_456_789, time.FixedZone("", 3600))
	alike := [][]any{ // the first of each is the batch's, the others belong to somebody else
		{uuid, bson.Binary{Subtype: 3, Data: uuid[:]}, bson.Binary{Subtype: 4, Data: uuid[:]}},
		{bson.Binary{Subtype: 4, Data: append([]byte{1}, uuid[1:]...)}, fmt.Sprintf("%x", uuid)},
		{at, at.Add(time.Millisecond), at.String()},
		{bson.D{{Key: "d", Value: at}, {Key: "n", Value: 1}}, bson.D{{Key: "n", Value: 1}, {Key: "d", Value: at}}},
		{bson.M{"a": 1, "b": "x", "c": 1.5, "d": true, "e": nil}, bson.D{{Key: "a", Value: 1}}},
		{compound{E: 1, B: "x"}, bson.D{}},
		{int32(7), "7"}, {1.5, "1.5"}, {"$gt", "$gte"}, {true, "true"}, {bson.ObjectID{9, 1: 8}, bson.ObjectID{9, 1: 8}.Hex() + " "},
	}
	eachServer(t, func(w *world) {
		var documents []any
		for _, ids := range alike {
			documents = append(documents, bson.M{"_id": ids[0], "x": "ours"})
			for i, theirs := range ids[1:] {
				if _, binary := theirs.(bson.Binary); binary && w.server.Kind == servertest.KindEmbedded {
					continue // FerretDB 1.24 takes binaries of different subtypes for duplicates
				}
				w.plant("c", bson.D{{Key: "_id", Value: theirs}, {Key: "i", Value: i}})
			}
		}
		if n := w.abandon(batch.Config{ChunkSize: 4}, batch.Into(w.coll("c"), documents)); n != len(documents) {
			w.Fatalf("%d documents were stored, want %d", n, len(documents))
		}
		if report := w.recover(); report.Deleted != int64(len(documents)) {
			w.Errorf("%+v, want %d documents deleted", report, len(documents))
		}
		w.check()
	})
}

// What somebody edited since is deleted with its batch by a recovery as by a rollback.
func TestDocumentEditedBeforeRecovery(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"claimed": numbered(1, 3), "minted": unnumbered(3)} {
		t.Run(kind, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.abandon(batch.Config{}, batch.Into(w.coll("c"), documents))
				edit := bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: "theirs"}, {Key: "note", Value: "edited"}}}}
				if result, err := w.around.Collection("c").UpdateMany(w.Context(), bson.D{}, edit); err != nil || result.ModifiedCount != 3 {
					w.Fatalf("editing: %+v, %v", result, err)
				}
				if report := w.recover(); report.Deleted != 3 {
					w.Errorf("%+v, want 3 documents deleted", report)
				}
				w.check()
			})
		})
	}
}

// With all documents stamped and the stamp removed at the end, a document without a stamp is one of a stored batch, for
// readers that look at any time.
func TestUnstampedMeansStored(t *testing.T) {
	for _, bad := range []bool{false, true} {
		t.Run(fmt.Sprintf("bad=%t", bad), func(t *testing.T) {
			lossy(t, func(w *world) {
				w.plant("taken", bson.D{{Key: "_id", Value: 0}})
				look := func(context.Context, *faultwire.Request) {
					for place, raw := range w.read("c") {
						if _, err := raw.LookupErr("_batch"); err != nil {
							w.Errorf("a reader takes %s for stored", place)
						}
					}
				}
				w.wire.On(faultwire.Insert).Nth(2).DropReply()
				w.wire.On(faultwire.Insert, faultwire.Delete).Do(faultwire.Before(look), faultwire.After(look))
				config := batch.Config{Stamp: batch.StampAll, RemoveStamp: true, ChunkSize: 2, Concurrency: 2}
				last := []bson.D{{{Key: "_id", Value: 1}}}
				if bad {
					last = []bson.D{{{Key: "_id", Value: 0}}}
				}
				parts := []batch.Part{batch.Into(w.coll("c"), slices.Concat(numbered(1, 4), unnumbered(5))), batch.Into(w.coll("taken"), last)}
				if bad {
					w.mustRollBack(config, parts...)
					if n := w.wire.Count(faultwire.Update); n > 0 {
						w.Errorf("stamps were removed in a batch that was not stored, by %d updates", n)
					}
					return
				}
				w.mustStore(config, parts...)
				for place, raw := range w.read("c") {
					if _, err := raw.LookupErr("_batch"); err == nil {
						w.Errorf("%s still has its stamp", place)
					}
				}
			})
		})
	}
}
