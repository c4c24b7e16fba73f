package job

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/idgen"
)

// Numbering is how the command line says that documents are numbered.
type Numbering struct {
	Sequences []Sequence
	Counters  string // name of the collection of counters
	texts     []string
	zoneName  string
	zone      *time.Location
}

// AddFlags adds the flags.
func (n *Numbering) AddFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&n.texts, "sequence", nil, "number the documents: `field=name` or field=name:start:step sets the field to the next number of the counter of that name; with field=name@day or name@day:digits (also hour, month, year) numbers begin with the date, as 2601310001")
	f.StringVar(&n.Counters, "counters", "counters", "`name` of the collection of counters")
	f.StringVar(&n.zoneName, "zone", "UTC", "time `zone` of the dates in numbers, as Europe/Stockholm")
}

// Parse reads what the flags say. An error is a *UsageError.
func (n *Numbering) Parse() (err error) {
	if n.zone, err = time.LoadLocation(n.zoneName); err != nil {
		return Misused("--zone %s: %v", n.zoneName, err)
	}
	for _, text := range n.texts {
		s, err := ParseSequence(text)
		if err != nil {
			return err
		}
		n.Sequences = append(n.Sequences, s)
	}
	if n.Counters == "" {
		return Misused("--counters: the name is empty")
	}
	return nil
}

// Fields are those that are numbered.
func (n *Numbering) Fields() []string {
	var fields []string
	for _, s := range n.Sequences {
		fields = append(fields, s.Field)
	}
	return fields
}

// Number has a part's fields numbered by the counters in db, which it returns. Fields that share a counter share its
// reservations.
func (n *Numbering) Number(db *mongo.Database, part batch.Part) (batch.Part, []*Counter) {
	var all []*Counter
	byName := make(map[string]*Counter)
	for _, s := range n.Sequences {
		if byName[s.Name] == nil {
			byName[s.Name] = NewCounter(db.Collection(n.Counters), s, n.zone)
			all = append(all, byName[s.Name])
		}
		part = part.Number(s.Field, byName[s.Name])
	}
	return part, all
}

// Sequence is one --sequence.
type Sequence struct {
	Field, Name string
	Start, Step int64
	Periodic    bool // counts anew in each period, with so many digits
	Period      idgen.Period
	Digits      int
}

// periods are those that --sequence knows.
var periods = map[string]idgen.Period{"hour": idgen.Hour, "day": idgen.Day, "month": idgen.Month, "year": idgen.Year}

// ParseSequence reads field=name[:start[:step]] or field=name@period[:digits].
func ParseSequence(text string) (Sequence, error) {
	field, rest, _ := strings.Cut(text, "=")
	name, numbers, _ := strings.Cut(rest, ":")
	s := Sequence{Field: field, Name: name, Start: 1, Step: 1}
	digits := int64(4)
	places, least := []*int64{&s.Start, &s.Step}, []int64{0, 1}
	if counter, period, dated := strings.Cut(name, "@"); dated {
		known := false
		s.Name, s.Periodic = counter, true
		if s.Period, known = periods[period]; !known {
			return s, Misused("--sequence %s: expected @hour, @day, @month or @year", text)
		}
		places, least = []*int64{&digits}, []int64{1}
	}
	if s.Field == "" || s.Name == "" || strings.Count(rest, ":") > len(places) {
		return s, Misused("--sequence %s: expected field=name[:start[:step]] or field=name@day[:digits]", text)
	}
	for i := 0; numbers != ""; i++ {
		var number string
		number, numbers, _ = strings.Cut(numbers, ":")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < least[i] || s.Periodic && n > 18 {
			return s, Misused("--sequence %s: %q is not a whole number from %d on that makes sense", text, number, least[i])
		}
		*places[i] = n
	}
	s.Digits = int(digits)
	return s, nil
}

// Counter is a batch.Sequence that remembers which numbers it gave out.
type Counter struct {
	Got  Numbers
	from batch.Sequence
	step int64
}

// NewCounter returns the counter of a sequence; zone is for those that begin with a date.
func NewCounter(coll *mongo.Collection, s Sequence, zone *time.Location) *Counter {
	c := &Counter{step: s.Step, Got: Numbers{Sequence: s.Name, dated: s.Periodic}}
	if s.Periodic {
		c.from = idgen.NewPeriodic(coll, s.Name, idgen.PeriodicConfig{Period: s.Period, Zone: zone, Digits: s.Digits})
	} else {
		c.from = idgen.NewCounter(coll, s.Name, idgen.CounterConfig{Start: s.Start, FromZero: s.Start == 0, Step: s.Step})
	}
	return c
}

// Reserve is called once for a batch, or chunk by chunk if its documents are not in memory.
func (c *Counter) Reserve(ctx context.Context, n int) ([]any, error) {
	values, err := c.from.Reserve(ctx, n)
	if err != nil || len(values) == 0 {
		return values, err
	}
	first, _ := values[0].(int64)
	last, _ := values[len(values)-1].(int64)
	if c.Got.Count == 0 {
		c.Got.First = first
	} else if first != c.Got.Last+c.step {
		c.Got.Gaps = true
	}
	c.Got.Last = last
	c.Got.Count += len(values)
	return values, nil
}

// Numbers are those that a counter gave out.
type Numbers struct {
	Sequence string `json:"sequence"`
	First    int64  `json:"first"`
	Last     int64  `json:"last"`
	Count    int    `json:"count"`
	Gaps     bool   `json:"gaps,omitempty"` // somebody else took numbers in between
	dated    bool   // they begin with a date, so that separators would be in the way
}

// Text names the numbers.
func (n Numbers) Text(show *screen.Screen) string {
	write := show.Numbers.Sprint
	if n.dated {
		write = fmt.Sprint
	}
	text := n.Sequence + " " + write(n.First)
	if n.Count > 1 {
		text += " … " + write(n.Last)
	}
	if n.Gaps {
		text += " with gaps"
	}
	return text
}
