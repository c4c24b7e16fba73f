// Package records reads documents out of text files, one after the other, and says of whatever is wrong in which file,
// line and column it stands.
//
// It is strict where a lenient reader would change data without a word: a name that stands twice in an object, text that
// is not UTF-8, a whole number that does not fit into 64 bits, half an Extended JSON value, a file that was cut off, a row
// with too few cells. Each of these is a *Problem; reading goes on behind it where that makes sense, so that one pass
// finds all of them.
package records

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// MaxDocument is the size of the largest BSON document that MongoDB stores, in bytes.
	MaxDocument = 16 << 20

	// MaxText bounds the text of one document, in bytes. The text can be longer than the document: {"$numberInt":"1"}
	// takes 4 bytes in BSON, and the worst, a string of escapes such as \u0001, a sixth. Its purpose is that a file
	// without line breaks cannot fill the memory.
	MaxText = 6 * MaxDocument
)

// Position is a place in a file. Its zero value is no place.
type Position struct {
	File   string // as it was given to Open
	Line   int    // counted from 1, as an editor does
	Column int    // in characters, counted from 1; 0 means the line as a whole
}

// String returns file:line:column, or file:line.
func (p Position) String() string {
	if p.Column == 0 {
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Record is one document of a file.
type Record struct {
	Document bson.Raw
	Position Position // where it begins
}

// Problem is a record that cannot be read, or what else is wrong with a file's contents.
type Problem struct {
	Position Position
	Text     string // one sentence
	// Last is true if nothing behind the problem was read.
	Last bool
	// Err is the reason, if another package found it or if there is something to test for, such as ErrArray. It may
	// be nil.
	Err error
}

// Error returns the position and the text.
func (p *Problem) Error() string { return p.Position.String() + ": " + p.Text }

// Unwrap returns Err.
func (p *Problem) Unwrap() error { return p.Err }

// Reasons that a caller may want to say more about.
var (
	// ErrArray: a file of one document a line was expected, and it begins as a JSON array.
	ErrArray = errors.New("a JSON array")
	// ErrNotArray: a JSON array was expected.
	ErrNotArray = errors.New("not a JSON array")
	// ErrUTF16: the file is UTF-16.
	ErrUTF16 = errors.New("UTF-16")
)

// Reader reads the records of one file. It is for one goroutine.
type Reader interface {
	// Next returns the next record. The error is io.EOF behind the last one; a *Problem, behind which Next goes on with
	// the next record unless Problem.Last is set; or one of the file itself, which ends reading. After an end it is
	// the same again.
	Next() (Record, error)
}

// Format is how documents are written down.
type Format int

const (
	// Lines: one JSON document a line (NDJSON). Blank lines do not count.
	Lines Format = iota + 1
	// Array: one JSON array of documents.
	Array
	// CSV: one document a row, as RFC 4180 has it.
	CSV
	// TSV: one document a line, its values separated by tabs; there are no quotes.
	TSV
)

// String returns the usual name.
func (f Format) String() string {
	switch f {
	case Lines:
		return "NDJSON"
	case Array:
		return "JSON array"
	case CSV:
		return "CSV"
	case TSV:
		return "TSV"
	}
	return fmt.Sprintf("Format(%d)", int(f))
}

// Open returns a reader of what r has. A byte-order mark of UTF-8 in front is skipped. The name is for positions. Errors
// are like those of Reader.Next. The table is for CSV and TSV.
func Open(name string, r io.Reader, format Format, table Table) (Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if err := skipMark(name, in); err != nil {
		return nil, err
	}
	switch format {
	case Lines:
		return &lines{name: name, in: lineReader{in: in}}, nil
	case Array:
		return newArray(name, in), nil
	case CSV, TSV:
		return newTable(name, in, format, table)
	}
	return nil, fmt.Errorf("%s: there is no reader for %v", name, format)
}

// mark is the byte-order mark of UTF-8.
var mark = []byte{0xEF, 0xBB, 0xBF}

// skipMark skips a byte-order mark, and refuses those of UTF-16 and UTF-32.
func skipMark(name string, in *bufio.Reader) error {
	start, err := in.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case len(start) == 3 && string(start) == string(mark):
		_, err := in.Discard(3)
		return err
	case len(start) >= 2 && (start[0] == 0xFF && start[1] == 0xFE || start[0] == 0xFE && start[1] == 0xFF):
		return &Problem{Position: Position{File: name, Line: 1}, Last: true, Err: ErrUTF16,
			Text: "the file is UTF-16 (it begins with that byte-order mark); only UTF-8 is read. Convert it, for instance with iconv -f UTF-16 -t UTF-8"}
	}
	return nil
}
