package records

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// lineReader reads lines of any length, but keeps no more than MaxText of one.
type lineReader struct {
	in     *bufio.Reader
	line   int // of the text returned last
	buffer []byte
	whole  bool // the text returned last ended with a line break
}

// next returns the next line without its end, and its length in bytes, which is larger than len(text) if the line is too
// long. The text is valid until the next call.
func (l *lineReader) next() (text []byte, length int, err error) {
	l.buffer = l.buffer[:0]
	for {
		piece, err := l.in.ReadSlice('\n')
		length += len(piece)
		if err == nil && len(l.buffer) == 0 {
			l.line, l.whole = l.line+1, true
			return trimEnd(piece), length, nil
		}
		if room := MaxText - len(l.buffer); room > 0 {
			l.buffer = append(l.buffer, piece[:min(room, len(piece))]...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && length > 0, err == nil:
			l.line, l.whole = l.line+1, err == nil
			return trimEnd(l.buffer), length, nil
		}
		return nil, 0, err
	}
}

func trimEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r"))
}

// lines is the Reader of Lines.
type lines struct {
	name string
	in   lineReader
	end  error // once reading has ended
}

func (r *lines) Next() (Record, error) {
	for r.end == nil {
		text, length, err := r.in.next()
		if err != nil {
			r.end = ended(r.name, err)
			break
		}
		if len(bytes.Trim(text, " \t\r")) == 0 && length <= MaxText {
			continue
		}
		at := Position{File: r.name, Line: r.in.line}
		if length > MaxText {
			return Record{}, tooLong(at, length)
		}
		if problem := r.unfit(at, text); problem != nil {
			if problem.Last {
				r.end = problem
			}
			return Record{}, problem
		}
		document, flaw := document(text)
		if flaw != nil {
			return Record{}, r.problem(at, text, flaw)
		}
		return Record{Document: document, Position: at}, nil
	}
	return Record{}, r.end
}

// unfit finds what the file is, if it is not what it should be.
func (r *lines) unfit(at Position, text []byte) *Problem {
	start := bytes.TrimLeft(text, " \t\r")
	switch {
	case start[0] == '[' && at.Line == 1:
		return &Problem{Position: at, Last: true, Err: ErrArray, Text: "the file begins as a JSON array; one document a line is expected"}
	case bytes.HasPrefix(start, mark):
		return &Problem{Position: at, Text: "a byte-order mark in the middle of the file, as if files had been put together; remove it"}
	}
	return nil
}

// problem says in the words of lines what is wrong with a text.
func (r *lines) problem(at Position, text []byte, flaw *flaw) *Problem {
	p := &Problem{Position: at, Text: flaw.text, Err: flaw.err}
	switch {
	case flaw.cut && !r.in.whole:
		p.Text = "the file ends in the middle of a document"
	case flaw.cut:
		p.Text = "the line ends in the middle of a document; one document a line is expected"
	case flaw.more:
		p.Text = "something follows the document; one document a line is expected"
	}
	if flaw.offset >= 0 {
		p.Position.Column = column(text, flaw.offset)
	}
	return p
}

// column counts characters, because that is what an editor shows.
func column(line []byte, offset int) int {
	return utf8.RuneCount(line[:min(offset, len(line))]) + 1
}

func tooLong(at Position, length int) *Problem {
	return &Problem{Position: at, Text: fmt.Sprintf("the text of a document has %d bytes; %d is the most, because MongoDB stores documents of up to %d bytes", length, MaxText, MaxDocument)}
}

// ended is the end of reading, with the file's name unless it is the usual one.
func ended(name string, err error) error {
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return fmt.Errorf("%s: %w", name, err)
}
