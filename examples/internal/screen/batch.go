package screen

import (
	"time"

	"github.com/intact-go/intact/batch"
)

// Batch shows the phases of a batch: its methods are the batch's Progress and Observe, which are called one at a time.
type Batch struct {
	Screen *Screen
	Total  int      // documents; negative if nobody knows
	URIs   []string // whose credentials have to stay out of messages
	last   batch.Progress
	told   time.Time // when trouble was told last
}

// troubleEvery is the time between two lines about what is being tried again.
const troubleEvery = 5 * time.Second

// trouble says why nothing goes on. A rollback is tried until it succeeds, so that this can be all there is to see.
func (b *Batch) trouble(event batch.Event) {
	if now := time.Now(); now.Sub(b.told) >= troubleEvery {
		b.told = now
		b.Screen.Say("%s: trying again: %s", b.Screen.Program, Clip(HideCredentials(event.Err, b.URIs...).Error(), 200))
	}
}

// Observe begins the phases that take long.
func (b *Batch) Observe(event batch.Event) {
	switch event.Kind {
	case batch.Prepared:
		b.begin(batch.Inserting, "storing", b.Total, Documents)
	case batch.Retrying:
		b.trouble(event)
	case batch.RollbackStep:
		if event.Err != nil {
			b.trouble(event)
		}
	case batch.RollbackStarted:
		b.Screen.End()
		if event.Documents > 0 {
			b.Screen.Note("%s: deleting what was stored", b.Screen.Program)
		}
		b.begin(batch.RollingBack, "rolling back", event.Documents, Deletions)
	}
}

func (b *Batch) begin(phase batch.Phase, name string, total int, unit Unit) {
	b.Screen.Begin(name, int64(total), unit)
	b.last = batch.Progress{Phase: phase}
}

// Progress goes on.
func (b *Batch) Progress(p batch.Progress) {
	switch {
	case p.Phase == batch.Preparing && b.last.Phase != p.Phase:
		b.begin(p.Phase, "checking", b.Total, Documents)
	case p.Phase == batch.Committing && b.last.Phase != p.Phase:
		b.begin(p.Phase, "removing marks", b.Total, Documents)
	}
	b.Screen.Add(p.Done-b.last.Done, p.Done)
	b.last = p
}
