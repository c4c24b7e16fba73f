package batch_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
)

type address struct {
	Street string
	Number int `bson:",omitempty"`
}

type tagged struct {
	Key      string         `json:"_id"`
	Name     string         `json:"name" bson:"bsonName"`
	Small    int64          `json:"small"`
	Smaller  int64          `bson:"smaller,minsize"`
	Nobody   *address       `json:"nobody,omitempty"`
	Somebody *address       `json:"somebody"`
	Zero     address        `bson:"zero,omitempty"`
	Names    []string       `json:"names"`
	Bytes    []byte         `json:"bytes"`
	Counts   map[string]int `json:"counts"`
	ByNumber map[int]string
	address  string //lint:ignore U1000 an unexported field is not stored
}

type optionalID struct {
	ID bson.ObjectID `bson:"_id,omitempty"`
	N  int
}

type plainID struct {
	ID bson.ObjectID `bson:"_id"`
	N  int
}

type untagged struct {
	ID string
	N  int
}

type pointerID struct {
	ID *bson.ObjectID `bson:"_id,omitempty"`
}

type base struct {
	ID string `bson:"_id,omitempty"`
}

type inlined struct {
	base2 `bson:",inline"`
	N     int
}

type base2 struct {
	Key string `bson:"_id"`
}

type inlinedPointer struct {
	*base `bson:",inline"`
	N     int
}

type late struct { // its _id is its last field
	N  int
	At time.Time
	ID string `bson:"_id"`
}

type hiddenZero struct {
	ID wary `bson:"_id,omitempty"`
}

type wary struct{ Text string }

func (w wary) IsZero() bool { return w.Text == "nobody" }

type byHand struct{ n int }

func (b byHand) MarshalBSON() ([]byte, error) {
	return bson.Marshal(bson.D{{Key: "_id", Value: fmt.Sprint("by hand ", b.n)}, {Key: "n", Value: b.n}})
}

