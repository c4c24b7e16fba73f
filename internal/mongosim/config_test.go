package mongosim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/mongosim"
)

func TestDuplicateStyles(t *testing.T) {
	for style, wantText := range map[mongosim.DuplicateStyle]string{
		mongosim.DuplicateModern: `E11000 duplicate key error collection: db.c index: by_mail dup key: { mail: "x" }`,
		mongosim.DuplicateText:   `E11000 duplicate key error collection: db.c index: by_mail dup key: { : "x" }`,
		mongosim.DuplicateBare:   `E11000 duplicate key error collection: db.c`,
	} {
		_, c := plain(t, mongosim.Config{Duplicates: style})
		c.ok(t, d("createIndexes", "c", "indexes", bson.A{d("key", d("mail", 1), "name", "by_mail", "unique", true)}))
		c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1, "mail", "x")}))
		reply := c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 2, "mail", "x")}))
		e := reply.Lookup("writeErrors", "0")
		want(t, "text", e.Document().Lookup("errmsg").StringValue(), wantText)
		_, err := e.Document().LookupErr("keyPattern")
		want(t, "has keyPattern", err == nil, style == mongosim.DuplicateModern)
	}
}

func TestCappedDeleteCode(t *testing.T) {
	for code, config := range map[int32]mongosim.Config{20: {MaxWireVersion: 9}, 10089: {MaxWireVersion: 9, CappedDeleteCode: 10089}} {
		_, c := plain(t, config)
		c.ok(t, d("create", "c", "capped", true, "size", 4096))
		c.ok(t, insertOne(1))
		reply := c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d(), "limit", 0)}))
		want(t, "code", reply.Lookup("writeErrors", "0", "code").AsInt64(), int64(code))
	}
}

func TestDiscard(t *testing.T) {
	_, c := plain(t, mongosim.Config{Discard: true})
	want(t, "n", c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1), d("_id", 1)})).Lookup("n").AsInt64(), 2)
	want(t, "counted", c.ok(t, d("count", "c")).Lookup("n").AsInt64(), 2)
	want(t, "kept", len(c.ids(t, everything)), 0)
}

func TestLimits(t *testing.T) {
	_, c := plain(t, mongosim.Config{MaxBatch: 3, MaxDocumentBytes: 1000, MaxMessageBytes: 100_000})
	want(t, "too many", c.code(t, d("insert", "c", "documents", bson.A{d(), d(), d(), d()})), 16)
	big := d("_id", 1, "b", strings.Repeat("x", 1000))
	reply := c.ok(t, d("insert", "c", "documents", bson.A{big}))
	want(t, "too large", reply.Lookup("writeErrors", "0", "code").AsInt64(), 2)
	c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1, "b", strings.Repeat("x", 900))}))
	reply = c.ok(t, d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$set", d("c", strings.Repeat("x", 200))))}))
	want(t, "grown too large", reply.Lookup("writeErrors", "0", "code").AsInt64(), 10334)
	want(t, "too large for the wire", c.code(t, d("insert", "c", "documents", bson.A{d("b", strings.Repeat("x", 30_000))})), 10334)
	if err := c.send("db", d("insert", "c", "documents", bson.A{d("b", strings.Repeat("x", 200_000))})); err == nil {
		if reply, err := c.receive(); err == nil {
			t.Fatalf("a message over the limit is answered: %v", reply)
		}
	}
}

func TestObserver(t *testing.T) {
	var seen journal
	_, c := plain(t, mongosim.Config{ReplicaSet: "rs", Observe: seen.observe})
	c.ok(t, retryable(1, 4, d("_id", 1, "x", "a"), d("_id", 1), d("_id", 2)))
	c.ok(t, d("update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$set", d("x", "b"))), d("q", d("_id", 1), "u", d("$set", d("x", "b")))}))
	c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d("_id", 2), "limit", 1)}))
	c.ok(t, d("drop", "c"))
	var got []string
	for i, w := range seen.all() {
		got = append(got, fmt.Sprintf("%v %v %v>%v", w.Kind, w.ID, w.Before != nil, w.After != nil))
		want(t, "position", w.Position, int64(i+1))
		want(t, "namespace", w.Namespace, "db.c")
	}
	want(t, "writes", strings.Join(got, "; "), `insert {"$numberInt":"1"} false>true; insert {"$numberInt":"2"} false>true; `+
		`update {"$numberInt":"1"} true>true; delete {"$numberInt":"2"} true>false; drop  false>false`)
	first, third := seen.all()[0], seen.all()[2]
	want(t, "txnNumber", first.TxnNumber, 4)
	want(t, "lsid", first.LSID, strings.Repeat("00", 15)+"01")
	want(t, "statement", seen.all()[1].Statement, 2)
	want(t, "no txnNumber", third.TxnNumber, -1)
	want(t, "before", third.Before.Lookup("x").StringValue(), "a")
	want(t, "after", third.After.Lookup("x").StringValue(), "b")
}

// TestNoHistory: a repetition is a new command, and a late one is run.
func TestNoHistory(t *testing.T) {
	_, c := plain(t, mongosim.Config{ReplicaSet: "rs", NoHistory: true})
	c.ok(t, retryable(1, 4, d("_id", 1)))
	reply := c.ok(t, retryable(1, 4, d("_id", 1), d("_id", 2)))
	want(t, "the repetition's error", reply.Lookup("writeErrors", "0", "code").AsInt64(), 11000)
	want(t, "the repetition's n", reply.Lookup("n").AsInt64(), 1)
	c.ok(t, fence(1, 5))
	want(t, "the late one's n", c.ok(t, retryable(1, 4, d("_id", 3))).Lookup("n").AsInt64(), 1)
	want(t, "documents", c.ids(t, everything), []int{1, 2, 3})
}

// TestSeed: a run is a function of its seed.
func TestSeed(t *testing.T) {
	made := func(seed uint64) string {
		_, c := plain(t, mongosim.Config{Seed: seed, Clock: mongosim.NewClock(time.Unix(1_700_000_000, 0))})
		c.ok(t, d("insert", "c", "documents", bson.A{d("x", 1)}))
		return c.ok(t, d("find", "c")).Lookup("cursor", "firstBatch", "0", "_id").ObjectID().Hex()
	}
	want(t, "same seed", made(5), made(5))
	want(t, "another seed differs", made(5) != made(6), true)
}

func TestStartRefusesNonsense(t *testing.T) {
	for _, config := range []mongosim.Config{{Members: 2}, {MaxWireVersion: 5}} {
		if s, err := mongosim.Start(config); err == nil {
			must(t, s.Close())
			t.Errorf("started with %+v", config)
		}
	}
}

func TestTransactionsAreRefused(t *testing.T) {
	_, c := plain(t, mongosim.Config{ReplicaSet: "rs"})
	want(t, "code", c.code(t, append(retryable(1, 1, d("_id", 1)), d("startTransaction", true, "autocommit", false)...)), 238)
	want(t, "documents", len(c.ids(t, everything)), 0)
}
