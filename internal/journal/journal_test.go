package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/internal/outcome"
)

// refusal is a server's No that every sending meets alike.
var refusal = faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized"}

// TestSwapComparesEverything changes one thing after the other that a compare-and-set names.
func TestSwapComparesEverything(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		for i, c := range []struct {
			what   string
			change func(*journal.Record)
			beat   bool
			lost   bool
		}{
			{"nothing", func(*journal.Record) {}, true, false},
			{"the state", func(r *journal.Record) { r.State = journal.Aborting }, false, true},
			{"the version", func(r *journal.Record) { r.Version++ }, false, true},
			{"the attempt", func(r *journal.Record) { r.Attempt = bson.NewObjectID() }, false, true},
			{"the id", func(r *journal.Record) { r.ID = "another" }, false, true},
			{"the beat, compared", func(r *journal.Record) { r.Beat++ }, true, true},
			{"the beat, not compared", func(r *journal.Record) { r.Beat++ }, false, false},
			{"the owner", func(r *journal.Record) { r.Owner = "another" }, true, false},
		} {
			from := f.create(fmt.Sprint("record ", i))
			c.change(&from)
			_, err := f.Swap(f.Context(), from, journal.Change{To: journal.Aborting, Owner: "host/2/recovery", Beat: c.beat})
			if errors.Is(err, journal.ErrLost) != c.lost || !c.lost && err != nil {
				t.Errorf("other than the record is %s: lost %t was to be expected, but the error is %v", c.what, c.lost, err)
			}
			state, version := journal.Open, int64(1)
			if !c.lost {
				state, version = journal.Aborting, 2
			}
			if now := f.stored(fmt.Sprint("record ", i)); now.State != state || now.Version != version {
				t.Errorf("other than the record is %s: it is %s in version %d now", c.what, now.State, now.Version)
			}
		}
	})
}

// TestSwapTellsWhatIsKnown loses and refuses the sendings of a change in every way.
func TestSwapTellsWhatIsKnown(t *testing.T) {
	type sending = faultwire.Fault
	lostReply, lostRequest, refused := faultwire.DropReply(), faultwire.DropRequest(), faultwire.Reply(refusal)
	const ok, unclear, certain, lost = "made", "unclear", "certain", "lost"
	for _, c := range []struct {
		name     string
		sendings []sending // the last goes on for ever
		between  func(f *fixture, r journal.Record)
		want     string
		state    journal.State // afterwards; "" if the record is gone
		retried  string        // instead of want, where the driver repeats the change and the server knows it again
	}{
		{"answered", nil, nil, ok, journal.Committed, ""},
		{"the reply is lost once", []sending{lostReply, faultwire.Pass()}, nil, ok, journal.Committed, ""},
		{"the request is lost once", []sending{lostRequest, faultwire.Pass()}, nil, ok, journal.Committed, ""},
		{"refused", []sending{refused}, nil, unclear, journal.Open, ""}, // it may be the answer to a repetition
		{"the reply is lost, then it is refused", []sending{lostReply, refused}, nil, unclear, journal.Committed, ""},
		{"the request is lost, then it is refused", []sending{lostRequest, refused}, nil, unclear, journal.Open, ""},
		{"all replies are lost", []sending{lostReply, lostRequest}, nil, unclear, journal.Committed, ""},
		{"all requests are lost", []sending{lostRequest}, nil, unclear, journal.Open, ""},
		{
			"the reply is lost, then the record is removed as finished", []sending{lostReply, faultwire.Pass()},
			func(f *fixture, r journal.Record) { f.remove(r.ID) }, unclear, "", ok,
		},
		{
			"the request is lost, then somebody takes over", []sending{lostRequest, faultwire.Pass()},
			func(f *fixture, r journal.Record) { f.takeOver(r) }, lost, journal.Aborting, "",
		},
	} {
		for _, set := range []string{"", "set"} {
			t.Run(fmt.Sprintf("%s/replica set %q", c.name, set), func(t *testing.T) {
				bubble(t, set, func(f *fixture) {
					t := f.T
					r := f.create("record")
					f.meet(c.sendings, func() { c.between(f, r) }, c.between != nil)
					now, err := f.Swap(f.Context(), r, journal.Change{To: journal.Committed, Owner: r.Owner})
					got := ok
					switch {
					case errors.Is(err, journal.ErrUnclear):
						got = unclear
					case errors.Is(err, journal.ErrLost):
						got = lost
					case err != nil:
						got = certain
					}
					want := c.want
					if c.retried != "" && f.repeated() {
						want = c.retried
					}
					if got != want {
						t.Errorf("the change is %q, not %q: %v", got, want, err)
					}
					if got == ok && (now.State != journal.Committed || now.Version != r.Version+1) {
						t.Errorf("the record was returned as %s in version %d", now.State, now.Version)
					}
					f.wire.Calm()
					stored, found, err := f.Get(f.Context(), "record")
					if err != nil || found != (c.state != "") || found && stored.State != c.state {
						t.Errorf("the record is %q (found %t, %v), not %q", stored.State, found, err, c.state)
					}
				})
			})
		}
	}
}

