package idgen_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// clock is set by tests.
type clock struct {
	mu sync.Mutex // guards t
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

func at(s string) *clock {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return &clock{t: t}
}

func location(t testing.TB, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPeriodicNumbers(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, test := range []struct {
			name   string
			config idgen.PeriodicConfig
			want   []int64
			text   string
		}{
			{"day", idgen.PeriodicConfig{}, []int64{2601310001, 2601310002}, "260131-0001"},
			{"month", idgen.PeriodicConfig{Period: idgen.Month}, []int64{26010001, 26010002}, "2601-0001"},
			{"year", idgen.PeriodicConfig{Period: idgen.Year, Digits: 6}, []int64{26000001, 26000002}, "26-000001"},
			{"hour", idgen.PeriodicConfig{Period: idgen.Hour, Digits: 2}, []int64{2601312301, 2601312302}, "26013123-01"},
			{"long year", idgen.PeriodicConfig{LongYear: true}, []int64{202601310001, 202601310002}, "20260131-0001"},
			{"zone", idgen.PeriodicConfig{Zone: location(t, "Asia/Tokyo")}, []int64{2602010001, 2602010002}, "260201-0001"},
			{"most digits", idgen.PeriodicConfig{Period: idgen.Hour, LongYear: true, Digits: 8}, []int64{202601312300000001, 202601312300000002}, "2026013123-00000001"},
		} {
			t.Run(test.name, func(t *testing.T) {
				ids := database(t, s).Collection("ids")
				test.config.Clock = at("2026-01-31T23:30:00Z").now
				if got := take(t, idgen.NewPeriodic(ids, "n", test.config), 2); !slices.Equal(got, test.want) {
					t.Errorf("%d, want %d", got, test.want)
				}
				texts := idgen.Format{Separator: "-"}.Of(idgen.NewPeriodic(ids, "t", test.config))
				if got, err := texts.Next(testContext(t)); err != nil || got != test.text {
					t.Errorf("%q, %v; want %q", got, err, test.text)
				}
			})
		}
	})
}

// An ids collection as another program left it, with the program still running beside.
func TestPeriodicAdopts(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		ids := database(t, s).Collection("ids")
		day := at("2026-01-31T12:00:00Z")
		p := idgen.NewPeriodic(ids, nil, idgen.PeriodicConfig{Clock: day.now, Fields: idgen.Fields{Period: "prefix", Value: "count"}})
		_, err := p.Next(testContext(t))
		if e := reason(t, err, idgen.NoIndex); !strings.Contains(e.Repair, `createIndex({"prefix": 1}, {unique: true})`) {
			t.Errorf("the error does not say how to create the index: %q", e.Repair)
		}
		uniqueOn(t, ids, bson.D{{Key: "prefix", Value: 1}})
		insert(t, ids, bson.D{{Key: "prefix", Value: int32(260131)}, {Key: "count", Value: int32(17)}})
		if got, err := p.Next(testContext(t)); err != nil || got != 2601310018 {
			t.Errorf("%d, %v", got, err)
		}
		// The other program upserts the next day's counter, and we take from it.
		if _, err := ids.UpdateOne(testContext(t), bson.D{{Key: "prefix", Value: int32(260201)}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "count", Value: int32(1)}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
			t.Fatal(err)
		}
		day.set(day.now().Add(24 * time.Hour))
		if got, err := p.Next(testContext(t)); err != nil || got != 2602010002 {
			t.Errorf("%d, %v", got, err)
		}
		if n := len(stored(t, ids)); n != 2 {
			t.Errorf("%d documents", n)
		}
	})
}

