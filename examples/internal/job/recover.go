package job

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/rollback"
)

// RecoverAll makes one pass over the journal of what people call imports or copies, and says how long it can take if there
// is something to do.
func RecoverAll(ctx context.Context, journal *mongo.Collection, recovery rollback.Recovery, noun string, show *screen.Screen) (rollback.RecoveryReport, error) {
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
		show.Note("%s: %d other %s did not end; looking for up to %s whether somebody works on them",
			show.Program, unfinished, screen.Plural(unfinished, noun), wait)
	}
	return rollback.Recover(ctx, journal, recovery)
}

// Reason says why a document was refused, to the person whose data it is: unlike the library's errors, which end up in
// logs, it quotes the server.
func Reason(d batch.DocumentError) string {
	switch {
	case d.Code != 0 && len(d.ErrInfo) > 0:
		return screen.Clip(fmt.Sprintf("refused by the server: %s (code %d): %s", d.Message, d.Code, relaxed(d.ErrInfo)), 1000)
	case d.Code != 0:
		return screen.Clip(fmt.Sprintf("refused by the server: %s (code %d)", d.Message, d.Code), 500)
	}
	return screen.Clip(d.Message, 500)
}

func relaxed(raw bson.Raw) string {
	text, err := bson.MarshalExtJSON(raw, false, false)
	if err != nil {
		return raw.String()
	}
	return string(text)
}
