package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
)

// Whatever is wrong with one of a hundred records, nothing is left of the others and nobody else's document is touched;
// the message names the line; the counts add up; numbers are used up only if documents were sent.
func TestOneBadRecord(t *testing.T) {
	const n = 100
	for _, c := range []struct {
		name    string
		bad     string
		prepare func(x *target)
		says    string
		sent    bool
	}{
		{name: "no JSON", bad: `{"v":}`, says: "missing value"},
		{name: "cut", bad: `{"v":"x`, says: "in the middle of a document"},
		{name: "a name twice", bad: `{"v":1,"v":2}`, says: `the field "v" stands twice`},
		{name: "_id twice", bad: `{"_id":1,"_id":2}`, says: `the field "_id" stands twice`},
		{name: "a bad $oid", bad: `{"v":{"$oid":"xyz"}}`, says: "not a valid $oid"},
		{name: "an _id like a query", bad: `{"_id":{"$gt":""}}`, says: "_id"},
		{name: "an _id that is a list", bad: `{"_id":[1]}`, says: "_id"},
		{name: "the number's field is taken", bad: `{"no":"A-17"}`, says: "no"},
		{name: "the mark's field is taken", bad: `{"_id":7,"_batch":1}`, says: "_batch"},
		{name: "an _id that is taken", bad: `{"_id":"theirs"}`, says: "refused by the server", sent: true},
		{name: "a value that is unique", bad: `{"v":-1}`, prepare: func(x *target) { x.unique("v") }, says: "refused by the server", sent: true},
	} {
		for _, line := range []int{1, 60, n} {
			t.Run(fmt.Sprintf("%s, line %d", c.name, line), func(t *testing.T) {
				x := newTarget(t)
				x.insert(bson.D{{Key: "_id", Value: "theirs"}, {Key: "v", Value: -1}}, bson.D{{Key: "_id", Value: "other"}, {Key: "v", Value: -2}}, bson.D{{Key: "_id", Value: 2}})
				if c.prepare != nil {
					c.prepare(x)
				}
				before := x.documents()
				file := x.file("f.ndjson", ndjson(n, map[int]string{line: c.bad}))
				r := x.run("--json", "--sequence", "no=s", file)
				s := x.expect(r, exitNotStored, 3)
				x.mention(r, fmt.Sprintf("%s:%d", file, line), c.says)
				if s.Read != n || s.Refused != 1 || s.NotStored != n-1 {
					t.Errorf("%+v", s)
				}
				if after := x.documents(); !slices.Equal(before, after) {
					t.Errorf("before %q\nafter %q", before, after)
				}
				want := int64(0)
				if c.sent {
					want = n
				}
				if got := x.counter("s"); got != want {
					t.Errorf("the counter is at %d, not at %d", got, want)
				}
				// The gap stays: the next document gets the next number.
				x.expect(x.run("--sequence", "no=s", x.file("g.ndjson", `{"v":-9}`)), exitStored, 3)
				if got := x.counter("s"); got != want+1 {
					t.Errorf("the next number is %d, not %d", got, want+1)
				}
			})
		}
	}
}

// Every bad line is found in one run, in the reading and by the server.
func TestAllBadLines(t *testing.T) {
	const n = 5000
	bad := []int{1, 100, 101, 2500, n}
	change := make(map[int]string)
	for i, line := range bad {
		change[line] = fmt.Sprintf(`{"_id":%d,"v":%d}`, i, line)
	}
	x := newTarget(t)
	for i := range bad {
		x.insert(bson.D{{Key: "_id", Value: i}})
	}
	file := x.file("f.ndjson", ndjson(n, change))
	for _, line := range bad { // one by one, so that each chunk is the first to fail once
		one := x.file("one.ndjson", ndjson(n, map[int]string{line: change[line]}))
		r := x.run(one)
		x.expect(r, exitNotStored, int64(len(bad)))
		x.mention(r, fmt.Sprintf("%s:%d: refused by the server", one, line), "read 5,000, refused 1, stored 0: NOT STORED")
		if n := strings.Count(r.stderr, "refused by the server"); n != 1 {
			t.Errorf("line %d: %d lines are named\n%s", line, n, r.stderr)
		}
	}
	r := x.run("--json", file) // which of the chunks are sent before the first fails is open
	x.expect(r, exitNotStored, int64(len(bad)))
	for _, named := range strings.Split(r.stderr, "\n") {
		if !strings.Contains(named, "refused by the server") {
			continue
		}
		if !slices.ContainsFunc(bad, func(line int) bool { return strings.Contains(named, fmt.Sprintf("%s:%d: ", file, line)) }) {
			t.Errorf("a good line is named: %s", named)
		}
	}

	for i := range change {
		change[i] = "{"
	}
	r = x.run("--json", x.file("g.ndjson", ndjson(n, change)))
	s := x.expect(r, exitNotStored, int64(len(bad)))
	if s.Read != n || s.Refused != len(bad) || len(bad) != strings.Count(r.stderr, "middle of a document") {
		t.Errorf("%+v\n%s", s, r.stderr)
	}
	r = x.run("--json", "--errors", "2", x.file("g.ndjson", ndjson(n, change)))
	if s := x.expect(r, exitNotStored, int64(len(bad))); s.MoreProblems != 3 || !strings.Contains(r.stderr, "and 3 more") {
		t.Errorf("%+v\n%s", s, r.stderr)
	}
}

