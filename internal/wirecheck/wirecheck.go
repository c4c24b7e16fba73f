// Package wirecheck judges recorded commands by rules that a batch keeps whatever goes wrong: nothing is inserted once its
// rollback has begun, nothing is deleted without a proof, nothing is written below the agreed write concern. It is for
// tests.
package wirecheck

import (
	"bytes"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
)

// Rules are what Check holds the commands to. The zero Rules fit batches with the zero configuration.
type Rules struct {
	// StampField is the stamp's field. Defaults to "_batch".
	StampField string
	// WriteConcern is that of every insert and delete. Defaults to majority, journaled.
	WriteConcern bson.D
	// Unsent says that inserts may have ended before they were written to the wire, so that a delete may name what no insert
	// on record carried. Defaults to false: it must not.
	Unsent bool
	// Skip leaves commands out that belong to no batch. Defaults to none.
	Skip func(faultwire.Event) bool
}

// maxSpan is the most ids that a range delete may span, as package rollback promises.
const maxSpan = 10_000

// Check returns a sentence for each command that breaks a rule. The events are those of a wire, in order.
//
// Commands of one batch are told by the stamp and by the first nine bytes of ObjectIDs. Tests that use ObjectIDs of their
// own as _id therefore have to make them of random bytes, or they seem to come from the same batch.
func Check(events []faultwire.Event, rules Rules) []string {
	if rules.StampField == "" {
		rules.StampField = "_batch"
	}
	if rules.WriteConcern == nil {
		rules.WriteConcern = bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}
	}
	c := &check{rules: rules, batches: make(groups), sent: make(map[string]bool), acknowledged: make(map[string]faultwire.Mark)}
	for _, event := range events {
		if rules.Skip != nil && rules.Skip(event) {
			continue
		}
		switch event.Name {
		case faultwire.Insert:
			c.insert(event)
		case faultwire.Delete:
			c.delete(event)
		}
	}
	c.order()
	return c.broken
}

type check struct {
	rules   Rules
	batches groups
	inserts []marked
	deletes []marked
	// sent has every _id that an insert carried, with its stamp if it had one; acknowledged when the first answer was
	// given that said it was stored.
	sent         map[string]bool
	acknowledged map[string]faultwire.Mark
	broken       []string
}

// marked is a command with a key of its batch.
type marked struct {
	event faultwire.Event
	key   string
}

func (c *check) report(event faultwire.Event, format string, args ...any) {
	c.broken = append(c.broken, fmt.Sprintf(format, args...)+": "+event.String())
}

func (c *check) insert(event faultwire.Event) {
	c.concern(event)
	refused := refusals(event.ClientReply)
	first := ""
	for i, document := range event.Documents() {
		id := document.Lookup("_id")
		name := event.Namespace() + " " + key(id)
		keys := []string{"id " + name}
		if stamp, err := document.LookupErr(c.rules.StampField); err == nil {
			keys = []string{"stamp " + key(stamp)}
			c.sent[name+" "+key(stamp)] = true
		}
		if id.Type == bson.TypeObjectID {
			keys = append(keys, block(id.ObjectID()))
		}
		c.sent[name] = true
		if _, known := c.acknowledged[name]; !known && event.Given.Happened() && refused != nil && !refused[i] {
			c.acknowledged[name] = event.Given
		}
		for _, k := range keys {
			if first == "" {
				first = k
			}
			c.batches.join(first, k)
		}
	}
	if first != "" {
		c.inserts = append(c.inserts, marked{event, first})
	}
}

// refusals returns the indexes that a reply refuses; nil if it is no answer to believe.
func refusals(reply bson.Raw) map[int]bool {
	if ok, isNumber := reply.Lookup("ok").AsInt64OK(); reply == nil || !isNumber || ok != 1 {
		return nil
	}
	refused := make(map[int]bool)
	if list, isArray := reply.Lookup("writeErrors").ArrayOK(); isArray {
		values, _ := list.Values()
		for _, v := range values {
			index, _ := v.Document().Lookup("index").AsInt64OK()
			refused[int(index)] = true
		}
	}
	return refused
}

func (c *check) delete(event faultwire.Event) {
	c.concern(event)
	for _, statement := range event.Statements() {
		filter, limit := statement.Lookup("q").Document(), statement.Lookup("limit").AsInt64()
		if limit == 1 && c.neverSent(event, filter) {
			continue // a fence
		}
		if k, problem := c.proof(event, filter); problem != "" {
			c.report(event, "a delete without a proof, %s", problem)
		} else {
			c.deletes = append(c.deletes, marked{event, k})
		}
	}
}

// neverSent reports whether the filter is for an _id that never was.
func (c *check) neverSent(event faultwire.Event, filter bson.Raw) bool {
	elements, _ := filter.Elements()
	id := filter.Lookup("_id")
	return len(elements) == 1 && id.Type == bson.TypeObjectID && !c.sent[event.Namespace()+" "+key(id)]
}

