package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
)

type note struct {
	Text string
}

// Nothing to store is stored by doing nothing: no command, no number.
func TestEmptyBatch(t *testing.T) {
	eachServer(t, func(w *world) {
		coll, number := w.coll("c"), idgen.NewCounter(w.db.Collection(counters), "n")
		tests := map[string][]batch.Part{
			"no part":        nil,
			"empty slice":    {batch.Into(coll, []bson.D{}).Number("n", number)},
			"nil slice":      {batch.Into[note](coll, nil).Number("n", number)},
			"several empty":  {batch.Into[*note](coll, nil), batch.Into(w.coll("d"), []any{}).Number("_id", number)},
			"missing target": {batch.Into(w.coll("missing"), []bson.M{})},
		}
		for name, parts := range tests {
			result, failed := w.insert(batch.Config{}, parts...)
			if failed != nil || result.Inserted != 0 || len(result.Parts) != len(parts) {
				w.Errorf("%s: %v, %v", name, result, failed)
			}
		}
		if n := w.wire.Count(); n > 0 {
			w.Errorf("%d commands were sent:\n%s", n, w.wire)
		}
	})
}

// An empty part beside others is as if it was not there.
func TestEmptyPartBesideOthers(t *testing.T) {
	eachServer(t, func(w *world) {
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		result := w.mustStore(batch.Config{},
			batch.Into[note](w.coll("a"), nil).Number("n", number),
			batch.Into(w.coll("b"), []note{{"x"}}).Number("n", number),
			batch.Into[note](w.coll("a"), nil))
		if numbers := result.Parts[1].Numbers["n"]; !slices.Equal(numbers, []any{int64(1)}) {
			w.Errorf("the number is %v, want 1", numbers)
		}
	})
}

// An entry that is no document is named, whatever kind of nothing it is; the others are not stored.
func TestNilDocuments(t *testing.T) {
	var pointer *note
	var d *bson.D
	nothings := map[string]any{
		"nil": nil, "typed nil pointer": pointer, "nil map": bson.M(nil), "nil map of strings": map[string]string(nil),
		"nil Raw": bson.Raw(nil), "nil bytes": []byte(nil), "nil pointer to D": d, "empty Raw": bson.Raw{},
	}
	for name, nothing := range nothings {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{note{"a"}, nothing, note{"b"}, nothing}))
				w.notSent(failed, 1, 3)
				opts := &options.BSONOptions{NilMapAsEmpty: true}
				w.notSent(w.mustRollBack(batch.Config{BSONOptions: opts}, batch.Into(w.coll("c"), []any{nothing})), 0)
			})
		})
	}
}

// Every slice that Go has is a slice of documents.
func TestKindsOfSlices(t *testing.T) {
	eachServer(t, func(w *world) {
		array := [3]note{{"a"}, {"b"}, {"c"}}
		several := &[]*note{{"d"}}
		coll := w.coll("c")
		result := w.mustStore(batch.Config{ChunkSize: 2},
			batch.Into(coll, array[:]), batch.Into(coll, *several), batch.Into(coll, []any{note{"e"}, &note{"f"}, bson.M{"text": "g"}}),
			batch.Into(coll, []fmt.Stringer{bson.Raw(raw(w.T, note{"h"}))}))
		if result.Inserted != 8 {
			w.Errorf("%d documents were stored, want 8", result.Inserted)
		}
	})
}

// What is no document at the top is refused with its index, and a panic of nobody's.
func TestValuesThatAreNoDocuments(t *testing.T) {
	eachServer(t, func(w *world) {
		for _, value := range []any{1, "text", []string{"a"}, true, make(chan int), func() {}, bson.A{1}, bson.Raw{1, 2, 3}, bson.Raw{5, 0, 0, 0, 1}, append(raw(w.T, note{}), 0), bson.ObjectID{}} {
			failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{note{}, value}))
			if at := indexes(failed); !slices.Equal(at, []int{1}) || failed.Sent {
				w.Errorf("%T: documents %v are refused, want the second: %v", value, at, failed)
			}
		}
		w.notSent(w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{1})), 0)
	})
}

// Calls that make no sense say so before anything is sent.
func TestMisuse(t *testing.T) {
	eachServer(t, func(w *world) {
		documents, coll := []note{{"a"}}, w.coll("c")
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		var none *idgen.Counter
		parts := map[string]batch.Part{
			"no collection":      batch.Into[note](nil, nil),
			"no sequence":        batch.Into(coll, documents).Number("n", nil),
			"nil sequence":       batch.Into(coll, documents).Number("n", none),
			"no field":           batch.Into(coll, documents).Number("", number),
			"a dot too many":     batch.Into(coll, documents).Number("a..b", number),
			"an operator":        batch.Into(coll, documents).Number("$n", number),
			"the same field":     batch.Into(coll, documents).Number("n", number).Number("n", number),
			"a field in another": batch.Into(coll, documents).Number("a", number).Number("a.b", number),
			"no shard key field": batch.Into(coll, documents).ShardKey(""),
		}
		for name, part := range parts {
			failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("d"), documents), part)
			if failed.Sent || !strings.Contains(failed.Error(), "part 1") {
				w.Errorf("%s: %v", name, failed)
			}
		}
		configs := map[string]batch.Config{
			"w:0":               {WriteConcern: writeconcern.Unacknowledged()},
			"w:0 in a rollback": {Rollback: policy(writeconcern.Unacknowledged())},
		}
		for name, config := range configs {
			failed := w.mustRollBack(config, batch.Into(coll, documents).Number("n", number))
			if failed.Sent || !strings.Contains(failed.Error(), "w:0") {
				w.Errorf("%s: %v", name, failed)
			}
		}
		if n := w.wire.Count(); n > 0 {
			w.Errorf("%d commands were sent:\n%s", n, w.wire)
		}
	})
}

