package batch_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// counting is a stream of n documents {i: 1…n} that then ends with err, or well if err is nil.
func counting(n int, err error) iter.Seq2[bson.D, error] {
	i := 0
	return batch.Each(func() (bson.D, error) {
		i++
		switch {
		case i <= n:
			return bson.D{{Key: "i", Value: i}}, nil
		case err != nil:
			return nil, err
		}
		return nil, io.EOF
	})
}

func (w *world) countIn(coll string) int64 {
	w.Helper()
	n, err := w.around.Collection(coll).CountDocuments(w.Context(), bson.D{})
	if err != nil {
		w.Fatal(err)
	}
	return n
}

// adopt takes what is in a collection for stored: the result of a stream does not tell the ids.
func (w *world) adopt(coll string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for place := range w.read(coll) {
		w.stored[place] = true
	}
}

func TestStreamIsStoredInOrderOfItsNumbers(t *testing.T) {
	eachServer(t, func(w *world) {
		const n = 2_345
		counter := idgen.NewCounter(w.around.Collection("counters"), "no")
		result, err := batch.New(batch.Config{ChunkSize: 100}).Insert(w.Context(), batch.Stream(w.coll("a"), counting(n, nil)).Number("meta.no", counter))
		if err != nil {
			w.Fatal(err)
		}
		w.adopt("a")
		if result.Inserted != n || result.Parts[0].Inserted != n {
			w.Errorf("the result counts %d and %d documents, not %d", result.Inserted, result.Parts[0].Inserted, n)
		}
		if result.Parts[0].IDs != nil || result.Parts[0].Numbers != nil {
			w.Error("the result of a stream holds ids or numbers")
		}
		cursor, err := w.around.Collection("a").Find(w.Context(), bson.D{})
		if err != nil {
			w.Fatal(err)
		}
		var stored []struct {
			I    int64
			Meta struct{ No int64 }
		}
		if err := cursor.All(w.Context(), &stored); err != nil {
			w.Fatal(err)
		}
		if len(stored) != n {
			w.Fatalf("%d documents are stored, not %d", len(stored), n)
		}
		for _, d := range stored {
			if d.I != d.Meta.No {
				w.Fatalf("document %d has number %d", d.I, d.Meta.No)
			}
		}
	})
}

func TestStreamThatFailsLeavesNothing(t *testing.T) {
	broken := errors.New("the file ends in the middle of a line")
	bad := func(yield func(bson.D, error) bool) {
		for d, err := range counting(550, nil) {
			if d[0].Value == 333 {
				d = bson.D{{Key: "_id", Value: bson.A{1}}}
			}
			if !yield(d, err) {
				return
			}
		}
	}
	for name, source := range map[string]struct {
		documents func() iter.Seq2[bson.D, error]
		check     func(w *world, failed *batch.Error)
	}{
		"an error of the source": {func() iter.Seq2[bson.D, error] { return counting(550, broken) }, func(w *world, failed *batch.Error) {
			if !errors.Is(failed, broken) || failed.Total != 550 {
				w.Errorf("%v of %d documents", failed, failed.Total)
			}
		}},
		"a document that is not fit": {func() iter.Seq2[bson.D, error] { return bad }, func(w *world, failed *batch.Error) {
			if len(failed.Documents) != 1 || failed.Documents[0].Index != 332 || !errors.Is(failed, batch.ErrInvalidDocuments) {
				w.Errorf("%v", failed)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, journaled := range []bool{false, true} {
				eachServer(t, func(w *world) {
					w.plant("a", bson.D{{Key: "_id", Value: "somebody else's"}})
					config := batch.Config{ChunkSize: 50}
					if journaled {
						config.Journal = w.coll("journal")
					}
					failed := w.mustRollBack(config, batch.Stream(w.coll("a"), source.documents()))
					source.check(w, failed)
					if n := w.countIn("a"); n != 1 {
						w.Errorf("%d documents are there, not the one of somebody else", n)
					}
				})
			}
		})
	}
}

func TestStreamWhoseSourcePanicsIsRolledBackFirst(t *testing.T) {
	eachServer(t, func(w *world) {
		defer func() {
			if panicked := recover(); panicked != "out of coffee" {
				w.Errorf("the panic became %v", panicked)
			}
			if n := w.countIn("a"); n != 0 {
				w.Errorf("%d documents are there", n)
			}
		}()
		_, err := batch.New(quick(batch.Config{ChunkSize: 10})).Insert(w.Context(), batch.Stream(w.coll("a"), func(yield func(bson.D, error) bool) {
			for d, err := range counting(55, nil) {
				yield(d, err)
			}
			panic("out of coffee")
		}))
		w.Errorf("Insert returned %v", err)
	})
}

func TestStreamIsReadNoFurtherWhenTheContextEnds(t *testing.T) {
	eachServer(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		read := 0
		_, failed := w.insertWith(ctx, batch.New(quick(batch.Config{ChunkSize: 10, Concurrency: 1})), batch.Stream(w.coll("a"), func(yield func(bson.D, error) bool) {
			for d, err := range counting(10_000, nil) {
				if read++; read == 100 {
					cancel()
				}
				if !yield(d, err) {
					return
				}
			}
		}))
		if failed == nil || !failed.RolledBack() || !errors.Is(failed, context.Canceled) {
			w.Errorf("%v", failed)
		}
		if read > 200 {
			w.Errorf("%d documents were read", read)
		}
		if n := w.countIn("a"); n != 0 {
			w.Errorf("%d documents are there", n)
		}
	})
}

