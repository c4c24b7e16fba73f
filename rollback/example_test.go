package rollback_test

import (
	"context"
	"fmt"
	"log"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/rollback"
)

// A job inserts on its own and finds out half-way that it should not have. The server acknowledged the first two
// documents; the third was there before and is somebody else's.
func ExampleUndo() {
	ctx := context.Background()
	orders, done := exampleCollection()
	defer done()
	if _, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: "c"}, {Key: "owner", Value: "somebody else"}}); err != nil {
		log.Fatal(err)
	}

	var stored []any
	for _, id := range []string{"a", "b", "c"} {
		if _, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
			fmt.Println("refused:", id)
			break
		}
		stored = append(stored, id)
	}
	report, err := rollback.Undo(ctx, rollback.Policy{}, rollback.Target{
		Collection:   orders,
		IDs:          stored,
		Acknowledged: true, // the server said that it stored these very documents
	})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println("deleted:", report.Deleted)
	left, err := orders.CountDocuments(ctx, bson.D{})
	fmt.Println("left:", left, err)
	// Output:
	// refused: c
	// deleted: 2
	// left: 1 <nil>
}

// The answer to an insert was lost, so that nobody knows whether it is stored, or will be. Its documents carry a stamp that
// proves whose they are.
func ExampleUndo_late() {
	ctx := context.Background()
	orders, done := exampleCollection()
	defer done()
	job := bson.NewObjectID()
	if _, err := orders.InsertMany(ctx, []any{
		bson.D{{Key: "_id", Value: 1}, {Key: "_job", Value: job}},
		bson.D{{Key: "_id", Value: 2}, {Key: "owner", Value: "somebody else"}},
	}); err != nil {
		log.Fatal(err)
	}

	report, err := rollback.Undo(ctx, rollback.Policy{Settle: 1}, rollback.Target{
		Collection: orders,
		IDs:        []any{1, 2, 3},
		Stamp:      rollback.Stamp{Field: "_job", Value: job},
		Late:       true,
	})
	fmt.Println("deleted:", report.Deleted, "passes:", report.Passes, err)
	// Output:
	// deleted: 1 passes: 2 <nil>
}

// exampleCollection is a collection on a server in memory.
func exampleCollection() (orders *mongo.Collection, done func()) {
	server, err := mongosim.Start(mongosim.Config{ReplicaSet: "rs", InProcess: true})
	if err != nil {
		log.Fatal(err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()).SetDialer(server.Dialer()))
	if err != nil {
		log.Fatal(err)
	}
	return client.Database("shop").Collection("orders"), func() {
		if err := client.Disconnect(context.Background()); err != nil {
			log.Fatal(err)
		}
		if err := server.Close(); err != nil {
			log.Fatal(err)
		}
	}
}
