package faultwire_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
)

// An insert of 1 to 4, of which the server holds 3 already, under faults that refuse some of them.
func TestWriteErrors(t *testing.T) {
	refuse := func(indexes ...int) []faultwire.WriteError {
		var errs []faultwire.WriteError
		for _, i := range indexes {
			errs = append(errs, faultwire.WriteError{Index: i, Code: 121})
		}
		return errs
	}
	answers := func(errs []faultwire.WriteError) []faultwire.Answer {
		var all []faultwire.Answer
		for _, e := range errs {
			all = append(all, e)
		}
		return all
	}
	for _, row := range []struct {
		name    string
		fault   faultwire.Fault
		ordered bool
		stored  []int    // beside 3
		n       int64    // as the client is told
		errors  []string // index:code, as the client is told
	}{
		{"none", faultwire.Pass(), false, []int{1, 2, 4}, 3, []string{"2:11000"}},
		{"none", faultwire.Pass(), true, []int{1, 2}, 2, []string{"2:11000"}},
		{"first", faultwire.WriteErrors(refuse(0)...), false, []int{2, 4}, 2, []string{"0:121", "2:11000"}},
		{"first", faultwire.WriteErrors(refuse(0)...), true, []int{}, 0, []string{"0:121"}},
		{"second and fourth", faultwire.WriteErrors(refuse(3, 1)...), false, []int{1}, 1, []string{"1:121", "2:11000", "3:121"}},
		{"second and fourth", faultwire.WriteErrors(refuse(3, 1)...), true, []int{1}, 1, []string{"1:121"}},
		{"behind a real one", faultwire.WriteErrors(refuse(3)...), true, []int{1, 2}, 2, []string{"2:11000"}},
		{"all", faultwire.WriteErrors(refuse(0, 1, 2, 3)...), false, []int{}, 0, []string{"0:121", "1:121", "2:121", "3:121"}},
		{"outside", faultwire.WriteErrors(refuse(-1, 99)...), false, []int{1, 2, 4}, 3, []string{"-1:121", "2:11000", "99:121"}},
		{"lie", faultwire.Lie(answers(refuse(0, 3))...), false, []int{1, 2, 4}, 1, []string{"2:11000", "0:121", "3:121"}},
		{"lie with a number", faultwire.Lie(append(answers(refuse(1)), faultwire.Set("n", 4))...), false, []int{1, 2, 4}, 4,
			[]string{"2:11000", "1:121"}},
		{"reply", faultwire.Reply(answers(refuse(1))...), false, []int{}, 3, []string{"1:121"}},
		{"reply", faultwire.Reply(answers(refuse(1))...), true, []int{}, 1, []string{"1:121"}},
		{"reply out of order", faultwire.Reply(answers(refuse(2, 0, 0))...), false, []int{}, 1, []string{"2:121", "0:121", "0:121"}},
	} {
		t.Run(fmt.Sprintf("%s, ordered %v", row.name, row.ordered), func(t *testing.T) {
			wire := faultwire.ForTest(t)
			s := start(t)
			orders := s.connect(t, wire)
			if _, err := orders.InsertMany(t.Context(), docs(3)); err != nil {
				t.Fatal(err)
			}
			wire.On(faultwire.Insert).Once().Do(row.fault)
			_, err := orders.InsertMany(t.Context(), docs(1, 2, 3, 4), options.InsertMany().SetOrdered(row.ordered))
			var bulk mongo.BulkWriteException
			if !errors.As(err, &bulk) {
				t.Fatalf("%v is no bulk write error", err)
			}
			var told []string
			for _, e := range bulk.WriteErrors {
				told = append(told, fmt.Sprintf("%d:%d", e.Index, e.Code))
			}
			same(t, "write errors", told, row.errors)
			same(t, "stored", s.ids(), append([]int{3}, row.stored...))
			n, _ := wire.Events(faultwire.Insert)[1].ClientReply.Lookup("n").AsInt64OK()
			same(t, "n", n, row.n)
		})
	}
}

