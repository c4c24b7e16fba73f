package batch_test

import (
	"context"
	"runtime"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
)

// An insert costs hardly more allocations than the driver's InsertMany of documents that have their _id, which every
// document of a batch has before it is sent.
func TestAllocationsOfInsert(t *testing.T) {
	const size, chunk = 10_000, 1_000
	server, _, _ := simulator(t, mongosim.Config{Discard: true})
	coll := (&servertest.Server{URI: server.URI()}).Client(t, options.Client().SetDialer(server.Dialer())).Database("d").Collection("c")
	documents, identified := make([]bson.D, size), make([]bson.D, size)
	for i := range documents {
		documents[i] = bson.D{{Key: "name", Value: "somebody"}, {Key: "i", Value: i}}
		identified[i] = append(bson.D{{Key: "_id", Value: bson.NewObjectID()}}, documents[i]...)
	}
	inserter := batch.New(batch.Config{ChunkSize: chunk})
	allocations := func(insert func(context.Context) error) float64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := insert(t.Context()); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs-before.Mallocs) / size
	}
	ours := func() float64 {
		return allocations(func(ctx context.Context) error {
			_, err := inserter.Insert(ctx, batch.Into(coll, documents))
			return err
		})
	}
	theirs := func() float64 {
		return allocations(func(ctx context.Context) error {
			for from := 0; from < size; from += chunk {
				if _, err := coll.InsertMany(ctx, identified[from:from+chunk], options.InsertMany().SetOrdered(false)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ours() // what is made once
	theirs()
	with, without := ours(), theirs()
	t.Logf("allocations per document: %.1f, InsertMany %.1f", with, without)
	if with > 1.1*without {
		t.Errorf("an insert makes %.1f allocations per document, InsertMany %.1f", with, without)
	}
}
