package mongosim_test

import (
	"errors"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// ferretdb is where FerretDB 1.24 on SQLite, the embedded server, departs from the behaviours of the suite.
var ferretdb = map[string]difference{
	"E11000 on _id names the key": {
		does: "reports code 11000 without keyPattern and keyValue", reason: "its error carries nothing but a text",
		instead: bareDuplicate},
	"E11000 names the index in its text": {
		does: "names the collection, and neither index nor key", reason: "SQLite's message is not passed on",
		instead: bareDuplicate},
	"E11000 on another index names that index": {
		does: "reports the same text as for _id", reason: "SQLite's message is not passed on",
		instead: bareDuplicate},
	"an empty batch is refused": {
		does: "accepts an insert of no documents", reason: "the number of documents is not checked",
		instead: func(w *world) error {
			reply, err := w.command("insert", "c", "documents", bson.A{})
			return lines(err, equal("n", reply["n"], 0))
		}},
	"a document over the limit is refused, the others are stored": {
		does: "stores it", reason: "the size of a single document is not checked",
		instead: func(w *world) error {
			limit, _ := w.hello["maxBsonObjectSize"].(int32)
			reply, err := w.command("insert", "c", "documents", bson.A{d("_id", 1, "b", make([]byte, int(limit)-20))})
			return lines(err, equal("n", reply["n"], 1))
		}},
	"an unknown field of a command is refused": {
		does: "refuses with 9 FailedToParse", reason: "its parser has one code for all",
		instead: func(w *world) error {
			_, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)}, "nonsense", 1)
			return refused(err, 9)
		}},
	"an empty timestamp at the top is replaced": {
		does: "stores it as it is", reason: "there is no oplog whose time it could take",
		instead: func(w *world) error {
			return lines(w.seed(d("_id", 1, "t", bson.Timestamp{})), w.found(d("t", bson.Timestamp{}), 1))
		}},
	"a field name with a dollar is stored since 5.0": {
		does: "refuses it", reason: "its checks are those of older versions, whatever wire version it announces",
		instead: func(w *world) error { return refused(w.seed(d("_id", 1, "$x", 1)), 2) }},
	"numbers of different types are one _id": {
		does: "treats int, long and double as one, and cuts the connection at a Decimal128", reason: "Decimal128 is not supported on the wire",
		instead: func(w *world) error {
			two, err := bson.ParseDecimal128("2.0")
			if err != nil {
				return err
			}
			reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{d("_id", int32(1)), d("_id", int64(1)), d("_id", 1.0)})
			return lines(err, codes(reply, map[int32]int32{1: 11000, 2: 11000}), cut(w.seed(d("_id", two))))
		}},
	"the same bytes with another binary subtype are another _id": {
		does: "reports a duplicate", reason: "the index on _id is on a text form without the subtype",
		instead: func(w *world) error {
			b := func(subtype byte) bson.Binary { return bson.Binary{Subtype: subtype, Data: make([]byte, 16)} }
			return lines(w.seed(d("_id", b(3))), refused(w.seed(d("_id", b(4))), 11000))
		}},
	"a document with operators is no _id": {
		does: "refuses it with 2 BadValue", reason: "fields with a dollar are refused wherever they are",
		instead: badID(d("$gt", ""), 2)},
	"NaN is an _id and equals itself": {
		does: "cuts the connection", reason: "NaN is not supported on the wire",
		instead: func(w *world) error { return cut(w.seed(d("_id", math.NaN()))) }},
	"findAndModify removes and returns": {
		does: "refuses fields in findAndModify", reason: "not implemented",
		instead: func(w *world) error {
			_, err := w.command("findAndModify", "c", "query", d(), "remove", true, "fields", d("k", 1))
			return refused(err, 238)
		}},
	"a whole embedded document": {
		does: "does not find it as an element of an array", reason: "its equality of documents does not look into arrays",
		instead: finds(d("a", d("b", 7)), 6)},
	"MinKey and MaxKey bound everything": {
		does: "cuts the connection", reason: "the two types are not supported on the wire",
		instead: func(w *world) error {
			_, err := w.ids(d("_id", d("$gte", bson.MinKey{})), d())
			return cut(err)
		}},
	"distinct values": {
		does: "answers a path into an array with something the driver cannot decode", reason: "a fault of its reply",
		instead: func(w *world) error {
			if err := zoo(w); err != nil {
				return err
			}
			var got []any
			if err := w.coll.Distinct(w.ctx, "a.b", d()).Decode(&got); err == nil {
				return fmt.Errorf("decoded as %v", got)
			}
			return nil
		}},
	"a view refuses writes":                                                  unimplemented("views", "create", "v", "viewOn", "c", "pipeline", bson.A{}),
	"a view says that it is one":                                             unimplemented("views", "create", "v", "viewOn", "c", "pipeline", bson.A{}),
	"a validator can be bypassed on request":                                 unimplemented("validators", "create", "c", "validator", d("n", 1)),
	"a validator holds for updates":                                          unimplemented("validators", "create", "c", "validator", d("n", 1)),
	"a validator refuses with 121 and the reason":                            unimplemented("validators", "create", "c", "validator", d("n", 1)),
	"a validator by schema refuses what lacks a field or has an unknown one": unimplemented("validators", "create", "c", "validator", d("$jsonSchema", d())),
	"a collation of strength 2 makes _ids of different case equal":           unimplemented("collations", "create", "c", "collation", d("locale", "en", "strength", 2)),
	"a partial unique index holds where its filter does": unimplemented("partial indexes", "createIndexes", "c", "indexes",
		bson.A{d("key", d("n", 1), "name", "n", "partialFilterExpression", d("active", true))}),
	"indexes are listed with their options": unimplemented("partial indexes", "createIndexes", "c", "indexes",
		bson.A{d("key", d("n", 1), "name", "n", "partialFilterExpression", d("active", true))}),
	"system collections refuse writes": {
		does: "accepts writes", reason: "names that begin with system. are nothing special",
		instead: func(w *world) error { return w.insertInto("system.x") }},
	"a capped collection says so and evicts the oldest": {
		does: "does not evict while a client inserts", reason: "a background job trims capped collections now and then",
		instead: func(w *world) error {
			if _, err := w.command("create", "c", "capped", true, "size", 4096, "max", 2); err != nil {
				return err
			}
			return lines(w.seed(d("_id", 1), d("_id", 2), d("_id", 3)), w.found(d(), 1, 2, 3))
		}},
	"a capped collection keeps within its size": {
		does: "does not evict while a client inserts", reason: "a background job trims capped collections now and then",
		instead: func(w *world) error {
			if _, err := w.command("create", "c", "capped", true, "size", 4096); err != nil {
				return err
			}
			big := make([]byte, 3000)
			return lines(w.seed(d("_id", 1, "b", big), d("_id", 2, "b", big), d("_id", 3, "b", big)), w.found(d(), 1, 2, 3))
		}},
	"a missing field counts as null in a unique index": {
		does: "stores any number of documents without the field, but one with null", reason: "SQLite's NULL is not equal to itself, and a missing field is NULL",
		instead: indexed(d("key", d("ref", 1), "name", "ref", "unique", true), nil, d("a", 1), d("a", 2), d("ref", nil))},
	"a unique index on an array holds for every element": {
		does: "compares arrays as a whole", reason: "indexes have one entry for a document",
		instead: indexed(d("key", d("tags", 1), "name", "tags", "unique", true), map[int32]int32{2: 11000},
			d("tags", bson.A{"a", "b"}), d("tags", bson.A{"b"}), d("tags", bson.A{"b"}))},
	"two arrays in one index are refused": {
		does: "accepts them", reason: "indexes have one entry for a document",
		instead: indexed(d("key", d("a", 1, "b", 1), "name", "ab"), nil, d("a", bson.A{1, 2}, "b", bson.A{1, 2}))},
	"an update can violate a unique index": {
		does: "refuses with 1 InternalError", reason: "SQLite's error is recognised in inserts only",
		instead: func(w *world) error {
			if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)}); err != nil {
				return err
			}
			if err := w.seed(d("_id", 1, "n", 1), d("_id", 2, "n", 2)); err != nil {
				return err
			}
			_, err := w.coll.UpdateOne(w.ctx, d("_id", 2), d("$set", d("n", 1)))
			return lines(refused(err, 1), w.found(d("n", 2), 2))
		}},
	"a unique index over duplicates cannot be created": {
		does: "refuses with 1 InternalError", reason: "SQLite's error is recognised in inserts only",
		instead: func(w *world) error {
			if err := w.seed(d("_id", 1, "n", 1), d("_id", 2, "n", 1)); err != nil {
				return err
			}
			_, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)})
			return refused(err, 1)
		}},
	"a standalone server takes no transaction numbers": {
		does: "ignores them", reason: "there are no sessions to number anything in",
		instead: func(w *world) error {
			s := w.session()
			_, err := s.insert(5, d("_id", 5))
			_, older := s.insert(4, d("_id", 4))
			return lines(err, older, w.found(d(), 4, 5))
		}},
	"a standalone server refuses more than one member": {
		does: "ignores the write concern", reason: "there is no replication",
		instead: func(w *world) error {
			_, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)}, "writeConcern", d("w", 2))
			return lines(err, w.found(d(), 1))
		}},
}

