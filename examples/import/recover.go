package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/rollback"
)

// recoverJournal is --recover.
func (p *program) recoverJournal(ctx context.Context, o *options, show *screen) int {
	client, err := p.connect(ctx, o)
	if err != nil {
		show.say("import: %s", withoutURI(err, o.uri).Error())
		return exitNotStored
	}
	defer disconnect(client)
	report, err := recoverAll(ctx, client.Database(o.database).Collection(o.journal), show)
	if err != nil {
		show.say("import: the recovery is not complete, run it again: %s", clip(withoutURI(err, o.uri).Error(), 1000))
		return exitIncomplete
	}
	if !o.quiet {
		show.numbers.Fprintf(p.stdout, "recovered %d %s, %d %s deleted; %d still at work\n",
			len(report.RolledBack), plural(len(report.RolledBack), "import"), report.Deleted, pluralWas(report.Deleted), len(report.Alive))
	}
	return exitStored
}

// recoverEarlier finishes what earlier imports with the same journal have left. What cannot be finished now does not
// keep this import from running; its record stays.
func recoverEarlier(ctx context.Context, journal *mongo.Collection, show *screen) {
	report, err := recoverAll(ctx, journal, show)
	if report.Deleted > 0 {
		show.note("import: deleted %d documents of imports that were killed", report.Deleted)
	}
	if err != nil && ctx.Err() == nil {
		show.say("import: warning: an earlier import could not be finished, --recover says more")
	}
}

// recoverAll makes one pass over the journal, and says how long it can take if there is something to do.
func recoverAll(ctx context.Context, journal *mongo.Collection, show *screen) (rollback.RecoveryReport, error) {
	list, err := rollback.List(ctx, journal)
	if err != nil {
		return rollback.RecoveryReport{}, fmt.Errorf("the journal cannot be read: %w", err)
	}
	unfinished, wait := 0, time.Duration(0)
	for _, record := range list {
		if record.Unfinished() {
			unfinished++
			wait = max(wait, 2*record.Lease)
		}
	}
	if unfinished > 0 {
		show.note("import: %d other %s did not end; looking for up to %s whether somebody works on them", unfinished, plural(unfinished, "import"), wait)
	}
	return rollback.Recover(ctx, journal, rollback.Recovery{})
}
