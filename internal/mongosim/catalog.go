package mongosim

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

const createFields = "capped size max validator validationAction validationLevel viewOn pipeline collation timeseries clusteredIndex expireAfterSeconds autoIndexId"

func runCreate(op *operation) ([]byte, error) {
	s := op.server
	if s.data.collections[op.ns] != nil {
		return nil, errorf(codeNamespaceExists, "Collection %s already exists.", op.ns)
	}
	c, err := op.collectionFor()
	if err != nil {
		return nil, err
	}
	s.serial++
	copy(c.uuid[8:], newCollection("", s.serial, collation{}).uuid[8:])
	s.adopt(c)
	return nil, nil
}

// collectionFor builds the collection that create describes.
func (op *operation) collectionFor() (*collection, error) {
	c := newCollection(op.ns, 0, collation{})
	var validator bsoncore.Document
	first := true
	for it := fieldsOf(op.req.body); it.next(); {
		v := it.value
		name := string(it.name)
		if first || !slices.Contains(strings.Fields(createFields), name) {
			first = false
			continue
		}
		ok := true
		switch name {
		case "capped":
			c.capped = truthy(v)
		case "size":
			c.maxBytes, ok = wholeNumber(v)
		case "max":
			c.maxRecords, ok = wholeNumber(v)
		case "validator":
			if ok = v.Type == bsoncore.TypeEmbeddedDocument; ok {
				validator = v.Data
			}
		case "validationAction":
			ok = v.Type == bsoncore.TypeString && slices.Contains([]string{"error", "warn"}, v.StringValue())
			c.validateWarn = ok && v.StringValue() == "warn"
		case "validationLevel":
			ok = v.Type == bsoncore.TypeString && slices.Contains([]string{"off", "strict"}, v.StringValue())
			c.validateNothing = ok && v.StringValue() == "off"
		case "viewOn":
			if ok = v.Type == bsoncore.TypeString; ok {
				c.viewOn = op.db + "." + v.StringValue()
			}
		case "pipeline":
			if ok = v.Type == bsoncore.TypeArray; ok && len(v.Data) > 5 {
				return nil, notSimulated("views with a pipeline")
			}
		case "collation":
			coll, err := parseCollation(v)
			if err != nil {
				return nil, err
			}
			c.coll = coll
			c.indexes[0].coll = coll
		case "timeseries":
			c.series = true
		default:
			return nil, notSimulated("the create option %s", name)
		}
		if !ok {
			return nil, wrongType("create", name, v, "another")
		}
		c.options = append(c.options, it.raw...)
	}
	switch {
	case c.capped && c.maxBytes <= 0:
		return nil, errorf(codeInvalidOptions, "the 'size' field is required when 'capped' is true")
	case !c.capped && (c.maxBytes != 0 || c.maxRecords != 0):
		return nil, errorf(codeInvalidOptions, "the 'capped' field needs to be true when either the 'size' or 'max' fields are present")
	case c.viewOn != "" && (c.capped || validator != nil || c.series):
		return nil, errorf(codeInvalidOptions, "a view cannot have options of a collection")
	}
	// Sizes are rounded up to 256 bytes, and 4096 at least (manual, "Capped Collections").
	c.maxBytes = max(4096, (c.maxBytes+255)/256*256)
	if validator != nil {
		f, err := compileFilter(validator, c.coll)
		if err != nil {
			return nil, err
		}
		c.validator = f
	}
	return c, nil
}

