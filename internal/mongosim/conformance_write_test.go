package mongosim_test

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var insertBehaviours = []behaviour{
	{name: "an unordered insert stores what it can and names the rest by index", run: func(w *world) error {
		if err := w.seed(d("_id", 1), d("_id", 3)); err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{
			d("_id", 0), d("_id", 1), d("_id", 2), d("_id", 3), d("_id", 2)})
		return lines(err, equal("n", reply["n"], 2), codes(reply, map[int32]int32{1: 11000, 3: 11000, 4: 11000}),
			w.found(d(), 0, 1, 2, 3))
	}},
	{name: "an ordered insert stops at the first error", run: func(w *world) error {
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", 0), d("_id", 0), d("_id", 1)})
		return lines(err, equal("n", reply["n"], 1), codes(reply, map[int32]int32{1: 11000}), w.found(d(), 0))
	}},
	{name: "the driver sees the indexes of the refused documents", run: func(w *world) error {
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		_, err := w.coll.InsertMany(w.ctx, []any{d("_id", 0), d("_id", 1), d("_id", 2)}, options.InsertMany().SetOrdered(false))
		var bulk mongo.BulkWriteException
		if !errors.As(err, &bulk) || len(bulk.WriteErrors) != 1 {
			return fmt.Errorf("%v", err)
		}
		return lines(equal("index", bulk.WriteErrors[0].Index, 1), w.found(d(), 0, 1, 2))
	}},
	{name: "E11000 on _id names the key", run: func(w *world) error {
		if err := w.seed(d("_id", "a")); err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", "a")})
		e := writeErrors(reply)[0]
		return lines(err, equal("keyPattern", e["keyPattern"], d("_id", int32(1))), equal("keyValue", e["keyValue"], d("_id", "a")))
	}},
	{name: "E11000 names the index in its text", run: func(w *world) error {
		if err := w.seed(d("_id", "a")); err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", "a")})
		text, _ := writeErrors(reply)[0]["errmsg"].(string)
		return lines(err, contains(text, "E11000 duplicate key error collection: "+w.db.Name()+".c index: _id_ dup key"))
	}},
	{name: "E11000 on another index names that index", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("mail", 1), "name", "by_mail", "unique", true)}); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1, "mail", "x")); err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", 2, "mail", "x")})
		e := writeErrors(reply)[0]
		text, _ := e["errmsg"].(string)
		return lines(err, codes(reply, map[int32]int32{0: 11000}), equal("keyPattern", e["keyPattern"], d("mail", int32(1))),
			equal("keyValue", e["keyValue"], d("mail", "x")), contains(text, "index: by_mail dup key"), w.found(d(), 1))
	}},
	{name: "a missing _id is made by the server and put first", run: func(w *world) error {
		if _, err := w.command("insert", "c", "documents", bson.A{d("x", 1)}); err != nil {
			return err
		}
		raw, err := w.coll.FindOne(w.ctx, d()).Raw()
		if err != nil {
			return err
		}
		elements, err := raw.Elements()
		return lines(err, equal("first field", elements[0].Key(), "_id"), equal("type", elements[0].Value().Type, bson.TypeObjectID))
	}},
	{name: "an _id in the middle is moved to the front", run: func(w *world) error {
		if _, err := w.command("insert", "c", "documents", bson.A{d("x", 1, "_id", 7, "y", 2)}); err != nil {
			return err
		}
		raw, err := w.coll.FindOne(w.ctx, d()).Raw()
		if err != nil {
			return err
		}
		elements, err := raw.Elements()
		return lines(err, equal("first field", elements[0].Key(), "_id"), equal("second field", elements[1].Key(), "x"))
	}},
	{name: "an insert creates the collection", run: func(w *world) error {
		names := func() (n []string) { n, _ = w.db.ListCollectionNames(w.ctx, d()); return n }
		before := len(names())
		err := w.seed(d("_id", 1))
		return lines(err, equal("collections before", before, 0), equal("collections", len(names()), 1))
	}},
	{name: "eight clients create the same collection at once", run: func(w *world) error {
		errs := parallel(8, func(i int) error { return w.seed(d("_id", i)) })
		n, err := w.coll.CountDocuments(w.ctx, d())
		return lines(errs, err, equal("documents", n, int64(8)))
	}},
	{name: "an empty batch is refused", run: func(w *world) error {
		_, err := w.command("insert", "c", "documents", bson.A{})
		return refused(err, 16)
	}},
	{name: "a document over the limit is refused, the others are stored", run: func(w *world) error {
		limit, _ := w.hello["maxBsonObjectSize"].(int32)
		big := make([]byte, int(limit)-20) // 25 bytes of document around it
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{d("_id", 1, "b", big), d("_id", 2)})
		e := writeErrors(reply)
		return lines(err, equal("write errors", len(e), 1), equal("code", e[0]["code"], 2), w.found(d(), 2))
	}},
	{name: "an unknown field of a command is refused", run: func(w *world) error {
		_, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)}, "nonsense", 1)
		return lines(refused(err, 40415), w.found(d()))
	}},
	{name: "an empty timestamp at the top is replaced", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "t", bson.Timestamp{}, "in", d("t", bson.Timestamp{}))); err != nil {
			return err
		}
		raw, err := w.coll.FindOne(w.ctx, d()).Raw()
		if err != nil {
			return err
		}
		t, i := raw.Lookup("t").Timestamp()
		t2, i2 := raw.Lookup("in", "t").Timestamp()
		return lines(equal("top is empty", t == 0 && i == 0, false), equal("nested is empty", t2 == 0 && i2 == 0, true))
	}},
	{name: "20,000 documents in one command", run: func(w *world) error {
		docs := make([]any, 20_000)
		for i := range docs {
			docs[i] = d("_id", i)
		}
		err := w.seed(docs...)
		n, countErr := w.coll.CountDocuments(w.ctx, d())
		return lines(err, countErr, equal("documents", n, int64(len(docs))))
	}},
	{name: "a field name with a dollar is refused before 5.0", on: before50, run: func(w *world) error {
		return refused(w.seed(d("_id", 1, "$x", 1)), 2)
	}},
	{name: "a field name with a dollar is stored since 5.0", on: since50, run: func(w *world) error {
		return lines(w.seed(d("_id", 1, "$x", 1, "a.b", 2)), w.found(d(), 1))
	}},
	{name: "a write that is not acknowledged gets no reply and is applied", run: func(w *world) error {
		coll := w.db.Collection("c",
			options.Collection().SetWriteConcern(unacknowledged))
		_, err := coll.InsertOne(w.ctx, d("_id", 1))
		if err != nil {
			return err
		}
		return eventually(w.ctx, func() error { return w.found(d(), 1) })
	}},
}

