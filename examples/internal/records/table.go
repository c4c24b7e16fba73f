package records

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Table says how to read CSV and TSV. The zero value takes the fields' names from the first row and keeps every cell as
// text, just as it stands there.
type Table struct {
	// Fields are the columns' names, if the first row has documents already. Defaults to nil: the first row has them.
	// A name with dots makes embedded documents.
	Fields []string
	// Typed means that names carry a type: "founded.int32()". See ParseType. Defaults to false: all cells are text.
	Typed bool
	// OmitEmpty leaves out the field of an empty cell. Defaults to false: it is stored as empty text, and is a problem
	// in a column of another type.
	OmitEmpty bool
	// Separator separates the cells of CSV. Defaults to a comma.
	Separator rune
	// Lenient takes quotes within a cell as they are, and rows that are too short, which lack their last fields then. A
	// CR LF within a cell becomes LF. Defaults to false: the first two are problems, and a CR LF stays.
	Lenient bool
}

// row is a line's cells. Its column function gives the place of a cell; it may only be called before the next row is read.
type row struct {
	cells  []string
	at     Position
	column func(i int) Position
}

// table is the Reader of CSV and TSV.
type table struct {
	name    string
	options Table
	next    func() (row, error)
	columns []heading
	layout  layout
	begun   bool
	end     error
}

type heading struct {
	name string
	kind Type
}

func newTable(name string, in *bufio.Reader, format Format, options Table) (*table, error) {
	t := &table{name: name, options: options}
	if format == TSV {
		t.next = newTSV(name, in).next
	} else {
		t.next = newCSV(name, in, options).next
	}
	if options.Fields != nil {
		t.begun = true
		if err := t.define(options.Fields); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *table) Next() (Record, error) {
	if t.end == nil && !t.begun {
		t.end = t.header()
	}
	if t.end != nil {
		return Record{}, t.end
	}
	row, err := t.next()
	if err != nil {
		var problem *Problem
		if !errors.As(err, &problem) || problem.Last {
			t.end = err
		}
		return Record{}, err
	}
	document, err := t.document(row)
	if err != nil {
		return Record{}, err
	}
	return Record{Document: document, Position: row.at}, nil
}

// header reads the first row as names.
func (t *table) header() error {
	t.begun = true
	first, err := t.next()
	if err != nil {
		var problem *Problem
		if errors.As(err, &problem) {
			problem.Last = true
		}
		return err
	}
	if err := t.define(first.cells); err != nil {
		return &Problem{Position: first.at, Text: err.Error(), Last: true}
	}
	return nil
}

func (t *table) define(names []string) error {
	for _, name := range names {
		c := heading{name: name}
		if t.options.Typed {
			var err error
			if c.name, c.kind, err = splitType(name); err != nil {
				return err
			}
		}
		t.columns = append(t.columns, c)
	}
	for i, c := range t.columns {
		if err := t.layout.add(c.name, i); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) document(r row) (bson.Raw, error) {
	if len(r.cells) > len(t.columns) || len(r.cells) < len(t.columns) && !t.options.Lenient {
		return nil, &Problem{Position: r.at, Text: fmt.Sprintf("the row has %s; %d are expected", count(len(r.cells), "cell"), len(t.columns))}
	}
	values := make([]any, len(t.columns))
	for i := range t.columns {
		values[i] = missing{}
		if i >= len(r.cells) || r.cells[i] == "" && t.options.OmitEmpty {
			continue
		}
		value, err := t.columns[i].kind.convert(r.cells[i])
		if err != nil {
			return nil, &Problem{Position: r.column(i), Err: err, Text: fmt.Sprintf("column %q: %v", t.columns[i].name, err)}
		}
		values[i] = value
	}
	raw, err := bson.Marshal(t.layout.document(values))
	if err != nil {
		return nil, &Problem{Position: r.at, Text: err.Error(), Err: err}
	}
	if len(raw) > MaxDocument {
		return nil, &Problem{Position: r.at, Text: fmt.Sprintf("the document has %d bytes as BSON; MongoDB stores %d at most", len(raw), MaxDocument)}
	}
	return raw, nil
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// missing stands for a field that a document does not have.
type missing struct{}

// layout is how columns become fields: a tree where names have dots.
type layout struct {
	fields []field
}

type field struct {
	name   string
	column int // if inner is nil
	inner  *layout
}

func (l *layout) add(path string, column int) error {
	name, rest, nested := strings.Cut(path, ".")
	switch {
	case path == "":
		return fmt.Errorf("the name of column %d is empty", column+1)
	case name == "" || nested && rest == "" || strings.Contains(path, ".."):
		return fmt.Errorf("the name of column %d, %q, has a dot too many", column+1, short(path))
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("the name of column %d, %q, cannot be a field's", column+1, short(path))
	}
	i := slices.IndexFunc(l.fields, func(f field) bool { return f.name == name })
	switch {
	case i < 0 && !nested:
		l.fields = append(l.fields, field{name: name, column: column})
		return nil
	case i < 0:
		l.fields = append(l.fields, field{name: name, inner: &layout{}})
		return l.fields[len(l.fields)-1].inner.add(rest, column)
	case nested && l.fields[i].inner != nil:
		return l.fields[i].inner.add(rest, column)
	case !nested && l.fields[i].inner == nil:
		return fmt.Errorf("two columns have the name %q", short(path))
	}
	return fmt.Errorf("column %q cannot be both a value and a document", short(name))
}

func (l *layout) document(values []any) bson.D {
	d := make(bson.D, 0, len(l.fields))
	for _, f := range l.fields {
		if f.inner == nil {
			if values[f.column] != (missing{}) {
				d = append(d, bson.E{Key: f.name, Value: values[f.column]})
			}
		} else if inner := f.inner.document(values); len(inner) > 0 {
			d = append(d, bson.E{Key: f.name, Value: inner})
		}
	}
	return d
}

// tsv reads lines of cells between tabs.
type tsv struct {
	name string
	in   lineReader
}

func newTSV(name string, in *bufio.Reader) *tsv { return &tsv{name: name, in: lineReader{in: in}} }

func (r *tsv) next() (row, error) {
	for {
		text, length, err := r.in.next()
		if err != nil {
			return row{}, ended(r.name, err)
		}
		if len(text) == 0 {
			continue
		}
		at := Position{File: r.name, Line: r.in.line}
		if length > MaxText {
			return row{}, tooLong(at, length)
		}
		if !utf8.Valid(text) {
			return row{}, notUTF8(at)
		}
		cells := strings.Split(string(text), "\t")
		return row{cells: cells, at: at, column: func(i int) Position {
			at.Column = 1
			for _, before := range cells[:i] {
				at.Column += utf8.RuneCountInString(before) + 1
			}
			return at
		}}, nil
	}
}

func notUTF8(at Position) *Problem {
	return &Problem{Position: at, Text: "the text is not UTF-8; convert it, for instance with iconv -f ISO-8859-1 -t UTF-8 if it is Latin-1"}
}

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
