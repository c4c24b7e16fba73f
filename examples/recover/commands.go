package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/intact-go/intact/rollback"
)

func (t *tool) recovery() rollback.Recovery {
	return rollback.Recovery{
		ID: t.id, Deployments: t.clients, Retention: t.retention,
		Policy: rollback.Policy{Settle: t.settle, Budget: t.budget},
	}
}

// list shows every record, and how much of the unfinished batches is stored.
func (t *tool) list(ctx context.Context) (int, error) {
	records, err := rollback.List(ctx, t.journal)
	if err != nil {
		return 0, err
	}
	findings, err := rollback.Check(ctx, t.journal, rollback.Recovery{Deployments: t.clients})
	if err != nil {
		return 0, err
	}
	found := make(map[string]rollback.Finding, len(findings))
	for _, f := range findings {
		found[f.ID] = f
	}
	lines := make([]line, len(records))
	unfinished := 0
	for i, r := range records {
		lines[i] = t.out.line(r)
		if !r.Unfinished() {
			continue
		}
		unfinished++
		if f, known := found[r.ID]; known { // else it was finished in between
			lines[i].look(f)
		}
	}
	return unfinishedCode(unfinished), t.out.list(lines)
}

// check shows the unfinished records with what is stored of them.
func (t *tool) check(ctx context.Context) (int, error) {
	findings, err := rollback.Check(ctx, t.journal, t.recovery())
	if err != nil {
		return 0, err
	}
	lines := make([]line, len(findings))
	for i, f := range findings {
		lines[i] = t.out.line(f.Record)
		lines[i].look(f)
		lines[i].Leftovers = leftovers(f.Stored)
	}
	return unfinishedCode(len(findings)), t.out.check(lines)
}

func unfinishedCode(records int) int {
	if records > 0 {
		return exitUnfinished
	}
	return exitDone
}

// recover makes two passes: one that deletes, and one that looks once more.
func (t *tool) recover(ctx context.Context) (int, error) {
	first, err := rollback.Recover(ctx, t.journal, t.recovery())
	both := first
	if err == nil && len(first.RolledBack) > 0 {
		var second rollback.RecoveryReport
		second, err = rollback.Recover(ctx, t.journal, t.recovery())
		both.Alive, both.Failed = second.Alive, second.Failed
		both.RolledBack = append(both.RolledBack, second.RolledBack...)
		both.Closed = append(both.Closed, second.Closed...)
		both.Removed = append(both.Removed, second.Removed...)
		both.Deleted += second.Deleted
	}
	if printed := t.out.report(both); err != nil || printed != nil {
		return 0, errors.Join(err, printed)
	}
	// What was rolled back and not closed is still waiting.
	return unfinishedCode(len(both.Alive) + len(both.RolledBack) - len(both.Closed)), nil
}

// watch recovers until ctx ends, which is how it is meant to end.
func (t *tool) watch(ctx context.Context) (int, error) {
	recovery := t.recovery()
	recovery.Every = t.every
	recovery.Policy.Logger = slog.New(t.out.log())
	fmt.Fprintf(t.stderr, "recover: watching %s.%s every %s\n", t.db, t.collection, t.every)
	_, err := rollback.Recover(ctx, t.journal, recovery)
	if ctx.Err() != nil {
		return exitDone, nil
	}
	return 0, err
}

func (t *tool) forget(ctx context.Context) (int, error) {
	if err := rollback.Forget(ctx, t.journal, t.id, t.reason); err != nil {
		return 0, err
	}
	return exitDone, t.out.forgotten(t.id, t.reason)
}
