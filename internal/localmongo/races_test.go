package localmongo_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/servertest"
)

const (
	racers = 16 // clients that do the same at the same time
	rounds = 10 // each in a database of its own
)

// race is what many clients do at the same moment, and what must be true afterwards.
type race struct {
	name string

	// prepare makes the collection; nil leaves the database without any, so that the racers create it.
	prepare func(ctx context.Context, c *mongo.Collection) error

	// act is called by each racer with its own number.
	act func(ctx context.Context, c *mongo.Collection, i int) error

	winners   int // racers without an error; the others must have a duplicate-key error. -1: any number
	documents int64
}

var (
	upsertOne = options.UpdateOne().SetUpsert(true)
	upsertFAM = options.FindOneAndUpdate().SetUpsert(true)
)

var races = []race{
	{
		name: "insert one _id, new database",
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			_, err := c.InsertOne(ctx, bson.M{"_id": 1, "by": i})
			return err
		},
		winners: 1, documents: 1,
	},
	{
		name:    "insert one _id",
		prepare: create,
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			_, err := c.InsertOne(ctx, bson.M{"_id": 1, "by": i})
			return err
		},
		winners: 1, documents: 1,
	},
	{
		name: "insert many _ids, new database",
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			_, err := c.InsertMany(ctx, []any{bson.M{"_id": 2 * i}, bson.M{"_id": 2*i + 1}})
			return err
		},
		winners: racers, documents: 2 * racers,
	},
	{
		name:    "insert one value of a unique index",
		prepare: uniqueIndex,
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			_, err := c.InsertOne(ctx, bson.M{"_id": i, "number": 7})
			return err
		},
		winners: 1, documents: 1,
	},
	{
		name: "create one unique index, new database",
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			if err := uniqueIndex(ctx, c); err != nil {
				return err
			}
			_, err := c.InsertOne(ctx, bson.M{"_id": i, "number": 7})
			return err
		},
		winners: 1, documents: 1,
	},
	{
		name: "findAndModify upserts one _id, new database",
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			return found(c.FindOneAndUpdate(ctx, bson.M{"_id": 1}, bson.M{"$inc": bson.M{"n": 1}}, upsertFAM))
		},
		winners: -1, documents: 1,
	},
	{
		name:    "findAndModify upserts one value of a unique index",
		prepare: uniqueIndex,
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			return found(c.FindOneAndUpdate(ctx, bson.M{"number": 7}, bson.M{"$inc": bson.M{"n": 1}}, upsertFAM))
		},
		winners: -1, documents: 1,
	},
	{
		name:    "update upserts one value of a unique index",
		prepare: uniqueIndex,
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			_, err := c.UpdateOne(ctx, bson.M{"number": 7}, bson.M{"$inc": bson.M{"n": 1}}, upsertOne)
			return err
		},
		winners: -1, documents: 1,
	},
	{
		name: "insert against upsert of one _id, new database",
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			if i%2 == 0 {
				_, err := c.InsertOne(ctx, bson.M{"_id": 1})
				return err
			}
			return found(c.FindOneAndUpdate(ctx, bson.M{"_id": 1}, bson.M{"$inc": bson.M{"n": 1}}, upsertFAM))
		},
		winners: -1, documents: 1,
	},
	{
		name: "insert and delete one's own",
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			documents := make([]any, 150) // more than FerretDB puts into one statement
			for k := range documents {
				documents[k] = bson.M{"by": i}
			}
			if _, err := c.InsertMany(ctx, documents); err != nil {
				return err
			}
			result, err := c.DeleteMany(ctx, bson.M{"by": i})
			if err == nil && result.DeletedCount != 150 {
				err = fmt.Errorf("deleted %d of 150", result.DeletedCount)
			}
			return err
		},
		winners: racers, documents: 0,
	},
	{
		name:    "drop the collection among inserts",
		prepare: create,
		act: func(ctx context.Context, c *mongo.Collection, i int) error {
			for range 10 {
				if i == 0 {
					if err := c.Drop(ctx); err != nil {
						return err
					}
				} else if _, err := c.InsertOne(ctx, bson.M{}); err != nil {
					return err
				}
			}
			return nil
		},
		winners: racers, documents: -1,
	},
}

func TestRaces(t *testing.T) {
	s := servertest.Embedded(t)
	client := s.Client(t)
	for _, r := range races {
		t.Run(r.name, func(t *testing.T) {
			for range rounds {
				c := s.Database(t, client).Collection("c")
				if r.prepare != nil {
					if err := r.prepare(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				won := 0
				for _, err := range together(racers, func(i int) error { return r.act(t.Context(), c, i) }) {
					switch {
					case err == nil:
						won++
					case r.winners == racers || !mongo.IsDuplicateKeyError(err):
						t.Error(err)
					}
				}
				if r.winners >= 0 && won != r.winners || won == 0 {
					t.Errorf("%d of %d succeeded, want %d", won, racers, r.winners)
				}
				n, err := c.CountDocuments(t.Context(), bson.M{})
				if err != nil {
					t.Fatal(err)
				}
				if r.documents >= 0 && n != r.documents {
					t.Errorf("%d documents, want %d", n, r.documents)
				}
			}
		})
	}
}

// TestIncrements: no two clients of a counter get the same value. (FerretDB by itself gave out most values twice.)
func TestIncrements(t *testing.T) {
	const clients, each = 8, 200
	s := servertest.Embedded(t)
	c := s.Database(t, s.Client(t)).Collection("counters")
	values := make([][each]int64, clients)
	for _, err := range together(clients, func(i int) error {
		for k := range each {
			var counter struct{ N int64 }
			err := c.FindOneAndUpdate(t.Context(), bson.M{"_id": "orders"}, bson.M{"$inc": bson.M{"n": 1}},
				options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&counter)
			if err != nil {
				return err
			}
			values[i][k] = counter.N
		}
		return nil
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	seen := map[int64]bool{}
	for _, client := range values {
		for k, n := range client {
			if seen[n] || n < 1 || n > clients*each {
				t.Errorf("%d: given out twice, or out of range", n)
			}
			if seen[n] = true; k > 0 && n <= client[k-1] {
				t.Errorf("%d after %d", n, client[k-1])
			}
		}
	}
}

// TestDropDatabaseAmongInserts needs a client that waits as long as it takes: without the front, a dropped database
// blocks the writers for minutes.
func TestDropDatabaseAmongInserts(t *testing.T) {
	s := servertest.Embedded(t)
	db := s.Database(t, s.Client(t))
	for _, err := range together(racers, func(i int) error {
		for range 20 {
			if i == 0 {
				if err := db.Drop(t.Context()); err != nil {
					return err
				}
			} else if _, err := db.Collection("c").InsertOne(t.Context(), bson.M{}); err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

// together calls f from n goroutines at the same moment.
func together(n int, f func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

func create(ctx context.Context, c *mongo.Collection) error {
	return c.Database().CreateCollection(ctx, c.Name())
}

func uniqueIndex(ctx context.Context, c *mongo.Collection) error {
	_, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys: bson.D{{Key: "number", Value: 1}}, Options: options.Index().SetUnique(true),
	})
	return err
}

// found is the error of a findAndModify; that an upsert found nothing to return is none.
func found(r *mongo.SingleResult) error {
	if err := r.Err(); err != mongo.ErrNoDocuments {
		return err
	}
	return nil
}
