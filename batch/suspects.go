package batch

import (
	"bytes"
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/outcome"
)

// settleSuspects looks up documents that clashed with what an earlier sending of them may have stored, or with somebody
// else's document. The earlier sending is one whose answer was lost. It may also be one of the driver's own, which repeats
// writes on every server that claims to know retryable writes (FerretDB does with a replica set's name, and then answers
// the repetition with a clash) and does not tell. What is there with our _id and our proof is stored; its own E11000 was
// answered at the write concern, and servers wait for that also when they change nothing. An _id that the batch claims
// twice proves nothing: the document that is there may be the other one.
func (s *sending) settleSuspects(a *answer, suspects []outcome.Refusal) {
	documents := make([]*document, len(suspects))
	for i, suspect := range suspects {
		documents[i] = s.pending[suspect.Index]
	}
	ours, err := s.findOurs(documents)
	if err != nil {
		s.unsettled(a, suspects, err)
		return
	}
	twins := s.twins(s.part, documents)
	stored := 0
	for i, d := range documents {
		switch {
		case ours[identity(d)] && !twins[identity(d)]:
			d.verdict, d.unsure = outcome.Applied, true
			stored++
		case d.foreign && s.part.server.forgetful(): // or ours, and somebody else has changed it
			s.unprovable(a, d, suspects[i])
		default:
			d.verdict = outcome.Rejected
			s.refusal(a, d, suspects[i])
		}
	}
	if stored > 0 {
		s.sessions.markUnsure(s.session)
		s.stored(stored)
	}
}

// doubt takes down that a copy of a document may be stored, or may still arrive.
func (s *sending) doubt(d *document) {
	d.verdict, d.unsure = outcome.Unknown, true
	s.sessions.markUnsure(s.session)
}

// unprovable takes down a refused document of which a copy of the batch's own may be stored: it is not numbered anew.
func (s *sending) unprovable(a *answer, d *document, refusal outcome.Refusal) {
	s.doubt(d)
	a.refused = append(a.refused, s.documentError(d, refusal))
}

// unsettled is for suspects that could not be looked up because of err. If that passes, they are sent again. If not, the
// refusal is believed of those of which no answer was lost.
func (s *sending) unsettled(a *answer, suspects []outcome.Refusal, err error) {
	class := outcome.Command(err)
	for _, suspect := range suspects {
		d := s.pending[suspect.Index]
		switch {
		case class.Kind == outcome.Transient:
			s.doubt(d)
			a.again = append(a.again, d)
		case !d.unsure:
			d.foreign = d.minted
			if s.part.server.forgetful() {
				s.unprovable(a, d, suspect)
			} else {
				s.refusal(a, d, suspect)
			}
			continue
		default:
			a.again = nil
		}
		a.err, a.class = err, merge(a.class, class)
	}
}

// findOurs reads which of the documents are stored with their proof. A minted _id is the proof once an answer was lost.
// Before, what is there has to be the very document: else the _id is somebody else's after all, against all odds. Where
// nothing is a proof, whatever is there with the _id may be ours.
func (s *sending) findOurs(documents []*document) (map[string]bool, error) {
	var byID, stamped []bson.RawValue
	first := make(map[string]*document)
	for _, d := range documents {
		switch {
		case d.minted:
			byID = append(byID, d.id())
			if !d.unsure {
				first[identity(d)] = d
			}
		case d.stamped:
			stamped = append(stamped, d.id())
		default:
			byID = append(byID, d.id())
		}
	}
	ours := make(map[string]bool, len(documents))
	see := func(raw bson.Raw) {
		id := raw.Lookup("_id")
		key := string(appendIdentity(nil, id.Type, id.Value))
		d := first[key]
		ours[key] = d == nil || isStored(d.raw, raw)
		if d != nil {
			d.foreign = !ours[key]
		}
	}
	projection := bson.D{{Key: "_id", Value: 1}}
	if len(first) > 0 {
		projection = nil
	}
	if err := s.find(byID, nil, projection, see); err != nil {
		return nil, err
	}
	proof := bson.D{{Key: s.config.StampField, Value: s.id}}
	return ours, s.find(stamped, proof, bson.D{{Key: "_id", Value: 1}}, see)
}

// isStored reports whether a stored document is what became of one that was sent: the same, but for the time that a server
// writes in the place of an empty timestamp at the top.
func isStored(sent, stored bson.Raw) bool {
	if bytes.Equal(sent, stored) {
		return true
	}
	want, err := sent.Elements()
	if err != nil {
		return false
	}
	have, err := stored.Elements()
	return err == nil && slices.EqualFunc(want, have, func(want, have bson.RawElement) bool {
		if t, i, ok := want.Value().TimestampOK(); ok && t == 0 && i == 0 && want.Key() == have.Key() {
			return have.Value().Type == bson.TypeTimestamp
		}
		return bytes.Equal(want, have)
	})
}

func (s *sending) find(ids []bson.RawValue, proof, projection bson.D, see func(bson.Raw)) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.going), s.config.CommandTimeout)
	defer cancel()
	filter := append(bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, proof...)
	find := options.Find()
	if projection != nil {
		find.SetProjection(projection)
	}
	cursor, err := s.part.inserts.Find(ctx, filter, find)
	if err != nil {
		return err
	}
	var documents []bson.Raw
	if err := cursor.All(ctx, &documents); err != nil {
		return err
	}
	for _, raw := range documents {
		see(raw)
	}
	return nil
}

// twins returns which of the documents' ids the batch claims more than once in the collection of p. That is found before
// anything is sent, except in streams and between parts.
func (r *run) twins(p *part, documents []*document) map[string]bool {
	count := make(map[string]int, len(documents))
	for _, d := range documents {
		count[identity(d)] = 0
	}
	see := func(id bson.RawValue) {
		key := string(appendIdentity(nil, id.Type, id.Value))
		if n, asked := count[key]; asked {
			count[key] = n + 1
		}
	}
	for _, q := range r.parts {
		if q.namespace != p.namespace || q.coll.Database().Client() != p.coll.Database().Client() {
			continue
		}
		for i := range q.documents {
			if d := &q.documents[i]; !d.minted {
				see(d.id())
			}
		}
		r.state.Lock()
		claimed := q.claimed
		r.state.Unlock()
		claimed.each(see)
	}
	twins := make(map[string]bool)
	for key, n := range count {
		if n > 1 {
			twins[key] = true
		}
	}
	return twins
}

func identity(d *document) string {
	id := d.id()
	return string(appendIdentity(nil, id.Type, id.Value))
}
