package journal_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/journal"
)

// TestColumns stores values and reads them back, and counts what that costs.
func TestColumns(t *testing.T) {
	texts := func(n, size int) (all []any) {
		for i := range n {
			all = append(all, fmt.Sprintf("%0*d", size, i))
		}
		return all
	}
	long := func(from ...int64) (all []any) {
		for _, v := range from {
			all = append(all, v)
		}
		return all
	}
	id := bson.NewObjectID()
	onEach(t, func(f *fixture) {
		t := f.T
		for _, c := range []struct {
			name   string
			values []any
			pages  int
		}{
			{"one number", long(7), 0},
			{"a series", long(1, 2, 3, 4), 0},
			{"a series downwards", long(10, 5, 0, -5), 0},
			{"no series", long(1, 2, 4), 1},
			{"numbers so far apart that their distance is no number", long(math.MinInt64, 0, math.MaxInt64), 1},
			{"32-bit numbers, which stay such", []any{int32(1), int32(2)}, 1},
			{"a text", []any{"a"}, 1},
			{"mixed", []any{"a", int64(2), id, bson.D{{Key: "a", Value: 1}}}, 1},
			{"25,000 texts", texts(25_000, 10), 3},
			{"long texts", texts(5_000, 2_000), 3}, // 4 MiB a page
		} {
			r := record(c.name)
			r.Targets = []journal.Target{{Documents: int64(len(c.values))}}
			want, next, before := values(t, c.values...), 5, f.wire.Count(faultwire.Insert)
			column, err := f.StoreColumn(f.Context(), r, 0, want, &next)
			if err != nil {
				t.Errorf("%s: storing: %v", c.name, err)
				continue
			}
			if pages := f.wire.Count(faultwire.Insert) - before; pages != c.pages || next != 5+c.pages {
				t.Errorf("%s: %d pages were written, the next is %d; want %d", c.name, pages, next, c.pages)
			}
			got, err := f.LoadColumn(f.Context(), r, 0, column)
			if err != nil {
				t.Errorf("%s: loading: %v", c.name, err)
			}
			same(t, c.name, got, want)
			r.Targets[0].Documents++
			if c.pages > 0 { // a series has as many values as one likes
				if _, err := f.LoadColumn(f.Context(), r, 0, column); !errors.Is(err, journal.ErrDamaged) {
					t.Errorf("%s: loading too few values: %v", c.name, err)
				}
			}
		}
	})
}

func same(t *testing.T, what string, got, want []bson.RawValue) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values instead of %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !got[i].Equal(want[i]) {
			t.Errorf("%s: value %d is %v instead of %v", what, i, got[i], want[i])
			return
		}
	}
}

// TestMintedColumn: minted ids come from the runs in the head, across the end of a counter too.
func TestMintedColumn(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		r := record("record")
		first, second := bson.ObjectID{11: 0xfe, 10: 0xff, 9: 0x01}, bson.ObjectID{0: 1}
		r.Targets = []journal.Target{{Documents: 5, Minted: []journal.Run{{First: first, Count: 3}, {First: second, Count: 2}}}}
		got, err := f.LoadColumn(f.Context(), r, 0, journal.Column{Minted: true})
		if err != nil {
			t.Fatal(err)
		}
		same(t, "minted", got, values(t,
			bson.ObjectID{9: 0x01, 10: 0xff, 11: 0xfe}, bson.ObjectID{9: 0x01, 10: 0xff, 11: 0xff}, bson.ObjectID{9: 0x02},
			bson.ObjectID{0: 1}, bson.ObjectID{0: 1, 11: 1},
		))
	})
}

// TestClaimsComeInOrder reads pages back, in the order of their numbers, and no others.
func TestClaimsComeInOrder(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		attempt := bson.NewObjectID()
		for _, n := range []int{10, 2, 0, 9, 1} {
			if err := f.AddPage(f.Context(), journal.Page{ID: journal.PageID(attempt, journal.Claimed, n), Values: values(t, int32(n))}); err != nil {
				t.Fatal(err)
			}
		}
		for _, other := range []string{journal.PageID(attempt, journal.Stored, 0), journal.PageID(bson.NewObjectID(), journal.Claimed, 0)} {
			if err := f.AddPage(f.Context(), journal.Page{ID: other, Values: values(t, "not this")}); err != nil {
				t.Fatal(err)
			}
		}
		var got []bson.RawValue
		err := f.Claims(f.Context(), attempt, func(p journal.Page) error { got = append(got, p.Values...); return nil })
		if err != nil {
			t.Fatal(err)
		}
		same(t, "claims", got, values(t, int32(0), int32(1), int32(2), int32(9), int32(10)))
		stop := errors.New("stop")
		if err := f.Claims(f.Context(), attempt, func(journal.Page) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("an error of the reader: %v", err)
		}
	})
}

// TestCheckRefuses names every record that must not be acted on.
func TestCheckRefuses(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*journal.Record)
		say    string // part of the reason; "" if nothing is wrong
	}{
		{"nothing", func(*journal.Record) {}, ""},
		{"the longest lease", func(r *journal.Record) { r.LeaseMS = journal.MaxLease.Milliseconds() }, ""},
		{"a newer format", func(r *journal.Record) { r.Format = journal.Format + 1 }, "format"},
		{"no format", func(r *journal.Record) { r.Format = 0 }, "format"},
		{"a state of the future", func(r *journal.Record) { r.State = "frozen" }, "frozen"},
		{"no state", func(r *journal.Record) { r.State = "" }, "state"},
		{"no attempt", func(r *journal.Record) { r.Attempt = bson.NilObjectID }, "attempt"},
		{"no lease", func(r *journal.Record) { r.LeaseMS = 0 }, "lease"},
		{"a lease that overflows", func(r *journal.Record) { r.LeaseMS = math.MaxInt64 }, "lease"},
		{"claimed ids, and no stamp", func(r *journal.Record) { r.Stamp, r.Targets = "", []journal.Target{{Claimed: 1}} }, "stamp"},
		{"no claimed ids, and no stamp", func(r *journal.Record) { r.Stamp, r.Targets = "", []journal.Target{{Documents: 1}} }, ""},
	} {
		r := record("id")
		c.change(&r)
		err := r.Check()
		if (err == nil) != (c.say == "") || err != nil && !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", c.what, err)
		}
		if err == nil && (r.Lease() <= 0 || r.Lease() > 24*time.Hour) {
			t.Errorf("%s: the lease is %s", c.what, r.Lease())
		}
	}
}

// TestDecodeKeepsApart: what is no record is damaged, and what is one comes back as it was.
func TestDecodeKeepsApart(t *testing.T) {
	r := record("id")
	r.Targets = []journal.Target{{Database: "d", Collection: "c", Documents: 3, Claimed: 1, Minted: []journal.Run{{First: bson.NewObjectID(), Count: 2}}}}
	raw, err := bson.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := journal.Decode(raw)
	if err != nil || fmt.Sprint(got.Targets) != fmt.Sprint(r.Targets) || got.Attempt != r.Attempt || got.Lease() != r.Lease() {
		t.Errorf("decoded: %+v, %v", got, err)
	}
	for _, bad := range []bson.D{{{Key: "_id", Value: 7}}, {{Key: "_id", Value: "x"}, {Key: "targets", Value: "none"}}, {{Key: "_id", Value: "x"}, {Key: "attempt", Value: "short"}}} {
		raw, err := bson.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Decode(raw); !errors.Is(err, journal.ErrDamaged) {
			t.Errorf("%v decodes: %v", bad, err)
		}
	}
}
