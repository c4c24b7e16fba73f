package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/internal/retry"
)

// run is one call of Insert.
type run struct {
	hooks
	config   *Config
	targets  *checkedTargets
	parts    []*part
	streams  bool // one of the parts is a stream
	mint     mint
	gate     *retry.Gate
	warnings []error
	panicked any // what a stream's source panicked with

	// going is done when no further insert may start: when the caller's context ends or the batch has failed. Insert
	// commands themselves never run on it, because to cancel them would turn known outcomes into unknown ones.
	going context.Context
	halt  context.CancelFunc

	sessions sessions
	ledger   *ledger // nil without a journal

	state   sync.Mutex // protects the rest while inserts run
	failure error
	refusal []DocumentError
	clashed []clash
	sent    bool
}

// clash is a document whose proposed number another writer took first.
type clash struct {
	part    *part
	which   int // of the part's numberings
	doc     *document
	refusal DocumentError
}

// chunk is what travels in one insert command.
type chunk struct {
	part      *part
	documents []*document
}

func newRun(in *Inserter, key string) *run {
	r := &run{config: &in.config, targets: &in.targets}
	r.hooks = hooks{config: &in.config, id: randomID()}
	if in.config.Journal != nil {
		r.ledger = newLedger(&in.config, r.id, key)
	}
	return r
}

// unsent makes the *Error of a batch of which nothing was sent.
func (r *run) unsent(err error) error {
	failed, own := err.(*Error) // not errors.As: a Sequence may have failed over a batch of its own
	if !own {
		failed = &Error{BatchID: r.id, Total: r.total, Cause: err}
	}
	failed.JournalID = r.journalID()
	r.tell(Event{Kind: Failed, Documents: r.total, Err: failed.Cause})
	return failed
}

// ended is the error of a context that is done: its Err, and its cause if that says more.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

// insert sends everything, or stops at the first failure and waits for what is running. Afterwards r.failure is nil if
// and only if every document is stored.
func (r *run) insert(ctx context.Context) {
	r.going, r.halt = context.WithCancel(ctx)
	defer r.halt()
	r.gate = retry.NewGate(r.config.Concurrency)
	source := r.produce
	for attempt := 1; ; attempt++ {
		r.dispatch(source)
		if r.failure == nil && ctx.Err() != nil && !r.complete() {
			r.fail(ended(ctx))
		}
		if r.failure != nil || len(r.clashed) == 0 {
			break
		}
		chunks := r.renumber(ctx, attempt)
		source = func(start func(chunk)) { r.startAll(chunks, start) }
	}
	if r.failure == nil && !r.complete() {
		r.fail(errors.New("not every document was acknowledged")) // cannot happen; never call it a success
	}
}

// dispatch sends the chunks of a source, so many at a time as configured, and returns when none is running.
func (r *run) dispatch(source func(start func(chunk))) {
	if len(r.parts) == 1 && r.total <= r.parts[0].chunkSize && !r.streams { // one command needs no machinery
		source(r.send)
		return
	}
	var group errgroup.Group
	group.SetLimit(r.config.Concurrency)
	defer func() {
		// Whatever a source of the caller's panics with, what is running ends first, and is undone.
		if r.panicked = recover(); r.panicked != nil {
			r.fail(errors.New("the source of documents panicked"))
		}
		_ = group.Wait() // send reports through r.fail
	}()
	source(func(c chunk) {
		group.Go(func() error {
			r.send(c)
			return nil
		})
	})
}

// produce starts the chunks of all parts in order.
func (r *run) produce(start func(chunk)) {
	for _, p := range r.parts {
		if p.stream != nil {
			r.pull(p, start)
			continue
		}
		pointers := make([]*document, len(p.documents))
		for i := range p.documents {
			pointers[i] = &p.documents[i]
		}
		r.startAll(r.cut(p, pointers), start)
	}
	r.closeTotal()
}

func (r *run) startAll(chunks []chunk, start func(chunk)) {
	for _, c := range chunks {
		if r.going.Err() != nil {
			return
		}
		start(c)
	}
}

func (r *run) cut(p *part, documents []*document) []chunk {
	var all []chunk
	from, bytes := 0, 0
	for i, d := range documents {
		if i > from && (i-from == p.chunkSize || bytes+len(d.raw) > p.chunkBytes) {
			all = append(all, chunk{p, documents[from:i]})
			from, bytes = i, 0
		}
		bytes += len(d.raw)
	}
	if from < len(documents) {
		all = append(all, chunk{p, documents[from:]})
	}
	return all
}

