package mongosim

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// cursor is what getMore continues: a scan that goes on in the collection as it is then, or results that were fixed when
// they had to be sorted.
type cursor struct {
	id     int64
	ns     string
	lsid   string
	read   string
	member *member

	scan    *scan
	results [][]byte
	skip    int64
	left    int64 // documents still to return, -1 without a limit
	fields  *projection
	base    string // the collection a view looks at
}

const (
	firstBatch   = 101 // documents in a first batch without batchSize (manual, "Cursor Batches")
	maxReply     = 16 << 20
	noLimit      = -1
	defaultBatch = 1 << 30
)

func runFind(op *operation) ([]byte, error) {
	for _, name := range []string{"hint", "let"} {
		if _, ok := op.argument(name); ok {
			return nil, notSimulated("%s in find", name)
		}
	}
	q, err := op.subdocument("filter")
	if err != nil {
		return nil, err
	}
	sortDoc, err := op.subdocument("sort")
	if err != nil {
		return nil, err
	}
	sorted, err := compileOrder(sortDoc)
	if err != nil {
		return nil, err
	}
	fieldsDoc, err := op.subdocument("projection")
	if err != nil {
		return nil, err
	}
	cur := &cursor{ns: op.ns, lsid: op.lsid, read: op.read, member: op.member, left: noLimit}
	if cur.fields, err = compileProjection(fieldsDoc); err != nil {
		return nil, err
	}
	limit, err := op.integer("limit", 0)
	if err != nil {
		return nil, err
	}
	if cur.skip, err = op.integer("skip", 0); err != nil {
		return nil, err
	}
	if limit < 0 || cur.skip < 0 {
		return nil, errorf(51024, "BSON field 'skip' or 'limit' value must be >= 0")
	}
	if limit > 0 {
		cur.left = limit
	}
	single, err := op.flag("singleBatch", false)
	if err != nil {
		return nil, err
	}
	size, err := op.integer("batchSize", firstBatch)
	if err != nil {
		return nil, err
	}
	var given *bsoncore.Value
	if v, ok := op.argument("collation"); ok {
		given = &v
	}
	if err := op.open(cur, q, sorted, given); err != nil {
		return nil, err
	}
	return op.firstBatch(cur, int(size), single)
}

// open starts the search. A sort that is not the order of the scan needs all results first.
func (op *operation) open(cur *cursor, q bsoncore.Document, sorted order, given *bsoncore.Value) error {
	cur.base = cur.ns
	c := op.data().collections[cur.ns]
	if c != nil && c.viewOn != "" {
		cur.base = c.viewOn
		c = op.data().collections[c.viewOn]
	}
	f, err := op.filter(c, q, given)
	if err != nil {
		return err
	}
	if c == nil {
		return nil
	}
	cur.scan = newScan(c, f)
	if len(sorted) == 0 {
		return nil
	}
	if len(sorted) == 1 && len(sorted[0].path) == 1 && sorted[0].path[0] == "_id" && !cur.scan.byPoint &&
		(cur.scan.index == "_id_" || cur.scan.index == "") {
		cur.scan.index, cur.scan.backward = "_id_", sorted[0].direction < 0
		return nil
	}
	type keyed struct{ key, doc []byte }
	var all []keyed
	cur.scan.run(c, func(_ int64, doc []byte) bool {
		all = append(all, keyed{sorted.key(doc, c.coll), doc})
		return true
	})
	slices.SortStableFunc(all, func(a, b keyed) int { return strings.Compare(string(a.key), string(b.key)) })
	cur.scan = nil
	for _, k := range all {
		cur.results = append(cur.results, k.doc)
	}
	return nil
}

