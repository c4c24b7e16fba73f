package idgen_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/servertest"
)

func TestFormatNumber(t *testing.T) {
	for _, test := range []struct {
		format idgen.Format
		n      int64
		want   string
	}{
		{idgen.Format{}, 42, "42"},
		{idgen.Format{Prefix: "INV-", Width: 4}, 42, "INV-0042"},
		{idgen.Format{Prefix: "INV-", Width: 4}, 9999, "INV-9999"},
		{idgen.Format{Prefix: "INV-", Width: 4}, 10000, "INV-10000"},
		{idgen.Format{Prefix: "INV-", Width: 4}, -42, "INV--0042"},
		{idgen.Format{Width: -4}, 42, "42"},
		{idgen.Format{Width: 20}, math.MinInt64, "-09223372036854775808"},
		{idgen.Format{Width: 20}, math.MaxInt64, "09223372036854775807"},
		{idgen.Format{DateSeparator: "/", Separator: "-"}, 2601310017, "2601310017"},
	} {
		if got := test.format.Number(test.n); got != test.want {
			t.Errorf("%+v prints %d as %q, want %q", test.format, test.n, got, test.want)
		}
	}
}

// Past the width, numbers grow; with a Max they end.
func TestTextPastItsWidth(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		counters := database(t, s).Collection("counters")
		invoices := idgen.Format{Prefix: "INV-", Width: 4}
		counter := idgen.NewCounter(counters, "grows")
		take(t, counter, 9998)
		var got []string
		for range 2 {
			texts, err := invoices.Of(counter).Take(testContext(t), 5)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, texts...)
		}
		want := []string{"INV-9999", "INV-10000", "INV-10001", "INV-10002", "INV-10003", "INV-10004", "INV-10005", "INV-10006", "INV-10007", "INV-10008"}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}

		limited := idgen.NewCounter(counters, "ends", idgen.CounterConfig{Max: 9999})
		take(t, limited, 9998)
		for range 2 {
			_, err := invoices.Of(limited).Reserve(testContext(t), 5)
			reason(t, err, idgen.Exhausted)
		}
		values, err := invoices.Of(limited).Reserve(testContext(t), 1)
		if err != nil || !slices.Equal(values, []any{"INV-9999"}) {
			t.Errorf("%q, %v", values, err)
		}
		_, err = invoices.Of(limited).Next(testContext(t))
		reason(t, err, idgen.Exhausted)
	})
}

func TestTextOfAPeriod(t *testing.T) {
	p := idgen.NewPeriodic(unreachable(t), "invoice", idgen.PeriodicConfig{Zone: time.UTC})
	for _, test := range []struct {
		format idgen.Format
		want   string
	}{
		{idgen.Format{}, "2601310017"},
		{idgen.Format{Separator: "-"}, "260131-0017"},
		{idgen.Format{Prefix: "INV-", DateSeparator: ".", Separator: "/", Width: 6}, "INV-26.01.31/000017"},
		{idgen.Format{Width: 2, Separator: "-"}, "260131-0017"},
	} {
		if got, err := test.format.Of(p).Number(2601310017); err != nil || got != test.want {
			t.Errorf("%+v prints %q, %v; want %q", test.format, got, err, test.want)
		}
	}
	for _, wrong := range []int64{-2601310017, 17, 2613310017} {
		_, err := idgen.Format{}.Of(p).Number(wrong)
		reason(t, err, idgen.Misused)
	}
	if got, err := (idgen.Format{}).Of(p).Number(2601310000); err != nil || got != "2601310000" {
		t.Errorf("%q, %v", got, err)
	}
}
