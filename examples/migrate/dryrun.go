package main

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
)

// DryRun reads and transforms everything, and says what would keep it from being stored: documents that the transform
// refuses, those that no server takes, and an _id that is in the target already. It writes nothing and takes no numbers.
// Unique indexes other than that of _id, validators, and an _id that the transform makes twice are left for a run to find.
func (c *Copy) DryRun(ctx context.Context, show *screen.Screen, uris ...string) *summary {
	s := c.summary(uris)
	s.dryRun = true
	result, err := c.earlier(ctx, batch.New(batch.Config{Journal: c.Journal}))
	switch {
	case err == nil && result != nil:
		s.stored(result)
	case err == nil:
		err = c.rehearse(ctx, show, s)
	}
	if err != nil {
		s.failed(ctx, err)
	}
	return s
}

func (c *Copy) rehearse(ctx context.Context, show *screen.Screen, s *summary) error {
	from, err := newSource(ctx, c.From, c.Filter)
	if err != nil {
		return err
	}
	stages := make([]*stage, len(c.To))
	for i, coll := range c.To {
		var numbered []string
		if i == 0 {
			numbered = c.Numbering.Fields()
		}
		if stages[i], err = newStage(ctx, c, coll, numbered); err != nil {
			return err
		}
		defer stages[i].checker.Close()
	}
	s.feed = newFeed(from, c.Transform(true), len(c.To), c.Workers)
	show.Begin("reading", int64(from.count(ctx)), screen.Documents)
	defer show.End()
	for raw, err := range from.documents(ctx) {
		if err != nil {
			return err
		}
		s.feed.read++
		show.Add(1, s.feed.read)
		id := raw.Lookup("_id")
		outs, err := s.feed.make(ctx, raw)
		if err != nil {
			s.refuse(problem{idText(id), err.Error()})
			continue
		}
		for _, out := range outs {
			if err := stages[out.To].add(ctx, made{out.Document, id}, s); err != nil {
				return err
			}
		}
	}
	for _, stage := range stages {
		if err := stage.check(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// stage is where the documents for one collection are looked at, a chunk at a time.
type stage struct {
	coll    *mongo.Collection
	checker *job.Checker
	ids     bool // the _id values are those of the documents, and some are taken
	pending []made
}

func newStage(ctx context.Context, c *Copy, coll *mongo.Collection, numbered []string) (*stage, error) {
	g := &stage{coll: c.primary(coll), ids: true}
	for _, field := range numbered {
		g.ids = g.ids && field != "_id"
	}
	if g.ids {
		err := g.coll.FindOne(ctx, bson.D{}).Err()
		if g.ids = err == nil; err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			return nil, fmt.Errorf("the target cannot be read: %w", err)
		}
	}
	var err error
	g.checker, err = job.NewChecker(coll.Database().Name(), coll.Name(), batch.Config{Stamp: c.stamp(), StampField: c.Mark}, numbered...)
	return g, err
}

func (g *stage) add(ctx context.Context, m made, s *summary) error {
	g.pending = append(g.pending, m)
	if len(g.pending) < chunk {
		return nil
	}
	return g.check(ctx, s)
}

// check looks at what is pending.
func (g *stage) check(ctx context.Context, s *summary) error {
	documents := make([]any, len(g.pending))
	for i, m := range g.pending {
		documents[i] = m.document
	}
	unfit, err := job.Unfit(g.checker, documents)
	if err != nil {
		return err
	}
	for _, d := range unfit {
		s.refuse(problem{idText(g.pending[d.Index].origin), job.Reason(d)})
		documents[d.Index] = nil
	}
	g.pending = nil
	if !g.ids {
		return nil
	}
	return g.clashes(ctx, documents, s)
}

// clashes finds the documents whose _id is taken.
func (g *stage) clashes(ctx context.Context, documents []any, s *summary) error {
	var ids bson.A
	for _, d := range documents {
		if d == nil {
			continue
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			return err // cannot be: it was encoded before
		}
		if id, err := bson.Raw(raw).LookupErr("_id"); err == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	taken, err := g.coll.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, driver.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return fmt.Errorf("the target cannot be read: %w", err)
	}
	defer func() { _ = taken.Close(ctx) }() // what was needed has been read
	for taken.Next(ctx) {
		s.refuse(problem{idText(taken.Current.Lookup("_id")), "this _id is in " + g.coll.Name() + " already"})
	}
	return taken.Err()
}
