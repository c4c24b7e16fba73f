package crashtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// TestJournalCost: what a journal costs does not grow with the batch, as long as the batch makes the ids itself.
func TestJournalCost(t *testing.T) {
	documents := 100_000
	if testing.Short() {
		documents = 10_000
	}
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t, faultwire.KeepLast(0))
		var inserts, records, pages atomic.Int64
		wire.Observe(func(c faultwire.Change) {
			if c.Stage != faultwire.Seen {
				return
			}
			for _, name := range writes {
				switch {
				case c.Event.Name != name:
				case c.Event.Collection == "journal":
					records.Add(1)
				case c.Event.Collection == "journal.pages":
					pages.Add(1)
				default:
					inserts.Add(1)
				}
			}
		})
		db := s.Database(t, s.Client(t, options.Client().SetDialer(wire)))
		config := batch.Config{Journal: db.Collection("journal"), Lease: time.Hour, ChunkSize: 1_000}
		if _, err := batch.New(config).Insert(t.Context(), batch.Into(db.Collection("a"), minted(documents))); err != nil {
			t.Fatal(err)
		}
		if records.Load() != 2 || pages.Load() != 0 || inserts.Load() != int64(documents/1_000) {
			t.Errorf("%d documents cost %d inserts, %d writes of the record and %d pages", documents, inserts.Load(), records.Load(), pages.Load())
		}
		// The head has a constant size.
		raw, err := db.Collection("journal").FindOne(t.Context(), bson.D{}).Raw()
		if err != nil || len(raw) > 1_000 {
			t.Errorf("the record has %d bytes, %v", len(raw), err)
		}
	})
}

// TestOwnerBeatsWhateverHangs: neither a chunk that hangs nor a slow callback makes a living owner look dead.
func TestOwnerBeatsWhateverHangs(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		const lease = time.Second
		held := j.wire.On(onDocuments(faultwire.Insert)).Nth(2).Hold()
		reported := make(chan batch.Progress, 100)
		config := j.config(func(c *batch.Config) {
			c.Lease, c.Concurrency, c.CommandTimeout = lease, 1, time.Hour
			c.Progress = func(p batch.Progress) {
				if p.Phase == batch.Inserting && p.Done == 4 {
					time.Sleep(5 * lease)
				}
				reported <- p
			}
		})
		done := make(chan error)
		go func() {
			_, err := batch.New(config).Insert(context.Background(), j.parts()...)
			done <- err
		}()
		for _, what := range []string{"slow callback", "hanging chunk"} {
			if what == "hanging chunk" {
				<-held.Arrived()
			}
			before := len(j.wire.Events(beats))
			report, err := rollback.Recover(context.Background(), j.around.Collection("journal"), rollback.Recovery{})
			for what == "slow callback" && len(report.Alive) == 0 && err == nil { // it may not have begun
				report, err = rollback.Recover(context.Background(), j.around.Collection("journal"), rollback.Recovery{})
			}
			if err != nil || len(report.Alive) != 1 || report.Deleted > 0 {
				t.Errorf("%s: a recovery reports %+v, %v", what, report, err)
			}
			if n := len(j.wire.Events(beats)) - before; n < 3 {
				t.Errorf("%s: %d beats were sent meanwhile", what, n)
			}
		}
		held.Release()
		if err := <-done; err != nil {
			t.Errorf("the batch: %v", err)
		}
		j.expect(partsSize, "committed")
	})
}

