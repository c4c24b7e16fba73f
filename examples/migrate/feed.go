package main

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// mostHeld is how many documents for other collections than the first may be held in memory.
const mostHeld = 100_000

// feed is what the documents of the source become, one collection after the other.
type feed struct {
	from      *source
	transform Transform
	read      int      // documents of the source
	held      [][]made // by collection; nothing for the first
	recent    []bson.RawValue
	before    int // documents for the first collection whose origins are not in recent any more
	window    int // most origins that are needed: those of what is under way
}

// made is a document to be stored and the _id of the one that it was made of.
type made struct {
	document any
	origin   bson.RawValue
}

func newFeed(from *source, transform Transform, targets, workers int) *feed {
	return &feed{from: from, transform: transform, held: make([][]made, targets), window: (workers + 2) * chunk}
}

// chunk is the number of documents that travel together, as in package batch.
const chunk = 1000

// refusedError is a document of the source that the transform refused.
type refusedError struct {
	id  bson.RawValue
	err error
}

func (e *refusedError) Error() string { return idText(e.id) + ": " + e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// documents iterates over those for one collection. The source is read for the first, and has to have been read to its
// end for the others.
func (f *feed) documents(ctx context.Context, to int) iter.Seq2[any, error] {
	return func(yield func(any, error) bool) {
		if to > 0 {
			for _, m := range f.held[to] {
				if !yield(m.document, nil) {
					return
				}
			}
			return
		}
		for raw, err := range f.from.documents(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			f.read++
			id := raw.Lookup("_id")
			id.Value = bytes.Clone(id.Value) // it outlives the document
			outs, err := f.make(ctx, raw)
			if err != nil {
				yield(nil, &refusedError{id, err})
				return
			}
			for _, out := range outs {
				if out.To > 0 {
					f.held[out.To] = append(f.held[out.To], made{out.Document, id})
					continue
				}
				f.remember(id)
				if !yield(out.Document, nil) {
					return
				}
			}
		}
	}
}

// make transforms a document, and checks what the transform says of the collections.
func (f *feed) make(ctx context.Context, raw bson.Raw) ([]Out, error) {
	outs, err := f.transform(ctx, raw)
	if err != nil {
		return nil, err
	}
	for _, out := range outs {
		switch {
		case out.To < 0 || out.To >= len(f.held):
			return nil, fmt.Errorf("the transform sends a document to collection %d of %d", out.To, len(f.held))
		case len(f.held[out.To]) == mostHeld:
			return nil, fmt.Errorf("more than %d documents for collection %d would have to be held in memory: make the collection that gets the most the first", mostHeld, out.To)
		}
	}
	return outs, nil
}

func (f *feed) remember(id bson.RawValue) {
	if len(f.recent) == 2*f.window {
		f.recent = append(f.recent[:0:0], f.recent[f.window:]...)
		f.before += f.window
	}
	f.recent = append(f.recent, id)
}

// origin returns the _id of the document of the source of which one under way was made.
func (f *feed) origin(to, index int) (bson.RawValue, bool) {
	if to > 0 {
		return f.held[to][index].origin, true
	}
	if i := index - f.before; i >= 0 && i < len(f.recent) {
		return f.recent[i], true
	}
	return bson.RawValue{}, false
}
