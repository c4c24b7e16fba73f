package mongosim_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// insertInto tries to insert one document into a collection by its name.
func (w *world) insertInto(name string) error {
	_, err := w.command("insert", name, "documents", bson.A{d("_id", 1)})
	if err != nil {
		return err
	}
	reply, err := w.command("insert", name, "documents", bson.A{d("_id", 2)})
	if err != nil {
		return err
	}
	for _, e := range writeErrors(reply) {
		code, _ := e["code"].(int32)
		return mongo.CommandError{Code: code, Message: fmt.Sprint(e["errmsg"])}
	}
	return nil
}

var catalogBehaviours = []behaviour{
	{name: "a view refuses writes", run: func(w *world) error {
		if err := w.seed(d("_id", 5)); err != nil {
			return err
		}
		if _, err := w.command("create", "v", "viewOn", "c", "pipeline", bson.A{}); err != nil {
			return err
		}
		_, deleteErr := w.db.Collection("v").DeleteMany(w.ctx, d())
		_, updateErr := w.db.Collection("v").UpdateOne(w.ctx, d(), d("$set", d("a", 1)))
		n, err := w.db.Collection("v").CountDocuments(w.ctx, d())
		return lines(refused(w.insertInto("v"), 166), refused(deleteErr, 166), refused(updateErr, 166), err, equal("documents", n, int64(1)))
	}},
	{name: "a view says that it is one", run: func(w *world) error {
		if _, err := w.command("create", "v", "viewOn", "c", "pipeline", bson.A{}); err != nil {
			return err
		}
		specs, err := w.db.ListCollectionSpecifications(w.ctx, d("name", "v"))
		if err != nil || len(specs) != 1 {
			return fmt.Errorf("%d collections, %v", len(specs), err)
		}
		return lines(equal("type", specs[0].Type, "view"), equal("on", specs[0].Options.Lookup("viewOn").StringValue(), "c"))
	}},
	{name: "system collections refuse writes", run: func(w *world) error {
		return refused(w.insertInto("system.x"), 73)
	}},
	{name: "an empty collection name is refused", run: func(w *world) error { return refused(w.insertInto(""), 73) }},
	{name: "a collection name with a dollar is refused", run: func(w *world) error { return refused(w.insertInto("a$b"), 73) }},
	{name: "a collection name of 300 bytes is refused", run: func(w *world) error { return refused(w.insertInto(strings.Repeat("x", 300)), 73) }},
	{name: "a collection cannot be created twice with other options", run: func(w *world) error {
		_, err := w.command("create", "c")
		_, again := w.command("create", "c", "capped", true, "size", 4096)
		return lines(err, refused(again, 48))
	}},
	{name: "a capped collection says so and evicts the oldest", run: func(w *world) error {
		if _, err := w.command("create", "c", "capped", true, "size", 4096, "max", 5); err != nil {
			return err
		}
		for i := range 8 {
			if err := w.seed(d("_id", i)); err != nil {
				return err
			}
		}
		specs, err := w.db.ListCollectionSpecifications(w.ctx, d("name", "c"))
		if err != nil || len(specs) != 1 {
			return fmt.Errorf("%d collections, %v", len(specs), err)
		}
		capped, _ := specs[0].Options.Lookup("capped").BooleanOK()
		return lines(equal("capped", capped, true), w.found(d(), 3, 4, 5, 6, 7))
	}},
	{name: "a capped collection keeps within its size", run: func(w *world) error {
		if _, err := w.command("create", "c", "capped", true, "size", 4096); err != nil {
			return err
		}
		for i := range 10 {
			if err := w.seed(d("_id", i, "b", make([]byte, 1000))); err != nil {
				return err
			}
		}
		ids, err := w.ids(d(), d("_id", -1))
		if err != nil || len(ids) == 0 || len(ids) > 4 {
			return fmt.Errorf("%d documents of 1,000 bytes in 4,096, %v", len(ids), err)
		}
		return equal("newest", ids[0], 9)
	}},
	{name: "a capped collection refuses deletes before 5.0", on: before50, run: func(w *world) error {
		if _, err := w.command("create", "c", "capped", true, "size", 4096); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		_, err := w.coll.DeleteMany(w.ctx, d("_id", 1))
		return lines(refused(err, 20), w.found(d(), 1))
	}},
	{name: "a capped collection allows deletes since 5.0", on: since50, run: func(w *world) error {
		if _, err := w.command("create", "c", "capped", true, "size", 4096); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		_, err := w.coll.DeleteMany(w.ctx, d("_id", 1))
		return lines(err, w.found(d()))
	}},
	{name: "a validator refuses with 121 and the reason", run: func(w *world) error {
		if _, err := w.command("create", "c", "validator", d("n", d("$gte", 5))); err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{d("_id", 1, "n", 7), d("_id", 2, "n", 3), d("_id", 3)})
		if err := lines(err, codes(reply, map[int32]int32{1: 121, 2: 121}), w.found(d(), 1)); err != nil {
			return err
		}
		if !w.has(since50) {
			return nil
		}
		info, _ := writeErrors(reply)[1]["errInfo"].(bson.D)
		if len(info) == 0 {
			return fmt.Errorf("no errInfo")
		}
		return equal(info[0].Key, info[0].Value, 2)
	}},
	{name: "a validator by schema refuses what lacks a field or has an unknown one", run: func(w *world) error {
		schema := d("bsonType", "object", "required", bson.A{"n"}, "additionalProperties", false,
			"properties", d("_id", d(), "n", d("bsonType", "int")))
		if _, err := w.command("create", "c", "validator", d("$jsonSchema", schema)); err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{
			d("_id", 1, "n", int32(7)), d("_id", 2), d("_id", 3, "n", "x"), d("_id", 4, "n", int32(1), "_batch", "x")})
		return lines(err, codes(reply, map[int32]int32{1: 121, 2: 121, 3: 121}), w.found(d(), 1))
	}},
	{name: "a validator holds for updates", run: func(w *world) error {
		if _, err := w.command("create", "c", "validator", d("n", d("$gte", 5))); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1, "n", 7)); err != nil {
			return err
		}
		_, err := w.coll.UpdateOne(w.ctx, d("_id", 1), d("$set", d("n", 1)))
		return lines(refused(err, 121), w.found(d("n", 7), 1))
	}},
	{name: "a validator can be bypassed on request", run: func(w *world) error {
		if _, err := w.command("create", "c", "validator", d("n", d("$gte", 5))); err != nil {
			return err
		}
		plain := w.seed(d("_id", 1))
		_, bypassed := w.coll.InsertMany(w.ctx, []any{d("_id", 2)}, options.InsertMany().SetBypassDocumentValidation(true))
		return lines(refused(plain, 121), bypassed, w.found(d(), 2))
	}},
	{name: "a collation of strength 2 makes _ids of different case equal", run: func(w *world) error {
		if _, err := w.command("create", "c", "collation", d("locale", "en", "strength", 2)); err != nil {
			return err
		}
		if err := w.seed(d("_id", "Abc")); err != nil {
			return err
		}
		return lines(refused(w.seed(d("_id", "aBC")), 11000), w.found(d("_id", "ABC"), "Abc"), w.found(d("_id", d("$in", bson.A{"abc"})), "Abc"))
	}},
	{name: "dropping a database removes its collections", run: func(w *world) error {
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		err := w.db.Drop(w.ctx)
		names, listErr := w.db.ListCollectionNames(w.ctx, d())
		return lines(err, listErr, equal("collections", len(names), 0), w.found(d()))
	}},
	{name: "dropping a collection removes its documents and indexes", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("a", 1), "name", "a_1", "unique", true)}); err != nil {
			return err
		}
		if err := w.coll.Drop(w.ctx); err != nil {
			return err
		}
		return lines(w.seed(d("_id", 1, "a", 1), d("_id", 2, "a", 1)), w.found(d(), 1, 2))
	}},
}

