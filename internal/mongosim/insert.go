package mongosim

import (
	"encoding/binary"
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// insertedOne is the history of every insert and of a single delete; nobody changes it.
var insertedOne = &statement{n: 1}

func runInsert(op *operation) ([]byte, error) {
	docs, err := op.list("documents")
	if err != nil {
		return nil, err
	}
	b, err := newBatch(op, len(docs))
	if err != nil {
		return nil, err
	}
	return b.run(func(i int) (*statement, error) {
		doc, err := op.prepare(docs[i])
		if err != nil {
			return nil, err
		}
		c, err := op.ensure()
		if err != nil {
			return nil, err
		}
		if err := op.validate(c, doc); err != nil {
			return nil, err
		}
		if err := op.insertDocument(c, doc, b.stmts[i]); err != nil {
			return nil, err
		}
		op.remember(b.stmts[i], insertedOne)
		return insertedOne, nil
	})
}

// prepare checks a document the way fixDocumentForInsert does and returns the copy to store: _id first, made here if
// it is missing, and an empty timestamp at the top level replaced by the current one.
func (op *operation) prepare(doc bsoncore.Document) ([]byte, error) {
	s := op.server
	if len(doc) > s.config.MaxDocumentBytes {
		return nil, errorf(codeBadValue, "object to insert too large. size in bytes: %d, max size: %d", len(doc), s.config.MaxDocumentBytes)
	}
	var id []byte
	first, stamp := false, false
	n := 0
	for it := fieldsOf(doc); it.next(); n++ {
		if it.value.Type == bsoncore.TypeTimestamp {
			t, i := it.value.Timestamp()
			stamp = stamp || t == 0 && i == 0
		}
		if len(it.name) > 0 && it.name[0] == '$' && s.config.MaxWireVersion < 13 {
			// Since 5.0 such names are stored (manual, "Field Names with Periods and Dollar Signs").
			return nil, errorf(codeBadValue, "Document can't have $ prefixed field names: %.100s", it.name)
		}
		if string(it.name) != "_id" {
			continue
		}
		if id != nil {
			return nil, errorf(codeBadValue, "can't have multiple _id fields in one document")
		}
		if err := checkID(it.value); err != nil {
			return nil, err
		}
		id, first = it.raw, n == 0
	}
	if first && !stamp {
		return slices.Clone(doc), nil
	}
	out := make([]byte, 4, len(doc)+17)
	if id == nil {
		out = bsoncore.AppendObjectIDElement(out, "_id", s.newObjectID())
	} else {
		out = append(out, id...)
	}
	for it := fieldsOf(doc); it.next(); {
		if string(it.name) == "_id" {
			continue
		}
		if it.value.Type == bsoncore.TypeTimestamp {
			if t, i := it.value.Timestamp(); t == 0 && i == 0 {
				t, i = timestamp(s.data.position + 1)
				out = bsoncore.AppendTimestampElement(out, string(it.name), t, i)
				continue
			}
		}
		out = append(out, it.raw...)
	}
	out = append(out, 0)
	return bsoncore.UpdateLength(out, 0, int32(len(out))), nil
}

// checkID refuses what cannot be an _id: regular expressions, undefined, arrays (code 2), and documents whose fields
// begin with $ (code 52; storageValidIdField).
func checkID(v bsoncore.Value) error {
	switch v.Type {
	case bsoncore.TypeRegex:
		return errorf(codeBadValue, "can't use a regex for _id")
	case bsoncore.TypeUndefined:
		return errorf(codeBadValue, "can't use a undefined for _id")
	case bsoncore.TypeArray:
		return errorf(codeBadValue, "can't use an array for _id")
	case bsoncore.TypeEmbeddedDocument:
		for it := fieldsOf(v.Data); it.next(); {
			if len(it.name) > 0 && it.name[0] == '$' {
				return errorf(codeDollarPrefixedFieldName, "_id fields may not contain '$'-prefixed fields: %.100s is not valid for storage.", it.name)
			}
		}
	}
	return nil
}

// newObjectID makes an id like a server does: time, then what the seed gives.
func (s *Server) newObjectID() (id [12]byte) {
	binary.BigEndian.PutUint32(id[:], uint32(s.now().Unix()))
	binary.BigEndian.PutUint64(id[4:], s.random.Uint64())
	return id
}
