package mongosim

import (
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// updateStatement is one entry of updates, or the update part of findAndModify.
type updateStatement struct {
	q      bsoncore.Document
	given  bsoncore.Value
	u      *update // compiled from given when the statement is executed
	multi  bool
	upsert bool
	coll   *bsoncore.Value
}

func runUpdate(op *operation) ([]byte, error) {
	updates, err := op.list("updates")
	if err != nil {
		return nil, err
	}
	b, err := newBatch(op, len(updates))
	if err != nil {
		return nil, err
	}
	stmts := make([]*updateStatement, len(updates))
	for i, doc := range updates {
		if stmts[i], err = parseUpdate(doc); err != nil {
			return nil, err // a malformed statement fails the command before any is executed
		}
	}
	return b.run(func(i int) (*statement, error) {
		u := stmts[i]
		var err error
		if u.u, err = compileUpdate(u.given); err != nil {
			return nil, err
		}
		if u.multi && u.u.replacement != nil {
			return nil, errorf(codeFailedToParse, "multi update is not supported for replacement-style update")
		}
		if u.multi && op.number >= 0 {
			return nil, errorf(codeInvalidOptions, "Cannot use (or request) retryable writes with multi=true")
		}
		return op.update(u, b.stmts[i])
	})
}

func parseUpdate(doc bsoncore.Document) (*updateStatement, error) {
	st := &updateStatement{}
	for it := fieldsOf(doc); it.next(); {
		v := it.value
		switch name := string(it.name); name {
		case "q":
			if v.Type != bsoncore.TypeEmbeddedDocument {
				return nil, wrongType("update.updates", "q", v, "object")
			}
			st.q = v.Data
		case "u":
			st.given = v
		case "multi", "upsert":
			if v.Type != bsoncore.TypeBoolean {
				return nil, wrongType("update.updates", name, v, "bool")
			}
			if name == "multi" {
				st.multi = v.Boolean()
			} else {
				st.upsert = v.Boolean()
			}
		case "collation":
			st.coll = &v
		case "hint", "arrayFilters", "c", "sort":
			return nil, notSimulated("%s in updates", name)
		default:
			return nil, errorf(codeUnknownField, "BSON field 'update.updates.%.100s' is an unknown field.", name)
		}
	}
	if st.q == nil || isMissing(st.given) {
		return nil, errorf(codeMissingField, "BSON field 'update.updates.q' or 'update.updates.u' is missing but a required field")
	}
	return st, nil
}

// update executes one statement. Documents are changed piece by piece, as in deleteMatching.
func (op *operation) update(u *updateStatement, number int32) (*statement, error) {
	c, err := op.target()
	if err != nil {
		return nil, err
	}
	f, err := op.filter(c, u.q, u.coll)
	if err != nil {
		return nil, err
	}
	st := &statement{}
	switch {
	case c == nil:
	case c.shardKey != nil && !u.multi:
		_, err = op.onShards(c, f, func(on *filter) (int32, error) {
			one := &statement{}
			err := op.updateMatching(newScan(c, on), u, number, one)
			st.n, st.modified = st.n+one.n, st.modified+one.modified
			return one.n, err
		})
	default:
		err = op.updateMatching(newScan(c, f), u, number, st)
	}
	if err != nil {
		return nil, err
	}
	if st.n == 0 && u.upsert {
		doc, err := op.upsert(f, u.u, number)
		if err != nil {
			return nil, err
		}
		id := idOf(doc)
		st.n, st.upserted = 1, &id
	}
	if st.modified > 0 || st.upserted != nil {
		op.remember(number, st)
	}
	return st, nil
}

func (op *operation) updateMatching(s *scan, u *updateStatement, number int32, st *statement) error {
	// A document that is moved within the index by its own update must not be met again.
	seen := map[int64]bool{}
	for {
		c, err := op.target()
		if err != nil || c == nil {
			return err
		}
		var piece []int64
		s.run(c, func(id int64, _ []byte) bool {
			if !seen[id] {
				seen[id] = true
				piece = append(piece, id)
			}
			return u.multi && len(piece) < op.server.config.YieldEvery || len(piece) == 0
		})
		for _, id := range piece {
			_, changed, err := op.modify(c, id, u.u, number)
			if err != nil {
				return err
			}
			st.n++
			if changed {
				st.modified++
			}
		}
		if s.done || !u.multi && st.n > 0 {
			return nil
		}
		if err := op.yield(); err != nil {
			return err
		}
	}
}

// modify applies an update to one record. An update that changes nothing writes nothing.
func (op *operation) modify(c *collection, id int64, u *update, number int32) (after []byte, changed bool, err error) {
	before, _ := c.records.get(id)
	after, err = u.apply(before, false)
	if err != nil {
		return nil, false, err
	}
	if string(after) == string(before) {
		return before, false, nil
	}
	if err := op.storable(c, after); err != nil {
		return nil, false, err
	}
	if c.shardKey != nil && c.shard(after) != c.shard(before) {
		return nil, false, notSimulated("updates that move a document to another shard")
	}
	if err := c.replace(id, after); err != nil {
		return nil, false, err
	}
	op.applied(WriteUpdate, c.ns, number, before, after)
	return after, true, nil
}

// upsert inserts what an update that matched nothing produces: the equalities of the query, then the update.
func (op *operation) upsert(f *filter, u *update, number int32) ([]byte, error) {
	c, err := op.ensure()
	if err != nil {
		return nil, err
	}
	base, err := equalities(f, u.replacement != nil)
	if err != nil {
		return nil, err
	}
	doc, err := u.apply(base, true)
	if err != nil {
		return nil, err
	}
	if doc, err = op.prepare(doc); err != nil {
		return nil, err
	}
	if err := op.storable(c, doc); err != nil {
		return nil, err
	}
	return doc, op.insertDocument(c, doc, number)
}

func (op *operation) storable(c *collection, doc []byte) error {
	if limit := op.server.config.MaxDocumentBytes; len(doc) > limit {
		return errorf(codeBSONObjectTooLarge, "Resulting document after update is larger than %d", limit)
	}
	if err := checkDocument(doc); err != nil {
		return err
	}
	return op.validate(c, doc)
}

// equalities are the fields an upsert takes from its query (manual, "Upsert with Operator Expressions"): only those that
// must equal one value; for a replacement only the _id.
func equalities(f *filter, onlyID bool) ([]byte, error) {
	doc := emptyDocument
	for _, p := range conjuncts(f) {
		v := p.value
		switch {
		case p.op == "$in" && len(p.set) == 1 && len(p.regex) == 0:
			it := fieldsOf(v.Data)
			it.next()
			v = it.value
		case p.op != "$eq":
			continue
		}
		if onlyID && p.field != "_id" {
			continue
		}
		path, err := splitPath(p.field)
		if err != nil {
			return nil, err
		}
		if _, twice := at(doc, path); twice {
			return nil, errorf(54, "cannot infer query fields to set, path '%.100s' is matched twice", p.field)
		}
		if doc, err = setAt(doc, path, v); err != nil {
			return nil, err
		}
	}
	return doc, nil
}