func twice(yield func(bson.D, error) bool) {
	for i, id := range []int{1, 2, 3, 1} {
		if !yield(bson.D{{Key: "_id", Value: id}, {Key: "i", Value: i}}, nil) {
			return
		}
	}
}

func TestSameIDTwiceInAStreamRemovesBoth(t *testing.T) {
	eachServer(t, func(w *world) {
		failed := w.mustRollBack(batch.Config{ChunkSize: 1, Concurrency: 1}, batch.Stream(w.coll("a"), twice))
		if len(failed.Documents) != 1 || failed.Documents[0].Index != 3 || failed.Documents[0].Duplicate == nil {
			w.Errorf("%v", failed)
		}
		if n := w.countIn("a"); n != 0 {
			w.Errorf("%d documents are there", n)
		}
	})
}

// The document that is found after a lost answer has the batch's stamp and the right _id, but is the first twin, not the
// one whose answer was lost.
func TestLostAnswerToATwinIsNoProofThatItIsStored(t *testing.T) {
	for name, parts := range map[string]func(w *world) []batch.Part{
		"in one stream": func(w *world) []batch.Part {
			return []batch.Part{batch.Stream(w.coll("a"), twice)}
		},
		"in a slice and a stream": func(w *world) []batch.Part {
			return []batch.Part{
				batch.Into(w.coll("a"), []bson.D{{{Key: "_id", Value: 1.0}}, {{Key: "_id", Value: 8}}, {{Key: "_id", Value: 9}}}),
				batch.Stream(w.coll("a"), func(yield func(bson.D, error) bool) { yield(bson.D{{Key: "_id", Value: int64(1)}}, nil) }),
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				lost := w.wire.On(faultwire.Insert).Nth(4).DropReply()
				_, failed := w.insert(batch.Config{ChunkSize: 1, Concurrency: 1}, parts(w)...)
				if lost.Fired() != 1 {
					w.Fatal("no answer was lost")
				}
				if failed == nil || !failed.RolledBack() {
					w.Errorf("the batch ended with %v, with %d documents stored", failed, w.countIn("a"))
				}
				if n := w.countIn("a"); n != 0 {
					w.Errorf("%d documents are there", n)
				}
			}, options.Client().SetRetryWrites(false))
		})
	}
}