// TestSwapThatWasNeverSent: without a server there is nothing that could have been changed.
func TestSwapThatWasNeverSent(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		f.wire.Down()
		time.Sleep(time.Second) // the driver has to notice first, or it would find out by sending
		for f.wire.Connections() > 0 {
			time.Sleep(time.Second)
		}
		_, err := f.Swap(f.Context(), r, journal.Change{To: journal.Committed, Owner: r.Owner})
		if err == nil || errors.Is(err, journal.ErrUnclear) || errors.Is(err, journal.ErrLost) {
			t.Errorf("the change: %v", err)
		}
	})
}

// commit matches the sendings of a change to Committed.
var commit = faultwire.Update.Where(func(r *faultwire.Request) bool {
	to, _ := r.Statements()[0].Lookup("u", "$set", "state").StringValueOK()
	return to == string(journal.Committed)
})

// repeated is whether the driver itself sent a commit again, under its old number. Mostly it does, if there is a set; now and
// then its pool is cleared a second time meanwhile, and it returns the error of the first sending.
func (f *fixture) repeated() bool {
	events := f.wire.Events(commit)
	if len(events) != 2 {
		return false
	}
	first, ok := events[0].TxnNumber()
	second, _ := events[1].TxnNumber()
	return ok && first == second && bytes.Equal(events[0].Session(), events[1].Session())
}

// meet has the sendings of a commit meet faults, the last of them for ever. between is called at the first sending: when
// the server has run it, or before it would.
func (f *fixture) meet(sendings []faultwire.Fault, between func(), call bool) {
	for i, fault := range sendings {
		faults := []faultwire.Fault{fault}
		if i == 0 && call {
			moment := faultwire.Before
			if fault.Runs() {
				moment = faultwire.After
			}
			faults = append(faults, moment(func(context.Context, *faultwire.Request) { between() }))
		}
		when := f.wire.On(commit)
		if i < len(sendings)-1 {
			when = when.Nth(1)
		}
		when.Do(faults...)
	}
}

// remove and takeOver do what somebody else does, over the same wire: they do not look like the change in hand.
func (f *fixture) remove(id string) {
	if _, err := f.coll.DeleteOne(context.Background(), bson.D{{Key: "_id", Value: id}}); err != nil {
		f.Errorf("removing the record: %v", err)
	}
}

func (f *fixture) takeOver(r journal.Record) {
	if _, err := f.Swap(context.Background(), r, journal.Change{To: journal.Aborting, Owner: "host/2/recovery", Beat: true}); err != nil {
		f.Errorf("taking over: %v", err)
	}
}

