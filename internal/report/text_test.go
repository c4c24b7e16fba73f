package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Only what stands between the two lines is replaced, and a file without them is left alone.
func TestReplace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + begin + "\nold\n" + end + "\nafter\n")
	for range 2 {
		if err := replace(file, "| new |\n"); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != "before\n"+begin+"\n| new |\n"+end+"\nafter\n" {
			t.Errorf("the file is now %q, %v", text, err)
		}
	}
	write("nothing to replace\n")
	if err := replace(file, "new"); err == nil {
		t.Error("a file without the lines was accepted")
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "nothing to replace\n" {
		t.Errorf("the file is now %q, %v", text, err)
	}
}

// The README has the place for the table.
func TestReadmeHasThePlace(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), begin+"\n") != 1 || strings.Count(string(text), end+"\n") != 1 {
		t.Errorf("the README needs the lines %q and %q", begin, end)
	}
}

// The picture is XML, with every curve and point.
func TestPicture(t *testing.T) {
	curves := []curve{
		{"one", []point{{1, 100}, {10, 1_000}, {100_000, 90_000}}},
		{"two & three", []point{{1, 50}, {1_000, 700}}},
	}
	elements := make(map[string]int)
	decoder := xml.NewDecoder(strings.NewReader(picture(curves)))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, is := token.(xml.StartElement); is {
			elements[start.Name.Local]++
		}
	}
	if elements["polyline"] != 2 || elements["circle"] != 5 {
		t.Errorf("elements: %v", elements)
	}
}

// Of several rounds the median ratio counts.
func TestRatio(t *testing.T) {
	c := comparison{
		ours:   []sample{{3 * time.Second, 30}, {time.Second, 10}, {90 * time.Second, 20}},
		theirs: []sample{{2 * time.Second, 10}, {time.Second, 10}, {time.Second, 10}},
	}
	if c.ratio() != 1.5 || c.allocRatio() != 2 {
		t.Errorf("the ratios are %v and %v", c.ratio(), c.allocRatio())
	}
}
