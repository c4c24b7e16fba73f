package mongosim

import (
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// runFindAndModify finds the first document in the given order and updates, replaces or removes it, as one step.
func runFindAndModify(op *operation) ([]byte, error) {
	fm, err := parseFindAndModify(op)
	if err != nil {
		return nil, err
	}
	const number = 0
	st := op.executed(number)
	if st == nil {
		if err := op.refused(0); err != nil {
			return nil, err
		}
		if st, err = op.findAndModify(fm, number); err != nil {
			return nil, op.explain(err)
		}
		if st.modified > 0 || st.upserted != nil || fm.remove && st.n > 0 {
			op.remember(number, st)
		}
	}
	last := bsoncore.AppendInt32Element(nil, "n", st.n)
	if !fm.remove {
		last = bsoncore.AppendBooleanElement(last, "updatedExisting", st.n > 0 && st.upserted == nil)
		if st.upserted != nil {
			last = bsoncore.AppendValueElement(last, "upserted", *st.upserted)
		}
	}
	out := bsoncore.BuildDocumentElement(nil, "lastErrorObject", last)
	return bsoncore.AppendValueElement(out, "value", st.document), nil
}

type findAndModify struct {
	query  bsoncore.Document
	sort   order
	remove bool
	update *update
	new    bool
	upsert bool
	fields *projection
	coll   *bsoncore.Value
}

func parseFindAndModify(op *operation) (*findAndModify, error) {
	fm := &findAndModify{}
	for _, name := range []string{"hint", "arrayFilters", "let"} {
		if _, ok := op.argument(name); ok {
			return nil, notSimulated("%s in findAndModify", name)
		}
	}
	var err error
	if fm.query, err = op.subdocument("query"); err != nil {
		return nil, err
	}
	doc, err := op.subdocument("sort")
	if err != nil {
		return nil, err
	}
	if fm.sort, err = compileOrder(doc); err != nil {
		return nil, err
	}
	if doc, err = op.subdocument("fields"); err != nil {
		return nil, err
	}
	if fm.fields, err = compileProjection(doc); err != nil {
		return nil, err
	}
	if fm.remove, err = op.flag("remove", false); err != nil {
		return nil, err
	}
	if fm.new, err = op.flag("new", false); err != nil {
		return nil, err
	}
	if fm.upsert, err = op.flag("upsert", false); err != nil {
		return nil, err
	}
	if v, ok := op.argument("collation"); ok {
		fm.coll = &v
	}
	u, given := op.argument("update")
	switch {
	case given == fm.remove:
		return nil, errorf(codeFailedToParse, "Either an update or remove=true must be specified")
	case fm.remove && (fm.upsert || fm.new):
		return nil, errorf(codeFailedToParse, "Cannot specify both upsert=true or new=true and remove=true")
	case given:
		fm.update, err = compileUpdate(u)
	}
	return fm, err
}

func (op *operation) findAndModify(fm *findAndModify, number int32) (*statement, error) {
	none := bsoncore.Value{Type: bsoncore.TypeNull}
	c, err := op.target()
	if err != nil {
		return nil, err
	}
	f, err := op.filter(c, fm.query, fm.coll)
	if err != nil {
		return nil, err
	}
	if c != nil && c.shardKey != nil && op.server.config.MaxWireVersion < 21 && !c.targets(f) {
		return nil, errorf(codeShardKeyNotFound, "Query for sharded findAndModify must contain the shard key")
	}
	var id int64
	var before []byte
	if c != nil {
		var best []byte
		newScan(c, f).run(c, func(i int64, doc []byte) bool {
			if len(fm.sort) == 0 {
				id, before = i, doc
				return false
			}
			if key := fm.sort.key(doc, c.coll); before == nil || string(key) < string(best) {
				id, before, best = i, doc, key
			}
			return true
		})
	}
	switch {
	case before != nil && fm.remove:
		if err := op.deletable(c); err != nil {
			return nil, err
		}
		op.deleteRecord(c, id, before, number)
		return &statement{n: 1, document: fm.fields.value(before)}, nil
	case before != nil:
		after, changed, err := op.modify(c, id, fm.update, number)
		if err != nil {
			return nil, err
		}
		st := &statement{n: 1, document: fm.fields.value(before)}
		if fm.new {
			st.document = fm.fields.value(after)
		}
		if changed {
			st.modified = 1
		}
		return st, nil
	case fm.upsert:
		doc, err := op.upsert(f, fm.update, number)
		if err != nil {
			return nil, err
		}
		upserted := idOf(doc)
		st := &statement{n: 1, upserted: &upserted, document: none}
		if fm.new {
			st.document = fm.fields.value(doc)
		}
		return st, nil
	}
	return &statement{document: none}, nil
}
