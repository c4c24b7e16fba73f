package faultwire_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
)

// An insert reaches the server after the delete that was to undo it.
func Example() {
	server, err := newServer()
	if err != nil {
		log.Fatal(err)
	}
	defer server.stop()

	wire := faultwire.New()
	defer wire.Close()
	client, err := mongo.Connect(options.Client().ApplyURI(server.uri()).SetDialer(wire))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Disconnect(context.Background())
	orders := client.Database("shop").Collection("orders")

	held := wire.On(faultwire.Insert.In("shop.orders")).Once().Hold()
	ctx, giveUp := context.WithCancel(context.Background())
	go func() {
		<-held.Arrived()
		giveUp()
	}()
	_, err = orders.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	fmt.Println("the client gave up:", errors.Is(err, context.Canceled))

	deleted, err := orders.DeleteMany(context.Background(), bson.D{{Key: "_id", Value: 1}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("deleted:", deleted.DeletedCount)

	held.Release()
	<-held.Done()
	fmt.Println("stored:", server.ids())
	insert, remove := wire.Events(faultwire.Insert)[0], wire.Events(faultwire.Delete)[0]
	fmt.Println("the delete was answered first:", remove.Answered.Before(insert.Forwarded))
	// Output:
	// the client gave up: true
	// deleted: 0
	// stored: [1]
	// the delete was answered first: true
}