// At the end of the width come errors, and the next period.
func TestPeriodicOverflow(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		ids := database(t, s).Collection("ids")
		day := at("2026-01-31T12:00:00Z")
		p := idgen.NewPeriodic(ids, "invoice", idgen.PeriodicConfig{Clock: day.now, Digits: 2})
		if got := take(t, p, 98); got[97] != 26013198 {
			t.Fatalf("the 98th is %d", got[97])
		}
		for range 3 { // an error does not use anything up
			_, err := p.Take(testContext(t), 2)
			reason(t, err, idgen.Exhausted)
		}
		if got := take(t, p, 1)[0]; got != 26013199 {
			t.Errorf("the 99th is %d", got)
		}
		for _, n := range []int{1, 100, math.MaxInt} {
			_, err := p.Take(testContext(t), n)
			reason(t, err, idgen.Exhausted)
		}
		_, err := idgen.Format{Prefix: "INV-"}.Of(p).Next(testContext(t))
		reason(t, err, idgen.Exhausted)
		day.set(day.now().Add(12 * time.Hour))
		_, err = p.Take(testContext(t), 100) // not even a fresh day has as many
		reason(t, err, idgen.Exhausted)
		if got := take(t, p, 99); got[0] != 26020101 {
			t.Errorf("the next day starts with %d", got[0])
		}
		for _, year := range []string{"1999-12-31T00:00:00Z", "2100-01-01T00:00:00Z"} {
			_, err := idgen.NewPeriodic(ids, "years", idgen.PeriodicConfig{Clock: at(year).now}).Next(testContext(t))
			reason(t, err, idgen.Exhausted)
		}
	})
}

// Two clients of different zones take numbers from one sequence while the clock walks through everything that it does.
func TestPeriodicWalk(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, walk := range []struct{ zone, from, to string }{
			{"America/New_York", "2024-11-02T20:00:00Z", "2024-11-04T12:00:00Z"},
			{"America/Sao_Paulo", "2018-11-03T20:00:00Z", "2018-11-05T12:00:00Z"},
			{"Australia/Lord_Howe", "2024-10-05T06:00:00Z", "2024-10-06T20:00:00Z"},
			{"Pacific/Apia", "2011-12-29T20:00:00Z", "2011-12-31T20:00:00Z"},
			{"America/St_Johns", "2010-11-06T20:00:00Z", "2010-11-07T12:00:00Z"},
			{"Asia/Kolkata", "2024-02-28T12:00:00Z", "2024-03-01T12:00:00Z"},
			{"Pacific/Kiritimati", "2025-12-31T00:00:00Z", "2026-01-01T20:00:00Z"},
		} {
			t.Run(walk.zone, func(t *testing.T) {
				db := database(t, s)
				now, end := at(walk.from), at(walk.to).now()
				given := map[int64]bool{}
				zones := []*time.Location{location(t, walk.zone), location(t, "America/Los_Angeles")}
				last := map[string]int64{}
				for ; now.now().Before(end); now.set(now.now().Add(29 * time.Minute)) {
					for _, zone := range zones {
						p := idgen.NewPeriodic(db.Collection("ids"), "invoice", idgen.PeriodicConfig{Clock: now.now, Zone: zone})
						for _, n := range take(t, p, 2) {
							date := now.now().In(zone).Format("060102")
							if given[n] {
								t.Fatalf("%d again, at %v", n, now.now().In(zone))
							}
							given[n] = true
							if fmt.Sprint(n/10000) != date {
								t.Fatalf("%d at %v", n, now.now().In(zone))
							}
							if n%10000 != last[date]+1 {
								t.Fatalf("%d follows %s-%04d", n, date, last[date])
							}
							last[date] = n % 10000
						}
						if _, err := p.Purge(testContext(t), now.now().AddDate(1, 0, 0)); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		}
	})
}

// The clock is asked once, however long the call takes.
func TestPeriodicTakesThePeriodOnce(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		now := at("2026-01-31T23:59:59Z")
		asked := 0
		p := idgen.NewPeriodic(database(t, s, options.Client().SetDialer(wire)).Collection("ids"), "invoice", idgen.PeriodicConfig{Clock: func() time.Time {
			asked++
			return now.now()
		}})
		wire.On(faultwire.FindAndModify).First(2).Do(
			faultwire.After(func(context.Context, *faultwire.Request) { now.set(now.now().Add(time.Hour)) }), faultwire.DropReply())
		numbers := take(t, p, 50)
		if numbers[0]/10000 != 260131 || numbers[49] != numbers[0]+49 || asked != 1 {
			t.Errorf("from %d to %d, having asked the clock %d times", numbers[0], numbers[49], asked)
		}
		if next := take(t, p, 1)[0]; next != 2602010001 {
			t.Errorf("next is %d", next)
		}
	})
}