// next returns up to n documents that fit into one reply. done says that there are no more.
func (op *operation) next(cur *cursor, n int) (docs []bsoncore.Value, done bool) {
	size := 0
	take := func(doc []byte) bool {
		if cur.skip > 0 {
			cur.skip--
			return true
		}
		doc = cur.fields.apply(doc)
		docs = append(docs, bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: doc})
		size += len(doc) + 12
		if cur.left > 0 {
			cur.left--
		}
		return len(docs) < n && size < maxReply-(16<<10) && cur.left != 0
	}
	if n == 0 {
		return nil, false
	}
	if cur.scan != nil {
		if c := op.data().collections[cur.base]; c != nil {
			cur.scan.run(c, func(_ int64, doc []byte) bool { return take(doc) })
			return docs, cur.scan.done || cur.left == 0
		}
		return docs, true
	}
	for len(cur.results) > 0 {
		doc := cur.results[0]
		cur.results = cur.results[1:]
		if !take(doc) {
			break
		}
	}
	return docs, len(cur.results) == 0 || cur.left == 0
}

func (op *operation) firstBatch(cur *cursor, size int, single bool) ([]byte, error) {
	docs, done := op.next(cur, size)
	var id int64
	if !done && !single {
		s := op.server
		for id == 0 || s.cursors[id] != nil {
			id = int64(s.random.Uint64() >> 2)
		}
		cur.id = id
		s.cursors[id] = cur
	}
	return cursorReply("firstBatch", id, cur.ns, docs), nil
}

func cursorReply(batch string, id int64, ns string, docs []bsoncore.Value) []byte {
	elements := bsoncore.BuildArrayElement(nil, batch, docs...)
	elements = bsoncore.AppendInt64Element(elements, "id", id)
	elements = bsoncore.AppendStringElement(elements, "ns", ns)
	return bsoncore.BuildDocumentElement(nil, "cursor", elements)
}

func runGetMore(op *operation) ([]byte, error) {
	id, err := op.integer("getMore", 0)
	if err != nil {
		return nil, err
	}
	v, ok := op.argument("collection")
	if !ok || v.Type != bsoncore.TypeString {
		return nil, errorf(codeMissingField, "BSON field 'getMore.collection' is missing but a required field")
	}
	size, err := op.integer("batchSize", defaultBatch)
	if err != nil {
		return nil, err
	}
	if size <= 0 {
		size = defaultBatch
	}
	cur := op.server.cursors[id]
	switch {
	case cur == nil || cur.member != op.member:
		return nil, errorf(codeCursorNotFound, "cursor id %d not found", id)
	case cur.ns != op.db+"."+v.StringValue():
		return nil, errorf(codeUnauthorized, "Requested getMore on namespace '%.100s', but cursor belongs to a different namespace", v.StringValue())
	case cur.lsid != op.lsid:
		return nil, errorf(50738, "Cannot run getMore on cursor %d, which was created in another session", id)
	}
	op.read = cur.read
	docs, done := op.next(cur, int(size))
	if done {
		delete(op.server.cursors, id)
		id = 0
	}
	return cursorReply("nextBatch", id, cur.ns, docs), nil
}

func runKillCursors(op *operation) ([]byte, error) {
	v, ok := op.argument("cursors")
	if !ok || v.Type != bsoncore.TypeArray {
		return nil, errorf(codeMissingField, "BSON field 'killCursors.cursors' is missing but a required field")
	}
	var killed, unknown []bsoncore.Value
	for it := fieldsOf(v.Data); it.next(); {
		id, ok := wholeNumber(it.value)
		if !ok {
			return nil, wrongType(op.name, "cursors", it.value, "long")
		}
		if c := op.server.cursors[id]; c != nil && c.member == op.member {
			delete(op.server.cursors, id)
			killed = append(killed, it.value)
		} else {
			unknown = append(unknown, it.value)
		}
	}
	out := bsoncore.BuildArrayElement(nil, "cursorsKilled", killed...)
	out = bsoncore.BuildArrayElement(out, "cursorsNotFound", unknown...)
	out = bsoncore.BuildArrayElement(out, "cursorsAlive")
	return bsoncore.BuildArrayElement(out, "cursorsUnknown"), nil
}
