package mongosim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

var unacknowledged = &writeconcern.WriteConcern{W: 0}

// parallel runs f n times at once and joins the errors.
func parallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// eventually tries until f succeeds or the context ends.
func eventually(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// zoo holds one document for each shape that a filter can stumble over; finds is the table of what finds which.
func zoo(w *world) error {
	return w.seed(
		d("_id", 1, "a", 5),
		d("_id", 2, "a", "5"),
		d("_id", 3, "a", nil),
		d("_id", 4),
		d("_id", 5, "a", bson.A{1, 9}),
		d("_id", 6, "a", d("b", 7)),
		d("_id", 7, "a", bson.A{d("b", 7), d("b", 8)}),
		d("_id", 8, "a", 5.5, "x", true),
		d("_id", 9, "a", bson.A{}),
	)
}

func finds(filter bson.D, want ...any) func(*world) error {
	return func(w *world) error { return lines(zoo(w), w.found(filter, want...)) }
}

func refusesFilter(filter bson.D, code int) func(*world) error {
	return func(w *world) error {
		if err := zoo(w); err != nil {
			return err
		}
		_, err := w.ids(filter, d())
		_, deleteErr := w.coll.DeleteMany(w.ctx, filter)
		n, countErr := w.coll.CountDocuments(w.ctx, d())
		return lines(refused(err, code), refused(deleteErr, code), countErr, equal("left", n, int64(9)))
	}
}

var queryBehaviours = []behaviour{
	{name: "an empty filter finds everything", run: finds(d(), 1, 2, 3, 4, 5, 6, 7, 8, 9)},
	{name: "equality looks into arrays and does not convert types", run: finds(d("a", 5), 1)},
	{name: "equality with an element", run: finds(d("a", 9), 5)},
	{name: "equality with a whole array", run: finds(d("a", bson.A{1, 9}), 5)},
	{name: "null is missing too", run: finds(d("a", nil), 3, 4)},
	{name: "$ne null", run: finds(d("a", d("$ne", nil)), 1, 2, 5, 6, 7, 8, 9)},
	{name: "$in with null", run: finds(d("a", d("$in", bson.A{nil, "5"})), 2, 3, 4)},
	{name: "$nin", run: finds(d("a", d("$nin", bson.A{5, nil, 7})), 2, 5, 6, 7, 8, 9)},
	{name: "$gt stays with numbers", run: finds(d("a", d("$gt", 5)), 5, 8)},
	{name: "$gte and $lte are inclusive", run: finds(d("a", d("$gte", 5, "$lte", 5)), 1, 5)},
	{name: "$lt of text", run: finds(d("a", d("$lt", "6")), 2)},
	{name: "$gte null is null or missing", run: finds(d("a", d("$gte", nil)), 3, 4)},
	{name: "$exists true", run: finds(d("a", d("$exists", true)), 1, 2, 3, 5, 6, 7, 8, 9)},
	{name: "$exists false", run: finds(d("a", d("$exists", false)), 4)},
	{name: "$or", run: finds(d("$or", bson.A{d("a", 5), d("x", true)}), 1, 8)},
	{name: "$nor", run: finds(d("$nor", bson.A{d("a", d("$exists", true))}), 4)},
	{name: "$and with a list of ids", run: finds(d("$and", bson.A{d("_id", d("$in", bson.A{1, 4, 8})), d("a", d("$exists", true))}), 1, 8)},
	{name: "$not", run: finds(d("a", d("$not", d("$gt", 5))), 1, 2, 3, 4, 6, 7, 9)},
	{name: "$eq", run: finds(d("a", d("$eq", 5.5)), 8)},
	{name: "a path into a document", run: finds(d("a.b", 7), 6, 7)},
	{name: "a path into an array by position", run: finds(d("a.1", 9), 5)},
	{name: "a whole embedded document", run: finds(d("a", d("b", 7)), 6, 7)},
	{name: "$type of a number", run: finds(d("a", d("$type", "double")), 8)},
	{name: "$size", run: finds(d("a", d("$size", 2)), 5, 7)},
	{name: "two conditions on one field", run: finds(d("_id", d("$gt", 2, "$lte", 6, "$nin", bson.A{4})), 3, 5, 6)},
	{name: "a range between types finds nothing", run: finds(d("_id", d("$gte", "a")))},
	{name: "MinKey and MaxKey bound everything", run: finds(d("_id", d("$gte", bson.MinKey{}, "$lte", bson.MaxKey{})), 1, 2, 3, 4, 5, 6, 7, 8, 9)},
	{name: "an unknown operator is refused", run: refusesFilter(d("a", d("$nonsense", 1)), 2)},
	{name: "an unknown operator at the top is refused", run: refusesFilter(d("$nonsense", 1), 2)},
	{name: "$in without a list is refused", run: refusesFilter(d("a", d("$in", 1)), 2)},
	{name: "operators inside $in are refused", run: refusesFilter(d("_id", d("$in", bson.A{d("$gt", "")})), 2)},
	{name: "an empty $or is refused", run: refusesFilter(d("$or", bson.A{}), 2)},
	{name: "an unknown command is refused", run: func(w *world) error {
		_, err := w.command("nonsense", 1)
		return refused(err, 59)
	}},
	{name: "counting", run: func(w *world) error {
		if err := zoo(w); err != nil {
			return err
		}
		n, err := w.coll.CountDocuments(w.ctx, d("_id", d("$gt", 3)))
		m, limitErr := w.coll.CountDocuments(w.ctx, d(), options.Count().SetLimit(4))
		e, estimateErr := w.coll.EstimatedDocumentCount(w.ctx)
		none, noneErr := w.db.Collection("other").CountDocuments(w.ctx, d())
		return lines(err, limitErr, estimateErr, noneErr, equal("n", n, int64(6)), equal("limited", m, int64(4)),
			equal("estimate", e, int64(9)), equal("of nothing", none, int64(0)))
	}},
	{name: "distinct values", run: func(w *world) error {
		if err := zoo(w); err != nil {
			return err
		}
		var got []any
		err := w.coll.Distinct(w.ctx, "a.b", d()).Decode(&got)
		return lines(err, equal("values", len(got), 2))
	}},
}

var orderBehaviours = []behaviour{
	{name: "sort by a field, limit and skip", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "n", 2), d("_id", 2, "n", 3), d("_id", 3, "n", 1), d("_id", 4)); err != nil {
			return err
		}
		up, err := w.ids(d(), d("n", 1))
		down, downErr := idsOf(w, d("find", "c", "sort", d("n", -1), "limit", 2, "skip", 1))
		return lines(err, downErr, sequence(up, 4, 3, 1, 2), sequence(down, 1, 3))
	}},
	{name: "the highest number of a field", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "n", int32(2)), d("_id", 2, "n", int64(30)), d("_id", 3, "n", 4.0), d("_id", 4)); err != nil {
			return err
		}
		got, err := idsOf(w, d("find", "c", "filter", d("n", d("$exists", true)), "sort", d("n", -1), "limit", 1))
		return lines(err, sequence(got, 2))
	}},
	{name: "types sort in MongoDB's order", run: func(w *world) error {
		if err := w.seed(d("_id", true), d("_id", "a"), d("_id", 5), d("_id", d("x", 1)), d("_id", bson.ObjectID{1}), d("_id", bson.DateTime(7)), d("_id", nil)); err != nil {
			return err
		}
		got, err := w.ids(d(), d("_id", 1))
		return lines(err, sequence(got, nil, 5, "a", d("x", int32(1)), bson.ObjectID{1}, true, bson.DateTime(7)))
	}},
	{name: "a projection includes or excludes", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "a", d("b", int32(1), "c", int32(2)), "x", int32(3))); err != nil {
			return err
		}
		for _, c := range []struct{ projection, want bson.D }{
			{d("x", 1), d("_id", int32(1), "x", int32(3))},
			{d("x", 1, "_id", 0), d("x", int32(3))},
			{d("a.b", 1), d("_id", int32(1), "a", d("b", int32(1)))},
			{d("a.b", 0), d("_id", int32(1), "a", d("c", int32(2)), "x", int32(3))},
			{d("_id", 1), d("_id", int32(1))},
			{d("_id", 0), d("a", d("b", int32(1), "c", int32(2)), "x", int32(3))},
		} {
			var got bson.D
			if err := w.coll.FindOne(w.ctx, d(), options.FindOne().SetProjection(c.projection)).Decode(&got); err != nil {
				return err
			}
			if err := equal(fmt.Sprint(c.projection), got, c.want); err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "a cursor comes in batches and ends", run: func(w *world) error {
		var docs []any
		for i := range 250 {
			docs = append(docs, d("_id", i))
		}
		if err := w.seed(docs...); err != nil {
			return err
		}
		for _, size := range []int32{0, 1, 100, 250, 1000} {
			cur, err := w.coll.Find(w.ctx, d("_id", d("$gte", 10)), options.Find().SetBatchSize(size).SetSort(d("_id", 1)))
			if err != nil {
				return err
			}
			n := 0
			for cur.Next(w.ctx) {
				if got := cur.Current.Lookup("_id").AsInt64(); got != int64(n+10) {
					return fmt.Errorf("document %d has _id %d", n, got)
				}
				n++
			}
			if err := lines(cur.Err(), cur.Close(w.ctx), equal("documents", n, 240)); err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "a cursor that was closed is gone", run: func(w *world) error {
		if err := w.seed(d("_id", 1), d("_id", 2), d("_id", 3)); err != nil {
			return err
		}
		session, err := w.client.StartSession()
		if err != nil {
			return err
		}
		defer session.EndSession(w.ctx)
		cur, err := w.coll.Find(w.ctx, d(), options.Find().SetBatchSize(1))
		if err != nil {
			return err
		}
		id := cur.ID()
		if err := cur.Close(w.ctx); err != nil {
			return err
		}
		_, err = w.command("getMore", id, "collection", "c")
		return refused(err, 43)
	}},
	{name: "a find in a collection that is not there finds nothing", run: func(w *world) error { return w.found(d("x", 1)) }},
}

func sequence(got []any, want ...any) error {
	if !slices.EqualFunc(got, want, same) {
		return fmt.Errorf("the order is %v, want %v", got, want)
	}
	return nil
}
