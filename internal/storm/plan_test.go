package storm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
)

// plan is everything about a run that is decided beforehand.
type plan struct {
	seed        uint64
	replicaSet  bool
	sharded     bool // a mongos, with the collections sharded by tenant
	retryWrites bool
	noHistory   bool // the server only says that it knows retryable writes
	duplicates  mongosim.DuplicateStyle
	collections int
	unique      []bool // by collection: whether u is unique
	foreign     []foreignOp
	inserters   []inserterPlan
	recoverers  int
	faults      []faultPlan
	events      []eventPlan
}

// inserterPlan is one client that inserts batches, one after the other.
type inserterPlan struct {
	batches []batchPlan
	dies    int // the insert command before which its connection ends for good; 0 for never
}

func (in inserterPlan) journals() bool {
	return slices.ContainsFunc(in.batches, func(b batchPlan) bool { return b.journal })
}

type batchPlan struct {
	id          int // in the documents' marker
	parts       []partPlan
	chunk       int
	concurrency int
	stamp       batch.Stamp
	remove      bool
	journal     bool
	key         bool
	stream      bool
	cancel      int // the insert command of this inserter at which the context is cancelled; 0 for never
}

type partPlan struct {
	collection int
	ids        []idPlan
	number     numberKind
	shardKey   bool // is named to the library
}

// idPlan is how one document gets its _id, and its value under the unique index.
type idPlan struct {
	claimed bool
	id      int // of a claimed _id; others may want it too
	u       int // 0 for a value that nobody else has
	tenant  int // of a sharded collection
}

type numberKind int

const (
	noNumber numberKind = iota
	counterNumber
	counterID // the number is the _id
	bufferedNumber
	stripedNumber
	optimisticNumber
	numberKinds
)

type foreignKind int

const (
	foreignInsert foreignKind = iota
	foreignUpdate
	foreignDelete
	foreignEdit     // of a batch's document
	foreignRecreate // a batch's document is deleted, and its _id taken
	foreignKinds
)

// foreignOp is something that somebody else does.
type foreignOp struct {
	kind       foreignKind
	collection int
	id, u      int
	tenant     int // of a sharded collection
}

// eventPlan is something that happens to the server, when so many commands have been seen.
type eventPlan struct {
	kind     eventKind
	after    int
	inserter int // of a partition, or a slow network
	length   int // of a lag, in commands; of a partition or a slow network, in halves of a lease
}

type eventKind int

const (
	eventStepDown eventKind = iota
	eventFailover
	eventRestart
	eventLag       // the other members fall behind, and what only the primary has is lost
	eventPartition // an inserter reaches nobody for a while
	eventSlow      // an inserter's requests take nearly as long as the settle time for a while
	eventKinds
)

func (k eventKind) String() string {
	return [...]string{"step-down", "failover", "restart", "lag", "partition", "slow network"}[k]
}

// makePlan draws a plan.
func makePlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0x5707))
	p := plan{
		seed:        seed,
		duplicates:  mongosim.DuplicateStyle(r.IntN(3)),
		collections: 1 + r.IntN(2),
	}
	switch n := r.IntN(8); {
	case n < 5:
		p.replicaSet = true
	case n < 7:
		p.sharded = true
	}
	p.retryWrites = (p.replicaSet || p.sharded) && r.IntN(4) > 0
	p.noHistory = p.replicaSet && p.retryWrites && r.IntN(4) == 0
	for range p.collections {
		p.unique = append(p.unique, r.IntN(2) == 0)
	}
	for range r.IntN(12) {
		p.foreign = append(p.foreign, foreignOp{
			kind: foreignKind(r.IntN(int(foreignKinds))), collection: r.IntN(p.collections),
			id: r.IntN(idSpace), u: r.IntN(uSpace), tenant: p.drawTenant(r),
		})
	}
	id := 0
	for range 1 + r.IntN(2) {
		var in inserterPlan
		for range 1 + r.IntN(2) {
			id++
			in.batches = append(in.batches, drawBatch(r, p, id))
		}
		if r.IntN(8) == 0 {
			in.dies = 1 + r.IntN(6)
		}
		p.inserters = append(p.inserters, in)
	}
	p.foreign = append(p.foreign, p.elsewhere(r)...)
	if r.IntN(3) == 0 {
		p.recoverers = 1 + r.IntN(2)
	}
	for range r.IntN(6) {
		p.faults = append(p.faults, drawFault(r, len(p.inserters)))
	}
	p.faults = plausible(p.faults)
	if r.IntN(3) == 0 {
		kind := eventKind(r.IntN(int(eventKinds)))
		if !p.replicaSet {
			kind = eventPartition + eventKind(r.IntN(int(eventKinds-eventPartition)))
		}
		p.events = append(p.events, eventPlan{kind: kind, after: 3 + r.IntN(20), inserter: r.IntN(len(p.inserters)), length: 1 + r.IntN(5)})
	}
	if i := r.IntN(len(p.inserters)); p.recoverers > 0 && p.inserters[i].journals() && r.IntN(4) == 0 { // a late change of state
		p.faults = plausible(append(p.faults, faultPlan{inserter: i, command: faultwire.Update, kind: faultHold, skip: r.IntN(4), times: 1 + r.IntN(4)}))
	}
	for _, e := range p.events {
		if e.kind == eventLag && r.IntN(2) == 0 { // a majority is waited for in vain
			p.faults = plausible(append(p.faults, faultPlan{inserter: e.inserter, command: faultwire.Insert, kind: faultConcern, skip: r.IntN(3), times: 1 + r.IntN(3)}))
		}
		if e.kind == eventPartition || e.kind == eventSlow { // somebody has to notice
			p.recoverers = max(p.recoverers, 1)
		}
	}
	return p
}

