package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Sequence gives out numbers. The kinds of package idgen are Sequences.
//
// Reserve takes n values, n > 0, out of the sequence and returns them in order. It must never return a value twice. An
// int64 is stored as a 64-bit integer, a string as text; any other value as the batch's registry encodes it.
type Sequence interface {
	Reserve(ctx context.Context, n int) ([]any, error)
}

// Proposer is a Sequence whose values are only proposals: another writer may take one first, which the server then
// tells by a duplicate key. The documents that clashed get new values and are sent again, and only they; their numbers
// then do not follow the order of the documents. idgen.Optimistic is a Proposer.
type Proposer interface {
	Sequence
	// Clashed reports whether an insert was refused because its value was taken.
	Clashed(ctx context.Context, refused mongo.WriteError, value any) bool
	// Again is called before the clashed documents get new values, with the number of the attempt that failed,
	// counted from 1. It waits as long as it sees fit, or returns an error when there were enough attempts.
	Again(ctx context.Context, attempt, clashed int) error
}

// Part is what a batch stores in one collection. It is made by Into. Its methods return a changed copy.
type Part struct {
	coll     *mongo.Collection
	count    int                   // of documents; 0 for a stream
	at       func(i int) any       // the i-th document
	stream   iter.Seq2[any, error] // nil for a slice
	numbers  []numbering
	shardKey []string
	err      error // what is wrong with the calls that made it
}

type numbering struct {
	field    string
	path     []string
	sequence Sequence
}

// Into makes the part of a batch that stores documents in coll. A document is anything that the driver encodes to a BSON
// document: a struct, a pointer, a map, bson.D, bson.Raw. The documents are encoded when the batch is inserted and are
// not changed; a document without an _id gets an ObjectID, which Result tells.
//
// The same collection may be the target of several parts.
func Into[T any](coll *mongo.Collection, documents []T) Part {
	part := Part{coll: coll, count: len(documents), at: func(i int) any { return documents[i] }}
	if coll == nil {
		part.err = errors.New("no collection")
	}
	return part
}

// Stream makes the part of a batch that stores the documents of a source which are not all in memory. A document is what
// it is for Into. The batch holds a few chunks of documents at a time, and of those that are stored nothing but, for
// claimed ids, the ids.
//
// Less can be promised beforehand: a document that is not fit to be stored is only found when it is read, when others are
// stored already, which are then rolled back; the same _id twice is found by the server; numbers are reserved chunk by
// chunk, still in the order of the documents. PartResult has the number of documents, not their ids. An error of the
// source fails the batch.
//
// The source is read by the goroutine that called Insert, once, and no further after a failure; Insert returns only after
// it has returned. If it panics, the batch is rolled back first.
func Stream[T any](coll *mongo.Collection, documents iter.Seq2[T, error]) Part {
	part := Part{coll: coll}
	if coll == nil {
		part.err = errors.New("no collection")
	}
	if documents == nil {
		part.err = errors.Join(part.err, errors.New("no source of documents"))
		return part
	}
	part.stream = func(yield func(any, error) bool) {
		for document, err := range documents {
			if !yield(document, err) {
				return
			}
		}
	}
	return part
}

// Each turns a function that returns one document after the other, and io.EOF after the last, into a source for Stream.
func Each[T any](next func() (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			document, err := next()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(document, err) || err != nil {
				return
			}
		}
	}
}

// Number has every document's field set to the next value of sequence, in the order of the documents. The field may be
// nested ("meta.no"; documents on the way are created) and may be "_id". A document in which the field already holds
// something else than null, zero or an empty text is refused, and so is one in which the path is ambiguous.
//
// A sequence that numbers several parts or fields of a batch is asked once, for all of them: part by part, field by
// field, document by document.
func (p Part) Number(field string, sequence Sequence) Part {
	path := strings.Split(field, ".")
	switch {
	case slices.Contains(path, "") || strings.ContainsAny(field, "$\x00"):
		p.err = errors.Join(p.err, fmt.Errorf("Number: %q is not the path of a field", field))
	case sequence == nil || isNilPointer(sequence):
		p.err = errors.Join(p.err, fmt.Errorf("Number: no sequence for field %q", field))
	}
	for _, other := range p.numbers {
		if field == other.field || strings.HasPrefix(field, other.field+".") || strings.HasPrefix(other.field, field+".") {
			p.err = errors.Join(p.err, fmt.Errorf("Number: fields %q and %q overlap", other.field, field))
		}
	}
	p.numbers = append(slices.Clip(p.numbers), numbering{field: field, path: path, sequence: sequence})
	return p
}

// ShardKey names the fields of the collection's shard key. It is needed only where a sharded cluster, claimed ids and
// StampNone come together; with it, each delete names the shard key's values too.
func (p Part) ShardKey(fields ...string) Part {
	for _, field := range fields {
		if slices.Contains(strings.Split(field, "."), "") {
			p.err = errors.Join(p.err, fmt.Errorf("ShardKey: %q is not the path of a field", field))
		}
	}
	p.shardKey = slices.Clone(fields)
	return p
}

func isNilPointer(v any) bool {
	switch value := reflect.ValueOf(v); value.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Interface, reflect.Chan:
		return value.IsNil()
	}
	return false
}

func namespace(coll *mongo.Collection) string {
	return coll.Database().Name() + "." + coll.Name()
}