func TestPeriodicPurge(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, shape := range []struct {
			name   string
			key    any
			fields idgen.Fields
			unique bson.D
			scoped bool
		}{
			{"in the _id", "invoice", idgen.Fields{}, nil, false},
			{"in the _id, with scopes", "invoice", idgen.Fields{}, nil, true},
			{"as the _id", nil, idgen.Fields{}, nil, false},
			{"in a field", nil, idgen.Fields{Period: "prefix", Value: "count"}, bson.D{{Key: "prefix", Value: 1}}, false},
			{"in fields, with scopes", "invoice", idgen.Fields{Key: "name", Scope: "tenant", Period: "prefix"},
				bson.D{{Key: "name", Value: 1}, {Key: "tenant", Value: 1}, {Key: "prefix", Value: 1}}, true},
		} {
			t.Run(shape.name, func(t *testing.T) {
				ids := database(t, s).Collection("ids")
				if shape.unique != nil {
					uniqueOn(t, ids, shape.unique)
				}
				now := at("2026-01-20T12:00:00Z")
				p := idgen.NewPeriodic(ids, shape.key, idgen.PeriodicConfig{Clock: now.now, Fields: shape.fields})
				tenants := []*idgen.Periodic{p}
				if shape.scoped {
					tenants = []*idgen.Periodic{p.Scope("a"), p.Scope("b")}
				}
				bystanders := []any{
					bson.D{{Key: "_id", Value: "260120"}, {Key: "name", Value: "other"}, {Key: "tenant", Value: 1}, {Key: "seq", Value: int64(1)}},
					bson.D{{Key: "_id", Value: bson.D{{Key: "key", Value: "other"}, {Key: "period", Value: int32(260120)}}}, {Key: "name", Value: "other"}, {Key: "tenant", Value: 2}, {Key: "prefix", Value: "260120"}, {Key: "seq", Value: int64(1)}},
					bson.D{{Key: "_id", Value: int32(259999)}, {Key: "name", Value: "other"}, {Key: "tenant", Value: 3}, {Key: "prefix", Value: int32(259999)}, {Key: "seq", Value: int64(1)}},
				}
				insert(t, ids, bystanders...)
				for range 12 { // from the 20th to the 31st
					for _, tenant := range tenants {
						take(t, tenant, 3)
					}
					now.set(now.now().Add(24 * time.Hour))
				}
				now.set(at("2026-01-31T12:00:00Z").now())
				purge := func(p *idgen.Periodic, before string, want int64) {
					t.Helper()
					if n, err := p.Purge(testContext(t), at(before).now()); err != nil || n != want {
						t.Errorf("purged %d, %v; want %d", n, err, want)
					}
				}
				each := int64(len(tenants))
				purge(p, "2026-01-10T00:00:00Z", 0)
				purge(p, "2026-01-23T23:00:00Z", 3*each) // 20, 21, 22
				purge(p, "2026-01-23T23:00:00Z", 0)
				if shape.scoped {
					purge(tenants[0], "2026-01-24T00:00:00Z", 1) // 23 of one tenant
					purge(p, "2026-01-24T00:00:00Z", 1)          // and of the other
				} else {
					purge(p, "2026-01-24T00:00:00Z", 1)
				}
				// The far future: all but what may be somebody's today.
				purge(p, "2090-01-01T00:00:00Z", 6*each) // 24 to 29; it is the 30th somewhere
				for _, tenant := range tenants {
					if got := take(t, tenant, 1)[0]; got != 2601310004 {
						t.Errorf("after the purge comes %d", got)
					}
				}
				if n := len(stored(t, ids)); n != len(bystanders)+2*len(tenants) {
					t.Errorf("%d documents are left", n)
				}
			})
		}
	})
}

