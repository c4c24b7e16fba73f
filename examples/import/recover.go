package main

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/rollback"
)

// recoverJournal is --recover.
func (p *program) recoverJournal(ctx context.Context, o *options, show *screen.Screen) int {
	client, err := p.connect(ctx, o)
	if err != nil {
		show.Say("import: %s", screen.HideCredentials(err, o.uri).Error())
		return exitNotStored
	}
	defer job.Disconnect(client)
	report, err := job.RecoverAll(ctx, client.Database(o.database).Collection(o.journal), rollback.Recovery{}, "import", show)
	if err != nil {
		show.Say("import: the recovery is not complete, run it again: %s", screen.Clip(screen.HideCredentials(err, o.uri).Error(), 1000))
		return exitIncomplete
	}
	if !o.quiet {
		show.Numbers.Fprintf(p.stdout, "recovered %d %s, %d %s deleted; %d still at work\n",
			len(report.RolledBack), screen.Plural(len(report.RolledBack), "import"), report.Deleted, pluralWas(report.Deleted), len(report.Alive))
	}
	return exitStored
}

// recoverEarlier finishes what earlier imports with the same journal have left. What cannot be finished now does not
// keep this import from running; its record stays.
func recoverEarlier(ctx context.Context, journal *mongo.Collection, show *screen.Screen) {
	report, err := job.RecoverAll(ctx, journal, rollback.Recovery{}, "import", show)
	if report.Deleted > 0 {
		show.Note("import: deleted %d documents of imports that were killed", report.Deleted)
	}
	if err != nil && ctx.Err() == nil {
		show.Say("import: warning: an earlier import could not be finished, --recover says more")
	}
}
