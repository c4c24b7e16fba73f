package faultwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The opcodes and sizes are those of the MongoDB wire protocol's reference page. A server announces
// maxMessageSizeBytes 48,000,000; the driver's own limit for replies is the same.
const (
	opReply      = 1
	opQuery      = 2004
	opCompressed = 2012
	opMsg        = 2013

	headerSize     = 16
	maxMessageSize = 48_000_000

	flagChecksum   = 1 << 0
	flagMoreToCome = 1 << 1

	kindBody     = 0
	kindSequence = 1
)

var errTLS = errors.New("faultwire: the client speaks TLS, which hides its commands; " +
	"connect it without TLS and dial the server with New(Over(&tls.Dialer{}))")

// message is one wire message. Its slices share the memory of raw and are never written to.
type message struct {
	raw        []byte
	id         int32
	responseTo int32
	opcode     int32
	flags      uint32 // of an OP_MSG
	database   string // of an OP_QUERY; an OP_MSG has $db in its body
	body       bson.Raw
	sequences  []sequence
}

// sequence is a section of kind 1: documents that travel beside the body, which would hold them in an array field.
type sequence struct {
	field string
	data  []byte
}

// messageSize returns the size that a message's first bytes declare, or 0 if it takes more bytes to know. It refuses what
// the wire does not understand as soon as the header is there: the rest may never come.
func messageSize(start []byte) (int, error) {
	if len(start) < 4 {
		return 0, nil
	}
	// A TLS handshake begins with 0x16 0x03, and so does many a message, by its size: the rest of the header has to tell.
	tls := start[0] == 0x16 && start[1] == 0x03
	size := int32(binary.LittleEndian.Uint32(start))
	if size < headerSize || size > maxMessageSize {
		if tls {
			return 0, errTLS
		}
		return 0, fmt.Errorf("faultwire: a message of %d bytes is not of the MongoDB wire protocol", size)
	}
	if len(start) < headerSize {
		return 0, nil
	}
	switch opcode := int32(binary.LittleEndian.Uint32(start[12:])); opcode {
	case opMsg, opQuery, opReply:
		return int(size), nil
	case opCompressed:
		return 0, errors.New("faultwire: OP_COMPRESSED hides the commands; connect the client without compressors")
	default:
		if tls {
			return 0, errTLS
		}
		return 0, fmt.Errorf("faultwire: opcode %d is unknown", opcode)
	}
}

// parse takes one whole message apart whose header messageSize has approved. What the wire cannot understand is an error:
// passing it on unseen would let a test believe that nothing happened.
func parse(raw []byte) (*message, error) {
	m := &message{
		raw:        raw,
		id:         int32(binary.LittleEndian.Uint32(raw[4:])),
		responseTo: int32(binary.LittleEndian.Uint32(raw[8:])),
		opcode:     int32(binary.LittleEndian.Uint32(raw[12:])),
	}
	var ok bool
	switch m.opcode {
	case opMsg:
		ok = m.parseMsg(raw[headerSize:])
	case opQuery:
		ok = m.parseQuery(raw[headerSize:])
	case opReply:
		ok = m.parseReply(raw[headerSize:])
	}
	if !ok {
		return nil, fmt.Errorf("faultwire: a message of %d bytes with opcode %d is malformed", len(raw), m.opcode)
	}
	return m, nil
}

func (m *message) parseMsg(rest []byte) bool {
	if len(rest) < 4 {
		return false
	}
	m.flags = binary.LittleEndian.Uint32(rest)
	rest = rest[4:]
	if m.flags&flagChecksum != 0 {
		if len(rest) < 4 {
			return false
		}
		rest = rest[:len(rest)-4]
	}
	for len(rest) > 0 {
		kind := rest[0]
		rest = rest[1:]
		switch kind {
		case kindBody:
			doc, after, ok := cutDocument(rest)
			if !ok || m.body != nil {
				return false
			}
			m.body, rest = doc, after
		case kindSequence:
			size, ok := leadingSize(rest)
			if !ok {
				return false
			}
			field, data, ok := bytes.Cut(rest[4:size], []byte{0})
			if !ok {
				return false
			}
			m.sequences = append(m.sequences, sequence{string(field), data})
			rest = rest[size:]
		default:
			return false
		}
	}
	return m.body != nil
}

