package mongosim

import (
	"encoding/binary"
	"errors"
	"io"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"
)

const (
	headerLength  = 16
	internalExtra = 16 << 10 // what a document on the wire may have beyond the size of a stored one (BSONObjMaxInternalSize)
)

// request is a message from a client, taken apart.
type request struct {
	id        int32
	query     bool // the old OP_QUERY: only for the first hello of a connection
	unwanted  bool // moreToCome: the client expects no reply
	exhaust   bool // the client accepts a stream of replies
	body      bsoncore.Document
	sequences map[string][]bsoncore.Document
}

// errProtocol closes the connection: what arrived is not a message of the protocol.
var errProtocol = errors.New("mongosim: not a message of the wire protocol")

// readMessage reads one whole message, which may not be longer than limit.
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var header [headerLength]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	length := int32(binary.LittleEndian.Uint32(header[:]))
	if length < headerLength || int(length) > limit {
		return nil, errProtocol
	}
	message := make([]byte, length)
	copy(message, header[:])
	if _, err := io.ReadFull(r, message[headerLength:]); err != nil {
		return nil, err
	}
	return message, nil
}

// parseMessage takes a message apart. An *Error is an answer to the client; any other error closes the connection.
func parseMessage(message []byte, maxDocument int) (*request, error) {
	_, id, _, opcode, rest, ok := wiremessage.ReadHeader(message)
	if !ok {
		return nil, errProtocol
	}
	req := &request{id: id}
	switch opcode {
	//lint:ignore SA1019 the first hello of a handshake is still an OP_QUERY
	case wiremessage.OpQuery:
		return req, req.parseQuery(rest)
	case wiremessage.OpMsg:
		return req, req.parseMsg(rest, maxDocument+internalExtra)
	default:
		return nil, errProtocol // OP_COMPRESSED was never offered; the others are gone since 5.1
	}
}

func (req *request) parseQuery(rest []byte) error {
	req.query = true
	//lint:ignore SA1019 the first hello of a handshake is still an OP_QUERY
	_, rest, ok := wiremessage.ReadQueryFlags(rest)
	if !ok {
		return errProtocol
	}
	//lint:ignore SA1019 the first hello of a handshake is still an OP_QUERY
	name, rest, ok := wiremessage.ReadQueryFullCollectionName(rest)
	if !ok {
		return errProtocol
	}
	if len(rest) < 8 {
		return errProtocol
	}
	doc, _, ok := bsoncore.ReadDocument(rest[8:])
	if !ok {
		return errProtocol
	}
	if err := checkDocument(doc); err != nil {
		return err
	}
	if name != "admin.$cmd" {
		return errorf(352, "Unsupported OP_QUERY command. The client driver may require an upgrade.")
	}
	req.body = doc
	return nil
}

// parseMsg reads the sections of an OP_MSG (manual, "MongoDB Wire Protocol"): exactly one body, any number of document
// sequences with different names, and perhaps a checksum, which nobody checks on loopback.
func (req *request) parseMsg(rest []byte, limit int) error {
	flags, rest, ok := wiremessage.ReadMsgFlags(rest)
	if !ok {
		return errProtocol
	}
	if flags&0xffff&^(wiremessage.ChecksumPresent|wiremessage.MoreToCome) != 0 {
		return errorf(codeIllegalOperation, "Message contains illegal flags value")
	}
	req.unwanted = flags&wiremessage.MoreToCome != 0
	req.exhaust = flags&wiremessage.ExhaustAllowed != 0
	if flags&wiremessage.ChecksumPresent != 0 {
		if len(rest) < 4 {
			return errProtocol
		}
		rest = rest[:len(rest)-4]
	}
	for len(rest) > 0 {
		kind, after, ok := wiremessage.ReadMsgSectionType(rest)
		if !ok {
			return errProtocol
		}
		switch kind {
		case wiremessage.SingleDocument:
			if req.body != nil {
				return errorf(40430, "Multiple body sections in message")
			}
			if req.body, rest, ok = wiremessage.ReadMsgSectionSingleDocument(after); !ok {
				return errProtocol
			}
			if err := checkSized(req.body, limit); err != nil {
				return err
			}
		case wiremessage.DocumentSequence:
			name, docs, more, err := readSequence(after, limit)
			if err != nil {
				return err
			}
			if _, twice := req.sequences[name]; twice {
				return errorf(40431, "Duplicate document sequence: %s", name)
			}
			if req.sequences == nil {
				req.sequences = map[string][]bsoncore.Document{}
			}
			req.sequences[name], rest = docs, more
		default:
			return errorf(40432, "Unknown section kind %d", kind)
		}
	}
	if req.body == nil {
		return errorf(40587, "OP_MSG messages must have a body")
	}
	for name := range req.sequences {
		if _, twice := lookup(req.body, name); twice {
			return errorf(40433, "Duplicate field between body and document sequence: %s", name)
		}
	}
	return nil
}

func readSequence(b []byte, limit int) (name string, docs []bsoncore.Document, rest []byte, err error) {
	length, after, ok := bsoncore.ReadLength(b)
	if !ok || length < 5 || int(length) > len(b) {
		return "", nil, nil, errProtocol
	}
	part := after[:length-4]
	end := 0
	for end < len(part) && part[end] != 0 {
		end++
	}
	if end == len(part) {
		return "", nil, nil, errProtocol
	}
	name, part = string(part[:end]), part[end+1:]
	for len(part) > 0 {
		doc, more, ok := bsoncore.ReadDocument(part)
		if !ok {
			return "", nil, nil, errProtocol
		}
		if err := checkSized(doc, limit); err != nil {
			return "", nil, nil, err
		}
		docs, part = append(docs, doc), more
	}
	return name, docs, b[length:], nil
}

func checkSized(doc []byte, limit int) error {
	if len(doc) > limit {
		return errorf(codeBSONObjectTooLarge, "BSONObj size: %d is invalid. Size must be between 0 and %d", len(doc), limit)
	}
	return checkDocument(doc)
}

// appendReply frames a reply document. more announces that another reply follows without a request.
func appendReply(dst []byte, req *request, id int32, doc []byte, more bool) []byte {
	if req.query {
		at, dst := wiremessage.AppendHeaderStart(dst, id, req.id, wiremessage.OpReply)
		dst = wiremessage.AppendReplyFlags(dst, wiremessage.AwaitCapable)
		dst = wiremessage.AppendReplyCursorID(dst, 0)
		dst = wiremessage.AppendReplyStartingFrom(dst, 0)
		dst = wiremessage.AppendReplyNumberReturned(dst, 1)
		dst = append(dst, doc...)
		return bsoncore.UpdateLength(dst, at, int32(len(dst))-at)
	}
	at, dst := wiremessage.AppendHeaderStart(dst, id, req.id, wiremessage.OpMsg)
	var flags wiremessage.MsgFlag
	if more {
		flags = wiremessage.MoreToCome
	}
	dst = wiremessage.AppendMsgFlags(dst, flags)
	dst = wiremessage.AppendMsgSectionType(dst, wiremessage.SingleDocument)
	dst = append(dst, doc...)
	return bsoncore.UpdateLength(dst, at, int32(len(dst))-at)
}
