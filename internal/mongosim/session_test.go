package mongosim_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/mongosim"
)

// raw sends a command that the driver would not build itself, in a session of its own making.
func raw(t testing.TB, db *mongo.Database, command bson.D) (bson.Raw, error) {
	t.Helper()
	return db.RunCommand(t.Context(), command).Raw()
}

func lsid(b byte) bson.D {
	id := make([]byte, 16)
	id[15] = b
	return bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id}}}
}

func insertCommand(number int64, docs ...bson.D) bson.D {
	return bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}, {Key: "ordered", Value: false},
		{Key: "lsid", Value: lsid(1)}, {Key: "txnNumber", Value: number}}
}

func code(err error) int {
	var c mongo.CommandError
	if errors.As(err, &c) {
		return int(c.Code)
	}
	return 0
}

func TestFence(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true})
	db := connect(t, s).Database("db")
	late := insertCommand(1, bson.D{{Key: "_id", Value: 1}})
	if _, err := raw(t, db, late); err != nil {
		t.Fatal(err)
	}
	if reply, err := raw(t, db, late); err != nil || reply.Lookup("n").Int32() != 1 {
		t.Fatalf("the repeated insert is not answered from history: %v %v", reply, err)
	}
	fence := bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "never"}}}, {Key: "limit", Value: 1}}}},
		{Key: "lsid", Value: lsid(1)}, {Key: "txnNumber", Value: int64(3)}}
	if _, err := raw(t, db, fence); err != nil {
		t.Fatal(err)
	}
	if _, err := raw(t, db, insertCommand(2, bson.D{{Key: "_id", Value: 2}})); code(err) != 225 {
		t.Fatalf("an insert older than the fence: %v", err)
	}
	if n, err := db.Collection("c").CountDocuments(t.Context(), bson.D{}); n != 1 || err != nil {
		t.Fatalf("%d documents, %v", n, err)
	}
}