// parseQuery reads what a driver sends for its first hello: flags, "admin.$cmd", skip, return, the command. The command
// may be wrapped in $query.
func (m *message) parseQuery(rest []byte) bool {
	if len(rest) < 4 {
		return false
	}
	name, rest, ok := bytes.Cut(rest[4:], []byte{0})
	if !ok || len(rest) < 8 {
		return false
	}
	database, _, _ := bytes.Cut(name, []byte{'.'})
	m.database = string(database)
	if m.body, _, ok = cutDocument(rest[8:]); !ok {
		return false
	}
	if wrapped, ok := m.body.Lookup("$query").DocumentOK(); ok {
		m.body = wrapped
	}
	return true
}

// parseReply reads flags, cursor id, start, count and the first document.
func (m *message) parseReply(rest []byte) bool {
	if len(rest) < 20 {
		return false
	}
	if rest = rest[20:]; len(rest) == 0 {
		return true // no document at all: legal, and nothing to read
	}
	var ok bool
	m.body, _, ok = cutDocument(rest)
	return ok
}

func (m *message) moreToCome() bool { return m.opcode == opMsg && m.flags&flagMoreToCome != 0 }

// documents splits the sequence. It stops at what is no document; parse has not looked inside.
func (s sequence) documents() []bson.Raw {
	var documents []bson.Raw
	for rest := s.data; ; {
		doc, after, ok := cutDocument(rest)
		if !ok {
			return documents
		}
		documents, rest = append(documents, doc), after
	}
}

func leadingSize(b []byte) (int, bool) {
	if len(b) < 4 {
		return 0, false
	}
	size := int32(binary.LittleEndian.Uint32(b))
	return int(size), size >= 5 && int(size) <= len(b)
}

func cutDocument(b []byte) (doc bson.Raw, rest []byte, ok bool) {
	size, ok := leadingSize(b)
	if !ok || b[size-1] != 0 {
		return nil, b, false
	}
	return bson.Raw(b[:size:size]), b[size:], true
}

// encodeMsg builds an OP_MSG without a checksum.
func encodeMsg(id, responseTo int32, flags uint32, body bson.Raw, sequences []sequence) []byte {
	size := headerSize + 5 + len(body)
	for _, s := range sequences {
		size += 1 + 4 + len(s.field) + 1 + len(s.data)
	}
	b := appendHeader(make([]byte, 0, size), size, id, responseTo, opMsg)
	b = binary.LittleEndian.AppendUint32(b, flags&^flagChecksum)
	b = append(append(b, kindBody), body...)
	for _, s := range sequences {
		b = binary.LittleEndian.AppendUint32(append(b, kindSequence), uint32(4+len(s.field)+1+len(s.data)))
		b = append(append(append(b, s.field...), 0), s.data...)
	}
	return b
}

// encodeAnswer builds the reply to a request, in the form that its opcode asks for.
func encodeAnswer(request *message, document bson.Raw) []byte {
	if request.opcode == opMsg {
		return encodeMsg(request.id, request.id, 0, document, nil)
	}
	size := headerSize + 20 + len(document)
	b := appendHeader(make([]byte, 0, size), size, request.id, request.id, opReply)
	b = append(b, make([]byte, 16)...) // flags, cursor id, starting from
	b = binary.LittleEndian.AppendUint32(b, 1)
	return append(b, document...)
}

func appendHeader(b []byte, size int, id, responseTo, opcode int32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = binary.LittleEndian.AppendUint32(b, uint32(id))
	b = binary.LittleEndian.AppendUint32(b, uint32(responseTo))
	return binary.LittleEndian.AppendUint32(b, uint32(opcode))
}
