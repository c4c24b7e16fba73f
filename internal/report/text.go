package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// The table in the README stands between these lines.
const (
	begin = "<!-- measured: go run ./internal/report -write -->"
	end   = "<!-- end of what was measured -->"
)

// costTable writes the comparisons as Markdown; short leaves out what only docs/measured.md has.
func costTable(costs []cost, short bool) string {
	var s strings.Builder
	s.WriteString("| what | server | measured | aim |\n| --- | --- | --- | --- |\n")
	for _, c := range costs {
		if !short || c.short {
			fmt.Fprintf(&s, "| %s | %s | %s | %s |\n", c.what, c.server, c.ratio, c.aim)
		}
	}
	return s.String()
}

// replace puts text between the two lines of a file.
func replace(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), begin+"\n")
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s has no lines %q and %q", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+text+end+after), 0o644)
}

// document is docs/measured.md.
func document(s settings, costs []cost, curves []curve, counters []counterRow) string {
	var d strings.Builder
	fmt.Fprintf(&d, `# What was measured

Written by `+"`go run ./internal/report -write`"+`: all in one run, %d documents a batch, in chunks of %d, %d at a time, %d rounds
taking turns, the median of the rounds' ratios; %s/%s, %d CPUs shared by the servers and their clients. Absolute times mean
nothing elsewhere; ratios travel better. "embedded" is FerretDB on SQLite. The simulator runs in the client's process and
does next to nothing for a document, so that there the client's own work weighs most; on a server across a network it weighs
least.

## Costs

%s
## The floor

A batch gives every document its _id before it sends it, so that it can take it back. For a document that has an _id, the
driver (v2.10.0) reads the _id back out of the encoded document, through a reader with a buffer of 4 KiB of its own
(mongo.ensureID), and encodes what is encoded already once more (mongo.marshal). Of the time of an Insert of 100,000 small
documents into the simulator that keeps nothing, a profile showed 30%% in the one (23%% in making the buffers), 20%% in the
other, 11%% in encoding the documents in the first place, 10%% in the simulator and 12%% in collecting the garbage. The line "for
comparison" above has what that costs without the library. Commands that the library would send past the driver's insert
could avoid it, but not be repeated and fenced as the driver's are.

On FerretDB 1.24 a delete reads the whole collection, whatever its filter, and compares each document with each _id of the
filter: rollbacks take longer there than inserts, and those of claimed ids grow with the square of their number.

## Documents a second, by the size of the batch

On the embedded server. One by one is a goroutine for each document, with a findAndModify for its number.

![Throughput by batch size](throughput.svg)

`, s.documents, chunk, concurrency, s.rounds, runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), costTable(costs, false))
	d.WriteString("| documents |")
	for _, c := range curves {
		d.WriteString(" " + c.name + " |")
	}
	d.WriteString("\n| ---: |" + strings.Repeat(" ---: |", len(curves)) + "\n")
	for i, n := range sizes {
		fmt.Fprintf(&d, "| %d |", n)
		for _, c := range curves {
			if i < len(c.points) {
				fmt.Fprintf(&d, " %.0f/s |", c.points[i].perSecond)
			} else {
				d.WriteString(" |")
			}
		}
		d.WriteString("\n")
	}
	fmt.Fprintf(&d, `
## Many clients on one sequence

Numbers a second, taken from one sequence by so many clients, in a model: the simulator, on which each write of a document
takes %s, and writes of the same document wait for each other. Real servers have other costs, and those of a hot document
grow with the number of clients; what carries over is which way is bound by the document, and which is not.

| |`, conflictCost)
	for _, n := range clientCounts {
		fmt.Fprintf(&d, " %d |", n)
	}
	d.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(clientCounts)) + "\n")
	for _, row := range counters {
		fmt.Fprintf(&d, "| %s |", row.way)
		for _, perSecond := range row.at {
			fmt.Fprintf(&d, " %.0f |", perSecond)
		}
		d.WriteString("\n")
	}
	return d.String()
}