// TestFencedOwner: an owner that nothing was heard of for a lease is taken over, wherever it stands. It sends nothing more
// once it hears of it, and nothing of its batch is left.
func TestFencedOwner(t *testing.T) {
	for _, at := range []struct {
		name    string
		command faultwire.Match
		nth     int
	}{
		{"before the first chunk", onDocuments(faultwire.Insert), 1},
		{"before the last chunk", onDocuments(faultwire.Insert), 4},
		{"before the commit", to("committed"), 1},
	} {
		t.Run(at.name, func(t *testing.T) {
			eachBubble(t, func(j *journaled) {
				t := j.T
				const lease = time.Second
				config := j.config(func(c *batch.Config) {
					c.Lease, c.Concurrency, c.CommandTimeout, c.RetryTime = lease, 1, time.Hour, time.Hour
				})
				// From here on nothing gets through for a while, beats neither.
				arrived := make(chan struct{})
				var over atomic.Pointer[chan struct{}]
				j.wire.On(at.command).Nth(at.nth).Before(func(ctx context.Context, _ *faultwire.Request) {
					c := make(chan struct{})
					over.Store(&c)
					close(arrived)
					select {
					case <-c:
					case <-ctx.Done():
					}
				})
				j.wire.On(faultwire.Any).Before(func(ctx context.Context, _ *faultwire.Request) {
					if c := over.Load(); c != nil {
						select {
						case <-*c:
						case <-ctx.Done():
						}
					}
				})
				type outcome struct {
					result *batch.Result
					err    error
				}
				done := make(chan outcome)
				go func() {
					result, err := batch.New(config).Insert(context.Background(), j.parts()...)
					done <- outcome{result, err}
				}()
				<-arrived
				j.recover(2)
				j.expect(0, "aborted")
				before := len(j.wire.Events(onDocuments(faultwire.Insert)))
				close(*over.Load())
				o := <-done
				failed := j.failed(o.result, o.err)
				if !errors.Is(failed, batch.ErrFenced) || !failed.RolledBack() {
					t.Errorf("the owner says: %v", failed)
				}
				if after := len(j.wire.Events(onDocuments(faultwire.Insert))); after != before {
					t.Errorf("it sent %d chunks more", after-before)
				}
				j.expect(0, "aborted")
				if j.recover(1); len(j.wire.Events(to("committed"))) > 1 {
					t.Error("it tried to commit more than once")
				}
			})
		})
	}
}

// TestOwnerWhoseRecordIsGone: a failover that loses the record, or a person who deletes it, must not leave a batch that
// nobody can undo.
func TestOwnerWhoseRecordIsGone(t *testing.T) {
	eachBubble(t, func(j *journaled) {
		t := j.T
		j.wire.On(onDocuments(faultwire.Insert)).Nth(3).After(func(context.Context, *faultwire.Request) {
			if _, err := j.around.Collection("journal").DeleteMany(context.Background(), bson.D{}); err != nil {
				t.Error(err)
			}
		})
		failed := j.failed(batch.New(j.config()).Insert(context.Background(), j.parts()...))
		if !errors.Is(failed, batch.ErrFenced) || !failed.RolledBack() {
			t.Errorf("the owner says: %v", failed)
		}
		j.expect(0)
	})
}

// TestEverythingThatCountsIsMajority looks at every write of a journaled batch with numbers, on collections whose own write
// concern is weaker.
func TestEverythingThatCountsIsMajority(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		weak := options.Collection().SetWriteConcern(nil)
		counter := idgen.NewCounter(j.db.Collection("counters", weak), "no")
		parts := []batch.Part{
			batch.Into(j.db.Collection("a", weak), minted(3)).Number("no", counter),
			batch.Into(j.db.Collection("b", weak), claimed("mine", 3)),
		}
		if _, err := batch.New(j.config()).InsertOnce(t.Context(), "key", parts...); err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]bool)
		for _, e := range j.wire.Events(faultwire.Command(writes...)) {
			seen[e.Collection] = true
			if w, _ := e.WriteConcern().Lookup("w").StringValueOK(); w != "majority" {
				t.Errorf("%s", e)
			}
		}
		for _, name := range []string{"a", "b", "counters", "journal", "journal.pages"} {
			if !seen[name] {
				t.Errorf("nothing was written to %s", name)
			}
		}
	})
}

