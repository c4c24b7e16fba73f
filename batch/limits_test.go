package batch_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
)

// maxDocument is MongoDB's limit for one document.
const maxDocument = 16 << 20

// sized makes a document of exactly n bytes as BSON, with the given fields in front.
func sized(t *testing.T, n int, fields ...bson.E) bson.Raw {
	t.Helper()
	document := append(bson.D(fields), bson.E{Key: "fill", Value: ""})
	document[len(fields)].Value = strings.Repeat("x", n-len(raw(t, document)))
	if made := raw(t, document); len(made) == n {
		return made
	}
	t.Fatalf("cannot make a document of %d bytes", n)
	return nil
}

// The size is that of the bytes that will be stored: with the _id, the stamp and the number that a document gets.
func TestDocumentTooLarge(t *testing.T) {
	const (
		idBytes     = 1 + 4 + 12
		stampBytes  = 1 + 7 + 12
		numberBytes = 1 + 2 + 8
	)
	id := bson.E{Key: "_id", Value: int32(1)}
	tests := []struct {
		name     string
		document bson.Raw
		config   batch.Config
		number   bool
		ok       bool
	}{
		{"one byte over", sized(t, maxDocument+1, id), batch.Config{Stamp: batch.StampNone}, false, false},
		{"just fits", sized(t, maxDocument, id), batch.Config{Stamp: batch.StampNone}, false, true},
		{"over with its _id", sized(t, maxDocument), batch.Config{}, false, false},
		{"one byte over with its _id", sized(t, maxDocument-idBytes+1), batch.Config{}, false, false},
		{"just fits with its _id", sized(t, maxDocument-idBytes), batch.Config{}, false, true},
		{"one byte over with the stamp", sized(t, maxDocument-stampBytes+1, id), batch.Config{}, false, false},
		{"just fits with the stamp", sized(t, maxDocument-stampBytes, id), batch.Config{}, false, true},
		{"one byte over with its _id and the stamp", sized(t, maxDocument-idBytes-stampBytes+1), batch.Config{Stamp: batch.StampAll}, false, false},
		{"one byte over with its number", sized(t, maxDocument-idBytes-numberBytes+1), batch.Config{}, true, false},
		{"just fits with its number", sized(t, maxDocument-idBytes-numberBytes), batch.Config{}, true, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			check := func(w *world) {
				part := batch.Into(w.coll("c"), []any{note{"a"}, test.document, note{"b"}})
				if test.number {
					part = part.Number("n", idgen.NewCounter(w.db.Collection(counters), "n"))
				}
				if test.ok {
					w.mustStore(test.config, part)
					if n := w.wire.Count(faultwire.Insert); n != 3 {
						w.Errorf("%d inserts, want the large document in one of its own", n)
					}
					return
				}
				failed := w.mustRollBack(test.config, part)
				w.notSent(failed, 1)
				if !strings.Contains(failed.Error(), fmt.Sprint(maxDocument)) {
					w.Errorf("the limit is not told: %v", failed)
				}
			}
			if test.ok && test.number { // so large documents take their time; one row goes to every server
				eachServer(t, check)
			} else {
				check(simulated(t, mongosim.Config{}))
			}
		})
	}
}

// A number that is a text makes a document longer once it is known; too long is still found before anything is written.
func TestDocumentTooLargeWithItsText(t *testing.T) {
	eachServer(t, func(w *world) {
		document := sized(w.T, maxDocument-100)
		long := texts(strings.Repeat("9", 200))
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{note{"a"}, document}).Number("n", long))
		if at := indexes(failed); !slices.Equal(at, []int{1}) || failed.Sent || w.wire.Count(faultwire.Insert) > 0 {
			w.Errorf("documents %v are refused, want the second, before anything is sent: %v", at, failed)
		}
	})
}

// One bad document of a thousand is found before the first is sent.
func TestDocumentTooLargeAmongMany(t *testing.T) {
	eachServer(t, func(w *world) {
		documents := make([]any, 1_000)
		for i := range documents {
			documents[i] = bson.D{{Key: "i", Value: i}}
		}
		documents[700] = sized(w.T, maxDocument+1)
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		w.notSent(w.mustRollBack(batch.Config{ChunkSize: 10}, batch.Into(w.coll("c"), documents).Number("n", number)), 700)
	})
}

type stubborn struct{}

var errStubborn = errors.New("this value stays out of databases")

func (stubborn) MarshalBSON() ([]byte, error) { return nil, errStubborn }