// TestFinishedIsForFinishedRecords: a TTL index on the field must never touch a record that recovery needs.
func TestFinishedIsForFinishedRecords(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		for _, to := range []journal.State{journal.Aborting, journal.Watching, journal.Aborted} {
			var err error
			if r, err = f.Swap(f.Context(), r, journal.Change{To: to, Owner: r.Owner}); err != nil {
				t.Fatal(err)
			}
			if has := f.stored("record").Finished != nil; has != to.Final() {
				t.Errorf("a record that is %s has the field finished: %t", to, has)
			}
		}
	})
}

// TestCreateKnowsItsOwn: a second sending meets what the first one stored.
func TestCreateKnowsItsOwn(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		f.wire.On(faultwire.Insert).Once().DropReply()
		r := f.create("key")
		another := record("key")
		if err := f.Create(f.Context(), another); !errors.Is(err, journal.ErrExists) {
			t.Errorf("creating the record of another attempt under the same key: %v", err)
		}
		if have := f.stored("key"); have.Attempt != r.Attempt {
			t.Errorf("the record is of the attempt %s, not %s", have.Attempt, r.Attempt)
		}
	})
}

// TestPagesAreDurable: that a page is there is not enough while the write concern is not met.
func TestPagesAreDurable(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		page := journal.Page{ID: journal.PageID(bson.NewObjectID(), journal.Claimed, 0), Values: values(f.T, "a", "b")}
		inserts := faultwire.Insert.Where(func(r *faultwire.Request) bool { return r.Collection == pages })
		f.wire.On(inserts).Nth(1).DropReply()
		unmet := f.wire.On(inserts).Nth(1).WriteConcernError(64, "waiting for replication timed out") // the 2nd of all
		if err := f.AddPage(f.Context(), page); err != nil {
			t.Fatal(err)
		}
		if unmet.Fired() != 1 || len(f.wire.Events(inserts)) != 3 {
			t.Errorf("the page was taken for durable too early; %d sendings", len(f.wire.Events(inserts)))
		}
	})
}

// TestUncountedInsertIsRepeated: an answer that counts no document is no proof that the document is stored.
func TestUncountedInsertIsRepeated(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		uncounted := faultwire.Document(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: int32(0)}})
		f.wire.On(faultwire.Insert).Once().Reply(uncounted)
		r := f.create("key")
		if have := f.stored("key"); have.Attempt != r.Attempt {
			t.Errorf("the record is of the attempt %s, not %s", have.Attempt, r.Attempt)
		}
		page := journal.Page{ID: journal.PageID(r.Attempt, journal.Claimed, 0), Values: values(f.T, "a", "b")}
		f.wire.On(faultwire.Insert).Once().Reply(uncounted)
		if err := f.AddPage(f.Context(), page); err != nil {
			t.Fatal(err)
		}
		read := 0
		if err := f.Claims(f.Context(), r.Attempt, func(p journal.Page) error { read += len(p.Values); return nil }); err != nil || read != 2 {
			t.Errorf("%d of 2 ids are there: %v", read, err)
		}
	})
}

