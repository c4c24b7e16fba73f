package idgen

import (
	"fmt"
	"testing"
	"time"
	_ "time/tzdata" // the zones, also on a machine that has none

	"pgregory.net/rapid"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// The label is the date on the wall, instant by instant, through everything that clocks and calendars do.
func TestCalendarFollowsTheWall(t *testing.T) {
	layouts := map[Period][2]string{
		Day:   {"060102", "20060102"},
		Month: {"0601", "200601"},
		Year:  {"06", "2006"},
		Hour:  {"06010215", "2006010215"},
	}
	for _, walk := range []struct {
		name     string
		zone     string
		from, to string // UTC
		skips    string // a day that must not appear
		back     bool   // the date itself goes back: clocks are set back across midnight
		days     int    // different days seen
	}{
		{"a day of 25 hours", "America/New_York", "2024-11-02T12:00:00Z", "2024-11-05T12:00:00Z", "", false, 4},
		{"a day of 23 hours", "America/New_York", "2024-03-09T12:00:00Z", "2024-03-12T12:00:00Z", "", false, 4},
		{"midnight left out", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-06T12:00:00Z", "", false, 4},
		{"midnight twice", "America/Sao_Paulo", "2018-02-17T12:00:00Z", "2018-02-19T12:00:00Z", "", false, 3},
		{"half an hour forward", "Australia/Lord_Howe", "2024-10-05T00:00:00Z", "2024-10-08T00:00:00Z", "", false, 4},
		{"half an hour back", "Australia/Lord_Howe", "2024-04-06T00:00:00Z", "2024-04-08T00:00:00Z", "", false, 3},
		{"a day left out", "Pacific/Apia", "2011-12-29T00:00:00Z", "2012-01-01T12:00:00Z", "111230", false, 5},
		{"one minute of tomorrow, then today again", "America/St_Johns", "2010-11-06T12:00:00Z", "2010-11-08T12:00:00Z", "", true, 3},
		{"leap day", "UTC", "2024-02-28T00:00:00Z", "2024-03-02T00:00:00Z", "", false, 4},
		{"no leap day", "UTC", "2025-02-28T00:00:00Z", "2025-03-02T00:00:00Z", "250229", false, 3},
		{"year's end", "Asia/Kolkata", "2025-12-30T00:00:00Z", "2026-01-02T00:00:00Z", "", false, 4},
		{"century's leap day", "UTC", "2000-02-28T00:00:00Z", "2000-03-02T00:00:00Z", "", false, 4},
		{"the first zone", "Pacific/Kiritimati", "2026-01-30T00:00:00Z", "2026-02-02T00:00:00Z", "", false, 4},
	} {
		for period, layout := range layouts {
			for i, long := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/long %t", walk.name, period, long), func(t *testing.T) {
					c := calendar{period, zone(t, walk.zone), long}
					from, to := instant(t, walk.from), instant(t, walk.to)
					seen := map[int64]bool{}
					wentBack := false
					var before int64
					for at := from; !at.After(to); at = at.Add(30 * time.Second) {
						label, err := c.label(at)
						if err != nil {
							t.Fatal(err)
						}
						text, ok := c.text(label, "")
						if want := at.In(c.zone).Format(layout[i]); !ok || text != want {
							t.Fatalf("at %v: %q, want %q", at.In(c.zone), text, want)
						}
						if len(text) != c.digits() {
							t.Fatalf("%q has not %d digits", text, c.digits())
						}
						if period == Day && !long && text == walk.skips {
							t.Fatalf("the day %s does not exist here", text)
						}
						wentBack = wentBack || label < before
						before = label
						seen[label] = true
					}
					if wentBack != walk.back && period == Day {
						t.Errorf("the date went back: %t", wentBack)
					}
					if len(seen) != walk.days && period == Day {
						t.Errorf("%d days, want %d", len(seen), walk.days)
					}
				})
			}
		}
	}
	newYork := calendar{Day, zone(t, "America/New_York"), false}
	early, _ := newYork.label(time.Date(2024, 11, 3, 0, 30, 0, 0, newYork.zone))
	late, _ := newYork.label(time.Date(2024, 11, 3, 23, 30, 0, 0, newYork.zone))
	if early != 241103 || late != early {
		t.Errorf("24 hours apart, one day: %d and %d", early, late)
	}
}

