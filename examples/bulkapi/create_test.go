package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// Both forms of a body do the same; ids and numbers are in the order of the companies.
func TestCreate(t *testing.T) {
	s := newTarget(t).serve()
	for i, body := range []string{
		list("A-1", "A-2", "A-3"),
		`{"requests":[{"company":{"name":"B 1","registration":"B-1"}},{"company":{"registration":"B-2","name":"B 2"}}]}`,
	} {
		n := 3 - i
		created := s.expectStored(s.post("", body), n)
		for j, c := range created.Companies {
			if want := int64(3*i + j + 1); c.CompanyNo != want || !strings.HasSuffix(c.Registration, fmt.Sprint("-", j+1)) {
				t.Errorf("company %d has number %d, not %d: %+v", j, c.CompanyNo, want, c)
			}
		}
	}
	if n := s.count(); n != 5 {
		t.Errorf("%d companies", n)
	}
}

// Numbers beyond 2^53 are kept exactly, and those that do not fit are refused.
func TestLargeNumbers(t *testing.T) {
	s := newTarget(t).serve()
	r := s.post("", `[{"name":"A","registration":"1","employees":9007199254740993},{"name":"B","registration":"2","employees":9223372036854775807}]`)
	s.expectStored(r, 2)
	for _, digits := range []string{"9007199254740993", "9223372036854775807"} {
		if !strings.Contains(r.body, digits) {
			t.Errorf("no %s in %s", digits, r.body)
		}
		value, err := bson.MarshalExtJSON(bson.D{{Key: "n", Value: bson.D{{Key: "employees", Value: bson.M{"$numberLong": digits}}}}}, true, false)
		if err != nil {
			t.Fatal(err)
		}
		var filter struct{ N bson.D }
		if err := bson.UnmarshalExtJSON(value, true, &filter); err != nil {
			t.Fatal(err)
		}
		if n, err := s.db.Collection("companies").CountDocuments(t.Context(), filter.N); err != nil || n != 1 {
			t.Errorf("%s: %d stored, %v", digits, n, err)
		}
	}
	for _, bad := range []string{"9223372036854775808", "1e3", "1.5", "-9223372036854775809", `"12"`} {
		p := s.expect(s.post("", `[{"name":"A","registration":"3","employees":`+bad+`}]`), http.StatusUnprocessableEntity, "invalid")
		if f := p.Failures; len(f) != 1 || f[0].Pointer != "/0/employees" || !strings.Contains(f[0].Reason, "whole number") {
			t.Errorf("%s: %+v", bad, f)
		}
	}
}

// A key stores once, and has the same answer ever after, also from another process.
func TestSameKey(t *testing.T) {
	x := newTarget(t)
	s := x.serve()
	body := list("A-1", "A-2")
	first := s.post("k", body)
	s.expectStored(first, 2)
	if first.header.Get(keyHeader) != "k" || first.header.Get(replayedHeader) != "" {
		t.Errorf("headers %v", first.header)
	}
	for range 2 {
		for _, same := range []string{body, "\n " + body, `{"requests":[{"company":` + strings.Replace(body[1:len(body)-1], "},{", `}},{"company":{`, 1) + `}]}`} {
			again := s.post("k", same)
			if again.body != first.body || again.status != first.status || again.header.Get(replayedHeader) != "true" {
				t.Errorf("%s\nhas the answer %+v instead of %+v", same, again, first)
			}
		}
		if again := s.post(`"k"`, body); again.body != first.body {
			t.Errorf("in quotes: %+v", again)
		}
		if code := s.end(); code != exitStopped {
			t.Errorf("exit code %d", code)
		}
		s = x.serve()
	}
	if n, keys := s.count(), s.countIn("requests"); n != 2 || keys != 1 {
		t.Errorf("%d companies, %d keys", n, keys)
	}
	made := s.post("", list("B-1"))
	s.expectStored(made, 1)
	key := made.header.Get(keyHeader)
	if again := s.post(key, list("B-1")); key == "" || key != made.created.Batch || again.body != made.body {
		t.Errorf("under the key that was made: %+v", again)
	}
}

