package rollback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/journal"
)

// finish brings a record whose owner is dead, or that waited for its last look, to its end.
func (r *recoverer) finish(ctx context.Context, record journal.Record) error {
	problem := func(err error) bson.D {
		return bson.D{{Key: "problem", Value: firstWords(err)}}
	}
	targets, err := r.targets(ctx, record)
	if errors.Is(err, journal.ErrDamaged) { // it will be so the next time: say it in the record
		tried := append(problem(err), bson.E{Key: "attempts", Value: record.Attempts + 1})
		return errors.Join(err, r.journal.Note(ctx, record, tried))
	}
	if err != nil {
		return err
	}
	to := journal.Aborting
	if record.State == journal.Watching {
		to = journal.Watching
	}
	sent := time.Now()
	taken, err := r.journal.Swap(ctx, record, journal.Change{
		To: to, Owner: r.owner, Beat: true,
		Set: bson.D{{Key: "attempts", Value: record.Attempts + 1}},
	})
	if errors.Is(err, journal.ErrLost) { // it lives after all, or another recovery was faster
		r.alive(record)
		return nil
	}
	if err != nil {
		return err
	}
	lease := r.journal.Hold(taken, sent)
	defer lease.Release()
	err = r.undo(ctx, lease, targets)
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, lease.Note(ctx, problem(err)))
	}
	return err
}

// undo deletes a record's documents and moves the record on.
func (r *recoverer) undo(ctx context.Context, lease *journal.Lease, targets []Target) error {
	record := lease.Record()
	policy := r.Policy
	policy.Stop = ctx.Done()
	done, err := Undo(ctx, policy, targets...)
	r.note(func(report *RecoveryReport) { report.Deleted += done.Deleted })
	if err != nil {
		return err
	}
	watched := record.State == journal.Watching && done.Deleted == 0
	next := journal.Watching
	if watched {
		next = journal.Aborted
	}
	if record.State != journal.Watching || watched {
		err := lease.Swap(ctx, journal.Change{To: next})
		if errors.Is(err, journal.ErrLost) { // another recovery does the rest
			return nil
		}
		if err != nil {
			return fmt.Errorf("everything is deleted, but the record could not be changed: %w", err)
		}
	}
	r.note(func(report *RecoveryReport) {
		if watched {
			report.Closed = append(report.Closed, record.ID)
		} else {
			report.RolledBack = append(report.RolledBack, record.ID)
		}
	})
	r.Policy.Logger.LogAttrs(ctx, slog.LevelInfo, "recovery: rolled back", slog.String("record", record.ID), slog.String("state", string(next)), slog.Int64("deleted", done.Deleted))
	return nil
}

func firstWords(err error) string {
	text := err.Error()
	if len(text) > 500 {
		text = strings.ToValidUTF8(text[:497], "") + "..."
	}
	return text
}

// targets turns a record into what has to go. All of it may still be on its way, for the owner is dead, not its requests.
func (r *recoverer) targets(ctx context.Context, record journal.Record) ([]Target, error) {
	targets := make([]Target, len(record.Targets))
	for i, t := range record.Targets {
		client, err := r.client(ctx, t)
		if err != nil {
			return nil, err
		}
		targets[i] = Target{
			Collection: client.Database(t.Database).Collection(t.Collection),
			Stamp:      Stamp{Field: record.Stamp, Value: record.Attempt},
			Late:       record.State != journal.Watching,
		}
		for _, run := range t.Minted {
			targets[i].Ranges = append(targets[i].Ranges, Range{First: run.First, Count: int(run.Count)})
		}
	}
	err := r.journal.Claims(ctx, record.Attempt, func(page journal.Page) error {
		if page.Target < 0 || int(page.Target) >= len(targets) {
			return fmt.Errorf("%w: a page is about part %d of %d", journal.ErrDamaged, page.Target, len(targets))
		}
		for _, id := range page.Values {
			targets[page.Target].IDs = append(targets[page.Target].IDs, id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range targets {
		if _, err := plan(targets[i], r.Policy); err != nil {
			return nil, fmt.Errorf("%w: %w", journal.ErrDamaged, err)
		}
	}
	return targets, nil
}

// client returns the client that a target's documents were stored with.
func (r *recoverer) client(ctx context.Context, target journal.Target) (*mongo.Client, error) {
	client := r.journal.Client()
	if target.Deployment != "" {
		client = r.Deployments[target.Deployment]
	}
	if client == nil {
		return nil, fmt.Errorf("%w: %q, for %s; name its client in Recovery.Deployments", ErrElsewhere, target.Deployment, target.Namespace())
	}
	ctx, cancel := context.WithTimeout(ctx, r.Policy.CommandTimeout)
	defer cancel()
	hello, err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
	if err != nil {
		return nil, fmt.Errorf("cannot tell which deployment the client of %s is for: %w", target.Namespace(), err)
	}
	if set, _ := hello.Lookup("setName").StringValueOK(); set != target.Set {
		return nil, fmt.Errorf("%w: %s was stored on the replica set %q, this client is for %q", ErrElsewhere, target.Namespace(), target.Set, set)
	}
	return client, nil
}