// The statements of a command travel in its body when they were put there by hand.
func TestWriteErrorsInBody(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	wire.On(faultwire.Insert).Once().WriteErrors(faultwire.WriteError{Index: 1, Code: 121})
	var reply bson.Raw
	err := orders.Database().RunCommand(t.Context(), bson.D{
		{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs(1, 2, 3)}, {Key: "ordered", Value: false},
	}).Decode(&reply)
	if err == nil {
		t.Errorf("no error in %v", reply)
	}
	same(t, "stored", s.ids(), []int{1, 3})
}

// A command that fails as a whole says nothing of its statements.
func TestWriteErrorsOfFailedCommand(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t, func(s *server) { s.broken = 91 })
	wire.On(faultwire.Insert).Once().WriteErrors(faultwire.WriteError{Index: 0, Code: 121})
	_, err := s.connect(t, wire).InsertMany(t.Context(), docs(1, 2), options.InsertMany().SetOrdered(false))
	same(t, "what the client gets", outcome(err), "command error 91")
	same(t, "write errors in it", wire.Events()[0].ClientReply.Lookup("writeErrors").IsZero(), true)
}

// The record keeps what was sent and what was answered, whatever a rewriting function does to what it is given.
func TestRewritingInPlace(t *testing.T) {
	scribble := func(doc bson.Raw) bson.Raw {
		copied := slices.Clone(doc)
		clear(doc)
		return copied
	}
	wire := faultwire.ForTest(t)
	s := start(t)
	wire.On(faultwire.Insert).Do(faultwire.RewriteRequest(scribble), faultwire.RewriteReply(scribble))
	command := bson.D{{Key: "insert", Value: "orders"}, {Key: "documents", Value: docs(1)}}
	if err := s.connect(t, wire).Database().RunCommand(t.Context(), command).Err(); err != nil {
		t.Fatal(err)
	}
	e := wire.Events()[0]
	same(t, "the command", e.Document().Lookup("insert"), `"orders"`)
	same(t, "the server's reply", e.ServerReply, `{"n": {"$numberInt":"1"},"ok": {"$numberDouble":"1.0"}}`)
	same(t, "the client's reply", e.ClientReply, e.ServerReply)
	same(t, "stored", s.ids(), []int{1})
}

