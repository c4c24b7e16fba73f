package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/internal/retry"
)

// sending is the course of one chunk: its insert command, repeated for the documents that need it.
type sending struct {
	*run
	part    *part
	session *mongo.Session
	delays  *retry.Delays
	until   time.Time // when repeating ends; zero before the first repetition
	pending []*document
	paged   bool // the claimed ids are in the journal
}

// answer is what one command's outcome asks for.
type answer struct {
	again   []*document     // to be sent again, because of err
	waiting []DocumentError // those of again that the server named, in case they are not sent again
	refused []DocumentError // refused for good
	clashed []*document     // to be renumbered, and sent in another chunk
	err     error           // the reason for again, or for giving up if again is empty
	class   outcome.Class   // of err
}

// send inserts a chunk. It returns when the outcome of each of its documents is as clear as it can be made.
func (r *run) send(c chunk) {
	if r.going.Err() != nil {
		return
	}
	client := c.part.coll.Database().Client()
	session, err := r.sessions.take(client)
	if err != nil {
		r.fail(fmt.Errorf("no session: %w", err))
		return
	}
	s := &sending{run: r, part: c.part, session: session, pending: c.documents,
		delays: retry.Backoff{Initial: r.config.InitialDelay, Max: r.config.MaxDelay}.Start()}
	defer func() {
		r.sessions.give(s.session)
		r.state.Lock()
		defer r.state.Unlock()
		c.part.track.add(c.part, c.documents)
	}()
	for {
		if r.gate.Enter(r.going) != nil {
			return
		}
		if err := s.mayInsert(); err != nil {
			r.gate.Leave(false)
			r.fail(err)
			return
		}
		a := s.attempt()
		r.gate.Leave(a.class.Throttled)
		if !s.goOn(a) {
			return
		}
	}
}

// goOn acts on an answer, and reports whether s.pending is to be sent (again).
func (s *sending) goOn(a answer) bool {
	if len(a.refused) > 0 {
		s.tell(Event{Kind: Refused, Collection: s.part.namespace, Documents: len(a.refused), Err: a.refused[0]})
		s.fail(a.refused[0].Err, a.refused...)
		return false
	}
	if a.err == nil {
		return false
	}
	if len(a.again) == 0 {
		s.reconsider(a)
		s.fail(a.err)
		return false
	}
	now := time.Now()
	if s.until.IsZero() {
		s.until = now.Add(s.config.RetryTime)
	}
	delay := s.delays.Next(a.class.After)
	if s.config.RetryTime < 0 || now.Add(delay).After(s.until) {
		s.reconsider(a)
		s.fail(a.err, a.waiting...)
		return false
	}
	s.tell(Event{Kind: Retrying, Collection: s.part.namespace, Documents: len(a.again), Delay: delay, Err: a.err})
	s.pending = a.again
	return retry.Sleep(s.going, delay) == nil
}

// reconsider looks for the documents of a command that was refused as a whole, before the batch fails over it: the driver
// may have sent it before, on its own and without telling, and that sending may have been carried out. What is found is
// stored for all that is known. Where nobody may look, the refusal is believed.
func (s *sending) reconsider(a answer) {
	if !a.class.Refused || a.class.Code == 0 || s.session == nil {
		return
	}
	var documents []*document
	for _, d := range s.pending {
		if d.verdict == outcome.Rejected {
			documents = append(documents, d)
		}
	}
	ours, err := s.findOurs(documents)
	if err != nil {
		return
	}
	for _, d := range documents {
		if ours[identity(d)] || d.foreign {
			s.doubt(d)
		}
	}
}

// attempt sends the pending documents once and works out what is known about each.
func (s *sending) attempt() answer {
	for _, d := range s.pending {
		d.sent = true
	}
	s.state.Lock()
	s.run.sent = true
	s.state.Unlock()
	inserted, err := s.command()
	report := outcome.OfInsert(len(s.pending), inserted, err)
	if s.sessionRefused(report) {
		return answer{again: s.pending, err: err}
	}
	stored, lost := 0, false
	for i, d := range s.pending {
		switch report.Verdicts[i] {
		case outcome.Applied:
			d.verdict = outcome.Applied
			stored++
			if report.Err != nil && !d.provable() {
				s.doubt(d) // not at the write concern: a failover may lose it, and then its _id is free for somebody else
			}
		case outcome.Unknown:
			d.verdict, d.unsure, lost = outcome.Unknown, true, true
		case outcome.Rejected:
			if !d.unsure { // what was refused now may have been stored by a sending before
				d.verdict = outcome.Rejected
			}
		}
	}
	if lost {
		s.sessions.markUnsure(s.session)
	}
	switch server := s.part.server; {
	case len(report.Refusals) > 0 && server.repeats():
		s.sessions.markRefused(s.session, true)
	case !server.sharded: // else this one may have been for other shards
		s.sessions.markRefused(s.session, false)
	}
	a := s.refusals(report)
	if report.Err != nil {
		s.commandError(&a, report)
	}
	if stored > 0 {
		s.stored(stored)
	}
	return a
}

// stored tells that so many documents are stored.
func (s *sending) stored(documents int) {
	s.tell(Event{Kind: Inserted, Collection: s.part.namespace, Documents: documents})
	s.progress(Inserting, documents)
}