// simulator starts a server of the test's own, and returns a client of it over a wire.
func simulator(t *testing.T, config mongosim.Config) (*mongosim.Server, *faultwire.Wire, *mongo.Client) {
	t.Helper()
	config.ReplicaSet, config.InProcess = "rs0", true
	server, err := mongosim.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	wire := faultwire.ForTest(t, faultwire.Over(server.Dialer()), faultwire.KeepLast(100))
	s := &servertest.Server{Kind: servertest.KindSim, URI: server.URI()}
	return server, wire, s.Client(t, options.Client().SetDialer(wire))
}

// A stream's minted ids are journaled before they are used, however many there are, in a head of constant size.
func TestCrashedStreamIsRecovered(t *testing.T) {
	server, wire, client := simulator(t, mongosim.Config{})
	around := (&servertest.Server{URI: server.URI()}).Client(t, options.Client().SetDialer(server.Dialer())).Database("d")
	stop := make(chan struct{})
	config := quick(batch.Config{
		Journal: client.Database("d").Collection("journal"), ChunkSize: 5_000, Lease: 500 * time.Millisecond, RetryTime: 100 * time.Millisecond,
		CommandTimeout: 10 * time.Second, Rollback: rollback.Policy{Settle: 20 * time.Millisecond, Stop: stop},
	})
	const read = 110_000 // more than one window of minted ids
	_, err := batch.New(config).Insert(t.Context(), batch.Stream(client.Database("d").Collection("a"), func(yield func(bson.D, error) bool) {
		for d, err := range counting(read, nil) {
			if d[0].Value == read {
				wire.Down() // the process has died, as far as anybody can see
				close(stop)
			}
			if !yield(d, err) {
				return
			}
		}
	}))
	if err == nil {
		t.Fatal("the batch was stored")
	}
	stored, err := around.Collection("a").CountDocuments(t.Context(), bson.D{})
	if err != nil || stored < 50_000 {
		t.Fatalf("only %d documents were stored before the crash: %v", stored, err)
	}
	for range 2 {
		recovery := rollback.Recovery{Policy: rollback.Policy{Settle: 20 * time.Millisecond}, Retention: -1}
		if _, err := rollback.Recover(t.Context(), around.Collection("journal"), recovery); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := around.Collection("a").CountDocuments(t.Context(), bson.D{}); n != 0 || err != nil {
		t.Errorf("%d documents are left after recovery: %v", n, err)
	}
	var head struct{ Targets []journal.Target }
	if err := around.Collection("journal").FindOne(t.Context(), bson.D{}).Decode(&head); err != nil {
		t.Fatal(err)
	}
	if len(head.Targets) != 1 || len(head.Targets[0].Minted) < 1 || len(head.Targets[0].Minted) > 3 {
		t.Errorf("the head's targets are %+v", head.Targets)
	}
	wire.Up()
}

// What a batch holds does not grow with a stream of documents whose ids it mints.
func TestStreamNeedsNoMoreMemoryForMoreDocuments(t *testing.T) {
	server, _, _ := simulator(t, mongosim.Config{Discard: true})
	// Not over a wire, which remembers what it saw.
	client := (&servertest.Server{URI: server.URI()}).Client(t, options.Client().SetDialer(server.Dialer()))
	inserter := batch.New(batch.Config{})
	held := func(n int) uint64 {
		var most uint64
		_, err := inserter.Insert(t.Context(), batch.Stream(client.Database("d").Collection("c"), func(yield func(bson.D, error) bool) {
			for d, err := range counting(n, nil) {
				if i := d[0].Value.(int); i%(n/5) == 0 {
					runtime.GC()
					var now runtime.MemStats
					runtime.ReadMemStats(&now)
					most = max(most, now.HeapAlloc)
				}
				if !yield(d, err) {
					return
				}
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		return most
	}
	few, many := held(20_000), held(150_000)
	t.Logf("%d KiB held with 20,000 documents, %d KiB with 150,000", few>>10, many>>10)
	if many > few+8<<20 { // to keep the documents would take three times as much
		t.Errorf("%d bytes are held with 20,000 documents, %d with 150,000", few, many)
	}
}