// A key does not serve for other companies.
func TestKeyOfOthers(t *testing.T) {
	s := newTarget(t).serve()
	first := s.post("k", list("A-1", "A-2"))
	s.expectStored(first, 2)
	for name, other := range map[string]string{
		"one more":      list("A-1", "A-2", "A-3"),
		"one less":      list("A-1"),
		"another":       list("A-1", "A-3"),
		"other order":   list("A-2", "A-1"),
		"another field": strings.Replace(list("A-1", "A-2"), `"A-2"`, `"A-2","employees":0`, 1),
	} {
		p := s.expect(s.post("k", other), http.StatusUnprocessableEntity, "key-reused")
		if p.Stored != storedNothing || p.Batch != "k" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if got := s.registrations(); !slices.Equal(got, []string{"A-1", "A-2"}) {
		t.Errorf("stored: %v", got)
	}
	if again := s.post("k", list("A-1", "A-2")); again.body != first.body {
		t.Errorf("the first has another answer now: %+v", again)
	}
}

// When the journal has forgotten a batch, its key still does not store anything again.
func TestKeyAfterRetention(t *testing.T) {
	s := newTarget(t).serve()
	s.expectStored(s.post("k", list("A-1")), 1)
	if _, err := s.db.Collection("batches").DeleteMany(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{list("A-2"), list("A-2", "A-3")} {
		p := s.expect(s.post("k", body), http.StatusUnprocessableEntity, "key-reused")
		if !strings.Contains(p.Detail, "too long ago") {
			t.Errorf("%+v", p)
		}
	}
	if got := s.registrations(); !slices.Equal(got, []string{"A-1"}) {
		t.Errorf("stored: %v", got)
	}
}

// A key whose request failed is free again.
func TestKeyAfterFailure(t *testing.T) {
	s := newTarget(t).serve()
	s.expectStored(s.post("", list("A-1")), 1)
	s.expect(s.post("k", list("A-2", "A-1")), http.StatusConflict, "duplicate")
	s.expectStored(s.post("k", list("A-2", "A-3", "A-4")), 3)
	if n, keys := s.count(), s.countIn("requests"); n != 4 || keys != 2 {
		t.Errorf("%d companies, %d keys", n, keys)
	}
}

// While a request runs, another with its key is told so.
func TestKeyInProgress(t *testing.T) {
	s := newTarget(t).serve()
	held := s.wire.On(s.inserts()).Once().Hold()
	first := make(chan reply)
	go func() { first <- s.post("k", list("A-1")) }()
	<-held.Arrived()
	for _, body := range []string{list("A-1"), list("A-2")} {
		r := s.post("k", body)
		p := s.expect(r, http.StatusConflict, "in-progress")
		if r.header.Get("Retry-After") == "" || p.Stored != storedNothing {
			t.Errorf("%+v", r)
		}
	}
	held.Release()
	r := <-first
	s.expectStored(r, 1)
	if again := s.post("k", list("A-1")); again.body != r.body {
		t.Errorf("%+v instead of %+v", again, r)
	}
}

// Whoever comes at the same time with the same key: one of them stores.
func TestSameKeyAtOnce(t *testing.T) {
	x := newTarget(t)
	servers := []*served{x.serve(), x.serve()}
	var group sync.WaitGroup
	replies := make([]reply, 12)
	for i := range replies {
		group.Go(func() { replies[i] = servers[i%2].post("k", many("A", 50)) })
	}
	group.Wait()
	bodies := make(map[string]bool)
	for _, r := range replies {
		switch r.status {
		case http.StatusCreated:
			bodies[r.body] = true
		case http.StatusConflict:
			servers[0].expect(r, http.StatusConflict, "in-progress")
		default:
			t.Errorf("%d: %s", r.status, r.body)
		}
	}
	if len(bodies) != 1 || x.count() != 50 || x.countIn("requests") != 1 {
		t.Errorf("%d different answers, %d companies", len(bodies), x.count())
	}
}

// A made-up chaos of both kinds of duplicates is told in one answer.
func TestDuplicates(t *testing.T) {
	s := newTarget(t).serve()
	s.expectStored(s.post("", list("OLD-1", "OLD-2")), 2)
	p := s.expect(s.post("k", list("N-0", "OLD-2", "N-2", "N-0", "OLD-1", "N-5", "N-0", "OLD-1")), http.StatusConflict, "duplicate")
	want := []failure{
		{1, "/1/registration", "registration OLD-2 is taken"},
		{3, "/3/registration", "registration N-0 is also that of /0"},
		{4, "/4/registration", "registration OLD-1 is taken"},
		{6, "/6/registration", "registration N-0 is also that of /0"},
		{7, "/7/registration", "registration OLD-1 is also that of /4"},
	}
	if !slices.Equal(p.Failures, want) || p.Stored != storedNothing || p.Batch != "k" || !strings.HasPrefix(p.Detail, "5 companies were refused") {
		t.Errorf("%+v", p)
	}
	if got := s.registrations(); !slices.Equal(got, []string{"OLD-1", "OLD-2"}) {
		t.Errorf("stored: %v", got)
	}
	if n := s.countIn("requests"); n != 1 {
		t.Errorf("%d keys", n)
	}
}

// Of many duplicates in a large request, every single one is told.
func TestManyDuplicates(t *testing.T) {
	s := newTarget(t).serve()
	if r := s.post("", many("A", 1000)); r.status != http.StatusCreated {
		t.Fatal(r.status, r.body)
	}
	body := strings.TrimSuffix(many("B", 500), "]") + "," + strings.TrimPrefix(many("A", 1000), "[")
	p := s.expect(s.post("", body), http.StatusConflict, "duplicate")
	if n := len(p.Failures); n != 1000 || p.Failures[0].Index != 500 || p.Failures[999].Index != 1499 {
		t.Errorf("%d failures", n)
	}
	if n := s.count(); n != 1000 {
		t.Errorf("%d companies", n)
	}
}

// What only the database refuses is told by index and without the database's words.
func TestValidator(t *testing.T) {
	s := newTarget(t).serve()
	s.wire.On(s.inserts()).Once().WriteErrors(
		faultwire.WriteError{Index: 1, Code: 121, Message: "Document failed validation: secret"},
		faultwire.WriteError{Index: 3, Code: 121, Message: "Document failed validation: secret"})
	r := s.post("", list("A-0", "A-1", "A-2", "A-3"))
	p := s.expect(r, http.StatusUnprocessableEntity, "invalid")
	if len(p.Failures) != 2 || p.Failures[0].Index != 1 || p.Failures[1].Index != 3 || !strings.Contains(p.Failures[0].Reason, "validator") {
		t.Errorf("%+v", p)
	}
	if strings.Contains(r.body, "secret") || strings.Contains(s.log.String(), "secret") {
		t.Errorf("the database's words get out: %s\n%s", r.body, s.log)
	}
	if n := s.count(); n != 0 {
		t.Errorf("%d companies", n)
	}
}

// On every kind of server the same comes of the same, and what a server can watch over it does.
func TestServers(t *testing.T) {
	servertest.Each(t, func(t *testing.T, server *servertest.Server) {
		x := targetOn(t, server)
		s := x.serve()
		s.expectStored(s.post("k", list("A-1", "A-2")), 2)
		s.expect(s.post("k", list("A-1", "A-3")), http.StatusUnprocessableEntity, "key-reused")
		validates := !strings.Contains(s.log.String(), "has no validators")
		p := s.expect(s.post("", list("B-1", "A-2", "B-1")), http.StatusConflict, "duplicate")
		if len(p.Failures) != 2 || p.Failures[0].Index != 1 || p.Failures[1].Index != 2 {
			t.Errorf("%+v", p)
		}
		if code := s.end(); code != exitStopped {
			t.Errorf("exit code %d", code)
		}
		s = x.serve() // now everything exists
		s.expectStored(s.post("", list("B-1")), 1)
		if got := s.registrations(); !slices.Equal(got, []string{"A-1", "A-2", "B-1"}) {
			t.Errorf("stored: %v", got)
		}
		_, err := s.db.Collection("companies").InsertOne(t.Context(), bson.D{{Key: "name", Value: "of another program"}, {Key: "registration", Value: "C-1"}})
		if (err != nil) != validates || server.Kind == servertest.KindSim && !validates {
			t.Errorf("a company without number: %v; the server validates: %v", err, validates)
		}
	})
}
