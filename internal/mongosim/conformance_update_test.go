package mongosim_test

import (
	"errors"
	"math"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// one is the only document of the collection, as it is stored.
func (w *world) one() (bson.D, error) {
	var doc bson.D
	err := w.coll.FindOne(w.ctx, d()).Decode(&doc)
	return doc, err
}

// updated applies an update to a document and compares the outcome.
func updated(before, update, want bson.D) func(*world) error {
	return func(w *world) error {
		if err := w.seed(before); err != nil {
			return err
		}
		if _, err := w.coll.UpdateOne(w.ctx, d("_id", 1), update); err != nil {
			return err
		}
		got, err := w.one()
		return lines(err, equal("document", got, want))
	}
}

// refusesUpdate checks an update that must fail and change nothing.
func refusesUpdate(before, update bson.D, code int) func(*world) error {
	return func(w *world) error {
		if err := w.seed(before); err != nil {
			return err
		}
		_, err := w.coll.UpdateOne(w.ctx, d("_id", 1), update)
		got, findErr := w.one()
		return lines(refused(err, code), findErr, equal("document", got, before))
	}
}

var updateBehaviours = []behaviour{
	{name: "$set, $unset, $inc and $setOnInsert on an existing document", run: updated(
		d("_id", int32(1), "a", int32(1), "b", "x", "c", d("d", int32(1), "e", int32(2))),
		d("$set", d("c.f", "new", "a", "y"), "$unset", d("b", "", "c.d", ""), "$inc", d("n", int32(5), "c.e", int32(1)), "$setOnInsert", d("z", 1)),
		d("_id", int32(1), "a", "y", "c", d("e", int32(3), "f", "new"), "n", int32(5)))},
	{name: "$max raises and never lowers", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "n", int64(5))); err != nil {
			return err
		}
		for _, n := range []int64{3, 9, 7} {
			if _, err := w.coll.UpdateOne(w.ctx, d("_id", 1), d("$max", d("n", n, "m", n))); err != nil {
				return err
			}
		}
		got, err := w.one()
		return lines(err, equal("document", got, d("_id", int32(1), "n", int64(9), "m", int64(9))))
	}},
	{name: "$min lowers and never raises", run: updated(d("_id", int32(1), "n", int32(5)), d("$min", d("n", int32(7), "m", int32(1))),
		d("_id", int32(1), "n", int32(5), "m", int32(1)))},
	{name: "$inc of an int32 beyond its range becomes an int64", run: updated(d("_id", int32(1), "n", int32(math.MaxInt32)),
		d("$inc", d("n", int32(1))), d("_id", int32(1), "n", int64(math.MaxInt32+1)))},
	{name: "$inc with an int64 makes an int64", run: updated(d("_id", int32(1), "n", int32(7)), d("$inc", d("n", int64(1))),
		d("_id", int32(1), "n", int64(8)))},
	{name: "$inc keeps a double a double", run: updated(d("_id", int32(1), "n", 7.0), d("$inc", d("n", int64(1))),
		d("_id", int32(1), "n", 8.0))},
	{name: "$inc beyond int64 is refused", run: refusesUpdate(d("_id", int32(1), "n", int64(math.MaxInt64-2)), d("$inc", d("n", int64(5))), 2)},
	{name: "$inc of text is refused", run: refusesUpdate(d("_id", int32(1), "n", "8120"), d("$inc", d("n", 1)), 14)},
	{name: "$inc of null is refused", run: refusesUpdate(d("_id", int32(1), "n", nil), d("$inc", d("n", 1)), 14)},
	{name: "two operators on one path are refused", run: refusesUpdate(d("_id", int32(1), "a", "x"), d("$set", d("a", 1), "$inc", d("a", 1)), 40)},
	{name: "a path and its parent are refused", run: refusesUpdate(d("_id", int32(1), "a", "x"), d("$set", d("a.b", 1, "a", 1)), 40)},
	{name: "a path through a number is refused", run: refusesUpdate(d("_id", int32(1), "a", int32(1)), d("$set", d("a.b", 1)), 28)},
	{name: "an unknown update operator is refused", run: refusesUpdate(d("_id", int32(1)), d("$nonsense", d("a", 1)), 9)},
	{name: "an update of many counts matches and changes", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "s", "x", "k", 1), d("_id", 2, "k", 1), d("_id", 3, "s", "x", "k", 2)); err != nil {
			return err
		}
		res, err := w.coll.UpdateMany(w.ctx, d("k", 1), d("$unset", d("s", "")))
		if err != nil {
			return err
		}
		return lines(equal("matched", res.MatchedCount, int64(2)), equal("modified", res.ModifiedCount, int64(1)),
			w.found(d("s", d("$exists", true)), 3))
	}},
	{name: "an update of what is not there changes nothing", run: func(w *world) error {
		res, err := w.coll.UpdateOne(w.ctx, d("_id", 1), d("$set", d("a", 1)))
		if err != nil {
			return err
		}
		return lines(equal("matched", res.MatchedCount, int64(0)), w.found(d()))
	}},
	{name: "a compare-and-set succeeds for one of many", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "state", "open", "v", 1)); err != nil {
			return err
		}
		var mu sync.Mutex
		won := int64(0)
		errs := parallel(8, func(int) error {
			res, err := w.coll.UpdateOne(w.ctx, d("_id", 1, "v", 1, "state", d("$in", bson.A{"open", "aborting"})), d("$set", d("state", "committed"), "$inc", d("v", 1)))
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			won += res.ModifiedCount
			return nil
		})
		return lines(errs, equal("winners", won, int64(1)))
	}},
	{name: "a replacement keeps the _id", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "a", 1)); err != nil {
			return err
		}
		if _, err := w.coll.ReplaceOne(w.ctx, d("a", 1), d("b", int32(2))); err != nil {
			return err
		}
		got, err := w.one()
		return lines(err, equal("document", got, d("_id", int32(1), "b", int32(2))))
	}},
	{name: "an upsert takes the equalities of its query", run: func(w *world) error {
		res, err := w.coll.UpdateOne(w.ctx, d("_id", int32(1), "a.b", "x", "n", d("$gte", 5)), d("$set", d("c", "y"), "$setOnInsert", d("d", "z")),
			options.UpdateOne().SetUpsert(true))
		if err != nil {
			return err
		}
		got, err := w.one()
		return lines(err, equal("upserted", res.UpsertedID, 1), equal("document", got, d("_id", int32(1), "a", d("b", "x"), "c", "y", "d", "z")))
	}},
	{name: "an upsert that must not insert twice clashes on _id", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "owner", "a")); err != nil {
			return err
		}
		_, err := w.coll.UpdateOne(w.ctx, d("_id", 1, "owner", "b"), d("$set", d("x", 1)), options.UpdateOne().SetUpsert(true))
		return refused(err, 11000)
	}},
	{name: "$rename and the like are known or refused, never ignored", on: onSets, run: func(w *world) error {
		if err := w.seed(d("_id", 1, "a", 1)); err != nil {
			return err
		}
		if _, err := w.coll.UpdateOne(w.ctx, d("_id", 1), d("$rename", d("a", "b"))); err != nil {
			return refused(err, 238) // the simulator's answer
		}
		return w.found(d("b", 1), 1)
	}},
}

