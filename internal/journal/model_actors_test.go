package journal_test

// owner makes every step that the owner can make.
func (m *model) owner(w world) {
	o := w.owner
	step := func(change func(next *world)) {
		next := w
		change(&next)
		m.reach(next)
	}
	goTo := func(at place) { step(func(next *world) { next.owner.at = at }) }

	if !o.ended() {
		if !w.tainted {
			goTo(dead)
		}
		if o.beats > 0 {
			step(func(next *world) {
				next.owner.beats--
				next.rec.count(o.known)
			})
		}
	}
	switch o.at {
	case creating:
		step(func(next *world) { // written and answered
			next.rec = rec{state: open, version: 1, by: owner}
			next.owner.at, next.owner.known, next.owner.beats = insert0, next.rec, 2
		})
		step(func(next *world) { // no answer; it may arrive later
			next.stray = stray{flying: true}
			next.owner.at = unsent
		})
	case insert0, insert1:
		m.insert(w)
	case committing:
		if !w.owned() {
			goTo(m.fenced()) // the beat before the commit found out
		}
		if w.tainted {
			return // see the model's assumptions
		}
		c := m.byOwner(w, committed, map[answer]place{made: stored, missed: m.fenced(), unanswered: deciding})
		c.blind = m.blindCommit
		m.swap(w, c)
	case deciding:
		goTo(unknown) // nobody can be asked
		if m.hastyRollback {
			goTo(undoing)
		}
		m.commitAgain(w)
		// The commit is refused, so the record is aborted: one of the two loses.
		m.swap(w, m.byOwner(w, aborting, map[answer]place{made: undoing, unanswered: unknown}))
		if probe := w.rec; !probe.swap(o.known, aborting, owner, false) {
			m.commitAgain(w) // a look at the record tells which
		}
	case toAborting:
		m.swap(w, m.byOwner(w, aborting, map[answer]place{made: undoing, missed: undoing, unanswered: undoing}))
	case undoing:
		step(func(next *world) {
			m.delete(next)
			next.owner.at = closing
			if o.late {
				next.owner.at = settling
			}
		})
	case settling:
		for _, next := range settled(w) {
			m.delete(&next)
			next.owner.at = closing
			m.reach(next)
		}
	case closing:
		if o.known.state != aborting {
			goTo(undone) // a recovery will close the record
			return
		}
		to := aborted
		if o.late {
			to = watching
		}
		m.swap(w, m.byOwner(w, to, map[answer]place{made: undone, missed: undone, unanswered: undone}))
	}
}

// insert makes every step that one insert of the owner can be.
func (m *model) insert(w world) {
	which, then := 0, insert1
	if w.owner.at == insert1 {
		which, then = 1, committing
	}
	if !w.owned() {
		found := w // by the beat before the chunk
		found.owner.at = m.fenced()
		m.reach(found)
	}
	sent := w
	sent.tainted = sent.tainted || !w.owned()

	answered := sent
	answered.docs[which] = true
	answered.owner.at = then
	m.reach(answered)

	lost := sent
	lost.flying[which] = true
	lost.owner.at, lost.owner.late = toAborting, true
	m.reach(lost)

	refused := w
	refused.owner.at = toAborting
	m.reach(refused)
}

// fenced is where an owner goes that finds out that it was taken over.
func (m *model) fenced() place {
	if m.keeps {
		return unknown
	}
	return undoing
}

// owned reports whether the record is as the owner knows it.
func (w world) owned() bool {
	return w.rec != (rec{}) && w.rec.version == w.owner.known.version && w.rec.by == owner
}

// commitAgain is the second sending of a commit whose answer was lost, and the look at the record after it.
func (m *model) commitAgain(w world) {
	next := w
	known := w.owner.known
	switch {
	case next.rec.swap(known, committed, owner, false):
		m.changed(&next)
		next.owner.at = stored
	case next.rec.made(known, committed, owner):
		next.owner.at = stored
	case next.rec == rec{} && !m.goneIsLost:
		next.owner.at = unknown // it may have been committed, and then removed
	default:
		next.owner.at = m.fenced()
	}
	m.reach(next)
}

// answer is what a sender hears of a compare-and-set.
type answer uint8

const (
	made       answer = iota // it was made
	missed                   // the record is not as the sender knew it
	unanswered               // nothing: it was made, or not, or will be
)

