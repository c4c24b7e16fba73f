package mongosim_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/mongosim"
)

func TestSharded(t *testing.T) {
	for _, version := range []int{17, 21} {
		s := start(t, mongosim.Config{ShardKeys: map[string]string{"db.c": "tenant"}, InProcess: true, MaxWireVersion: version})
		c := member(t, s, 0)
		insert := func(docs ...any) bson.Raw { return c.ok(t, d("insert", "c", "documents", bson.A(docs))) }
		deleted := func(q bson.D, limit int) int64 {
			return c.ok(t, d("delete", "c", "deletes", bson.A{d("q", q, "limit", limit)})).Lookup("n").AsInt64()
		}
		insert(d("_id", 7, "tenant", "x"), d("_id", 7, "tenant", "y"), d("_id", 8, "tenant", "x"), d("_id", 9, "tenant", "y"))
		want(t, "a second one on the same shard", insert(d("_id", 7, "tenant", "x")).Lookup("writeErrors", "0", "code").AsInt64(), 11000)
		want(t, "found", len(c.ids(t, d("find", "c", "filter", d("_id", 7)))), 2)
		want(t, "in a range", len(c.ids(t, d("find", "c", "filter", d("_id", d("$gte", 7, "$lte", 8))))), 3)
		want(t, "in order", c.ids(t, everything), []int{7, 7, 8, 9})
		want(t, "deleted on the shard that is named", deleted(d("_id", 7, "tenant", "y"), 1), 1)
		insert(d("_id", 7, "tenant", "y"))
		want(t, "deleted by _id alone", deleted(d("_id", 7), 1), 2)
		reply := c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d("x", nil), "limit", 1)}))
		if version < 21 {
			want(t, "code", reply.Lookup("writeErrors", "0", "code").AsInt64(), 61)
			want(t, "findAndModify", c.code(t, d("findAndModify", "c", "query", d("_id", 8), "remove", true)), 61)
		} else {
			want(t, "n", reply.Lookup("n").AsInt64(), 1)
		}
		left := int64(len(c.ids(t, everything)))
		want(t, "deleted of many", deleted(d("_id", d("$in", bson.A{8, 9})), 0), left)
		want(t, "unique index", c.code(t, d("createIndexes", "c", "indexes", bson.A{d("key", d("n", 1), "name", "n", "unique", true)})), 67)
		want(t, "unique index by shard key", c.code(t, d("createIndexes", "c", "indexes", bson.A{d("key", d("tenant", 1, "n", 1), "name", "n", "unique", true)})), 0)
		c.ok(t, retryable(1, 1, d("_id", 20)))
		want(t, "fenced", c.code(t, fence(1, 5)), 0)
		want(t, "late", c.code(t, retryable(1, 4, d("_id", 21))), 225)

		// Collections without a shard key are as ever.
		c.ok(t, d("insert", "plain", "documents", bson.A{d("_id", 1)}))
		want(t, "duplicate", c.ok(t, d("insert", "plain", "documents", bson.A{d("_id", 1)})).Lookup("writeErrors", "0", "code").AsInt64(), 11000)

		// The driver takes it for a mongos and sends transaction numbers.
		var seen journal
		s = start(t, mongosim.Config{ShardKeys: map[string]string{}, InProcess: true, Observe: seen.observe})
		_, err := connect(t, s).Database("db").Collection("c").InsertOne(t.Context(), d("_id", 1))
		must(t, err)
		want(t, "numbered", seen.all()[0].TxnNumber > 0, true)
	}
}