func instant(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestCalendarYears(t *testing.T) {
	for _, test := range []struct {
		year  int
		long  bool
		fails bool
	}{
		{1999, false, true}, {2000, false, false}, {2099, false, false}, {2100, false, true}, {1, false, true},
		{1999, true, false}, {2100, true, false}, {999, true, true}, {1000, true, false}, {9999, true, false}, {10000, true, true}, {-5, true, true},
	} {
		_, err := calendar{Day, time.UTC, test.long}.label(time.Date(test.year, 6, 1, 0, 0, 0, 0, time.UTC))
		if (err != nil) != test.fails {
			t.Errorf("year %d, long %t: %v", test.year, test.long, err)
		}
	}
}

// A label is split into its parts exactly if it is the label of an instant.
func TestCalendarSplit(t *testing.T) {
	for _, test := range []struct {
		period Period
		long   bool
		label  int64
		ok     bool
	}{
		{Day, false, 260131, true}, {Day, false, 260132, false}, {Day, false, 261301, false}, {Day, false, 260100, false},
		{Day, false, 101, true}, {Day, false, 0, false}, {Day, false, -260131, false}, {Day, false, 20260131, false},
		{Day, false, 240229, true}, {Day, false, 250229, false}, {Day, true, 20260131, true}, {Day, true, 260131, false},
		{Month, false, 2612, true}, {Month, false, 2613, false}, {Year, false, 0, true}, {Year, false, 99, true}, {Year, false, 100, false},
		{Hour, false, 26013123, true}, {Hour, false, 26013124, false}, {Year, true, 1000, true}, {Year, true, 999, false},
	} {
		if _, ok := (calendar{test.period, time.UTC, test.long}).split(test.label); ok != test.ok {
			t.Errorf("%v, long %t: %d is a label: %t", test.period, test.long, test.label, ok)
		}
	}
}

// Different numbers never print alike, whatever the format.
func TestFormatIsInjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Format{
			Prefix:        rapid.SampledFrom([]string{"", "INV-", "A1", "0", "-", "2026"}).Draw(t, "prefix"),
			DateSeparator: rapid.SampledFrom([]string{"", "-", "0", "11"}).Draw(t, "date separator"),
			Separator:     rapid.SampledFrom([]string{"", "-", "0", "99"}).Draw(t, "separator"),
			Width:         rapid.IntRange(-3, 22).Draw(t, "width"),
		}
		numbers := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-1000, 100000), rapid.Map(rapid.Int64Range(0, 18), func(e int64) int64 {
			n := int64(1)
			for range e {
				n *= 10
			}
			return n - e%2
		}))
		a := numbers.Draw(t, "a")
		b := numbers.Draw(t, "b")
		if f.Number(a) == f.Number(b) != (a == b) {
			t.Fatalf("%d and %d print as %q and %q", a, b, f.Number(a), f.Number(b))
		}
		p := NewPeriodic(nil, nil, PeriodicConfig{
			Period:   rapid.SampledFrom([]Period{Day, Month, Year, Hour}).Draw(t, "period"),
			Digits:   rapid.IntRange(1, 8).Draw(t, "digits"),
			LongYear: rapid.Bool().Draw(t, "long year"),
		})
		p.invalid = nil // there is no collection, and none is needed
		dated := func(name string) int64 {
			at := time.Unix(rapid.Int64Range(946684800, 4102444799).Draw(t, name+"'s time"), 0)
			label, err := p.calendar.label(at)
			if err != nil {
				t.Fatal(err)
			}
			p.unit = 1
			for range p.config.Digits {
				p.unit *= 10
			}
			return label*p.unit + rapid.Int64Range(0, p.unit-1).Draw(t, name+"'s count")
		}
		a, b = dated("a"), dated("b")
		textA, errA := p.text(f, a)
		textB, errB := p.text(f, b)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if textA == textB != (a == b) {
			t.Fatalf("%d and %d print as %q and %q", a, b, textA, textB)
		}
	})
}
