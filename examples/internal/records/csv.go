package records

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// rows reads CSV.
type rows struct {
	name string
	in   *tape
	csv  *csv.Reader
	used int64 // where the next row begins, as csv counts
}

func newCSV(name string, in io.Reader, options Table) *rows {
	t := &tape{in: in, plain: options.Lenient}
	r := csv.NewReader(t)
	r.FieldsPerRecord = -1 // checked with the columns
	r.LazyQuotes = options.Lenient
	if options.Separator != 0 {
		r.Comma = options.Separator
	}
	return &rows{name: name, in: t, csv: r}
}

func (r *rows) next() (row, error) {
	start := r.used
	cells, err := r.csv.Read()
	r.used = r.csv.InputOffset()
	text := r.in.take(start, r.used)
	if err != nil {
		return row{}, r.problem(text, err)
	}
	line, _ := r.csv.FieldPos(0)
	at := Position{File: r.name, Line: line}
	place := func(i int) Position {
		line, column := r.csv.FieldPos(i)
		return r.place(text, at.Line, line, column)
	}
	for i, cell := range cells {
		if !utf8.ValidString(cell) {
			return row{}, notUTF8(place(i))
		}
	}
	return row{cells: cells, at: at, column: place}, nil
}

// place turns a column in bytes into one in characters. The text is the row's, whose first line is number first.
func (r *rows) place(text string, first, line, column int) Position {
	text = strings.TrimLeft(text, "\r\n") // blank lines that csv passed over
	for ; first < line; first++ {
		_, text, _ = strings.Cut(text, "\n")
	}
	return Position{File: r.name, Line: line, Column: utf8.RuneCountInString(text[:min(max(column-1, 0), len(text))]) + 1}
}

func (r *rows) problem(text string, err error) error {
	var at *csv.ParseError
	if !errors.As(err, &at) {
		if errors.Is(err, errTooLong) {
			line := 1 + r.in.lines
			return &Problem{Position: Position{File: r.name, Line: line}, Last: true,
				Text: fmt.Sprintf("the text of a row has more than %d bytes; is a quote not closed?", MaxText)}
		}
		return ended(r.name, err)
	}
	// What a misplaced quote makes of the rows behind it, nobody knows.
	p := &Problem{Position: r.place(text, at.StartLine, at.Line, at.Column), Last: true, Err: at.Err}
	switch {
	case errors.Is(at.Err, csv.ErrQuote) && r.in.quoted && r.in.ended:
		p.Position = Position{File: r.name, Line: at.StartLine}
		p.Text = "the file ends within a quoted cell of the row that begins here"
	case errors.Is(at.Err, csv.ErrBareQuote), errors.Is(at.Err, csv.ErrQuote):
		p.Text = `a quote within a cell; a cell with quotes is written in quotes and its own quotes twice, as in "UNIT 7 ""B"""`
	default:
		p.Text = at.Err.Error()
	}
	return p
}

// tape passes on what it reads and keeps what belongs to the current row.
//
// Within quotes it writes the CR of a line's end twice: package csv takes the last CR off every line, also where it is
// part of a cell.
type tape struct {
	in     io.Reader
	plain  bool // quotes may stand anywhere: lines' ends are left to package csv
	quoted bool // within quotes, at the end of what was read
	ended  bool // everything was read

	kept  []byte
	from  int64  // offset of kept[0], as the reader counts
	lines int    // line breaks before kept
	out   []byte // the end of kept, which was not passed on yet
	err   error
}

func (t *tape) Read(p []byte) (int, error) {
	if len(t.out) == 0 {
		if t.err != nil {
			return 0, t.err
		}
		if len(t.kept) > MaxText {
			return 0, errTooLong
		}
		t.fill()
	}
	n := copy(p, t.out)
	t.out = t.out[n:]
	return n, nil
}

func (t *tape) fill() {
	var buffer [16 << 10]byte
	n, err := t.in.Read(buffer[:])
	t.err = err
	t.ended = t.ended || errors.Is(err, io.EOF)
	before := len(t.kept)
	for _, b := range buffer[:n] {
		switch {
		case b == '"':
			t.quoted = !t.quoted
		case b == '\n' && t.quoted && !t.plain && len(t.kept) > 0 && t.kept[len(t.kept)-1] == '\r':
			t.kept = append(t.kept, '\r')
		}
		t.kept = append(t.kept, b)
	}
	t.out = t.kept[before:]
}

// take returns the text between two offsets and forgets what is before the second.
func (t *tape) take(start, end int64) string {
	text := string(t.kept[start-t.from : end-t.from])
	t.lines += strings.Count(text, "\n")
	rest := t.kept[end-t.from:]
	out := len(t.out)
	t.kept, t.from = append(t.kept[:0], rest...), end
	t.out = t.kept[len(t.kept)-out:]
	return text
}
