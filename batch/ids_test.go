package batch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/servertest"
)

// indexes returns the positions of the refused documents.
func indexes(failed *batch.Error) []int {
	at := make([]int, len(failed.Documents))
	for i, d := range failed.Documents {
		at[i] = d.Index
	}
	return at
}

// notSent checks an error that has to come before anything is sent.
func (w *world) notSent(failed *batch.Error, want ...int) {
	w.Helper()
	if !errors.Is(failed, batch.ErrInvalidDocuments) {
		w.Errorf("the cause is %v, want ErrInvalidDocuments", failed.Cause)
	}
	if at := indexes(failed); !slices.Equal(at, want) {
		w.Errorf("documents %v are refused, want %v: %v", at, want, failed)
	}
	if failed.Sent || !strings.Contains(failed.Error(), "nothing was written") {
		w.Errorf("something seems to have been sent: %v", failed)
	}
	if n := w.wire.Count(); n > 0 {
		w.Errorf("%d commands were sent:\n%s", n, w.wire)
	}
}

// An _id that looks like a query operator would match other documents in a filter.
func TestIDLikeOperator(t *testing.T) {
	tests := []struct {
		name string
		id   any
	}{
		{"comparison", bson.D{{Key: "$gt", Value: ""}}},
		{"as a map", bson.M{"$ne": nil}},
		{"equality", bson.D{{Key: "$eq", Value: "a"}}},
		{"behind another key", bson.D{{Key: "a", Value: 1}, {Key: "$gt", Value: ""}}},
		{"nested", bson.D{{Key: "a", Value: bson.D{{Key: "$gt", Value: ""}}}}},
		{"in an array", bson.D{{Key: "a", Value: bson.A{bson.D{{Key: "$gt", Value: ""}}}}}},
		{"regular expression", bson.Regex{Pattern: "."}},
		{"array", bson.A{"a"}},
		{"undefined", bson.Undefined{}},
	}
	for _, test := range tests {
		for _, size := range []int{2, 1_002} { // alone, and in the middle of a chunk
			t.Run(fmt.Sprintf("%s of %d", test.name, size), func(t *testing.T) {
				eachServer(t, func(w *world) {
					for i := range 10 {
						w.plant("c", bson.D{{Key: "_id", Value: fmt.Sprint("theirs", i)}})
					}
					documents := make([]bson.D, size)
					for i := range documents {
						documents[i] = bson.D{{Key: "_id", Value: fmt.Sprint("ours", i)}}
					}
					documents[size/2] = bson.D{{Key: "_id", Value: test.id}}
					w.notSent(w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), documents)), size/2)
				})
			})
		}
	}
}

// A dollar sign in an _id's text or value is no operator.
func TestIDWithDollarIsNoOperator(t *testing.T) {
	eachServer(t, func(w *world) {
		documents := []bson.D{{{Key: "_id", Value: "$gt"}}, {{Key: "_id", Value: bson.D{{Key: "a", Value: "$gt"}}}}}
		w.mustStore(batch.Config{}, batch.Into(w.coll("c"), documents))
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), documents))
		if at := indexes(failed); !slices.Equal(at, []int{0, 1}) {
			w.Errorf("documents %v are refused, want both: %v", at, failed)
		}
	})
}

// Two fields named _id: the driver would read one and a server another.
func TestTwoIDFields(t *testing.T) {
	for _, first := range []any{1, 3} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}})
				twice := bson.D{{Key: "_id", Value: first}, {Key: "x", Value: 0}, {Key: "_id", Value: 2}}
				raw, err := bson.Marshal(twice)
				if err != nil {
					w.Fatal(err)
				}
				w.notSent(w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{bson.D{}, twice, bson.Raw(raw)})), 1, 2)
			})
		})
	}
}

type compound struct {
	E, D, C int
	B       string
	A       float64
}

