package idgen_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/servertest"
)

// exampleTB lets an example use what is made for tests.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (e *exampleTB) Helper()                      {}
func (e *exampleTB) Cleanup(f func())             { e.cleanups = append(e.cleanups, f) }
func (e *exampleTB) Fatal(args ...any)            { log.Fatal(args...) }
func (e *exampleTB) Fatalf(f string, args ...any) { log.Fatalf(f, args...) }
func (e *exampleTB) Errorf(f string, args ...any) { log.Fatalf(f, args...) }

// connect returns an empty database of the server that the tests use.
func connect() (db *mongo.Database, disconnect func()) {
	e := &exampleTB{}
	db = database(e, servertest.Embedded(e))
	return db, func() {
		for _, f := range slices.Backward(e.cleanups) {
			f()
		}
	}
}

// A counters collection that other programs use goes on from where it is; new counters are created on first use.
func ExampleCounter() {
	db, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	counters := db.Collection("counters")
	_, err := counters.InsertOne(ctx, bson.D{{Key: "_id", Value: "userid"}, {Key: "seq", Value: 41}})
	if err != nil {
		log.Fatal(err)
	}

	users := idgen.NewCounter(counters, "userid")
	fmt.Println(users.Next(ctx))
	orders := idgen.NewCounter(counters, "orderNo", idgen.CounterConfig{Start: 1000})
	fmt.Println(orders.Next(ctx))
	fmt.Println(orders.Next(ctx))
	// Output:
	// 42 <nil>
	// 1000 <nil>
	// 1001 <nil>
}