// compareAndSet is one, and where its sender goes by the answer; answers that are not named do not happen.
type compareAndSet struct {
	from  rec
	to    state
	by    who
	beat  bool // compare the beat too
	blind bool // compare nothing
	then  map[answer]place
	at    func(*world) *place // where the sender is
	known func(*world) *rec   // what it knows
}

func (m *model) byOwner(w world, to state, then map[answer]place) compareAndSet {
	return compareAndSet{
		from: w.owner.known, to: to, by: owner, then: then,
		at:    func(w *world) *place { return &w.owner.at },
		known: func(w *world) *rec { return &w.owner.known },
	}
}

func (m *model) byRecovery(w world, i int, to state, then map[answer]place) compareAndSet {
	return compareAndSet{
		from: w.recover[i].known, to: to, by: recovery0 + who(i), then: then,
		at:    func(w *world) *place { return &w.recover[i].at },
		known: func(w *world) *rec { return &w.recover[i].known },
	}
}

// swap makes every step that one compare-and-set can be.
func (m *model) swap(w world, c compareAndSet) {
	arrived := w
	heard := missed
	if arrived.rec.swap(c.from, c.to, c.by, c.beat) {
		heard = made
	} else if c.blind && arrived.rec != (rec{}) {
		heard = made
		arrived.rec.state, arrived.rec.by = c.to, c.by
		arrived.rec.version++
	}
	if heard == made {
		m.changed(&arrived)
	}
	if then, happens := c.then[heard]; happens {
		next := arrived
		if heard == made {
			*c.known(&next) = next.rec
		}
		*c.at(&next) = then
		m.reach(next)
	}
	then, happens := c.then[unanswered]
	if !happens {
		return
	}
	*c.at(&arrived) = then // it arrived, and the answer is lost
	m.reach(arrived)
	away := w // it never arrives
	*c.at(&away) = then
	m.reach(away)
	if !away.stray.flying { // it arrives later; one such command at a time is enough
		away.stray = stray{flying: true, from: c.from, to: c.to, by: c.by, beat: c.beat}
		m.reach(away)
	}
}

// recovery makes every step that a recovery can make.
func (m *model) recovery(w world, i int) {
	r := w.recover[i]
	step := func(change func(next *world)) {
		next := w
		change(&next)
		m.reach(next)
	}
	if r.at != idle {
		step(func(next *world) { next.recover[i].at = idle }) // it dies, or gives up; another one may begin
	}
	toIdle := map[answer]place{made: idle, missed: idle, unanswered: idle}
	switch r.at {
	case idle:
		if r.left > 0 && w.rec != (rec{}) {
			step(func(next *world) { m.look(next, &next.recover[i]) })
		}
	case seen:
		c := m.byRecovery(w, i, aborting, map[answer]place{made: deleting, missed: idle, unanswered: idle})
		c.beat = true
		m.swap(w, c)
	case deleting:
		step(func(next *world) {
			m.delete(next)
			next.recover[i].at = again
			if m.noSettle {
				next.recover[i].at = toAborted
			}
		})
	case again:
		for _, next := range settled(w) {
			m.delete(&next)
			next.recover[i].at = toWatching
			m.reach(next)
		}
	case toWatching:
		m.swap(w, m.byRecovery(w, i, watching, toIdle))
	case sweepSettle:
		for _, next := range settled(w) {
			next.recover[i].at = sweepTake
			m.reach(next)
		}
	case sweepTake:
		c := m.byRecovery(w, i, watching, map[answer]place{made: sweeping, missed: idle, unanswered: idle})
		c.beat = true
		m.swap(w, c)
	case sweeping:
		step(func(next *world) {
			next.recover[i].at = toAborted
			if m.delete(next) {
				next.recover[i].at = idle // there was something: it is looked at once more by a later pass
			}
		})
	case toAborted:
		m.swap(w, m.byRecovery(w, i, aborted, toIdle))
	}
}

// look is a recovery's first look at the record.
func (m *model) look(w *world, r *recoveryAt) {
	r.left--
	switch {
	case w.rec.state.final(): // its retention is over
		w.rec = rec{}
	case w.rec.state == watching:
		r.at, r.known = sweepSettle, w.rec
	case m.openOnly && w.rec.state != open:
	default:
		r.at, r.known = seen, w.rec
	}
}
