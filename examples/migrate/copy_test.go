package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// kinds are documents with an _id of every type that the embedded server can store.
func kinds() []any {
	id := func(v any) bson.D {
		return bson.D{{Key: "_id", Value: v}, {Key: "n", Value: int64(7)}, {Key: "n", Value: nil}, {Key: "in", Value: bson.D{{Key: "list", Value: bson.A{1.5, "x", bson.D{}}}}}}
	}
	return []any{
		id(int32(1)), id(int64(1) << 40), id(2.5), id("a"), id("Å"), id(""),
		id(bson.D{{Key: "a", Value: 1}, {Key: "b", Value: "x"}}), id(bson.D{{Key: "a", Value: 2}}),
		id(bson.Binary{Data: []byte{1, 2}}), id(bson.NewObjectID()), id(false), id(true),
		id(bson.DateTime(1_700_000_000_000)), id(bson.Timestamp{T: 5, I: 6}), id(nil),
	}
}

// Every document is in the target as it is in the source, byte for byte, and nothing else; the same again does nothing.
func TestEverythingIsThere(t *testing.T) {
	servertest.Each(t, func(t *testing.T, server *servertest.Server) {
		x := benchOn(t, server)
		documents := kinds()
		if server.Kind == servertest.KindEmbedded { // it cannot store a field that is there twice
			for i, d := range documents {
				documents[i] = slices.Delete(slices.Clone(d.(bson.D)), 2, 3)
			}
		}
		x.insert("a", documents...)
		for i := range 3000 {
			documents[0] = bson.D{{Key: "_id", Value: i + 10}}
			x.insert("a", documents[0])
		}
		n := len(documents) + 3000
		r := x.expect(exitStored, "--json")
		x.same("a", "b")
		if s := r.summary; s.Read != n || s.Stored != n || s.Targets[0] != (target{Collection: x.ns("b"), Stored: n, Counted: n}) || s.Result != "stored" || s.Unmarked != n {
			t.Errorf("%+v", s)
		}
		wire := x.wire()
		r = x.expect(exitStored)
		x.mention(r, "already done, nothing was written now. An earlier run stored\n3,015 in "+x.ns("b"))
		if all := writes(wire); len(all) > 0 {
			t.Errorf("the second run wrote:\n%s", strings.Join(all, "\n"))
		}
		x.same("a", "b")
	})
}

// What is in the target already stays as it is, and a document of the source with its _id fails the copy.
func TestClash(t *testing.T) {
	x := newBench(t)
	x.fill(3000)
	x.insert("b", bson.D{{Key: "_id", Value: 2900}, {Key: "theirs", Value: true}})
	before := x.documents("b")
	r := x.expect(exitNotStored, "--json")
	if s := r.summary; len(s.Problems) != 1 || s.Problems[0].ID != "_id 2900" || s.Stored != 0 {
		t.Errorf("%+v", s)
	}
	if after := x.documents("b"); len(after) != 1 || after[0].String() != before[0].String() {
		t.Errorf("%v", after)
	}
}

