package batch

import (
	"bytes"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/intact-go/intact/internal/outcome"
)

// mintAt places a mint so that its next id has a counter.
func mintAt(counter int) *mint {
	m := &mint{next: randomID(), left: counterEnd - counter}
	m.next[9], m.next[10], m.next[11] = byte(counter>>16), byte(counter>>8), byte(counter)
	return m
}

// Minted ids are new, go up by one, and begin anew where the counter would wrap.
func TestMint(t *testing.T) {
	m := mintAt(counterEnd - 3)
	var ids []bson.ObjectID
	for range 6 {
		ids = append(ids, m.id())
	}
	for i, id := range ids {
		if wraps := i == 3; i > 0 && follows(ids[i-1], id) == wraps {
			t.Errorf("id %d is %v after %v", i, id.Hex(), ids[i-1].Hex())
		}
		if slices.Contains(ids[:i], id) {
			t.Errorf("%v was minted twice", id.Hex())
		}
	}
	if counterOf(ids[2]) != counterEnd-1 {
		t.Errorf("the block ends with %v", ids[2].Hex())
	}
	if bytes.Equal(ids[2][4:9], ids[3][4:9]) {
		t.Error("the new block has the old one's random bytes")
	}
}

// Every block is drawn anew: 64 bits of it are random, none of the process.
func TestMintsAreDifferent(t *testing.T) {
	var all, common [8]byte
	for i := range common {
		common[i] = 0xff
	}
	for range 200 {
		id := new(mint).id()
		for i := range all {
			all[i] |= id[4+i]
			common[i] &= id[4+i]
		}
	}
	if all != [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff} || common != [8]byte{} {
		t.Errorf("bits that are never set: %x, bits that always are: %x", all, common)
	}
}

// The ranges of a track cover the minted ids of the documents that were sent and no other, whatever the order in which
// chunks end; ids of somebody else are exceptions of the range that they are in.
func TestRangesCoverExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := mintAt(counterEnd - rapid.IntRange(1, 400).Draw(rt, "ids before the counter wraps"))
		size := rapid.IntRange(1, 300).Draw(rt, "size")
		chunk := rapid.IntRange(1, 50).Draw(rt, "chunk")
		var chunks [][]*document
		sent, foreign := make(map[bson.ObjectID]bool), make(map[bson.ObjectID]bool)
		for from := 0; from < size; from += chunk {
			var documents []*document
			isSent := rapid.IntRange(0, 4).Draw(rt, "sent") > 0
			for range min(chunk, size-from) {
				id := m.id()
				d := &document{minted: true, sent: isSent, verdict: outcome.Applied}
				d.raw, _ = bson.Marshal(bson.D{{Key: "_id", Value: id}})
				if isSent {
					sent[id] = true
					if d.foreign = rapid.IntRange(0, 30).Draw(rt, "foreign") == 0; d.foreign {
						foreign[id] = true
					}
				}
				documents = append(documents, d)
			}
			chunks = append(chunks, documents)
		}
		for i := range chunks { // any order
			j := rapid.IntRange(i, len(chunks)-1).Draw(rt, "next")
			chunks[i], chunks[j] = chunks[j], chunks[i]
		}
		var tr track
		for _, documents := range chunks {
			tr.add(new(part), documents)
			if rapid.Bool().Draw(rt, "again") {
				tr.add(new(part), documents) // a repetition adds nothing
			}
		}
		covered := make(map[bson.ObjectID]bool)
		ranges := tr.ranges()
		for i, r := range ranges {
			if i > 0 && follows(last(ranges[i-1]), r.First) {
				rt.Fatalf("ranges %d and %d could be one", i-1, i)
			}
			id := r.First
			for n := range r.Count {
				if n > 0 {
					next := at(r.First, n)
					if !follows(id, next) {
						rt.Fatalf("%v does not follow %v", next.Hex(), id.Hex())
					}
					id = next
				}
				if covered[id] || !sent[id] {
					rt.Fatalf("%v is covered twice, or was never sent", id.Hex())
				}
				covered[id] = true
				if slices.Contains(r.Except, id) != foreign[id] {
					rt.Fatalf("%v is excepted=%t, foreign=%t", id.Hex(), !foreign[id], foreign[id])
				}
			}
			for _, id := range r.Except {
				if !covered[id] {
					rt.Fatalf("%v is excepted from a range that it is not in", id.Hex())
				}
			}
		}
		if len(covered) != len(sent) {
			rt.Fatalf("%d ids are covered, %d were sent", len(covered), len(sent))
		}
	})
}

func at(first bson.ObjectID, n int) bson.ObjectID {
	counter := counterOf(first) + n
	first[9], first[10], first[11] = byte(counter>>16), byte(counter>>8), byte(counter)
	return first
}

// A list of ids gives back what was put in, byte for byte, but for what is left out.
func TestIDList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var list idList
		var want []bson.RawValue
		leaveOut := make(map[string]bool)
		for range rapid.IntRange(0, 20).Draw(rt, "ids") {
			v := ids(1, manyNumbers).Draw(rt, "id")
			raw := bson.RawValue{Type: bson.TypeNull}
			if v != nil {
				raw.Type, raw.Value, _ = bson.MarshalValue(v)
			}
			list.add(raw)
			key := identityOf(rt, v)
			if rapid.IntRange(0, 3).Draw(rt, "left out") == 0 {
				leaveOut[key] = true
			}
			want = append(want, raw)
		}
		want = slices.DeleteFunc(want, func(v bson.RawValue) bool { return leaveOut[string(appendIdentity(nil, v.Type, v.Value))] })
		have := list.ids(leaveOut)
		if len(have) != len(want) {
			rt.Fatalf("%d ids, want %d", len(have), len(want))
		}
		for i, v := range have {
			if raw := v.(bson.RawValue); raw.Type != want[i].Type || !bytes.Equal(raw.Value, want[i].Value) {
				rt.Fatalf("id %d is %v, want %v", i, raw, want[i])
			}
		}
	})
}
