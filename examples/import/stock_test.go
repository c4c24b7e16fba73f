package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/examples/internal/job"
)

// small is so little memory that a temporary file is needed.
const small = 5000

// What does not fit into memory is imported just the same, and no temporary file is left.
func TestMoreThanMemory(t *testing.T) {
	const n = 5000
	x := newTarget(t)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	s := x.expect(x.runWith(&program{memory: small, stdin: strings.NewReader(ndjson(n, nil))}, "--json", "--sequence", "no=s"), exitStored, 0)
	if s.Read != n || s.Stored != n || len(s.Numbers) != 1 || s.Numbers[0] != (job.Numbers{Sequence: "s", First: 1, Last: n, Count: n}) {
		t.Errorf("%+v", s)
	}
	numbers := make(map[string]bool)
	for _, text := range x.documents() {
		numbers[text] = true
	}
	for i := 1; i <= n; i++ {
		if !numbers[fmt.Sprintf(`{"v":%d,"no":%d}`, i, i)] {
			t.Fatalf("document %d does not have number %d", i, i)
		}
	}
	// Others that take numbers meanwhile leave gaps, of which the summary knows.
	sequence := job.Sequence{Name: "s", Start: 1, Step: 1}
	c := job.NewCounter(x.db.Collection("counters"), sequence, nil)
	for i := range 3 {
		if i == 2 {
			job.NewCounter(x.db.Collection("counters"), sequence, nil).Reserve(t.Context(), 10)
		}
		if _, err := c.Reserve(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		if c.Got.Gaps != (i == 2) || c.Got.Count != 5*(i+1) || c.Got.First != n+1 {
			t.Errorf("%+v", c.Got)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

// A bad record anywhere in a file that does not fit into memory is found and named, most of them before anything is sent.
func TestMoreThanMemoryAndOneIsBad(t *testing.T) {
	const n = 5000
	for _, c := range []struct {
		name, bad, says string
		sent            bool
	}{
		{"cut", `{"v":"x`, "in the middle of a document", false},
		{"an _id like a query", `{"_id":{"$gt":""}}`, "_id", false},
		{"the number's field is taken", `{"no":"A-17"}`, "no", false},
		{"an _id that is taken", `{"_id":"theirs"}`, "refused by the server", true},
	} {
		for _, line := range []int{1, 3333, n} {
			t.Run(fmt.Sprintf("%s, line %d", c.name, line), func(t *testing.T) {
				x := newTarget(t)
				x.insert(bson.D{{Key: "_id", Value: "theirs"}, {Key: "v", Value: -1}})
				temporary := t.TempDir()
				t.Setenv("TMPDIR", temporary)
				file := x.file("f.ndjson", ndjson(n, map[int]string{line: c.bad}))
				r := x.runWith(&program{memory: small}, "--json", "--sequence", "no=s", file)
				s := x.expect(r, exitNotStored, 1)
				x.mention(r, fmt.Sprintf("%s:%d", file, line), c.says)
				if s.Read != n || s.Refused != 1 || s.NotStored != n-1 {
					t.Errorf("%+v", s)
				}
				if used := x.counter("s"); !c.sent && used != 0 || c.sent && used < int64(line) {
					t.Errorf("the counter is at %d", used)
				}
				if got := x.documents(); !slices.Equal(got, []string{`{"_id":"theirs","v":-1}`}) {
					t.Errorf("%q", got)
				}
				if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
					t.Errorf("temporary files are left: %v, %v", left, err)
				}
			})
		}
	}
}

// All that is bad is told in one run and in the order of the files, whoever found it.
func TestProblemsInOrder(t *testing.T) {
	for _, memory := range []int{small, 0} {
		x := newTarget(t)
		one := x.file("1.ndjson", ndjson(2000, map[int]string{5: `{"_id":{"$gt":1}}`, 1500: "{", 1990: `{"no":"x"}`}))
		two := x.file("2.ndjson", ndjson(2000, map[int]string{2: "{", 7: `{"no":"x"}`, 1999: `{"_id":[1]}`, 2000: "}"}))
		for _, args := range [][]string{{"--json"}, {"--json", "--dry-run"}} {
			r := x.runWith(&program{memory: memory}, append(args, "--sequence", "no=s", two, one)...)
			if s := x.expect(r, exitNotStored, 0); s.Read != 4000 || s.Refused != 7 {
				t.Errorf("%+v", s)
			}
			var places []string
			for _, line := range strings.Split(r.stderr, "\n") {
				if _, rest, ok := strings.Cut(line, x.dir+"/"); ok {
					name, rest, _ := strings.Cut(rest, ":")
					number, _, _ := strings.Cut(rest, ":")
					places = append(places, name+":"+number)
				}
			}
			const want = "[2.ndjson:2 2.ndjson:7 2.ndjson:1999 2.ndjson:2000 1.ndjson:5 1.ndjson:1500 1.ndjson:1990]"
			if got := fmt.Sprint(places); got != want {
				t.Errorf("%s\n%s\n%s", got, want, r.stderr)
			}
		}
	}
}

// Without room for a temporary file nothing is stored.
func TestNoTemporaryFile(t *testing.T) {
	x := newTarget(t)
	file := x.file("f.ndjson", ndjson(5000, nil))
	t.Setenv("TMPDIR", x.dir+"/nowhere")
	r := x.runWith(&program{memory: small}, "--json", "--sequence", "no=s", file)
	x.expect(r, exitNotStored, 0)
	x.mention(r, "no temporary file")
}