// A client, database or collection that writes without acknowledgement does not make a batch do so.
func TestUnacknowledgedHandle(t *testing.T) {
	unacknowledged := options.Collection().SetWriteConcern(writeconcern.Unacknowledged())
	eachServer(t, func(w *world) {
		w.plant("c", bson.D{{Key: "_id", Value: 1}})
		coll := w.db.Collection("c", unacknowledged)
		documents := []bson.D{{{Key: "_id", Value: 2}}, {{Key: "_id", Value: 1}}}
		if at := indexes(w.mustRollBack(batch.Config{}, batch.Into(coll, documents))); !slices.Equal(at, []int{1}) {
			w.Errorf("documents %v are refused, want the second", at)
		}
		w.mustStore(batch.Config{}, batch.Into(coll, documents[:1]))
		for _, e := range w.wire.Events(faultwire.Insert, faultwire.Delete) {
			if !e.Acknowledged() {
				w.Errorf("nobody waits for the answer to %v", e)
			}
		}
	}, options.Client().SetWriteConcern(writeconcern.Unacknowledged()))
}

// A batch takes the write concern of its Config for inserts and deletes, and another for deletes only if told so.
func TestWriteConcernOfConfig(t *testing.T) {
	no := false
	eachServer(t, func(w *world) {
		w.rules.WriteConcern = bson.D{{Key: "w", Value: 1}, {Key: "j", Value: false}}
		w.plant("c", bson.D{{Key: "_id", Value: 1}})
		config := batch.Config{WriteConcern: &writeconcern.WriteConcern{W: 1, Journal: &no}}
		w.mustRollBack(config, batch.Into(w.coll("c"), []bson.D{{{Key: "_id", Value: 2}}, {{Key: "_id", Value: 1}}}))
		if w.wire.Count(faultwire.Delete) == 0 {
			w.Error("nothing was deleted")
		}
	})
}

// A context that is done already sends nothing and uses no number.
func TestContextDoneBefore(t *testing.T) {
	reason := errors.New("the shop is closed")
	cancelled, cancel := context.WithCancelCause(context.Background())
	cancel(reason)
	late, cancel2 := context.WithDeadline(context.Background(), time.Now().Add(-time.Hour))
	defer cancel2()
	tests := []struct {
		name string
		ctx  context.Context
		want []error
	}{
		{"cancelled", cancelled, []error{context.Canceled, reason}},
		{"deadline", late, []error{context.DeadlineExceeded}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				number := idgen.NewCounter(w.db.Collection(counters), "n")
				for _, documents := range [][]note{{{"a"}}, nil} {
					_, failed := w.insertWith(test.ctx, batch.New(batch.Config{}), batch.Into(w.coll("c"), documents).Number("n", number))
					for _, want := range test.want {
						if !errors.Is(failed, want) {
							w.Errorf("with %d documents: %v, want %v", len(documents), failed, want)
						}
					}
				}
				if n := w.wire.Count(); n > 0 {
					w.Errorf("%d commands were sent:\n%s", n, w.wire)
				}
			})
		})
	}
}

// A session in the context is not used; a running transaction is refused, for the batch would not be part of it.
func TestSessionInContext(t *testing.T) {
	eachServer(t, func(w *world) {
		session, err := w.db.Client().StartSession()
		if err != nil {
			w.Fatal(err)
		}
		defer session.EndSession(context.Background())
		ctx := mongo.NewSessionContext(w.Context(), session)
		if _, failed := w.insertWith(ctx, batch.New(batch.Config{}), batch.Into(w.coll("c"), []note{{"a"}})); failed != nil {
			w.Fatal(failed)
		}
		for _, e := range w.wire.Events(faultwire.Insert) {
			if id := e.Session().Lookup("id"); id.Equal(session.ID().Lookup("id")) {
				w.Errorf("the caller's session was used: %v", e)
			}
		}
		if err := session.StartTransaction(); err != nil {
			w.Fatal(err)
		}
		before := w.wire.Count()
		// The driver counts a transaction as running once its first command was made.
		_, _ = w.coll("c").CountDocuments(ctx, bson.D{})
		_, failed := w.insertWith(ctx, batch.New(batch.Config{}), batch.Into(w.coll("c"), []note{{"a"}}))
		if failed == nil || failed.Sent || !strings.Contains(failed.Error(), "transaction") {
			w.Errorf("in a transaction: %v", failed)
		}
		if n := w.wire.Count(faultwire.Insert); n != 1 {
			w.Errorf("%d inserts were sent after %d commands:\n%s", n, before, w.wire)
		}
	})
}
