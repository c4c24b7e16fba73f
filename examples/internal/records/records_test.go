package records

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// outcome is all that a text gives: documents as canonical Extended JSON, and problems as text.
func outcome(t *testing.T, text string, format Format, table Table) (documents, places, problems []string) {
	t.Helper()
	r, err := Open("f", strings.NewReader(text), format, table)
	for record, err := range all(r, err) {
		var problem *Problem
		switch {
		case err == nil:
			if err := record.Document.Validate(); err != nil {
				t.Errorf("invalid BSON: %v", err)
			}
			canonical, err := bson.MarshalExtJSON(record.Document, true, false)
			if err != nil {
				t.Fatal(err)
			}
			documents = append(documents, string(canonical))
			places = append(places, record.Position.String())
		case errors.As(err, &problem):
			problems = append(problems, problem.Error())
		default:
			t.Fatalf("not a problem of the text: %v", err)
		}
	}
	return documents, places, problems
}

// all iterates over what a reader returns, up to its end.
func all(r Reader, err error) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if err != nil {
			yield(Record{}, err)
			return
		}
		for {
			record, err := r.Next()
			var problem *Problem
			if errors.Is(err, io.EOF) && !errors.As(err, &problem) {
				return
			}
			if !yield(record, err) || err != nil && !errors.As(err, &problem) || problem != nil && problem.Last {
				return
			}
		}
	}
}

// expect compares the outcome. A wanted problem is a beginning and, behind "…", parts that follow somewhere.
func expect(t *testing.T, text string, format Format, table Table, wantDocuments, wantPlaces, wantProblems []string) {
	t.Helper()
	documents, places, problems := outcome(t, text, format, table)
	if fmt.Sprintf("%q", documents) != fmt.Sprintf("%q", wantDocuments) {
		t.Errorf("documents\n got %v\nwant %v", documents, wantDocuments)
	}
	if wantPlaces != nil && fmt.Sprint(places) != fmt.Sprint(wantPlaces) {
		t.Errorf("places\n got %v\nwant %v", places, wantPlaces)
	}
	if len(problems) != len(wantProblems) {
		t.Fatalf("problems\n got %q\nwant %q", problems, wantProblems)
	}
	for i, want := range wantProblems {
		beginning, rest, _ := strings.Cut(want, "…")
		if !strings.HasPrefix(problems[i], beginning) || !strings.Contains(problems[i], rest) {
			t.Errorf("problem %d\n got %s\nwant %s", i, problems[i], want)
		}
	}
}

