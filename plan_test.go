package intact_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

const (
	// travel is how long a request may be on its way to the server, which has to be less than the settle time.
	travel = 40 * time.Millisecond
	settle = 120 * time.Millisecond
	// patience is the time that a command gets: less than travel, so that late requests are given up by their client.
	patience = 30 * time.Millisecond
)

// plan is what one run does. It follows from its seed alone.
type plan struct {
	seed        uint64
	retryWrites bool
	config      batch.Config
	parts       []planPart
	foreign     []planDocument // what somebody else stored beforehand
	faults      []planFault
	cancelAt    int  // the insert at whose answer the caller gives up; 0 for never
	doomed      bool // a document can never be stored, so that the batch must fail
	unproven    bool // a claimed _id has no proof
}

type planPart struct {
	coll      int
	documents []planDocument
	numbers   []string // fields that are numbered
}

type planDocument struct {
	coll int // of a foreign document
	id   any // nil: none
	u    any // the value under a unique index; nil: the document has no such field
	bad  bool
}

// planFault is a fault on the wire.
type planFault struct {
	name    faultwire.Name
	skip    int
	times   int // 0: for ever
	what    string
	fault   faultwire.Fault
	release time.Duration // after which a held command goes on
}

const collections = 3

func (d planDocument) document(i int) any {
	if d.bad {
		return nil
	}
	made := bson.D{{Key: "i", Value: i}}
	if d.id != nil {
		made = append(bson.D{{Key: "_id", Value: d.id}}, made...)
	}
	if d.u != nil {
		made = append(made, bson.E{Key: "u", Value: d.u})
	}
	return made
}

func makePlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{seed: seed, retryWrites: r.IntN(2) == 0}
	p.configure(r)
	taken := make(map[string]bool) // ids and unique values that are used up, by collection
	fresh := 0                     // makes values that nobody else has
	for range 1 + r.IntN(3) {
		part := planPart{coll: r.IntN(collections)}
		for _, field := range []string{"no", "meta.no", "second"} {
			if r.IntN(4) == 0 {
				part.numbers = append(part.numbers, field)
			}
		}
		claims := r.IntN(3) // 0: never, 1: sometimes, 2: always
		for range size(r) {
			fresh++
			d := planDocument{bad: r.IntN(400) == 0}
			if claims == 2 || claims == 1 && r.IntN(2) == 0 {
				d.id = claim(r, fresh)
			}
			if r.IntN(2) == 0 {
				d.u = int64(fresh)
			}
			p.doomed = p.doomed || d.bad
			part.documents = append(part.documents, d)
		}
		p.parts = append(p.parts, part)
	}
	p.plant(r, taken)
	p.unproven = p.config.Stamp == batch.StampNone && p.claims()
	p.breakThings(r)
	return p
}

func size(r *rand.Rand) int {
	switch r.IntN(6) {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		return 20 + r.IntN(30)
	}
	return 2 + r.IntN(8)
}

// claim makes an _id of one of several kinds. None is an ObjectID of this process, whose first bytes others have.
func claim(r *rand.Rand, n int) any {
	switch r.IntN(5) {
	case 0:
		return fmt.Sprint("id ", n)
	case 1:
		return bson.D{{Key: "b", Value: n}, {Key: "a", Value: "x"}}
	case 2:
		return int64(n)
	case 3:
		return float64(n) + 0.5
	}
	var id bson.ObjectID
	for i := range id {
		id[i] = byte(r.Uint32())
	}
	return id
}

func (p *plan) claims() bool {
	for _, part := range p.parts {
		for _, d := range part.documents {
			if d.id != nil {
				return true
			}
		}
	}
	return false
}

// plant adds documents of somebody else, and sometimes a clash: with one of theirs, or of the batch with itself.
func (p *plan) plant(r *rand.Rand, taken map[string]bool) {
	for range r.IntN(4) {
		p.foreign = append(p.foreign, planDocument{coll: r.IntN(collections), id: fmt.Sprint("theirs ", len(p.foreign))})
	}
	if r.IntN(3) > 0 {
		return
	}
	part := &p.parts[r.IntN(len(p.parts))]
	if len(part.documents) == 0 {
		return
	}
	d := &part.documents[r.IntN(len(part.documents))]
	switch r.IntN(4) {
	case 0: // somebody else has the _id
		if d.id == nil {
			d.id = "clash"
		}
		p.foreign = append(p.foreign, planDocument{coll: part.coll, id: d.id})
	case 1: // somebody else has the unique value
		d.u = "clash"
		p.foreign = append(p.foreign, planDocument{coll: part.coll, id: "theirs", u: d.u})
	case 2: // the batch has the unique value twice
		d.u = "twice"
		part.documents = append(part.documents, planDocument{u: d.u})
	case 3: // the batch has the _id twice
		if d.id == nil {
			d.id = "twice"
		}
		part.documents = append(part.documents, planDocument{id: d.id})
	}
	p.doomed = true
}

func (p *plan) configure(r *rand.Rand) {
	p.config = batch.Config{
		Stamp:          batch.Stamp(r.IntN(3)),
		ChunkSize:      1 + r.IntN(6),
		Concurrency:    1 + r.IntN(4),
		CommandTimeout: []time.Duration{patience, 10 * patience}[r.IntN(2)],
		RetryTime:      time.Duration(r.IntN(3)) * 20 * time.Millisecond,
		InitialDelay:   time.Millisecond,
		MaxDelay:       5 * time.Millisecond,
		Rollback: rollback.Policy{
			Settle:         settle,
			Concurrency:    1 + r.IntN(4),
			ChunkIDs:       1 + r.IntN(10),
			ChunkRange:     1 + r.IntN(10),
			CommandTimeout: 2 * patience,
		},
	}
	if p.config.RetryTime == 0 {
		p.config.RetryTime = -1
	}
	if p.config.Stamp != batch.StampNone && r.IntN(4) == 0 {
		p.config.RemoveStamp = true
	}
	if r.IntN(3) == 0 {
		p.config.StampField = "job"
	}
}