// What the command line can do to documents.
func TestChanges(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"rename":       {[]string{"--rename", "a=x", "--rename", "b=a"}, `{"_id":1,"x":1,"a":{"no":5,"s":"t"},"no":9}`},
		"drop":         {[]string{"--drop-field", "b", "--drop-field", "none"}, `{"_id":1,"a":1,"no":9}`},
		"number anew":  {[]string{"--sequence", "no=s:100:5"}, `{"_id":1,"a":1,"b":{"no":5,"s":"t"},"no":100}`},
		"a new number": {[]string{"--sequence", "new=s"}, `{"_id":1,"a":1,"b":{"no":5,"s":"t"},"no":9,"new":1}`},
		"number below": {[]string{"--sequence", "b.no=s"}, `{"_id":1,"a":1,"b":{"no":1,"s":"t"},"no":9}`},
		"number as id": {[]string{"--sequence", "_id=s:7"}, `{"_id":7,"a":1,"b":{"no":5,"s":"t"},"no":9}`},
		"new ids":      {[]string{"--new-ids"}, `{"_id":NEW,"a":1,"b":{"no":5,"s":"t"},"no":9}`},
		"filter":       {[]string{"--filter", `{"a":{"$gte":{"$numberInt":"1"}}}`}, `{"_id":1,"a":1,"b":{"no":5,"s":"t"},"no":9}`},
		"nothing":      {[]string{"--filter", `{"a":2}`}, ``},
	} {
		t.Run(name, func(t *testing.T) {
			x := newBench(t)
			x.insert("a", bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}, {Key: "b", Value: bson.D{{Key: "no", Value: 5}, {Key: "s", Value: "t"}}}, {Key: "no", Value: 9}})
			x.expect(exitStored, c.args...)
			got := ""
			for _, raw := range x.documents("b") {
				text, err := bson.MarshalExtJSON(raw, false, false)
				if err != nil {
					t.Fatal(err)
				}
				got += string(text)
				if id, ok := raw.Lookup("_id").ObjectIDOK(); ok {
					got = strings.Replace(got, fmt.Sprintf(`{"$oid":"%s"}`, id.Hex()), "NEW", 1)
				}
			}
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// Another copy between the same collections is not taken for one that was done; the same one is.
func TestKeyKnowsTheChanges(t *testing.T) {
	x := newBench(t)
	x.fill(10)
	x.expect(exitStored, "--filter", `{"_id":{"$lt":5}}`)
	x.expect(exitStored, "--filter", `{"_id":{"$gte":5}}`)
	for _, filter := range []string{`{"_id":{"$lt":5}}`, `{"_id":{"$gte":5}}`} { // also when another copy has looked at the journal since
		x.mention(x.expect(exitStored, "--filter", filter), "already done")
	}
	x.same("a", "b")
	x.mention(x.expect(exitStored, "--batch-id", "once more", "--new-ids"), "stored 10 in "+x.ns("b"))
}

// A document that the transform refuses near the end takes everything back, and is named by its _id in the source.
func TestRefusedNearTheEnd(t *testing.T) {
	x := newBench(t)
	x.fill(5000)
	x.insert("a", bson.D{{Key: "_id", Value: "the bad one"}, {Key: "v", Value: 1}, {Key: "w", Value: 2}})
	for _, ids := range [][]string{nil, {"--new-ids"}} {
		r := x.expect(exitNotStored, append(ids, "--json", "--rename", "v=w", "--sequence", "no=s")...)
		s := r.summary
		if want := (problem{`_id "the bad one"`, `after renaming it would have two fields named "w"`}); len(s.Problems) != 1 || s.Problems[0] != want {
			t.Errorf("%+v", s)
		}
		if s.Read != 5001 || s.Refused != 1 || x.count("b") != 0 {
			t.Errorf("%+v; %d are left", s, x.count("b"))
		}
	}
	// It is run again when the source is in order.
	if _, err := x.db.Collection("a").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "the bad one"}}); err != nil {
		t.Fatal(err)
	}
	r := x.expect(exitStored, "--json", "--rename", "v=w", "--sequence", "no=s")
	if s := r.summary; s.Stored != 5000 || s.Numbers[0].First <= 5000 || x.count("b") != 5000 {
		t.Errorf("%+v", s)
	}
}

// Documents that are under way can be traced back, however many there were before.
func TestOrigin(t *testing.T) {
	f := newFeed(nil, nil, 1, 1)
	for i := range 10 * f.window {
		id := bson.RawValue{Type: bson.TypeInt32, Value: binary.LittleEndian.AppendUint32(nil, uint32(i))}
		f.remember(id)
		if got, ok := f.origin(0, max(0, i-f.window+1)); !ok || got.AsInt64() != int64(max(0, i-f.window+1)) {
			t.Fatalf("after %d documents: %v, %v", i+1, got, ok)
		}
	}
	if _, ok := f.origin(0, 0); ok || len(f.recent) > 2*f.window {
		t.Errorf("%d origins are kept", len(f.recent))
	}
}

// A document that the server refuses is named by its _id in the source, whatever its _id would have been in the target.
func TestRefusedByServer(t *testing.T) {
	x := newBench(t)
	x.fill(3000)
	wire := x.wire()
	wire.On(faultwire.Insert.In(x.ns("b"))).Nth(2).Do(faultwire.WriteErrors(faultwire.WriteError{Index: 5, Code: 121, Message: "no"}))
	s := x.expect(exitNotStored, "--json", "--new-ids", "--numInsertionWorkers", "1").summary
	if len(s.Problems) != 1 || s.Problems[0].ID != "_id 1005" || x.count("b") != 0 {
		t.Errorf("%+v", s)
	}
}

// A dry run finds every document that could not be stored, and writes nothing at all.
func TestDryRun(t *testing.T) {
	x := newBench(t)
	x.fill(2500)
	x.expect(exitStored, "--filter", `{"_id":{"$in":[7,2400]}}`)
	large := strings.Repeat("x", 16<<20-50)
	x.insert("a", bson.D{{Key: "_id", Value: "large"}, {Key: "v", Value: large}}, bson.D{{Key: "_id", Value: "two"}, {Key: "v", Value: 1}, {Key: "w", Value: 1}}, bson.D{{Key: "_id", Value: "marked"}, {Key: "_migration", Value: 1}})
	collections := x.collections()
	wire := x.wire()
	s := x.expect(exitNotStored, "--dry-run", "--json", "--rename", "v=w", "--sequence", "no=s", "--journal", "other").summary
	var ids []string
	for _, p := range s.Problems {
		ids = append(ids, p.ID)
	}
	slices.Sort(ids)
	if want := []string{`_id "large"`, `_id "marked"`, `_id "two"`, "_id 2400", "_id 7"}; !slices.Equal(ids, want) {
		t.Errorf("\n got %q\nwant %q", ids, want)
	}
	if s.Read != 2503 || s.Refused != 5 || s.Stored != 0 {
		t.Errorf("%+v", s)
	}
	s = x.expect(exitStored, "--dry-run", "--json", "--new-ids", "--filter", `{"_id":{"$type":"number"}}`, "--sequence", "no=s").summary
	if s.Result != "checked" || s.Read != 2500 {
		t.Errorf("%+v", s)
	}
	if all := writes(wire); len(all) > 0 {
		t.Errorf("it wrote:\n%s", strings.Join(all, "\n"))
	}
	if now := x.collections(); !slices.Equal(now, collections) {
		t.Errorf("collections %q before, %q now", collections, now)
	}
}

