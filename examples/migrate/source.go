package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// source reads a collection in the order of _id, which no update changes: every document comes once.
type source struct {
	coll   *mongo.Collection
	filter bson.D
	lost   func(err error) // is told when reading has to begin again behind the last document; nil for nobody
	batch  int32           // documents that are fetched at a time: few enough that the next question comes soon
	pause  time.Duration   // after the first loss; doubled after each that follows without a document in between
}

const pause = 100 * time.Millisecond

// mostLosses is how often in a row a cursor may be lost before a document comes; the pauses then add up to 25 seconds.
const mostLosses = 9

// newSource reads at majority where the server can, so that nothing is copied that a failover takes back.
func newSource(ctx context.Context, coll *mongo.Collection, filter bson.D) (*source, error) {
	var hello struct{ SetName, Msg string }
	if err := coll.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return nil, fmt.Errorf("the source's server does not say what it is: %w", err)
	}
	if hello.SetName != "" || hello.Msg == "isdbgrid" {
		coll = coll.Clone(driver.Collection().SetReadConcern(readconcern.Majority()))
	}
	if filter == nil {
		filter = bson.D{}
	}
	return &source{coll: coll, filter: filter, batch: chunk, pause: pause}, nil
}

// count says how many documents there are to read, roughly; negative if that takes too long to find out.
func (s *source) count(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var n int64
	var err error
	if len(s.filter) == 0 {
		n, err = s.coll.EstimatedDocumentCount(ctx)
	} else {
		n, err = s.coll.CountDocuments(ctx, s.filter)
	}
	if err != nil {
		return -1
	}
	return int(n)
}

// documents iterates over the documents; the receiver may keep them.
//
// A cursor and its session live on a server for as long as somebody asks them for more: every batch that is fetched renews
// both. Should they be gone all the same (after ten minutes or half an hour without a question, a restart, a failover),
// reading begins again behind the last document. An error ends the iteration.
func (s *source) documents(ctx context.Context) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		var last bson.RawValue // _id of the last document; its zero value before the first
		for losses := 0; ; {
			before := last
			err := s.read(ctx, &last, yield)
			if err == nil {
				return
			}
			if !bytes.Equal(before.Value, last.Value) || before.Type != last.Type {
				losses = 0
			}
			losses++
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			} else if passes(err) && losses < mostLosses {
				if s.lost != nil {
					s.lost(err)
				}
				select {
				case <-time.After(s.pause << (losses - 1)):
				case <-ctx.Done():
				}
				continue
			}
			yield(nil, err)
			return
		}
	}
}

// read opens a cursor behind the last document and reads to the end, or until nobody wants more.
func (s *source) read(ctx context.Context, last *bson.RawValue, yield func(bson.Raw, error) bool) error {
	filter := s.filter
	if last.Type != 0 {
		filter = bson.D{{Key: "$and", Value: bson.A{s.filter, after(*last)}}}
	}
	cursor, err := s.coll.Find(ctx, filter, driver.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetBatchSize(s.batch))
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }() // the server forgets it in any case
	for cursor.Next(ctx) {
		document := bytes.Clone(cursor.Current)
		id := bson.Raw(document).Lookup("_id")
		switch {
		case rank(id.Type) < 0:
			return fmt.Errorf("there is a document whose _id is of type %q, behind which reading could not go on", id.Type)
		case id.Equal(*last):
			return fmt.Errorf("there are two documents with the _id %v (a view, or a sharded collection that is not sharded by _id?)", id)
		}
		*last = id
		if !yield(document, nil) {
			return nil
		}
	}
	return cursor.Err()
}

// order is that of the types of _id. Those that only old or odd programs use are left out, because not every server
// knows their names in a filter.
var order = []struct {
	name  string
	types []bson.Type
}{
	{"null", []bson.Type{bson.TypeNull}},
	{"number", []bson.Type{bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128}},
	{"string", []bson.Type{bson.TypeString}},
	{"object", []bson.Type{bson.TypeEmbeddedDocument}},
	{"binData", []bson.Type{bson.TypeBinary}},
	{"objectId", []bson.Type{bson.TypeObjectID}},
	{"bool", []bson.Type{bson.TypeBoolean}},
	{"date", []bson.Type{bson.TypeDateTime}},
	{"timestamp", []bson.Type{bson.TypeTimestamp}},
}

// rank is the place of a type in the order, or -1.
func rank(t bson.Type) int {
	for i, o := range order {
		if slices.Contains(o.types, t) {
			return i
		}
	}
	return -1
}

// after matches what follows an _id. A comparison in a filter looks at values of one type only, numbers counting as one, so
// that {$gt: 5} alone would leave out every text; the types that follow have to be named.
func after(id bson.RawValue) bson.D {
	higher := bson.D{{Key: "$gt", Value: id}}
	double, _ := id.DoubleOK()
	decimal, _ := id.Decimal128OK()
	if math.IsNaN(double) || decimal.IsNaN() { // the first of the numbers, but not less than any
		higher = bson.D{{Key: "$gte", Value: math.Inf(-1)}}
	}
	either := bson.A{bson.D{{Key: "_id", Value: higher}}}
	var types bson.A
	for _, o := range order[rank(id.Type)+1:] {
		types = append(types, o.name)
	}
	if len(types) > 0 {
		either = append(either, bson.D{{Key: "_id", Value: bson.D{{Key: "$type", Value: types}}}})
	}
	return bson.D{{Key: "$or", Value: either}}
}

// lostCodes are a server's answers after which another cursor can be had: the cursor or its session is gone, or the
// server is going, or is not the primary any more.
var lostCodes = []int{
	43,                                                              // CursorNotFound
	237,                                                             // CursorKilled
	175,                                                             // QueryPlanKilled
	206,                                                             // NoSuchSession
	6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436, // no host, shutting down, not primary
	50, 16500, // took too long, throttled
}

// passes reports whether an error of a read is one that passes: no answer, or one of lostCodes.
func passes(err error) bool {
	var answer mongo.ServerError
	return mongo.IsNetworkError(err) || mongo.IsTimeout(err) ||
		errors.As(err, &answer) && slices.ContainsFunc(lostCodes, answer.HasErrorCode)
}