// The same _id twice in a file is told with both lines, before anything is sent.
func TestSameIDTwice(t *testing.T) {
	x := newTarget(t)
	file := x.file("f.ndjson", "{\"_id\":1}\n{\"_id\":2}\n\n{\"_id\":{\"$numberDouble\":\"1.0\"}}\n")
	r := x.run("--sequence", "no=s", file)
	x.expect(r, exitNotStored, 0)
	x.mention(r, file+":4: the same _id as in "+file+":1", "nothing was written; no number was used")
}

// A file that cannot be read is no reason to store the others.
func TestUnreadableFile(t *testing.T) {
	whole := gzipped(t, ndjson(5000, nil))
	for name, bad := range map[string]func(x *target) string{
		"missing":            func(x *target) string { return filepath.Join(x.dir, "nowhere.ndjson") },
		"a directory":        func(x *target) string { return x.dir },
		"gzip cut off":       func(x *target) string { return x.file("cut.gz", whole[:len(whole)/2]) },
		"gzip damaged":       func(x *target) string { return x.file("bad.gz", whole[:len(whole)-8]+"12345678") },
		"zstd cut off":       func(x *target) string { w := zstandard(t, ndjson(5000, nil)); return x.file("cut.zst", w[:len(w)/2]) },
		"gzip but no stream": func(x *target) string { return x.file("no.gz", "\x1f\x8bxxxxxxxxxxxx") },
	} {
		t.Run(name, func(t *testing.T) {
			x := newTarget(t)
			file := bad(x)
			r := x.run("--json", "--sequence", "no=s", x.file("good.ndjson", ndjson(10, nil)), file)
			x.expect(r, exitNotStored, 0)
			x.mention(r, filepath.Base(file))
			if x.counter("s") != 0 {
				t.Error("numbers were used")
			}
		})
	}
}

// A server that acknowledges documents only half has stored them: they are deleted again.
func TestWriteConcernFails(t *testing.T) {
	x := newTarget(t)
	wire := faultwire.ForTest(t)
	x.dialer = wire
	wire.On(faultwire.Insert.In(x.db.Name() + ".c")).First(1).Lie(faultwire.WriteConcernError{Code: 64, Message: "waiting for replication timed out"})
	r := x.run("--json", x.file("f.ndjson", ndjson(100, nil)))
	if s := x.expect(r, exitNotStored, 0); s.Read != 100 || s.NotStored != 100 || s.Error == "" {
		t.Errorf("%+v", s)
	}
}

// What passes is tried again, and the screen says so.
func TestTroubleThatPasses(t *testing.T) {
	x := newTarget(t)
	wire := faultwire.ForTest(t)
	x.dialer = wire
	wire.On(faultwire.Insert.In(x.db.Name() + ".c")).First(1).Reply(faultwire.Throttled(10 * time.Millisecond))
	r := x.run("--json", "--numInsertionWorkers", "1", x.file("f.ndjson", ndjson(100, nil)))
	x.expect(r, exitStored, 0)
	x.mention(r, "import: trying again: ")

	wire.On(faultwire.Insert.In(x.db.Name() + ".c")).First(1).Lie(faultwire.WriteConcernError{Code: 64, Message: "waiting for replication timed out"})
	wire.On(faultwire.Delete).First(2).DropReply()
	r = x.run("--json", "--numInsertionWorkers", "1", x.file("f.ndjson", ndjson(100, nil)))
	x.expect(r, exitNotStored, 100)
	x.mention(r, "import: trying again: ")
}
