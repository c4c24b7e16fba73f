package batch_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
)

type order struct {
	Name string
	Meta struct {
		No    int64
		Other string
	}
}

// Numbers follow the order of the documents, in one block per batch, however the inserts overtake each other, and
// whatever the documents are made of. Two batches at a time get two blocks.
func TestNumbersInOrder(t *testing.T) {
	const size = 200
	kinds := map[string]func(coll *mongo.Collection) batch.Part{
		"struct": func(coll *mongo.Collection) batch.Part { return batch.Into(coll, make([]order, size)) },
		"pointer": func(coll *mongo.Collection) batch.Part {
			documents := make([]*order, size)
			for i := range documents {
				documents[i] = &order{Name: fmt.Sprint(i)}
			}
			return batch.Into(coll, documents)
		},
		"map": func(coll *mongo.Collection) batch.Part {
			documents := make([]bson.M, size)
			for i := range documents {
				documents[i] = bson.M{"i": i, "_id": fmt.Sprint(coll.Name(), i)}
			}
			return batch.Into(coll, documents)
		},
		"D": func(coll *mongo.Collection) batch.Part { return batch.Into(coll, slices.Repeat([]bson.D{{}}, size)) },
		"Raw": func(coll *mongo.Collection) batch.Part {
			return batch.Into(coll, slices.Repeat([]bson.Raw{{5, 0, 0, 0, 0}}, size))
		},
	}
	for kind, part := range kinds {
		for _, name := range []string{"no", "meta.no", "_id", "_id.no"} {
			if kind == "map" && strings.HasPrefix(name, "_id") {
				continue // it has one
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				eachServer(t, func(w *world) {
					// Inserts overtake each other.
					w.wire.On(faultwire.Insert).EveryNth(3).Delay(5 * time.Millisecond)
					inserter := batch.New(quick(batch.Config{ChunkSize: 7, Concurrency: 16}))
					blocks := make([][]any, 2)
					var both sync.WaitGroup
					for i := range blocks {
						both.Go(func() {
							number := idgen.NewCounter(w.db.Collection(counters), "n", idgen.CounterConfig{Start: 1_000, Step: 5})
							part := part(w.coll(fmt.Sprint("c", i))).Number(name, number)
							result, failed := w.note(inserter.Insert(w.Context(), part))
							if failed != nil {
								w.Error(failed)
								return
							}
							blocks[i] = result.Parts[0].Numbers[name]
						})
					}
					both.Wait()
					w.check() // that what is stored is what the result says
					first := make([]int64, 2)
					for i, block := range blocks {
						if len(block) != size {
							w.Fatalf("%d numbers, want %d", len(block), size)
						}
						first[i] = block[0].(int64)
						for j, number := range block {
							if want := first[i] + 5*int64(j); number != want {
								w.Fatalf("document %d has the number %v, want %d", j, number, want)
							}
						}
					}
					if slices.Sort(first); first[0] != 1_000 || first[1] != 1_000+5*size {
						w.Errorf("the blocks begin at %v", first)
					}
				})
			})
		}
	}
}

// One sequence for several parts and fields is asked once: part by part, field by field, document by document.
func TestOneSequenceForAll(t *testing.T) {
	eachServer(t, func(w *world) {
		n, other := idgen.NewCounter(w.db.Collection(counters), "n"), idgen.NewCounter(w.db.Collection(counters), "other", idgen.CounterConfig{Start: 100})
		result := w.mustStore(batch.Config{ChunkSize: 2},
			batch.Into(w.coll("a"), unnumbered(3)).Number("no", n).Number("second", n).Number("third", other),
			batch.Into(w.coll("b"), unnumbered(2)).Number("no", n).Number("third", other))
		want := map[string][]any{
			"0no": int64s(1, 2, 3), "0second": int64s(4, 5, 6), "0third": int64s(100, 101, 102), "1no": int64s(7, 8), "1third": int64s(103, 104),
		}
		for at, numbers := range want {
			if have := result.Parts[at[0]-'0'].Numbers[at[1:]]; !slices.Equal(have, numbers) {
				w.Errorf("%s: %v, want %v", at, have, numbers)
			}
		}
		if count := w.wire.Count(faultwire.FindAndModify, "findandmodify"); count > 4 { // each counter may need a second on its first use
			w.Errorf("%d reservations for two sequences", count)
		}
	})
}

func int64s(numbers ...int64) []any {
	values := make([]any, len(numbers))
	for i, n := range numbers {
		values[i] = n
	}
	return values
}

// A failed batch gives no numbers back; the next one goes on behind the gap.
func TestNumbersAreNotGivenBack(t *testing.T) {
	eachServer(t, func(w *world) {
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		w.plant("c", bson.D{{Key: "_id", Value: 2}})
		w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), numbered(1, 3)).Number("no", number))
		result := w.mustStore(batch.Config{}, batch.Into(w.coll("c"), numbered(5, 3)).Number("no", number))
		if have := result.Parts[0].Numbers["no"]; !slices.Equal(have, int64s(4, 5, 6)) {
			w.Errorf("the numbers are %v, want 4, 5, 6", have)
		}
	})
}

