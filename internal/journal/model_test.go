package journal_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/intact-go/intact/internal/journal"
)

// This is a model of the protocol: one owner that inserts two chunks, two recoveries, and what a network may do to each of
// their commands. TestModel visits every state that any interleaving of single commands can reach. That the model's record
// changes as a real one is shown by TestModelIsTrue.
//
// There is no time in it. A recovery may take a record over at any moment, if only the beat has not moved since it looked;
// so the owner's look at its clock before a chunk is as good as nothing. What is proved depends on time in three places:
//
//   - No insert travels longer than the settle time.
//   - The look at the clock before the commit is younger than the answer to the last insert. So an owner that inserted
//     after it was taken over, because it was paused between its look and the insert, finds out before it commits.
//   - Such an owner lives on to remove what it wrote.

// rec is a journal record. The zero rec is none.
type rec struct {
	state   state
	version uint8
	beat    uint8
	by      who
}

// state is a position in states; small, because there are millions of worlds.
type state uint8

const (
	absent state = iota
	open
	committed
	aborting
	watching
	aborted
)

var states = [...]journal.State{open: journal.Open, committed: journal.Committed, aborting: journal.Aborting, watching: journal.Watching, aborted: journal.Aborted}

func (s state) String() string { return string(states[s]) }

func (s state) final() bool { return states[s].Final() }

type who uint8

const (
	nobody who = iota
	owner
	recovery0
	recovery1
)

// swap is one compare-and-set, as the server applies it.
func (r *rec) swap(from rec, to state, by who, compareBeat bool) bool {
	if r.state == absent || r.state != from.state || r.version != from.version || compareBeat && r.beat != from.beat {
		return false
	}
	r.state, r.by = to, by
	r.version++
	return true
}

// made reports whether the record is what the sender's own change has made of it, which a sender looks at that found
// nothing to change: an earlier sending's answer may have been lost.
func (r rec) made(from rec, to state, by who) bool {
	return r.state == to && r.by == by && r.version == from.version+1
}

// count is one beat, as the server applies it.
func (r *rec) count(from rec) bool {
	if r.state == absent || r.version != from.version || r.by != from.by {
		return false
	}
	r.beat++
	return true
}

// world is everything that there is. It is comparable.
type world struct {
	rec     rec
	docs    [2]bool // which chunks are stored
	flying  [2]bool // which inserts may still arrive
	stray   stray   // a journal command whose sender has given up on its answer; it may still arrive
	verdict state
	tainted bool // the owner inserted after it was taken over
	owner   ownerAt
	recover [2]recoveryAt
}

// stray is a compare-and-set on its way.
type stray struct {
	flying bool
	from   rec
	to     state
	by     who
	beat   bool
}

// ownerAt is where the owner is.
type ownerAt struct {
	at    place
	known rec  // the record as the owner knows it
	late  bool // an insert's answer was lost
	beats uint8
}

func (o ownerAt) ended() bool {
	return o.at == stored || o.at == undone || o.at == unsent || o.at == unknown || o.at == dead
}

// recoveryAt is where a recovery is.
type recoveryAt struct {
	at    place
	known rec
	left  uint8 // passes that it may still make
}

// place is where an owner or a recovery can be.
type place uint8

const (
	idle place = iota // a recovery between two passes
	seen
	deleting
	again
	toWatching
	sweepSettle
	sweepTake
	sweeping
	toAborted

	creating
	insert0
	insert1
	committing
	deciding
	toAborting
	undoing
	settling
	closing
	stored
	undone
	unsent
	unknown
	dead
)

var places = [...]string{
	idle: "idle", seen: "has seen a record", deleting: "deletes", again: "deletes again after the settle time",
	toWatching: "sets the record to watching", sweepSettle: "waits to look once more", sweepTake: "takes over to look once more",
	sweeping: "looks once more", toAborted: "sets the record to aborted",
	creating: "creates the record", insert0: "inserts the first chunk", insert1: "inserts the second chunk",
	committing: "commits", deciding: "wonders about a lost commit", toAborting: "sets the record to aborting",
	undoing: "deletes", settling: "deletes again after the settle time", closing: "closes the record",
	stored: "stored", undone: "rolled back", unsent: "nothing sent", unknown: "commit unknown", dead: "dead",
}

func (p place) String() string { return places[p] }

// model explores the worlds.
type model struct {
	seen   map[world]struct{}
	stack  []visit
	path   []world // from the beginning to the world in hand
	broken string
	twisted
}

type visit struct {
	world world
	depth int
}

// twisted switches off single rules of the protocol, to see that the model notices.
type twisted struct {
	blindCommit   bool // the commit does not compare
	hastyRollback bool // a lost commit is rolled back without more ado
	noSettle      bool // recoveries do not wait for late inserts
	keeps         bool // a fenced owner keeps what it wrote
	openOnly      bool // recoveries look at open records only
	goneIsLost    bool // a record that is gone after a lost commit counts as taken over
}

func (m *model) reach(w world) {
	// What nobody will ask for any more does not tell worlds apart.
	for i := range w.recover {
		if w.recover[i].at == idle {
			w.recover[i].known = rec{}
		}
	}
	if w.owner.ended() {
		w.owner = ownerAt{at: w.owner.at}
	}
	if _, known := m.seen[w]; !known {
		m.seen[w] = struct{}{}
		m.stack = append(m.stack, visit{w, len(m.path)})
	}
}

