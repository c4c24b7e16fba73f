package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
)

// The chunks and the concurrency of everybody: the library's defaults.
const (
	chunk       = 1_000
	concurrency = 4
)

func small(i int) bson.D {
	return bson.D{{Key: "name", Value: "somebody"}, {Key: "city", Value: "somewhere"}, {Key: "i", Value: i}}
}

func withoutIDs(n int) []bson.D {
	documents := make([]bson.D, n)
	for i := range documents {
		documents[i] = small(i)
	}
	return documents
}

func withIDs(n int) []bson.D {
	documents := make([]bson.D, n)
	for i := range documents {
		documents[i] = append(bson.D{{Key: "_id", Value: bson.NewObjectID()}}, small(i)...)
	}
	return documents
}

// insertMany is the plain driver: InsertMany for each chunk, some at a time. It leaves documents behind when it fails.
func insertMany(coll *mongo.Collection, documents []bson.D, chunk int) task {
	return whole(func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(concurrency)
		for from := 0; from < len(documents); from += chunk {
			group.Go(func() error {
				_, err := coll.InsertMany(ctx, documents[from:min(from+chunk, len(documents))], options.InsertMany().SetOrdered(false))
				return err
			})
		}
		return group.Wait()
	})
}

// insertOurs is the library.
func insertOurs(config batch.Config, part batch.Part) task {
	inserter := batch.New(config)
	return whole(func(ctx context.Context) error {
		_, err := inserter.Insert(ctx, part)
		return err
	})
}

// insertSingly is what is usually written by hand: a goroutine for each document, which fetches a number and inserts.
func insertSingly(coll *mongo.Collection, documents []bson.D, number *idgen.Counter) task {
	return whole(func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, document := range documents {
			group.Go(func() error {
				n, err := number.Next(ctx)
				if err != nil {
					return err
				}
				_, err = coll.InsertOne(ctx, append(document[:len(document):len(document)], bson.E{Key: "no", Value: n}))
				return err
			})
		}
		return group.Wait()
	})
}

var errSource = errors.New("the source fails at its end")

// rollback stores documents from a source that fails at its end, when all but a chunk are stored for certain, and gives the
// time of the insert and of the rollback.
func rollback(coll *mongo.Collection, documents []bson.D) (insert, undo task) {
	once := func(ctx context.Context) (inserting, deleting time.Duration, err error) {
		var began, ended time.Time
		stored, most := 0, make(chan struct{})
		start := time.Now()
		inserter := batch.New(batch.Config{Observe: func(e batch.Event) { // called by one goroutine at a time
			switch e.Kind {
			case batch.Inserted:
				if stored += e.Documents; stored == len(documents)-chunk {
					close(most)
				}
			case batch.RollbackStarted:
				began = time.Now()
			case batch.RolledBack:
				ended = time.Now()
			}
		}})
		var source iter.Seq2[bson.D, error] = func(yield func(bson.D, error) bool) {
			for _, document := range documents {
				if !yield(document, nil) {
					return
				}
			}
			select {
			case <-most:
			case <-ctx.Done():
			}
			yield(nil, errSource)
		}
		_, err = inserter.Insert(ctx, batch.Stream(coll, source))
		var failed *batch.Error
		if !errors.As(err, &failed) || !failed.RolledBack() || failed.Rollback.Deleted < int64(len(documents)-chunk) {
			return 0, 0, fmt.Errorf("the rollback went wrong: %w", err)
		}
		return began.Sub(start), ended.Sub(began), nil
	}
	insert = func(ctx context.Context) (time.Duration, error) {
		inserting, _, err := once(ctx)
		return inserting, err
	}
	undo = func(ctx context.Context) (time.Duration, error) {
		_, deleting, err := once(ctx)
		return deleting, err
	}
	return insert, undo
}

// requests are many small batches at a time, as an endpoint for bulk creates sends them.
func requests(n int, one func(ctx context.Context, i int) error) task {
	return whole(func(ctx context.Context) error {
		var group sync.WaitGroup
		errs := make([]error, n)
		for i := range n {
			group.Go(func() { errs[i] = one(ctx, i) })
		}
		group.Wait()
		return errors.Join(errs...)
	})
}