// Documents that cannot be stored use no number; the caller's own documents are not changed by one that can.
func TestNumbersAndCallersDocuments(t *testing.T) {
	eachServer(t, func(w *world) {
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{bson.D{}, nil}).Number("no", number))
		if n := w.wire.Count(); n > 0 {
			w.Errorf("%d commands for a batch that cannot be stored", n)
		}
		mine := order{Name: "mine"}
		bytes := bson.Raw(raw(w.T, bson.D{{Key: "meta", Value: bson.D{{Key: "no", Value: int64(0)}}}}))
		before := slices.Clone(bytes)
		d := bson.D{{Key: "x", Value: 1}}
		w.mustStore(batch.Config{Stamp: batch.StampAll}, batch.Into(w.coll("c"), []any{&mine, bytes, d}).Number("meta.no", number))
		if mine != (order{Name: "mine"}) || !slices.Equal(bytes, before) || len(d) != 1 {
			w.Errorf("the caller's documents were changed: %v, %v, %v", mine, bytes, d)
		}
	})
}

// sequence is a sequence made of a function.
type sequence func(ctx context.Context, n int) ([]any, error)

func (s sequence) Reserve(ctx context.Context, n int) ([]any, error) { return s(ctx, n) }

// hidden is a sequence that cannot be compared although its type can.
type hidden struct{ any }

func (hidden) Reserve(_ context.Context, n int) ([]any, error) { return make([]any, n), nil }

// What a sequence does wrong is an error before anything is written.
func TestBadSequences(t *testing.T) {
	broken := errors.New("the sequence is broken")
	tests := map[string]struct {
		sequence batch.Sequence
		field    string
		bad      []int
		is       error
	}{
		"fails":                    {sequence(func(context.Context, int) ([]any, error) { return nil, broken }), "n", nil, broken},
		"too few":                  {sequence(func(_ context.Context, n int) ([]any, error) { return make([]any, n-1), nil }), "n", nil, nil},
		"too many":                 {sequence(func(_ context.Context, n int) ([]any, error) { return make([]any, n+1), nil }), "n", nil, nil},
		"none":                     {sequence(func(context.Context, int) ([]any, error) { return nil, nil }), "n", nil, nil},
		"the same _id":             {texts("x"), "_id", []int{1, 2}, nil},
		"an _id like an operator":  {values(bson.D{{Key: "$gt", Value: 1}}, "b", "c"), "_id", []int{0}, nil},
		"an _id that is a pattern": {values("a", bson.Regex{Pattern: "."}, "c"), "_id", []int{1}, nil},
		"no value for BSON":        {values(int64(1), make(chan int), int64(3)), "n", []int{1}, nil},
		"too large a number":       {values(int64(1), int64(2), uint64(math.MaxUint64)), "n", []int{2}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), unnumbered(3)).Number(test.field, test.sequence))
				if failed.Sent || w.wire.Count(faultwire.Insert) > 0 {
					w.Errorf("something was sent: %v", failed)
				}
				if at := indexes(failed); !slices.Equal(at, test.bad) {
					w.Errorf("documents %v are refused, want %v: %v", at, test.bad, failed)
				}
				if test.is != nil && !errors.Is(failed, test.is) {
					w.Errorf("%v does not tell of %v", failed, test.is)
				}
			})
		})
	}
}

func values(all ...any) batch.Sequence {
	return sequence(func(_ context.Context, n int) ([]any, error) { return all[:n], nil })
}

// Any value is a number that BSON can hold; sequences need not be comparable.
func TestOtherSequences(t *testing.T) {
	eachServer(t, func(w *world) {
		w.mustStore(batch.Config{}, batch.Into(w.coll("a"), unnumbered(3)).Number("n", values(int32(7), "seven", bson.D{{Key: "seven", Value: 7}})))
		w.mustStore(batch.Config{}, batch.Into(w.coll("b"), unnumbered(2)).Number("_id", values("INV-1", int64(2))))
		odd := hidden{[]int{1}}
		w.mustStore(batch.Config{}, batch.Into(w.coll("c"), unnumbered(2)).Number("n", odd).Number("m", odd))
	})
}

// A sequence may use the library itself, and fail over a batch of its own: the error is about the outer batch.
func TestSequenceThatInserts(t *testing.T) {
	eachServer(t, func(w *world) {
		w.plant("log", bson.D{{Key: "_id", Value: 1}})
		inserter := batch.New(quick(batch.Config{}))
		logging := sequence(func(ctx context.Context, n int) ([]any, error) {
			_, err := inserter.Insert(ctx, batch.Into(w.coll("log"), numbered(1, 1)))
			return nil, fmt.Errorf("no log entry: %w", err)
		})
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), unnumbered(5)).Number("n", logging))
		if failed.Total != 5 || failed.Sent || len(failed.Documents) != 0 || !strings.Contains(failed.Error(), "no log entry") {
			w.Errorf("the error is about another batch: %+v", failed)
		}
		var refused mongo.WriteError
		if !errors.As(failed, &refused) || refused.Code != 11000 {
			w.Errorf("the inner reason is lost: %v", failed)
		}
	})
}