// TestUnwritableJournal: without a record there is no insert, and without its page no chunk.
func TestUnwritableJournal(t *testing.T) {
	duplicate := faultwire.Reply(faultwire.WriteError{Code: 11000, Message: "E11000 duplicate key error collection: journal index: _id_ dup key: { _id: 1 }"})
	for _, c := range []struct {
		name  string
		fault faultwire.Fault
	}{
		{"requests are lost", faultwire.DropRequest()},
		{"replies are lost", faultwire.DropReply()},
		{"no right", faultwire.Reply(refuse)},
		{"a duplicate that is none of ours", duplicate},
		{"no space", faultwire.Reply(faultwire.CommandError{Code: 14031, Message: "cannot write, out of disk space"})},
		{"over the quota", faultwire.Reply(faultwire.CommandError{Code: 8000, Message: "you are over your space quota"})},
		{"quota of a shared service", faultwire.Reply(faultwire.CommandError{Code: 12501, Message: "quota exceeded"})},
		{"not durable", faultwire.Lie(faultwire.WriteConcernError{Code: 79, Message: "No write concern mode named"})},
	} {
		t.Run("record/"+c.name, func(t *testing.T) {
			eachBubble(t, func(j *journaled) {
				t := j.T
				j.wire.On(onRecords()).Do(c.fault)
				failed := j.failed(batch.New(j.config()).Insert(context.Background(), j.parts()...))
				if failed.Sent || !failed.RolledBack() || len(j.wire.Events(onDocuments(writes...))) > 0 {
					t.Errorf("without a record: %v", failed)
				}
				j.wire.Calm()
				time.Sleep(time.Minute) // nobody beats
				j.recover(2)
				if n := j.there(); n > 0 {
					t.Errorf("%d documents are there", n)
				}
				records, err := rollback.List(context.Background(), j.around.Collection("journal"))
				if err != nil || len(records) > 1 || len(records) == 1 && records[0].State != "aborted" {
					t.Errorf("the records are %v, %v", records, err)
				}
			})
		})
		t.Run("page/"+c.name, func(t *testing.T) {
			eachBubble(t, func(j *journaled) {
				t := j.T
				j.wire.On(onPages(faultwire.Insert)).Do(c.fault)
				result, err := batch.New(j.config()).Insert(context.Background(), j.parts()...)
				if c.name == "a duplicate that is none of ours" {
					// A page's id begins with the attempt, so that it can only be ours, from a sending before.
					if err != nil {
						t.Errorf("with a page that was there: %v", err)
					}
					return
				}
				failed := j.failed(result, err)
				for _, e := range j.wire.Events(onDocuments(faultwire.Insert)) {
					if e.Collection == "b" {
						t.Errorf("a chunk was sent without its page: %s", e)
					}
				}
				if !failed.RolledBack() {
					t.Errorf("without a page: %v", failed)
				}
				j.wire.Calm()
				time.Sleep(time.Minute)
				j.recover(2) // a chunk whose connection was lost with those of the pages is watched for a while
				j.expect(0, "aborted")
			})
		})
	}
}

// TestUnstampedClaims: what a recovery could not prove to be the batch's is not begun.
func TestUnstampedClaims(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		unstamped := j.config(func(c *batch.Config) { c.Stamp = batch.StampNone })
		failed := j.failed(batch.New(unstamped).Insert(t.Context(), j.parts()...))
		if failed.Sent || !strings.Contains(failed.Error(), "stamp") || j.written() > 0 {
			t.Errorf("claimed ids without a stamp, after %d writes: %v", j.written(), failed)
		}
		j.expect(0)
		if _, err := batch.New(unstamped).Insert(t.Context(), batch.Into(j.db.Collection("a"), minted(6))); err != nil {
			t.Errorf("minted ids need no stamp: %v", err)
		}
		unstamped.Journal = nil
		if _, err := batch.New(unstamped).Insert(t.Context(), batch.Into(j.db.Collection("b"), claimed("mine", 5))); err != nil {
			t.Errorf("without a journal the stamp can be refused: %v", err)
		}
	})
}

