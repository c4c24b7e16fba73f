package records

import (
	"bufio"
	"errors"
	"fmt"
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