// An _id that is a document equals only itself in the same order of fields, and a map has none: it must be encoded once.
func TestCompoundIDs(t *testing.T) {
	ids := map[string]func(i int) any{
		"map":    func(i int) any { return bson.M{"a": i, "b": "x", "c": 1.5, "d": true, "e": nil} },
		"D":      func(i int) any { return bson.D{{Key: "b", Value: i}, {Key: "a", Value: "x"}} },
		"struct": func(i int) any { return compound{E: i, B: "x"} },
	}
	for name, id := range ids {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: "taken"}}, bson.D{{Key: "_id", Value: bson.D{{Key: "a", Value: 0}}}})
				documents := make([]bson.M, 200)
				for i := range documents {
					documents[i] = bson.M{"_id": id(i)}
				}
				documents[199]["_id"] = "taken"
				for range 10 { // a map's order is new each time
					failed := w.mustRollBack(batch.Config{ChunkSize: 50}, batch.Into(w.coll("c"), documents))
					if at := indexes(failed); !slices.Equal(at, []int{199}) {
						w.Fatalf("documents %v are refused, want the last: %v", at, failed)
					}
				}
			})
		})
	}
}

type moment struct {
	ID   time.Time `bson:"_id"`
	Noon time.Time
}

// BSON's times have milliseconds, so that a nanosecond makes no other _id.
func TestTimesAsIDs(t *testing.T) {
	zone := time.FixedZone("somewhere", 5*3600+45*60)
	at := time.Date(2024, 2, 29, 12, 0, 0, 123_456_789, zone)
	nested := func(t time.Time) bson.D {
		return bson.D{{Key: "_id", Value: bson.D{{Key: "d", Value: t}, {Key: "n", Value: 1}}}}
	}
	eachServer(t, func(w *world) {
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{
			moment{ID: at}, moment{ID: at.Add(time.Nanosecond)}, moment{ID: at.Add(time.Millisecond)}, moment{ID: at.UTC()},
			nested(at), nested(at.Add(time.Nanosecond)), nested(at.Add(time.Millisecond)),
		}))
		w.notSent(failed, 1, 3, 5)
		for i, first := range []int{0, 0, 4} {
			var twin *batch.DuplicateIDError
			if !errors.As(failed.Documents[i].Err, &twin) || twin.First != first {
				w.Errorf("document %d is refused for %v, want the same _id as %d", failed.Documents[i].Index, failed.Documents[i].Err, first)
			}
		}

		w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
		w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{moment{ID: at}, nested(at), bson.D{{Key: "_id", Value: "taken"}}}))

		result := w.mustStore(batch.Config{}, batch.Into(w.coll("c"), []any{moment{ID: at, Noon: at}}))
		if want := bson.NewDateTimeFromTime(at); result.Parts[0].IDs[0] != want {
			w.Errorf("the result's _id is %v, want %v", result.Parts[0].IDs[0], want)
		}
	})
}

// The same sixteen bytes are another _id with another subtype, and as text.
func TestBinaryIDs(t *testing.T) {
	uuid := [16]byte{0: 0xca, 7: 0xfe, 15: 1}
	forms := []any{uuid, bson.Binary{Subtype: 3, Data: uuid[:]}, bson.Binary{Subtype: 4, Data: uuid[:]}, fmt.Sprintf("%x", uuid)}
	for i, ours := range forms {
		t.Run(fmt.Sprintf("%T %d", ours, i), func(t *testing.T) {
			eachServer(t, func(w *world) {
				for j, theirs := range forms {
					_, isText := theirs.(string)
					if w.server.Kind == servertest.KindEmbedded && !isText {
						continue // FerretDB 1.24 takes binaries of different subtypes for duplicates
					}
					if i != j {
						w.plant("c", bson.D{{Key: "_id", Value: theirs}})
					}
				}
				w.plant("c", bson.D{{Key: "_id", Value: "taken"}})
				mine := bson.D{{Key: "_id", Value: ours}}
				for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
					w.mustRollBack(batch.Config{Stamp: stamp}, batch.Into(w.coll("c"), []bson.D{mine, {{Key: "_id", Value: "taken"}}}))
				}
				w.notSentTwice(mine)

				result := w.mustStore(batch.Config{}, batch.Into(w.coll("c"), []bson.D{mine}))
				want := ours
				if i == 0 {
					want = bson.Binary{Data: uuid[:]}
				}
				if have := result.Parts[0].IDs[0]; !marshal(w.T, have).Equal(marshal(w.T, want)) || fmt.Sprintf("%T", have) != fmt.Sprintf("%T", want) {
					w.Errorf("the result's _id is %#v, want %#v", have, want)
				}
			})
		})
	}
}

