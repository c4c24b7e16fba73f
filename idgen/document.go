package idgen

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// part is one of the things that tell counter documents apart. Its zero value is absent.
type part struct {
	role  string // "key", "scope", "period" or "stripe"; the field's name inside an _id
	value bson.RawValue
}

// newPart returns an absent part for nil.
func newPart(role string, value any) (part, error) {
	if value == nil && role == "key" {
		return part{}, nil
	}
	raw, err := keyValue(value)
	if err != nil {
		return part{}, &Error{Reason: Misused, Problem: fmt.Sprintf("the %s %v", role, err)}
	}
	return part{role: role, value: raw}, nil
}

// newKeyIndex checks the names and returns the unique index that keeps counter documents from doubling.
func newKeyIndex(coll *mongo.Collection, f Fields) (*uniqueIndex, error) {
	if coll == nil {
		return nil, misused("", "the collection is nil")
	}
	value := valueField(f)
	named := []string{value}
	for _, field := range []string{f.Key, f.Scope, f.Period} {
		if field != "" {
			named = append(named, field)
		}
	}
	for i, field := range named {
		if err := checkField(field); err != nil {
			return nil, misused(namespace(coll), "%v", err)
		}
		for _, other := range named[:i] {
			if field == other || strings.HasPrefix(field, other+".") || strings.HasPrefix(other, field+".") {
				return nil, misused(namespace(coll), "the fields %q and %q are not apart", other, field)
			}
		}
	}
	if slices.Contains(named[1:], "_id") && len(named) > 2 {
		return nil, misused(namespace(coll), "the _id is unique by itself, so that nothing besides it can tell counters apart; leave all fields empty to have them inside the _id")
	}
	fields := named[1:]
	if len(fields) == 0 {
		fields = []string{"_id"}
		if value == "_id" || strings.HasPrefix(value, "_id.") {
			return nil, misused(namespace(coll), "the value field is the _id, which is the key")
		}
	}
	return &uniqueIndex{coll: own(coll, readconcern.Majority()), fields: fields}, nil
}

// identity returns the filter that selects one counter document.
func identity(name string, f Fields, parts ...part) (filter bson.D, err error) {
	parts = slices.DeleteFunc(parts, func(p part) bool { return p.role == "" })
	if len(parts) == 0 {
		return nil, misused(name, "neither a key nor a scope tells this counter from others")
	}
	names := map[string]string{"key": f.Key, "scope": f.Scope, "period": f.Period}
	if f.Key == "" && f.Scope == "" && f.Period == "" {
		if len(parts) == 1 {
			return bson.D{{Key: "_id", Value: parts[0].value}}, nil
		}
		id := make(bson.D, len(parts))
		for i, p := range parts {
			id[i] = bson.E{Key: p.role, Value: p.value}
		}
		return bson.D{{Key: "_id", Value: id}}, nil
	}
	for _, p := range parts {
		field := names[p.role]
		if field == "" {
			return nil, misused(name, "the %s has no field of its own although others have; name it in Fields", p.role)
		}
		filter = append(filter, bson.E{Key: field, Value: p.value})
		delete(names, p.role)
	}
	for role, field := range names {
		if field != "" {
			return nil, misused(name, "field %q is named for the %s, but there is no %s", field, role, role)
		}
	}
	return filter, nil
}

// sequenceName is how messages call a counter.
func sequenceName(coll *mongo.Collection, parts ...part) string {
	if coll == nil {
		return ""
	}
	name := namespace(coll)
	for _, p := range parts {
		if p.role != "" {
			name += " " + bounded(literalOf(p.value), 80)
		}
	}
	return name
}
