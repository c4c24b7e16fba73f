package batch_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
)

// Numbers are proposed by looking at the highest, and a document clashes over another unique index: it is refused after
// one attempt and never renumbered, however the server words it. Where the server names no index, a look at the number
// tells that it is free.
func TestClashOfAnotherIndexIsNotRenumbered(t *testing.T) {
	text := `E11000 duplicate key error collection: shop.users index: email_1 dup key: { : "a@b" }`
	tests := map[string]struct {
		answer faultwire.WriteError
		says   string
	}{
		"with keyPattern":        {faultwire.WriteError{Code: 11000, Message: text, KeyPattern: bson.D{{Key: "email", Value: 1}}}, "email"},
		"index in the text":      {faultwire.WriteError{Code: 11000, Message: text}, "email_1"},
		"nothing but the code":   {faultwire.WriteError{Code: 11000, Message: "E11000 duplicate key error"}, "did not name"},
		"what the server itself": {faultwire.WriteError{}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.uniqueIndex("users", "seq")
				w.uniqueIndex("users", "email")
				w.plant("users", bson.D{{Key: "seq", Value: int64(9)}, {Key: "email", Value: "taken"}})
				documents := []bson.D{{{Key: "email", Value: "new"}}, {{Key: "email", Value: "taken"}}}
				if test.answer.Code != 0 {
					test.answer.Index = 1
					w.wire.On(faultwire.Insert).WriteErrors(test.answer)
				}
				var renumbered int
				config := batch.Config{Observe: func(e batch.Event) {
					if e.Kind == batch.Renumbering {
						renumbered++
					}
				}}
				failed := w.mustRollBack(config, batch.Into(w.coll("users"), documents).Number("seq", idgen.NewOptimistic(w.coll("users"), "seq")))
				if at := indexes(failed); !slices.Equal(at, []int{1}) || failed.Documents[0].Code != 11000 {
					w.Errorf("documents %v are refused, want the second: %v", at, failed)
				}
				if !strings.Contains(failed.Error(), test.says) {
					w.Errorf("the message does not say %q: %v", test.says, failed)
				}
				if n := w.wire.Count(faultwire.Insert); n != 1 || renumbered > 0 {
					w.Errorf("%d inserts, renumbered %d times, want one attempt", n, renumbered)
				}
			})
		})
	}
}

// A number is taken by somebody else each time it is proposed: after a bounded number of attempts the batch fails, and
// nothing of it is left.
func TestRenumberingEnds(t *testing.T) {
	eachServer(t, func(w *world) {
		w.uniqueIndex("a", "no")
		w.wire.On(faultwire.Insert).Before(func(_ context.Context, r *faultwire.Request) {
			for _, d := range r.Documents() {
				w.plant("a", bson.D{{Key: "no", Value: d.Lookup("no")}})
			}
		})
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("a"), unnumbered(2)).
			Number("no", idgen.NewOptimistic(w.coll("a"), "no", idgen.OptimisticConfig{Attempts: 5})))
		if n := w.wire.Count(faultwire.Insert); n < 2 || n > 6 {
			w.Errorf("%d inserts for 5 attempts: %v", n, failed)
		}
	})
}

// Without its unique index, numbering by the highest would give numbers out twice: nothing is written.
func TestNumbersWithoutTheirIndex(t *testing.T) {
	for name, keys := range map[string][]string{"none": nil, "another": {"email"}, "of a tenant": {"tenant", "no"}} {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				if keys != nil {
					w.uniqueIndex("a", keys...)
				}
				failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("a"), unnumbered(2)).Number("no", idgen.NewOptimistic(w.coll("a"), "no")))
				if failed.Sent || w.wire.Count(faultwire.Insert) > 0 {
					w.Errorf("something was written: %v", failed)
				}
			})
		})
	}
}

// A counter is behind data that were imported with numbers of their own: every document that clashes is named, and the
// index; nothing is left, and the counter stays where it is until it is raised.
func TestCounterBehindTheData(t *testing.T) {
	eachServer(t, func(w *world) {
		w.uniqueIndex("a", "seq")
		var there []any
		for n := range int64(520) {
			there = append(there, bson.D{{Key: "seq", Value: n + 1}})
		}
		w.plant("a", there...)
		number := idgen.NewCounter(w.db.Collection(counters), "n", idgen.CounterConfig{Start: 496})
		part := batch.Into(w.coll("a"), unnumbered(30)).Number("seq", number)
		failed := w.mustRollBack(batch.Config{}, part)
		if n := len(failed.Documents); n != 25 { // 496 to 520
			w.Errorf("%d documents are refused, want 25", n)
		}
		for _, d := range failed.Documents {
			var refused mongo.WriteError
			if d.Duplicate == nil || !errors.As(d, &refused) || refused.Code != 11000 {
				w.Errorf("document %d: %v", d.Index, d)
			}
		}
		if err := number.RaiseToMax(w.Context(), w.around.Collection("a"), "seq", nil); err != nil {
			w.Fatal(err)
		}
		result := w.mustStore(batch.Config{}, part)
		if first := result.Parts[0].Numbers["seq"][0]; first != int64(526) { // 496 to 525 are gone
			w.Errorf("the first number is %v, want 526", first)
		}
	})
}

// A batch takes numbers, another takes the next ones and is stored, the first fails: its numbers stay a gap.
func TestNumbersAreNotGivenBackBesideOthers(t *testing.T) {
	eachServer(t, func(w *world) {
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		w.plant("a", bson.D{{Key: "_id", Value: 3}})
		w.wire.On(faultwire.Insert.In(w.db.Name() + ".a")).Once().Before(func(context.Context, *faultwire.Request) {
			result, failed := w.note(batch.New(quick(batch.Config{})).Insert(w.Context(), batch.Into(w.coll("b"), unnumbered(3)).Number("no", number)))
			if failed != nil || !slices.Equal(result.Parts[0].Numbers["no"], int64s(4, 5, 6)) {
				w.Errorf("the batch beside it: %v, %v", result, failed)
			}
		})
		w.mustRollBack(batch.Config{}, batch.Into(w.coll("a"), numbered(1, 3)).Number("no", number))
		result := w.mustStore(batch.Config{}, batch.Into(w.coll("c"), unnumbered(3)).Number("no", number))
		if have := result.Parts[0].Numbers["no"]; !slices.Equal(have, int64s(7, 8, 9)) {
			w.Errorf("the numbers are %v, want 7, 8, 9", have)
		}
	})
}
