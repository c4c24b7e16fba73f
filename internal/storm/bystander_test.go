package storm

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// bystanders are the documents of somebody else, who writes while batches come and go. It is for one goroutine at a time.
type bystanders struct {
	w       *world
	expect  map[place]bson.Raw // what must be stored in the end
	unclear map[place]bool     // where an own write got no answer
	removed map[string]bool    // batches' documents that were removed, by marker
	count   int
}

// place is a collection and an _id, and a tenant if the collection is sharded by it.
type place struct {
	collection, id, tenant int
}

func newBystanders(w *world) *bystanders {
	return &bystanders{w: w, expect: make(map[place]bson.Raw), unclear: make(map[place]bool), removed: make(map[string]bool)}
}

func (b *bystanders) collection(i int) *mongo.Collection {
	return b.w.collection(b.w.calm, i).Clone(options.Collection().SetWriteConcern(writeconcern.Majority()))
}

func (b *bystanders) do(ctx context.Context, op foreignOp) {
	coll := b.collection(op.collection)
	at := place{op.collection, op.id, op.tenant}
	switch op.kind {
	case foreignInsert:
		b.insert(ctx, coll, at, op.u)
	case foreignUpdate:
		if _, mine := b.expect[at]; !mine || b.unclear[at] {
			return
		}
		b.count++
		_, err := coll.UpdateOne(ctx, append(b.filter(at), bson.E{Key: "foreign", Value: bson.D{{Key: "$exists", Value: true}}}),
			bson.D{{Key: "$set", Value: bson.D{{Key: "revision", Value: int32(b.count)}}}})
		b.look(ctx, coll, at, err)
	case foreignDelete:
		if _, mine := b.expect[at]; !mine || b.unclear[at] {
			return
		}
		_, err := coll.DeleteOne(ctx, append(b.filter(at), bson.E{Key: "foreign", Value: bson.D{{Key: "$exists", Value: true}}}))
		if err != nil {
			b.unclear[at] = true
		}
		delete(b.expect, at)
	case foreignEdit:
		_, _ = coll.UpdateOne(ctx, bson.D{{Key: "m", Value: bson.D{{Key: "$exists", Value: true}}}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "edited", Value: true}}}}) // it goes with its batch, edited or not
	case foreignRecreate:
		b.recreate(ctx, coll, op)
	}
}

// filter selects the document at a place.
func (b *bystanders) filter(at place) bson.D {
	filter := bson.D{{Key: "_id", Value: int32(at.id)}}
	if b.w.plan.sharded {
		filter = append(filter, bson.E{Key: "tenant", Value: int32(at.tenant)})
	}
	return filter
}

func (b *bystanders) insert(ctx context.Context, coll *mongo.Collection, at place, u int) {
	if _, mine := b.expect[at]; mine || b.unclear[at] {
		return
	}
	b.count++
	document := append(b.filter(at), bson.E{Key: "foreign", Value: int32(b.count)})
	if u > 0 {
		document = append(document, bson.E{Key: "u", Value: int32(u)})
	}
	_, err := coll.InsertOne(ctx, document)
	if mongo.IsDuplicateKeyError(err) {
		return
	}
	b.look(ctx, coll, at, err)
}

// look takes down what is stored after an own write; where that had no answer, anything may be.
func (b *bystanders) look(ctx context.Context, coll *mongo.Collection, at place, err error) {
	if err == nil {
		var raw bson.Raw
		if raw, err = coll.FindOne(ctx, b.filter(at)).Raw(); err == nil {
			b.expect[at] = raw
			return
		}
	}
	b.unclear[at] = true
	delete(b.expect, at)
}

// recreate removes a document of a batch and takes its _id.
func (b *bystanders) recreate(ctx context.Context, coll *mongo.Collection, op foreignOp) {
	// Only of stamped ones: without the stamp nobody could tell the two apart, as batch.StampNone says.
	raw, err := coll.FindOne(ctx, bson.D{{Key: "_batch", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "m", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "_id", Value: bson.D{{Key: "$lt", Value: int32(1 << 30)}}}}).Raw()
	if err != nil {
		return
	}
	id, isInt := raw.Lookup("_id").Int32OK()
	if !isInt {
		return
	}
	b.removed[raw.Lookup("m").String()] = true
	tenant, _ := raw.Lookup("tenant").Int32OK()
	at := place{op.collection, int(id), int(tenant)}
	if _, err := coll.DeleteOne(ctx, append(b.filter(at), bson.E{Key: "m", Value: raw.Lookup("m")})); err != nil {
		return
	}
	b.insert(ctx, coll, at, 0)
}

// check compares what is stored with what must be.
func (b *bystanders) check(stored map[place]bson.Raw) (problems []string) {
	for at, want := range b.expect {
		have, there := stored[at]
		switch {
		case !there:
			problems = append(problems, fmt.Sprintf("bystander: document %d of collection %d is gone", at.id, at.collection))
		case !bytes.Equal(have, want):
			problems = append(problems, fmt.Sprintf("bystander: document %d of collection %d was changed: %s, not %s", at.id, at.collection, have, want))
		}
	}
	return problems
}