var deleteBehaviours = []behaviour{
	{name: "a range of ObjectIDs is deleted with its bounds, without the exceptions", run: func(w *world) error {
		var docs []any
		id := func(i byte) bson.ObjectID { return bson.ObjectID{0: 9, 11: i} }
		for i := range byte(20) {
			docs = append(docs, d("_id", id(i)))
		}
		docs = append(docs, d("_id", "text"), d("_id", 5))
		if err := w.seed(docs...); err != nil {
			return err
		}
		res, err := w.coll.DeleteMany(w.ctx, d("_id", d("$gte", id(3), "$lte", id(17), "$nin", bson.A{id(5), id(17)})))
		if err != nil {
			return err
		}
		return lines(equal("deleted", res.DeletedCount, int64(13)), w.found(d(), 5, "text", id(0), id(1), id(2), id(5), id(17), id(18), id(19)))
	}},
	{name: "a list of ids together with a stamp deletes only what has both", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "s", "x"), d("_id", 2, "s", "y"), d("_id", 3), d("_id", 4, "s", "x")); err != nil {
			return err
		}
		res, err := w.coll.DeleteMany(w.ctx, d("_id", d("$in", bson.A{1, 2, 3, 9}), "s", "x"))
		if err != nil {
			return err
		}
		return lines(equal("deleted", res.DeletedCount, int64(1)), w.found(d(), 2, 3, 4))
	}},
	{name: "a single delete deletes one of many", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "x", 1), d("_id", 2, "x", 1)); err != nil {
			return err
		}
		res, err := w.coll.DeleteOne(w.ctx, d("x", 1))
		if err != nil {
			return err
		}
		n, err := w.coll.CountDocuments(w.ctx, d())
		return lines(err, equal("deleted", res.DeletedCount, int64(1)), equal("left", n, int64(1)))
	}},
	{name: "a delete that matches nothing succeeds with n 0", run: func(w *world) error {
		reply, err := w.command("delete", "c", "deletes", bson.A{d("q", d("_id", 1), "limit", 1), d("q", d(), "limit", 0)})
		return lines(err, equal("n", reply["n"], 0))
	}},
	{name: "two deletes running at once never count a document twice", run: func(w *world) error {
		var docs []any
		for i := range 2000 {
			docs = append(docs, d("_id", i))
		}
		if err := w.seed(docs...); err != nil {
			return err
		}
		var mu sync.Mutex
		total := int64(0)
		errs := parallel(2, func(int) error {
			res, err := w.coll.DeleteMany(w.ctx, d("_id", d("$gte", 0)))
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			total += res.DeletedCount
			return nil
		})
		return lines(errs, equal("deleted", total, int64(2000)), w.found(d()))
	}},
	{name: "a delete with a limit other than 0 and 1 is refused", run: func(w *world) error {
		_, err := w.command("delete", "c", "deletes", bson.A{d("q", d(), "limit", 2)})
		return refused(err, 9)
	}},
	{name: "the statements of one delete command are counted together", run: func(w *world) error {
		if err := w.seed(d("_id", 1), d("_id", 2), d("_id", 3)); err != nil {
			return err
		}
		reply, err := w.command("delete", "c", "deletes", bson.A{d("q", d("_id", 1), "limit", 1), d("q", d("_id", d("$gte", 3)), "limit", 0)})
		return lines(err, equal("n", reply["n"], 2), w.found(d(), 2))
	}},
}