func TestLines(t *testing.T) {
	one, two := `{"a":{"$numberInt":"1"}}`, `{"b":{"$numberInt":"2"}}`
	for _, c := range []struct {
		name, text                  string
		documents, places, problems []string
	}{
		{"nothing", "", nil, nil, nil},
		{"only space", " \n\t\r\n\n", nil, nil, nil},
		{"plain", "{\"a\":1}\n{\"b\":2}\n", []string{one, two}, []string{"f:1", "f:2"}, nil},
		{"no line break at the end", "{\"a\":1}\n{\"b\":2}", []string{one, two}, []string{"f:1", "f:2"}, nil},
		{"CR LF", "{\"a\":1}\r\n{\"b\":2}\r\n", []string{one, two}, []string{"f:1", "f:2"}, nil},
		{"blank lines count as lines only", "\n{\"a\":1}\n\n  \t\n{\"b\":2}\n\n", []string{one, two}, []string{"f:2", "f:5"}, nil},
		{"space around", "  {\"a\" : 1 }  \n\t{\"b\":2}\n", []string{one, two}, []string{"f:1", "f:2"}, nil},
		{"byte-order mark", "\xEF\xBB\xBF{\"a\":1}\n{\"b\":2}\n", []string{one, two}, []string{"f:1", "f:2"}, nil},
		{"byte-order mark alone", "\xEF\xBB\xBF", nil, nil, nil},
		{"byte-order mark in the middle", "{\"a\":1}\n\xEF\xBB\xBF{\"b\":2}\n", []string{one}, nil, []string{"f:2: a byte-order mark in the middle"}},
		{"UTF-16", "\xFF\xFE{\x00}\x00\n\x00", nil, nil, []string{"f:1: the file is UTF-16"}},
		{"UTF-16, the other way round", "\xFE\xFF\x00{\x00}", nil, nil, []string{"f:1: the file is UTF-16"}},
		{"UTF-16 without a mark", "{\x00}\x00\n\x00", nil, nil, []string{"f:1:2: …UTF-16, or not text", "f:2:1: …UTF-16"}},
		{"cut in the last document", "{\"a\":1}\n{\"b\":\"x", []string{one}, nil, []string{"f:2:8: the file ends in the middle of a document"}},
		{"cut in another document", "{\"b\":\n{\"a\":1}\n", []string{one}, []string{"f:2"}, []string{"f:1:6: the line ends in the middle of a document"}},
		{"two on a line", "{\"a\":1} {\"b\":2}\n{\"b\":2}\n", []string{two}, []string{"f:2"}, []string{"f:1:9: something follows the document"}},
		{"an array", "[{\"a\":1},\n{\"b\":2}]\n", nil, nil, []string{"f:1: the file begins as a JSON array"}},
		{"no document", "5\n\"x\"\nnull\n[]\n", nil, nil, []string{"f:1:1: a document", "f:2:1: a document", "f:3:1: a document", "f:4:1: a document"}},
		{"columns are characters", "{\"ä\":\"日本\",x}\n", nil, nil, []string{"f:1:11: "}},
		{"all bad lines are found", "{\"a\":1}\nx\n{\"b\":2}\ny\n", []string{one, two}, []string{"f:1", "f:3"}, []string{"f:2:1: ", "f:4:1: "}},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.text, Lines, Table{}, c.documents, c.places, c.problems) })
	}
}

// A line is not bounded by what happens to be a buffer's size, only by what MongoDB stores.
func TestLineLength(t *testing.T) {
	t.Parallel()
	line := func(size int) string { return `{"s":"` + strings.Repeat("x", size-len(`{"s":""}`)) + `"}` }
	const largest = MaxDocument - 13 // the other bytes of {s: "…"}
	for _, c := range []struct {
		name string
		text string
		bad  string
	}{
		{"200 KB", line(200_000), ""},
		{"the largest document", `{"s":"` + strings.Repeat("x", largest) + `"}`, ""},
		{"a byte more", `{"s":"` + strings.Repeat("x", largest+1) + `"}`, "f:2: the document has 16777217 bytes as BSON"},
		{"17 MB", line(17_000_000), "f:2: the document has 17000005 bytes as BSON (17000000 as text); MongoDB stores 16777216 at most"},
		{"more text than a document can have", strings.Repeat(" ", MaxText+1), "f:2: the text of a document has 100663299 bytes; 100663296 is the most"},
		{"a line as long as the buffer", line(64 << 10), ""},
		{"its end in the next buffer", line(64<<10 - 1), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Open("f", strings.NewReader("{\"a\":1}\n"+c.text+"\r\n{\"b\":2}\n"), Lines, Table{})
			var good int
			var problems []string
			for record, err := range all(r, err) {
				if err != nil {
					problems = append(problems, err.Error())
					continue
				}
				good++
				if record.Position.Line != good+len(problems) {
					t.Errorf("record %d is said to be in line %d", good, record.Position.Line)
				}
			}
			want := 3
			if c.bad != "" {
				want = 2
			}
			if good != want || len(problems) != 3-want || c.bad != "" && !strings.HasPrefix(problems[0], c.bad) {
				t.Errorf("%d documents, problems %q; want %d and %q", good, problems, want, c.bad)
			}
		})
	}
}

