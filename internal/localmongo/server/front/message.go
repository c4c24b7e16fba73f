package front

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Sizes, op codes and flags are those of the MongoDB wire protocol (MongoDB manual, "MongoDB Wire Protocol").
const (
	headerLen  = 16
	maxMessage = 48_000_000 // the maxMessageSizeBytes that servers announce

	opQuery = 2004 // only hello and authentication still travel in it
	opMsg   = 2013

	flagChecksum       = 1 << 0
	flagMoreToCome     = 1 << 1
	flagExhaustAllowed = 1 << 16
)

// message is one whole wire message with its header.
type message []byte

func (m message) opCode() int32 { return int32(binary.LittleEndian.Uint32(m[12:16])) }

// read reads one whole message.
func read(r io.Reader) (message, error) {
	var header [headerLen]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	n := int32(binary.LittleEndian.Uint32(header[:4]))
	if n < headerLen || n > maxMessage {
		return nil, fmt.Errorf("front: message of %d bytes", n)
	}
	m := make(message, n)
	copy(m, header[:])
	_, err := io.ReadFull(r, m[headerLen:])
	return m, err
}

// plan is how a request has to be treated.
type plan struct {
	needs  needs
	silent bool // its sender expects no answer

	// What a command with a turn works on, as far as it says so.
	database, collection string
}

// needs is what must hold while a command is with the backend.
type needs int

const (
	nothing   needs = iota
	turn            // no other command with a turn, and the collection stays
	structure       // the collection stays
	emptiness       // no command that needs its collection
)

func (n needs) String() string {
	switch n {
	case nothing:
		return "nothing"
	case turn:
		return "turn"
	case structure:
		return "structure"
	case emptiness:
		return "emptiness"
	}
	return fmt.Sprintf("needs(%d)", int(n))
}

// commands lists those that need something, in lower case. Servers match names exactly, but for some old spellings in
// lower case; to ignore the case altogether can only slow down a command that they do not know.
var commands = map[string]needs{
	"findandmodify": turn,
	"update":        turn,
	"delete":        turn,
	"insert":        structure,
	"drop":          emptiness,
	"dropdatabase":  emptiness,

	"renamecollection": emptiness,
}

// inspect decides how to treat a request. It clears the flag by which a client allows several answers to one request,
// so that one request always has one answer; servers are free to ignore that flag.
//
// Anything but OP_MSG and OP_QUERY is refused: the backend does not announce compression, and no driver sends a
// compressed message unasked, but one that got through could hide an update.
func inspect(m message) (plan, error) {
	switch m.opCode() {
	case opQuery:
		return plan{}, nil
	case opMsg:
	default:
		return plan{}, fmt.Errorf("front: op code %d", m.opCode())
	}
	body := m[headerLen:]
	if len(body) < 4 {
		return plan{}, errShort
	}
	flags := binary.LittleEndian.Uint32(body)
	sections := body[4:]
	if flags&flagChecksum != 0 {
		if len(sections) < 4 {
			return plan{}, errShort
		}
		sections = sections[:len(sections)-4]
	}
	command, err := bodySection(sections)
	if err != nil {
		return plan{}, err
	}
	p := plan{silent: flags&flagMoreToCome != 0}
	if first, err := command.IndexErr(0); err == nil {
		p.needs = commands[strings.ToLower(first.Key())]
		if p.needs == turn {
			p.collection, _ = first.Value().StringValueOK()
			p.database, _ = command.Lookup("$db").StringValueOK()
		}
	} else if len(command) > 5 {
		return plan{}, err
	}
	binary.LittleEndian.PutUint32(body, flags&^flagExhaustAllowed)
	return p, nil
}

var errShort = errors.New("front: message too short")

// bodySection returns the command document, wherever it stands: document sequences may come before it.
func bodySection(sections []byte) (bson.Raw, error) {
	for len(sections) > 0 {
		kind, rest := sections[0], sections[1:]
		if len(rest) < 4 {
			return nil, errShort
		}
		size := int64(binary.LittleEndian.Uint32(rest)) // of a document and of a sequence alike, these bytes included
		if size < 5 || size > int64(len(rest)) {
			return nil, errShort
		}
		switch kind {
		case 0:
			return bson.Raw(rest[:size]), nil
		case 1:
			sections = rest[size:]
		default:
			return nil, fmt.Errorf("front: section of kind %d", kind)
		}
	}
	return nil, errShort
}
