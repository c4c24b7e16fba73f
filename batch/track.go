package batch

import (
	"bytes"
	"encoding/binary"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/rollback"
)

// track is what has to be known of a part's documents to undo them, without the documents themselves: for minted ids a
// few ranges, however many documents there are; for claimed ids the ids. It is protected by run.state.
type track struct {
	minted       []rollback.Range // not in order, and mostly adjacent, until merged
	merged       int              // length of minted after the last merge
	foreign      []bson.ObjectID  // minted ids that belong to somebody else, for all that can be told
	stamped      idList
	acknowledged bareIDs              // for which the server's acknowledgement is the proof
	taken        map[string]*document // stamped documents whose _id somebody else has, by _id
	unproven     bareIDs
	verdicts     [3]int // documents by verdict
	late         bool   // a copy of a document may still arrive
}

// entry is what a track has about a document.
type entry struct {
	counted bool
	listed  bool
	verdict outcome.Verdict
}

// add takes down documents whose sending has ended. A document that is sent again later is added again.
func (t *track) add(p *part, documents []*document) {
	for _, d := range documents {
		if !d.sent {
			continue
		}
		if d.entry.counted {
			t.verdicts[d.entry.verdict]--
		}
		d.entry.counted, d.entry.verdict = true, d.verdict
		t.verdicts[d.verdict]++
		t.late = t.late || d.unsure || p.server.forgetful()
		if !d.entry.listed {
			d.entry.listed = t.list(p, d)
		}
		if d.stamped && !d.minted {
			t.take(d)
		}
	}
	if len(t.minted) > 2*t.merged+64 {
		t.merge()
	}
}

// list puts a document's id where its proof is, and reports whether it did. What carries its proof is listed whatever the
// server said about it; where the _id alone is the proof the verdict decides.
func (t *track) list(p *part, d *document) bool {
	switch {
	case d.minted:
		id := d.id().ObjectID()
		if n := len(t.minted); n > 0 && follows(last(t.minted[n-1]), id) {
			t.minted[n-1].Count++
		} else {
			t.minted = append(t.minted, rollback.Range{First: id, Count: 1})
		}
		if d.foreign {
			t.foreign = append(t.foreign, id)
		}
		if d.foreign && d.verdict == outcome.Unknown {
			t.unproven.add(p, d)
		}
	case d.stamped:
		t.stamped.add(d.id())
	case d.verdict == outcome.Applied:
		t.acknowledged.add(p, d)
		if p.server.forgetful() { // and nothing will prove whose it is
			t.unproven.add(p, d)
		}
	case d.verdict == outcome.Unknown || p.server.forgetful():
		t.unproven.add(p, d)
	default:
		return false
	}
	return true
}

// take takes down whether it is certain that somebody else has a stamped document's _id.
func (t *track) take(d *document) {
	key := identity(d)
	if d.verdict != outcome.Rejected || d.unsure || !d.taken {
		delete(t.taken, key)
		return
	}
	if t.taken == nil {
		t.taken = make(map[string]*document)
	}
	t.taken[key] = d
}

// merge joins adjacent ranges.
func (t *track) merge() {
	slices.SortFunc(t.minted, func(a, b rollback.Range) int { return bytes.Compare(a.First[:], b.First[:]) })
	joined := t.minted[:0]
	for _, r := range t.minted {
		if n := len(joined); n > 0 && follows(last(joined[n-1]), r.First) {
			joined[n-1].Count += r.Count
		} else {
			joined = append(joined, r)
		}
	}
	t.minted = joined
	t.merged = len(joined)
}

func last(r rollback.Range) bson.ObjectID {
	id := r.First
	counter := counterOf(id) + r.Count - 1
	id[9], id[10], id[11] = byte(counter>>16), byte(counter>>8), byte(counter)
	return id
}

// ranges returns the minted ids, each range with the foreign ones in it.
func (t *track) ranges() []rollback.Range {
	t.merge()
	ranges := slices.Clone(t.minted)
	for i, r := range ranges {
		for _, id := range t.foreign {
			if end := last(r); bytes.Compare(id[:], r.First[:]) >= 0 && bytes.Compare(id[:], end[:]) <= 0 {
				ranges[i].Except = append(ranges[i].Except, id)
			}
		}
	}
	return ranges
}

// bareIDs are ids without another proof, with the shard keys of their documents if the part names one.
type bareIDs struct {
	idList
	shardKeys []bson.D
}

func (b *bareIDs) add(p *part, d *document) {
	b.idList.add(d.id())
	if p.shardKey != nil {
		b.shardKeys = append(b.shardKeys, p.shardKeyOf(d))
	}
}

// idList keeps ids in one piece of memory: type, length and bytes of one after the other.
type idList struct {
	packed []byte
	count  int
}

func (l *idList) add(id bson.RawValue) {
	l.packed = append(l.packed, byte(id.Type))
	l.packed = binary.AppendUvarint(l.packed, uint64(len(id.Value)))
	l.packed = append(l.packed, id.Value...)
	l.count++
}

// ids returns the ids in the form that rollback.Target takes, but for those to leave out; nil if there are none.
func (l *idList) ids(leaveOut map[string]bool) []any {
	if l.count == 0 {
		return nil
	}
	ids := make([]any, 0, l.count)
	l.each(func(id bson.RawValue) {
		if len(leaveOut) == 0 || !leaveOut[string(appendIdentity(nil, id.Type, id.Value))] {
			ids = append(ids, id)
		}
	})
	return ids
}

// each calls f with every id.
func (l *idList) each(f func(bson.RawValue)) {
	for rest := l.packed; len(rest) > 0; {
		length, n := binary.Uvarint(rest[1:])
		from := 1 + n
		to := from + int(length)
		f(bson.RawValue{Type: bson.Type(rest[0]), Value: rest[from:to:to]})
		rest = rest[to:]
	}
}
