package main

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/idgen"
)

// The targets of the split.
const (
	cities = iota
	countries
)

// split is the transform of the demo: it makes two collections of one. A place
//
//	{_id: …, name: "Oulu", country: "FI", lat: 65.01236, lng: 25.46816}
//
// becomes a city that refers to its country by number, and the first place of each country makes the country too:
//
//	{name: "Oulu", countryNo: 2, lat: 65.01236, lng: 25.46816}
//	{_id: "FI", no: 2}
//
// The city gets a new _id, because it is another thing than the place: copy the element to keep it. (An _id that the batch
// makes is one of a range, so that a large batch is undone by a few deletes; those that are kept are deleted a thousand at a
// time, which takes long on servers without an index for that, such as FerretDB.)
//
// The city's own number, no, is put in by the batch (Part.Number) as with --sequence, when the city is about to be sent. For
// the country that would be too late: its number has to be in the cities as well. So the split takes it out of the sequence
// itself when it sees the country for the first time, and writes it into both. That costs one round trip for each
// country. If the batch fails, the numbers are a gap, like all that a failed batch has taken.
type split struct {
	numbers interface {
		Next(context.Context) (int64, error)
	}
	known map[string]int64 // number by country
}

func (s *split) transform(ctx context.Context, source bson.Raw) ([]Out, error) {
	elements, err := source.Elements()
	if err != nil {
		return nil, err
	}
	country, _ := source.Lookup("country").StringValueOK()
	if country == "" {
		return nil, errors.New("it has no country")
	}
	var outs []Out
	no, known := s.known[country]
	if !known {
		if no, err = s.numbers.Next(ctx); err != nil {
			return nil, fmt.Errorf("no number for the country %s: %w", country, err)
		}
		s.known[country] = no
		outs = append(outs, Out{countries, bson.D{{Key: "_id", Value: country}, {Key: "no", Value: no}}})
	}
	city := make(bson.D, 0, len(elements))
	for _, e := range elements {
		switch e.Key() {
		case "_id":
		case "country":
			city = append(city, bson.E{Key: "countryNo", Value: no})
		default:
			city = append(city, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	return append(outs, Out{cities, city}), nil
}

// newSplit is the whole job.
func newSplit(from *mongo.Collection) *Copy {
	db := from.Database()
	return &Copy{
		From: from,
		To:   []*mongo.Collection{cities: db.Collection("cities"), countries: db.Collection("countries")},
		Transform: func(dryRun bool) Transform {
			s := &split{numbers: idgen.NewCounter(db.Collection("counters"), "countries"), known: make(map[string]int64)}
			if dryRun {
				s.numbers = new(pretended)
			}
			return s.transform
		},
		Numbering: job.Numbering{Sequences: []job.Sequence{{Field: "no", Name: "cities", Start: 1, Step: 1}}, Counters: "counters"},
		ID:        "split " + db.Name() + "." + from.Name(),
		Journal:   db.Collection("migrate_journal"),
		Workers:   4,
		Mark:      "_migration",
	}
}

// pretended stands for a sequence where nothing is to be written.
type pretended int64

func (p *pretended) Next(context.Context) (int64, error) {
	*p++
	return int64(*p), nil
}
