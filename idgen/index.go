package idgen

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/outcome"
)

// uniqueIndex is the unique index that a sequence relies on.
type uniqueIndex struct {
	coll   *mongo.Collection
	fields []string                 // exactly these, in any order and direction
	names  atomic.Pointer[[]string] // of the indexes found; nil before the first success
}

// indexDocument is what listIndexes says of an index, as far as uniqueness is concerned. The driver's own
// IndexSpecification leaves out the partial filter.
type indexDocument struct {
	Name    string   `bson:"name"`
	Key     bson.D   `bson:"key"`
	Unique  bool     `bson:"unique"`
	Partial bson.Raw `bson:"partialFilterExpression"`
}

// check makes sure that the index exists. It asks the server until it does, and never again.
//
// A sparse index is as good as any: it leaves out only documents that have none of its fields, and those hold no
// number. A hidden one, too: servers hide it from queries only.
func (u *uniqueIndex) check(ctx context.Context, sequence string) error {
	if u.names.Load() != nil {
		return nil
	}
	if slices.Equal(u.fields, []string{"_id"}) {
		u.names.Store(&[]string{"_id_"}) // always there; some servers do not list it
		return nil
	}
	cursor, err := u.coll.Indexes().List(ctx)
	if err != nil {
		return err
	}
	var indexes []indexDocument
	if err := cursor.All(ctx, &indexes); err != nil {
		return err
	}
	var names []string
	var near string // why an index that looks right is not
	for _, index := range indexes {
		switch {
		case !u.covers(index.Key):
		case !index.Unique:
			near = fmt.Sprintf("index %q is not unique", index.Name)
		case len(index.Partial) > 0:
			near = fmt.Sprintf("index %q is partial: documents outside its filter can hold the same number twice", index.Name)
		default:
			names = append(names, index.Name)
		}
	}
	if len(names) == 0 {
		problem := "there is no unique index on exactly " + strings.Join(u.fields, ", ")
		if near != "" {
			problem += " (" + near + ")"
		}
		return &Error{
			Reason:   NoIndex,
			Sequence: sequence,
			Problem:  problem,
			Repair:   "create it with " + u.command() + " (if that fails, there are duplicates already)",
		}
	}
	u.names.Store(&names)
	return nil
}

// covers reports whether an index is on exactly the fields.
func (u *uniqueIndex) covers(key bson.D) bool {
	if len(key) != len(u.fields) {
		return false
	}
	for _, e := range key {
		if !ascendingOrDescending(e.Value) || !slices.Contains(u.fields, e.Key) {
			return false
		}
	}
	return true
}

// ascendingOrDescending is false for the kinds of index that are named by a text ("hashed", "2dsphere").
func ascendingOrDescending(v any) bool {
	switch v.(type) {
	case int32, int64, float64:
		return true
	}
	return false
}

// is reports whether a duplicate-key error is about this index. It is known only if the server said so.
func (u *uniqueIndex) is(d outcome.Duplicate) (is, known bool) {
	if !d.Known {
		return false, false
	}
	if d.Index != "" {
		if names := u.names.Load(); names != nil {
			return slices.Contains(*names, d.Index), true
		}
	}
	if len(d.Keys) != len(u.fields) {
		return false, len(d.Keys) > 0
	}
	for _, key := range d.Keys {
		if !slices.Contains(u.fields, key) {
			return false, true
		}
	}
	return true, true
}

// command is what creates the index in mongosh.
func (u *uniqueIndex) command() string {
	keys := make([]string, len(u.fields))
	for i, field := range u.fields {
		keys[i] = fmt.Sprintf("%q: 1", field)
	}
	return fmt.Sprintf("db.getCollection(%q).createIndex({%s}, {unique: true})", u.coll.Name(), strings.Join(keys, ", "))
}
