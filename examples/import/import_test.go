package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
)

// The same documents, however they are written down, come out the same, in order and numbered in order.
func TestEveryWayIn(t *testing.T) {
	const (
		lines = "{\"name\":\"Å, \\\"B\\\"\",\"zip\":\"00417\",\"at\":{\"lat\":\"1.50\"}}\n{\"name\":\"two\\r\\nlines\",\"zip\":\"1\",\"at\":{\"lat\":\"\"}}\n{\"name\":\"c\",\"zip\":\"\",\"at\":{\"lat\":\"-3\"}}\n"
		array = "[{\"name\":\"Å, \\\"B\\\"\",\"zip\":\"00417\",\"at\":{\"lat\":\"1.50\"}},\n{\"name\":\"two\\r\\nlines\",\"zip\":\"1\",\n\"at\":{\"lat\":\"\"}}, {\"name\":\"c\",\"zip\":\"\",\"at\":{\"lat\":\"-3\"}}]"
		csv   = "name,zip,at.lat\n\"Å, \"\"B\"\"\",00417,1.50\n\"two\r\nlines\",1,\nc,,-3\n"
	)
	want := []string{
		`{"name":"Å, \"B\"","zip":"00417","at":{"lat":"1.50"},"no":1}`,
		`{"name":"two\r\nlines","zip":"1","at":{"lat":""},"no":2}`,
		`{"name":"c","zip":"","at":{"lat":"-3"},"no":3}`,
	}
	for _, c := range []struct {
		name, file, contents string
		stdin                string
		args                 []string
	}{
		{name: "lines", file: "f.ndjson", contents: lines},
		{name: "a byte-order mark", file: "f.json", contents: "\xEF\xBB\xBF" + lines},
		{name: "CR LF and no end", file: "f.ndjson", contents: strings.TrimSuffix(strings.ReplaceAll(lines, "\n", "\r\n"), "\r\n")},
		{name: "blank lines", file: "f.ndjson", contents: "\n" + strings.ReplaceAll(lines, "\n", "\n  \n\n")},
		{name: "array", file: "f.json", contents: array, args: []string{"--jsonArray"}},
		{name: "CSV", file: "f.csv", contents: csv, args: []string{"--headerline"}},
		{name: "CSV with a byte-order mark", file: "f.csv", contents: "\xEF\xBB\xBF" + csv, args: []string{"--headerline"}},
		{name: "CSV by its type", file: "f.txt", contents: csv, args: []string{"--type", "csv", "--headerline"}},
		{name: "CSV without a header", file: "f.csv", contents: csv[strings.Index(csv, "\n")+1:], args: []string{"--fields", "name,zip,at.lat"}},
		{name: "CSV with another separator", file: "f.csv", contents: strings.ReplaceAll(strings.ReplaceAll(csv, ",", ";"), "Å;", "Å,"), args: []string{"--headerline", "--separator", ";"}},
		{name: "gzip", file: "f.ndjson.gz", contents: gzipped(t, lines)},
		{name: "zstd", file: "f.ndjson.zst", contents: zstandard(t, lines)},
		{name: "CSV in gzip", file: "f.csv.gz", contents: gzipped(t, csv), args: []string{"--headerline"}},
		{name: "standard input", stdin: lines},
		{name: "standard input by its name", stdin: lines, args: []string{"-"}},
		{name: "standard input in zstd", stdin: zstandard(t, lines)},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTarget(t)
			args := append([]string{"--sequence", "no=s", "--json"}, c.args...)
			if c.file != "" {
				args = append(args, x.file(c.file, c.contents))
			}
			s := x.expect(x.runWith(&program{stdin: strings.NewReader(c.stdin)}, args...), exitStored, 0)
			if got := x.documents(); !slices.Equal(got, want) {
				t.Errorf("\n got %q\nwant %q", got, want)
			}
			if want := (numbers{Sequence: "s", First: 1, Last: 3, Count: 3}); s.Stored != 3 || len(s.Numbers) != 1 || s.Numbers[0] != want {
				t.Errorf("%+v", s)
			}
		})
	}
}

