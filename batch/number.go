package batch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// number reserves the numbers of all documents in memory, once for each sequence, and puts them in.
func (r *run) number(ctx context.Context) error {
	var sequences []Sequence
	var uses [][]use
	for _, p := range r.parts {
		for i, n := range p.numbers {
			if p.stream != nil {
				continue // chunk by chunk
			}
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
			uses[at] = append(uses[at], use{p, i, p.documents})
		}
	}
	for i, sequence := range sequences {
		if err := r.reserveFor(ctx, sequence, uses[i]); err != nil {
			return err
		}
	}
	encode := newEncoder(r.config.Registry, r.config.BSONOptions)
	var bad []DocumentError
	for _, p := range r.parts {
		bad = append(bad, p.placeNumbers(p.documents, make(map[string]int), encode)...)
	}
	return r.refused(bad)
}

// use is where a sequence's values go: one of a part's numberings, for some of its documents.
type use struct {
	part      *part
	which     int
	documents []document
}

// reserveFor takes the values for all uses out of a sequence at once.
func (r *run) reserveFor(ctx context.Context, sequence Sequence, uses []use) error {
	total := 0
	for _, u := range uses {
		total += len(u.documents)
	}
	if total == 0 {
		return nil
	}
	first := uses[0].part
	values, err := reserve(ctx, sequence, total)
	if err != nil {
		return fmt.Errorf("numbers for field %q of %s: %w", first.numbers[uses[0].which].field, first.namespace, err)
	}
	r.tell(Event{Kind: Numbered, Collection: first.namespace, Documents: total})
	for _, u := range uses {
		n := len(u.part.numbers)
		if len(u.documents) > 0 && u.documents[0].numbers == nil {
			all := make([]any, n*len(u.documents))
			for i := range u.documents {
				u.documents[i].numbers = all[i*n : (i+1)*n : (i+1)*n]
			}
		}
		for i := range u.documents {
			u.documents[i].numbers[u.which] = values[i]
		}
		values = values[len(u.documents):]
	}
	return nil
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
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// placeNumbers puts the documents' values in. twins are the ids seen so far, if the part's _id is numbered.
func (p *part) placeNumbers(documents []document, twins map[string]int, encode *encoder) (bad []DocumentError) {
	numbersID := p.numbersID()
	for i := range documents {
		d := &documents[i]
		var err error
		for which := range p.numbers {
			err = errors.Join(err, p.placeNumber(d, which, encode))
		}
		if err == nil && numbersID {
			if err = errBadID(d.id()); err == nil {
				err = noTwin(twins, d)
			}
		}
		if err != nil {
			bad = append(bad, p.refuse(d, err))
		}
	}
	return bad
}

// placeNumber puts a document's value into its field; an int64 without moving anything.
func (p *part) placeNumber(d *document, which int, encode *encoder) error {
	number, value := p.numbers[which], d.numbers[which]
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