func raw(t *testing.T, v any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// kinds are documents of every kind that the driver takes, each kind several times with different contents.
func kinds(t *testing.T) map[string][]any {
	id := bson.ObjectID{1, 2, 3}
	d := bson.D{{Key: "z", Value: 1}, {Key: "a", Value: bson.A{"x", nil, 1.5, bson.D{}}}, {Key: "_id", Value: "d"}}
	type str = map[string]any
	return map[string][]any{
		"D":                 {d, bson.D{}, bson.D{{Key: "_id", Value: nil}}, &d, bson.D(nil)},
		"M":                 {bson.M{"_id": 1}, bson.M{"n": 1}, &bson.M{"m": 1}, bson.M{}},
		"map":               {str{"_id": 1}, map[string]int{"n": 1}, map[string]bson.D{"d": {{Key: "x", Value: 1}}}},
		"Raw":               {raw(t, d), raw(t, bson.D{{Key: "x", Value: 2}}), []byte(raw(t, bson.D{{Key: "y", Value: 3}}))},
		"struct":            {tagged{Key: "k", Small: 5, Smaller: 5}, &tagged{Key: "l", Names: []string{}, Counts: map[string]int{}}, address{}},
		"struct with all":   {tagged{Key: "a", Somebody: &address{"x", 1}, Nobody: &address{}, Bytes: []byte{}, Counts: map[string]int{"x": 1}, ByNumber: map[int]string{7: "x"}}},
		"zero id omitted":   {optionalID{N: 1}, optionalID{N: 2}, &optionalID{ID: id}},
		"zero id":           {plainID{N: 1}},
		"ID without a tag":  {untagged{ID: "a"}, untagged{ID: "a"}},
		"pointer id":        {pointerID{}, pointerID{ID: &id}},
		"inline":            {inlined{N: 1}, inlined{base2: base2{Key: "x"}}},
		"inline pointer":    {inlinedPointer{N: 1}, inlinedPointer{base: &base{}, N: 2}, inlinedPointer{base: &base{ID: "y"}}},
		"id not first":      {late{N: 1, ID: "x", At: time.Now()}, bson.D{{Key: "a", Value: 1}, {Key: "_id", Value: 2}}},
		"IsZero":            {hiddenZero{ID: wary{"nobody"}}, hiddenZero{ID: wary{""}}, hiddenZero{ID: wary{"x"}}},
		"MarshalBSON":       {byHand{1}, &byHand{2}},
		"scalars":           {bson.D{{Key: "i", Value: 1}, {Key: "j", Value: int64(2)}, {Key: "f", Value: float32(0.5)}, {Key: "u", Value: uint8(3)}, {Key: "b", Value: false}, {Key: "t", Value: time.UnixMilli(1)}, {Key: "x", Value: []byte{1}}, {Key: "r", Value: bson.Regex{Pattern: "a", Options: "i"}}, {Key: "s", Value: bson.Timestamp{T: 1, I: 2}}, {Key: "p", Value: &id}}},
		"documents in them": {bson.D{{Key: "raw", Value: raw(t, d)}, {Key: "value", Value: bson.RawValue{Type: bson.TypeString, Value: []byte{2, 0, 0, 0, 'x', 0}}}, {Key: "struct", Value: address{"x", 2}}}},
	}
}

// twin compares what a batch stores with what the driver's InsertMany stores: the bytes are the same, but for the stamp
// and for an _id that nobody gave, which is a new ObjectID at the same place.
func (w *world) twin(config batch.Config, documents []any) {
	w.Helper()
	// A registry remembers how it read a struct's tags first, so that the shared one would be no measure.
	opts := options.Client().SetRegistry(bson.NewRegistry()).SetBSONOptions(config.BSONOptions)
	if config.Registry != nil {
		opts.SetRegistry(config.Registry)
	}
	theirs := w.server.Client(w.T, opts).Database(w.db.Name()).Collection(plainInserts)
	for i, document := range documents {
		_, theirErr := theirs.InsertOne(w.Context(), document)
		result, failed := w.insert(config, batch.Into(w.coll("ours"), []any{document}))
		if (theirErr == nil) != (failed == nil) {
			w.Errorf("document %d: plain insert: %v; batch: %v", i, theirErr, failed)
		}
		if failed != nil || theirErr != nil {
			continue
		}
		var have, want bson.Raw
		for _, raw := range w.read("ours") {
			have = raw
		}
		for _, raw := range w.read(plainInserts) {
			want = raw
		}
		_, err := have.LookupErr("_batch")
		minted := err != nil // the stamp tells that the _id was the document's own
		if !bytes.Equal(bare(w.T, have, minted), bare(w.T, want, minted)) {
			w.Errorf("document %d: stored is\n%v, plain insert stores\n%v", i, have, want)
		}
		if !minted && !have.Lookup("_batch").Equal(marshal(w.T, result.BatchID)) {
			w.Errorf("document %d: the stamp is not the batch's id %v: %v", i, result.BatchID, have)
		}
		w.empty("ours")
		w.empty(plainInserts)
	}
}

// bare makes a document comparable: a stamp at its end is cut off, an ObjectID at its beginning is blanked if it is new.
func bare(t *testing.T, document bson.Raw, minted bool) bson.Raw {
	t.Helper()
	elements, err := document.Elements()
	if err != nil {
		t.Fatal(err)
	}
	var bare bson.D
	for i, e := range elements {
		value := e.Value()
		switch {
		case e.Key() == "_batch" && i == len(elements)-1:
			continue
		case minted && e.Key() == "_id" && i == 0 && value.Type == bson.TypeObjectID:
			value = marshal(t, bson.ObjectID{})
		}
		bare = append(bare, bson.E{Key: e.Key(), Value: value})
	}
	return raw(t, bare)
}

func TestBytesAreThoseOfInsertMany(t *testing.T) {
	for name, documents := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) { w.twin(batch.Config{}, documents) })
		})
	}
}

