package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	world "github.com/intact-go/intact/examples/internal/cities"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/internal/localmongo"
	"github.com/intact-go/intact/internal/servertest"
)

// Without arguments the program shows, on a server of its own, that it keeps what it promises, in lines that fit a screen.
func TestDemo(t *testing.T) {
	t.Setenv(localmongo.EnvURI, servertest.Embedded(t).URI) // saves starting another one, and covers the clean-up
	var stdout, stderr bytes.Buffer
	p := &program{stdout: &stdout, stderr: &stderr}
	if code := p.run(t.Context(), nil); code != exitStored {
		t.Fatalf("code %d\n%s\n%s", code, stdout.String(), stderr.String())
	}
	for _, want := range []string{
		"GeoNames", "CC BY 4.0",
		"There are 0 cities and 0 countries now.",
		"There are 2,759 cities and 7 countries now.",
		"already done, nothing was written now",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no word of %q in\n%s", want, stdout.String())
		}
	}
	for _, want := range []string{"it has no country", "NOT STORED, nothing of it is in the target"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no word of %q in\n%s", want, stderr.String())
		}
	}
	for line := range strings.Lines(stdout.String() + stderr.String()) {
		if len([]rune(line)) > 81 {
			t.Errorf("too wide: %s", line)
		}
	}
	names, err := servertest.Embedded(t).Client(t).ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: "^demo_"}}}})
	if err != nil || len(names) > 0 {
		t.Errorf("databases are left: %v, %v", names, err)
	}
}

// The demo ends when it is told to, and cleans up.
func TestDemoInterrupted(t *testing.T) {
	t.Setenv(localmongo.EnvURI, servertest.Embedded(t).URI)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	p := &program{stdout: &stdout, stderr: &stderr}
	if code := p.run(ctx, nil); code != exitNotStored {
		t.Errorf("code %d\n%s\n%s", code, stdout.String(), stderr.String())
	}
}

// Every city refers to a country that is there, to its own, and all numbers are there once, from 1 on.
func TestSplit(t *testing.T) {
	checkSplit(t, builtIn())
}

// The same with all places of the world.
func TestSplitWorld(t *testing.T) {
	if raceDetector {
		t.Skip("it would take minutes")
	}
	files, err := world.Find()
	if err != nil {
		t.Skip(err)
	}
	lines, err := os.ReadFile(files.Lines)
	if err != nil {
		t.Fatal(err)
	}
	checkSplit(t, places{lines, "%d places of the world"})
}

func checkSplit(t *testing.T, found places) {
	x := newBench(t)
	source := x.db.Collection("places")
	put, err := batch.New(batch.Config{Stamp: batch.StampNone}).Insert(t.Context(), batch.Stream(source, found.documents(0)))
	if err != nil {
		t.Fatal(err)
	}
	n := put.Inserted

	// A dry run writes nothing, and takes no numbers.
	before := x.collections()
	show := screen.New("migrate", &strings.Builder{})
	if s := newSplit(source).DryRun(t.Context(), show); s.code() != exitStored || s.feed.read != n || !slices.Equal(x.collections(), before) {
		t.Fatalf("%+v", s)
	}
	s := newSplit(source).Run(t.Context(), show)
	if s.code() != exitStored || s.feed.read != n || s.Targets[cities].Counted != n || s.Stored != n+s.Targets[countries].Counted {
		t.Fatalf("%+v", s)
	}

	codes := make(map[int64]string)
	each(t, x.db.Collection("countries"), func(raw bson.Raw) {
		code, no := raw.Lookup("_id").StringValue(), raw.Lookup("no").Int64()
		if codes[no] != "" {
			t.Fatalf("two countries have the number %d", no)
		}
		codes[no] = code
	})
	key := func(raw bson.Raw, country string) string {
		return raw.Lookup("name").StringValue() + "/" + raw.Lookup("lat").String() + "/" + raw.Lookup("lng").String() + "/" + country
	}
	expected := make(map[string]int)
	each(t, source, func(raw bson.Raw) { expected[key(raw, raw.Lookup("country").StringValue())]++ })
	seen := make([]bool, n+1)
	each(t, x.db.Collection("cities"), func(raw bson.Raw) {
		no := raw.Lookup("no").Int64()
		if no < 1 || no > int64(n) || seen[no] {
			t.Fatalf("number %d is out of range or there twice", no)
		}
		seen[no] = true
		expected[key(raw, codes[raw.Lookup("countryNo").Int64()])]--
		if _, err := raw.LookupErr("_migration"); err == nil {
			t.Fatalf("a mark is left: %v", raw)
		}
	})
	for place, left := range expected {
		if left != 0 {
			t.Errorf("%s: %d too few", place, left)
		}
	}
	for no := range int64(len(codes)) {
		if codes[no+1] == "" {
			t.Errorf("country number %d is missing", no+1)
		}
	}
	if s := newSplit(source).Run(t.Context(), show); !s.Replayed || s.Stored != n+len(codes) {
		t.Errorf("%+v", s)
	}
}

func each(t *testing.T, coll *mongo.Collection, f func(bson.Raw)) {
	t.Helper()
	cursor, err := coll.Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	defer cursor.Close(t.Context())
	for cursor.Next(t.Context()) {
		f(cursor.Current)
	}
	if err := cursor.Err(); err != nil {
		t.Fatal(err)
	}
}
