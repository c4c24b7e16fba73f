package batch_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
)

// Where the server does not name the index, a clash of numbers may look like one of the minted _id. The documents are
// stored with other numbers, and have to go all the same when the batch fails after that.
func TestRenumberedDocumentsAreRolledBack(t *testing.T) {
	eachServer(t, func(w *world) {
		w.uniqueIndex("a", "no")
		w.wire.On(faultwire.Insert).Once().Before(func(context.Context, *faultwire.Request) {
			w.plant("a", bson.D{{Key: "_id", Value: "x"}, {Key: "no", Value: int64(1)}}, bson.D{{Key: "_id", Value: "y"}, {Key: "no", Value: int64(2)}})
		})
		last := w.wire.On(faultwire.Insert).Nth(3).Reply(faultwire.CommandError{Code: 13, Message: "no"})
		documents := []bson.D{{{Key: "i", Value: 0}}, {{Key: "i", Value: 1}}}
		// The third after the one above, which it does not count: the second of the two that are sent again.
		failed := w.mustRollBack(batch.Config{ChunkSize: 1, Concurrency: 1},
			batch.Into(w.coll("a"), documents).Number("no", idgen.NewOptimistic(w.coll("a"), "no")))
		if last.Fired() != 1 {
			w.Fatalf("both documents were not sent again: %v", failed)
		}
	})
}

func TestOnlyClashedDocumentsAreRenumbered(t *testing.T) {
	eachServer(t, func(w *world) {
		w.uniqueIndex("a", "no")
		w.wire.On(faultwire.Insert).Once().Before(func(context.Context, *faultwire.Request) {
			w.plant("a", bson.D{{Key: "_id", Value: "x"}, {Key: "no", Value: int64(2)}})
		})
		documents := []bson.D{{{Key: "i", Value: 0}}, {{Key: "i", Value: 1}}, {{Key: "i", Value: 2}}}
		result := w.mustStore(batch.Config{},
			batch.Into(w.coll("a"), documents).Number("no", idgen.NewOptimistic(w.coll("a"), "no")))
		numbers := result.Parts[0].Numbers["no"]
		if numbers[0] != int64(1) || numbers[1] != int64(4) || numbers[2] != int64(3) {
			w.Errorf("the numbers are %v, not 1, 4 and 3", numbers)
		}
		if n := w.wire.Count(faultwire.Insert); n != 2 {
			w.Errorf("%d inserts were sent, not 2", n)
		}
	})
}

// Documents that clashed go on with new numbers, and only so, also when the answer complains of its write concern as well.
func TestClashWithAnUnmetWriteConcern(t *testing.T) {
	eachServer(t, func(w *world) {
		w.uniqueIndex("a", "no")
		taken := faultwire.Before(func(context.Context, *faultwire.Request) {
			w.plant("a", bson.D{{Key: "_id", Value: "x"}, {Key: "no", Value: int64(1)}}, bson.D{{Key: "_id", Value: "y"}, {Key: "no", Value: int64(2)}})
		})
		w.wire.On(faultwire.Insert).Once().Do(taken, faultwire.Lie(faultwire.WriteConcernError{Code: 64, Message: "not met"}))
		documents := []bson.D{{{Key: "i", Value: 0}}, {{Key: "i", Value: 1}}}
		result := w.mustStore(batch.Config{}, batch.Into(w.coll("a"), documents).Number("no", idgen.NewOptimistic(w.coll("a"), "no")))
		if numbers := result.Parts[0].Numbers["no"]; numbers[0] != int64(3) || numbers[1] != int64(4) {
			w.Errorf("the numbers are %v, not 3 and 4", numbers)
		}
		if n := w.wire.Count(faultwire.Insert); n != 2 {
			w.Errorf("%d inserts were sent, not 2", n)
		}
	})
}
