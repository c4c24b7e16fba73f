package mongosim_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/mongosim"
)

// BenchmarkInsertDelete stores 100,000 small documents and deletes them by one range of their ids.
func BenchmarkInsertDelete(b *testing.B) {
	s := start(b, mongosim.Config{ReplicaSet: "rs", InProcess: true})
	coll := connect(b, s).Database("db").Collection("c")
	docs := make([]any, 100_000)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "n", Value: i}, {Key: "name", Value: "some text"}}
	}
	for b.Loop() {
		if _, err := coll.InsertMany(b.Context(), docs, options.InsertMany().SetOrdered(false)); err != nil {
			b.Fatal(err)
		}
		res, err := coll.DeleteMany(b.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: bson.ObjectID{}}}}})
		if err != nil || res.DeletedCount != int64(len(docs)) {
			b.Fatal(res, err)
		}
	}
}

// BenchmarkWorld is a whole small world: a server, a client, some commands, and the end of both.
func BenchmarkWorld(b *testing.B) {
	for _, inProcess := range []bool{false, true} {
		b.Run(map[bool]string{false: "tcp", true: "pipe"}[inProcess], func(b *testing.B) {
			for b.Loop() {
				smallWorld(b, inProcess)
			}
		})
	}
}

func smallWorld(b *testing.B, inProcess bool) {
	s, err := mongosim.Start(mongosim.Config{ReplicaSet: "rs", InProcess: inProcess})
	if err != nil {
		b.Fatal(err)
	}
	opts := options.Client().ApplyURI(s.URI())
	if inProcess {
		opts.SetDialer(s.Dialer())
	}
	client, err := mongo.Connect(opts)
	if err != nil {
		b.Fatal(err)
	}
	coll := client.Database("db").Collection("c")
	for range 10 {
		if _, err := coll.InsertMany(b.Context(), []any{bson.D{{Key: "n", Value: 1}}, bson.D{{Key: "n", Value: 2}}}); err != nil {
			b.Fatal(err)
		}
		if _, err := coll.DeleteMany(b.Context(), bson.D{}); err != nil {
			b.Fatal(err)
		}
	}
	if err := client.Disconnect(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