// A counter that must be created by hand is not started by a mistyped name.
func ExampleCounter_mustExist() {
	db, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	counters := db.Collection("counters")
	products := idgen.NewCounter(counters, "productId", idgen.CounterConfig{
		MustExist: true,
		Fields:    idgen.Fields{Value: "sequence_value"},
	})

	_, err := products.Next(ctx)
	fmt.Println(err.(*idgen.Error).Problem)
	fmt.Println(err.(*idgen.Error).Repair)

	_, err = counters.InsertOne(ctx, bson.D{{Key: "_id", Value: "productId"}, {Key: "sequence_value", Value: 0}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(products.Next(ctx))
	// Output:
	// the counter does not exist
	// create it, holding the number before the first: db.getCollection("counters").insertOne({"_id": "productId", "sequence_value": NumberLong("0")})
	// 1 <nil>
}

// A thousand numbers cost the same round trip as one.
func ExampleCounter_Take() {
	db, disconnect := connect()
	defer disconnect()
	number := idgen.NewCounter(db.Collection("counters"), "orderNo")

	block, err := number.Take(context.Background(), 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(block.At(0), block.At(999))
	sum := int64(0)
	for n := range block.All() {
		sum += n
	}
	fmt.Println(sum)
	// Output:
	// 1 1000
	// 500500
}

// Every tenant counts for itself. The counter may stand in the tenant's own document.
func ExampleCounter_Scope() {
	db, disconnect := connect()
	defer disconnect()
	ctx := context.Background()

	invoices := idgen.NewCounter(db.Collection("counters"), "invoiceNo")
	for _, tenant := range []string{"a", "b", "a"} {
		n, err := invoices.Scope(tenant).Next(ctx)
		fmt.Println(tenant, n, err)
	}

	tenants := db.Collection("tenants")
	_, err := tenants.InsertOne(ctx, bson.D{{Key: "_id", Value: 7}, {Key: "counters", Value: bson.D{{Key: "invoice", Value: 120}}}})
	if err != nil {
		log.Fatal(err)
	}
	inside := idgen.NewCounter(tenants, nil, idgen.CounterConfig{MustExist: true, Fields: idgen.Fields{Value: "counters.invoice"}})
	fmt.Println(inside.Scope(7).Next(ctx))
	// Output:
	// a 1 <nil>
	// b 1 <nil>
	// a 2 <nil>
	// 121 <nil>
}

// Data was imported with numbers of its own, and the counter is behind.
func ExampleCounter_RaiseToMax() {
	db, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	orders := db.Collection("orders")
	_, err := orders.InsertMany(ctx, []any{bson.D{{Key: "no", Value: 5199}}, bson.D{{Key: "no", Value: 5200}}})
	if err != nil {
		log.Fatal(err)
	}

	number := idgen.NewCounter(db.Collection("counters"), "orderNo")
	if err := number.RaiseToMax(ctx, orders, "no", nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println(number.Next(ctx))
	if err := number.RaiseTo(ctx, 10); err != nil { // never lowers
		log.Fatal(err)
	}
	fmt.Println(number.Next(ctx))
	// Output:
	// 5201 <nil>
	// 5202 <nil>
}

// A million callers, a thousand round trips.
func ExampleBuffered() {
	db, disconnect := connect()
	defer disconnect()
	number := idgen.NewBuffered(idgen.NewCounter(db.Collection("counters"), "eventNo"), idgen.BufferedConfig{Block: 1000})
	defer number.Close()

	for range 3 {
		fmt.Println(number.Next(context.Background()))
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}

// The numbers come from several documents, so their order says nothing; none comes twice.
func ExampleStriped() {
	db, disconnect := connect()
	defer disconnect()
	number := idgen.NewStriped(db.Collection("counters"), "eventNo", idgen.StripedConfig{Stripes: 4})

	seen := map[int64]bool{}
	for range 100 {
		n, err := number.Next(context.Background())
		if err != nil {
			log.Fatal(err)
		}
		seen[n] = true
	}
	fmt.Println(len(seen))
	// Output: 100
}

// Numbers that begin with the date, from an ids collection {prefix: 260131, count: 17} with a unique index on prefix.
func ExamplePeriodic() {
	db, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	ids := db.Collection("ids")
	_, err := ids.Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys:    bson.D{{Key: "prefix", Value: 1}},
		Options: options.Index().SetUnique(true),
	})
	if err != nil {
		log.Fatal(err)
	}
	_, err = ids.InsertOne(ctx, bson.D{{Key: "prefix", Value: 260131}, {Key: "count", Value: 16}})
	if err != nil {
		log.Fatal(err)
	}

	today := time.Date(2026, 1, 31, 14, 0, 0, 0, time.UTC)
	number := idgen.NewPeriodic(ids, nil, idgen.PeriodicConfig{
		Clock:  func() time.Time { return today }, // in earnest, leave it out
		Fields: idgen.Fields{Period: "prefix", Value: "count"},
	})
	fmt.Println(number.Next(ctx))
	text := idgen.Format{Separator: "-"}.Of(number)
	fmt.Println(text.Next(ctx))

	today = today.AddDate(0, 0, 1)
	fmt.Println(text.Next(ctx))

	today = today.AddDate(0, 2, 0)
	fmt.Println(number.Purge(ctx, today.AddDate(0, -1, 0)))
	// Output:
	// 2601310017 <nil>
	// 260131-0018 <nil>
	// 260201-0001 <nil>
	// 2 <nil>
}

// No counter: the next number is one above the highest, and the unique index settles who gets it.
func ExampleOptimistic() {
	db, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	companies := db.Collection("companies")
	number := idgen.NewOptimistic(companies, "companyId", idgen.OptimisticConfig{Start: 1000})
	insert := func(ctx context.Context, n int64) error {
		_, err := companies.InsertOne(ctx, bson.D{{Key: "companyId", Value: n}})
		return err
	}

	_, err := number.Insert(ctx, insert)
	fmt.Println(err.(*idgen.Error).Problem)

	_, err = companies.Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys:    bson.D{{Key: "companyId", Value: 1}},
		Options: options.Index().SetUnique(true),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(number.Insert(ctx, insert))
	fmt.Println(number.Insert(ctx, insert))
	// Output:
	// there is no unique index on exactly companyId
	// 1000 <nil>
	// 1001 <nil>
}

// Numbers grow past their width; with a Max they end there.
func ExampleFormat() {
	db, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	invoices := idgen.Format{Prefix: "INV-", Width: 4}
	fmt.Println(invoices.Number(42))

	number := idgen.NewCounter(db.Collection("counters"), "invoiceNo", idgen.CounterConfig{Start: 9999})
	fmt.Println(invoices.Of(number).Take(ctx, 2))

	number = idgen.NewCounter(db.Collection("counters"), "receiptNo", idgen.CounterConfig{Start: 9999, Max: 9999})
	fmt.Println(invoices.Of(number).Next(ctx))
	_, err := invoices.Of(number).Next(ctx)
	fmt.Println(err.(*idgen.Error).Reason)
	// Output:
	// INV-0042
	// [INV-9999 INV-10000] <nil>
	// INV-9999 <nil>
	// exhausted
}
