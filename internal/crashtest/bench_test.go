package crashtest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

var benchDocuments = flag.Int("crash.documents", 20_000, "how many documents BenchmarkRecover recovers")

// BenchmarkRecover measures how long a recovery takes for a large batch whose owner died before the commit: both passes,
// with a lease of a second. FerretDB reads the whole collection for each delete, the simulator looks ids up in an index.
func BenchmarkRecover(b *testing.B) {
	b.Run("embedded", func(b *testing.B) { benchmarkRecover(b, servertest.Embedded(b)) })
	b.Run("mongosim", func(b *testing.B) {
		sim, err := mongosim.Start(mongosim.Config{ReplicaSet: "rs"})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := sim.Close(); err != nil {
				b.Error(err)
			}
		})
		benchmarkRecover(b, &servertest.Server{Kind: servertest.KindSim, URI: sim.URI()})
	})
}

func benchmarkRecover(b *testing.B, server *servertest.Server) {
	for _, claims := range []bool{false, true} {
		b.Run(fmt.Sprintf("claimed=%t/documents=%d", claims, *benchDocuments), func(b *testing.B) {
			wire := faultwire.ForTest(b, faultwire.KeepLast(0))
			db := server.Database(b, server.Client(b, options.Client().SetDialer(wire)))
			documents := make([]bson.D, *benchDocuments)
			for i := range documents {
				documents[i] = bson.D{{Key: "n", Value: int32(i)}}
				if claims {
					documents[i] = append(bson.D{{Key: "_id", Value: fmt.Sprintf("%024d", i)}}, documents[i]...)
				}
			}
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				silent := wire.On(onRecords(faultwire.Update, faultwire.Find)).Reply(refuse)
				config := batch.Config{Journal: db.Collection("journal"), Lease: time.Hour, Rollback: rollback.Policy{Settle: time.Millisecond}}
				_, err := batch.New(config).Insert(b.Context(), batch.Into(db.Collection("documents"), documents))
				silent.Off()
				var failed *batch.Error
				if !errors.As(err, &failed) {
					b.Fatal(err)
				}
				change := bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: "open"}, {Key: "leaseMS", Value: int64(1_000)}}}}
				if _, err := db.Collection("journal").UpdateMany(b.Context(), bson.D{}, change); err != nil {
					b.Fatal(err)
				}
				recovery := rollback.Recovery{Policy: rollback.Policy{Budget: -1}, Retention: time.Nanosecond}
				b.StartTimer()
				for pass := range 2 {
					began := time.Now()
					report, err := rollback.Recover(context.Background(), db.Collection("journal"), recovery)
					if err != nil || len(report.RolledBack)+len(report.Closed) != 1 {
						b.Fatalf("pass %d: %+v, %v", pass+1, report, err)
					}
					b.Logf("pass %d: %d documents in %s, %d deletes so far", pass+1, report.Deleted, time.Since(began), wire.Count(faultwire.Delete))
				}
			}
			if n, err := db.Collection("documents").CountDocuments(context.Background(), bson.D{}); err != nil || n > 0 {
				b.Errorf("%d documents are left, %v", n, err)
			}
		})
	}
}
