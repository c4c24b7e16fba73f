package batch_test

import (
	"context"
	"slices"
	"sync"
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

// lateServer is a server as far as late inserts are concerned. Where the driver sends transaction numbers, an insert can
// be kept out for ever; elsewhere the settle time has to do.
type lateServer struct {
	name   string
	config mongosim.Config
	retry  bool // what the client asks for
	fenced bool
}

var lateServers = []lateServer{
	{"replica set", mongosim.Config{ReplicaSet: "rs"}, true, true},
	{"sharded cluster", mongosim.Config{ShardKeys: map[string]string{}}, true, true},
	{"replica set, retryWrites=false", mongosim.Config{ReplicaSet: "rs"}, false, false},
	{"standalone", mongosim.Config{}, true, false},
}

// world makes a world on such a server.
func (l lateServer) world(t *testing.T, step func(mongosim.Step)) (*world, *mongosim.Server) {
	t.Helper()
	config := l.config
	config.Step = step
	config.Clock = mongosim.NewClock(time.Unix(1_700_000_000, 0)) // it stands still, so that no maxTimeMS ends a command
	sim, err := mongosim.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &servertest.Server{Kind: servertest.KindSim, URI: sim.URI()}
	w := balanced(t, s, options.Client().SetRetryWrites(l.retry))
	w.rules.Unsent = true // an insert may have no time left to be sent
	return w, sim
}

// lateConfig has three workers with an insert each, which give up soon and for good. With a fence, nothing is waited for.
func (l lateServer) lateConfig(settling func()) batch.Config {
	config := once(batch.Config{ChunkSize: 2, Concurrency: 3, CommandTimeout: 400 * time.Millisecond})
	if l.fenced {
		config.Rollback.Settle = time.Nanosecond
		return config
	}
	var first sync.Once
	config.Rollback.Observe = func(e rollback.Event) {
		if e.Kind == rollback.Settling {
			first.Do(settling)
		}
	}
	return config
}

// lateDocuments are six, of which some have ids of their own.
func lateDocuments() []bson.D { return append(numbered(1, 3), unnumbered(3)...) }

// arrived waits until the server has answered everything, and returns the codes with which it refused inserts.
func (w *world) arrived() []int64 {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), checkTime)
	defer cancel()
	if err := w.wire.Drain(ctx); err != nil {
		w.Errorf("the inserts do not arrive: %v", err)
	}
	var codes []int64
	for _, e := range w.wire.Events(faultwire.Insert) {
		if code, refused := e.ServerReply.Lookup("code").AsInt64OK(); refused {
			codes = append(codes, code)
		}
	}
	return codes
}

// An insert is held by a network that breaks, the driver repeats it, and the server refuses one document for a sibling of
// it; the batch is rolled back. Then the first sending arrives, which would store what now stands in nobody's way: the
// session's fence keeps it out, also after a change of primary.
func TestFirstSendingOfInsertThatWasRefusedInPart(t *testing.T) {
	for kind, ids := range map[string][]any{"minted": {nil, nil, nil}, "claimed": {1, 2, 3}} {
		for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
			t.Run(kind+" "+stamp.String(), func(t *testing.T) {
				w, sim := lateServers[0].world(t, nil)
				w.uniqueIndex("c", "u")
				var documents []bson.D
				for i, id := range ids {
					document := bson.D{{Key: "u", Value: min(i, 1)}}
					if id != nil {
						document = append(document, bson.E{Key: "_id", Value: id})
					}
					documents = append(documents, document)
				}
				held := w.wire.On(faultwire.Insert).Once().Hold()
				go func() {
					<-held.Arrived()
					w.wire.Cut()
				}()
				failed := w.mustRollBack(batch.Config{Stamp: stamp, Rollback: rollback.Policy{Settle: time.Nanosecond}}, batch.Into(w.coll("c"), documents))
				if at := indexes(failed); !slices.Equal(at, []int{2}) || failed.Rollback.Deleted != 2 {
					t.Errorf("documents %v are refused and %d deleted, want the last, and two", at, failed.Rollback.Deleted)
				}
				if err := sim.StepDown(); err != nil {
					t.Fatal(err)
				}
				if _, err := sim.StepUp(0); err != nil {
					t.Fatal(err)
				}
				held.Release()
				if codes := w.arrived(); !slices.Equal(codes, []int64{225}) {
					t.Errorf("the first sending is answered with %v, want 225\n%s", codes, w.wire)
				}
				w.check()
			})
		}
	}
}

// The same, of a batch that the server refuses whole: nothing is stored and nothing deleted, and still the first sending
// must not arrive when what stood in its way is gone.
func TestFirstSendingOfInsertThatWasRefusedWhole(t *testing.T) {
	for _, l := range lateServers[:2] {
		for kind, ids := range map[string][]any{"minted": {nil, nil, nil}, "claimed": {1, 2, 3}} {
			for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
				t.Run(l.name+", "+kind+" "+stamp.String(), func(t *testing.T) {
					w, _ := l.world(t, nil)
					w.uniqueIndex("c", "u")
					w.plant("c", bson.D{{Key: "u", Value: 0}}, bson.D{{Key: "u", Value: 1}}, bson.D{{Key: "u", Value: 2}})
					var documents []bson.D
					for i, id := range ids {
						document := bson.D{{Key: "u", Value: i}}
						if id != nil {
							document = append(document, bson.E{Key: "_id", Value: id})
						}
						documents = append(documents, document)
					}
					held := w.wire.On(faultwire.Insert).Once().Hold()
					go func() {
						<-held.Arrived()
						w.wire.Cut()
					}()
					failed := w.mustRollBack(batch.Config{Stamp: stamp, Rollback: rollback.Policy{Settle: time.Nanosecond}}, batch.Into(w.coll("c"), documents).ShardKey("_id"))
					if at := indexes(failed); !slices.Equal(at, []int{0, 1, 2}) || failed.Rollback.Deleted != 0 {
						t.Errorf("documents %v are refused and %d deleted, want all, and none", at, failed.Rollback.Deleted)
					}
					if _, err := w.around.Collection("c").DeleteMany(w.Context(), bson.D{}); err != nil { // they are their owner's to delete
						t.Fatal(err)
					}
					clear(w.planted)
					held.Release()
					if codes := w.arrived(); !slices.Equal(codes, []int64{225}) {
						t.Errorf("the first sending is answered with %v, want 225\n%s", codes, w.wire)
					}
					w.check()
				})
			}
		}
	}
}

