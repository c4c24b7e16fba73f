package mongosim

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// runCount counts documents. Without a query it may answer from metadata, as the driver's EstimatedDocumentCount expects.
func runCount(op *operation) ([]byte, error) {
	if _, ok := op.argument("hint"); ok {
		return nil, notSimulated("hint in count")
	}
	q, err := op.subdocument("query")
	if err != nil {
		return nil, err
	}
	limit, err := op.integer("limit", 0)
	if err != nil {
		return nil, err
	}
	skip, err := op.integer("skip", 0)
	if err != nil {
		return nil, err
	}
	c := op.collection()
	f, err := op.filter(c, q, nil)
	if err != nil {
		return nil, err
	}
	if _, ok := op.argument("collation"); ok {
		return nil, notSimulated("collation in count")
	}
	n := int64(0)
	switch {
	case c == nil:
	case c.viewOn != "":
		return nil, notSimulated("count on views")
	case f.op == "$and" && len(f.kids) == 0:
		n = c.count()
	default:
		newScan(c, f).run(c, func(int64, []byte) bool { n++; return true })
	}
	n = max(0, n-skip)
	if limit < 0 {
		limit = -limit
	}
	if limit > 0 {
		n = min(n, limit)
	}
	return bsoncore.AppendInt32Element(nil, "n", int32(n)), nil
}

func runDistinct(op *operation) ([]byte, error) {
	key, ok := op.argument("key")
	if !ok || key.Type != bsoncore.TypeString {
		return nil, errorf(codeMissingField, "BSON field 'distinct.key' is missing but a required field")
	}
	path, err := splitPath(key.StringValue())
	if err != nil {
		return nil, err
	}
	q, err := op.subdocument("query")
	if err != nil {
		return nil, err
	}
	c := op.collection()
	f, err := op.filter(c, q, nil)
	if err != nil {
		return nil, err
	}
	if _, ok := op.argument("collation"); ok || c != nil && c.viewOn != "" {
		return nil, notSimulated("distinct with a collation or on a view")
	}
	seen := map[string]bool{}
	var values []bsoncore.Value
	if c != nil {
		newScan(c, f).run(c, func(_ int64, doc []byte) bool {
			walkIndexed(doc, path, func(v bsoncore.Value) {
				if isMissing(v) || v.Type == bsoncore.TypeUndefined {
					return
				}
				if k := string(c.coll.order(nil, v)); !seen[k] {
					seen[k] = true
					values = append(values, v)
				}
			})
			return true
		})
	}
	return bsoncore.BuildArrayElement(nil, "values", values...), nil
}

// runAggregate knows the stages $match, $sort, $skip, $limit, $project (inclusion and exclusion), $count and the one
// form of $group that counts: {_id: <constant or "$field">, n: {$sum: 1}}.
func runAggregate(op *operation) ([]byte, error) {
	own, _ := op.argument("aggregate")
	if own.Type != bsoncore.TypeString {
		return nil, notSimulated("aggregations of a whole database")
	}
	op.ns = op.db + "." + own.StringValue()
	if err := checkNamespace(op.db, own.StringValue(), false); err != nil {
		return nil, err
	}
	for _, name := range []string{"hint", "let", "collation"} {
		if _, ok := op.argument(name); ok {
			return nil, notSimulated("%s in aggregate", name)
		}
	}
	cursorDoc, err := op.subdocument("cursor")
	if err != nil {
		return nil, err
	}
	size := int64(firstBatch)
	if v, ok := lookup(cursorDoc, "batchSize"); ok {
		if size, ok = wholeNumber(v); !ok || size < 0 {
			return nil, wrongType("aggregate.cursor", "batchSize", v, "long")
		}
	}
	stages, err := op.list("pipeline")
	if err != nil {
		return nil, err
	}
	cur := &cursor{ns: op.ns, lsid: op.lsid, read: op.read, member: op.member, left: noLimit}
	q := bsoncore.Document(emptyDocument)
	if len(stages) > 0 {
		if m, ok := lookup(stages[0], "$match"); ok && m.Type == bsoncore.TypeEmbeddedDocument {
			q, stages = m.Data, stages[1:] // the first $match can use an index
		}
	}
	if err := op.open(cur, q, nil, nil); err != nil {
		return nil, err
	}
	if len(stages) == 0 {
		return op.firstBatch(cur, int(size), false)
	}
	var docs [][]byte
	var coll collation
	if cur.scan != nil {
		c := op.data().collections[cur.base]
		coll = c.coll
		cur.scan.run(c, func(_ int64, doc []byte) bool { docs = append(docs, doc); return true })
		cur.scan = nil
	}
	for _, stage := range stages {
		if docs, err = runStage(stage, docs, coll); err != nil {
			return nil, err
		}
	}
	cur.results = docs
	return op.firstBatch(cur, int(size), false)
}

