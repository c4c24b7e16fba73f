package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/examples/import/data"
)

// format is a way to write the built-in places down.
type format struct {
	name, file string
	args       []string
	line       func(place map[string]any) string
	whole      func(lines []string) string
	broken     string // a line that cannot be read
}

var columns = []string{"name", "country", "region", "lat", "lng", "no"}

func formats() []format {
	object := func(place map[string]any) string {
		line, err := json.Marshal(place)
		if err != nil {
			panic(err) // it came from JSON
		}
		return string(line)
	}
	row := func(place map[string]any) string {
		cells := make([]string, len(columns))
		for i, column := range columns {
			if value, there := place[column]; there {
				cells[i] = fmt.Sprint(value)
			}
		}
		var line strings.Builder
		w := csv.NewWriter(&line)
		_ = w.Write(cells) // to memory
		w.Flush()
		return strings.TrimSuffix(line.String(), "\n")
	}
	return []format{
		{"lines", "f.ndjson", nil, object, func(lines []string) string { return strings.Join(lines, "\n") + "\n" }, `{"name":}`},
		{"array", "f.json", []string{"--jsonArray"}, object, func(lines []string) string { return "[" + strings.Join(lines, ",\n") + "]\n" }, `{"name" "x"}`},
		{"CSV", "f.csv", []string{"--headerline", "--ignoreBlanks"}, row, func(lines []string) string {
			return strings.Join(columns, ",") + "\n" + strings.Join(lines, "\n") + "\n"
		}, `a"b,DK`},
	}
}

func builtInPlaces(t *testing.T) []map[string]any {
	t.Helper()
	var places []map[string]any
	for line := range strings.Lines(string(data.Places)) {
		var place map[string]any
		if err := json.Unmarshal([]byte(line), &place); err != nil {
			t.Fatal(err)
		}
		places = append(places, place)
	}
	return places
}

// Whatever is wrong with one of the built-in places, and wherever it stands in a file of whichever format, none is stored.
func TestOneFaultInEveryFormat(t *testing.T) {
	places := builtInPlaces(t)
	last := len(places) - 1
	for _, f := range formats() {
		for _, fault := range []struct {
			name string
			says string
			line func(at int) string
		}{
			{"syntax", f.file, func(int) string { return f.broken }},
			{"duplicate", "refused by the server", func(at int) string { return f.line(places[(at+1)%len(places)]) }},
			{"validation", "no", func(at int) string {
				numbered := map[string]any{"no": "A-17"}
				for k, v := range places[at] {
					numbered[k] = v
				}
				return f.line(numbered)
			}},
		} {
			for _, at := range []int{0, last / 2, last} {
				t.Run(fmt.Sprintf("%s/%s/%d", f.name, fault.name, at), func(t *testing.T) {
					lines := make([]string, len(places))
					for i, place := range places {
						lines[i] = f.line(place)
					}
					lines[at] = fault.line(at)
					importNothing(t, f, f.whole(lines), fault.says)
				})
			}
		}
		t.Run(f.name+"/cut", func(t *testing.T) {
			lines := make([]string, len(places))
			for i, place := range places {
				lines[i] = f.line(place)
			}
			whole := f.whole(lines)
			cut := strings.TrimRight(whole, "]\n")
			if f.name == "CSV" { // a row that ends anywhere is a row; one that ends within quotes is not
				cut = whole + `"Aal`
			} else {
				cut = cut[:len(cut)-5]
			}
			importNothing(t, f, cut, f.file)
		})
	}
}

// importNothing imports a file that has to fail and to leave nothing.
func importNothing(t *testing.T, f format, contents, says string) {
	t.Helper()
	x := newTarget(t)
	_, err := x.db.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: "name", Value: 1}, {Key: "lat", Value: 1}, {Key: "lng", Value: 1}}, Options: driver.Index().SetUnique(true)})
	if err != nil {
		t.Fatal(err)
	}
	r := x.run(append(append([]string{"--sequence", "no=places"}, f.args...), x.file(f.file, contents))...)
	x.expect(r, exitNotStored, 0)
	x.mention(r, says, "NOT STORED")
}

// An import that is killed leaves something, which recovery deletes, from a file of whichever format.
func TestKilledInEveryFormat(t *testing.T) {
	places := builtInPlaces(t)
	for _, f := range formats() {
		t.Run(f.name, func(t *testing.T) {
			var lines []string
			for range 20 {
				for _, place := range places {
					lines = append(lines, f.line(place))
				}
			}
			x := newTarget(t)
			args := append([]string{"--uri", x.uri, "--db", x.db.Name(), "--collection", "c", "--journal", "j", "--lease", "1s"}, f.args...)
			c := command(t.Context(), append(args, x.file(f.file, f.whole(lines)))...)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(2 * time.Minute); x.count() < 2000; {
				if time.Now().After(deadline) {
					t.Fatal("nothing was stored in time")
				}
			}
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait() // it was killed
			if left := x.count(); left < 2000 || left == int64(len(lines)) {
				t.Fatalf("%d documents: the test shows nothing", left)
			}
			x.expect(x.run("--recover", "--journal", "j"), exitStored, 0)
		})
	}
}
