package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/records"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/rollback"
)

const (
	// connectTime is how long to wait for the server before anything is sent.
	connectTime = 15 * time.Second
	// disconnectTime is how long closing the connections may take.
	disconnectTime = 5 * time.Second
)

// importFiles reads the files and stores their documents. What came of it is in the summary, errors included.
func (p *program) importFiles(ctx context.Context, stop <-chan struct{}, o *options, show *screen) *summary {
	s := &summary{Database: o.database, Collection: o.collection, Files: o.files, start: time.Now(), dryRun: o.dryRun, numbered: len(o.sequences) > 0}
	in, err := p.read(ctx, o, show)
	show.end()
	s.reading(in, err)
	if s.failed() {
		return s
	}
	show.note("read %d %s in %s", s.Read, plural(s.Read, "document"), seconds(time.Since(s.start)))
	client, err := p.connect(ctx, o)
	if err != nil {
		s.cause = err
		return s
	}
	defer disconnect(client)
	return s.storing(ctx, stop, client.Database(o.database), in, o, show)
}

// connect returns a client of a server that answers. For a dry run it asks nobody.
func (p *program) connect(ctx context.Context, o *options) (*mongo.Client, error) {
	settings := driver.Client().SetAppName("intact import").SetServerSelectionTimeout(connectTime).ApplyURI(o.uri) // which can say otherwise
	if p.dialer != nil {
		settings.SetDialer(p.dialer)
	}
	client, err := mongo.Connect(settings)
	if err != nil {
		return nil, fmt.Errorf("no connection: %w", withoutURI(err, o.uri))
	}
	if o.dryRun {
		return client, nil
	}
	if err := client.Ping(ctx, nil); err != nil {
		disconnect(client)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("no connection to the server: %w", withoutURI(err, o.uri))
	}
	return client, nil
}

func disconnect(client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), disconnectTime)
	defer cancel()
	_ = client.Disconnect(ctx) // everything was acknowledged by then
}

// storing inserts the documents as one batch.
func (s *summary) storing(ctx context.Context, stop <-chan struct{}, db *mongo.Database, in *input, o *options, show *screen) *summary {
	part := batch.Into(db.Collection(o.collection), in.documents)
	counters := make(map[string]*counter) // fields that share a counter share its one reservation
	for _, q := range o.sequences {
		if counters[q.name] == nil {
			counters[q.name] = newCounter(db.Collection(o.counters), q)
			s.counters = append(s.counters, counters[q.name])
		}
		part = part.Number(q.field, counters[q.name])
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := batch.Config{
		Concurrency: o.workers,
		StampField:  o.stampField,
		RemoveStamp: !o.keepStamp,
		Rollback:    rollback.Policy{Stop: stop},
	}
	view := &batchView{show: show}
	config.Progress = view.progress
	config.Observe = func(event batch.Event) {
		if o.dryRun && event.Kind == batch.Prepared { // everything was checked and nothing was sent
			s.fit = true
			cancel()
			return
		}
		view.observe(event)
	}
	result, err := batch.New(config).Insert(ctx, part)
	show.end()
	s.inserting(result, err, in.positions)
	return s
}

// batchView shows the phases of a batch. The batch calls its methods one at a time.
type batchView struct {
	show *screen
	last batch.Progress
}

// observe begins the phases that take long.
func (v *batchView) observe(event batch.Event) {
	switch event.Kind {
	case batch.Prepared:
		v.begin(batch.Inserting, "storing", event.Documents)
	case batch.RollbackStarted:
		v.show.end()
		v.show.note("import: deleting what was stored")
		v.begin(batch.RollingBack, "rolling back", event.Documents)
	}
}

func (v *batchView) begin(phase batch.Phase, name string, total int) {
	v.show.begin(name, int64(total), documentsUnit)
	v.last = batch.Progress{Phase: phase}
}

func (v *batchView) progress(p batch.Progress) {
	switch {
	case p.Phase == batch.Preparing && v.last.Phase != p.Phase:
		v.begin(p.Phase, "checking", p.Total)
	case p.Phase == batch.Committing && v.last.Phase != p.Phase:
		v.begin(p.Phase, "removing marks", p.Total)
	}
	v.show.add(p.Done-v.last.Done, p.Done)
	v.last = p
}

// counter is a sequence that remembers which numbers it gave out.
type counter struct {
	name   string
	fields []string
	from   *idgen.Counter
	first  int64
	last   int64
	count  int
}

func newCounter(coll *mongo.Collection, q sequence) *counter {
	return &counter{name: q.name, from: idgen.NewCounter(coll, q.name, idgen.CounterConfig{Start: q.start, FromZero: q.start == 0, Step: q.step})}
}

// Reserve is called once for a batch.
func (c *counter) Reserve(ctx context.Context, n int) ([]any, error) {
	values, err := c.from.Reserve(ctx, n)
	if err == nil && len(values) > 0 {
		c.first, _ = values[0].(int64)
		c.last, _ = values[len(values)-1].(int64)
		c.count = len(values)
	}
	return values, err
}

// reading takes down what came of the reading.
func (s *summary) reading(in *input, err error) {
	s.Read = len(in.documents) + len(in.problems)
	s.stopped = in.stopped
	for _, p := range in.problems {
		s.problems = append(s.problems, problem{Position: p.Position, Text: p.Text, hint: hintFor(p)})
	}
	s.Refused = len(in.problems)
	s.cause = err
}

// inserting takes down what came of the inserting. The positions are those of the documents.
func (s *summary) inserting(result *batch.Result, err error, positions []records.Position) {
	var failed *batch.Error
	switch {
	case err == nil:
		s.Stored, s.Batch = result.Inserted, result.BatchID.Hex()
		s.warnings = result.Warnings
		return
	case !errors.As(err, &failed):
		s.cause = err
		return
	}
	s.Batch = failed.BatchID.Hex()
	s.sent = failed.Sent
	s.deleted = failed.Rollback.Deleted
	s.incomplete = failed.Incomplete
	if !failed.RolledBack() {
		s.left = failed.Leftovers()
	}
	for _, d := range failed.Documents {
		s.problems = append(s.problems, problem{Position: positions[d.Index], Text: reason(d, positions)})
	}
	s.Refused = len(failed.Documents)
	if s.Refused == 0 && !(s.dryRun && s.fit) {
		s.cause = failed.Cause
	}
}

// reason says why a document was refused, to the person whose data it is: unlike the library's errors, which end up in
// logs, it quotes the server.
func reason(d batch.DocumentError, positions []records.Position) string {
	var twin *batch.DuplicateIDError
	switch {
	case errors.As(d.Err, &twin):
		return fmt.Sprintf("the same _id as in %v", positions[twin.First])
	case d.Code != 0 && len(d.ErrInfo) > 0:
		return clip(fmt.Sprintf("refused by the server: %s (code %d): %s", d.Message, d.Code, relaxed(d.ErrInfo)), 1000)
	case d.Code != 0:
		return clip(fmt.Sprintf("refused by the server: %s (code %d)", d.Message, d.Code), 500)
	}
	return clip(d.Message, 500)
}

func relaxed(raw bson.Raw) string {
	text, err := bson.MarshalExtJSON(raw, false, false)
	if err != nil {
		return raw.String()
	}
	return string(text)
}
