package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

var cursorNotFound = faultwire.CommandError{Code: 43, CodeName: "CursorNotFound", Message: "cursor id 1 not found"}

// A cursor that is lost in the middle, again and again, is no reason to stop: the copy is complete and in order.
func TestCursorLost(t *testing.T) {
	x := newBench(t)
	x.fill(5000)
	for name, fault := range map[string]faultwire.Fault{
		"unknown to the server": faultwire.Reply(cursorNotFound),
		"reply lost":            faultwire.DropReply(),
	} {
		wire := x.wire()
		wire.On(faultwire.GetMore.In(x.ns("a"))).EveryNth(2).Do(fault)
		r := x.expect(exitStored, "--json", "--batch-id", name, "--to-collection", name, "--sequence", "no="+name)
		x.mention(r, "reading goes on behind the last document")
		for i, raw := range x.documents(name) {
			if no := raw.Lookup("no").AsInt64(); raw.Lookup("_id").AsInt64() != int64(i) || no != int64(i)+1 {
				t.Fatalf("%s: document %d is %v", name, i, raw)
			}
		}
		if n := x.count(name); n != 5000 || r.summary.Read != 5000 {
			t.Errorf("%s: %d documents; %+v", name, n, r.summary)
		}
	}
}

// Wherever a cursor is lost, every document comes once and in the order that the server has, although a comparison in a
// filter looks at one type only.
func TestResumeBetweenTypes(t *testing.T) {
	servertest.Each(t, func(t *testing.T, server *servertest.Server) {
		x := benchOn(t, server)
		x.insert("a", kindsOnly(server.Kind)...)
		want := x.documents("a")
		wire := faultwire.ForTest(t)
		client := server.Client(t, driver.Client().SetDialer(wire))
		wire.On(faultwire.GetMore).Reply(cursorNotFound)
		from, err := newSource(t.Context(), client.Database(x.db.Name()).Collection("a"), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		from.batch = 1
		from.pause = 0
		lost := 0
		from.lost = func(error) { lost++ }
		var got []string
		for raw, err := range from.documents(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, raw.String())
		}
		if lost < len(want)-1 {
			t.Errorf("only %d cursors were lost", lost)
		}
		if len(got) != len(want) {
			t.Fatalf("%d documents instead of %d: %v", len(got), len(want), got)
		}
		for i := range want {
			if got[i] != want[i].String() {
				t.Errorf("document %d is %s, not %v", i, got[i], want[i])
			}
		}
	})
}

// kindsOnly are the documents of kinds without what the embedded server cannot store, and more _id values where the
// server can order them.
func kindsOnly(kind servertest.Kind) []any {
	var all []any
	for _, d := range kinds() {
		all = append(all, d.(bson.D)[:2])
	}
	if kind != servertest.KindEmbedded { // for which it cannot read a NaN
		all = append(all, bson.D{{Key: "_id", Value: math.NaN()}})
	}
	return all
}

// A cursor that is lost all the time is given up some day, and so is a copy whose context ends while it waits.
func TestCursorLostForEver(t *testing.T) {
	x := newBench(t)
	x.fill(300)
	wire := faultwire.ForTest(t)
	client := servertest.Embedded(t).Client(t, driver.Client().SetDialer(wire))
	from, err := newSource(t.Context(), client.Database(x.db.Name()).Collection("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	wire.On(faultwire.Find).Reply(cursorNotFound)
	from.pause = 0
	var last error
	for _, err := range from.documents(t.Context()) {
		last = err
	}
	var answer mongo.CommandError
	if !errors.As(last, &answer) || answer.Code != 43 || wire.Count(faultwire.Find) != mostLosses {
		t.Errorf("%v after %d attempts", last, wire.Count(faultwire.Find))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	from.pause = pause
	from.lost = func(error) { cancel(why) }
	for _, err := range from.documents(ctx) {
		last = err
	}
	if !errors.Is(last, why) {
		t.Error(last)
	}
}

// What reading could not go on behind is refused.
func TestOddIDs(t *testing.T) {
	if got := fmt.Sprint(after(bson.RawValue{Type: bson.TypeTimestamp, Value: make([]byte, 8)})); got != `{"$or":[{"_id":{"$gt":{"$timestamp":{"t":0,"i":0}}}}]}` {
		t.Error(got)
	}
	servertest.Each(t, func(t *testing.T, server *servertest.Server) {
		if server.Kind != servertest.KindSim {
			t.Skip("the embedded server cannot store it")
		}
		x := benchOn(t, server)
		x.insert("a", bson.D{{Key: "_id", Value: bson.MaxKey{}}})
		x.mention(x.expect(exitNotStored), "whose _id is of type")
	})
}
