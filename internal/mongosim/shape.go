package mongosim

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// order is a compiled sort.
type order []orderField

type orderField struct {
	path      []string
	direction int
}

func compileOrder(doc bsoncore.Document) (order, error) {
	var o order
	for it := fieldsOf(doc); it.next(); {
		n, ok := wholeNumber(it.value)
		if !ok {
			return nil, notSimulated("sorting by anything but 1 and -1")
		}
		if n != 1 && n != -1 {
			return nil, errorf(codeBadValue, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
		}
		name := string(it.name)
		if strings.HasPrefix(name, "$") {
			return nil, notSimulated("sorting by %s", name)
		}
		path, err := splitPath(name)
		if err != nil {
			return nil, err
		}
		o = append(o, orderField{path: path, direction: int(n)})
	}
	return o, nil
}

// key is what a document sorts by: a missing field counts as null, an array as its lowest element (highest, in
// descending order; manual, "Comparison/Sort Order").
func (o order) key(doc []byte, c collation) []byte {
	var out []byte
	for _, f := range o {
		var best []byte
		walkIndexed(doc, f.path, func(v bsoncore.Value) {
			if isMissing(v) {
				v = bsoncore.Value{Type: bsoncore.TypeNull}
			}
			k := c.order(nil, v)
			if best == nil || (string(k) < string(best)) == (f.direction > 0) {
				best = k
			}
		})
		if f.direction < 0 {
			for i := range best {
				best[i] = ^best[i]
			}
		}
		out = append(out, best...)
	}
	return out
}

// projection is a compiled projection: fields to keep or fields to leave out. A nil projection keeps everything.
type projection struct {
	include bool
	id      bool // _id is kept
	paths   [][]string
}

func compileProjection(doc bsoncore.Document) (*projection, error) {
	p := &projection{id: true}
	decided := false
	empty := true
	for it := fieldsOf(doc); it.next(); {
		name := string(it.name)
		if !isNumber(it.value) && it.value.Type != bsoncore.TypeBoolean {
			return nil, notSimulated("projections other than inclusion and exclusion")
		}
		keep := truthy(it.value)
		empty = false
		if name == "_id" {
			p.id = keep
			continue
		}
		if decided && keep != p.include {
			return nil, errorf(31254, "Cannot do exclusion on field %s in inclusion projection, or the other way round", name)
		}
		decided, p.include = true, keep
		path, err := splitPath(name)
		if err != nil {
			return nil, err
		}
		if strings.Contains(name, "$") {
			return nil, notSimulated("positional projections")
		}
		p.paths = append(p.paths, path)
	}
	if empty {
		return nil, nil
	}
	if !decided {
		p.include = p.id // {_id: 1} keeps only the _id, {_id: 0} everything else
	}
	return p, nil
}

func (p *projection) value(doc []byte) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: p.apply(doc)}
}

func (p *projection) apply(doc []byte) []byte {
	if p == nil {
		return doc
	}
	paths := p.paths
	if p.id == p.include {
		paths = append(paths[:len(paths):len(paths)], []string{"_id"})
	}
	return project(doc, paths, p.include)
}

// project keeps (or drops) the fields that paths name, through documents and arrays of documents.
func project(doc []byte, paths [][]string, include bool) []byte {
	out := make([]byte, 4, len(doc))
	for it := fieldsOf(doc); it.next(); {
		whole := false
		var inner [][]string
		for _, path := range paths {
			if path[0] != string(it.name) {
				continue
			}
			if len(path) == 1 {
				whole = true
			} else {
				inner = append(inner, path[1:])
			}
		}
		switch {
		case whole && include:
			out = append(out, it.raw...)
		case whole:
		case inner != nil:
			if v, ok := projectValue(it.value, inner, include); ok {
				out = bsoncore.AppendValueElement(out, string(it.name), v)
			}
		case !include:
			out = append(out, it.raw...)
		}
	}
	out = append(out, 0)
	return bsoncore.UpdateLength(out, 0, int32(len(out)))
}

func projectValue(v bsoncore.Value, paths [][]string, include bool) (bsoncore.Value, bool) {
	switch v.Type {
	case bsoncore.TypeEmbeddedDocument:
		return bsoncore.Value{Type: v.Type, Data: project(v.Data, paths, include)}, true
	case bsoncore.TypeArray:
		var values []bsoncore.Value
		for it := fieldsOf(v.Data); it.next(); {
			if e, ok := projectValue(it.value, paths, include); ok {
				values = append(values, e)
			}
		}
		return bsoncore.Value{Type: v.Type, Data: bsoncore.BuildArray(nil, values...)}, true
	}
	return v, !include
}