// parseCollation knows the simple collation and case-insensitive comparison (strength 2), with case folded letter by
// letter whatever the locale.
func parseCollation(v bsoncore.Value) (collation, error) {
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return collation{}, wrongType("collation", "collation", v, "object")
	}
	locale, strength := "", int64(3)
	for it := fieldsOf(v.Data); it.next(); {
		ok := true
		switch string(it.name) {
		case "locale":
			if ok = it.value.Type == bsoncore.TypeString; ok {
				locale = it.value.StringValue()
			}
		case "strength":
			strength, ok = wholeNumber(it.value)
		default:
			return collation{}, notSimulated("the collation option %q", it.name)
		}
		if !ok {
			return collation{}, wrongType("collation", string(it.name), it.value, "another")
		}
	}
	switch {
	case locale == "":
		return collation{}, errorf(codeMissingField, "BSON field 'collation.locale' is missing but a required field")
	case locale == "simple":
		return collation{}, nil
	case strength == 2:
		return collation{fold: true}, nil
	}
	return collation{}, notSimulated("collations other than simple and strength 2")
}

func runDrop(op *operation) ([]byte, error) {
	c := op.server.data.collections[op.ns]
	if c == nil {
		if op.server.config.MaxWireVersion >= 21 {
			return nil, nil // since 7.0 dropping what is not there succeeds
		}
		return nil, errorf(codeNamespaceNotFound, "ns not found")
	}
	n := len(c.indexes)
	delete(op.server.data.collections, op.ns)
	op.applied(WriteDrop, op.ns, 0, nil, nil)
	out := bsoncore.AppendInt32Element(nil, "nIndexesWas", int32(n))
	return bsoncore.AppendStringElement(out, "ns", op.ns), nil
}

func runDropDatabase(op *operation) ([]byte, error) {
	for _, ns := range op.server.namespaces(op.db) {
		delete(op.server.data.collections, ns)
		op.applied(WriteDrop, ns, 0, nil, nil)
	}
	return bsoncore.AppendStringElement(nil, "dropped", op.db), nil
}

// namespaces are a database's collections in order.
func (s *Server) namespaces(db string) []string {
	var out []string
	for ns := range s.data.collections {
		if d, _ := splitNamespace(ns); d == db {
			out = append(out, ns)
		}
	}
	slices.Sort(out)
	return out
}

func runListCollections(op *operation) ([]byte, error) {
	q, err := op.subdocument("filter")
	if err != nil {
		return nil, err
	}
	f, err := compileFilter(q, collation{})
	if err != nil {
		return nil, err
	}
	nameOnly, err := op.flag("nameOnly", false)
	if err != nil {
		return nil, err
	}
	cur := &cursor{ns: op.db + ".$cmd.listCollections", lsid: op.lsid, member: op.member, left: noLimit}
	for _, ns := range op.server.namespaces(op.db) {
		doc := op.server.data.collections[ns].describe()
		if !f.match(doc) {
			continue
		}
		if nameOnly {
			doc = project(doc, [][]string{{"name"}, {"type"}}, true)
		}
		cur.results = append(cur.results, doc)
	}
	return op.firstBatch(cur, op.batchSize(), false)
}

// batchSize is cursor.batchSize of the commands that list things.
func (op *operation) batchSize() int {
	if doc, err := op.subdocument("cursor"); err == nil {
		if v, ok := lookup(doc, "batchSize"); ok {
			if n, whole := wholeNumber(v); whole && n >= 0 {
				return int(n)
			}
		}
	}
	return firstBatch
}

func (c *collection) describe() []byte {
	_, name := splitNamespace(c.ns)
	kind := "collection"
	switch {
	case c.viewOn != "":
		kind = "view"
	case c.series:
		kind = "timeseries"
	}
	out := bsoncore.AppendStringElement(nil, "name", name)
	out = bsoncore.AppendStringElement(out, "type", kind)
	out = bsoncore.BuildDocumentElement(out, "options", c.options)
	info := bsoncore.AppendBooleanElement(nil, "readOnly", c.viewOn != "")
	if c.viewOn == "" {
		info = bsoncore.AppendBinaryElement(info, "uuid", 4, c.uuid[:])
	}
	out = bsoncore.BuildDocumentElement(out, "info", info)
	if c.viewOn == "" && !c.series {
		out = bsoncore.AppendDocumentElement(out, "idIndex", c.indexes[0].describe())
	}
	return bsoncore.BuildDocument(nil, out)
}
