package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/records"
)

// stock holds documents and where they stood: in memory up to a limit, beyond it in a temporary file, so that files of any
// size and the standard input can be checked to the end before anything is sent.
type stock struct {
	limit int // of bytes in memory

	// What is in memory, all of it behind what is in the file.
	documents []bson.Raw
	positions []records.Position
	size      int

	names   []string // of the files, by their index in the temporary file
	file    *os.File // nil until the limit is reached
	writer  *bufio.Writer
	spilled int // documents in the file
}

// add takes a document in.
func (s *stock) add(r records.Record) {
	s.documents = append(s.documents, r.Document)
	s.positions = append(s.positions, r.Position)
	s.size += len(r.Document)
}

func (s *stock) count() int { return s.spilled + len(s.documents) }
func (s *stock) full() bool { return s.size > s.limit }

// spill moves what is in memory to the file.
func (s *stock) spill() error {
	if s.file == nil {
		file, err := os.CreateTemp("", "intact-import-")
		if err != nil {
			return fmt.Errorf("no temporary file for what does not fit into memory: %w", err)
		}
		s.file, s.writer = file, bufio.NewWriterSize(file, 256<<10)
	}
	var head []byte
	for i, raw := range s.documents {
		at := s.positions[i]
		if n := len(s.names); n == 0 || s.names[n-1] != at.File {
			s.names = append(s.names, at.File)
		}
		head = binary.AppendUvarint(head[:0], uint64(len(s.names)-1))
		head = binary.AppendUvarint(head, uint64(at.Line))
		head = binary.AppendUvarint(head, uint64(at.Column))
		s.writer.Write(head) // its error comes back from Flush
		s.writer.Write(raw)
	}
	if err := s.writer.Flush(); err != nil {
		return fmt.Errorf("the temporary file for what does not fit into memory: %w", err)
	}
	s.spilled += len(s.documents)
	s.documents, s.positions, s.size = nil, nil, 0
	return nil
}

// close removes the file.
func (s *stock) close() {
	if s.file == nil {
		return
	}
	_ = s.file.Close() // nobody needs what is in it any more
	_ = os.Remove(s.file.Name())
}

// part is all of the stock as a part of a batch.
func (s *stock) part(coll *mongo.Collection) (batch.Part, error) {
	if s.file == nil {
		return batch.Into(coll, s.documents), nil
	}
	if err := s.spill(); err != nil {
		return batch.Part{}, err
	}
	return batch.Stream(coll, func(yield func(bson.Raw, error) bool) {
		for record, err := range s.records() {
			if !yield(record.Document, err) {
				return
			}
		}
	}), nil
}

// records iterates over what is in the file.
func (s *stock) records() iter.Seq2[records.Record, error] {
	return func(yield func(records.Record, error) bool) {
		in := bufio.NewReaderSize(io.NewSectionReader(s.file, 0, 1<<62), 256<<10)
		for range s.spilled {
			record, err := s.readRecord(in)
			if err != nil {
				err = fmt.Errorf("the temporary file for what does not fit into memory: %w", err)
			}
			if !yield(record, err) || err != nil {
				return
			}
		}
	}
}

func (s *stock) readRecord(in *bufio.Reader) (records.Record, error) {
	var r records.Record
	name, err1 := binary.ReadUvarint(in)
	line, err2 := binary.ReadUvarint(in)
	column, err3 := binary.ReadUvarint(in)
	size, err4 := in.Peek(4)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return r, err
	}
	if name >= uint64(len(s.names)) {
		return r, errors.New("it was changed")
	}
	r.Position = records.Position{File: s.names[name], Line: int(line), Column: int(column)}
	r.Document = make(bson.Raw, binary.LittleEndian.Uint32(size))
	_, err := io.ReadFull(in, r.Document)
	return r, err
}

// places returns where the documents with these indexes stood.
func (s *stock) places(indexes map[int]bool) (map[int]records.Position, error) {
	found := make(map[int]records.Position, len(indexes))
	i := 0
	if s.spilled > 0 && len(indexes) > 0 {
		for record, err := range s.records() {
			if err != nil {
				return found, err
			}
			if indexes[i] {
				found[i] = record.Position
			}
			i++
		}
	}
	for j, at := range s.positions {
		if indexes[s.spilled+j] {
			found[s.spilled+j] = at
		}
	}
	return found, nil
}