func TestPeriodicRaise(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		db := database(t, s)
		now := at("2026-01-31T12:00:00Z")
		p := idgen.NewPeriodic(db.Collection("ids"), "invoice", idgen.PeriodicConfig{Clock: now.now})
		if err := p.RaiseTo(testContext(t), 2601310041); err != nil {
			t.Fatal(err)
		}
		if got := take(t, p, 1)[0]; got != 2601310042 {
			t.Errorf("after 2601310041 comes %d", got)
		}
		for _, wrong := range []int64{-2601310041, 41, 2601320001, 26013100411} {
			reason(t, p.RaiseTo(testContext(t), wrong), idgen.Misused)
		}
		insert(t, db.Collection("invoices"), bson.D{{Key: "no", Value: int64(2601310099)}}, bson.D{{Key: "no", Value: int64(2602010007)}},
			bson.D{{Key: "no", Value: int64(2601300500)}}, bson.D{{Key: "no", Value: int64(2601310200)}, {Key: "draft", Value: true}})
		where := bson.D{{Key: "draft", Value: bson.D{{Key: "$exists", Value: false}}}}
		if err := p.RaiseToMax(testContext(t), db.Collection("invoices"), "no", where); err != nil {
			t.Fatal(err)
		}
		if got := take(t, p, 1)[0]; got != 2601310100 {
			t.Errorf("after 2601310099 comes %d", got)
		}
		if err := p.RaiseToMax(testContext(t), db.Collection("invoices"), "no", nil); err != nil {
			t.Fatal(err)
		}
		if got := take(t, p, 1)[0]; got != 2601310201 {
			t.Errorf("after 2601310200 comes %d", got)
		}
	})
}

func TestPeriodicSettings(t *testing.T) {
	coll := unreachable(t)
	for _, test := range []struct {
		name string
		p    *idgen.Periodic
		says string
	}{
		{"no such period", idgen.NewPeriodic(coll, "a", idgen.PeriodicConfig{Period: 9}), "Period(9)"},
		{"negative digits", idgen.NewPeriodic(coll, "a", idgen.PeriodicConfig{Digits: -1}), "Digits is -1"},
		{"too many digits", idgen.NewPeriodic(coll, "a", idgen.PeriodicConfig{Digits: 13}), "from 1 to 12"},
		{"no collection", idgen.NewPeriodic(nil, "a"), "nil"},
		{"two configs", idgen.NewPeriodic(coll, "a", idgen.PeriodicConfig{}, idgen.PeriodicConfig{}), "more than one config"},
		{"period without a field", idgen.NewPeriodic(coll, "a", idgen.PeriodicConfig{Fields: idgen.Fields{Key: "k"}}), "the period has no field"},
		{"key without a field", idgen.NewPeriodic(coll, "a", idgen.PeriodicConfig{Fields: idgen.Fields{Period: "p"}}), "the key has no field"},
		{"scope of a scope", idgen.NewPeriodic(coll, "a").Scope(1).Scope(2), "scope within a scope"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.p.Next(context.Background())
			if e := reason(t, err, idgen.Misused); !strings.Contains(e.Error(), test.says) {
				t.Errorf("the error does not say %q: %v", test.says, err)
			}
			reason(t, test.p.RaiseTo(context.Background(), 2601310001), idgen.Misused)
			reason(t, test.p.RaiseToMax(context.Background(), coll, "n", nil), idgen.Misused)
			_, err = test.p.Purge(context.Background(), time.Now())
			reason(t, err, idgen.Misused)
		})
	}
}