var idBehaviours = []behaviour{
	{name: "numbers of different types are one _id", run: func(w *world) error {
		two, err := bson.ParseDecimal128("2.0")
		if err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{
			d("_id", int32(1)), d("_id", int64(1)), d("_id", 1.0), d("_id", 2.0), d("_id", two), d("_id", 1.5)})
		return lines(err, equal("n", reply["n"], 3), codes(reply, map[int32]int32{1: 11000, 2: 11000, 4: 11000}),
			w.found(d("_id", int64(1)), 1), w.found(d("_id", d("$in", bson.A{1.0, two})), 1, 2.0))
	}},
	{name: "the same bytes with another binary subtype are another _id", run: func(w *world) error {
		b := func(subtype byte) bson.Binary { return bson.Binary{Subtype: subtype, Data: make([]byte, 16)} }
		err := w.seed(d("_id", b(0), "n", 0), d("_id", b(3), "n", 3), d("_id", b(4), "n", 4))
		if err != nil {
			return err
		}
		if _, err := w.coll.DeleteMany(w.ctx, d("_id", d("$in", bson.A{b(4)}))); err != nil {
			return err
		}
		n, err := w.coll.CountDocuments(w.ctx, d())
		return lines(err, equal("left", n, int64(2)), equal("subtype 4", w.coll.FindOne(w.ctx, d("_id", b(4))).Err(), error(mongo.ErrNoDocuments)))
	}},
	{name: "the order of the fields counts in an embedded _id", run: func(w *world) error {
		if err := w.seed(d("_id", d("a", 1, "b", 2)), d("_id", d("b", 2, "a", 1))); err != nil {
			return err
		}
		res, err := w.coll.DeleteMany(w.ctx, d("_id", d("a", 1, "b", 2)))
		if err != nil {
			return err
		}
		n, err := w.coll.CountDocuments(w.ctx, d())
		return lines(err, equal("deleted", res.DeletedCount, int64(1)), equal("left", n, int64(1)))
	}},
	{name: "the names of the fields count in an embedded _id", run: func(w *world) error {
		return lines(w.seed(d("_id", d("a", 1)), d("_id", d("b", 1))), w.found(d("_id", d("b", 1)), d("b", int32(1))))
	}},
	{name: "a document with fields of the same numbers in another type is the same _id", run: func(w *world) error {
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", d("a", int32(1))), d("_id", d("a", 1.0))})
		return lines(err, codes(reply, map[int32]int32{1: 11000}))
	}},
	{name: "an array is no _id", run: badID(bson.A{1}, 2, 53)},
	{name: "a regular expression is no _id", run: badID(bson.Regex{Pattern: "a"}, 2, 53)},
	{name: "a document with operators is no _id", run: badID(d("$gt", ""), 52)},
	{name: "two _id fields in one document are refused", run: func(w *world) error {
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", 1, "_id", 2)})
		return lines(err, codes(reply, map[int32]int32{0: 2}), w.found(d()))
	}},
	{name: "null is an _id like any other", run: func(w *world) error {
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{d("_id", bson.Null{}), d("_id", bson.Null{}), d("_id", 1)})
		return lines(err, codes(reply, map[int32]int32{1: 11000}), w.found(d("_id", bson.Null{}), nil))
	}},
	{name: "text and number are different _ids", run: func(w *world) error {
		return lines(w.seed(d("_id", "1"), d("_id", 1)), w.found(d("_id", "1"), "1"), w.found(d("_id", d("$lt", 5)), 1))
	}},
	{name: "dates differ by the millisecond", run: func(w *world) error {
		return lines(w.seed(d("_id", bson.DateTime(1)), d("_id", bson.DateTime(2))), refused(w.seed(d("_id", bson.DateTime(2))), 11000))
	}},
	{name: "NaN is an _id and equals itself", run: func(w *world) error {
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", math.NaN()), d("_id", math.NaN())})
		return lines(err, codes(reply, map[int32]int32{1: 11000}))
	}},
	{name: "the _id cannot be changed", run: func(w *world) error {
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		_, set := w.coll.UpdateOne(w.ctx, d("_id", 1), d("$set", d("_id", 2)))
		_, same := w.coll.UpdateOne(w.ctx, d("_id", 1), d("$set", d("_id", 1, "x", 1)))
		_, replaced := w.coll.ReplaceOne(w.ctx, d("_id", 1), d("_id", 2))
		return lines(refused(set, 66), same, refused(replaced, 66), w.found(d(), 1))
	}},
}

// badID is refused with one of the codes, and nothing is stored.
func badID(id any, allowed ...int32) func(*world) error {
	return func(w *world) error {
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{d("_id", id), d("_id", "good")})
		if err != nil {
			return err
		}
		e := writeErrors(reply)
		for _, c := range allowed {
			if len(e) == 1 && e[0]["code"] == c {
				return w.found(d(), "good")
			}
		}
		return fmt.Errorf("write errors %v, want code %v at 0", e, allowed)
	}
}
