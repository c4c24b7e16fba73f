package batch

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/journal"
)

// pull reads a stream, and starts a chunk whenever enough documents for one are read. It stops at the first failure.
func (r *run) pull(p *part, start func(chunk)) {
	encode := newEncoder(r.config.Registry, r.config.BSONOptions)
	var documents []document
	bytes := 0
	flush := func() bool {
		if len(documents) == 0 {
			return true
		}
		c, err := r.finishChunk(p, documents, encode)
		if err != nil {
			if failed, own := err.(*Error); own {
				r.fail(failed.Cause, failed.Documents...)
			} else {
				r.fail(err)
			}
			return false
		}
		documents, bytes = nil, 0
		start(c)
		return r.going.Err() == nil
	}
	for value, err := range p.stream {
		if r.going.Err() != nil {
			return
		}
		if err != nil {
			r.fail(fmt.Errorf("the source of %s failed after %d documents: %w", p.namespace, p.read, err))
			return
		}
		d := document{index: p.read}
		p.read++
		r.addTotal()
		if err := r.encodeStreamed(p, &d, value, encode); err != nil {
			r.fail(ErrInvalidDocuments, p.refuse(&d, err))
			return
		}
		if bytes+len(d.raw) > p.chunkBytes && !flush() {
			return
		}
		if documents == nil {
			documents = make([]document, 0, p.chunkSize)
		}
		documents = append(documents, d)
		bytes += len(d.raw)
		if len(documents) == p.chunkSize && !flush() {
			return
		}
	}
	p.ended = flush()
}

// encodeStreamed encodes a document and checks what could be checked for a slice beforehand.
func (r *run) encodeStreamed(p *part, d *document, value any, encode *encoder) error {
	if err := r.encode(p, d, value, encode); err != nil {
		return err
	}
	if r.ledger != nil && !d.minted && !d.stamped {
		return errUnstamped
	}
	if d.minted {
		d.setMinted(r.mint.id())
	}
	return nil
}

// finishChunk gives a chunk's documents their numbers, and has its minted ids journaled.
func (r *run) finishChunk(p *part, documents []document, encode *encoder) (chunk, error) {
	for which, n := range p.numbers {
		if err := r.reserveFor(r.going, n.sequence, []use{{p, which, documents}}); err != nil {
			return chunk{}, err
		}
	}
	if err := r.refused(p.placeNumbers(documents, make(map[string]int), encode)); err != nil {
		return chunk{}, err
	}
	c := chunk{part: p, documents: make([]*document, len(documents))}
	for i := range documents {
		c.documents[i] = &documents[i]
	}
	r.claim(p, c)
	return c, r.journalWindow(p, c)
}

// claim takes down the claimed ids of a chunk. Those that carry the stamp are then known to the track as well: to delete
// by _id and stamp what was not sent does no harm.
func (r *run) claim(p *part, c chunk) {
	r.state.Lock()
	defer r.state.Unlock()
	for _, d := range c.documents {
		if !d.minted {
			p.claimed.add(d.id())
			d.entry.listed = d.stamped
		}
	}
}

// claimAgain takes down that a document, which is not stored, has got another _id.
func (r *run) claimAgain(p *part, d *document) {
	r.state.Lock()
	defer r.state.Unlock()
	d.entry.listed = false
	if p.stream != nil {
		p.claimed.add(d.id())
		d.entry.listed = d.stamped
	}
}

// window is how many minted ids of a stream are journaled ahead: one write of the head for so many documents. After a
// crash, recovery deletes by ranges of at most 10,000 ids, so that a window that was hardly used costs it little.
const window = 100_000

// journalWindow makes sure that the chunk's minted ids are in the journal before it is sent. The head keeps a constant
// size, because a batch's minted ids are few runs.
func (r *run) journalWindow(p *part, c chunk) error {
	if r.ledger == nil {
		return nil
	}
	target := &r.ledger.record.Targets[p.position]
	grown := false
	for _, d := range c.documents {
		if d.minted {
			grown = cover(target, d.id().ObjectID()) || grown
		}
	}
	if !grown {
		return nil
	}
	ctx, cancel := r.limit(r.going)
	defer cancel()
	err := r.ledger.lease.Note(ctx, bson.D{{Key: "targets", Value: r.ledger.record.Targets}})
	if err != nil {
		return r.fenced(err)
	}
	return nil
}

// cover adds a window to a target's runs if an id is in none of them, and reports whether it did. Ids come in the order in
// which they were minted.
func cover(target *journal.Target, id bson.ObjectID) bool {
	n := len(target.Minted)
	if n > 0 {
		run := target.Minted[n-1]
		if ahead := int64(counterOf(id) - counterOf(run.First)); [9]byte(run.First[:9]) == [9]byte(id[:9]) && ahead < run.Count {
			return false
		} else if end := run.At(run.Count - 1); follows(end, id) {
			target.Minted[n-1].Count = min(run.Count+window, int64(counterEnd-counterOf(run.First)))
			return true
		}
	}
	target.Minted = append(target.Minted, journal.Run{First: id, Count: min(window, int64(counterEnd-counterOf(id)))})
	return true
}

// errUnstamped: see checkJournal.
var errUnstamped = errors.New("with a journal, documents with claimed ids need the stamp: after a crash nothing else would prove whose they are")