// Every option that a client can be given for encoding has its effect. The list is the driver's own.
func TestBytesWithBSONOptions(t *testing.T) {
	all := reflect.TypeFor[options.BSONOptions]()
	for i := range all.NumField() {
		t.Run(all.Field(i).Name, func(t *testing.T) {
			opts := new(options.BSONOptions)
			reflect.ValueOf(opts).Elem().Field(i).SetBool(true)
			eachServer(t, func(w *world) {
				for _, name := range []string{"struct", "struct with all", "M", "zero id omitted", "zero id", "map", "scalars"} {
					w.twin(batch.Config{BSONOptions: opts}, kinds(t)[name])
				}
			})
		})
	}
}

type amount struct{ cents *big.Int }

// A registry of the client's own decides how a type is stored, at the top, in depth and as an _id.
func TestBytesWithRegistry(t *testing.T) {
	newRegistry := func() *bson.Registry {
		registry := bson.NewRegistry()
		registry.RegisterTypeEncoder(reflect.TypeFor[amount](), bson.ValueEncoderFunc(func(_ bson.EncodeContext, w bson.ValueWriter, v reflect.Value) error {
			return w.WriteString(v.Interface().(amount).cents.String() + " cents")
		}))
		return registry
	}
	price := amount{big.NewInt(1999)}
	documents := []any{
		bson.D{{Key: "price", Value: price}}, bson.M{"prices": []amount{price}}, bson.D{{Key: "_id", Value: price}},
		struct {
			Price amount
			At    map[string]amount
		}{price, map[string]amount{"x": price}},
	}
	eachServer(t, func(w *world) {
		w.twin(batch.Config{Registry: newRegistry()}, documents)
		w.twin(batch.Config{Registry: newRegistry(), BSONOptions: &options.BSONOptions{UseJSONStructTags: true, IntMinSize: true}}, append(documents, kinds(t)["struct"]...))
		if stored := w.mustStore(batch.Config{Registry: newRegistry()}, batch.Into(w.coll("c"), documents[2:3])); stored.Parts[0].IDs[0] != "1999 cents" {
			w.Errorf("the result's _id is %v", stored.Parts[0].IDs[0])
		}
	})
}

// A client that reads json tags is useless to the batch unless its Config says so: then the tagged field is the _id.
func TestJSONTags(t *testing.T) {
	opts := &options.BSONOptions{UseJSONStructTags: true}
	eachServer(t, func(w *world) {
		documents := []tagged{{Key: "x"}, {Key: "y"}}
		result := w.mustStore(batch.Config{BSONOptions: opts}, batch.Into(w.coll("c").Clone(), documents))
		if ids := result.Parts[0].IDs; ids[0] != "x" || ids[1] != "y" {
			w.Errorf("the ids are %v, want those of the tagged fields", ids)
		}
		// Without, the bytes are those of a plain client, whatever the collection's own client does.
		result = w.mustStore(batch.Config{}, batch.Into(w.coll("d"), documents))
		if id, minted := result.Parts[0].IDs[0].(bson.ObjectID); !minted {
			w.Errorf("the _id is %v, want a new ObjectID", id)
		}
	}, options.Client().SetBSONOptions(opts))
}

// Each kind of id behaves as with InsertMany when the batch fails, too: all are rolled back.
func TestEveryKindIsRolledBack(t *testing.T) {
	for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampAll, batch.StampNone} {
		for name, documents := range kinds(t) {
			t.Run(stamp.String()+" "+name, func(t *testing.T) {
				eachServer(t, func(w *world) {
					w.plant("c", bson.D{{Key: "_id", Value: "taken"}, {Key: "theirs", Value: true}})
					documents := append([]any{bson.D{{Key: "_id", Value: "taken"}}}, documents...)
					failed := w.mustRollBack(batch.Config{Stamp: stamp}, batch.Into(w.coll("c"), documents))
					if at := indexes(failed); failed.Sent && (len(at) != 1 || at[0] != 0) {
						w.Errorf("documents %v are refused, want the first: %v", at, failed)
					} else if want := int64(len(documents) - 1); failed.Sent && failed.Rollback.Deleted != want {
						w.Errorf("%d documents were deleted, want %d", failed.Rollback.Deleted, want)
					}
				})
			})
		}
	}
}

