package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// asProgram has a test binary be the program itself, for what only a process of its own can show.
const asProgram = "INTACT_TEST_AS_MIGRATE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	servertest.Main(m)
}

// bench is an empty database, and runs the program with it: from the collection "a" to "b".
type bench struct {
	t      testing.TB
	uri    string
	db     *mongo.Database
	dialer driver.ContextDialer
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchOn(t, servertest.Embedded(t))
}

func benchOn(t testing.TB, server *servertest.Server) *bench {
	t.Helper()
	return &bench{t: t, uri: server.URI, db: server.Database(t, server.Client(t))}
}

// result is what a run of the program gave.
type result struct {
	code           int
	stdout, stderr string
	summary        summary // of --json
}

func (x *bench) args(args ...string) []string {
	return append([]string{"--from-uri", x.uri, "--from-db", x.db.Name(), "--from-collection", "a", "--to-collection", "b", "--lease", "1s"}, args...)
}

func (x *bench) run(args ...string) result {
	x.t.Helper()
	return x.runWith(&program{}, args...)
}

func (x *bench) runWith(p *program, args ...string) result {
	x.t.Helper()
	var stdout, stderr bytes.Buffer
	p.stdout, p.stderr, p.dialer = &stdout, &stderr, x.dialer
	p.env = func(string) string { return "" }
	r := result{code: p.run(context.Background(), x.args(args...))}
	r.stdout, r.stderr = stdout.String(), stderr.String()
	if strings.HasPrefix(r.stdout, "{") {
		if err := json.Unmarshal([]byte(r.stdout), &r.summary); err != nil {
			x.t.Fatalf("%v in %s", err, r.stdout)
		}
	}
	return r
}

// expect runs the program and checks its exit code.
func (x *bench) expect(code int, args ...string) result {
	x.t.Helper()
	r := x.run(args...)
	x.code(r, code)
	return r
}

func (x *bench) code(r result, code int) {
	x.t.Helper()
	if r.code != code {
		x.t.Fatalf("exit code %d instead of %d\n%s\n%s", r.code, code, r.stdout, r.stderr)
	}
}

func (x *bench) mention(r result, texts ...string) {
	x.t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.stderr+r.stdout, text) {
			x.t.Errorf("no word of %q in\n%s\n%s", text, r.stderr, r.stdout)
		}
	}
}

// wire lets the program's connections pass a wire from here on.
func (x *bench) wire() *faultwire.Wire {
	x.t.Helper()
	wire := faultwire.ForTest(x.t)
	x.dialer = wire
	return wire
}

// ns is the namespace of a collection.
func (x *bench) ns(collection string) string { return x.db.Name() + "." + collection }

func (x *bench) insert(collection string, documents ...any) {
	x.t.Helper()
	if _, err := x.db.Collection(collection).InsertMany(x.t.Context(), documents); err != nil {
		x.t.Fatal(err)
	}
}

// fill stores n documents {_id: i, v: "…"} in the source.
func (x *bench) fill(n int) {
	x.t.Helper()
	documents := make([]any, n)
	for i := range documents {
		documents[i] = bson.D{{Key: "_id", Value: i}, {Key: "v", Value: fmt.Sprint("value ", i)}}
	}
	x.insert("a", documents...)
}

// documents returns a collection's documents in the order of _id.
func (x *bench) documents(collection string) []bson.Raw {
	x.t.Helper()
	cursor, err := x.db.Collection(collection).Find(x.t.Context(), bson.D{}, driver.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		x.t.Fatal(err)
	}
	var raws []bson.Raw
	if err := cursor.All(x.t.Context(), &raws); err != nil {
		x.t.Fatal(err)
	}
	return raws
}

// same checks that two collections hold the same bytes.
func (x *bench) same(one, other string) {
	x.t.Helper()
	a, b := x.documents(one), x.documents(other)
	if len(a) != len(b) {
		x.t.Fatalf("%d documents in %s, %d in %s", len(a), one, len(b), other)
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			x.t.Fatalf("document %d is %v in %s and %v in %s", i, a[i], one, b[i], other)
		}
	}
}

func (x *bench) count(collection string) int {
	x.t.Helper()
	n, err := x.db.Collection(collection).CountDocuments(x.t.Context(), bson.D{})
	if err != nil {
		x.t.Fatal(err)
	}
	return int(n)
}

// writes are the commands on a wire that change something.
func writes(wire *faultwire.Wire) []string {
	var all []string
	for _, e := range wire.Events() {
		switch e.Name {
		case faultwire.Find, faultwire.GetMore, faultwire.Aggregate, "count", "listCollections", "killCursors":
		default:
			all = append(all, e.String())
		}
	}
	return all
}