// command is one driver call, and one command on the wire, because a chunk never exceeds a server's limits.
func (s *sending) command() (inserted int64, err error) {
	models := make([]mongo.WriteModel, len(s.pending))
	inserts := make([]mongo.InsertOneModel, len(s.pending))
	for i, d := range s.pending {
		inserts[i].Document = d.raw
		models[i] = &inserts[i]
	}
	ctx, cancel := context.WithTimeout(mongo.NewSessionContext(context.WithoutCancel(s.going), s.session), s.config.CommandTimeout)
	defer cancel()
	return outcome.Send(ctx, s.part.inserts, models)
}

// sessionRefused finds out whether the driver refused to send because the servers know no sessions, for which its error
// has no type. From then on the batch does without.
func (s *sending) sessionRefused(report outcome.Insert) bool {
	var contradiction *outcome.ContradictionError
	if s.session == nil || report.Err == nil || report.Class != (outcome.Class{}) || errors.As(report.Err, &contradiction) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.going), s.config.CommandTimeout)
	defer cancel()
	client := s.session.Client()
	hello, err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
	if err != nil {
		return false
	}
	if _, err := hello.LookupErr("logicalSessionTimeoutMinutes"); err == nil {
		return false
	}
	s.sessions.doWithout(client, report.Err)
	s.session = nil
	return true
}

// refusals sorts the documents that the server refused one by one: stored by an earlier sending after all, to be sent
// again, to be renumbered, or refused for good.
func (s *sending) refusals(report outcome.Insert) answer {
	var a answer
	var suspects []outcome.Refusal
	for _, refusal := range report.Refusals {
		d := s.pending[refusal.Index]
		onID := refusal.Duplicate != nil && refusal.Duplicate.OnID()
		switch {
		case refusal.Duplicate != nil && d.provable() && (d.unsure || onID):
			suspects = append(suspects, refusal)
		case onID && !d.provable() && s.part.server.forgetful():
			s.unprovable(&a, d, refusal)
		case refusal.Class.Kind == outcome.Transient && s.mayRepeat(d):
			a.again = append(a.again, d)
			a.waiting = append(a.waiting, s.documentError(d, refusal))
			a.err = refusal.WriteError
			a.class = merge(a.class, refusal.Class)
		default:
			s.refusal(&a, d, refusal)
		}
	}
	if len(suspects) > 0 {
		s.settleSuspects(&a, suspects)
	}
	return a
}

// merge keeps the strictest of what several refusals ask for.
func merge(a, b outcome.Class) outcome.Class {
	b.Throttled = a.Throttled || b.Throttled
	b.After = max(a.After, b.After)
	return b
}

// mayRepeat reports whether the document can be sent again: not if it may be stored already and a duplicate key would
// then not tell whose it is.
func (s *sending) mayRepeat(d *document) bool { return !d.unsure || d.provable() }

func (s *sending) documentError(d *document, refusal outcome.Refusal) DocumentError {
	refused := DocumentError{
		Part: s.part.position, Index: d.index, Collection: s.part.namespace, ID: d.id(),
		Code: refusal.Code, Message: refusal.Message, ErrInfo: refusal.Details, Err: refusal.WriteError,
	}
	if refusal.Code == codeValidation && d.stamped {
		refused.Message += fmt.Sprintf(" (the document carries the batch's stamp, field %q; if the validator allows no further fields, see Config.Stamp)", s.config.StampField)
	}
	if duplicate := refusal.Duplicate; duplicate != nil {
		refused.Duplicate = &Duplicate{Index: duplicate.Index, Keys: duplicate.Keys}
	}
	return refused
}

// refusal takes down a document that the server refused for good, or whose number was taken.
func (s *sending) refusal(a *answer, d *document, refusal outcome.Refusal) {
	refused := s.documentError(d, refusal)
	if duplicate := refusal.Duplicate; duplicate != nil {
		d.taken = duplicate.OnID()
		for which, number := range s.part.numbers {
			proposer, ok := number.sequence.(Proposer)
			if ok && proposer.Clashed(s.going, refusal.WriteError, d.numbers[which]) {
				s.state.Lock()
				s.run.clashed = append(s.run.clashed, clash{s.part, which, d, refused})
				s.state.Unlock()
				a.clashed = append(a.clashed, d)
				return
			}
		}
	}
	a.refused = append(a.refused, refused)
}

// commandError decides what to do about an error of the whole command.
func (s *sending) commandError(a *answer, report outcome.Insert) {
	a.err, a.class = report.Err, merge(a.class, report.Class)
	if report.Class.Kind != outcome.Transient {
		a.again = nil
		return
	}
	for _, d := range s.pending {
		switch {
		case slices.Contains(a.clashed, d):
		case d.verdict == outcome.Applied:
			// Only the write concern was not met. A document that may be rolled back by a failover is not stored, and
			// sending it again would only tell that it is there now.
			a.again = nil
			return
		case !s.mayRepeat(d):
			a.again = nil
			return
		case !slices.Contains(a.again, d):
			a.again = append(a.again, d)
		}
	}
	if len(a.again) == 0 { // nothing is stored, and the clashed ones go on
		a.err = nil
	}
}