func gzipped(t *testing.T, text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func zstandard(t *testing.T, text string) string {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return string(w.EncodeAll([]byte(text), nil))
}

// Several files are one batch: one bad line in one of them, and nothing is stored of any.
func TestSeveralFiles(t *testing.T) {
	x := newTarget(t)
	one, two := x.file("1.ndjson", ndjson(3, nil)), x.file("2.csv", "v\n4\n5\n")
	s := x.expect(x.run("--json", "--headerline", "--type", "csv", two), exitStored, 0)
	if s.Stored != 2 {
		t.Errorf("%+v", s)
	}
	bad := x.file("3.ndjson", ndjson(4, map[int]string{3: "{"}))
	r := x.run("--json", one, bad)
	s = x.expect(r, exitNotStored, 2)
	x.mention(r, bad+":3:2: ")
	if s.Read != 7 || s.Refused != 1 || s.NotStored != 6 {
		t.Errorf("%+v", s)
	}
	// Equal documents in two files are two documents.
	s = x.expect(x.run("--json", one, one), exitStored, 2)
	if s.Stored != 6 {
		t.Errorf("%+v", s)
	}
}

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

// Input without documents is stored by storing nothing.
func TestNoDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		contents string
		args     []string
	}{
		"an empty file":        {"", nil},
		"blank lines":          {"\n \r\n\n", nil},
		"a byte-order mark":    {"\xEF\xBB\xBF", nil},
		"an empty array":       {"[]", []string{"--jsonArray"}},
		"no array":             {"", []string{"--jsonArray"}},
		"only a header":        {"a,b\n", []string{"--type", "csv", "--headerline"}},
		"no header":            {"", []string{"--type", "csv", "--headerline"}},
		"an empty gzip stream": {gzipped(t, ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTarget(t)
			r := x.run(append(c.args, "--json", "--sequence", "no=s", x.file("f", c.contents))...)
			if s := x.expect(r, exitStored, 0); s.Read != 0 || s.Stored != 0 {
				t.Errorf("%+v", s)
			}
			if x.counter("s") != 0 {
				t.Error("numbers were used")
			}
		})
	}
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