func (m *model) fail(format string, args ...any) {
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, args...)
	}
}

// run visits everything that can be reached from the beginning, depth first, with so many passes of each recovery.
func (m *model) run(passes [2]uint8) {
	m.seen = make(map[world]struct{})
	begin := world{owner: ownerAt{at: creating}}
	for i := range begin.recover {
		begin.recover[i] = recoveryAt{at: idle, left: passes[i]}
	}
	m.reach(begin)
	for len(m.stack) > 0 && m.broken == "" {
		next := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		m.path = append(m.path[:next.depth], next.world)
		m.arrivals(next.world)
		m.owner(next.world)
		for i := range next.world.recover {
			m.recovery(next.world, i)
		}
		m.atRest(next.world)
	}
}

// story tells how the world in hand was reached.
func (m *model) story() string {
	var text strings.Builder
	for _, w := range m.path {
		fmt.Fprintf(&text, "%+v\n", w)
	}
	return text.String()
}

// changed notes what a change of the record means.
func (m *model) changed(w *world) {
	if w.rec.state != committed && w.rec.state != aborting {
		return
	}
	if w.verdict != absent && w.verdict != w.rec.state {
		m.fail("two verdicts: %s, then %s", w.verdict, w.rec.state)
	}
	w.verdict = w.rec.state
}

func (m *model) delete(w *world) (found bool) {
	for i := range w.docs {
		found = found || w.docs[i]
		if w.docs[i] && w.verdict == committed {
			m.fail("a document of a committed batch was deleted")
		}
		w.docs[i] = false
	}
	return found
}

// arrivals are what happens without anybody's doing.
func (m *model) arrivals(w world) {
	for i, flying := range w.flying {
		if flying {
			next := w
			next.flying[i], next.docs[i] = false, true
			m.reach(next)
		}
	}
	if s := w.stray; s.flying {
		next := w
		next.stray = stray{}
		if s.from == (rec{}) {
			next.rec = rec{state: open, version: 1, by: owner}
		} else if next.rec.swap(s.from, s.to, s.by, s.beat) {
			m.changed(&next)
		}
		m.reach(next)
	}
}

// settled returns the worlds in which no insert is on its way any more: each arrived or was lost.
func settled(w world) []world {
	worlds := []world{w}
	for i := range w.flying {
		for _, x := range worlds {
			if x.flying[i] {
				arrived := x
				arrived.flying[i], arrived.docs[i] = false, true
				worlds = append(worlds, arrived)
			}
		}
	}
	for i := range worlds {
		worlds[i].flying = [2]bool{}
	}
	return worlds
}

// atRest judges a world in which nobody does anything any more: what is left is for a last recovery.
func (m *model) atRest(w world) {
	o := w.owner.at
	ended := w.owner.ended()
	for _, r := range w.recover {
		ended = ended && r.at == idle
	}
	if !ended || w.stray.flying {
		return
	}
	for _, x := range settled(w) {
		if x.rec != (rec{}) && !x.rec.state.final() {
			if m.openOnly && x.rec.state != open {
				m.fail("an unfinished record is never looked at")
			}
			m.delete(&x) // a last recovery, which nothing disturbs
			if x.rec.state == open {
				x.verdict = aborting
			}
		}
		all, some := x.docs[0] && x.docs[1], x.docs[0] || x.docs[1]
		switch {
		case x.verdict == committed && !all:
			m.fail("committed, but not whole")
		case x.verdict != committed && some && o != unknown:
			m.fail("not committed, but there is something left")
		case some && !all:
			m.fail("neither whole nor gone")
		case o == stored && x.verdict != committed:
			m.fail("the owner says stored, the verdict is %q", x.verdict)
		case o == undone && x.verdict == committed:
			m.fail("the owner says rolled back, the verdict is %q", x.verdict)
		}
	}
}

// TestModel visits all worlds.
func TestModel(t *testing.T) {
	m := model{}
	m.run([2]uint8{2, uint8(*secondPasses)})
	t.Logf("%d worlds", len(m.seen))
	if m.broken != "" {
		t.Errorf("%s:\n%s", m.broken, m.story())
	}
	if len(m.seen) < 100_000 {
		t.Errorf("%d worlds are too few: the model does not go on", len(m.seen))
	}
}

var secondPasses = flag.Int("model.passes", 1, "how many passes the second recovery of the model makes; the first makes two")

// TestModelNotices switches off one rule of the protocol after the other.
func TestModelNotices(t *testing.T) {
	for _, c := range []struct {
		without string
		rules   twisted
	}{
		{"the commit's comparison", twisted{blindCommit: true}},
		{"the decision about a lost commit", twisted{hastyRollback: true}},
		{"waiting for late inserts", twisted{noSettle: true}},
		{"the fenced owner's cleaning up", twisted{keeps: true}},
		{"recovery of all unfinished records", twisted{openOnly: true}},
		{"the doubt about a lost commit's record that is gone", twisted{goneIsLost: true}},
	} {
		t.Run(c.without, func(t *testing.T) {
			m := model{twisted: c.rules}
			m.run([2]uint8{2, 1})
			if m.broken == "" {
				t.Error("nothing is wrong in the model without it")
			}
			t.Log(m.broken)
		})
	}
}
