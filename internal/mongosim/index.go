package mongosim

import (
	"encoding/binary"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// index maps order bytes to record numbers. In a unique index the key is the values alone, otherwise the record number
// follows them.
type index struct {
	name    string
	fields  []indexField
	unique  bool
	sparse  bool
	partial *filter
	spec    []byte // further elements as given: listIndexes returns them
	coll    collation
	entries tree[string, int64]
}

type indexField struct {
	name      string
	path      []string
	direction int
}

type indexKeys []string

func (x *index) put(key string, id int64) {
	if !x.unique {
		key += string(binary.BigEndian.AppendUint64(nil, uint64(id)))
	}
	x.entries.set(key, id)
}

func (x *index) remove(key string, id int64) {
	if !x.unique {
		key += string(binary.BigEndian.AppendUint64(nil, uint64(id)))
	}
	x.entries.delete(key)
}

// lookup is the records whose key is exactly this one.
func (x *index) lookup(key string) []int64 {
	if x.unique {
		if id, ok := x.entries.get(key); ok {
			return []int64{id}
		}
		return nil
	}
	var ids []int64
	x.entries.ascend(bound[string]{key: key, set: true}, after([]byte(key)), func(_ string, id int64) bool {
		ids = append(ids, id)
		return true
	})
	return ids
}

// keys are a document's entries: one for most documents, one for each element of an array (multikey), none where the
// index is sparse or partial and leaves the document out. A missing field is indexed as null, an empty array as
// undefined; two arrays side by side are refused (manual, "Multikey Indexes"; BtreeKeyGenerator).
func (x *index) keys(doc []byte) (indexKeys, error) {
	if len(x.fields) == 1 && x.fields[0].name == "_id" {
		return indexKeys{string(x.coll.order(nil, idOf(doc)))}, nil
	}
	if x.partial != nil && !x.partial.match(doc) {
		return nil, nil
	}
	keys := indexKeys{""}
	multi := ""
	found := false
	for _, f := range x.fields {
		var values []string
		any := false
		walkIndexed(doc, f.path, func(v bsoncore.Value) {
			any = any || !isMissing(v)
			if isMissing(v) {
				v = bsoncore.Value{Type: bsoncore.TypeNull}
			}
			k := x.coll.order(nil, v)
			if f.direction < 0 {
				for i := range k {
					k[i] = ^k[i]
				}
			}
			if s := string(k); !slices.Contains(values, s) {
				values = append(values, s)
			}
		})
		found = found || any
		if len(values) > 1 {
			if multi != "" {
				return nil, errorf(codeCannotIndexParallelArrays, "cannot index parallel arrays [%s] [%s]", f.name, multi)
			}
			multi = f.name
		}
		product := make(indexKeys, 0, len(keys)*len(values))
		for _, k := range keys {
			for _, v := range values {
				product = append(product, k+v)
			}
		}
		keys = product
	}
	if x.sparse && !found {
		return nil, nil
	}
	return keys, nil
}

// walkIndexed yields what an index stores for a path: array elements instead of the array, undefined for an empty one.
func walkIndexed(doc []byte, path []string, f func(bsoncore.Value)) {
	v, ok := lookup(doc, path[0])
	if !ok {
		f(missing)
		return
	}
	indexValue(v, path[1:], f)
}

func indexValue(v bsoncore.Value, rest []string, f func(bsoncore.Value)) {
	if v.Type == bsoncore.TypeArray {
		if len(rest) > 0 && isPosition(rest[0]) {
			if e, ok := lookup(v.Data, rest[0]); ok {
				indexValue(e, rest[1:], f)
				return
			}
		}
		n := 0
		for it := fieldsOf(v.Data); it.next(); n++ {
			switch {
			case len(rest) == 0:
				f(it.value)
			case it.value.Type == bsoncore.TypeEmbeddedDocument:
				walkIndexed(it.value.Data, rest, f)
			default:
				f(missing)
			}
		}
		if n == 0 {
			if len(rest) == 0 {
				f(bsoncore.Value{Type: bsoncore.TypeUndefined})
			} else {
				f(missing)
			}
		}
		return
	}
	switch {
	case len(rest) == 0:
		f(v)
	case v.Type == bsoncore.TypeEmbeddedDocument:
		walkIndexed(v.Data, rest, f)
	default:
		f(missing)
	}
}

// keyPattern is the index's {field: direction} document.
func (x *index) keyPattern() []byte {
	var elements []byte
	for _, f := range x.fields {
		elements = bsoncore.AppendInt32Element(elements, f.name, int32(f.direction))
	}
	return bsoncore.BuildDocument(nil, elements)
}

// duplicate is a violation of a unique index, before it is put into one of the forms of E11000.
type duplicate struct {
	index *index
	doc   []byte
	key   string
}

func (d *duplicate) Error() string { return "duplicate key in " + d.index.name }

// DuplicateStyle is how a server reports E11000.
type DuplicateStyle int

const (
	// DuplicateModern is MongoDB since 4.4: keyPattern and keyValue beside the text.
	DuplicateModern DuplicateStyle = iota
	// DuplicateText is MongoDB before: the text alone names the index and the key.
	DuplicateText
	// DuplicateBare is FerretDB and others: the text names nothing.
	DuplicateBare
)

// report puts the violation into words.
func (d *duplicate) report(ns string, style DuplicateStyle) *Error {
	if style == DuplicateBare {
		return errorf(codeDuplicateKey, "E11000 duplicate key error collection: %s", ns)
	}
	var texts []string
	var values []byte
	for _, f := range d.index.fields {
		v := missing
		// The value that clashed: with an array in the index, the element whose key it is.
		walkIndexed(d.doc, f.path, func(e bsoncore.Value) {
			if isMissing(e) {
				e = bsoncore.Value{Type: bsoncore.TypeNull}
			}
			if isMissing(v) || strings.Contains(d.key, string(d.index.coll.order(nil, e))) && f.direction > 0 {
				v = e
			}
		})
		texts = append(texts, f.name+": "+shell(v))
		values = bsoncore.AppendValueElement(values, f.name, v)
	}
	e := errorf(codeDuplicateKey, "E11000 duplicate key error collection: %s index: %s dup key: { %s }", ns, d.index.name, strings.Join(texts, ", "))
	if style == DuplicateText {
		// Before 4.2 the key's values stood in the text without the names of their fields.
		for i := range texts {
			_, v, _ := strings.Cut(texts[i], ": ")
			texts[i] = ": " + v
		}
		e.Message = "E11000 duplicate key error collection: " + ns + " index: " + d.index.name + " dup key: { " + strings.Join(texts, ", ") + " }"
		return e
	}
	e.fields = bsoncore.AppendDocumentElement(nil, "keyPattern", d.index.keyPattern())
	e.fields = bsoncore.AppendDocumentElement(e.fields, "keyValue", bsoncore.BuildDocument(nil, values))
	return e
}