func TestAnswers(t *testing.T) {
	for _, row := range []struct {
		name  string
		fault faultwire.Fault
		want  string // the client's reply, as extended JSON
	}{
		{"everything of a command error", faultwire.Reply(faultwire.CommandError{
			Code: 91, CodeName: "ShutdownInProgress", Message: "bye", Labels: []string{"A", "B"},
			RetryAfter: 1500 * time.Millisecond, More: bson.D{{Key: "x", Value: "y"}}}),
			`{"ok":0.0,"errmsg":"bye","code":91,"codeName":"ShutdownInProgress","errorLabels":["A","B"],"RetryAfterMs":1500,"x":"y"}`},
		{"nothing but a code", faultwire.Lie(faultwire.CommandError{Code: 8000}), `{"ok":0.0,"errmsg":"","code":8000}`},
		{"throttled", faultwire.Reply(faultwire.Throttled(34 * time.Millisecond)),
			`{"ok":0.0,"errmsg":"Error=16500, RetryAfterMs=34, Details='Request rate is large'","code":16500,"RetryAfterMs":34}`},
		{"overloaded", faultwire.Reply(faultwire.Overloaded(7 * time.Millisecond)),
			`{"ok":0.0,"errmsg":"too many requests","code":462,"codeName":"IngressRequestRateLimitExceeded",` +
				`"errorLabels":["SystemOverloadedError","RetryableError"],"baseBackoffMS":7}`},
		{"overloaded without a backoff", faultwire.Reply(faultwire.Overloaded(0)),
			`{"ok":0.0,"errmsg":"too many requests","code":462,"codeName":"IngressRequestRateLimitExceeded",` +
				`"errorLabels":["SystemOverloadedError","RetryableError"]}`},
		{"everything of a write error", faultwire.Reply(faultwire.WriteError{Index: 0, Code: 11000, Message: "E11000",
			KeyPattern: bson.D{{Key: "a", Value: 1}}, KeyValue: bson.D{{Key: "a", Value: 5}},
			Info: bson.D{{Key: "i", Value: 2}}, RetryAfter: time.Second, More: bson.D{{Key: "x", Value: "y"}}}),
			`{"n":0,"ok":1.0,"writeErrors":[{"index":0,"code":11000,"keyPattern":{"a":1},"keyValue":{"a":5},"errInfo":{"i":2},` +
				`"RetryAfterMs":1000,"x":"y","errmsg":"E11000"}]}`},
		{"everything of a write concern error", faultwire.Lie(faultwire.WriteConcernError{Code: 64,
			CodeName: "WriteConcernTimeout", Message: "late", Info: bson.D{{Key: "wtimeout", Value: true}}, Labels: []string{"L"}}),
			`{"n":1,"ok":1.0,"writeConcernError":{"code":64,"codeName":"WriteConcernTimeout","errmsg":"late",` +
				`"errInfo":{"wtimeout":true}},"errorLabels":["L"]}`},
		{"labels upon labels", faultwire.Lie(faultwire.Labels{"A"}, faultwire.Labels{"B"}), `{"n":1,"ok":1.0,"errorLabels":["A","B"]}`},
		{"a field", faultwire.Lie(faultwire.Set("n", 25)), `{"n":25,"ok":1.0}`},
		{"another document", faultwire.Lie(faultwire.Document{{Key: "ok", Value: 1}}), `{"ok":1}`},
		{"an edited reply", faultwire.Lie(faultwire.Edit(func(r *faultwire.Request, reply bson.Raw) bson.Raw {
			return append(reply[:0], faultwire.Set(string(r.Name), len(r.Documents())).Apply(r, reply)...)
		})), `{"n":1,"ok":1.0,"insert":1}`},
		{"nothing in the server's place", faultwire.Reply(), `{"n":1,"ok":1.0}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			wire := faultwire.ForTest(t)
			s := start(t)
			wire.On(faultwire.Insert).Do(row.fault)
			_, err := s.connect(t, wire).InsertMany(t.Context(), docs(1))
			e := wire.Events(faultwire.Insert)[0]
			json, jsonErr := bson.MarshalExtJSON(e.ClientReply, false, false)
			if jsonErr != nil {
				t.Fatal(jsonErr)
			}
			same(t, "the client's reply", string(json), row.want)
			if e.ServerReply != nil {
				same(t, "the server's reply in the record", e.ServerReply.String(), `{"n": {"$numberInt":"1"},"ok": {"$numberDouble":"1.0"}}`)
			}
			var command mongo.CommandError
			if errors.As(err, &command) {
				same(t, "the driver's raw reply", command.Raw.String(), e.ClientReply.String())
			}
		})
	}
}

// Without a server's reply, each command is answered in the form that the driver wants.
func TestReplyInTheServersPlace(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	rule := wire.On(faultwire.Any).Reply()
	if _, err := orders.InsertMany(t.Context(), docs(1, 2)); err != nil {
		t.Error(err)
	}
	if r, err := orders.DeleteOne(t.Context(), bson.D{}); err != nil || r.DeletedCount != 1 {
		t.Errorf("delete: %v, %v", r, err)
	}
	if r, err := orders.UpdateOne(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}); err != nil ||
		r.MatchedCount != 1 {
		t.Errorf("update: %v, %v", r, err)
	}
	cursor, err := orders.Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var found []bson.D
	if err := cursor.All(t.Context(), &found); err != nil || len(found) != 0 {
		t.Errorf("find: %v, %v", found, err)
	}
	if err := orders.FindOneAndDelete(t.Context(), bson.D{}).Err(); !errors.Is(err, mongo.ErrNoDocuments) {
		t.Errorf("findAndModify: %v", err)
	}
	same(t, "answered", rule.Fired(), 5)
	same(t, "reached the server", len(s.executed), 0)
}
