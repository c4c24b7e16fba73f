package faultwire

import (
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Request is one command as a client sent it. Its methods decode on demand; what they return shares the memory of the
// message and must not be written to. A Request may be used concurrently.
type Request struct {
	Name       Name   // the command's name, as sent
	DB         string // the database
	Collection string // empty for commands without one

	message  *message
	assemble sync.Once
	document bson.Raw
}

func newRequest(m *message) *Request {
	r := &Request{message: m, DB: m.database}
	first, err := m.body.IndexErr(0)
	if err != nil {
		return r
	}
	r.Name = Name(first.Key())
	r.Collection, _ = first.Value().StringValueOK()
	if r.Name == GetMore { // its value is the cursor's id
		r.Collection, _ = m.body.Lookup("collection").StringValueOK()
	}
	if db, ok := m.body.Lookup("$db").StringValueOK(); ok {
		r.DB = db
	}
	return r
}

// Namespace returns "database.collection", or the database alone for commands without a collection.
func (r *Request) Namespace() string {
	if r.Collection == "" {
		return r.DB
	}
	return r.DB + "." + r.Collection
}

// Document returns the full command: the body, with every document sequence put back as an array at its end.
func (r *Request) Document() bson.Raw {
	r.assemble.Do(func() {
		if len(r.message.sequences) == 0 {
			r.document = r.message.body
			return
		}
		var whole bson.D
		elements, err := r.message.body.Elements()
		if err != nil {
			return // a malformed body has no document
		}
		for _, e := range elements {
			whole = append(whole, bson.E{Key: e.Key(), Value: e.Value()})
		}
		for _, s := range r.message.sequences {
			whole = append(whole, bson.E{Key: s.field, Value: s.documents()})
		}
		r.document, _ = bson.Marshal(whole)
	})
	return r.document
}

// Lookup returns a field of the command's body by its path; the zero RawValue if it is not there. It does not look into
// document sequences: see Statements.
func (r *Request) Lookup(path ...string) bson.RawValue { return r.message.body.Lookup(path...) }

// Statements returns the documents of an insert, the updates of an update, the deletes of a delete or the ops of a
// bulkWrite, wherever in the message they travel; none for other commands.
func (r *Request) Statements() []bson.Raw {
	field := statementField(r.Name)
	for _, s := range r.message.sequences {
		if s.field == field {
			return s.documents()
		}
	}
	array, ok := r.message.body.Lookup(field).ArrayOK()
	if !ok {
		return nil
	}
	values, err := array.Values()
	if err != nil {
		return nil
	}
	statements := make([]bson.Raw, 0, len(values))
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok {
			statements = append(statements, doc)
		}
	}
	return statements
}

func statementField(name Name) string {
	switch name {
	case Insert:
		return "documents"
	case Update:
		return "updates"
	case Delete:
		return "deletes"
	case BulkWrite:
		return "ops"
	}
	return ""
}

// Documents returns the documents of an insert; none for other commands.
func (r *Request) Documents() []bson.Raw {
	if r.Name != Insert {
		return nil
	}
	return r.Statements()
}

// IDs returns the _id of every document of an insert, in order; the zero RawValue for a document without one.
func (r *Request) IDs() []bson.RawValue {
	var ids []bson.RawValue
	for _, doc := range r.Documents() {
		ids = append(ids, doc.Lookup("_id"))
	}
	return ids
}

// Filters returns the filter of every statement of a delete or an update, in order, or the one of a find, count or
// findAndModify.
func (r *Request) Filters() []bson.Raw {
	switch r.Name {
	case Delete, Update:
		var filters []bson.Raw
		for _, s := range r.Statements() {
			filter, _ := s.Lookup("q").DocumentOK()
			filters = append(filters, filter)
		}
		return filters
	case Find:
		return r.field("filter")
	case FindAndModify, "count":
		return r.field("query")
	}
	return nil
}

func (r *Request) field(key string) []bson.Raw {
	if doc, ok := r.Lookup(key).DocumentOK(); ok {
		return []bson.Raw{doc}
	}
	return nil
}

// Ordered reports whether a write stops at its first failing statement, which is the default.
func (r *Request) Ordered() bool {
	ordered, ok := r.Lookup("ordered").BooleanOK()
	return ordered || !ok
}

// Acknowledged reports whether the client waits for an answer; it does not after a write at w:0.
func (r *Request) Acknowledged() bool { return !r.message.moreToCome() }

// WriteConcern returns the command's writeConcern; nil if it has none.
func (r *Request) WriteConcern() bson.Raw { return r.subdocument("writeConcern") }

// ReadConcern returns the command's readConcern; nil if it has none.
func (r *Request) ReadConcern() bson.Raw { return r.subdocument("readConcern") }

// ReadPreference returns the command's $readPreference; nil if it has none.
func (r *Request) ReadPreference() bson.Raw { return r.subdocument("$readPreference") }

// Session returns the command's lsid; nil if it has none.
func (r *Request) Session() bson.Raw { return r.subdocument("lsid") }

func (r *Request) subdocument(key string) bson.Raw {
	doc, _ := r.Lookup(key).DocumentOK()
	return doc
}

// TxnNumber returns the number under which a retryable write or a transaction runs; ok is false if there is none.
func (r *Request) TxnNumber() (n int64, ok bool) { return r.Lookup("txnNumber").AsInt64OK() }

// MaxTimeMS returns the time limit given to the server, in milliseconds; ok is false if there is none.
func (r *Request) MaxTimeMS() (ms int64, ok bool) { return r.Lookup("maxTimeMS").AsInt64OK() }

// rewritten builds the message that carries another command in place of this one. Fields that travelled as document
// sequences do so again, because a body may be 16 MB at most.
func (r *Request) rewritten(command bson.Raw) (*message, error) {
	m := r.message
	if m.opcode != opMsg {
		return nil, fmt.Errorf("faultwire: %s travels as OP_QUERY, which is not rewritten", r.Name)
	}
	elements, err := command.Elements()
	if err != nil {
		return nil, fmt.Errorf("faultwire: the rewritten %s is no document: %w", r.Name, err)
	}
	var sequences []sequence
	body := bson.D{}
	for _, e := range elements {
		array, isArray := e.Value().ArrayOK()
		if isArray && slices.ContainsFunc(m.sequences, func(s sequence) bool { return s.field == e.Key() }) {
			values, err := array.Values()
			if err != nil {
				return nil, fmt.Errorf("faultwire: %s of the rewritten %s: %w", e.Key(), r.Name, err)
			}
			s := sequence{field: e.Key()}
			for _, v := range values {
				s.data = append(s.data, v.Value...)
			}
			sequences = append(sequences, s)
			continue
		}
		body = append(body, bson.E{Key: e.Key(), Value: e.Value()})
	}
	encoded, err := bson.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("faultwire: the rewritten %s: %w", r.Name, err)
	}
	return parse(encodeMsg(m.id, m.responseTo, m.flags, encoded, sequences))
}
