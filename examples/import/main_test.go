package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/servertest"
)

// asProgram has a test binary be the program itself, for what only a process of its own can show.
const asProgram = "INTACT_TEST_AS_IMPORT"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	servertest.Main(m)
}

// target is an empty database, and runs the program with it.
type target struct {
	t      testing.TB
	uri    string
	db     *mongo.Database
	dir    string
	dialer driver.ContextDialer
}

func newTarget(t testing.TB) *target {
	t.Helper()
	server := servertest.Embedded(t)
	return &target{t: t, uri: server.URI, db: server.Database(t, server.Client(t)), dir: t.TempDir()}
}

// result is what a run of the program gave.
type result struct {
	code           int
	stdout, stderr string
}

// run imports into the collection "c".
func (x *target) run(args ...string) result {
	x.t.Helper()
	return x.runWith(&program{}, args...)
}

func (x *target) runWith(p *program, args ...string) result {
	x.t.Helper()
	var stdout, stderr bytes.Buffer
	if p.stdin == nil {
		p.stdin = strings.NewReader("")
	}
	p.stdout, p.stderr, p.dialer = &stdout, &stderr, x.dialer
	p.env = func(string) string { return "" }
	args = append([]string{"--uri", x.uri, "--db", x.db.Name(), "--collection", "c", "--leftovers", filepath.Join(x.dir, "left")}, args...)
	code := p.run(context.Background(), args)
	return result{code, stdout.String(), stderr.String()}
}

// file writes a file.
func (x *target) file(name, contents string) string {
	x.t.Helper()
	path := filepath.Join(x.dir, name)
	if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
		x.t.Fatal(err)
	}
	return path
}

// documents returns the collection's documents as relaxed Extended JSON in the order of _id, without the _id values that
// an import made.
func (x *target) documents() []string {
	x.t.Helper()
	cursor, err := x.db.Collection("c").Find(x.t.Context(), bson.D{}, driver.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		x.t.Fatal(err)
	}
	var raws []bson.Raw
	if err := cursor.All(x.t.Context(), &raws); err != nil {
		x.t.Fatal(err)
	}
	texts := make([]string, len(raws))
	for i, raw := range raws {
		text, err := bson.MarshalExtJSON(raw, false, false)
		if err != nil {
			x.t.Fatal(err)
		}
		texts[i] = ownID.ReplaceAllString(string(text), "{")
	}
	return texts
}

var ownID = regexp.MustCompile(`^\{"_id":\{"\$oid":"[0-9a-f]{24}"\},?`)

func (x *target) count() int64 {
	x.t.Helper()
	n, err := x.db.Collection("c").CountDocuments(x.t.Context(), bson.D{})
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}

// counter returns the last number that a counter gave out, or 0 if it does not exist.
func (x *target) counter(name string) int64 {
	x.t.Helper()
	var document struct{ Seq int64 }
	err := x.db.Collection("counters").FindOne(x.t.Context(), bson.D{{Key: "_id", Value: name}}).Decode(&document)
	if err != nil && err != mongo.ErrNoDocuments {
		x.t.Fatal(err)
	}
	return document.Seq
}

// expect checks the exit code, and that the counts of the JSON summary, if there is one, add up and agree with the
// collection; before is how many documents were there.
func (x *target) expect(r result, code int, before int64) summary {
	x.t.Helper()
	if r.code != code {
		x.t.Fatalf("exit code %d instead of %d\n%s\n%s", r.code, code, r.stdout, r.stderr)
	}
	var s summary
	if strings.HasPrefix(r.stdout, "{") {
		var got struct {
			summary
			Problems []struct {
				File, Text   string
				Line, Column int
			}
		}
		if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
			x.t.Fatalf("%v in %s", err, r.stdout)
		}
		s = got.summary
		if s.Read != s.Stored+s.Refused+s.NotStored {
			x.t.Errorf("the counts do not add up: %s", r.stdout)
		}
		if names := map[int]string{0: "stored", 1: "not stored", 3: "incomplete"}; s.Result != names[code] && s.Result != "checked" {
			x.t.Errorf("result %q with code %d", s.Result, code)
		}
		if n := x.count(); code != exitIncomplete && n != before+int64(s.Stored) {
			x.t.Errorf("%d documents before, %d stored, %d after", before, s.Stored, n)
		}
	}
	if code == exitNotStored && x.count() != before {
		x.t.Errorf("%d documents before and %d after: %s", before, x.count(), r.stderr)
	}
	return s
}

func (x *target) mention(r result, texts ...string) {
	x.t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.stderr, text) {
			x.t.Errorf("no word of %q in\n%s", text, r.stderr)
		}
	}
}

// ndjson returns n documents {"v":1}, {"v":2}, …, those of change instead of the ones in their lines.
func ndjson(n int, change map[int]string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if line, changed := change[i]; changed {
			b.WriteString(line)
		} else {
			fmt.Fprintf(&b, `{"v":%d}`, i)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (x *target) insert(documents ...any) {
	x.t.Helper()
	if _, err := x.db.Collection("c").InsertMany(x.t.Context(), documents); err != nil {
		x.t.Fatal(err)
	}
}

func (x *target) unique(field string) {
	x.t.Helper()
	_, err := x.db.Collection("c").Indexes().CreateOne(x.t.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: field, Value: 1}}, Options: driver.Index().SetUnique(true)})
	if err != nil {
		x.t.Fatal(err)
	}
}