// proof returns a key of the batch whose documents the filter matches, or what is wrong with the filter.
func (c *check) proof(event faultwire.Event, filter bson.Raw) (k, problem string) {
	elements, err := filter.Elements()
	if err != nil || len(elements) == 0 {
		return "", "an empty filter"
	}
	if either, err := filter.LookupErr("$or"); err == nil && len(elements) == 1 {
		branches, _ := either.Array().Values()
		var ids []bson.RawValue
		for _, branch := range branches {
			ids = append(ids, branch.Document().Lookup("_id", "$eq"))
			if parts, _ := branch.Document().Elements(); len(parts) < 2 {
				return "", "a branch without a shard key"
			}
		}
		return c.acknowledgedIDs(event, ids)
	}
	ids := filter.Lookup("_id")
	if condition, isDocument := ids.DocumentOK(); isDocument {
		from, to := condition.Lookup("$gte"), condition.Lookup("$lte")
		if from.Type == bson.TypeObjectID && to.Type == bson.TypeObjectID {
			return c.span(from.ObjectID(), to.ObjectID())
		}
		if in, isArray := condition.Lookup("$in").ArrayOK(); isArray {
			values, _ := in.Values()
			return c.named(event, filter, values)
		}
	}
	return "", "an unknown filter"
}

func (c *check) span(from, to bson.ObjectID) (k, problem string) {
	span := counter(to) - counter(from) + 1
	switch {
	case !bytes.Equal(from[:9], to[:9]):
		return "", "a range over more than one block"
	case span < 1 || span > maxSpan:
		return "", fmt.Sprintf("a range of %d ids", span)
	case !c.rules.Unsent && !c.batches.has(block(from)):
		return "", "a range that no insert used"
	}
	return block(from), ""
}

func counter(id bson.ObjectID) int { return int(id[9])<<16 | int(id[10])<<8 | int(id[11]) }

func (c *check) named(event faultwire.Event, filter bson.Raw, ids []bson.RawValue) (k, problem string) {
	stamp, err := filter.LookupErr(c.rules.StampField)
	if err != nil {
		return c.acknowledgedIDs(event, ids)
	}
	if equal, isDocument := stamp.DocumentOK(); isDocument {
		stamp = equal.Lookup("$eq")
	}
	if stamp.Type != bson.TypeObjectID {
		return "", "a stamp that is none"
	}
	for _, id := range ids {
		if !c.rules.Unsent && !c.sent[event.Namespace()+" "+key(id)+" "+key(stamp)] {
			return "", "an id that was not sent with this stamp"
		}
	}
	return "stamp " + key(stamp), ""
}

// acknowledgedIDs demands that the client knew, before it sent the delete, that the server had stored every one of them.
func (c *check) acknowledgedIDs(event faultwire.Event, ids []bson.RawValue) (k, problem string) {
	for _, id := range ids {
		name := event.Namespace() + " " + key(id)
		if given := c.acknowledged[name]; !given.Happened() || !given.Before(event.Seen) {
			return "", "an id alone whose insert nobody acknowledged"
		}
		if k == "" {
			k = "id " + name
		}
		c.batches.join(k, "id "+name)
	}
	return k, ""
}

func (c *check) concern(event faultwire.Event) {
	want, err := bson.Marshal(c.rules.WriteConcern)
	if err != nil {
		panic(err) // the test's own value
	}
	if have := event.WriteConcern(); !sameFields(have, want) {
		c.report(event, "write concern %v instead of %v", have, bson.Raw(want))
	}
}

// sameFields compares two flat documents whatever the order of their fields.
func sameFields(a, b bson.Raw) bool {
	if a == nil || len(a) != len(b) {
		return false
	}
	elements, _ := a.Elements()
	for _, e := range elements {
		if !e.Value().Equal(b.Lookup(e.Key())) {
			return false
		}
	}
	return true
}

// order checks that no batch sends an insert once it has sent a delete.
func (c *check) order() {
	first := make(map[string]faultwire.Event)
	for _, d := range c.deletes {
		batch := c.batches.find(d.key)
		if known, ok := first[batch]; !ok || d.event.Seen.Before(known.Seen) {
			first[batch] = d.event
		}
	}
	for _, i := range c.inserts {
		if d, ok := first[c.batches.find(i.key)]; ok && d.Seen.Before(i.event.Seen) {
			c.report(i.event, "an insert after the batch's first delete (#%d)", d.Seq)
		}
	}
}

func key(v bson.RawValue) string { return fmt.Sprintf("%x:%x", byte(v.Type), v.Value) }

func block(id bson.ObjectID) string { return fmt.Sprintf("block %x", id[:9]) }

// groups joins keys that belong to the same batch (a union-find structure: each key's parent).
type groups map[string]string

func (g groups) has(k string) bool { _, ok := g[k]; return ok }

func (g groups) find(k string) string {
	for parent, ok := g[k]; ok && parent != k; parent, ok = g[k] {
		k = parent
	}
	return k
}

func (g groups) join(a, b string) {
	for _, k := range []string{a, b} {
		if !g.has(k) {
			g[k] = k
		}
	}
	g[g.find(b)] = g.find(a)
}

// Story joins what Check returned for a test's message.
func Story(broken []string) string { return strings.Join(broken, "\n") }
