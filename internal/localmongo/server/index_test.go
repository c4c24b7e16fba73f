package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"os/signal"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestIndexIsUsed asks SQLite whether it would use the index for FerretDB's statements, at every stage of a
// collection's life.
func TestIndexIsUsed(t *testing.T) {
	stdin, stop := io.Pipe()
	s := launch(t, stdin, "-parent", "-dir", "data")
	defer signal.Reset()
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var a address
	if err := json.Unmarshal(line, &a); err != nil {
		t.Fatal(err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(a.URI))
	if err != nil {
		t.Fatal(err)
	}
	db := client.Database("db-1")
	c := db.Collection("ü 1% of.it")
	update := func() {
		t.Helper()
		if _, err := c.UpdateMany(t.Context(), bson.M{}, bson.M{"$inc": bson.M{"n": 1}}, options.UpdateMany().SetUpsert(true)); err != nil {
			t.Fatal(err)
		}
	}
	uses := func(want bool) {
		t.Helper()
		if got := indexed(t, db.Name(), c.Name()); got != want {
			t.Errorf("index used: %v, want %v", got, want)
		}
	}
	update() // there was no collection before
	uses(false)
	update()
	uses(true)
	if err := c.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.InsertOne(t.Context(), bson.M{"_id": 1}); err != nil {
		t.Fatal(err)
	}
	uses(false)
	update()
	uses(true)
	if err := db.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.InsertOne(t.Context(), bson.M{"_id": 1}); err != nil {
		t.Fatal(err)
	}
	update()
	uses(true)

	client.Disconnect(context.Background())
	stop.Close()
	if code := s.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// indexed says whether SQLite finds a document by its _id through an index.
func indexed(t *testing.T, database, collection string) bool {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+database+".sqlite?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var table string
	if err := db.QueryRow("SELECT table_name FROM _ferretdb_collections WHERE name = ?", collection).Scan(&table); err != nil {
		t.Fatal(err)
	}
	var id, parent, unused int
	var plan string
	query := `EXPLAIN QUERY PLAN UPDATE "` + strings.ReplaceAll(table, `"`, `""`) + `" SET _ferretdb_sjson = ? WHERE _ferretdb_sjson->'$._id' = ?`
	if err := db.QueryRow(query, "", "").Scan(&id, &parent, &unused, &plan); err != nil {
		t.Fatal(err)
	}
	return strings.Contains(plan, "USING INDEX")
}
