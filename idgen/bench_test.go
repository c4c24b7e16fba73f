package idgen_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/servertest"
)

// One operation is one number, in a caller's hands. Optimistic's includes the insert of the document, without which it is
// nobody's. The embedded server writes one document at a time, so that Striped has nothing to win there. Compare within
// one run:
//
//	go test -run '^$' -bench . ./idgen
func BenchmarkNumbers(b *testing.B) {
	blocks := func(n int) func(*mongo.Database) (func(context.Context) (int, error), func() error) {
		return func(db *mongo.Database) (func(context.Context) (int, error), func() error) {
			counter := idgen.NewCounter(db.Collection("counters"), "n")
			return func(ctx context.Context) (int, error) {
				block, err := counter.Take(ctx, n)
				return block.Count, err
			}, nothing
		}
	}
	for _, kind := range []struct {
		name  string
		begin func(*mongo.Database) (take func(context.Context) (int, error), end func() error)
	}{
		{"one-by-one", blocks(1)},
		{"blocks-of-100", blocks(100)},
		{"blocks-of-1000", blocks(1000)},
		{"buffered", func(db *mongo.Database) (func(context.Context) (int, error), func() error) {
			buffer := idgen.NewBuffered(idgen.NewCounter(db.Collection("counters"), "n"))
			return func(ctx context.Context) (int, error) {
				_, err := buffer.Next(ctx)
				return 1, err
			}, buffer.Close
		}},
		{"striped", func(db *mongo.Database) (func(context.Context) (int, error), func() error) {
			striped := idgen.NewStriped(db.Collection("counters"), "n")
			if err := striped.RaiseTo(context.Background(), 0); err != nil { // begins all stripes
				b.Fatal(err)
			}
			return func(ctx context.Context) (int, error) {
				_, err := striped.Next(ctx)
				return 1, err
			}, nothing
		}},
		{"optimistic", func(db *mongo.Database) (func(context.Context) (int, error), func() error) {
			coll := db.Collection("numbered")
			uniqueOn(b, coll, bson.D{{Key: "n", Value: 1}})
			optimistic := idgen.NewOptimistic(coll, "n", idgen.OptimisticConfig{Attempts: 1000})
			return func(ctx context.Context) (int, error) {
				_, err := optimistic.Insert(ctx, into(coll, "n"))
				return 1, err
			}, nothing
		}},
	} {
		for _, callers := range []int{1, 4, 16, 64} {
			b.Run(fmt.Sprintf("%s/callers-%d", kind.name, callers), func(b *testing.B) {
				var commands atomic.Int64
				db := database(b, servertest.Embedded(b), options.Client().SetMonitor(&event.CommandMonitor{
					Started: func(context.Context, *event.CommandStartedEvent) { commands.Add(1) },
				}))
				take, end := kind.begin(db)
				if _, err := take(context.Background()); err != nil { // the first use is not measured
					b.Fatal(err)
				}
				commands.Store(0)
				b.ResetTimer()
				var given atomic.Int64
				var wait sync.WaitGroup
				for range callers {
					wait.Go(func() {
						for given.Load() < int64(b.N) {
							n, err := take(context.Background())
							if err != nil {
								b.Error(err)
								return
							}
							given.Add(int64(n))
						}
					})
				}
				wait.Wait()
				b.StopTimer()
				b.ReportMetric(float64(given.Load())/b.Elapsed().Seconds(), "numbers/s")
				b.ReportMetric(float64(commands.Load())/float64(given.Load())*1000, "trips/1000")
				if err := end(); err != nil {
					b.Error(err)
				}
			})
		}
	}
}
