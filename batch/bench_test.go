package batch_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
)

const (
	benchDocuments   = 5_000
	benchChunk       = 1_000
	benchConcurrency = 4
)

// BenchmarkInsert puts Insert beside what is usually written by hand, in one run: InsertMany with the same chunks,
// concurrency and write concern and one reservation of numbers, which leaves documents behind when it fails; and one
// goroutine for each document, with a findAndModify for its number and an insert. Each operation of the benchmark does
// all three in turn, so that the machine's moods meet them alike. What is reported:
//
//	docs/s         documents stored by Insert in a second
//	×many, ×single how many times the time of InsertMany, and of one by one, Insert takes
//	allocs/doc     allocations for a document, of Insert; many-allocs/doc of InsertMany
//
// What goes on in an in-process server counts as well; "discard" is one that keeps nothing, so that most of what is
// measured is the client's.
func BenchmarkInsert(b *testing.B) {
	b.Run("embedded", func(b *testing.B) { benchmarkInsert(b, servertest.Embedded(b), benchDocuments/10) })
	b.Run("mongosim", func(b *testing.B) {
		benchmarkInsert(b, simulatedBench(b, mongosim.Config{ReplicaSet: "rs"}), benchDocuments/10)
	})
	b.Run("discard", func(b *testing.B) { benchmarkInsert(b, simulatedBench(b, mongosim.Config{Discard: true}), 0) })
}

func simulatedBench(b *testing.B, config mongosim.Config) *servertest.Server {
	b.Helper()
	server, err := mongosim.Start(config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { server.Close() })
	return &servertest.Server{Kind: servertest.KindSim, URI: server.URI()}
}

// benchmarkInsert compares; singles is how many documents are stored one by one, 0 for none.
func benchmarkInsert(b *testing.B, s *servertest.Server, singles int) {
	journaled := true
	client := s.Client(b, options.Client().SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: &journaled}))
	db := s.Database(b, client)
	number := idgen.NewCounter(db.Collection(counters), "no")
	if _, err := number.Next(b.Context()); err != nil {
		b.Fatal(err)
	}
	documents := make([]bson.D, benchDocuments)
	for i := range documents {
		documents[i] = bson.D{{Key: "name", Value: "somebody"}, {Key: "city", Value: "somewhere"}, {Key: "i", Value: i}, {Key: "no", Value: int64(0)}}
	}
	inserter := batch.New(batch.Config{ChunkSize: benchChunk, Concurrency: benchConcurrency})
	insert := func() error {
		_, err := inserter.Insert(b.Context(), batch.Into(db.Collection("ours"), documents).Number("no", number))
		return err
	}
	many := func() error { return insertMany(b.Context(), db.Collection("many"), documents, number) }
	single := func() error { return insertSingly(b.Context(), db.Collection("singly"), documents[:singles], number) }

	var ours, theirs, alone measured
	b.ResetTimer()
	for range b.N {
		ours.add(b, insert)
		theirs.add(b, many)
		if singles > 0 {
			alone.add(b, single)
		}
	}
	b.StopTimer()
	n := float64(b.N * benchDocuments)
	b.ReportMetric(0, "ns/op") // of three things at once it means nothing
	b.ReportMetric(n/ours.time.Seconds(), "docs/s")
	b.ReportMetric(float64(ours.allocs)/n, "allocs/doc")
	b.ReportMetric(float64(theirs.allocs)/n, "many-allocs/doc")
	b.ReportMetric(ours.time.Seconds()/theirs.time.Seconds(), "×many")
	if singles > 0 {
		b.ReportMetric(ours.time.Seconds()/(alone.time.Seconds()*benchDocuments/float64(singles)), "×single")
	}
}

// measured sums up the time and the allocations of one way to do it.
type measured struct {
	time   time.Duration
	allocs uint64
}

func (m *measured) add(b *testing.B, do func() error) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC() // the garbage of the one before is not this one's
	runtime.ReadMemStats(&before)
	start := time.Now()
	if err := do(); err != nil {
		b.Fatal(err)
	}
	m.time += time.Since(start)
	runtime.ReadMemStats(&after)
	m.allocs += after.Mallocs - before.Mallocs
}

func insertMany(ctx context.Context, coll *mongo.Collection, documents []bson.D, number *idgen.Counter) error {
	block, err := number.Take(ctx, len(documents))
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(benchConcurrency)
	for from := 0; from < len(documents); from += benchChunk {
		group.Go(func() error {
			chunk := make([]any, 0, benchChunk)
			for i := from; i < min(from+benchChunk, len(documents)); i++ {
				document := append(bson.D(nil), documents[i]...)
				document[len(document)-1].Value = block.At(i)
				chunk = append(chunk, document)
			}
			_, err := coll.InsertMany(ctx, chunk, options.InsertMany().SetOrdered(false))
			return err
		})
	}
	return group.Wait()
}

func insertSingly(ctx context.Context, coll *mongo.Collection, documents []bson.D, number *idgen.Counter) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range documents {
		group.Go(func() error {
			n, err := number.Next(ctx)
			if err != nil {
				return err
			}
			document := append(bson.D(nil), documents[i]...)
			document[len(document)-1].Value = n
			_, err = coll.InsertOne(ctx, document)
			return err
		})
	}
	return group.Wait()
}
