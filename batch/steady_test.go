package batch_test

import (
	"bytes"
	"log"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
)

// A pool smaller than the concurrency does not starve the owner's signs of life, however long the batch takes: no
// recovery would take it over.
func TestSmallPoolKeepsTheLease(t *testing.T) {
	for _, bad := range []bool{false, true} {
		eachServer(t, func(w *world) {
			w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
			documents := unnumbered(40)
			if bad {
				documents[39] = bson.D{{Key: "_id", Value: "taken"}}
			}
			w.wire.On(faultwire.Insert.In(w.db.Name() + ".c")).DelayReply(50 * time.Millisecond)
			config := batch.Config{ChunkSize: 1, Concurrency: 8, Journal: w.coll(journalName), Lease: 800 * time.Millisecond}
			part := batch.Into(w.coll("c"), documents)
			if bad {
				w.mustRollBack(config, part)
			} else {
				w.mustStore(config, part)
			}
			if n := w.wire.Count(faultwire.Update); n < 3 { // a second is five beats
				w.Errorf("%d signs of life", n)
			}
		}, options.Client().SetMaxPoolSize(2))
	}
}

// After the server has complained, commands run one at a time; when it answers well, as many as before run together.
func TestConcurrencyComesBack(t *testing.T) {
	const places = 4
	eachServer(t, func(w *world) {
		throttled := w.wire.On(faultwire.Insert).Skip(6).Times(3).Reply(faultwire.Throttled(time.Millisecond))
		// Long after the complaints, all that may run at a time have to be there before any is answered.
		together := w.wire.On(faultwire.Insert).Skip(40).Times(places).HoldReply()
		var waiting sync.WaitGroup
		waiting.Go(func() {
			defer together.Release()
			select {
			case <-together.ArrivedN(places):
			case <-time.After(checkTime):
				w.Errorf("%d commands run at a time, want %d again", together.Fired(), places)
			}
		})
		w.mustStore(batch.Config{ChunkSize: 1, Concurrency: places, CommandTimeout: 2 * checkTime}, batch.Into(w.coll("c"), unnumbered(60)))
		waiting.Wait()
		if throttled.Fired() != 3 {
			w.Errorf("throttled %d times", throttled.Fired())
		}
	})
}

// Sixteen batches with numbers at a time into a database in which nothing exists yet, journal included.
func TestFirstInsertsIntoMissingJournal(t *testing.T) {
	eachServer(t, func(w *world) {
		inserter := batch.New(quick(batch.Config{ChunkSize: 2, Journal: w.coll(journalName)}))
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				_, failed := w.note(inserter.Insert(w.Context(), batch.Into(w.coll("a"), numbered(10*i, 5)).Number("no", number), batch.Into(w.coll("b"), unnumbered(3))))
				if failed != nil {
					w.Error(failed)
				}
			})
		}
		all.Wait()
		w.check()
	})
}

// Without a Logger the library says nothing, not even when things go wrong for good, nor on the process's own loggers.
func TestSilentByDefault(t *testing.T) {
	var said bytes.Buffer
	before, output, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.SetOutput(&said)
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(output)
		log.SetFlags(flags)
	})
	stdout, stderr := os.Stdout, os.Stderr
	printed, err := os.CreateTemp(t.TempDir(), "printed")
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout, os.Stderr = printed, printed
	t.Cleanup(func() {
		os.Stdout, os.Stderr = stdout, stderr
		printed.Close()
	})
	lossy(t, func(w *world) {
		w.plant("c", bson.D{{Key: "_id", Value: 3}})
		w.wire.On(faultwire.Insert).Once().DropReply()
		w.wire.On(faultwire.Delete.Where(many)).First(2).Reply(faultwire.CommandError{Code: 112})
		w.wire.On(faultwire.Delete.Where(many)).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized"})
		_, failed := w.insert(batch.Config{ChunkSize: 1, Concurrency: 1, RetryTime: time.Second, Journal: w.coll(journalName), Observe: func(batch.Event) {}}, batch.Into(w.coll("c"), numbered(1, 4)))
		if failed == nil || failed.RolledBack() {
			w.Errorf("want an incomplete rollback, got %v", failed)
		}
	})
	if at, err := printed.Seek(0, 1); at > 0 || err != nil || said.Len() > 0 {
		t.Errorf("the library said %q, and printed %d bytes, %v", said.String(), at, err)
	}
}
