package batch

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/rollback"
)

// replay looks whether the key's batch is stored already, and returns its result then. It clears the way for another
// attempt if the last one ended without storing anything.
func (r *run) replay(ctx context.Context) (*Result, error) {
	l := r.ledger
	have, found, err := l.journal.Get(ctx, l.record.ID)
	if err == nil && found {
		err = have.Check()
	}
	if err != nil || !found {
		return nil, err
	}
	if have.State == journal.Watching { // all that is missing is a last look, which is no reason to wait for a recovery
		_, err := rollback.Recover(ctx, r.config.Journal, rollback.Recovery{ID: have.ID, Policy: r.config.Rollback, Deployments: r.config.Deployments, Retention: -1})
		if err != nil {
			return nil, fmt.Errorf("%w; its last attempt could not be cleaned up: %w", ErrInProgress, err)
		}
		if have, found, err = l.journal.Get(ctx, l.record.ID); err != nil || !found {
			return nil, err
		}
	}
	switch have.State {
	case journal.Committed:
		if err := r.sameBatch(have); err != nil {
			return nil, err
		}
		return loadResult(ctx, l.journal, have)
	case journal.Aborted:
		return nil, l.journal.Remove(ctx, have)
	case journal.Forgotten:
		return nil, fmt.Errorf("the key's last attempt was forgotten (%s), so that documents of it may be left; use another key", have.Reason)
	}
	return nil, fmt.Errorf("%w: it is %s, by %s", ErrInProgress, have.State, have.Owner)
}

// sameBatch compares what can be compared without the documents.
func (r *run) sameBatch(have journal.Record) error {
	if len(have.Targets) != len(r.parts) {
		return fmt.Errorf("%w: that had %d parts, not %d", ErrKeyReused, len(have.Targets), len(r.parts))
	}
	for i, p := range r.parts {
		t := have.Targets[i]
		deployment, err := r.deployment(p.coll.Database().Client())
		if err != nil {
			return err
		}
		if t.Deployment != deployment {
			return fmt.Errorf("%w: part %d of that went to the deployment %q, not %q", ErrKeyReused, i, t.Deployment, deployment)
		}
		if t.Namespace() != p.namespace || p.stream == nil && t.Documents != int64(len(p.documents)) {
			return fmt.Errorf("%w: part %d of that had %d documents for %s, not %d for %s",
				ErrKeyReused, i, t.Documents, t.Namespace(), len(p.documents), p.namespace)
		}
	}
	return nil
}

// storeResult writes what a keyed batch stored, for those who ask again with the same key.
func (r *run) storeResult(ctx context.Context) ([]journal.Result, error) {
	encode := newEncoder(r.config.Registry, r.config.BSONOptions)
	results := make([]journal.Result, len(r.parts))
	pages := 0
	for i, p := range r.parts {
		if p.stream != nil {
			results[i].Streamed = true
			continue
		}
		var err error
		if !p.claims() {
			results[i].IDs = journal.Column{Minted: true}
		} else {
			ids := make([]bson.RawValue, len(p.documents))
			for j := range p.documents {
				ids[j] = p.documents[j].id()
			}
			if results[i].IDs, err = r.ledger.journal.StoreColumn(ctx, r.ledger.record, i, ids, &pages); err != nil {
				return nil, err
			}
		}
		for which, number := range p.numbers {
			values := make([]bson.RawValue, len(p.documents))
			for j := range p.documents {
				if values[j], err = encode.value(p.documents[j].numbers[which]); err != nil {
					return nil, err
				}
			}
			column, err := r.ledger.journal.StoreColumn(ctx, r.ledger.record, i, values, &pages)
			if err != nil {
				return nil, err
			}
			results[i].Numbers = append(results[i].Numbers, journal.Numbers{Field: number.field, Values: column})
		}
	}
	return results, nil
}
