package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Transform makes of one document of the source those that are stored: one as a rule, or none, or several. An error
// refuses the document, and with it the whole copy, and need not name it. The source is the transform's to keep, not to
// change.
//
// It is called once for each document, in the order of _id, and never twice at a time, so that it may remember what it has
// seen. When a copy is run again, it begins anew: make a new Transform for each run.
type Transform func(ctx context.Context, source bson.Raw) ([]Out, error)

// Out is a document to be stored.
type Out struct {
	To       int // which of the copy's targets, see Copy.To
	Document any // whatever the driver encodes to a document; one without _id gets a new one
}

// reshape is the transform of the command line. Fields are those at the top of a document. A document in which nothing
// has to change stays as it is, byte for byte.
type reshape struct {
	rename map[string]string
	drop   []string
	number []string // paths of fields that get a number: what stands there makes room
}

func (r reshape) transform(_ context.Context, source bson.Raw) ([]Out, error) {
	document, err := r.fields(source)
	if err != nil {
		return nil, err
	}
	for _, path := range r.number {
		if document, err = blank(document, strings.Split(path, ".")); err != nil {
			return nil, err
		}
	}
	return []Out{{Document: document}}, nil
}

// fields drops and renames.
func (r reshape) fields(source bson.Raw) (bson.Raw, error) {
	elements, err := source.Elements()
	if err != nil {
		return nil, err
	}
	document := make(bson.D, 0, len(elements))
	var names, changed []string // all that are left, and the new ones among them
	for _, e := range elements {
		name := e.Key()
		if slices.Contains(r.drop, name) {
			continue
		}
		if to, ok := r.rename[name]; ok {
			name = to
			changed = append(changed, to)
		}
		names = append(names, name)
		document = append(document, bson.E{Key: name, Value: e.Value()})
	}
	if len(changed) == 0 && len(document) == len(elements) {
		return source, nil
	}
	slices.Sort(names)
	for _, name := range changed {
		if i, _ := slices.BinarySearch(names, name); i+1 < len(names) && names[i+1] == name {
			return nil, fmt.Errorf("after renaming it would have two fields named %q", name)
		}
	}
	return bson.Marshal(document)
}

// blank puts null in the place of what stands at a path, because a batch numbers no field that holds something.
func blank(document bson.Raw, path []string) (bson.Raw, error) {
	if _, err := document.LookupErr(path...); err != nil {
		return document, nil // nothing is there
	}
	elements, err := document.Elements()
	if err != nil {
		return nil, err
	}
	changed := make(bson.D, len(elements))
	for i, e := range elements {
		changed[i] = bson.E{Key: e.Key(), Value: e.Value()}
		if e.Key() != path[0] {
			continue
		}
		if len(path) == 1 {
			changed[i].Value = nil
		} else if inner, ok := e.Value().DocumentOK(); ok {
			if changed[i].Value, err = blank(inner, path[1:]); err != nil {
				return nil, err
			}
		}
	}
	return bson.Marshal(changed)
}