// TestEverythingIsMajority: what is written must survive a failover, and what is read must be true.
func TestEverythingIsMajority(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		careless := f.coll.Clone(options.Collection().SetWriteConcern(writeconcern.Unacknowledged()).SetReadPreference(readpref.SecondaryPreferred()))
		j := journal.New(careless, limits())
		ctx := mongo.NewSessionContext(f.Context(), nil)
		r := record("record")
		column := values(f.T, "x")
		next := 0
		steps := []func() error{
			func() error { return j.Create(ctx, r) },
			func() error {
				return j.AddPage(ctx, journal.Page{ID: journal.PageID(r.Attempt, journal.Claimed, 0), Values: column})
			},
			func() error { return j.Beat(ctx, r) },
			func() error { return j.Note(ctx, r, bson.D{{Key: "problem", Value: "x"}}) },
			func() error { _, err := j.StoreColumn(ctx, r, 0, column, &next); return err },
			func() (err error) {
				r, err = j.Swap(ctx, r, journal.Change{To: journal.Committed, Owner: r.Owner})
				return
			},
			func() error { _, err := j.All(ctx); return err },
			func() error { _, err := j.Unfinished(ctx, ""); return err },
			func() error { _, err := j.Overdue(ctx, "", time.Now()); return err },
			func() error { _, _, err := j.Get(ctx, "record"); return err },
			func() error { return j.Claims(ctx, r.Attempt, func(journal.Page) error { return nil }) },
			func() error { return j.Remove(ctx, r) },
		}
		for i, step := range steps {
			if err := step(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
		writes, reads := 0, 0
		for _, e := range f.wire.Events() {
			if w := e.WriteConcern(); w != nil || e.Name == faultwire.Insert || e.Name == faultwire.Update || e.Name == faultwire.Delete {
				writes++
				if level, _ := w.Lookup("w").StringValueOK(); level != "majority" || !w.Lookup("j").Boolean() {
					t.Errorf("%s has the write concern %v", e.String(), w)
				}
				continue
			}
			reads++
			if level, _ := e.ReadConcern().Lookup("level").StringValueOK(); level != "majority" {
				t.Errorf("%s has the read concern %v", e.String(), e.ReadConcern())
			}
			if mode, _ := e.ReadPreference().Lookup("mode").StringValueOK(); mode != "" && mode != "primary" && mode != "primaryPreferred" {
				t.Errorf("%s reads from %s", e.String(), mode)
			}
		}
		if writes < 8 || reads < 5 {
			t.Errorf("%d writes and %d reads were seen", writes, reads)
		}
	})
}

// TestPatience: a journal that does not answer does not hold anybody for ever.
func TestPatience(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		f.wire.On().Hold()
		for name, call := range map[string]func() error{
			"Create": func() error { return f.Create(context.Background(), record("another")) },
			"Get":    func() error { _, _, err := f.Get(context.Background(), "record"); return err },
			"Swap": func() error {
				_, err := f.Swap(context.Background(), r, journal.Change{To: journal.Committed})
				return err
			},
			"Unfinished": func() error { _, err := f.Unfinished(context.Background(), ""); return err },
			"Claims": func() error {
				return f.Claims(context.Background(), r.Attempt, func(journal.Page) error { return nil })
			},
		} {
			began := time.Now()
			err := call()
			if took := time.Since(began); err == nil || took > limits().Patience+time.Second {
				t.Errorf("%s took %s: %v", name, took, err)
			}
		}
	})
}

// TestSlowRoundTripIsMeasuredAgain: the driver sends nothing that has less time than the round trip that it last measured.
// Once the server is quick again, a journal that is as patient as the default hears from it, however short its commands.
func TestSlowRoundTripIsMeasuredAgain(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.T
		f.create("record")
		var roundTrip atomic.Int64
		f.wire.On(faultwire.Hello).Before(func(context.Context, *faultwire.Request) { time.Sleep(time.Duration(roundTrip.Load())) })
		roundTrip.Store(int64(2 * time.Second))
		f.wire.Cut()            // the driver forgets what it has measured
		time.Sleep(time.Minute) // and measures
		roundTrip.Store(int64(5 * time.Millisecond))

		hasty := limits()
		hasty.Command, hasty.Patience = time.Second, 30*time.Second
		ctx, cancel := context.WithTimeout(t.Context(), hasty.Command)
		defer cancel()
		if err := f.coll.FindOne(ctx, bson.D{}).Err(); !errors.Is(err, driver.ErrDeadlineWouldBeExceeded) {
			t.Fatalf("reading with too little time for the round trip that was measured: %v", err)
		}
		if _, found, err := journal.New(f.coll, hasty).Get(t.Context(), "record"); err != nil || !found {
			t.Errorf("reading the record: found %t, %v", found, err)
		}
	})
}