// breakThings adds faults. One that lasts for ever needs a rollback with a budget.
func (p *plan) breakThings(r *rand.Rand) {
	if r.IntN(8) == 0 {
		p.cancelAt = 1 + r.IntN(4)
	}
	names := []faultwire.Name{faultwire.Insert, faultwire.Insert, faultwire.Insert, faultwire.Delete, faultwire.Delete, faultwire.Find, faultwire.Update, "findAndModify", "listCollections"}
	for range r.IntN(5) {
		f := planFault{name: names[r.IntN(len(names))], skip: r.IntN(4), times: 1 + r.IntN(3)}
		if r.IntN(12) == 0 {
			f.times = 0
			p.config.Rollback.Budget = 4 * settle
		}
		p.choose(r, &f)
		p.faults = append(p.faults, f)
	}
	if len(p.faults) == 0 { // then a busy machine must not make any
		p.config.CommandTimeout, p.config.Rollback.CommandTimeout = 0, 0
	}
}

func (p *plan) choose(r *rand.Rand, f *planFault) {
	late := time.Duration(r.Int64N(int64(travel)))
	codes := []int{91, 112, 10107, 11602, 48, 16500, 999_999, 20, 13}
	code := codes[r.IntN(len(codes))]
	if code == 13 && f.name == faultwire.Insert {
		f.skip, f.times = 0, 0 // rights do not change between the sendings of one insert, on which the library counts
	}
	refusals := []faultwire.WriteError{{Index: 0, Code: []int{16500, 112, 121, 11000}[r.IntN(4)], Message: "refused"}}
	choices := []struct {
		what  string
		fault faultwire.Fault
	}{
		{"drop request", faultwire.DropRequest()},
		{"drop reply", faultwire.DropReply()},
		{"cut", faultwire.Cut()},
		{"cut reply", faultwire.CutReply(10)},
		{fmt.Sprintf("hold request for %v", late), faultwire.HoldRequest()},
		{fmt.Sprintf("hold request for %v, then drop reply", late), faultwire.HoldRequest()},
		{fmt.Sprintf("delay by %v", late/2), faultwire.Delay(late / 2)},
		{fmt.Sprintf("delay reply by %v", late), faultwire.DelayReply(late)},
		{fmt.Sprintf("refuse with code %d", code), faultwire.Reply(faultwire.CommandError{Code: code, Message: "refused"})},
		{"throttle", faultwire.Reply(faultwire.Throttled(2 * time.Millisecond))},
		{"overload", faultwire.Reply(faultwire.CommandError{Code: 462, Message: "overloaded", Labels: []string{"SystemOverloadedError", "RetryableError", "NoWritesPerformed"}, More: bson.D{{Key: "baseBackoffMS", Value: 1}}})},
		{fmt.Sprintf("refuse the first with code %d", refusals[0].Code), faultwire.WriteErrors(refusals...)},
		{"write concern not met", faultwire.Lie(faultwire.WriteConcernError{Code: 64, Message: "not met"})},
		{"count wrongly", faultwire.Lie(faultwire.Set("n", 1_000))},
		{"refuse what was done", faultwire.Lie(faultwire.WriteError{Index: 0, Code: 2, Message: "a lie"}, faultwire.Set("n", 1_000))},
		{"refuse an impossible index", faultwire.Lie(faultwire.WriteError{Index: 99, Code: 2, Message: "a lie"})},
	}
	c := choices[r.IntN(len(choices))]
	if f.name != faultwire.Insert && strings.Contains(c.what, "wrong") || f.name != faultwire.Insert && strings.HasPrefix(c.what, "refuse what") || f.name != faultwire.Insert && strings.HasPrefix(c.what, "refuse an") {
		c = choices[1] // lies about deletes and finds are no fault of a network or a server that the library can know
	}
	if f.name != faultwire.Insert && f.name != faultwire.Delete && strings.HasPrefix(c.what, "refuse the first") {
		c = choices[0]
	}
	f.what, f.fault, f.release = c.what, c.fault, late
}

// String tells the plan.
func (p plan) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "seed %d: retryWrites=%t stamp=%s field=%q remove=%t chunks of %d, %d at a time, RetryTime %v, budget %v", p.seed, p.retryWrites,
		p.config.Stamp, p.config.StampField, p.config.RemoveStamp, p.config.ChunkSize, p.config.Concurrency, p.config.RetryTime, p.config.Rollback.Budget)
	if p.cancelAt > 0 {
		fmt.Fprintf(&s, ", the caller gives up at insert %d", p.cancelAt)
	}
	fmt.Fprintf(&s, ", doomed=%t, unproven=%t\n", p.doomed, p.unproven)
	for i, part := range p.parts {
		fmt.Fprintf(&s, "  part %d into c%d, numbers %q:", i, part.coll, part.numbers)
		for _, d := range part.documents {
			fmt.Fprintf(&s, " {%v u=%v bad=%t}", d.id, d.u, d.bad)
		}
		s.WriteString("\n")
	}
	for _, d := range p.foreign {
		fmt.Fprintf(&s, "  in c%d is already {%v u=%v}\n", d.coll, d.id, d.u)
	}
	for _, f := range p.faults {
		fmt.Fprintf(&s, "  %s, after %d, %d times: %s\n", f.name, f.skip, f.times, f.what)
	}
	return s.String()
}