// fail makes err the batch's failure, unless it has one, and stops further inserts.
func (r *run) fail(err error, refused ...DocumentError) {
	r.state.Lock()
	first := r.failure == nil
	if first {
		r.failure = err
	}
	r.refusal = append(r.refusal, refused...)
	r.state.Unlock()
	r.halt()
	if first {
		r.tell(Event{Kind: Failed, Documents: r.size(), Err: err})
	}
}

// renumber gives the clashed documents new numbers and returns the chunks to send them in.
func (r *run) renumber(ctx context.Context, attempt int) []chunk {
	clashed := r.clashed
	r.clashed = nil
	encode := newEncoder(r.config.Registry, r.config.BSONOptions)
	var again []chunk
	for len(clashed) > 0 {
		p, which := clashed[0].part, clashed[0].which
		var same []clash
		same, clashed = split(clashed, func(c clash) bool { return c.part == p && c.which == which })
		documents := make([]*document, len(same))
		refusals := make([]DocumentError, len(same))
		for i, c := range same {
			documents[i], refusals[i] = c.doc, c.refusal
		}
		r.tell(Event{Kind: Renumbering, Collection: p.namespace, Documents: len(same), Err: refusals[0]})
		proposer := p.numbers[which].sequence.(Proposer)
		err := proposer.Again(ctx, attempt, len(same))
		var values []any
		if err == nil {
			values, err = reserve(ctx, proposer, len(same))
		}
		if err != nil {
			r.fail(fmt.Errorf("numbers for field %q of %s: %w", p.numbers[which].field, p.namespace, err), refusals...)
			return nil
		}
		for i, d := range documents {
			d.numbers[which] = values[i]
			if err := p.placeNumber(d, which, encode); err != nil {
				r.fail(ErrInvalidDocuments, p.refuse(d, err))
				return nil
			}
			if p.numbers[which].path[0] == "_id" {
				r.claimAgain(p, d)
			}
		}
		again = append(again, r.cut(p, documents)...)
	}
	return again
}

func split(all []clash, in func(clash) bool) (yes, no []clash) {
	for _, c := range all {
		if in(c) {
			yes = append(yes, c)
		} else {
			no = append(no, c)
		}
	}
	return yes, no
}

// sessions lends sessions to insert commands: one of its own to each that runs, so that an insert whose answer is lost
// can be fenced off. It may be used by several goroutines.
type sessions struct {
	mu      sync.Mutex // protects the rest
	all     []*mongo.Session
	free    []*mongo.Session
	unsure  []*mongo.Session        // those in which an answer was lost
	refused []*mongo.Session        // those of whose latest insert something was refused
	without map[*mongo.Client]error // clients whose servers know no sessions
}

// take returns a session for a client; nil if the servers know none.
func (s *sessions) take(client *mongo.Client) (*mongo.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, none := s.without[client]; none {
		return nil, nil
	}
	for i, session := range s.free {
		if session.Client() == client {
			s.free = slices.Delete(s.free, i, i+1)
			return session, nil
		}
	}
	session, err := client.StartSession(options.Session().SetCausalConsistency(false))
	if err == nil {
		s.all = append(s.all, session)
	}
	return session, err
}

func (s *sessions) give(session *mongo.Session) {
	if session == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, session)
}

// markUnsure remembers that an insert of this session may still be on its way.
func (s *sessions) markUnsure(session *mongo.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session != nil && !slices.Contains(s.unsure, session) {
		s.unsure = append(s.unsure, session)
	}
}

// markRefused remembers whether something of a session's latest insert was refused: a late copy of it would be tried again
// there, and what stood in its way may have been deleted by then. The next insert of the session makes the server refuse a
// copy of the one before.
func (s *sessions) markRefused(session *mongo.Session, refused bool) {
	if session == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = slices.DeleteFunc(s.refused, func(other *mongo.Session) bool { return other == session })
	if refused {
		s.refused = append(s.refused, session)
	}
}

func (s *sessions) doWithout(client *mongo.Client, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.without == nil {
		s.without = make(map[*mongo.Client]error)
	}
	s.without[client] = why
}

// toFence returns the sessions of a client that have to be fenced.
func (s *sessions) toFence(client *mongo.Client) []*mongo.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fence []*mongo.Session
	for _, session := range slices.Concat(s.unsure, s.refused) {
		if session.Client() == client {
			fence = append(fence, session)
		}
	}
	return fence
}

// end returns all sessions to their clients.
func (s *sessions) end(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.all {
		session.EndSession(ctx)
	}
	s.all, s.free, s.unsure, s.refused = nil, nil, nil, nil
}
