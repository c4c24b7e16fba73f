package mongosim

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func runListIndexes(op *operation) ([]byte, error) {
	c := op.collection()
	switch {
	case c == nil:
		return nil, errorf(codeNamespaceNotFound, "ns does not exist: %s", op.ns)
	case c.viewOn != "":
		return nil, errorf(codeCommandNotSupportedOnView, "Namespace %s is a view, not a collection", op.ns)
	}
	cur := &cursor{ns: op.ns, lsid: op.lsid, member: op.member, left: noLimit}
	for _, x := range c.indexes {
		cur.results = append(cur.results, x.describe())
	}
	return op.firstBatch(cur, op.batchSize(), false)
}

func (x *index) describe() []byte {
	out := bsoncore.AppendInt32Element(nil, "v", 2)
	out = bsoncore.AppendDocumentElement(out, "key", x.keyPattern())
	out = bsoncore.AppendStringElement(out, "name", x.name)
	return bsoncore.BuildDocument(nil, append(out, x.spec...))
}

func runCreateIndexes(op *operation) ([]byte, error) {
	specs, err := op.list("indexes")
	if err != nil {
		return nil, err
	}
	if len(specs) == 0 {
		return nil, errorf(codeBadValue, "Must specify at least one index to create")
	}
	existed := op.server.data.collections[op.ns] != nil
	c, err := op.ensure()
	if err != nil {
		return nil, err
	}
	before := len(c.indexes)
	var fresh []*index
	for _, spec := range specs {
		x, err := parseIndex(spec, c.coll)
		if err != nil {
			return nil, err
		}
		if c.shardKey != nil && x.unique && !x.covers(c.shardKey) {
			return nil, errorf(codeCannotCreateIndex, "cannot create unique index over %s with shard key pattern", x.name)
		}
		same, err := c.conflict(x)
		if err != nil {
			return nil, err
		}
		if same {
			continue
		}
		var failed error
		c.records.ascend(bound[int64]{}, bound[int64]{}, func(id int64, doc []byte) bool {
			failed = x.build(doc, id)
			return failed == nil
		})
		if failed != nil {
			return nil, op.explain(failed)
		}
		fresh = append(fresh, x)
	}
	c.indexes = append(c.indexes, fresh...)
	out := bsoncore.AppendInt32Element(nil, "numIndexesBefore", int32(before))
	out = bsoncore.AppendInt32Element(out, "numIndexesAfter", int32(len(c.indexes)))
	out = bsoncore.AppendBooleanElement(out, "createdCollectionAutomatically", !existed)
	if len(fresh) == 0 {
		out = bsoncore.AppendStringElement(out, "note", "all indexes already exist")
	}
	return out, nil
}

func (x *index) build(doc []byte, id int64) error {
	keys, err := x.keys(doc)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if _, taken := x.entries.get(k); taken && x.unique {
			return &duplicate{index: x, doc: doc, key: k}
		}
		x.put(k, id)
	}
	return nil
}

// conflict says whether the same index exists already; one with the same name and other keys, or the same keys and
// another name or options, is an error (85, 86).
func (c *collection) conflict(x *index) (same bool, err error) {
	for _, y := range c.indexes {
		keys := string(x.keyPattern()) == string(y.keyPattern())
		switch {
		case keys && y.name == "_id_":
			return true, nil
		case keys && y.name == x.name && string(x.spec) == string(y.spec):
			return true, nil
		case y.name == x.name:
			return false, errorf(codeIndexKeySpecsConflict, "An existing index has the same name as the requested index: %.100s", x.name)
		case keys && string(x.spec) == string(y.spec):
			return false, errorf(codeIndexOptionsConflict, "Index already exists with a different name: %.100s", y.name)
		}
	}
	return false, nil
}