func (x *bench) collections() []string {
	x.t.Helper()
	names, err := x.db.ListCollectionNames(x.t.Context(), bson.D{})
	if err != nil {
		x.t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// Documents that somebody deletes while the copy runs are missing in the count: the copy is stored, but says so.
func TestCounted(t *testing.T) {
	x := newBench(t)
	x.fill(1500)
	wire := x.wire()
	wire.On(faultwire.Aggregate.In(x.ns("b"))).Nth(2).Before( // the first is before the copy
		func(ctx context.Context, _ *faultwire.Request) {
			if _, err := x.db.Collection("b").DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 3}}}}); err != nil {
				t.Error(err)
			}
		})
	s := x.expect(exitUnfinished, "--json").summary
	if s.Targets[0] != (target{Collection: x.ns("b"), Stored: 1500, Counted: 1497}) || s.Result != "unfinished" || s.Unmarked != 0 {
		t.Errorf("%+v", s)
	}
	if s := x.expect(exitStored, "--json").summary; !s.Replayed || s.Unmarked != 1497 {
		t.Errorf("%+v", s)
	}
	if n, err := x.db.Collection("b").CountDocuments(t.Context(), bson.D{{Key: "_migration", Value: bson.D{{Key: "$exists", Value: true}}}}); n != 0 || err != nil {
		t.Errorf("%d marks are left, %v", n, err)
	}
}

// Where there is no server, nothing is done, and the reason does not tell the password.
func TestNoServer(t *testing.T) {
	x := newBench(t)
	x.fill(1)
	r := x.expect(exitNotStored, "--json", "--to-uri", "mongodb://ada:secret@127.0.0.1:1/?serverSelectionTimeoutMS=50")
	if s := r.summary; !strings.HasPrefix(s.Error, "the target: no connection") || s.Result != "not stored" || strings.Contains(r.stdout+r.stderr, "secret") {
		t.Errorf("%s\n%s", r.stdout, r.stderr)
	}
}

// A source that has no documents is copied by storing none, and said to be so.
func TestNoDocuments(t *testing.T) {
	x := newBench(t)
	x.mention(x.expect(exitStored), "stored nothing, because "+x.ns("a")+" has no such documents")
}

// New documents need no mark, are written once, and are counted by how many more there are.
func TestNewIDsWithoutMark(t *testing.T) {
	x := newBench(t)
	x.fill(1500)
	x.insert("b", bson.D{}, bson.D{})
	wire := x.wire()
	s := x.expect(exitStored, "--json", "--new-ids").summary
	if s.Targets[0] != (target{Collection: x.ns("b"), Stored: 1500, Counted: 1500}) || s.Unmarked != 0 || x.count("b") != 1502 {
		t.Errorf("%+v", s)
	}
	if updates := wire.Events(faultwire.Update.In(x.ns("b"))); len(updates) > 0 {
		t.Errorf("%v", updates)
	}
}

// A collection that is copied into itself, by another address of its server, does not go on for ever. These servers read a
// collection as it was in the beginning; one that comes upon what was stored meanwhile finds a mark, which is refused.
func TestIntoItself(t *testing.T) {
	servertest.Each(t, func(t *testing.T, server *servertest.Server) {
		x := benchOn(t, server)
		x.fill(1500)
		other := x.uri + "?appName=other"
		if strings.Contains(x.uri, "?") {
			other = x.uri + "&appName=other"
		}
		args := []string{"--to-collection", "a", "--to-uri", other}
		x.expect(exitNotStored, args...)
		if n := x.count("a"); n != 1500 {
			t.Errorf("%d documents", n)
		}
		wire := x.wire()
		r := x.run(append(args, "--new-ids")...)
		if n := x.count("a"); !(r.code == exitNotStored && n == 1500 || r.code == exitStored && n == 3000) {
			t.Errorf("code %d, %d documents\n%s", r.code, n, r.stderr)
		}
		for _, e := range wire.Events(faultwire.Insert.In(x.ns("a"))) {
			for _, raw := range e.Documents() {
				if _, err := raw.LookupErr("_migration"); err != nil {
					t.Fatalf("without a mark: %v", raw)
				}
			}
		}
	})
}

// Source and target may be on different servers.
func TestAnotherServer(t *testing.T) {
	x := newBench(t)
	x.fill(1200)
	servertest.Each(t, func(t *testing.T, server *servertest.Server) {
		there := benchOn(t, server)
		x.expect(exitStored, "--to-uri", there.uri, "--to-db", there.db.Name())
		if n := there.count("b"); n != 1200 {
			t.Errorf("%d documents", n)
		}
		if got, err := x.db.Collection("migrate_journal").CountDocuments(t.Context(), bson.D{}); got != 0 || err != nil {
			t.Errorf("the journal is with the source: %d records, %v", got, err)
		}
	})
}