// TestElsewhere: a recovery has to find the documents, so a client that it would not know is refused.
func TestElsewhere(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		client, other := s.Client(t), s.Client(t)
		db := s.Database(t, client)
		config := batch.Config{Journal: db.Collection("journal")}
		into := batch.Into(other.Database(db.Name()).Collection("a"), minted(2))
		if _, err := batch.New(config).Insert(t.Context(), into); err == nil || !strings.Contains(err.Error(), "Deployments") {
			t.Errorf("a client without a name: %v", err)
		}
		config.Deployments = map[string]*mongo.Client{"other": other}
		result, err := batch.New(config).Insert(t.Context(), into)
		if err != nil {
			t.Fatalf("a client with a name: %v", err)
		}
		records, err := rollback.List(t.Context(), db.Collection("journal"))
		if err != nil || len(records) != 1 || records[0].Attempt != result.BatchID || records[0].Targets[0].Deployment != "other" {
			t.Errorf("the records are %+v, %v", records, err)
		}
	})
}

// TestLeaseSettings: what no beat could keep up with, or what no recovery should wait for, is refused.
func TestLeaseSettings(t *testing.T) {
	eachJournal(t, func(j *journaled) {
		t := j.T
		for lease, fine := range map[time.Duration]bool{
			-time.Second: false, time.Millisecond: false, 100 * time.Millisecond: true, 24 * time.Hour: true, 25 * time.Hour: false,
		} {
			config := j.config(func(c *batch.Config) { c.Lease = lease })
			_, err := batch.New(config).Insert(t.Context(), batch.Into(j.db.Collection("a"), minted(1)))
			if (err == nil) != fine {
				t.Errorf("a lease of %s: %v", lease, err)
			}
		}
	})
}

// TestManyLongIDs: neither many nor long ids outgrow what the journal writes.
func TestManyLongIDs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ documents, idBytes, chunk int }{
		{20_000, 1_000, 1_000},
		{20_000, 1_000, 100_000}, // a chunk's ids alone pass the limit of a document
		{60_000, 24, 100_000},
	} {
		t.Run(fmt.Sprintf("%d ids of %d bytes in chunks of %d", c.documents, c.idBytes, c.chunk), func(t *testing.T) {
			// On the simulator only: FerretDB compares every document with every id of a filter, which takes minutes here.
			inBubble(t, "", func(j *journaled) {
				t := j.T
				documents := make([]bson.D, c.documents)
				for i := range documents {
					documents[i] = bson.D{{Key: "_id", Value: fmt.Sprintf("%0*d", c.idBytes, i)}}
				}
				last := documents[len(documents)-1]
				if _, err := j.around.Collection("b").InsertOne(context.Background(), last); err != nil {
					t.Fatal(err)
				}
				config := j.config(func(c2 *batch.Config) {
					c2.ChunkSize, c2.ChunkBytes, c2.Concurrency = c.chunk, 32<<20, 1
					c2.CommandTimeout, c2.Rollback.CommandTimeout, c2.Rollback.Budget = time.Minute, time.Minute, time.Minute
				})
				failed := j.failed(batch.New(config).Insert(context.Background(), batch.Into(j.db.Collection("b"), documents)))
				if !failed.RolledBack() || len(failed.Documents) != 1 || failed.Documents[0].Index != c.documents-1 {
					t.Errorf("the batch: %v", failed)
				}
				j.expect(1, "aborted")
				raw, err := j.around.Collection("journal").FindOne(context.Background(), bson.D{}).Raw()
				if err != nil || len(raw) > 1_000 {
					t.Errorf("the record has %d bytes, %v", len(raw), err)
				}
			})
		})
	}
}
