package idgen

import (
	"context"
	"strconv"
	"strings"
)

// Format prints numbers for people: INV-0042, 260131-0017. The zero value prints them as they are.
//
// Different numbers of one sequence never print alike. A number that is longer than Width is printed in full, INV-9999 is
// followed by INV-10000: nothing is cut off or starts again, but as text the longer one sorts before the shorter. Where the
// width must hold, set the sequence's Max (or the Digits of a [Periodic], which are always a limit).
//
// Store the number and print it when it is shown, if you can: numbers sort, are smaller, and can be raised. Two formats can
// print alike ("A1" and 5, "A" and 15), so give sequences that share a column prefixes that end in something other than a
// digit.
type Format struct {
	// Prefix comes first.
	Prefix string
	// DateSeparator stands between the year, month, day and hour of a Periodic's number. Defaults to none.
	DateSeparator string
	// Separator stands between the date and the count of a Periodic's number. Defaults to none.
	Separator string
	// Width is the least number of digits of the count; zeros are put in front. A Periodic's count has at least its
	// Digits. At most 100 count. Defaults to no zeros.
	Width int
}

// Number prints a number that has no period in it.
func (f Format) Number(n int64) string {
	if n < 0 {
		return f.Prefix + "-" + padded(-uint64(n), f.Width) // right for the lowest int64, too
	}
	return f.Prefix + padded(uint64(n), f.Width)
}

// padded puts zeros in front of a shorter number, and leaves a longer one as it is.
func padded(n uint64, width int) string {
	digits := strconv.FormatUint(n, 10)
	return strings.Repeat("0", max(min(width, 100)-len(digits), 0)) + digits
}

// Of returns the sequence whose numbers are printed in this format. numbers is a [Counter], a [Periodic] or a [Striped].
func (f Format) Of(numbers interface {
	Take(ctx context.Context, n int) (Block, error)
}) *Text {
	return &Text{numbers: numbers, format: f}
}

// Text is a sequence of text, made by [Format.Of]. It may be used by any number of goroutines at once.
type Text struct {
	numbers interface {
		Take(ctx context.Context, n int) (Block, error)
	}
	format Format
}

// Next gives out one text.
func (t *Text) Next(ctx context.Context) (string, error) {
	texts, err := t.Take(ctx, 1)
	if err != nil {
		return "", err
	}
	return texts[0], nil
}

// Take gives out n texts in the order of their numbers, in one round trip.
func (t *Text) Take(ctx context.Context, n int) ([]string, error) {
	block, err := t.numbers.Take(ctx, n)
	if err != nil {
		return nil, err
	}
	texts := make([]string, 0, block.Count)
	for number := range block.All() {
		text, err := t.Number(number)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// Reserve is Take for package batch: the texts as string values. Fewer than one is an error.
func (t *Text) Reserve(ctx context.Context, n int) ([]any, error) {
	texts, err := t.Take(ctx, n)
	if err != nil {
		return nil, err
	}
	values := make([]any, len(texts))
	for i, text := range texts {
		values[i] = text
	}
	return values, nil
}

// Number prints a number of the sequence as it would have been given out. For a [Periodic] it fails on a number that does
// not begin with a period. Nothing is sent.
func (t *Text) Number(n int64) (string, error) {
	if p, ok := t.numbers.(*Periodic); ok {
		return p.text(t.format, n)
	}
	return t.format.Number(n), nil
}