func (w *world) next(update bson.D) (int64, error) {
	var doc struct{ Seq int64 }
	err := w.coll.FindOneAndUpdate(w.ctx, d("_id", "n"), update,
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&doc)
	return doc.Seq, err
}

var modifyBehaviours = []behaviour{
	{name: "findAndModify creates a counter and returns the new value", run: func(w *world) error {
		first, err := w.next(d("$inc", d("seq", 5)))
		if err != nil {
			return err
		}
		second, err := w.next(d("$inc", d("seq", 5)))
		return lines(err, equal("first", first, int64(5)), equal("second", second, int64(10)))
	}},
	{name: "findAndModify on nothing returns null", run: func(w *world) error {
		reply, err := w.command("findAndModify", "c", "query", d("_id", 1), "update", d("$set", d("a", 1)), "new", true)
		value, there := reply["value"]
		return lines(err, equal("value", value, nil), equal("has a value", there, true), w.found(d()))
	}},
	{name: "an upserting findAndModify returns null for the document before", run: func(w *world) error {
		reply, err := w.command("findAndModify", "c", "query", d("_id", 1), "update", d("$set", d("a", 1)), "upsert", true)
		last, _ := reply["lastErrorObject"].(bson.D)
		i := slices.IndexFunc(last, func(e bson.E) bool { return e.Key == "upserted" })
		if i < 0 {
			return errors.New("lastErrorObject does not name the upserted _id")
		}
		return lines(err, equal("value", reply["value"], nil), equal("upserted", last[i].Value, 1))
	}},
	{name: "findAndModify removes and returns", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "k", 2), d("_id", 2, "k", 1)); err != nil {
			return err
		}
		var got bson.D
		err := w.coll.FindOneAndDelete(w.ctx, d(), options.FindOneAndDelete().SetSort(d("k", 1)).SetProjection(d("k", 1, "_id", 0))).Decode(&got)
		return lines(err, equal("document", got, d("k", int32(1))), w.found(d(), 1))
	}},
	{name: "800 increments by eight clients are 800 different numbers", run: func(w *world) error {
		if err := w.seed(d("_id", "n", "seq", int64(0))); err != nil {
			return err
		}
		seen := map[int64]bool{}
		var mu sync.Mutex
		errs := parallel(8, func(int) error {
			for range 100 {
				n, err := w.next(d("$inc", d("seq", int64(1))))
				if err != nil {
					return err
				}
				mu.Lock()
				seen[n] = true
				mu.Unlock()
			}
			return nil
		})
		return lines(errs, equal("different numbers", len(seen), 800))
	}},
	{name: "sixteen clients create a counter at once, and each gets its own number", run: func(w *world) error {
		seen := map[int64]bool{}
		var mu sync.Mutex
		errs := parallel(16, func(int) error {
			for {
				n, err := w.next(d("$inc", d("seq", int64(1))))
				if mongo.IsDuplicateKeyError(err) {
					continue // two inserted at once, and this one lost: what a caller has to expect
				}
				if err != nil {
					return err
				}
				mu.Lock()
				seen[n] = true
				mu.Unlock()
				return nil
			}
		})
		return lines(errs, equal("different numbers", len(seen), 16), equal("the highest", seen[16], true))
	}},
	{name: "findAndModify needs an update or remove", run: func(w *world) error {
		_, err := w.command("findAndModify", "c", "query", d())
		return refused(err, 9)
	}},
}