// indexed creates an index and inserts documents; refused says which of them clash.
func indexed(index bson.D, want map[int32]int32, docs ...any) func(*world) error {
	return func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{index}); err != nil {
			return err
		}
		reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A(docs))
		return lines(err, codes(reply, want))
	}
}

var indexBehaviours = []behaviour{
	{name: "a unique index on two fields", run: indexed(d("key", d("t", 1, "n", 1), "name", "tn", "unique", true), map[int32]int32{2: 11000},
		d("t", "a", "n", 1), d("t", "b", "n", 1), d("t", "a", "n", 1.0))},
	{name: "a missing field counts as null in a unique index", run: indexed(d("key", d("ref", 1), "name", "ref", "unique", true),
		map[int32]int32{1: 11000, 2: 11000}, d("a", 1), d("a", 2), d("ref", nil))},
	{name: "a sparse unique index leaves out what lacks the field", run: indexed(d("key", d("ref", 1), "name", "ref", "unique", true, "sparse", true),
		map[int32]int32{3: 11000}, d("a", 1), d("a", 2), d("ref", nil), d("ref", nil))},
	{name: "a partial unique index holds where its filter does", run: indexed(d("key", d("n", 1), "name", "n", "unique", true, "partialFilterExpression", d("active", true)),
		map[int32]int32{3: 11000}, d("n", 1), d("n", 1), d("n", 1, "active", true), d("n", 1, "active", true))},
	{name: "a unique index on an array holds for every element", run: indexed(d("key", d("tags", 1), "name", "tags", "unique", true),
		map[int32]int32{1: 11000}, d("tags", bson.A{"a", "b", "a"}), d("tags", bson.A{"c", "b"}), d("tags", "c"))},
	{name: "two arrays in one index are refused", run: indexed(d("key", d("a", 1, "b", 1), "name", "ab"),
		map[int32]int32{0: 171}, d("a", bson.A{1, 2}, "b", bson.A{1, 2}), d("a", 1, "b", bson.A{1, 2}))},
	{name: "a descending unique index", run: indexed(d("key", d("n", -1), "name", "n", "unique", true), map[int32]int32{1: 11000},
		d("n", 1), d("n", 1), d("n", 2))},
	{name: "eight clients insert the same unique value, one succeeds", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)}); err != nil {
			return err
		}
		var mu sync.Mutex
		won := 0
		errs := parallel(8, func(i int) error {
			err := w.seed(d("_id", i, "n", 1))
			if mongo.IsDuplicateKeyError(err) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			won++
			return err
		})
		return lines(errs, equal("winners", won, 1))
	}},
	{name: "an update can violate a unique index", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)}); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1, "n", 1), d("_id", 2, "n", 2)); err != nil {
			return err
		}
		_, err := w.coll.UpdateOne(w.ctx, d("_id", 2), d("$set", d("n", 1)))
		_, self := w.coll.UpdateOne(w.ctx, d("_id", 2), d("$set", d("n", 2, "x", 1)))
		return lines(refused(err, 11000), self, w.found(d("n", 2), 2))
	}},
	{name: "a value is free again after its document is gone", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)}); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1, "n", 1)); err != nil {
			return err
		}
		if _, err := w.coll.DeleteOne(w.ctx, d("_id", 1)); err != nil {
			return err
		}
		return w.seed(d("_id", 2, "n", 1))
	}},
	{name: "a value is free again after its document has changed", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)}); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1, "n", 1)); err != nil {
			return err
		}
		if _, err := w.coll.UpdateOne(w.ctx, d("_id", 1), d("$set", d("n", 2))); err != nil {
			return err
		}
		return lines(w.seed(d("_id", 2, "n", 1)), refused(w.seed(d("_id", 3, "n", 2)), 11000), w.found(d("n", 1), 2))
	}},
	{name: "a document with several entries in an index is found once", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("s", 1, "tags", 1), "name", "st")}); err != nil {
			return err
		}
		if err := w.seed(d("_id", 1, "s", "x", "tags", bson.A{"a", "b", "c"}), d("_id", 2, "s", "x")); err != nil {
			return err
		}
		n, err := w.coll.CountDocuments(w.ctx, d("s", "x"))
		return lines(err, equal("counted", n, int64(2)), w.found(d("s", "x"), 1, 2))
	}},
	{name: "a unique index over duplicates cannot be created", run: func(w *world) error {
		if err := w.seed(d("_id", 1, "n", 1), d("_id", 2, "n", 1)); err != nil {
			return err
		}
		_, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)})
		return refused(err, 11000)
	}},
	{name: "indexes are listed with their options", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{
			d("key", d("a", 1, "b", -1), "name", "ab", "unique", true), d("key", d("p", 1), "name", "p", "partialFilterExpression", d("x", true))}); err != nil {
			return err
		}
		specs, err := w.coll.Indexes().ListSpecifications(w.ctx)
		if err != nil {
			return err
		}
		var names []string
		unique := map[string]bool{}
		for _, s := range specs {
			names = append(names, s.Name)
			unique[s.Name] = s.Unique != nil && *s.Unique
		}
		slices.Sort(names)
		return lines(equal("names", names, []string{"_id_", "ab", "p"}), equal("unique", unique["ab"], true), equal("not unique", unique["p"], false))
	}},
	{name: "the same index twice is no error", run: func(w *world) error {
		create := func() error {
			_, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)})
			return err
		}
		return lines(create(), create())
	}},
	{name: "another index of the same name is refused", run: func(w *world) error {
		_, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n")})
		_, other := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("m", 1), "name", "n")})
		return lines(err, refused(other, 86))
	}},
	{name: "an index can be dropped", run: func(w *world) error {
		if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)}); err != nil {
			return err
		}
		err := w.coll.Indexes().DropOne(w.ctx, "n")
		unknown := w.coll.Indexes().DropOne(w.ctx, "n")
		return lines(err, refused(unknown, 27), w.seed(d("_id", 1, "n", 1), d("_id", 2, "n", 1)))
	}},
}
