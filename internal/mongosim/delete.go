package mongosim

import "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

func runDelete(op *operation) ([]byte, error) {
	deletes, err := op.list("deletes")
	if err != nil {
		return nil, err
	}
	b, err := newBatch(op, len(deletes))
	if err != nil {
		return nil, err
	}
	type parsed struct {
		q     bsoncore.Document
		limit int64
		coll  *bsoncore.Value
	}
	stmts := make([]parsed, len(deletes))
	for i, doc := range deletes {
		st := &stmts[i]
		if st.q, st.limit, st.coll, err = parseDelete(doc); err != nil {
			return nil, err // a malformed statement fails the command before any is executed
		}
	}
	return b.run(func(i int) (*statement, error) {
		q, limit, coll := stmts[i].q, stmts[i].limit, stmts[i].coll
		if limit == 0 && op.number >= 0 {
			return nil, errorf(codeInvalidOptions, "Cannot use (or request) retryable writes with limit=0")
		}
		c, err := op.target()
		if err != nil {
			return nil, err
		}
		f, err := op.filter(c, q, coll)
		if err != nil || c == nil {
			return &statement{}, err
		}
		if err := op.deletable(c); err != nil {
			return nil, err
		}
		if limit == 1 && c.shardKey != nil {
			n, err := op.onShards(c, f, func(on *filter) (int32, error) {
				n, err := op.deleteMatching(newScan(c, on), limit, b.stmts[i])
				return int32(n), err
			})
			if n > 0 {
				op.remember(b.stmts[i], &statement{n: n})
			}
			return &statement{n: n}, err
		}
		n, err := op.deleteMatching(newScan(c, f), limit, b.stmts[i])
		if err != nil {
			return nil, err
		}
		st := &statement{n: int32(n)}
		if n > 0 {
			op.remember(b.stmts[i], st)
		}
		return st, nil
	})
}

func parseDelete(doc bsoncore.Document) (q bsoncore.Document, limit int64, coll *bsoncore.Value, err error) {
	limit = -1
	for it := fieldsOf(doc); it.next(); {
		switch name := string(it.name); name {
		case "q":
			if it.value.Type != bsoncore.TypeEmbeddedDocument {
				return nil, 0, nil, wrongType("delete.deletes", "q", it.value, "object")
			}
			q = it.value.Data
		case "limit":
			n, ok := wholeNumber(it.value)
			if !ok || n != 0 && n != 1 {
				return nil, 0, nil, errorf(codeFailedToParse, "The limit field in delete objects must be 0 or 1.")
			}
			limit = n
		case "collation":
			v := it.value
			coll = &v
		case "hint":
			return nil, 0, nil, notSimulated("hint")
		default:
			return nil, 0, nil, errorf(codeUnknownField, "BSON field 'delete.deletes.%.100s' is an unknown field.", name)
		}
	}
	if q == nil || limit < 0 {
		return nil, 0, nil, errorf(codeMissingField, "BSON field 'delete.deletes.q' or 'delete.deletes.limit' is missing but a required field")
	}
	return q, limit, coll, nil
}

// deleteMatching deletes piece by piece; what it has deleted before an interruption stays deleted.
func (op *operation) deleteMatching(s *scan, limit int64, statement int32) (n int64, err error) {
	type found struct {
		id  int64
		doc []byte
	}
	size := op.server.config.YieldEvery
	piece := make([]found, 0, size)
	for {
		c, err := op.target() // it may have been dropped, or replaced, during the yield
		if err != nil || c == nil {
			return n, err
		}
		piece = piece[:0]
		s.run(c, func(id int64, doc []byte) bool {
			piece = append(piece, found{id, doc})
			return len(piece) < size && limit != 1
		})
		for _, f := range piece {
			op.deleteRecord(c, f.id, f.doc, statement)
			n++
		}
		if s.done || limit == 1 {
			return n, nil
		}
		if err := op.yield(); err != nil {
			return n, err
		}
	}
}

// filter compiles a query for a collection: with its collation, unless the statement brings one.
func (op *operation) filter(c *collection, q bsoncore.Document, given *bsoncore.Value) (*filter, error) {
	var coll collation
	if c != nil {
		coll = c.coll
	}
	if given != nil {
		parsed, err := parseCollation(*given)
		if err != nil {
			return nil, err
		}
		if parsed != coll {
			// An index in another collation could not be used; scans here always use one.
			return nil, notSimulated("a collation other than the collection's own")
		}
	}
	return compileFilter(q, coll)
}