// TestUnfinishedIsWhatIsNotFinished: a state that nobody knows is looked at rather than passed over.
func TestUnfinishedIsWhatIsNotFinished(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		for _, s := range []any{"open", "aborting", "watching", "committed", "aborted", "forgotten", "of the future", nil, 7} {
			d := bson.D{{Key: "_id", Value: fmt.Sprint(s)}, {Key: "state", Value: s}}
			if s == nil {
				d = d[:1]
			}
			if _, err := f.coll.InsertOne(f.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := ids(f, ""), "7, <nil>, aborting, of the future, open, watching"; got != want {
			t.Errorf("unfinished are %s; want %s", got, want)
		}
		if got := ids(f, "open"); got != "open" {
			t.Errorf("unfinished with the id open are %s", got)
		}
		if got := ids(f, "committed"); got != "" {
			t.Errorf("unfinished with the id committed are %s", got)
		}
	})
}

func ids(f *fixture, id string) string {
	f.Helper()
	heads, err := f.Unfinished(f.Context(), id)
	if err != nil {
		f.Fatal(err)
	}
	var all []string
	for _, head := range heads {
		all = append(all, head.Lookup("_id").StringValue())
	}
	return strings.Join(all, ", ")
}

// TestRemove removes a record with its pages, and nothing else.
func TestRemove(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		var records []journal.Record
		for i := range 3 {
			r := f.create(fmt.Sprint("record ", i))
			for n := range 3 {
				for _, kind := range []string{journal.Claimed, journal.Stored} {
					if err := f.AddPage(f.Context(), journal.Page{ID: journal.PageID(r.Attempt, kind, n), Values: values(f.T, "x")}); err != nil {
						t.Fatal(err)
					}
				}
			}
			records = append(records, r)
		}
		if err := f.Remove(f.Context(), records[0]); err == nil {
			t.Error("an unfinished record was removed")
		}
		done, err := f.Swap(f.Context(), records[1], journal.Change{To: journal.Committed, Owner: records[1].Owner})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(f.Context(), done); err != nil {
			t.Fatal(err)
		}
		if _, found, _ := f.Get(f.Context(), "record 1"); found {
			t.Error("the record is still there")
		}
		for i, want := range []int{3, 0, 3} {
			n := 0
			err := f.Claims(f.Context(), records[i].Attempt, func(journal.Page) error { n++; return nil })
			if err != nil || n != want {
				t.Errorf("record %d has %d pages of claimed ids, not %d: %v", i, n, want, err)
			}
		}
		for i, want := range []bool{true, false, true} {
			if _, found, _ := f.Get(f.Context(), fmt.Sprint("record ", i)); found != want {
				t.Errorf("record %d is there: %t", i, found)
			}
		}
	})
}

// TestRemoveTakesPagesFirst: a removal that is cut short leaves no page without its record.
func TestRemoveTakesPagesFirst(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		r := f.create("record")
		if err := f.AddPage(f.Context(), journal.Page{ID: journal.PageID(r.Attempt, journal.Claimed, 0), Values: values(f.T, "x")}); err != nil {
			t.Fatal(err)
		}
		r, err := f.Swap(f.Context(), r, journal.Change{To: journal.Aborted, Owner: r.Owner})
		if err != nil {
			t.Fatal(err)
		}
		refused := f.wire.On(faultwire.Delete.Where(func(r *faultwire.Request) bool { return r.Collection == pages })).Reply(refusal)
		if err := f.Remove(f.Context(), r); outcome.Command(err).Code != 13 {
			t.Errorf("removing when pages cannot be: %v", err)
		}
		if f.stored("record"); refused.Fired() == 0 {
			t.Error("no page was to be removed")
		}
	})
}

func values(t *testing.T, from ...any) []bson.RawValue {
	t.Helper()
	all := make([]bson.RawValue, len(from))
	for i, v := range from {
		kind, value, err := bson.MarshalValue(v)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = bson.RawValue{Type: kind, Value: value}
	}
	return all
}
