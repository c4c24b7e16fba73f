package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/rollback"
)

// Copy is a job: the documents of a collection go through a transform into one collection or several, all or none.
type Copy struct {
	From   *mongo.Collection
	Filter bson.D // which documents; nil for all

	// To are the collections that the transform speaks of by their index. All are of one client, which is the journal's
	// too. Documents for the first are stored as they come; those for the others are held in memory until the source has
	// been read, because a batch stores one stream after the other: make the collection that gets the most the first.
	To []*mongo.Collection

	// Transform makes the transform of a run. A dry run must write nothing, nor take numbers.
	Transform func(dryRun bool) Transform
	// Numbering numbers the documents of the first collection, by counters in its database.
	Numbering job.Numbering

	ID      string // the job's key in the journal: what is stored under it is not stored again
	Journal *mongo.Collection
	Lease   time.Duration // without a sign of life for so long, a run counts as killed
	Workers int           // insert commands at a time

	// Mark is the field that proves of documents with an _id of their own, until all is done, that the copy has stored
	// them. It is removed then.
	Mark string
}

// patient is how documents are deleted: until none is left, or the process is ended and leaves the rest to the journal.
var patient = rollback.Policy{Budget: -1, CommandTimeout: job.DeleteTime}

// Run copies, and finishes first what an earlier run with the same journal has left. What came of it is in the summary,
// errors included.
func (c *Copy) Run(ctx context.Context, show *screen.Screen, uris ...string) *summary {
	s := c.summary(uris)
	view := &screen.Batch{Screen: show, URIs: uris}
	inserter := batch.New(batch.Config{
		Concurrency: c.Workers,
		Stamp:       c.stamp(),
		StampField:  c.Mark,
		Journal:     c.Journal,
		Lease:       c.Lease,
		Progress:    view.Progress,
		Observe:     view.Observe,
		Rollback:    patient,
	})
	result, err := c.earlier(ctx, inserter)
	if err == nil && result == nil {
		if err = c.clearUp(ctx, show, uris); err != nil {
			s.unknown = true
		} else {
			result, err = c.insert(ctx, inserter, view, s)
		}
	}
	if err != nil {
		s.failed(ctx, err)
		return s
	}
	s.stored(result)
	if !s.Replayed {
		show.Note("%s: all is stored; counting it, and removing the marks", show.Program)
	}
	s.unfinished = c.finish(ctx, s)
	return s
}

// earlier returns the result if the job was done by an earlier run; else nil.
func (c *Copy) earlier(ctx context.Context, inserter *batch.Inserter) (*batch.Result, error) {
	_, result, err := inserter.Resolve(ctx, c.ID)
	if err != nil {
		return nil, fmt.Errorf("the journal cannot be read: %w", err)
	}
	return result, nil
}

// clearUp finishes what killed runs have left. What cannot be finished now keeps only a run of the same job from
// starting, of which InsertOnce tells. The journal's records stay: they are what "already done" is known from.
func (c *Copy) clearUp(ctx context.Context, show *screen.Screen, uris []string) error {
	deleted := 0
	policy := patient
	policy.Observe = func(event rollback.Event) {
		if event.Kind != rollback.Deleted {
			return
		}
		if deleted == 0 {
			show.Begin("deleting what a killed run has left", -1, screen.Deletions)
		}
		deleted += int(event.Documents)
		show.Add(int(event.Documents), deleted)
	}
	_, err := job.RecoverAll(ctx, c.Journal, rollback.Recovery{Policy: policy, Retention: -1}, "copy", show)
	show.End()
	if deleted > 0 {
		show.Note("%s: deleted %d documents of a run that was killed", show.Program, deleted)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		show.Say("%s: warning: an earlier run could not be finished: %s", show.Program, screen.Clip(screen.HideCredentials(err, uris...).Error(), 300))
	}
	return nil
}

// insert stores everything as one batch.
func (c *Copy) insert(ctx context.Context, inserter *batch.Inserter, view *screen.Batch, s *summary) (*batch.Result, error) {
	from, err := newSource(ctx, c.From, c.Filter)
	if err != nil {
		return nil, err
	}
	from.lost = func(err error) {
		view.Screen.Say("%s: reading goes on behind the last document: %s", view.Screen.Program, screen.Clip(screen.HideCredentials(err, s.uris...).Error(), 200))
	}
	view.Total = from.count(ctx)
	for i, coll := range c.To {
		if s.Targets[i].before, err = c.primary(coll).CountDocuments(ctx, bson.D{}); err != nil {
			return nil, fmt.Errorf("the target cannot be read: %w", err)
		}
	}
	s.feed = newFeed(from, c.Transform(false), len(c.To), c.Workers)
	parts := make([]batch.Part, len(c.To))
	for i, coll := range c.To {
		parts[i] = batch.Stream(coll, s.feed.documents(ctx, i))
	}
	parts[0], s.counters = c.Numbering.Number(c.To[0].Database(), parts[0])
	result, err := inserter.InsertOnce(ctx, c.ID, parts...)
	view.Screen.End()
	return result, err
}

// errCount is the reason of a copy that is stored but not what was read.
var errCount = errors.New("the target does not have as many documents more as were stored: somebody deletes there. Marks stay, so that you can look; the same command again removes them")

// finish counts the documents, by their marks or, where not all have one, by how many the collection has more than before,
// and then removes the marks. If an earlier run has done so, nothing is left to do; if it was stopped at it, the number says
// nothing any more.
func (c *Copy) finish(ctx context.Context, s *summary) error {
	mark := bson.D{{Key: c.Mark, Value: s.result.BatchID}}
	marked := make([]int64, len(c.To))
	whole := true
	for i, coll := range c.To {
		t := &s.Targets[i]
		var err error
		if marked[i], err = c.primary(coll).CountDocuments(ctx, mark); err != nil {
			return fmt.Errorf("the documents could not be counted: %w", err)
		}
		t.Counted = int(marked[i])
		if t.Counted < t.Stored && !s.Replayed {
			now, err := c.primary(coll).CountDocuments(ctx, bson.D{})
			if err != nil {
				return fmt.Errorf("the documents could not be counted: %w", err)
			}
			t.Counted = int(now - t.before)
			whole = whole && t.Counted >= t.Stored // more, if others store documents there
		}
	}
	if !whole {
		return errCount
	}
	for i, coll := range c.To {
		if marked[i] == 0 {
			continue
		}
		if _, err := c.primary(coll).UpdateMany(ctx, mark, bson.D{{Key: "$unset", Value: bson.D{{Key: c.Mark, Value: ""}}}}); err != nil {
			return fmt.Errorf("the marks could not be removed from %s: %w", s.Targets[i].Collection, err)
		}
		s.Unmarked += int(marked[i])
	}
	return nil
}

// stamp says which documents get the mark: those with an _id of their own. The others need none as a proof, but where source
// and target have the same names, they may be the same, by two addresses; then the mark tells the copy what it has stored
// itself, or it would read that for ever.
func (c *Copy) stamp() batch.Stamp {
	for _, coll := range c.To {
		if coll.Name() == c.From.Name() && coll.Database().Name() == c.From.Database().Name() {
			return batch.StampAll
		}
	}
	return batch.StampClaimed
}

// primary is a collection as the server has it now, not as it was a moment ago on another member.
func (c *Copy) primary(coll *mongo.Collection) *mongo.Collection {
	return coll.Clone(driver.Collection().SetReadPreference(readpref.Primary()).SetWriteConcern(writeconcern.Majority()))
}
