package batch_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// sharded is a collection on two shards by tenant, on which somebody else has documents with the batch's ids.
type sharded struct {
	wire    *faultwire.Wire
	coll    *mongo.Collection // over the wire
	around  *mongo.Collection
	foreign []bson.Raw
}

// newSharded plants documents of tenant x with the ids 1 to 3, and an _id that tenant y has already.
func newSharded(t *testing.T) *sharded {
	t.Helper()
	sim, err := mongosim.Start(mongosim.Config{ShardKeys: map[string]string{"shop.orders": "tenant"}, InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &servertest.Server{URI: sim.URI()}
	wire := faultwire.ForTest(t, faultwire.Over(sim.Dialer()))
	client := func(dialer faultwire.Dialer) *mongo.Collection {
		return s.Client(t, options.Client().SetDialer(dialer)).Database("shop").Collection("orders")
	}
	c := &sharded{wire: wire, coll: client(wire), around: client(sim.Dialer())}
	for i := range 3 {
		c.foreign = append(c.foreign, raw(t, bson.D{{Key: "_id", Value: i + 1}, {Key: "tenant", Value: "x"}}))
	}
	c.foreign = append(c.foreign, raw(t, bson.D{{Key: "_id", Value: "taken"}, {Key: "tenant", Value: "y"}}))
	if _, err := c.around.InsertMany(t.Context(), c.foreign); err != nil {
		t.Fatal(err)
	}
	return c
}

// onlyForeign checks that nothing but the documents of others is there, byte for byte.
func (c *sharded) onlyForeign(t *testing.T) {
	t.Helper()
	cursor, err := c.around.Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var there []bson.Raw
	if err := cursor.All(t.Context(), &there); err != nil {
		t.Fatal(err)
	}
	for _, want := range c.foreign {
		found := false
		for _, have := range there {
			found = found || bytes.Equal(have, want)
		}
		if !found {
			t.Errorf("somebody else's document is gone: %v", want)
		}
	}
	if len(there) != len(c.foreign) {
		t.Errorf("%d documents are there, want %d of others: %v", len(there), len(c.foreign), there)
	}
}

// ofY are a batch's documents, with ids that tenant x has on the other shard; the last is refused.
func ofY(claimed bool) []bson.D {
	var documents []bson.D
	for i := range 3 {
		d := bson.D{{Key: "tenant", Value: "y"}, {Key: "i", Value: i}}
		if claimed {
			d = append(d, bson.E{Key: "_id", Value: i + 1})
		}
		documents = append(documents, d)
	}
	return append(documents, bson.D{{Key: "_id", Value: "taken"}, {Key: "tenant", Value: "y"}})
}

// An _id is unique per shard only. Whatever proves that a document is the batch's, the one with the same _id on another
// shard stays, also when answers are lost.
func TestSameIDOnAnotherShard(t *testing.T) {
	for _, claimed := range []bool{true, false} {
		for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampAll, batch.StampNone} {
			for _, lost := range []bool{false, true} {
				if stamp == batch.StampNone && claimed && lost {
					continue // nothing could be deleted; see TestUnprovenOnAnotherShard
				}
				t.Run(fmt.Sprintf("claimed=%t, %s, lost=%t", claimed, stamp, lost), func(t *testing.T) {
					c := newSharded(t)
					if lost {
						c.wire.On(faultwire.Insert).Once().DropReply()
						c.wire.On(faultwire.Delete).Once().DropReply()
					}
					config := quick(batch.Config{Stamp: stamp, ChunkSize: 2, Concurrency: 1})
					part := batch.Into(c.coll, ofY(claimed))
					if stamp == batch.StampNone {
						part = part.ShardKey("tenant")
					}
					_, err := batch.New(config).Insert(t.Context(), part)
					var failed *batch.Error
					if !errors.As(err, &failed) || !failed.RolledBack() || failed.Rollback.Excess != 0 {
						t.Fatalf("want a rollback, got %v", err)
					}
					if at := indexes(failed); len(at) != 1 || at[0] != 3 {
						t.Errorf("documents %v are refused, want the last", at)
					}
					c.onlyForeign(t)
				})
			}
		}
	}
}

// Answers are lost, and nothing proves whose the documents are: those on the batch's own shards are named as left, all of
// them, and none of another shard with the same _id.
func TestUnprovenOnAnotherShard(t *testing.T) {
	c := newSharded(t)
	c.wire.On(faultwire.Insert).Lie(faultwire.CommandError{Code: 11602, CodeName: "InterruptedDueToReplStateChange"})
	config := quick(batch.Config{Stamp: batch.StampNone, RetryTime: -1})
	_, err := batch.New(config).Insert(t.Context(), batch.Into(c.coll, ofY(true)[:3]).ShardKey("tenant"))
	var failed *batch.Error
	if !errors.As(err, &failed) || !errors.Is(err, rollback.ErrUnproven) {
		t.Fatalf("want an incomplete rollback for want of a proof, got %v", err)
	}
	var left []int32
	for _, l := range failed.Leftovers() {
		left = append(left, l.ID.Int32())
	}
	if slices.Sort(left); !slices.Equal(left, []int32{1, 2, 3}) {
		t.Errorf("%v are named as left, want 1, 2 and 3, once each: %v", left, failed)
	}
}

// A delete that removed more documents than it named is an alarm, which the batch's error passes on: somebody else's may
// be gone.
func TestDeleteThatRemovedMoreIsAnAlarm(t *testing.T) {
	for kind, documents := range map[string][]bson.D{"minted": unnumbered(2), "claimed": numbered(1, 2)} {
		t.Run(kind, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
				w.wire.On(faultwire.Delete.Where(many)).Once().Lie(faultwire.Set("n", 5))
				_, failed := w.insert(batch.Config{}, batch.Into(w.coll("c"), append(documents, bson.D{{Key: "_id", Value: "taken"}})))
				if !errors.Is(failed, rollback.ErrExcess) || failed.Rollback.Excess < 2 {
					w.Errorf("want an alarm, got %v", failed)
				}
			})
		})
	}
}