// notSentTwice checks that a document is refused beside a copy of itself.
func (w *world) notSentTwice(document any) {
	w.Helper()
	before := w.wire.Count()
	failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []any{document, document}))
	if at := indexes(failed); !slices.Equal(at, []int{1}) || w.wire.Count() != before {
		w.Errorf("documents %v are refused, want the second, before anything is sent: %v", at, failed)
	}
}

// Numbers of different types are one _id, in a batch as on the server; and what differs is not taken for the same.
func TestEqualIDsOfDifferentTypes(t *testing.T) {
	equal := [][2]any{
		{int32(1), int64(1)}, {int64(1), 1.0}, {0.0, negativeZero()},
		{bson.D{{Key: "a", Value: int32(1)}}, bson.D{{Key: "a", Value: 1.0}}},
		{nil, nil},
	}
	different := [][2]any{
		{int32(1), "1"}, {int64(1), 1.5}, {bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}, bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 1}}},
		{"a", "A"}, {nil, ""}, {int64(1<<53 + 1), float64(1 << 53)}, {true, 1},
		{bson.D{{Key: "a", Value: "b"}}, bson.D{{Key: "ab", Value: ""}}},
		{bson.D{}, nil},
	}
	eachServer(t, func(w *world) {
		part := func(ids [2]any) batch.Part {
			return batch.Into(w.coll("c"), []bson.D{{{Key: "_id", Value: ids[0]}}, {{Key: "_id", Value: ids[1]}}})
		}
		for _, ids := range equal {
			if failed := w.mustRollBack(batch.Config{}, part(ids)); failed.Sent {
				w.Errorf("%v was sent beside %v", ids[0], ids[1])
			}
			// The server agrees.
			one := batch.Into(w.coll("equal"), []bson.D{{{Key: "_id", Value: ids[0]}}})
			w.mustStore(batch.Config{}, one)
			w.mustRollBack(batch.Config{}, batch.Into(w.coll("equal"), []bson.D{{{Key: "_id", Value: ids[1]}}}))
			w.empty("equal")
		}
		if w.server.Kind != servertest.KindEmbedded { // FerretDB 1.24 takes a time for the number of its milliseconds
			different = append(different, [2]any{bson.DateTime(1), int64(1)})
		}
		for _, ids := range different {
			if _, failed := w.insert(batch.Config{}, part(ids)); failed != nil {
				w.Errorf("%T %v beside %T %v: %v", ids[0], ids[0], ids[1], ids[1], failed)
			}
			w.empty("c")
		}
	})
}

func negativeZero() float64 {
	zero := 0.0
	return -zero
}

// empty removes all that successful batches stored in a collection.
func (w *world) empty(coll string) {
	w.Helper()
	if _, err := w.around.Collection(coll).DeleteMany(w.Context(), bson.D{}); err != nil {
		w.Fatal(err)
	}
	for place := range w.stored {
		if strings.HasPrefix(place, w.around.Name()+"."+coll+" ") {
			delete(w.stored, place)
		}
	}
}

// A batch's parts can share a collection; then they share its ids.
func TestSameIDInTwoParts(t *testing.T) {
	eachServer(t, func(w *world) {
		one := []bson.D{{{Key: "_id", Value: 1}}, {{Key: "_id", Value: 2}}}
		two := []bson.D{{{Key: "_id", Value: 3}}, {{Key: "_id", Value: int64(2)}}}
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), one), batch.Into(w.coll("c"), two))
		w.notSent(failed, 1)
		if failed.Documents[0].Part != 1 {
			w.Errorf("part %d is blamed, want the second", failed.Documents[0].Part)
		}
		// In another collection they are other documents.
		w.mustStore(batch.Config{}, batch.Into(w.coll("c"), one), batch.Into(w.coll("d"), two))
	})
}