// A document of 15 MB is stored; one that its number makes too large is not, and is named.
func TestLargeDocuments(t *testing.T) {
	x := newTarget(t)
	document := func(size int) string { return `{"s":"` + strings.Repeat("x", size) + `"}` }
	x.expect(x.run("--json", x.file("15.ndjson", "{\"v\":1}\n"+document(15_000_000)+"\n{\"v\":2}\n")), exitStored, 0)
	r := x.run("--json", "--sequence", "no=s", x.file("16.ndjson", "{\"v\":1}\n"+document(16<<20-13)+"\n"))
	x.expect(r, exitNotStored, 3)
	x.mention(r, "16.ndjson:2: ", "16777216")
	r = x.run("--json", "--sequence", "no=s", x.file("17.ndjson", "{\"v\":1}\n"+document(17_000_000)+"\n{\"v\":2}\n"))
	x.expect(r, exitNotStored, 3)
	x.mention(r, "17.ndjson:2: the document has 17000013 bytes")
	if x.counter("s") != 0 {
		t.Error("numbers were used")
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

	wire.On(faultwire.Insert.In(x.db.Name()+".c")).First(1).Lie(faultwire.WriteConcernError{Code: 64, Message: "waiting for replication timed out"})
	wire.On(faultwire.Delete).First(2).DropReply()
	r = x.run("--json", "--numInsertionWorkers", "1", x.file("f.ndjson", ndjson(100, nil)))
	x.expect(r, exitNotStored, 100)
	x.mention(r, "import: trying again: ")
}

// The three forms in which mongoexport has written the same document over the years give the same document.
func TestExtendedJSON(t *testing.T) {
	for name, line := range map[string]string{
		"canonical": `{"_id":{"$oid":"507f1f77bcf86cd799439011"},"d":{"$date":{"$numberLong":"1600000000000"}},"n":{"$numberLong":"1600000000000"},"i":{"$numberInt":"5"},"f":{"$numberDouble":"1.0"},"b":{"$binary":{"base64":"AQID","subType":"00"}},"r":{"$regularExpression":{"pattern":"^a","options":"i"}},"t":{"$timestamp":{"t":5,"i":1}}}`,
		"relaxed":   `{"_id":{"$oid":"507f1f77bcf86cd799439011"},"d":{"$date":"2020-09-13T12:26:40Z"},"n":1600000000000,"i":5,"f":1.0,"b":{"$binary":{"base64":"AQID","subType":"00"}},"r":{"$regularExpression":{"pattern":"^a","options":"i"}},"t":{"$timestamp":{"t":5,"i":1}}}`,
		"legacy":    `{"_id":{"$oid":"507f1f77bcf86cd799439011"},"d":{"$date":"2020-09-13T12:26:40.000+0000"},"n":{"$numberLong":"1600000000000"},"i":5,"f":1.0,"b":{"$binary":"AQID","$type":"00"},"r":{"$regex":"^a","$options":"i"},"t":{"$timestamp":{"t":5,"i":1}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			x := newTarget(t)
			x.expect(x.run(x.file("f.ndjson", line+"\n")), exitStored, 0)
			raw, err := x.db.Collection("c").FindOne(t.Context(), bson.D{}).Raw()
			if err != nil {
				t.Fatal(err)
			}
			const want = `{"_id":{"$oid":"507f1f77bcf86cd799439011"},"d":{"$date":{"$numberLong":"1600000000000"}},"n":{"$numberLong":"1600000000000"},"i":{"$numberInt":"5"},"f":{"$numberDouble":"1.0"},"b":{"$binary":{"base64":"AQID","subType":"00"}},"r":{"$regularExpression":{"pattern":"^a","options":"i"}},"t":{"$timestamp":{"t":5,"i":1}}}`
			if got, err := bson.MarshalExtJSON(raw, true, false); err != nil || string(got) != want {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

// Documents with an _id of their own are stored as they are in the file, unless the mark is to stay.
func TestMark(t *testing.T) {
	x := newTarget(t)
	x.expect(x.run(x.file("f.ndjson", "{\"_id\":1,\"v\":1}\n{\"_id\":2,\"v\":2}\n")), exitStored, 0)
	if got := x.documents(); !slices.Equal(got, []string{`{"_id":1,"v":1}`, `{"_id":2,"v":2}`}) {
		t.Errorf("%q", got)
	}
	x.expect(x.run("--keepStamp", "--stampField", "by", x.file("f.ndjson", "{\"_id\":3,\"v\":3}\n")), exitStored, 2)
	if got := x.documents(); len(got) != 3 || !strings.HasPrefix(got[2], `{"_id":3,"v":3,"by":{"$oid":"`) {
		t.Errorf("%q", got)
	}
}

func TestSequences(t *testing.T) {
	x := newTarget(t)
	file := x.file("f.ndjson", ndjson(2, nil))
	x.expect(x.run("--sequence", "no=a:100:10", "--sequence", "meta.b=b:0", file), exitStored, 0)
	x.expect(x.run("--sequence", "no=a", "--sequence", "meta.b=b", "--sequence", "meta.c=b", file), exitStored, 2)
	want := []string{
		`{"v":1,"no":100,"meta":{"b":0}}`, `{"v":2,"no":110,"meta":{"b":1}}`,
		`{"v":1,"no":111,"meta":{"b":2,"c":4}}`, `{"v":2,"no":112,"meta":{"b":3,"c":5}}`,
	}
	got := x.documents()
	slices.SortFunc(got, func(a, b string) int { return strings.Compare(a[7:], b[7:]) }) // by number: ids of two runs have no order
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

// Numbers that begin with the date count anew with each date.
func TestDatedNumbers(t *testing.T) {
	x := newTarget(t)
	file := x.file("f.ndjson", ndjson(2, nil))
	today := func() int64 {
		day, err := strconv.ParseInt(time.Now().UTC().Format("060102"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return day
	}
	from := today()
	s := x.expect(x.run("--json", "--sequence", "no=d@day:3", "--sequence", "y=y@year:5", file), exitStored, 0)
	day := s.Numbers[0].First / 1000
	if to := today(); day < from || day > to {
		t.Errorf("the numbers begin with %d, not with a date from %d to %d", day, from, to)
	}
	if want := (numbers{Sequence: "d", First: day*1000 + 1, Last: day*1000 + 2, Count: 2}); s.Numbers[0] != want {
		t.Errorf("%+v, not %+v", s.Numbers[0], want)
	}
	if want := day/10_000*100_000 + 1; s.Numbers[1].First != want {
		t.Errorf("%+v, not %d", s.Numbers[1], want)
	}
	s = x.expect(x.run("--json", "--sequence", "no=d@day:3", file), exitStored, 2)
	want := day*1000 + 3
	if s.Numbers[0].First/1000 != day { // midnight was in between
		want = s.Numbers[0].First/1000*1000 + 1
	}
	if s.Numbers[0].First != want {
		t.Errorf("%+v, not %d", s.Numbers[0], want)
	}
	r := x.run("--sequence", "no=d@day:3", "--zone", "Pacific/Kiritimati", x.file("g.ndjson", ndjson(1000, nil)))
	x.expect(r, exitNotStored, 4) // 999 are the most in a day
}

// A dry run asks nobody and writes nothing; it finds what can be found without a server.
func TestDryRun(t *testing.T) {
	x := newTarget(t)
	uri := x.uri
	x.uri = "mongodb://127.0.0.1:1/" // nobody is there
	r := x.run("--json", "--dry-run", "--sequence", "no=s", x.file("f.ndjson", ndjson(100, nil)))
	if s := x.expect(r, exitStored, 0); s.Result != "checked" || s.Read != 100 || s.Stored != 0 {
		t.Errorf("%+v", s)
	}
	for _, bad := range []string{`{"v":`, `{"_id":{"$gt":""}}`, `{"no":"taken"}`} {
		file := x.file("f.ndjson", ndjson(100, map[int]string{30: bad, 60: bad}))
		r = x.run("--json", "--dry-run", "--sequence", "no=s", file)
		if s := x.expect(r, exitNotStored, 0); s.Read != 100 || s.Refused != 2 {
			t.Errorf("%+v", s)
		}
		x.mention(r, file+":30", file+":60")
	}
	x.uri = uri
	if x.counter("s") != 0 {
		t.Error("numbers were used")
	}
}

// Nobody there is told in time, and the message does not show the password.
func TestNoServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits until the driver gives up")
	}
	x := newTarget(t)
	uri := x.uri
	x.uri = "mongodb://amy:s%40cret@127.0.0.1:1/?serverSelectionTimeoutMS=500"
	r := x.run(x.file("f.ndjson", ndjson(1, nil)))
	x.uri = uri
	x.expect(r, exitNotStored, 0)
	x.mention(r, "no connection to the server", "nothing was written")
	if strings.Contains(r.stderr+r.stdout, "cret") {
		t.Errorf("the password is told: %s", r.stderr)
	}
}

func TestUsage(t *testing.T) {
	x := newTarget(t)
	csv, lines := x.file("f.csv", "a\n1\n"), x.file("f.ndjson", ndjson(1, nil))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--nonsense", lines}, "unknown flag: --nonsense"},
		{[]string{"--type", "xml", lines}, "--type xml: expected json, csv or tsv"},
		{[]string{csv}, "say with --headerline"},
		{[]string{"--headerline", lines}, "is JSON"},
		{[]string{"--headerline", "--fields", "a", csv}, "exclude each other"},
		{[]string{"--headerline", "--separator", "ab", csv}, "--separator"},
		{[]string{"--headerline", "--jsonArray", csv}, "--jsonArray is not for CSV"},
		{[]string{"--sequence", "no", lines}, "expected field=name"},
		{[]string{"--sequence", "no=s:x", lines}, `"x" is not a whole number`},
		{[]string{"--sequence", "no=s:1:0", lines}, `"0" is not a whole number from 1 on`},
		{[]string{"--sequence", "no=s@week", lines}, "expected @hour, @day, @month or @year"},
		{[]string{"--sequence", "no=s@day:30", lines}, `"30" is not a whole number`},
		{[]string{"--sequence", "no=s@day:4:4", lines}, "expected field=name"},
		{[]string{"--zone", "Mars/Olympus", lines}, "--zone Mars/Olympus"},
		{[]string{"--lease", "1ms", lines}, "--lease 1ms"},
		{[]string{"--recover"}, "--recover needs the name of the --journal"},
		{[]string{"--recover", "--journal", "j", lines}, "--recover imports nothing"},
		{[]string{"--recover", "--journal", "j", "--dry-run"}, "exclude each other"},
		{[]string{"--numInsertionWorkers", "0", lines}, "--numInsertionWorkers 0"},
		{[]string{"--uri", "http://amy:secret@host/", lines}, "--uri: not a valid connection string"},
		{[]string{"--uri", "mongodb://amy:se@cret@host/", lines}, "--uri: not a valid connection string"},
		{[]string{"-", "-"}, "the standard input can be read only once"},
		{[]string{""}, "the name of a file is empty"},
		{[]string{"--errors", "-1", lines}, "--errors -1"},
	} {
		r := x.run(c.args...)
		if r.code != exitUsage || !strings.Contains(r.stderr, c.says) || r.stdout != "" {
			t.Errorf("%q: code %d\n%s%s", c.args, r.code, r.stdout, r.stderr)
		}
		if strings.Contains(r.stderr, "cret") {
			t.Errorf("the password is told: %s", r.stderr)
		}
	}
	if r := x.run("--help"); r.code != exitStored || !strings.Contains(r.stdout, "Exit codes:") || r.stderr != "" {
		t.Errorf("%d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	if x.count() != 0 {
		t.Error("documents were stored")
	}
}

// Where nothing is said, the database is the URI's and the collection has the name of the file.
func TestDefaults(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"places.ndjson.gz", "mongodb://localhost:27017 test places"},
		{"--uri mongodb://h1,h2/shop?w=1 dir/places.csv --headerline", "mongodb://h1,h2/shop?w=1 shop places"},
		{"--uri mongodb://a:b%2Fc@h/sh%6Fp -c x f.json g.json", "mongodb://a:b%2Fc@h/sh%6Fp shop x"},
		{"--uri mongodb+srv://h/shop -d other f.json", "mongodb+srv://h/shop other f"},
		{"-c x", "mongodb://localhost:27017 test x"},
	} {
		o, err := parse(strings.Fields(c.args), func(string) string { return "" }, nil)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if got := fmt.Sprint(o.uri, " ", o.database, " ", o.collection); got != c.want {
			t.Errorf("%s: %s, not %s", c.args, got, c.want)
		}
	}
	if _, err := parse([]string{"a.json", "b.json"}, os.Getenv, nil); err == nil {
		t.Error("two files without --collection are accepted")
	}
	if _, err := parse([]string{"--json"}, os.Getenv, nil); err == nil {
		t.Error("the standard input without --collection is accepted")
	}
	o, err := parse([]string{"f.json"}, func(name string) string { return map[string]string{"MONGODB_URI": "mongodb://elsewhere/db"}[name] }, nil)
	if err != nil || o.uri != "mongodb://elsewhere/db" || o.database != "db" {
		t.Errorf("%+v, %v", o, err)
	}
}
