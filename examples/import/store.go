package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/records"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/rollback"
)

// importFiles reads the files and stores their documents. What came of it is in the summary, errors included.
func (p *program) importFiles(ctx context.Context, stop <-chan struct{}, o *options, show *screen.Screen) *summary {
	s := &summary{Database: o.database, Collection: o.collection, Files: o.files, start: time.Now(), dryRun: o.dryRun, numbered: len(o.numbering.Sequences) > 0}
	in, err := p.read(ctx, o, show)
	defer in.close()
	s.reading(in, err)
	if s.failed() || o.dryRun {
		return s
	}
	show.Note("read %d %s in %s", s.Read, screen.Plural(s.Read, "document"), screen.Seconds(time.Since(s.start)))
	client, err := p.connect(ctx, o)
	if err != nil {
		s.cause = err
		return s
	}
	defer job.Disconnect(client)
	s.storing(ctx, stop, client.Database(o.database), in, o, show)
	return s
}

// connect returns a client of a server that answers.
func (p *program) connect(ctx context.Context, o *options) (*mongo.Client, error) {
	return job.Connect(ctx, "import", o.uri, p.dialer)
}

// storing inserts the documents as one batch.
func (s *summary) storing(ctx context.Context, stop <-chan struct{}, db *mongo.Database, in *input, o *options, show *screen.Screen) {
	part, err := in.part(db.Collection(o.collection))
	if err != nil {
		s.cause = err
		return
	}
	part, s.counters = o.numbering.Number(db, part)
	view := &screen.Batch{Screen: show, URIs: []string{o.uri}, Total: in.count()}
	config := batch.Config{
		Concurrency: o.workers,
		StampField:  o.stampField,
		RemoveStamp: !o.keepStamp,
		Lease:       o.lease,
		Progress:    view.Progress,
		Observe:     view.Observe,
		Rollback:    rollback.Policy{Stop: stop, CommandTimeout: job.DeleteTime},
	}
	if o.journal != "" {
		config.Journal = db.Collection(o.journal)
		recoverEarlier(ctx, config.Journal, show)
	}
	var result *batch.Result
	if inserter := batch.New(config); o.batchID != "" {
		result, err = inserter.InsertOnce(ctx, o.batchID, part)
	} else {
		result, err = inserter.Insert(ctx, part)
	}
	show.End()
	s.inserting(result, err, in)
}

// reading takes down what came of the reading.
func (s *summary) reading(in *input, err error) {
	s.Read, s.Refused = in.read, len(in.problems)
	s.stopped, s.problems, s.cause = in.stopped, in.problems, err
}

// inserting takes down what came of the inserting.
func (s *summary) inserting(result *batch.Result, err error, in *input) {
	var failed *batch.Error
	switch {
	case err == nil:
		s.Stored, s.Batch, s.Replayed = result.Inserted, result.BatchID.Hex(), result.Replayed
		s.warnings = result.Warnings
		return
	case !errors.As(err, &failed):
		s.cause = err
		return
	}
	s.Batch = failed.BatchID.Hex()
	s.sent, s.unresolved = failed.Sent, failed.Unresolved()
	s.deleted = failed.Rollback.Deleted
	s.incomplete = failed.Incomplete
	if !failed.RolledBack() {
		s.left = failed.Leftovers()
	}
	s.Refused = len(failed.Documents)
	if s.Refused == 0 {
		s.cause = failed.Cause
		return
	}
	indexes := make(map[int]bool)
	for _, d := range failed.Documents {
		indexes[d.Index] = true
		var twin *batch.DuplicateIDError
		if errors.As(d.Err, &twin) {
			indexes[twin.First] = true
		}
	}
	places, err := in.places(indexes)
	if err != nil {
		s.cause = err
	}
	place := func(i int) records.Position { return places[i] }
	for _, d := range failed.Documents {
		s.problems = append(s.problems, problem{Position: place(d.Index), Text: reason(d, place)})
	}
}

// reason says why a document was refused.
func reason(d batch.DocumentError, place func(index int) records.Position) string {
	var twin *batch.DuplicateIDError
	if errors.As(d.Err, &twin) {
		return fmt.Sprintf("the same _id as in %v", place(twin.First))
	}
	return job.Reason(d)
}
