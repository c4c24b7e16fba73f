package batch

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// documents draws documents of few names, so that paths often meet something.
func documents(depth int) *rapid.Generator[bson.D] {
	return rapid.Custom(func(t *rapid.T) bson.D {
		d := bson.D{}
		names := []string{"_id", "a", "b", "c", "a.b", ""}
		for range rapid.IntRange(0, 4).Draw(t, "fields") {
			var value any
			switch rapid.IntRange(0, 6).Draw(t, "kind") {
			case 0:
				value = int64(0)
			case 1:
				value = "text"
			case 2:
				value = nil
			case 3:
				value = bson.A{int32(1), bson.D{}}
			case 4:
				value = 0.0
			default:
				value = bson.D{}
				if depth > 0 {
					value = documents(depth-1).Draw(t, "inner")
				}
			}
			d = append(d, bson.E{Key: rapid.SampledFrom(names).Draw(t, "name"), Value: value})
		}
		return d
	})
}

func paths() *rapid.Generator[[]string] {
	return rapid.SliceOfN(rapid.SampledFrom([]string{"_id", "a", "b", "c"}), 1, 3)
}

// What setField has set, lookup finds, and the driver as well; nothing else has changed, and the document given has not.
func TestSetFieldThenLookup(t *testing.T) {
	set := 0
	rapid.Check(t, func(t *rapid.T) {
		d, path := documents(2).Draw(t, "document"), paths().Draw(t, "path")
		before, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		given := slices.Clone(before)
		value := bson.RawValue{Type: bson.TypeString, Value: []byte("\x06\x00\x00\x00value\x00")}
		overwrite := rapid.Bool().Draw(t, "overwrite")
		after, err := setField(given, path, value, overwrite)
		if !bytes.Equal(given, before) {
			t.Fatal("the document itself was changed")
		}
		if err != nil {
			return // the table below tells what is refused
		}
		set++
		if err := bson.Raw(after).Validate(); err != nil {
			t.Fatalf("not valid: %v", err)
		}
		e, ok := lookup(after, path)
		if !ok || e.kind != value.Type || !bytes.Equal(after[e.value:e.end], value.Value) {
			t.Fatalf("lookup finds %v, %t in %v", e, ok, bson.Raw(after))
		}
		if found, err := bson.Raw(after).LookupErr(path...); err != nil || !found.Equal(value) {
			t.Fatalf("the driver finds %v, %v", found, err)
		}
		if rest, old := without(t, after, path), without(t, before, path); !bytes.Equal(rest, old) {
			t.Fatalf("besides the field, %v became %v", bson.Raw(before), bson.Raw(after))
		}
		// A number is put into the same place without moving anything.
		again, err := setField(after, path, value, true)
		if err != nil || !bytes.Equal(again, after) {
			t.Fatalf("setting it again: %v, %v", bson.Raw(again), err)
		}
	})
	if set == 0 {
		t.Error("nothing was ever set")
	}
}

// without takes out what a path leads to, and the documents on the way that then are empty, or were null.
func without(t *rapid.T, document []byte, path []string) []byte {
	var d bson.D
	if err := bson.Unmarshal(document, &d); err != nil {
		t.Fatal(err)
	}
	made, err := bson.Marshal(cut(d, path))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func cut(d bson.D, path []string) bson.D {
	var rest bson.D
	for _, e := range d {
		if e.Key == path[0] {
			inner, isDocument := e.Value.(bson.D)
			if len(path) == 1 || !isDocument {
				continue
			}
			if e.Value = cut(inner, path[1:]); len(e.Value.(bson.D)) == 0 {
				continue
			}
		}
		rest = append(rest, e)
	}
	if rest == nil {
		rest = bson.D{}
	}
	return rest
}

func TestSetField(t *testing.T) {
	value := bson.RawValue{Type: bson.TypeInt64, Value: appendInt64(nil, 7)}
	tests := []struct {
		document  bson.D
		path      string
		overwrite bool
		want      string // relaxed extended JSON; empty if it is refused
	}{
		{bson.D{}, "a", false, `{"a":7}`},
		{bson.D{}, "a.b.c", false, `{"a":{"b":{"c":7}}}`},
		{bson.D{{Key: "x", Value: int32(1)}}, "_id", false, `{"_id":7,"x":1}`}, // first
		{bson.D{{Key: "x", Value: int32(1)}, {Key: "_id", Value: nil}}, "_id", false, `{"x":1,"_id":7}`},
		{bson.D{{Key: "x", Value: int32(1)}}, "_id.n", false, `{"_id":{"n":7},"x":1}`},
		{bson.D{{Key: "x", Value: int32(1)}}, "y._id", false, `{"x":1,"y":{"_id":7}}`},
		{bson.D{{Key: "a", Value: int32(0)}, {Key: "b", Value: true}}, "a", false, `{"a":7,"b":true}`},
		{bson.D{{Key: "a", Value: bson.D{{Key: "x", Value: true}}}}, "a.n", false, `{"a":{"x":true,"n":7}}`},
		{bson.D{{Key: "a", Value: nil}}, "a.n", false, `{"a":{"n":7}}`},
		{bson.D{{Key: "a", Value: int32(5)}}, "a", false, ""},
		{bson.D{{Key: "a", Value: int32(5)}}, "a", true, `{"a":7}`},
		{bson.D{{Key: "a", Value: 0.25}}, "a", false, ""},
		{bson.D{{Key: "a", Value: bson.D{}}}, "a", false, ""},
		{bson.D{{Key: "a", Value: false}}, "a", false, ""},
		{bson.D{{Key: "a", Value: bson.A{}}}, "a.n", true, ""},
		{bson.D{{Key: "a", Value: "x"}}, "a.n", true, ""},
		{bson.D{{Key: "a", Value: nil}, {Key: "a", Value: nil}}, "a", true, ""},
		{bson.D{{Key: "a", Value: bson.D{{Key: "n", Value: nil}, {Key: "n", Value: nil}}}}, "a.n", true, ""},
		{bson.D{{Key: "a.n", Value: nil}}, "a.n", true, ""},
		{bson.D{{Key: "a.n", Value: nil}}, "a.n.x", true, ""},
		{bson.D{{Key: "a.n", Value: true}}, "a.m", false, `{"a.n":true,"a":{"m":7}}`},
		{bson.D{{Key: "a", Value: bson.D{{Key: "n.x", Value: nil}}}}, "a.n.x", true, ""},
	}
	for _, test := range tests {
		document, err := bson.Marshal(test.document)
		if err != nil {
			t.Fatal(err)
		}
		made, err := setField(document, strings.Split(test.path, "."), value, test.overwrite)
		switch {
		case err != nil && test.want != "" || err == nil && test.want == "":
			t.Errorf("%v, %s: %v, %v", test.document, test.path, bson.Raw(made), err)
		case err == nil:
			if have, _ := bson.MarshalExtJSON(bson.Raw(made), false, false); string(have) != test.want {
				t.Errorf("%v, %s: %s, want %s", test.document, test.path, have, test.want)
			}
		}
	}
}

// lookup finds what the driver finds, in documents without arrays and without a field that is there twice.
func TestLookup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, path := documents(2).Draw(t, "document"), paths().Draw(t, "path")
		document, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		want, err := bson.Raw(document).LookupErr(path...)
		e, ok := lookup(document, path)
		if ok != (err == nil) || ok && (e.kind != want.Type || !bytes.Equal(document[e.value:e.end], want.Value)) {
			t.Fatalf("found %t %v, the driver %v, %v", ok, e, want, err)
		}
	})
}
