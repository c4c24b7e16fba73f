package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/intact-go/intact/internal/faultwire"
)

// unavailable checks an answer of 503 after which nothing is stored.
func (s *served) unavailable(r reply) {
	s.t.Helper()
	p := s.expect(r, http.StatusServiceUnavailable, "unavailable")
	if p.Stored != storedNothing || r.header.Get("Retry-After") == "" {
		s.t.Errorf("%+v", r)
	}
}

// Without its database the program says so, and works again when it is back.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]string{"patience": "1m", "timeout": "1s"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTarget(t).serve("--request-timeout", limit)
			s.expectStored(s.post("first", list("A-1")), 1)
			s.wire.Down()
			s.unavailable(s.post("k", list("A-2")))
			if r := s.get("/readyz"); r.status != http.StatusServiceUnavailable || !strings.Contains(r.body, "database") {
				t.Errorf("%+v", r)
			}
			if r := s.get("/healthz"); r.status != http.StatusOK {
				t.Errorf("%+v", r)
			}
			s.expect(s.get("/batches"), http.StatusServiceUnavailable, "unavailable")
			s.wire.Up()
			s.expectStored(s.post("k", list("A-2")), 1)
			if r := s.get("/readyz"); r.status != http.StatusOK || s.count() != 2 {
				t.Errorf("%+v, %d companies", r, s.count())
			}
		})
	}
}

// A database that goes away during the inserting: the batch is rolled back when it is back in time.
func TestDatabaseAwayMeanwhile(t *testing.T) {
	t.Parallel()
	s := newTarget(t).serve("--request-timeout", "1s", "--lease", "4s")
	down := s.wire.On(s.inserts()).Once().ServerDown()
	first := make(chan reply)
	go func() { first <- s.post("k", list("A-1", "A-2")) }()
	s.cutOff("k")
	down.Release()
	s.unavailable(<-first)
	if n := s.count(); n != 0 {
		t.Errorf("%d companies", n)
	}
	s.wait("the key is free", func() bool { return s.post("k", list("A-1", "A-2")).status == http.StatusCreated })
	if n := s.count(); n != 2 {
		t.Errorf("%d companies", n)
	}
}

// A database that is too busy: the same.
func TestThrottled(t *testing.T) {
	t.Parallel()
	s := newTarget(t).serve()
	throttled := s.wire.On(s.inserts()).Reply(faultwire.Throttled(100 * time.Millisecond))
	s.unavailable(s.post("k", list("A-1")))
	throttled.Off()
	if n := throttled.Fired(); n < 2 {
		t.Errorf("it was tried %d times", n)
	}
	s.expectStored(s.post("k", list("A-1")), 1)
}

// A database that refuses for good is a fault of the server, of which clients learn no details.
func TestNotAllowed(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]faultwire.Name{"numbers": faultwire.FindAndModify, "journal and companies": faultwire.Insert} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTarget(t).serve()
			s.wire.On(command.In(s.db.Name())).Once().Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "secret"})
			r := s.post("k", list("A-1"))
			p := s.expect(r, http.StatusInternalServerError, "internal")
			if p.Stored != storedNothing || strings.Contains(r.body, "secret") || !strings.Contains(s.log.String(), "level=ERROR") || s.count() != 0 {
				t.Errorf("%+v\n%s", r, s.log)
			}
			s.expectStored(s.post("k", list("A-1")), 1)
		})
	}
}

// A rollback that cannot be finished is said to be so, shown, and finished by the recovery that runs beside.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	s := newTarget(t).serve("--lease", "400ms")
	s.expectStored(s.post("", list("A-1")), 1)
	denied := s.wire.On(faultwire.Delete.In(s.db.Name() + ".companies")).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "secret"})
	r := s.post("k", list("B-1", "B-2", "A-1"))
	p := s.expect(r, http.StatusServiceUnavailable, "incomplete")
	if p.Stored != storedUnknown || p.Batch != "k" || r.header.Get("Retry-After") == "" || !strings.Contains(p.Detail, "Recovery deletes them") || strings.Contains(r.body, "secret") {
		t.Errorf("%+v", r)
	}
	if n := s.count(); n != 3 {
		t.Fatalf("%d companies: the test shows nothing", n)
	}
	if r := s.get("/batches"); !strings.Contains(r.body, `"batch":"k","state":"aborting"`) || !strings.Contains(r.body, `"companies":3`) {
		t.Errorf("%s", r.body)
	}
	s.expect(s.post("k", list("B-1")), http.StatusConflict, "in-progress")
	denied.Off()
	s.wait("the recovery deletes them", func() bool { return s.count() == 1 })
	s.wait("the key is free", func() bool { return s.post("k", list("B-1", "B-2")).status == http.StatusCreated })
	if n, keys := s.count(), s.countIn("requests"); n != 3 || keys != 2 {
		t.Errorf("%d companies, %d keys", n, keys)
	}
}

// When the last word gets lost and the journal cannot be asked, the answer says that nobody knows; the same key tells it
// later.
func TestUnresolved(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"it arrived": true, "it did not arrive": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTarget(t).serve("--lease", "30s")
			commit := faultwire.Update.In(s.db.Name() + ".batches").Where(func(r *faultwire.Request) bool {
				return strings.Contains(r.Document().String(), `"committed"`)
			})
			rule := s.wire.On(commit).Once()
			var done *faultwire.Rule
			if arrives {
				done = rule.HoldReply()
			} else {
				done = rule.Hold()
			}
			first := make(chan reply)
			go func() { first <- s.post("k", list("A-1", "A-2")) }()
			<-done.Arrived()
			s.wire.Refuse()
			s.wire.Cut()
			done.Drop()
			r := <-first
			p := s.expect(r, http.StatusServiceUnavailable, "unresolved")
			if p.Stored != storedUnknown || r.header.Get("Retry-After") == "" {
				t.Errorf("%+v", r)
			}
			s.wire.Up()
			if n := s.count(); n != 2 {
				t.Errorf("%d companies", n)
			}
			again := s.post("k", list("A-1", "A-2"))
			if arrives {
				s.expectStored(again, 2)
				return
			}
			s.expect(again, http.StatusConflict, "in-progress")
		})
	}
}
