package front

import (
	"bytes"
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// of returns a message with this op code and body.
func of(opCode int32, body []byte) message {
	m := make(message, headerLen, headerLen+len(body))
	binary.LittleEndian.PutUint32(m, uint32(headerLen+len(body)))
	binary.LittleEndian.PutUint32(m[12:], uint32(opCode))
	return append(m, body...)
}

func opMsgOf(flags uint32, sections ...[]byte) message {
	body := binary.LittleEndian.AppendUint32(nil, flags)
	for _, s := range sections {
		body = append(body, s...)
	}
	return of(opMsg, body)
}

func document(t testing.TB, d bson.D) []byte {
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// body is a section of kind 0, sequence one of kind 1.
func body(t testing.TB, d bson.D) []byte { return append([]byte{0}, document(t, d)...) }

func sequence(t testing.TB, name string, documents ...bson.D) []byte {
	var content []byte
	content = append(append(content, name...), 0)
	for _, d := range documents {
		content = append(content, document(t, d)...)
	}
	return append(binary.LittleEndian.AppendUint32([]byte{1}, uint32(4+len(content))), content...)
}

func TestInspect(t *testing.T) {
	command := func(name string) []byte { return body(t, bson.D{{Key: name, Value: "c"}, {Key: "$db", Value: "db"}}) }
	updates := sequence(t, "updates", bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{}}})
	checksum := []byte{1, 2, 3, 4}
	onC := plan{needs: turn, database: "db", collection: "c"}
	for name, test := range map[string]struct {
		m    message
		want plan
		fail bool
	}{
		"find":                    {m: opMsgOf(0, command("find"))},
		"update":                  {m: opMsgOf(0, command("update")), want: onC},
		"delete":                  {m: opMsgOf(0, command("delete")), want: onC},
		"findAndModify":           {m: opMsgOf(0, command("findAndModify")), want: onC},
		"findandmodify":           {m: opMsgOf(0, command("findandmodify")), want: onC},
		"insert":                  {m: opMsgOf(0, command("insert")), want: plan{needs: structure}},
		"drop":                    {m: opMsgOf(0, command("drop")), want: plan{needs: emptiness}},
		"dropDatabase":            {m: opMsgOf(0, command("dropDatabase")), want: plan{needs: emptiness}},
		"renameCollection":        {m: opMsgOf(0, command("renameCollection")), want: plan{needs: emptiness}},
		"collection of no name":   {m: opMsgOf(0, body(t, bson.D{{Key: "update", Value: 1}})), want: plan{needs: turn}},
		"a longer name":           {m: opMsgOf(0, command("updateUser"))},
		"name in a later key":     {m: opMsgOf(0, body(t, bson.D{{Key: "find", Value: "c"}, {Key: "update", Value: 1}}))},
		"no command":              {m: opMsgOf(0, body(t, bson.D{}))},
		"sequence after the body": {m: opMsgOf(0, command("update"), updates), want: onC},
		"sequence before":         {m: opMsgOf(0, updates, command("update")), want: onC},
		"two sequences before":    {m: opMsgOf(0, updates, updates, command("delete")), want: onC},
		"checksum":                {m: opMsgOf(flagChecksum, updates, command("update"), checksum), want: onC},
		"silent":                  {m: opMsgOf(flagMoreToCome, command("update")), want: plan{needs: turn, silent: true, database: "db", collection: "c"}},
		"hello in OP_QUERY":       {m: of(opQuery, []byte("whatever"))},

		"compressed":           {m: of(2012, opMsgOf(0, command("update"))), fail: true},
		"old insert":           {m: of(2002, nil), fail: true},
		"no flags":             {m: of(opMsg, []byte{0, 0}), fail: true},
		"no section":           {m: opMsgOf(0), fail: true},
		"no body":              {m: opMsgOf(0, updates), fail: true},
		"only a checksum":      {m: opMsgOf(flagChecksum, []byte{1}), fail: true},
		"unknown section":      {m: opMsgOf(0, append([]byte{2}, document(t, bson.D{})...)), fail: true},
		"sequence too long":    {m: opMsgOf(0, []byte{1, 255, 0, 0, 0, 'a', 0}), fail: true},
		"document too long":    {m: opMsgOf(0, []byte{0, 255, 0, 0, 0, 2, 'u', 0}), fail: true},
		"document of no size":  {m: opMsgOf(0, []byte{0, 0, 0, 0, 0, 0, 0, 0}), fail: true},
		"document of any size": {m: opMsgOf(0, []byte{0, 255, 255, 255, 255, 2, 'u', 0}), fail: true},
		"key without an end":   {m: opMsgOf(0, []byte{0, 7, 0, 0, 0, 2, 'u', 'p'}), fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := inspect(test.m)
			if (err != nil) != test.fail || got != test.want {
				t.Errorf("got %+v, %v; want %+v, failure %v", got, err, test.want, test.fail)
			}
		})
	}
}

// TestInspectAllowsOneAnswer: the flag for several answers does not reach the backend, and nothing else is changed.
func TestInspectAllowsOneAnswer(t *testing.T) {
	section := body(t, bson.D{{Key: "hello", Value: 1}})
	for _, flags := range []uint32{0, flagMoreToCome} {
		got := opMsgOf(flags|flagExhaustAllowed, section)
		if _, err := inspect(got); err != nil {
			t.Fatal(err)
		}
		if want := opMsgOf(flags, section); !bytes.Equal(got, want) {
			t.Errorf("got %x, want %x", got, want)
		}
	}
}

func TestRead(t *testing.T) {
	whole := opMsgOf(0, body(t, bson.D{{Key: "ping", Value: 1}}))
	for name, test := range map[string]struct {
		input []byte
		fail  bool
	}{
		"whole":               {input: whole},
		"with the next":       {input: append(bytes.Clone(whole), whole...)},
		"end":                 {fail: true},
		"part of header":      {input: whole[:10], fail: true},
		"part of body":        {input: whole[:len(whole)-1], fail: true},
		"negative length":     {input: append([]byte{0, 0, 0, 128}, whole[4:]...), fail: true},
		"shorter than header": {input: append([]byte{15, 0, 0, 0}, whole[4:]...), fail: true},
		"too long":            {input: append([]byte{0, 0, 0, 127}, whole[4:]...), fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(bytes.NewReader(test.input))
			if test.fail {
				if err == nil {
					t.Error("no error")
				}
				return
			}
			if err != nil || !bytes.Equal(got, whole) {
				t.Errorf("got %x, %v", got, err)
			}
		})
	}
}

// FuzzInspect looks for messages that crash the front, and for updates that slip through: whatever the driver would
// take for an update must have the turn.
func FuzzInspect(f *testing.F) {
	f.Add([]byte(opMsgOf(0, sequence(f, "updates", bson.D{}), body(f, bson.D{{Key: "update", Value: "c"}}))))
	f.Add([]byte(opMsgOf(flagChecksum, body(f, bson.D{{Key: "find", Value: "c"}}), []byte{0, 0, 0, 0})))
	f.Add([]byte(of(opQuery, nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		p, err := inspect(bytes.Clone(b))
		if err != nil || len(b) < headerLen+5 || message(b).opCode() != opMsg || b[headerLen+4] != 0 {
			return
		}
		first, err := bson.Raw(b[headerLen+5:]).IndexErr(0)
		if err == nil && first.Key() == "update" && p.needs != turn {
			t.Errorf("an update got through: %x", b)
		}
	})
}