// Every worker's insert is on its way, to the server or in it, when its client gives up; it arrives after the rollback's
// deletes. With a fence it may arrive whenever it likes, without one within the settle time.
func TestLateInsertsOfAllWorkers(t *testing.T) {
	for _, held := range []string{"on the wire", "in the server"} {
		for _, l := range lateServers {
			t.Run(held+", "+l.name, func(t *testing.T) {
				t.Parallel() // it mostly waits
				w, sim := l.world(t, nil)
				var release func()
				if held == "on the wire" {
					release = w.wire.On(faultwire.Insert).Hold().Release
				} else {
					gate := make(chan struct{})
					sim.AddFault(&mongosim.Fault{Commands: []string{"insert"}, Hold: gate})
					release = sync.OnceFunc(func() { close(gate) })
				}
				defer release()
				arrive := func() []int64 {
					release()
					return w.arrived()
				}
				failed := w.mustRollBack(l.lateConfig(func() {
					if codes, n := arrive(), w.wire.Count(faultwire.Insert); len(codes) > 0 || w.count("c") != 2*n {
						t.Errorf("%d documents are there between the deletes, want those of %d inserts; refused with %v", w.count("c"), n, codes)
					}
				}), batch.Into(w.coll("c"), lateDocuments()))
				n := w.wire.Count(faultwire.Insert)
				if n < 2 { // three on a machine that is not too slow
					t.Fatalf("%d inserts were under way", n)
				}
				if !l.fenced {
					return
				}
				codes := arrive()
				for _, code := range codes {
					if code != 225 {
						t.Errorf("a late insert is refused with %d, want 225", code)
					}
				}
				if len(codes) != n || failed.Rollback.Fenced < n {
					t.Errorf("%d of %d late inserts are refused, behind %d fences", len(codes), n, failed.Rollback.Fenced)
				}
				w.check()
			})
		}
	}
}

// The server is executing the inserts when their clients give up. A fence waits for them; without one, the delete after
// the settle time finds them.
func TestInsertsThatRunWhenTheirClientGivesUp(t *testing.T) {
	for _, l := range lateServers {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			gate := make(chan struct{})
			release := sync.OnceFunc(func() { close(gate) })
			defer release()
			var watched sync.Map // the namespace, once there is one
			w, _ := l.world(t, func(step mongosim.Step) {
				if _, ours := watched.Load(step.Namespace); !ours {
					return
				}
				switch {
				case step.Command == "insert" && step.Point == mongosim.PointStarted:
					<-gate
				case step.Command == "delete" && step.Point == mongosim.PointArrived && l.fenced:
					release()
				}
			})
			watched.Store(w.db.Name()+".c", true)
			failed := w.mustRollBack(l.lateConfig(func() { release(); w.arrived() }), batch.Into(w.coll("c"), lateDocuments()))
			if codes := w.arrived(); len(codes) > 0 {
				t.Errorf("the inserts were refused with %v", codes)
			}
			if n := w.wire.Count(faultwire.Insert); n < 2 || failed.Rollback.Deleted != int64(2*n) {
				t.Errorf("%d documents were deleted, of %d inserts with two each", failed.Rollback.Deleted, n)
			}
			w.check()
		})
	}
}

// The connection breaks behind an insert, which stays in the server; sent again, by the driver or by the batch, it is
// answered well. Another document is refused, and the first copy arrives when all is deleted.
func TestLateCopyOfARepeatedInsert(t *testing.T) {
	for _, l := range lateServers {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			gate := make(chan struct{})
			release := sync.OnceFunc(func() { close(gate) })
			defer release()
			w, sim := l.world(t, nil)
			w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
			first := &mongosim.Fault{Commands: []string{"insert"}, Times: 1, Hold: gate}
			sim.AddFault(first)
			w.wire.On(faultwire.Insert).Once().Cut()
			w.wire.On(faultwire.Insert).Once().Before(func(ctx context.Context, _ *faultwire.Request) { // the first copy is there first
				for sim.Hits(first) == 0 && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
			})
			config := l.lateConfig(func() { release(); w.arrived() })
			config.RetryTime, config.CommandTimeout, config.Concurrency = 0, 0, 1
			failed := w.mustRollBack(config, batch.Into(w.coll("c"), append(lateDocuments(), bson.D{{Key: "_id", Value: "taken"}})))
			if at := indexes(failed); !slices.Equal(at, []int{6}) || sim.Hits(first) != 1 {
				t.Errorf("documents %v are refused, want the last; %d copies were late", at, sim.Hits(first))
			}
			if failed.Rollback.Deleted < 6 {
				t.Errorf("%d documents were deleted, want 6", failed.Rollback.Deleted)
			}
			release()
			w.arrived()
			w.check()
		})
	}
}