func TestArray(t *testing.T) {
	one, two := `{"a":{"$numberInt":"1"}}`, `{"b":{"$numberInt":"2"}}`
	for _, c := range []struct {
		name, text                  string
		documents, places, problems []string
	}{
		{"nothing", "", nil, nil, nil},
		{"only space", " \n", nil, nil, nil},
		{"empty", "[]", nil, nil, nil},
		{"empty, with space", "\xEF\xBB\xBF [ \n ] \n", nil, nil, nil},
		{"on one line", `[{"a":1}, {"b":2}]`, []string{one, two}, []string{"f:1:2", "f:1:11"}, nil},
		{"pretty", "[\r\n  {\r\n    \"a\": 1\r\n  },\r\n\r\n  {\r\n    \"b\": 2\r\n  }\r\n]\r\n", []string{one, two}, []string{"f:2:3", "f:6:3"}, nil},
		{"columns are characters", `[{"ä":"日本","a":1}, {"b":2}, {"b":x}]`, []string{`{"ä":"日本","a":{"$numberInt":"1"}}`, two}, []string{"f:1:2", "f:1:20"}, []string{"f:1:34: "}},
		{"characters after a line break within a document", "[{\n\"ä\":\"日本\"}, {\"b\":2}]", []string{`{"ä":"日本"}`, two}, []string{"f:1:2", "f:2:12"}, nil},
		{"twice the same name", "[{\"a\":1},\n{\"a\":1,\n \"a\":2},\n{\"b\":2}]", []string{one, two}, []string{"f:1:2", "f:4:1"}, []string{"f:3:2: the field \"a\" stands twice"}},
		{"a bad value", "[{\"a\":1},\n{\"x\":{\"$oid\":\"5\"}},\n{\"b\":2}]", []string{one, two}, nil, []string{"f:2:6: not a valid $oid"}},
		{"not a document", "[{\"a\":1},5,{\"b\":2}]", []string{one, two}, nil, []string{"f:1:10: a document is expected"}},
		{"not an array", "{\"a\":1}\n{\"b\":2}\n", nil, nil, []string{"f:1: the file does not begin as a JSON array"}},
		{"cut", "[{\"a\":1},\n{\"b\":", []string{one}, nil, []string{"f:2:6: the file ends in the middle of the array"}},
		{"cut behind a document", "[{\"a\":1},\n{\"b\":2}", []string{one, two}, nil, []string{"f:2:8: the file ends in the middle of the array"}},
		{"no comma", "[{\"a\":1}\n{\"b\":2}]", []string{one}, nil, []string{"f:2:1: "}},
		{"a comma too many", "[{\"a\":1},]", []string{one}, nil, []string{"f:1:9: "}},
		{"something behind", "[{\"a\":1}]\n{\"b\":2}", []string{one}, nil, []string{"f:1:10: something follows the end of the array"}},
		{"bad JSON ends it", "[{\"a\":1},\n{\"b\":nope},\n{\"b\":2}]", []string{one}, nil, []string{"f:2:7: "}},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.text, Array, Table{}, c.documents, c.places, c.problems) })
	}
}

func TestArrayIsBounded(t *testing.T) {
	t.Parallel()
	r, err := Open("f", io.MultiReader(strings.NewReader("[{\"a\":1},\n{\"b\":\""), endless{}), Array, Table{})
	var problems []string
	good := 0
	for _, err := range all(r, err) {
		if err == nil {
			good++
		} else {
			problems = append(problems, err.Error())
		}
	}
	if good != 1 || len(problems) != 1 || !strings.HasPrefix(problems[0], "f:1:9: the text of a document has more than") {
		t.Errorf("%d documents, problems %q", good, problems)
	}
}

// endless is a text without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// An error of the file is not taken for its end, wherever it comes.
func TestFileError(t *testing.T) {
	broken := errors.New("the disk is gone")
	for _, format := range []Format{Lines, Array, CSV, TSV} {
		for _, text := range []string{"", "[", "[{\"a\":1},\n", "{\"a\":1}\n", "{\"a\":1", "a,b\n1,2\n", "a,b\n1"} {
			r, err := Open("f", io.MultiReader(strings.NewReader(text), failing{broken}), format, Table{})
			var last error
			for _, err := range all(r, err) {
				last = err
			}
			var problem *Problem
			if errors.As(last, &problem) && problem.Last {
				continue // the text was bad before
			}
			if !errors.Is(last, broken) {
				t.Errorf("%v %q: %v", format, text, last)
			}
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