// What cannot be encoded is found before anything is sent, wherever it hides, and the reason can be reached.
func TestDocumentsThatCannotBeEncoded(t *testing.T) {
	tests := []struct {
		name string
		bad  any
		is   error
	}{
		{"NUL in a key", bson.D{{Key: "a\x00b", Value: 1}}, nil},
		{"NUL in a map's key", bson.M{"deep": bson.M{"a\x00b": 1}}, nil},
		{"uint64 above int64", bson.M{"n": uint64(math.MaxUint64)}, nil},
		{"channel", bson.M{"c": make(chan int)}, nil},
		{"MarshalBSON fails", stubborn{}, errStubborn},
		{"MarshalBSON fails in depth", bson.D{{Key: "a", Value: bson.A{stubborn{}}}}, errStubborn},
		{"NUL in a regular expression", bson.D{{Key: "r", Value: bson.Regex{Pattern: "a\x00b"}}}, nil},
		{"bytes that are no value", bson.D{{Key: "v", Value: bson.RawValue{Type: bson.TypeString, Value: []byte{9, 0, 0, 0, 'x'}}}}, nil},
		{"bytes of no type", bson.D{{Key: "v", Value: bson.RawValue{Type: 99, Value: []byte{1}}}}, nil},
		{"bytes that are no document", bson.D{{Key: "v", Value: bson.Raw{7, 0, 0, 0, 1, 2, 0}}}, nil},
		{"a text without an end", bson.D{{Key: "d", Value: bson.A{bson.RawValue{Type: bson.TypeString, Value: []byte{2, 0, 0, 0, 'x', 'y'}}}}}, nil},
		{"code without an end", bson.Raw{13, 0, 0, 0, 13, 'j', 0, 1, 0, 0, 0, 'x', 0}, nil},
		{"code with a scope of bytes", bson.D{{Key: "c", Value: bson.CodeWithScope{Code: "x", Scope: bson.Raw{8, 0, 0, 0, 8, 'b', 0, 7, 0}}}}, nil},
		{"a boolean of its own kind", bson.Raw{9, 0, 0, 0, 8, 'b', 0, 7, 0}, nil},
		{"an _id of bytes that are no value", bson.D{{Key: "_id", Value: bson.RawValue{Type: bson.TypeString, Value: []byte{2, 0, 0, 0, 'x', 'y'}}}}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				documents := make([]any, 100)
				for i := range documents {
					documents[i] = bson.D{{Key: "i", Value: i}}
				}
				documents[90] = test.bad
				number := idgen.NewCounter(w.db.Collection(counters), "n")
				failed := w.mustRollBack(batch.Config{ChunkSize: 1, Concurrency: 8}, batch.Into(w.coll("c"), documents).Number("n", number))
				w.notSent(failed, 90)
				if test.is != nil && !errors.Is(failed, test.is) {
					w.Errorf("%v does not tell of %v", failed, test.is)
				}
			})
		})
	}
}

// Field names that update and query code cannot address: stored and rolled back like others, where the server takes them.
func TestOddFieldNames(t *testing.T) {
	tests := map[string]bson.D{
		"dollar":         {{Key: "$schema", Value: "x"}},
		"dot":            {{Key: "a.b", Value: 1}},
		"empty":          {{Key: "", Value: 1}},
		"nested dollar":  {{Key: "a", Value: bson.D{{Key: "$x", Value: 1}}}},
		"dot beside":     {{Key: "a", Value: bson.D{{Key: "b", Value: 1}}}, {Key: "a.b", Value: 1}},
		"a second _id":   {{Key: "a", Value: bson.D{{Key: "_id", Value: 1}, {Key: "_batch", Value: 2}}}},
		"the same twice": {{Key: "a", Value: 1}, {Key: "a", Value: 2}},
	}
	for name, document := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
				_, err := w.around.Collection(plainInserts).InsertOne(w.Context(), document)
				_, failed := w.insert(batch.Config{Stamp: batch.StampAll}, batch.Into(w.coll("c"), []any{document}))
				if (err == nil) != (failed == nil) {
					w.Errorf("plain insert: %v; batch: %v", err, failed)
				}
				failed = w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{document, bson.D{{Key: "_id", Value: "taken"}}}))
				want := []int{1}
				var refused mongo.WriteException
				if errors.As(err, &refused) {
					want = []int{0, 1}
				}
				if at := indexes(failed); !slices.Equal(at, want) {
					w.Errorf("documents %v are refused, want %v: %v", at, want, failed)
				}
			})
		})
	}
}

