package outcome_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/outcome"
)

// The texts are those of the servers' source: buildDupKeyErrorStatus in MongoDB's duplicate_key_error_info.cpp (the
// index is missing for clustered collections), the forms of 2.6 and 3.0 before it, and FerretDB and Cosmos DB, which name no index.
func TestDuplicateKey(t *testing.T) {
	known := func(index string, keys ...string) outcome.Duplicate {
		return outcome.Duplicate{Known: true, Index: index, Keys: keys}
	}
	pattern := func(keys ...string) bson.D {
		var d bson.D
		for _, key := range keys {
			d = append(d, bson.E{Key: key, Value: 1})
		}
		return bson.D{{Key: "code", Value: 11000}, {Key: "keyPattern", Value: d}}
	}
	const modern = "E11000 duplicate key error collection: shop.users index: "
	tests := []struct {
		name    string
		message string
		raw     bson.D // nil: the server sends nothing but the text
		want    outcome.Duplicate
		onID    bool
	}{
		{"4.4, _id", modern + `_id_ dup key: { _id: 1 }`, pattern("_id"), known("_id_", "_id"), true},
		{"4.4, other index", modern + `email_1 dup key: { email: "a" }`, pattern("email"), known("email_1", "email"), false},
		{"4.4, several keys", modern + `tenant_1__id_1 dup key: { tenant: 1, _id: 1 }`, pattern("tenant", "_id"), known("tenant_1__id_1", "tenant", "_id"), false},
		{"4.4, clustered", `E11000 duplicate key error collection: shop.users dup key: { _id: 1 }`, pattern("_id"), known("", "_id"), true},
		{"4.4, keys only", ``, pattern("email"), known("", "email"), false},
		{"4.2", modern + `email_1 dup key: { email: "a" }`, nil, known("email_1"), false},
		{"4.0", modern + `email_1 dup key: { : "a" }`, nil, known("email_1"), false},
		{"4.0, _id", modern + `_id_ dup key: { : 1 }`, nil, known("_id_"), true},
		{"3.0", `E11000 duplicate key error index: shop.users.$email_1 dup key: { : "a" }`, nil, known("email_1"), false},
		{"3.0, _id", `E11000 duplicate key error index: shop.users.$_id_ dup key: { : 1 }`, nil, known("_id_"), true},
		{"2.6, two blanks", `insertDocument :: caused by :: 11000 E11000 duplicate key error index: shop.users.$_id_  dup key: { : 1 }`, nil, known("_id_"), true},
		{"3.0, dots", `E11000 duplicate key error index: shop.users.eu.$a.b_1 dup key: { : 1 }`, nil, known("a.b_1"), false},
		{"collation", modern + `email_1 collation: { locale: "de", caseLevel: false } dup key: { email: CollationKey(0x29) }`, pattern("email"), known("email_1", "email"), false},
		{"collation, text only", modern + `_id_ collation: { locale: "de" } dup key: { _id: CollationKey(0x29) }`, nil, known("_id_"), true},
		{"a blank in the name", modern + `my index dup key: { a: 1 }`, nil, known("my index"), false},
		{"_id_ and a blank in the name", modern + `_id_ old dup key: { a: 1 }`, nil, known("_id_ old"), false},
		{"dots and $ in the name", modern + `a.$b.c_1 dup key: { a: 1 }`, nil, known("a.$b.c_1"), false},
		{"a value that looks like a message", modern + `email_1 dup key: { email: "x index: _id_ dup key: y" }`, nil, known("email_1"), false},
		{"a value that looks like the old form", modern + `email_1 dup key: { email: "index: a.b.$_id_" }`, nil, known("email_1"), false},
		{"FerretDB", `E11000 duplicate key error collection: shop.users`, nil, outcome.Duplicate{}, true},
		{"Cosmos DB", `E11000 duplicate key error collection: shop.users. Failed _id or unique index constraint.`, nil, outcome.Duplicate{}, true},
		{"nothing but the value", `E11000 duplicate key error dup key: { email: " index: email_1 dup key: " }`, nil, outcome.Duplicate{}, true},
		{"no message", ``, nil, outcome.Duplicate{}, true},
		{"key pattern is no document", ``, bson.D{{Key: "keyPattern", Value: "email"}}, outcome.Duplicate{}, true},
		{"key pattern is empty", ``, bson.D{{Key: "keyPattern", Value: bson.D{}}}, outcome.Duplicate{}, true},
	}
	for _, test := range tests {
		var raw bson.Raw
		if test.raw != nil {
			raw = encode(t, test.raw)
		}
		for _, code := range []int{11000, 11001, 12582} {
			got, ok := outcome.DuplicateKey(code, test.message, raw)
			if !ok || !same(got, test.want) || got.OnID() != test.onID {
				t.Errorf("%s, code %d: got %+v, ok %v, on the _id %v; want %+v, true, %v", test.name, code, got, ok, got.OnID(), test.want, test.onID)
			}
		}
		for _, code := range []int{0, 1, 121, 16500, 110000} {
			if got, ok := outcome.DuplicateKey(code, test.message, raw); ok || !same(got, outcome.Duplicate{}) {
				t.Errorf("%s: code %d was taken for a duplicate key", test.name, code)
			}
		}
	}
	if got, ok := outcome.DuplicateKey(11000, "", bson.Raw{5, 0, 0}); !ok || got.Known {
		t.Errorf("a broken reply: got %+v, ok %v", got, ok)
	}
}