func runStage(stage bsoncore.Document, docs [][]byte, coll collation) ([][]byte, error) {
	it := fieldsOf(stage)
	if !it.next() {
		return nil, errorf(40323, "A pipeline stage specification object must contain exactly one field.")
	}
	name, v := string(it.name), it.value
	if it.next() {
		return nil, errorf(40323, "A pipeline stage specification object must contain exactly one field.")
	}
	switch name {
	case "$skip", "$limit":
		n, ok := wholeNumber(v)
		if !ok || n < 0 || n == 0 && name == "$limit" {
			return nil, errorf(15957, "the argument of %s must be a positive number", name)
		}
		n = min(n, int64(len(docs)))
		if name == "$skip" {
			return docs[n:], nil
		}
		return docs[:n], nil
	case "$count":
		if v.Type != bsoncore.TypeString {
			return nil, errorf(40156, "the count field must be a non-empty string")
		}
		if len(docs) == 0 {
			return nil, nil
		}
		return [][]byte{bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, v.StringValue(), int32(len(docs))))}, nil
	}
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return nil, errorf(codeFailedToParse, "the argument of %.100s must be an object", name)
	}
	switch name {
	case "$match":
		f, err := compileFilter(v.Data, coll)
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(slices.Clone(docs), func(d []byte) bool { return !f.match(d) }), nil
	case "$sort":
		o, err := compileOrder(v.Data)
		if err != nil {
			return nil, err
		}
		out := slices.Clone(docs)
		slices.SortStableFunc(out, func(a, b []byte) int { return slices.Compare(o.key(a, coll), o.key(b, coll)) })
		return out, nil
	case "$project":
		p, err := compileProjection(v.Data)
		if err != nil {
			return nil, err
		}
		out := make([][]byte, len(docs))
		for i, d := range docs {
			out[i] = p.apply(d)
		}
		return out, nil
	case "$group":
		return group(v.Data, docs, coll)
	}
	return nil, notSimulated("the stage %.100s", name)
}

func group(spec bsoncore.Document, docs [][]byte, coll collation) ([][]byte, error) {
	var id bsoncore.Value
	var path []string
	var counter string
	for it := fieldsOf(spec); it.next(); {
		if string(it.name) == "_id" {
			id = it.value
			if id.Type == bsoncore.TypeEmbeddedDocument {
				return nil, notSimulated("$group by an expression")
			}
			if id.Type == bsoncore.TypeString && len(id.StringValue()) > 1 && id.StringValue()[0] == '$' {
				var err error
				if path, err = splitPath(id.StringValue()[1:]); err != nil {
					return nil, err
				}
			}
			continue
		}
		n := int64(0)
		if it.value.Type == bsoncore.TypeEmbeddedDocument {
			sum, _ := lookup(it.value.Data, "$sum")
			n, _ = wholeNumber(sum)
		}
		if n != 1 || counter != "" {
			return nil, notSimulated("accumulators other than one {$sum: 1}")
		}
		counter = string(it.name)
	}
	if isMissing(id) || counter == "" {
		return nil, notSimulated("$group without _id and a counter")
	}
	counts := map[string]int32{}
	var keys []string
	values := map[string]bsoncore.Value{}
	for _, d := range docs {
		v := id
		if path != nil {
			var ok bool
			if v, ok = at(d, path); !ok {
				v = bsoncore.Value{Type: bsoncore.TypeNull}
			}
		}
		k := string(coll.order(nil, v))
		if counts[k] == 0 {
			keys, values[k] = append(keys, k), v
		}
		counts[k]++
	}
	var out [][]byte
	for _, k := range keys {
		out = append(out, bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "_id", values[k]),
			bsoncore.AppendInt32Element(nil, counter, counts[k])))
	}
	return out, nil
}
