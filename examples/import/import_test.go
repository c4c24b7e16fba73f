package main

import (
	"bytes"
	"compress/gzip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/examples/internal/job"
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
			if want := (job.Numbers{Sequence: "s", First: 1, Last: 3, Count: 3}); s.Stored != 3 || len(s.Numbers) != 1 || s.Numbers[0] != want {
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
	if want := (job.Numbers{Sequence: "d", First: day*1000 + 1, Last: day*1000 + 2, Count: 2}); s.Numbers[0] != want {
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
