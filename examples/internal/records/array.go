package records

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// array is the Reader of Array.
type array struct {
	name   string
	in     *lineCounter
	tokens *jsontext.Decoder
	begun  bool
	end    error // once reading has ended
}

func newArray(name string, r io.Reader) *array {
	in := &lineCounter{in: r, line: 1, limit: MaxText}
	// Names that stand twice and bad UTF-8 are found in the single documents, so that the next one can still be read.
	return &array{name: name, in: in,
		tokens: jsontext.NewDecoder(in, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))}
}

func (r *array) Next() (Record, error) {
	if r.end == nil && !r.begun {
		r.end = r.begin()
	}
	if r.end != nil {
		return Record{}, r.end
	}
	r.in.limit = r.tokens.InputOffset() + MaxText
	if r.tokens.PeekKind() == ']' {
		r.end = r.finish()
		return Record{}, r.end
	}
	text, err := r.tokens.ReadValue()
	if err != nil {
		r.end = r.broken(err)
		return Record{}, r.end
	}
	at := r.in.position(r.name, r.tokens.InputOffset()-int64(len(text)))
	r.in.consumed(text, r.tokens.InputOffset())
	document, flaw := document(text)
	if flaw != nil {
		return Record{}, &Problem{Position: within(at, text, flaw.offset), Text: flaw.text, Err: flaw.err}
	}
	return Record{Document: document, Position: at}, nil
}

func (r *array) begin() error {
	r.begun = true
	open, err := r.tokens.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF // an empty file has no documents
	case err == nil && open.Kind() == '[':
		return nil
	case err != nil && !isSyntax(err):
		return r.broken(err)
	}
	return &Problem{Position: Position{File: r.name, Line: r.in.position(r.name, r.tokens.InputOffset()).Line}, Last: true, Err: ErrNotArray,
		Text: "the file does not begin as a JSON array"}
}

// finish reads the end of the array, behind which nothing may follow.
func (r *array) finish() error {
	if _, err := r.tokens.ReadToken(); err != nil {
		return r.broken(err)
	}
	end := r.tokens.InputOffset()
	_, err := r.tokens.ReadToken()
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if err != nil && !isSyntax(err) {
		return r.broken(err)
	}
	return &Problem{Position: r.in.position(r.name, end), Last: true, Text: "something follows the end of the array"}
}

func isSyntax(err error) bool {
	var at *jsontext.SyntacticError
	return errors.As(err, &at)
}

// broken ends reading: what is not JSON cannot be read on behind.
func (r *array) broken(err error) error {
	var at *jsontext.SyntacticError
	switch {
	case errors.Is(err, errTooLong):
		return &Problem{Position: r.in.position(r.name, r.tokens.InputOffset()), Last: true,
			Text: fmt.Sprintf("the text of a document has more than %d bytes; MongoDB stores documents of up to %d bytes", MaxText, MaxDocument)}
	case errors.Is(err, io.ErrUnexpectedEOF) && isSyntax(err):
		return &Problem{Position: r.in.position(r.name, r.in.read), Last: true, Err: err, Text: "the file ends in the middle of the array"}
	case errors.As(err, &at):
		text := at.Err.Error()
		if rest := r.tokens.UnreadBuffer(); at.ByteOffset-r.tokens.InputOffset() < int64(len(rest)) && at.ByteOffset >= r.tokens.InputOffset() {
			text += hint(rest[at.ByteOffset-r.tokens.InputOffset():])
		}
		return &Problem{Position: r.in.position(r.name, at.ByteOffset), Last: true, Err: err, Text: text}
	}
	return fmt.Errorf("%s: %w", r.name, err)
}

// within returns the place of an offset in a text that begins at a place.
func within(at Position, text []byte, offset int) Position {
	if offset < 0 {
		at.Column = 0
		return at
	}
	before := text[:min(offset, len(text))]
	if n := bytes.Count(before, []byte("\n")); n > 0 {
		at.Line += n
		at.Column = 1
		before = before[bytes.LastIndexByte(before, '\n')+1:]
	}
	at.Column += utf8.RuneCount(before)
	return at
}

// errTooLong is what a lineCounter returns at its limit.
var errTooLong = errors.New("too much text")

// lineCounter passes on what it reads, and knows the line and column of every offset that its reader has come to. It
// remembers the line breaks that were read ahead, nothing else.
type lineCounter struct {
	in     io.Reader
	limit  int64 // how far reading may go ahead
	read   int64
	breaks []int64 // offsets of line breaks behind where

	line  int   // at where, which only moves forward
	start int64 // offset of that line's first byte
	extra int64 // bytes of that line so far that do not begin a character
}

func (c *lineCounter) Read(p []byte) (int, error) {
	if c.read > c.limit {
		return 0, errTooLong
	}
	n, err := c.in.Read(p)
	for from := 0; ; {
		i := bytes.IndexByte(p[from:n], '\n')
		if i < 0 {
			break
		}
		c.breaks = append(c.breaks, c.read+int64(from+i))
		from += i + 1
	}
	c.read += int64(n)
	return n, err
}

// position moves on to an offset and returns its place.
func (c *lineCounter) position(file string, offset int64) Position {
	passed := 0
	for passed < len(c.breaks) && c.breaks[passed] < offset {
		passed++
	}
	if passed > 0 {
		c.line += passed
		c.start, c.extra = c.breaks[passed-1]+1, 0
		c.breaks = c.breaks[passed:]
	}
	return Position{File: file, Line: c.line, Column: int(offset-c.start-c.extra) + 1}
}

// consumed takes down the text that ends at an offset. Outside of such texts, JSON has no characters of more than a byte.
func (c *lineCounter) consumed(text []byte, end int64) {
	c.position("", end)
	text = text[bytes.LastIndexByte(text, '\n')+1:]
	c.extra += int64(len(text) - utf8.RuneCount(text))
}
