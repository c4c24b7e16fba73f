package journal

import (
	"context"
	"encoding/binary"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Result tells what one part of a keyed batch stored.
type Result struct {
	// Streamed: the documents came from a stream, so that only their number is known.
	Streamed bool `bson:"streamed,omitempty"`
	// IDs and Numbers are those of a slice's documents.
	IDs     Column    `bson:"ids"`
	Numbers []Numbers `bson:"numbers,omitempty"`
}

// Numbers are the values of one numbered field.
type Numbers struct {
	Field  string `bson:"field"`
	Values Column `bson:"values"`
}

// Column holds one value per document, in the order of the documents, in the smallest of three forms. Its size in the
// head does not depend on the number of documents.
type Column struct {
	// Minted: the values are the target's minted ids.
	Minted bool `bson:"minted,omitempty"`
	// Series: the values are the 64-bit integers First, First+Step, …
	Series bool  `bson:"series,omitempty"`
	First  int64 `bson:"first,omitempty"`
	Step   int64 `bson:"step,omitempty"`
	// Otherwise they are in Pages pages of the kind Stored, from number Page on.
	Page  int32 `bson:"page,omitempty"`
	Pages int32 `bson:"pages,omitempty"`
}

// StoreColumn writes the pages that the values need, counted on from *next, and returns their column.
func (j *Journal) StoreColumn(ctx context.Context, record Record, target int, values []bson.RawValue, next *int) (Column, error) {
	if first, step, ok := series(values); ok {
		return Column{Series: true, First: first, Step: step}, nil
	}
	column := Column{Page: int32(*next)}
	for paged := range Paged(values) {
		page := Page{ID: PageID(record.Attempt, Stored, *next), Target: int32(target), Values: paged}
		if err := j.AddPage(ctx, page); err != nil {
			return Column{}, err
		}
		*next++
		column.Pages++
	}
	return column, nil
}

// series reports whether the values are equally spaced 64-bit integers.
func series(values []bson.RawValue) (first, step int64, ok bool) {
	for i, v := range values {
		if v.Type != bson.TypeInt64 {
			return 0, 0, false
		}
		n := int64(binary.LittleEndian.Uint64(v.Value))
		switch i {
		case 0:
			first = n
		case 1:
			step = n - first
		default:
			if n != first+int64(i)*step {
				return 0, 0, false
			}
		}
	}
	return first, step, true
}

// LoadColumn reads back what StoreColumn stored.
func (j *Journal) LoadColumn(ctx context.Context, record Record, target int, column Column) ([]bson.RawValue, error) {
	count := int(record.Targets[target].Documents)
	values := make([]bson.RawValue, 0, count)
	switch {
	case column.Minted:
		for _, run := range record.Targets[target].Minted {
			for i := range run.Count {
				id := run.At(i)
				values = append(values, bson.RawValue{Type: bson.TypeObjectID, Value: id[:]})
			}
		}
	case column.Series:
		for i := range int64(count) {
			values = append(values, bson.RawValue{Type: bson.TypeInt64, Value: binary.LittleEndian.AppendUint64(nil, uint64(column.First+i*column.Step))})
		}
	default:
		from, to := PageID(record.Attempt, Stored, int(column.Page)), PageID(record.Attempt, Stored, int(column.Page+column.Pages))
		err := j.repeat(ctx, func(ctx context.Context) error {
			values = values[:0]
			return j.readPages(ctx, from, to, &values)
		})
		if err != nil {
			return nil, err
		}
	}
	if len(values) != count {
		return nil, fmt.Errorf("%w: a column has %d values for %d documents", ErrDamaged, len(values), count)
	}
	return values, nil
}

func (j *Journal) readPages(ctx context.Context, from, to string, values *[]bson.RawValue) error {
	return eachPage(ctx, j.pages, bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lt", Value: to}}}}, func(page Page) error {
		*values = append(*values, page.Values...)
		return nil
	})
}

func eachPage(ctx context.Context, pages *mongo.Collection, filter bson.D, each func(Page) error) error {
	cursor, err := pages.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(ctx) }() // a cursor that is read to its end is closed by the server
	for cursor.Next(ctx) {
		var page Page
		if err := cursor.Decode(&page); err != nil {
			return fmt.Errorf("%w: page: %w", ErrDamaged, err)
		}
		for i := range page.Values { // they point into the cursor's batch
			page.Values[i].Value = append([]byte(nil), page.Values[i].Value...)
		}
		if err := each(page); err != nil {
			return err
		}
	}
	return cursor.Err()
}

// At returns the i-th id of the run.
func (r Run) At(i int64) bson.ObjectID {
	id := r.First
	counter := int64(id[9])<<16 + int64(id[10])<<8 + int64(id[11]) + i
	id[9], id[10], id[11] = byte(counter>>16), byte(counter>>8), byte(counter)
	return id
}
