package mongosim

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// batch is what insert, update and delete share: statements, each with a result of its own.
type batch struct {
	op       *operation
	ordered  bool
	stmts    []int32 // statement numbers for the session's history
	n        int64
	modified int64
	upserted []bsoncore.Value
	errs     []bsoncore.Value
}

// newBatch checks the number of statements and reads ordered, stmtId and stmtIds.
func newBatch(op *operation, count int) (*batch, error) {
	if limit := op.server.config.MaxBatch; count < 1 || count > limit {
		return nil, errorf(codeInvalidLength, "Write batch sizes must be between 1 and %d. Got %d operations.", limit, count)
	}
	b := &batch{op: op}
	var err error
	if b.ordered, err = op.flag("ordered", true); err != nil {
		return nil, err
	}
	first, err := op.integer("stmtId", 0)
	if err != nil {
		return nil, err
	}
	b.stmts = make([]int32, count)
	for i := range b.stmts {
		b.stmts[i] = int32(first) + int32(i)
	}
	v, ok := op.argument("stmtIds")
	if !ok {
		return b, nil
	}
	i := 0
	if v.Type != bsoncore.TypeArray {
		return nil, wrongType(op.name, "stmtIds", v, "array")
	}
	for it := fieldsOf(v.Data); it.next(); i++ {
		n, whole := wholeNumber(it.value)
		if !whole || i >= count {
			return nil, errorf(codeInvalidOptions, "The number of statement ids must match the number of batch entries")
		}
		b.stmts[i] = int32(n)
	}
	if i != count {
		return nil, errorf(codeInvalidOptions, "The number of statement ids must match the number of batch entries")
	}
	return b, nil
}

// run executes the statements one by one. A statement that is in the session's history is answered from there and not
// executed again (manual, "Retryable Writes").
func (b *batch) run(statement func(i int) (*statement, error)) ([]byte, error) {
	for i, id := range b.stmts {
		if i > 0 && i%b.op.server.config.YieldEvery == 0 {
			if err := b.op.yield(); err != nil {
				return nil, err
			}
		}
		st := b.op.executed(id)
		if st == nil {
			err := b.op.refused(i)
			if err == nil {
				st, err = statement(i)
			}
			if err != nil {
				e := asError(b.op.explain(err))
				if e.endsCommand() {
					return nil, e
				}
				b.errs = append(b.errs, e.writeError(i))
				if b.ordered {
					break
				}
				continue
			}
		}
		b.n += int64(st.n)
		b.modified += int64(st.modified)
		if st.upserted != nil {
			b.upserted = append(b.upserted, document(bsoncore.AppendInt32Element(nil, "index", int32(i)),
				bsoncore.AppendValueElement(nil, "_id", *st.upserted)))
		}
	}
	out := bsoncore.AppendInt32Element(nil, "n", int32(b.n))
	if b.op.name == "update" {
		if len(b.upserted) > 0 {
			out = bsoncore.BuildArrayElement(out, "upserted", b.upserted...)
		}
		out = bsoncore.AppendInt32Element(out, "nModified", int32(b.modified))
	}
	if len(b.errs) > 0 {
		out = bsoncore.BuildArrayElement(out, "writeErrors", b.errs...)
	}
	return out, nil
}

// explain puts a duplicate key into the server's form of E11000.
func (op *operation) explain(err error) error {
	var d *duplicate
	if errors.As(err, &d) {
		return d.report(op.ns, op.server.config.Duplicates)
	}
	return err
}

// target is the collection to write to, nil if it does not exist. Views and time-series collections refuse: the first as
// in MongoDB, the second because they are only simulated as far as being recognised.
func (op *operation) target() (*collection, error) {
	c := op.server.data.collections[op.ns]
	switch {
	case c == nil:
		return nil, nil
	case c.viewOn != "":
		return nil, errorf(codeCommandNotSupportedOnView, "Namespace %s is a view, not a collection", op.ns)
	case c.series:
		return nil, notSimulated("writes to time-series collections")
	}
	return c, nil
}

// ensure is target, with the collection created if it is missing.
func (op *operation) ensure() (*collection, error) {
	c, err := op.target()
	if c != nil || err != nil {
		return c, err
	}
	return op.server.create(op.ns, collation{}), nil
}

func (s *Server) create(ns string, coll collation) *collection {
	s.serial++
	c := newCollection(ns, s.serial, coll)
	s.adopt(c)
	return c
}

// adopt puts a new collection into the data, with what the server's configuration says about it.
func (s *Server) adopt(c *collection) {
	c.discard = s.config.Discard
	if key := s.config.ShardKeys[c.ns]; key != "" {
		c.shardBy(key)
	}
	s.data.collections[c.ns] = c
}

// validate is the collection's validator's verdict on a document (121 with errInfo since 5.0).
func (op *operation) validate(c *collection, doc []byte) error {
	if c.validator == nil || c.validateNothing || c.validateWarn || c.validator.match(doc) {
		return nil
	}
	if bypass, err := op.flag("bypassDocumentValidation", false); err != nil || bypass {
		return err
	}
	e := errorf(codeDocumentValidationFailure, "Document failed validation")
	if op.server.config.MaxWireVersion >= 13 {
		info := bsoncore.AppendValueElement(nil, "failingDocumentId", idOf(doc))
		info = bsoncore.AppendValueElement(info, "details", c.validator.explain(doc))
		e.fields = bsoncore.BuildDocumentElement(nil, "errInfo", info)
	}
	return e
}

// insertDocument stores a prepared document and makes room in a capped collection.
func (op *operation) insertDocument(c *collection, doc []byte, statement int32) error {
	if _, err := c.insert(doc); err != nil {
		return err
	}
	op.applied(WriteInsert, c.ns, statement, nil, doc)
	for {
		id, full := c.evictee()
		if !full {
			return nil
		}
		old, _ := c.records.get(id)
		c.delete(id)
		op.applied(WriteEvict, c.ns, statement, old, nil)
	}
}

func (op *operation) deleteRecord(c *collection, id int64, doc []byte, statement int32) {
	c.delete(id)
	op.applied(WriteDelete, c.ns, statement, doc, nil)
}

// deletable: capped collections allow no deletes before 5.0 (manual, "Capped Collections"). The planner of 4.4 answers
// IllegalOperation (20), other paths and versions 10089.
func (op *operation) deletable(c *collection) error {
	if c.capped && op.server.config.MaxWireVersion < 13 {
		code := op.server.config.CappedDeleteCode
		if code == 0 {
			code = codeIllegalOperation
		}
		return errorf(code, "cannot remove from a capped collection: %s", c.ns)
	}
	return nil
}