// drawTenant draws a value of the shard key. The first and the third are on the same shard.
func (p plan) drawTenant(r *rand.Rand) int {
	if !p.sharded {
		return 0
	}
	return r.IntN(3)
}

// elsewhere draws documents of others that have the ids of a batch's documents, most of them on another shard.
func (p plan) elsewhere(r *rand.Rand) (ops []foreignOp) {
	if !p.sharded {
		return nil
	}
	for _, in := range p.inserters {
		for _, b := range in.batches {
			for _, part := range b.parts {
				for _, d := range part.ids {
					if d.claimed && r.IntN(5) == 0 {
						tenant := d.tenant + 1
						if r.IntN(10) == 0 {
							tenant++
						}
						ops = append(ops, foreignOp{kind: foreignInsert, collection: part.collection, id: d.id, tenant: tenant % 3})
					}
				}
			}
		}
	}
	return ops
}

// plausible leaves out what no server does: to take a right away between two sendings of a command. An account that lacks
// a right lacks it from the beginning, for all commands of the name, and with nothing else going wrong.
func plausible(faults []faultPlan) []faultPlan {
	for _, f := range faults {
		if f.kind == faultUnauthorized {
			f.skip, f.times = 0, 1<<30
			return []faultPlan{f}
		}
	}
	return faults
}

const (
	idSpace = 24
	uSpace  = 30
)

func drawBatch(r *rand.Rand, p plan, id int) batchPlan {
	b := batchPlan{id: id, chunk: 1 + r.IntN(6), concurrency: 1 + r.IntN(4), journal: r.IntN(3) == 0}
	b.stream = r.IntN(4) == 0
	b.key = b.journal && r.IntN(2) == 0
	b.remove = r.IntN(8) == 0
	if r.IntN(4) == 0 {
		b.stamp = batch.Stamp(r.IntN(3))
	}
	if b.stamp == batch.StampNone {
		b.journal, b.key, b.remove = false, false, false
	}
	if r.IntN(10) == 0 {
		b.cancel = 1 + r.IntN(5)
	}
	for range 1 + r.IntN(2) {
		part := partPlan{collection: r.IntN(p.collections)}
		if r.IntN(2) == 0 {
			part.number = numberKind(r.IntN(int(numberKinds)))
		}
		if part.number == optimisticNumber && p.sharded {
			part.number = counterNumber // for want of a unique index
		}
		part.shardKey = p.sharded && (b.stamp == batch.StampNone || r.IntN(2) == 0)
		claims := r.IntN(3)
		for range r.IntN(14) {
			d := idPlan{claimed: claims == 1 || claims == 2 && r.IntN(2) == 0, id: id*1_000 + r.IntN(900), tenant: p.drawTenant(r)}
			if r.IntN(60) == 0 {
				d.id = r.IntN(idSpace) // somebody else may have it
			}
			if r.IntN(80) == 0 {
				d.u = 1 + r.IntN(uSpace)
			}
			if part.number == counterID {
				d.claimed = false
			}
			part.ids = append(part.ids, d)
		}
		b.parts = append(b.parts, part)
	}
	return b
}

// settles reports whether a late insert can only be met by waiting: where there are no transaction numbers, and where the
// server forgets them or nobody is left to use them.
func (p plan) settles() bool {
	if !p.retryWrites || p.noHistory || len(p.events) > 0 || p.recoverers > 0 {
		return true
	}
	for _, in := range p.inserters {
		if in.dies > 0 {
			return true
		}
	}
	for _, f := range p.faults {
		if f.kind == faultDown || f.command == "delete" {
			return true // a fence may be given up
		}
	}
	return false
}

// kind reports whether nothing goes wrong on the wire or in the server.
func (p plan) kind() bool {
	for _, in := range p.inserters {
		if in.dies > 0 {
			return false
		}
	}
	return len(p.faults) == 0 && len(p.events) == 0
}

func (p plan) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "seed %d: replica set %v, sharded %v, retryable writes %v, without history %v, duplicates %d, unique %v, recoverers %d\n", p.seed, p.replicaSet, p.sharded, p.retryWrites, p.noHistory, p.duplicates, p.unique, p.recoverers)
	for i, in := range p.inserters {
		fmt.Fprintf(&s, "  inserter %d, dies before insert %d\n", i, in.dies)
		for _, b := range in.batches {
			fmt.Fprintf(&s, "    batch %d: chunk %d, concurrency %d, stamp %s, remove %v, journal %v, key %v, stream %v, cancelled at insert %d\n",
				b.id, b.chunk, b.concurrency, b.stamp, b.remove, b.journal, b.key, b.stream, b.cancel)
			for _, part := range b.parts {
				fmt.Fprintf(&s, "      collection %d, number kind %d, shard key %v, ids %v\n", part.collection, part.number, part.shardKey, part.ids)
			}
		}
	}
	for _, op := range p.foreign {
		fmt.Fprintf(&s, "  foreign %+v\n", op)
	}
	for _, f := range p.faults {
		fmt.Fprintf(&s, "  fault %s\n", f)
	}
	for _, e := range p.events {
		fmt.Fprintf(&s, "  event %s after %d commands, of inserter %d, length %d\n", e.kind, e.after, e.inserter, e.length)
	}
	return s.String()
}