// A number's path that could mean two things is refused.
func TestAmbiguousNumberField(t *testing.T) {
	tests := []struct {
		name, field string
		document    bson.D
		ok          bool
	}{
		{"literal dot", "meta.no", bson.D{{Key: "meta.no", Value: 1}}, false},
		{"literal dot beside", "meta.no", bson.D{{Key: "meta", Value: bson.D{}}, {Key: "meta.no", Value: 1}}, false},
		{"literal dot at the beginning", "a.b.c", bson.D{{Key: "a.b", Value: bson.D{}}}, false},
		{"literal dot in depth", "a.b.c", bson.D{{Key: "a", Value: bson.D{{Key: "b.c", Value: 1}}}}, false},
		{"twice", "n", bson.D{{Key: "n", Value: nil}, {Key: "n", Value: nil}}, false},
		{"array on the way", "a.n", bson.D{{Key: "a", Value: bson.A{bson.D{}}}}, false},
		{"number on the way", "a.n", bson.D{{Key: "a", Value: 1}}, false},
		{"has a value", "n", bson.D{{Key: "n", Value: 7}}, false},
		{"has a text", "n", bson.D{{Key: "n", Value: "7"}}, false},
		{"has a document", "n", bson.D{{Key: "n", Value: bson.D{}}}, false},
		{"has a fraction", "n", bson.D{{Key: "n", Value: 0.5}}, false},
		{"null", "n", bson.D{{Key: "n", Value: nil}}, true},
		{"zero", "n", bson.D{{Key: "n", Value: 0}}, true},
		{"zero as a double", "a.n", bson.D{{Key: "a", Value: bson.D{{Key: "n", Value: 0.0}}}}, true},
		{"empty text", "n", bson.D{{Key: "n", Value: ""}}, true},
		{"nothing on the way", "a.b.n", bson.D{{Key: "x", Value: 1}}, true},
		{"null on the way", "a.b.n", bson.D{{Key: "a", Value: nil}}, true},
		{"in a document", "a.b.n", bson.D{{Key: "a", Value: bson.D{{Key: "x", Value: 1}, {Key: "b", Value: bson.D{{Key: "y", Value: 1}}}}}}, true},
	}
	eachServer(t, func(w *world) {
		for _, test := range tests {
			number := idgen.NewCounter(w.db.Collection(counters), test.name)
			part := batch.Into(w.coll("c"), []any{bson.D{}, test.document}).Number(test.field, number)
			before := w.wire.Count()
			_, failed := w.insert(batch.Config{}, part)
			switch {
			case test.ok != (failed == nil):
				w.Errorf("%s: %v", test.name, failed)
			case failed != nil && (!slices.Equal(indexes(failed), []int{1}) || w.wire.Count() != before):
				w.Errorf("%s: documents %v are refused after %d commands", test.name, indexes(failed), w.wire.Count()-before)
			}
		}
	})
}

// Chunks are cut by count and by bytes, at the document that would be too much.
func TestChunkBounds(t *testing.T) {
	const size = 100
	tests := []struct {
		documents, chunkSize, chunkBytes, want int
	}{
		{0, 10, 0, 0}, {1, 10, 0, 1}, {9, 10, 0, 1}, {10, 10, 0, 1}, {11, 10, 0, 2}, {20, 10, 0, 2}, {21, 10, 0, 3},
		{10, 0, size * 10, 1}, {10, 0, size*10 - 1, 2}, {11, 0, size * 10, 2}, {3, 0, 1, 3}, {10, 4, size * 3, 4}, {10, 3, size * 4, 4},
		{1_000, 0, 0, 1}, {1_001, 0, 0, 2},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%d by %d and %d", test.documents, test.chunkSize, test.chunkBytes), func(t *testing.T) {
			eachServer(t, func(w *world) {
				documents := make([]bson.Raw, test.documents)
				for i := range documents {
					documents[i] = sized(w.T, size, bson.E{Key: "_id", Value: int32(i)})
				}
				config := batch.Config{ChunkSize: test.chunkSize, ChunkBytes: test.chunkBytes, Stamp: batch.StampNone}
				w.mustStore(config, batch.Into(w.coll("c"), documents))
				if n := w.wire.Count(faultwire.Insert); n != test.want {
					w.Errorf("%d inserts, want %d", n, test.want)
				}
			})
		})
	}
}
