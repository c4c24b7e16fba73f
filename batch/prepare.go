package batch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/intact-go/intact/internal/outcome"
)

// maxDocument is MongoDB's limit for one document, in bytes ("BSON Document Size" in its manual's limits).
const maxDocument = 16 << 20

// document is one document of a batch, from encoding to verdict.
type document struct {
	raw   bson.Raw // as it will be stored
	index int      // in the caller's slice

	minted  bool // the batch made its _id
	stamped bool // it carries the stamp

	// The rest is written by the one worker that has the document's chunk.
	verdict outcome.Verdict
	sent    bool // an insert command with it has left
	unsure  bool // the answer to a sending was lost: another copy may still arrive
	foreign bool // its minted _id belongs to somebody else after all
}

func (d *document) id() bson.RawValue { return d.raw.Lookup("_id") }

// provable reports whether the document can be told from somebody else's with the same _id.
func (d *document) provable() bool { return d.minted || d.stamped }

// part is a Part in the course of being inserted.
type part struct {
	Part
	position  int
	namespace string
	documents []document
	values    [][]any           // by numbering and document
	inserts   *mongo.Collection // with the batch's write concern, and encoding nothing anew
}

// prepare encodes and checks all documents. It sends nothing. The error is an *Error that names every bad document.
func (r *run) prepare(parts []Part) error {
	encode := newEncoder(r.config.Registry, r.config.BSONOptions)
	var minter mint
	var bad []DocumentError
	seen := make(map[*mongo.Client]map[string]map[string]int) // claimed ids, by client and collection: first index
	total := 0
	for _, p := range parts {
		total += p.count
	}
	r.total = total
	for position, declared := range parts {
		if declared.err == nil {
			declared.err = checkNamespace(declared.coll)
		}
		if declared.err != nil {
			return fmt.Errorf("part %d: %w", position, declared.err)
		}
		p := r.newPart(position, declared)
		client := p.coll.Database().Client()
		if seen[client] == nil {
			seen[client] = make(map[string]map[string]int)
		}
		if seen[client][p.namespace] == nil {
			seen[client][p.namespace] = make(map[string]int)
		}
		twins := seen[client][p.namespace]
		for i := range p.documents {
			d := &p.documents[i]
			d.index = i
			err := r.prepareDocument(p, d, encode, &minter)
			if err == nil && !d.minted && !p.numbersID() {
				err = noTwin(twins, d)
			}
			if err != nil {
				bad = append(bad, p.refuse(d, err))
			}
			r.progress(Preparing, 1)
		}
	}
	return r.refused(bad)
}

func (r *run) newPart(position int, declared Part) *part {
	p := &part{
		Part:      declared,
		position:  position,
		namespace: namespace(declared.coll),
		documents: make([]document, declared.count),
		values:    make([][]any, len(declared.numbers)),
		inserts: declared.coll.Clone(options.Collection().
			SetWriteConcern(r.config.WriteConcern).
			SetReadConcern(readconcern.Local()).
			SetReadPreference(readpref.Primary()).
			SetRegistry(bson.NewRegistry()).
			SetBSONOptions(&options.BSONOptions{})),
	}
	r.parts = append(r.parts, p)
	return p
}

// refused makes the error of documents that were refused before anything was sent; nil if there are none.
func (r *run) refused(bad []DocumentError) error {
	if len(bad) == 0 {
		return nil
	}
	return &Error{BatchID: r.id, Total: r.total, Documents: bad, Cause: ErrInvalidDocuments}
}

func (p *part) refuse(d *document, err error) DocumentError {
	refusal := DocumentError{Part: p.position, Index: d.index, Collection: p.namespace, Message: err.Error(), Err: err}
	if id, lookupErr := d.raw.LookupErr("_id"); lookupErr == nil {
		refusal.ID = id
	}
	return refusal
}

// numbersID reports whether the part's _id, or a field of it, comes from a sequence.
func (p *part) numbersID() bool {
	for _, n := range p.numbers {
		if n.path[0] == "_id" {
			return true
		}
	}
	return false
}

// prepareDocument gives a document its final bytes, with a zero in the place of each number.
func (r *run) prepareDocument(p *part, d *document, encode *encoder, minter *mint) error {
	raw, err := encode.encode(p.at(d.index))
	if err != nil {
		return err
	}
	zero := bson.RawValue{Type: bson.TypeInt64, Value: make([]byte, 8)}
	for _, n := range p.numbers {
		if raw, err = setField(raw, n.path, zero, false); err != nil {
			return fmt.Errorf("number for field %q: %w", n.field, err)
		}
	}
	hasID, err := r.checkFields(raw)
	if err != nil {
		return err
	}
	d.minted = !hasID
	d.stamped = r.config.Stamp == StampAll || r.config.Stamp == StampClaimed && hasID
	d.raw = r.assemble(raw, d, minter)
	return checkSize(d.raw)
}