// bareDuplicate is E11000 that says nothing but its code and the collection, on any index.
func bareDuplicate(w *world) error {
	if _, err := w.command("createIndexes", "c", "indexes", bson.A{d("key", d("mail", 1), "name", "by_mail", "unique", true)}); err != nil {
		return err
	}
	if err := w.seed(d("_id", 1, "mail", "x")); err != nil {
		return err
	}
	reply, err := w.command("insert", "c", "ordered", false, "documents", bson.A{d("_id", 1, "mail", "y"), d("_id", 2, "mail", "x")})
	errs := []error{err, codes(reply, map[int32]int32{0: 11000, 1: 11000})}
	for i, e := range writeErrors(reply) {
		_, named := e["keyPattern"]
		text := "E11000 duplicate key error collection: " + w.db.Name() + ".c"
		errs = append(errs, equal("has keyPattern", named, false), equal(fmt.Sprintf("text of %d", i), e["errmsg"], text))
	}
	return lines(errs...)
}

// unimplemented is refused with 238 NotImplemented.
func unimplemented(what string, command ...any) difference {
	return difference{does: "refuses " + what, reason: "not implemented", instead: func(w *world) error {
		_, err := w.command(command...)
		return refused(err, 238)
	}}
}

// cut checks that the server closed the connection instead of answering.
func cut(err error) error {
	if !mongo.IsNetworkError(err) {
		return fmt.Errorf("not a cut connection: %w", errors.Join(errors.New("want a network error"), err))
	}
	return nil
}
