package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/examples/internal/cities"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
)

// worldFiles returns the 171,075 places of the world, or skips the test with the command that fetches them.
func worldFiles(t *testing.T) cities.Files {
	t.Helper()
	files, err := cities.Find()
	if errors.Is(err, cities.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// All places of the world are one batch, and every number is there once, in the order of the lines.
func TestWorld(t *testing.T) {
	t.Parallel() // the server takes its time
	files := worldFiles(t)
	x := newTarget(t)
	s := x.expect(x.run("--json", "--sequence", "no=places", files.Lines), exitStored, 0)
	if s.Stored != cities.Count || s.Numbers[0] != (job.Numbers{Sequence: "places", First: 1, Last: cities.Count, Count: cities.Count}) {
		t.Errorf("%+v", s)
	}
	lines := readLines(t, files.Lines)
	seen := make([]bool, cities.Count+1)
	cursor, err := x.db.Collection("c").Find(t.Context(), bson.D{}, driver.Find().SetProjection(bson.D{{Key: "no", Value: 1}, {Key: "name", Value: 1}, {Key: "lat", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	defer cursor.Close(t.Context())
	for cursor.Next(t.Context()) {
		var place struct {
			No        int
			Name, Lat string
		}
		if err := cursor.Decode(&place); err != nil {
			t.Fatal(err)
		}
		if place.No < 1 || place.No > cities.Count || seen[place.No] {
			t.Fatalf("number %d is out of range or there twice", place.No)
		}
		seen[place.No] = true
		if line := lines[place.No-1]; !bytes.Contains(line, []byte(place.Lat)) || !bytes.Contains(line, []byte(place.Name)) {
			t.Fatalf("number %d is %s, line %s", place.No, place.Name, line)
		}
	}
	if err := cursor.Err(); err != nil {
		t.Fatal(err)
	}
	for no, there := range seen[1:] {
		if !there {
			t.Fatalf("number %d is missing", no+1)
		}
	}
}

func readLines(t *testing.T, file string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
}

// worldWith writes the places of the world with one line changed, and returns the file.
func worldWith(t *testing.T, x *target, number int, change func(lines [][]byte) []byte) string {
	lines := readLines(t, worldFiles(t).Lines)
	lines[number-1] = change(lines)
	return x.file("world.ndjson", string(bytes.Join(lines, []byte("\n"))))
}

// One broken line among them, and none is stored and no number used.
func TestWorldWithBrokenLine(t *testing.T) {
	t.Parallel() // the server takes its time
	worldFiles(t)
	x := newTarget(t)
	file := worldWith(t, x, 100_001, func(lines [][]byte) []byte { return lines[100_000][:20] })
	r := x.run("--json", "--sequence", "no=places", file)
	s := x.expect(r, exitNotStored, 0)
	x.mention(r, file+":100001:21: the line ends in the middle of a document")
	if s.Read != cities.Count || s.Refused != 1 || x.counter("places") != 0 {
		t.Errorf("%+v, counter at %d", s, x.counter("places"))
	}
}

// One place that is there twice, against a unique index: none is stored, and the numbers are a gap.
func TestWorldWithDuplicate(t *testing.T) {
	t.Parallel() // the server takes its time
	worldFiles(t)
	x := newTarget(t)
	_, err := x.db.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: "name", Value: 1}, {Key: "lat", Value: 1}, {Key: "lng", Value: 1}}, Options: driver.Index().SetUnique(true)})
	if err != nil {
		t.Fatal(err)
	}
	file := worldWith(t, x, 150_000, func(lines [][]byte) []byte { return lines[7] })
	r := x.run("--json", "--sequence", "no=places", file)
	s := x.expect(r, exitNotStored, 0)
	x.mention(r, file+":150000: refused by the server: E11000")
	if s.Read != cities.Count || s.Refused != 1 || x.counter("places") != cities.Count {
		t.Errorf("%+v, counter at %d", s, x.counter("places"))
	}
	r = x.run("--json", "--sequence", "no=places", x.file("one.ndjson", `{"name":"Alert","lat":"82.50159","lng":"-62.34793"}`))
	if s := x.expect(r, exitStored, 0); s.Numbers[0].First != cities.Count+1 {
		t.Errorf("%+v", s)
	}
}

// JSON lines, a JSON array and CSV of the same places give the same documents.
func TestWorldInEveryFormat(t *testing.T) {
	t.Parallel() // the server takes its time
	files := worldFiles(t)
	x := newTarget(t)
	places := readLines(t, files.Lines)
	if raceDetector { // reading all of them would take minutes
		places = places[:20_000]
		files.Lines = x.file("part.ndjson", string(bytes.Join(places, []byte("\n"))))
		files.Array = x.file("part.json", "["+string(bytes.Join(places, []byte(",\n ")))+"]")
	}
	lines := readAll(t, files.Lines)
	if len(lines) != len(places) {
		t.Fatalf("%d documents, not %d", len(lines), len(places))
	}
	var table strings.Builder
	table.WriteString("name,lat,lng,country,admin1,admin2\n")
	for _, raw := range lines {
		for i, e := range elements(t, raw) {
			if i > 0 {
				table.WriteByte(',')
			}
			table.WriteString(`"` + strings.ReplaceAll(e.Value().StringValue(), `"`, `""`) + `"`)
		}
		table.WriteByte('\n')
	}
	for name, args := range map[string][]string{
		"array": {"--jsonArray", files.Array},
		"CSV":   {"--headerline", x.file("world.csv", table.String())},
		"gzip":  {x.file("world.gz", gzipped(t, string(bytes.Join(places, []byte("\r\n")))))},
	} {
		other := readAll(t, args...)
		if len(other) != len(lines) {
			t.Errorf("%s: %d documents, not %d", name, len(other), len(lines))
			continue
		}
		for i := range lines {
			if !bytes.Equal(other[i], lines[i]) {
				t.Errorf("%s: place %d is %v, not %v", name, i+1, other[i], lines[i])
				break
			}
		}
	}
}

// readAll returns the documents that the program reads with these arguments.
func readAll(t *testing.T, args ...string) []bson.Raw {
	t.Helper()
	o, err := parse(append([]string{"--collection", "c"}, args...), func(string) string { return "" }, nil)
	if err != nil {
		t.Fatal(err)
	}
	in, err := (&program{}).read(t.Context(), o, screen.New("import", &strings.Builder{}))
	defer in.close()
	if err != nil || len(in.problems) > 0 {
		t.Fatal(err, in.problems)
	}
	return in.documents
}

func elements(t *testing.T, raw bson.Raw) []bson.RawElement {
	e, err := raw.Elements()
	if err != nil {
		t.Fatal(err)
	}
	return e
}