func parseIndex(spec bsoncore.Document, coll collation) (*index, error) {
	x := &index{coll: coll}
	for it := fieldsOf(spec); it.next(); {
		v := it.value
		switch name := string(it.name); name {
		case "key":
			if v.Type != bsoncore.TypeEmbeddedDocument {
				return nil, wrongType("createIndexes.indexes", "key", v, "object")
			}
			if err := x.parseKeys(v.Data); err != nil {
				return nil, err
			}
		case "name":
			if v.Type != bsoncore.TypeString || v.StringValue() == "" {
				return nil, errorf(codeTypeMismatch, "The field 'name' for an index must be a non-empty string")
			}
			x.name = v.StringValue()
		case "unique", "sparse":
			if name == "unique" {
				x.unique = truthy(v)
			} else {
				x.sparse = truthy(v)
			}
			if truthy(v) {
				x.spec = append(x.spec, it.raw...)
			}
		case "partialFilterExpression":
			if v.Type != bsoncore.TypeEmbeddedDocument {
				return nil, wrongType("createIndexes.indexes", name, v, "object")
			}
			f, err := compileFilter(v.Data, coll)
			if err != nil {
				return nil, err
			}
			x.partial = f
			x.spec = append(x.spec, it.raw...)
		case "expireAfterSeconds":
			// Nothing expires while a test runs; the option is kept for listIndexes.
			x.spec = append(x.spec, it.raw...)
		case "v", "background", "ns":
		case "collation":
			given, err := parseCollation(v)
			if err != nil {
				return nil, err
			}
			x.coll = given
			x.spec = append(x.spec, it.raw...)
		default:
			return nil, notSimulated("the index option %s", name)
		}
	}
	if x.fields == nil || x.name == "" {
		return nil, errorf(codeFailedToParse, "an index needs a key and a name")
	}
	if x.sparse && x.partial != nil {
		return nil, errorf(codeCannotCreateIndex, "cannot mix \"partialFilterExpression\" and \"sparse\" options")
	}
	return x, nil
}

func (x *index) parseKeys(doc bsoncore.Document) error {
	for it := fieldsOf(doc); it.next(); {
		n, ok := wholeNumber(it.value)
		if !ok {
			return notSimulated("indexes other than ascending and descending")
		}
		name := string(it.name)
		path, err := splitPath(name)
		switch {
		case err != nil || strings.HasPrefix(name, "$"):
			return errorf(codeCannotCreateIndex, "Index keys cannot be empty and cannot begin with $")
		case n == 0:
			return errorf(codeCannotCreateIndex, "Values in the index key pattern cannot be 0.")
		case n > 0:
			n = 1
		default:
			n = -1
		}
		x.fields = append(x.fields, indexField{name: name, path: path, direction: int(n)})
	}
	if x.fields == nil {
		return errorf(codeCannotCreateIndex, "Index keys cannot be empty.")
	}
	return nil
}

func runDropIndexes(op *operation) ([]byte, error) {
	c, err := op.target()
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, errorf(codeNamespaceNotFound, "ns not found %s", op.ns)
	}
	before := len(c.indexes)
	v, _ := op.argument("index")
	var drop func(*index) bool
	switch v.Type {
	case bsoncore.TypeString:
		name := v.StringValue()
		if name == "_id_" {
			return nil, errorf(codeInvalidOptions, "cannot drop _id index")
		}
		drop = func(x *index) bool { return name == "*" || x.name == name }
		if name != "*" && c.indexNamed(name) == nil {
			return nil, errorf(codeIndexNotFound, "index not found with name [%.100s]", name)
		}
	case bsoncore.TypeEmbeddedDocument:
		drop = func(x *index) bool { return string(x.keyPattern()) == string(normalKeys(v.Data)) }
		if !slices.ContainsFunc(c.indexes, drop) {
			return nil, errorf(codeIndexNotFound, "can't find index with key")
		}
	default:
		return nil, notSimulated("dropIndexes by a list of names")
	}
	c.indexes = append(c.indexes[:1:1], slices.DeleteFunc(slices.Clone(c.indexes[1:]), drop)...)
	return bsoncore.AppendInt32Element(nil, "nIndexesWas", int32(before)), nil
}

func normalKeys(doc bsoncore.Document) []byte {
	var x index
	if err := x.parseKeys(doc); err != nil {
		return nil
	}
	return x.keyPattern()
}
