package batch

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// mint makes ObjectIDs that nobody else can make, one after the other: 4 bytes of time, then 5 random bytes and a random
// start of the 3-byte counter, drawn anew for each mint. The 64 random bits are what keeps two batches of the same
// second apart; the usual 40 random bits of a process with a shared counter would not do for a new draw per batch. Where
// the counter would wrap, a new block is drawn. It is for one goroutine.
type mint struct {
	next bson.ObjectID
	left int // ids that the block still has
}

const counterEnd = 1 << 24

func (m *mint) id() bson.ObjectID {
	if m.left == 0 {
		m.next = randomID()
		m.left = counterEnd - counterOf(m.next)
	}
	id := m.next
	m.left--
	counter := counterOf(id) + 1
	m.next[9], m.next[10], m.next[11] = byte(counter>>16), byte(counter>>8), byte(counter)
	return id
}

// randomID returns an ObjectID of this second with 64 random bits.
func randomID() (id bson.ObjectID) {
	binary.BigEndian.PutUint32(id[:4], uint32(time.Now().Unix()))
	_, _ = rand.Read(id[4:]) // never fails: crypto/rand ends the process instead, as of Go 1.24
	return id
}

func counterOf(id bson.ObjectID) int {
	return int(id[9])<<16 | int(id[10])<<8 | int(id[11])
}

// follows reports whether b is the id after a in the same block.
func follows(a, b bson.ObjectID) bool {
	return [9]byte(a[:9]) == [9]byte(b[:9]) && counterOf(b) == counterOf(a)+1
}
