package idgen

import (
	"fmt"
	"strconv"
	"time"
)

// Period is the length of time for which a [Periodic] counts before it starts with 1 again.
type Period int

const (
	// Day is a calendar day, the default: 260131.
	Day Period = iota
	// Month is a calendar month: 2601.
	Month
	// Year is a calendar year: 26.
	Year
	// Hour is an hour of the day: 26013109. Where clocks are set back, one hour is told twice and counts on.
	Hour
)

func (p Period) String() string {
	switch p {
	case Day:
		return "day"
	case Month:
		return "month"
	case Year:
		return "year"
	case Hour:
		return "hour"
	}
	return "Period(" + strconv.Itoa(int(p)) + ")"
}

// calendar turns instants into labels and back. A label is the decimal number that the digits of the local date make up;
// within one calendar all have the same number of digits, leading zeros included.
type calendar struct {
	period   Period
	zone     *time.Location
	longYear bool
}

// part of a label: the year first, then up to three of two digits each.
func (c calendar) parts() int {
	switch c.period {
	case Year:
		return 1
	case Month:
		return 2
	case Hour:
		return 4
	}
	return 3
}

func (c calendar) yearDigits() int {
	if c.longYear {
		return 4
	}
	return 2
}

func (c calendar) digits() int { return c.yearDigits() + 2*(c.parts()-1) }

// label is taken from the date that a calendar on the wall in this zone shows at that instant, and from nothing else: no
// duration is ever added, so that days of 23 or 25 hours and days that do not exist need no care.
func (c calendar) label(at time.Time) (int64, error) {
	at = at.In(c.zone)
	year := at.Year()
	if c.longYear {
		if year < 1000 || year > 9999 {
			return 0, fmt.Errorf("the clock shows the year %d; four digits name 1000 to 9999", year)
		}
	} else {
		if year < 2000 || year > 2099 {
			return 0, fmt.Errorf("the clock shows the year %d; two digits name 2000 to 2099 (LongYear has four)", year)
		}
		year -= 2000
	}
	label := int64(year)
	for _, part := range []int{int(at.Month()), at.Day(), at.Hour()}[:c.parts()-1] {
		label = label*100 + int64(part)
	}
	return label, nil
}

// split returns the label's parts, year first, and whether a calendar can show them.
func (c calendar) split(label int64) (parts []int, ok bool) {
	parts = make([]int, c.parts())
	for i := len(parts) - 1; i > 0; i-- {
		parts[i] = int(label % 100)
		label /= 100
	}
	if label < 0 || label > 9999 {
		return nil, false
	}
	parts[0] = int(label)
	date := []int{parts[0], 1, 1, 0}
	copy(date, parts)
	if !c.longYear {
		date[0] += 2000
	}
	utc := calendar{c.period, time.UTC, c.longYear}
	again, err := utc.label(time.Date(date[0], time.Month(date[1]), date[2], date[3], 0, 0, 0, time.UTC))
	if err != nil {
		return nil, false
	}
	for i := len(parts) - 1; i > 0; i-- {
		ok = again%100 == int64(parts[i])
		if !ok {
			return nil, false
		}
		again /= 100
	}
	return parts, again == int64(parts[0])
}

// text is the label with its zeros, and a separator between its parts.
func (c calendar) text(label int64, separator string) (string, bool) {
	parts, ok := c.split(label)
	if !ok {
		return "", false
	}
	text := padded(uint64(parts[0]), c.yearDigits())
	for _, part := range parts[1:] {
		text += separator + padded(uint64(part), 2)
	}
	return text, true
}