func same(a, b outcome.Duplicate) bool {
	return a.Known == b.Known && a.Index == b.Index && slices.Equal(a.Keys, b.Keys)
}

func encode(t testing.TB, document any) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// The driver passes on what the server says.
func TestDuplicateKeyThroughTheDriver(t *testing.T) {
	forms := []struct {
		style     mongosim.DuplicateStyle
		onID, own outcome.Duplicate
	}{
		{mongosim.DuplicateModern, outcome.Duplicate{Known: true, Index: "_id_", Keys: []string{"_id"}},
			outcome.Duplicate{Known: true, Index: "my. index", Keys: []string{"a", "b.c"}}},
		{mongosim.DuplicateText, outcome.Duplicate{Known: true, Index: "_id_"}, outcome.Duplicate{Known: true, Index: "my. index"}},
		{mongosim.DuplicateBare, outcome.Duplicate{}, outcome.Duplicate{}},
	}
	for _, form := range forms {
		sim, err := mongosim.Start(mongosim.Config{InProcess: true, Duplicates: form.style})
		if err != nil {
			t.Fatal(err)
		}
		r := connect(t, sim, faultwire.ForTest(t, faultwire.Over(sim.Dialer())))
		ctx := within(t, time.Minute)
		if _, err := r.coll.Indexes().CreateOne(ctx, mongo.IndexModel{
			Keys:    bson.D{{Key: "a", Value: 1}, {Key: "b.c", Value: 1}},
			Options: options.Index().SetUnique(true).SetName("my. index"),
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: "secret"}}); err != nil {
			t.Fatal(err)
		}
		_, err = r.coll.InsertMany(ctx, []any{
			bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: "x"}},
			bson.D{{Key: "_id", Value: 2}, {Key: "a", Value: "secret"}},
		}, options.InsertMany().SetOrdered(false))
		var refused mongo.BulkWriteException
		if !errors.As(err, &refused) || len(refused.WriteErrors) != 2 {
			t.Fatalf("style %v: %v", form.style, err)
		}
		for i, want := range []outcome.Duplicate{form.onID, form.own} {
			e := refused.WriteErrors[i]
			if got, ok := outcome.DuplicateKey(e.Code, e.Message, e.Raw); !ok || !same(got, want) {
				t.Errorf("style %v, %q: got %+v, ok %v, want %+v", form.style, e.Message, got, ok, want)
			}
		}
	}
}