// checkFields checks what would make the document unfit, and reports whether it has an _id.
func (r *run) checkFields(raw bson.Raw) (hasID bool, err error) {
	for key, e := range elements(raw) {
		switch key {
		case "_id":
			if hasID {
				return true, errors.New("it has two _id fields")
			}
			hasID = true
			if err := errBadID(bson.RawValue{Type: e.kind, Value: raw[e.value:e.end]}); err != nil {
				return true, err
			}
		case r.config.StampField:
			if r.config.Stamp != StampNone {
				return hasID, fmt.Errorf("it already has a field %q, the batch's stamp; name another with Config.StampField", key)
			}
		}
	}
	return hasID, nil
}

// assemble puts a minted _id in front and the stamp at the end.
func (r *run) assemble(raw bson.Raw, d *document, minter *mint) bson.Raw {
	size := len(raw)
	if d.minted {
		size += 1 + len("_id") + 1 + 12
	}
	if d.stamped {
		size += 1 + len(r.config.StampField) + 1 + 12
	}
	out := make([]byte, 4, size)
	binary.LittleEndian.PutUint32(out, uint32(size))
	if d.minted {
		id := minter.id()
		out = append(out, byte(bson.TypeObjectID))
		out = append(out, "_id\x00"...)
		out = append(out, id[:]...)
	}
	out = append(out, raw[4:len(raw)-1]...)
	if d.stamped {
		out = append(out, byte(bson.TypeObjectID))
		out = append(out, r.config.StampField...)
		out = append(out, 0)
		out = append(out, r.id[:]...)
	}
	return append(out, 0)
}

func checkSize(raw bson.Raw) error {
	if len(raw) > maxDocument {
		return fmt.Errorf("it has %d bytes as it would be stored; %d is the most", len(raw), maxDocument)
	}
	return nil
}

// noTwin refuses a claimed id that an earlier document of the batch claims.
func noTwin(seen map[string]int, d *document) error {
	e, ok := lookup(d.raw, []string{"_id"})
	if !ok {
		return nil
	}
	key := appendIdentity(nil, e.kind, d.raw[e.value:e.end])
	if first, twice := seen[string(key)]; twice {
		return &DuplicateIDError{First: first}
	}
	seen[string(key)] = d.index
	return nil
}

// number reserves the numbers of all documents, once for each sequence, and puts them in.
func (r *run) number(ctx context.Context) error {
	encode := newEncoder(r.config.Registry, r.config.BSONOptions)
	type use struct {
		part  *part
		which int
	}
	var sequences []Sequence
	var uses [][]use
	for _, p := range r.parts {
		for i, n := range p.numbers {
			at := -1
			for j, known := range sequences {
				if sameSequence(known, n.sequence) {
					at = j
				}
			}
			if at < 0 {
				at = len(sequences)
				sequences, uses = append(sequences, n.sequence), append(uses, nil)
			}
			uses[at] = append(uses[at], use{p, i})
		}
	}
	for i, sequence := range sequences {
		total := 0
		for _, u := range uses[i] {
			total += len(u.part.documents)
		}
		if total == 0 {
			continue
		}
		values, err := reserve(ctx, sequence, total)
		if err != nil {
			return fmt.Errorf("numbers for field %q of %s: %w", uses[i][0].part.numbers[uses[i][0].which].field, uses[i][0].part.namespace, err)
		}
		r.tell(Event{Kind: Numbered, Collection: uses[i][0].part.namespace, Documents: total})
		for _, u := range uses[i] {
			n := len(u.part.documents)
			u.part.values[u.which], values = values[:n:n], values[n:]
		}
	}
	return r.placeNumbers(encode)
}

// reserve checks what a sequence returns.
func reserve(ctx context.Context, sequence Sequence, n int) ([]any, error) {
	values, err := sequence.Reserve(ctx, n)
	if err == nil && len(values) != n {
		err = fmt.Errorf("the sequence returned %d values instead of %d", len(values), n)
	}
	return values, err
}

// sameSequence compares without panicking where a Sequence is of a type that cannot be compared.
func sameSequence(a, b Sequence) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}

func (r *run) placeNumbers(encode *encoder) error {
	var bad []DocumentError
	for _, p := range r.parts {
		twins := make(map[string]int)
		for i := range p.documents {
			d := &p.documents[i]
			var err error
			for which := range p.numbers {
				err = errors.Join(err, p.placeNumber(d, which, encode))
			}
			if err == nil && p.numbersID() {
				id := d.id()
				if err = errBadID(id); err == nil {
					err = noTwin(twins, d)
				}
			}
			if err != nil {
				bad = append(bad, p.refuse(d, err))
			}
		}
	}
	return r.refused(bad)
}

// placeNumber puts a document's value into its field; an int64 without moving anything.
func (p *part) placeNumber(d *document, which int, encode *encoder) error {
	number, value := p.numbers[which], p.values[which][d.index]
	if n, ok := value.(int64); ok {
		if e, found := lookup(d.raw, number.path); found && e.kind == bson.TypeInt64 {
			binary.LittleEndian.PutUint64(d.raw[e.value:e.end], uint64(n))
			return nil
		}
	}
	encoded, err := encode.value(value)
	if err != nil {
		return fmt.Errorf("number for field %q: %w", number.field, err)
	}
	raw, err := setField(d.raw, number.path, encoded, true)
	if err != nil {
		return fmt.Errorf("number for field %q: %w", number.field, err)
	}
	d.raw = raw
	return checkSize(raw)
}