// Two documents with an _id of zeros, which a tag did not leave out, are the same document.
func TestTwoZeroIDs(t *testing.T) {
	eachServer(t, func(w *world) {
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []plainID{{N: 1}, {N: 2}}))
		w.notSent(failed, 1)
		w.mustStore(batch.Config{}, batch.Into(w.coll("c"), []optionalID{{N: 1}, {N: 2}}))
	})
}

// A validator or a server that takes no stamp is no reason to leave a document half-told: the stamp is the last field.
func TestStampModes(t *testing.T) {
	documents := []bson.D{{{Key: "_id", Value: 1}, {Key: "a", Value: 1}}, {{Key: "a", Value: 2}}}
	tests := []struct {
		config  batch.Config
		stamped [2]bool
	}{
		{batch.Config{}, [2]bool{true, false}},
		{batch.Config{Stamp: batch.StampAll}, [2]bool{true, true}},
		{batch.Config{Stamp: batch.StampNone}, [2]bool{false, false}},
		{batch.Config{Stamp: batch.StampAll, StampField: "job"}, [2]bool{true, true}},
		{batch.Config{Stamp: batch.StampAll, RemoveStamp: true}, [2]bool{false, false}},
		{batch.Config{RemoveStamp: true, ChunkSize: 1}, [2]bool{false, false}},
	}
	for _, test := range tests {
		name := test.config.StampField
		if name == "" {
			name = "_batch"
		}
		t.Run(fmt.Sprintf("%s %s remove=%t", test.config.Stamp, name, test.config.RemoveStamp), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.rules.StampField = name
				result := w.mustStore(test.config, batch.Into(w.coll("c"), documents))
				for _, raw := range w.read("c") {
					elements, _ := raw.Elements()
					last := elements[len(elements)-1]
					is := last.Key() == name && last.Value().Equal(marshal(w.T, result.BatchID))
					which := raw.Lookup("a").AsInt64() - 1
					if is != test.stamped[which] || strings.Contains(raw.String(), name) != is {
						w.Errorf("document %d is %v, want stamp: %t", which, raw, test.stamped[which])
					}
				}
				if result.Warnings != nil {
					w.Errorf("warnings: %v", result.Warnings)
				}
			})
		})
	}
}

// A document that has a field of the stamp's name already keeps it; the batch needs another.
func TestStampFieldTaken(t *testing.T) {
	eachServer(t, func(w *world) {
		documents := []bson.D{{{Key: "a", Value: 1}}, {{Key: "_batch", Value: 7}}}
		failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), documents))
		w.notSent(failed, 1)
		if !strings.Contains(failed.Error(), "StampField") {
			w.Errorf("the message does not help: %v", failed)
		}
		w.mustStore(batch.Config{Stamp: batch.StampNone}, batch.Into(w.coll("c"), documents))
		w.mustStore(batch.Config{StampField: "_job"}, batch.Into(w.coll("c"), documents))
		for _, config := range []batch.Config{{StampField: "a.b"}, {StampField: "$a"}, {StampField: "_id"}, {Stamp: batch.StampNone, RemoveStamp: true}, {Stamp: 9}} {
			if _, failed := w.insert(config, batch.Into(w.coll("c"), documents)); failed == nil || failed.Sent || errors.Is(failed, batch.ErrInvalidDocuments) {
				w.Errorf("a configuration with stamp %v in field %q got %v", config.Stamp, config.StampField, failed)
			}
		}
	})
}
