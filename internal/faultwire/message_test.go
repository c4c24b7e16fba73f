package faultwire

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// No bytes make the wire panic, and what it understands it can write again so that it means the same.
func FuzzMessage(f *testing.F) {
	body, err := bson.Marshal(bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: "d"}, {Key: "documents", Value: bson.A{bson.D{}}}})
	if err != nil {
		f.Fatal(err)
	}
	doc := sequence{"documents", []byte{5, 0, 0, 0, 0}}
	for _, raw := range [][]byte{
		encodeMsg(1, 0, 0, body, nil),
		encodeMsg(1, 0, flagMoreToCome, body, []sequence{doc, {"other", append(doc.data, doc.data...)}}),
		encodeAnswer(&message{id: 2, opcode: opMsg}, body),
		encodeAnswer(&message{id: 2, opcode: opQuery}, body),
		append(appendHeader(nil, 16+4+len("admin.$cmd\x00")+8+len(body), 1, 0, opQuery),
			append([]byte("\x00\x00\x00\x00admin.$cmd\x00\x00\x00\x00\x00\xff\xff\xff\xff"), body...)...),
		appendHeader(nil, 16, 1, 0, opCompressed),
		{0x16, 0x03, 0x01},
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		size, err := messageSize(raw)
		if err != nil || size == 0 || size != len(raw) {
			return
		}
		m, err := parse(raw)
		if err != nil {
			return
		}
		r := newRequest(m)
		_, _, _, _ = r.Document(), r.Statements(), r.IDs(), r.Filters()
		_ = Event{Request: r}.String()
		if m.opcode != opMsg {
			return
		}
		again, err := parse(encodeMsg(m.id, m.responseTo, m.flags, m.body, m.sequences))
		if err != nil {
			t.Fatalf("written again: %v", err)
		}
		if !bytes.Equal(again.body, m.body) || again.flags != m.flags&^flagChecksum || len(again.sequences) != len(m.sequences) {
			t.Fatalf("%v became %v", m, again)
		}
		for i := range m.sequences {
			if m.sequences[i].field != again.sequences[i].field || !bytes.Equal(m.sequences[i].data, again.sequences[i].data) {
				t.Fatalf("sequence %d changed", i)
			}
		}
	})
}
