package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/term"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/records"
	"github.com/intact-go/intact/examples/internal/screen"
)

// memory is how many bytes of documents are held in memory before they go to a temporary file, unless the program says
// otherwise.
const memory = 64 << 20

// input is what was read.
type input struct {
	stock
	read     int       // records, good or bad
	problems []problem // in the order of the files
	stopped  bool      // something could not be read to its end
	checker  *job.Checker
	files    []string // their order
	thorough bool     // all documents are checked by package batch, not only those that leave the memory
}

// read reads and checks all files. Records that are not fit are problems of the input; an error is one of the files
// themselves, or the end of the context. The input has to be closed in any case.
func (p *program) read(ctx context.Context, o *options, show *screen.Screen) (*input, error) {
	in := &input{stock: stock{limit: p.memory}, thorough: o.dryRun, files: o.files}
	if in.limit == 0 {
		in.limit = memory
	}
	var err error
	if in.checker, err = job.NewChecker(o.database, o.collection, batch.Config{StampField: o.stampField}, o.numbering.Fields()...); err != nil {
		return in, err
	}
	defer in.checker.Close()
	sources := make([]*source, 0, len(o.files))
	defer func() {
		for _, s := range sources {
			s.close()
		}
	}()
	var total int64
	for _, file := range o.files { // all of them, so that a missing one is told at once
		s, err := p.open(ctx, o.dir, file)
		if err != nil {
			return in, err
		}
		sources = append(sources, s)
		if s.size < 0 || total < 0 {
			total = -1
		} else {
			total += s.size
		}
	}
	if f, ok := p.stdin.(*os.File); ok && slices.Contains(o.files, standardInput) && term.IsTerminal(int(f.Fd())) {
		show.Note("import: reading documents from the keyboard, one a line, up to Ctrl-D")
	}
	show.Begin("reading", total, screen.Bytes)
	defer show.End()
	for i, s := range sources {
		s.progress = func(n int) { show.Add(n, in.read) }
		if err := in.readOne(ctx, s, i, o); err != nil {
			return in, err
		}
	}
	if in.thorough || in.spilled > 0 || len(in.problems) > 0 { // otherwise what is in memory is checked when it is inserted
		if err := in.check(); err != nil {
			return in, err
		}
	}
	slices.SortStableFunc(in.problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return in, nil
}

// readOne reads the file that is the nth of all.
func (in *input) readOne(ctx context.Context, s *source, nth int, o *options) error {
	text, err := s.decompressed()
	if err != nil {
		return err
	}
	reader, err := records.Open(s.name, text, o.format(s.name), o.table)
	for {
		var record records.Record
		if err == nil {
			record, err = reader.Next()
		}
		var bad *records.Problem
		switch {
		case err == nil:
			in.read++
			in.add(record)
			if in.full() {
				err = in.flush()
			}
			if err != nil {
				return err
			}
		case errors.As(err, &bad):
			in.read++
			in.problems = append(in.problems, problem{Position: bad.Position, Text: bad.Text, hint: hintFor(bad), order: nth})
			if bad.Last {
				in.stopped = true
				return nil
			}
			err = nil
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// flush checks what is in memory and moves it to the temporary file, or forgets it if nothing will be stored anyway.
func (in *input) flush() error {
	if err := in.check(); err != nil {
		return err
	}
	if in.thorough || len(in.problems) > 0 {
		in.documents, in.positions, in.size = nil, nil, 0
		return nil
	}
	return in.spill()
}

// check finds the documents in memory that package batch would refuse.
func (in *input) check() error {
	unfit, err := job.Unfit(in.checker, in.documents)
	place := func(i int) records.Position { return in.positions[i] }
	for _, d := range unfit {
		at := place(d.Index)
		in.problems = append(in.problems, problem{Position: at, Text: reason(d, place), order: slices.Index(in.files, at.File)})
	}
	return err
}

// source is an open file.
type source struct {
	name     string
	in       io.Reader
	size     int64 // in bytes, or -1
	closers  []func() error
	progress func(n int)
}

func (p *program) open(ctx context.Context, dir, file string) (*source, error) {
	if file == standardInput {
		return &source{name: "standard input", in: interruptible(ctx, p.stdin), size: -1}, nil
	}
	f, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	s := &source{name: file, in: f, size: -1, closers: []func() error{f.Close}}
	switch info, err := f.Stat(); {
	case err != nil:
		s.close()
		return nil, err
	case info.IsDir():
		s.close()
		return nil, fmt.Errorf("%s is a directory", file)
	case info.Mode().IsRegular():
		s.size = info.Size()
	default: // a named pipe blocks as a terminal does
		s.in = interruptible(ctx, f)
	}
	return s, nil
}

// close ignores errors: everything that was needed has been read by then.
func (s *source) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// Read counts.
func (s *source) Read(b []byte) (int, error) {
	n, err := s.in.Read(b)
	s.progress(n)
	return n, err
}

// decompressed returns the text. Whether it is compressed, its first bytes tell: no text begins like this.
func (s *source) decompressed() (io.Reader, error) {
	in := bufio.NewReaderSize(s, 64<<10)
	start, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	switch {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("%s: gzip: %w", s.name, err)
		}
		return unzipped, nil
	case bytes.HasPrefix(start, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		unzipped, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("%s: zstd: %w", s.name, err)
		}
		s.closers = append(s.closers, func() error { unzipped.Close(); return nil })
		return unzipped, nil
	}
	return in, nil
}

// interruptible returns a reader whose Read returns when ctx ends, although the read beneath goes on: nothing can end
// that one for a terminal or a pipe. Its goroutine then stays until something is typed, which is until the process ends.
func interruptible(ctx context.Context, in io.Reader) io.Reader {
	return &interruptibleReader{ctx: ctx, in: in, reads: make(chan read, 1)}
}

type interruptibleReader struct {
	ctx   context.Context
	in    io.Reader
	reads chan read
	left  []byte
	err   error
}

type read struct {
	data []byte
	err  error
}

func (r *interruptibleReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 && r.err == nil {
		go func() {
			data := make([]byte, 64<<10)
			n, err := r.in.Read(data)
			r.reads <- read{data[:n], err}
		}()
		select {
		case got := <-r.reads:
			r.left, r.err = got.data, got.err
		case <-r.ctx.Done():
			r.err = context.Cause(r.ctx)
		}
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	if len(r.left) == 0 && n == 0 {
		return 0, r.err
	}
	return n, nil
}
