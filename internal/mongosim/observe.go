package mongosim

import "go.mongodb.org/mongo-driver/v2/bson"

// WriteKind says what a Write did. The zero value is invalid.
type WriteKind int

// The kinds of writes.
const (
	WriteInsert WriteKind = iota + 1
	WriteUpdate
	WriteDelete
	// WriteEvict is the removal of the oldest document of a capped collection by an insert.
	WriteEvict
	// WriteDrop is the removal of a whole collection; it has no document.
	WriteDrop
)

func (k WriteKind) String() string {
	switch k {
	case WriteInsert:
		return "insert"
	case WriteUpdate:
		return "update"
	case WriteDelete:
		return "delete"
	case WriteEvict:
		return "evict"
	case WriteDrop:
		return "drop"
	}
	return "invalid"
}

// Write is one change of one document, as it was applied. The documents must not be changed.
type Write struct {
	Position   int64 // counts the writes; a rollback takes numbers back, Term then tells the two apart
	Term       int64 // number of the election that made the accepting member primary
	Kind       WriteKind
	Namespace  string
	ID         bson.RawValue
	Before     bson.Raw // nil for inserts
	After      bson.Raw // nil for deletes
	Command    string
	LSID       string // the session, hexadecimal; "" without one
	TxnNumber  int64  // -1 without one
	Statement  int32
	Connection int64
	Member     int // that accepted it

	// RolledBack marks the report that a failover has undone the write. Such reports come newest first, each with the
	// write's own fields.
	RolledBack bool
}

// applied counts a write, keeps it as long as some member lacks it, and tells the observer. s.mu is held.
func (op *operation) applied(kind WriteKind, ns string, statement int32, before, after []byte) {
	s := op.server
	s.data.position++
	op.position = s.data.position
	lagging := s.lagging()
	if s.config.Observe == nil && !lagging {
		return
	}
	w := Write{Position: op.position, Term: s.term, Kind: kind, Namespace: ns, Before: before, After: after, Command: op.name,
		LSID: op.lsid, TxnNumber: op.number, Statement: statement, Connection: op.conn.id, Member: op.member.index}
	doc := after
	if doc == nil {
		doc = before
	}
	if id, ok := lookup(doc, "_id"); ok {
		w.ID = bson.RawValue{Type: bson.Type(id.Type), Value: id.Data}
	}
	if lagging {
		s.log = append(s.log, w)
	}
	if s.config.Observe != nil {
		s.config.Observe(w)
	}
}

func (s *Server) rolledBack(lost []Write) {
	if s.config.Observe == nil {
		return
	}
	for i := len(lost) - 1; i >= 0; i-- {
		w := lost[i]
		w.RolledBack = true
		s.config.Observe(w)
	}
}
