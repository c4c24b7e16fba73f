package crashtest_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/mongosim"
)

// oracle sees every write in the order in which the server applied it, and knows what must never happen.
type oracle struct {
	mu       sync.Mutex // protects the rest
	position int
	records  map[bson.ObjectID]*record // by attempt
	calls    []*call
	log      []string
	broken   []string
}

// record is what became of an attempt's journal record.
type record struct {
	state string
	// alive is when somebody who worked on it last showed life, by the clock that everybody in a bubble shares.
	alive time.Time
}

// call is one call of an Inserter.
type call struct {
	number    int
	attempt   bson.ObjectID
	documents int             // that it has to store
	present   map[string]bool // that are stored now
	// returned is when the call said that nothing is left; 0 while it has not.
	returned int
	outcome  string
}

// The collections of a history: the journal's, and others, which hold documents.
const (
	journalName = "journal"
	pagesName   = "journal.pages"
	database    = "d"
)

// arrows are the changes of state that the protocol knows.
var arrows = map[string][]string{
	"open":     {"committed", "aborting"},
	"aborting": {"aborting", "watching", "aborted"},
	"watching": {"watching", "aborted"},
}

func newOracle() *oracle { return &oracle{records: make(map[bson.ObjectID]*record)} }

func (o *oracle) newCall(documents int) *call {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &call{number: len(o.calls), documents: documents, present: make(map[string]bool)}
	o.calls = append(o.calls, c)
	return c
}

func (o *oracle) begin(c *call, attempt bson.ObjectID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c.attempt = attempt
}

func (o *oracle) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.say(format, args...)
}

func (o *oracle) say(format string, args ...any) {
	o.log = append(o.log, fmt.Sprintf("%4d ", o.position)+fmt.Sprintf(format, args...))
}

func (o *oracle) breach(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	o.broken = append(o.broken, text)
	o.say("BROKEN: %s", text)
}

// observe is called with every write, in order.
func (o *oracle) observe(w mongosim.Write) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.position++
	switch w.Namespace {
	case database + "." + journalName:
		o.head(w)
	case database + "." + pagesName:
		o.page(w)
	case database + ".counters":
	default:
		o.document(w)
	}
}

func (o *oracle) head(w mongosim.Write) {
	doc := w.After
	if doc == nil {
		doc = w.Before
	}
	attempt := doc.Lookup("attempt").ObjectID()
	state, _ := doc.Lookup("state").StringValueOK()
	version, beat := doc.Lookup("version").AsInt64(), doc.Lookup("beat").AsInt64()
	o.say("conn %d %s record %s: %s v%d beat %d by %s", w.Connection, w.Kind, short(attempt), state, version, beat, lastPart(doc.Lookup("owner").StringValue()))
	r := o.records[attempt]
	switch {
	case w.Kind == mongosim.WriteInsert:
		if r != nil || state != "open" || version != 1 {
			o.breach("the record of %s was created %s v%d", short(attempt), state, version)
		}
		o.records[attempt] = &record{state: state, alive: time.Now()}
		return
	case r == nil:
		o.breach("a %s of a record that was never created", w.Kind)
		return
	case w.Kind == mongosim.WriteDelete:
		if _, unfinished := arrows[r.state]; unfinished {
			o.breach("an unfinished record was removed: it was %s", r.state)
		}
		return
	}
	before := w.Before.Lookup("version").AsInt64()
	switch {
	case version == before:
		if state != r.state {
			o.breach("the state went from %s to %s without a new version", r.state, state)
		}
	case version != before+1:
		o.breach("the version went from %d to %d", before, version)
	case !slices.Contains(arrows[r.state], state):
		o.breach("the state went from %s to %s", r.state, state)
	}
	taken := !bytes.Equal(w.Before.Lookup("owner").Value, doc.Lookup("owner").Value)
	if quiet := time.Since(r.alive); taken && r.state != "watching" && quiet < lease {
		o.breach("the record was taken over %s after it had shown life", quiet)
	}
	r.state = state
	if version != before || beat != w.Before.Lookup("beat").AsInt64() { // a mere note is no sign of life
		r.alive = time.Now()
	}
}

func (o *oracle) page(w mongosim.Write) {
	o.say("conn %d %s page %s", w.Connection, w.Kind, w.ID)
	if w.Kind != mongosim.WriteDelete {
		return
	}
	hex, _, _ := strings.Cut(w.ID.StringValue(), "/")
	attempt, _ := bson.ObjectIDFromHex(hex)
	if r := o.records[attempt]; r == nil || len(arrows[r.state]) > 0 {
		o.breach("a page of an unfinished record was removed")
	}
}

func (o *oracle) document(w mongosim.Write) {
	doc := w.After
	if doc == nil {
		doc = w.Before
	}
	place := w.Namespace + " " + w.ID.String()
	number, ours := doc.Lookup("call").AsInt64OK()
	if !ours {
		if w.Kind != mongosim.WriteInsert {
			o.breach("%s of somebody else's document %s", w.Kind, place)
		}
		return
	}
	c := o.calls[number]
	o.say("conn %d %s %s of call %d", w.Connection, w.Kind, place, number)
	switch w.Kind {
	case mongosim.WriteInsert:
		c.present[place] = true
		if c.returned > 0 {
			o.breach("call %d said that nothing is left, and then %s appeared", number, place)
		}
	case mongosim.WriteDelete:
		delete(c.present, place)
		if r := o.records[c.attempt]; r != nil && r.state == "committed" {
			o.breach("%s of the committed call %d was deleted", place, number)
		}
	default:
		o.breach("%s of %s", w.Kind, place)
	}
}

// state returns the state of an attempt's record, also after it was removed; "" if there never was one.
func (o *oracle) state(attempt bson.ObjectID) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stateLocked(attempt)
}

func (o *oracle) stateLocked(attempt bson.ObjectID) string {
	if r := o.records[attempt]; r != nil {
		return r.state
	}
	return ""
}

// end judges what is left when everything has come to rest.
func (o *oracle) end(keyed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for attempt, r := range o.records {
		if len(arrows[r.state]) > 0 {
			o.breach("the record of %s is still %s", short(attempt), r.state)
		}
	}
	stored := 0
	for _, c := range o.calls {
		switch o.stateLocked(c.attempt) {
		case "committed":
			stored++
			if len(c.present) != c.documents {
				o.breach("call %d was committed, and %d of its %d documents are there", c.number, len(c.present), c.documents)
			}
		default:
			if len(c.present) > 0 {
				o.breach("call %d was not committed, and %d of its documents are there", c.number, len(c.present))
			}
		}
	}
	if keyed && stored > 1 {
		o.breach("one key was stored %d times", stored)
	}
}

func short(id bson.ObjectID) string { return id.Hex()[18:] }

func lastPart(owner string) string {
	parts := strings.Split(owner, "/")
	last := parts[len(parts)-1]
	kind := "owner "
	if strings.HasPrefix(owner, "recovery") {
		kind = "recovery "
	}
	return kind + last[max(0, len(last)-4):]
}
