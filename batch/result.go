package batch

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Result is what a successful Insert stored. It does not change any more.
type Result struct {
	// BatchID is the id of the attempt, which the batch's stamped documents carry.
	BatchID bson.ObjectID
	// Inserted is the number of documents stored.
	Inserted int
	// Parts has one entry for each part of the call, in its order.
	Parts []PartResult
	// JournalID is the id of the batch's journal record: the key given to InsertOnce, or the hex form of BatchID. Empty
	// without a journal.
	JournalID string
	// Replayed says that the batch was stored by an earlier call with the same key, and that this one wrote nothing.
	Replayed bool
	// Warnings are what went wrong after everything was stored: stamps that could not be removed. Nil if nothing did.
	Warnings []error
}

// PartResult is what was stored in one collection.
type PartResult struct {
	Collection string // database.collection
	Inserted   int    // documents stored
	// IDs has the _id of each document, in the order of the caller's slice, as the driver decodes what is stored:
	// bson.ObjectID, string, int32, int64, bson.Binary, bson.DateTime, bson.D and so on. Times have the milliseconds
	// that BSON keeps, and a [16]byte or a UUID type comes back as the bson.Binary that it was encoded to.
	// Nil for a stream.
	IDs []any
	// Numbers has, by the field given to Part.Number, each document's value, in the order of the caller's slice.
	// Nil for a stream.
	Numbers map[string][]any
}

func (r *run) result() *Result {
	result := &Result{BatchID: r.id, JournalID: r.journalID(), Inserted: r.total, Parts: make([]PartResult, len(r.parts)), Warnings: r.warnings}
	for i, p := range r.parts {
		result.Parts[i] = PartResult{Collection: p.namespace, Inserted: p.size()}
		if p.stream == nil {
			result.Parts[i].IDs, result.Parts[i].Numbers = p.ids(), p.values()
		}
	}
	return result
}

func (p *part) ids() []any {
	ids := make([]any, len(p.documents))
	for i := range p.documents {
		ids[i] = decode(p.documents[i].id())
	}
	return ids
}

// values returns the documents' numbers by field; nil if nothing is numbered.
func (p *part) values() map[string][]any {
	if len(p.numbers) == 0 {
		return nil
	}
	values := make(map[string][]any, len(p.numbers))
	for which, n := range p.numbers {
		column := make([]any, len(p.documents))
		for i := range p.documents {
			column[i] = p.documents[i].numbers[which]
		}
		values[n.field] = column
	}
	return values
}

// decode turns a stored value into what the driver would decode it to.
func decode(v bson.RawValue) any {
	switch v.Type { // the two usual kinds, without reflection
	case bson.TypeObjectID:
		return v.ObjectID()
	case bson.TypeString:
		return v.StringValue()
	}
	var decoded any
	if err := v.Unmarshal(&decoded); err != nil {
		return v
	}
	return decoded
}
