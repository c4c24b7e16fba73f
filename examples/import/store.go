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
	// deleteTime is how long one delete of a rollback may take. Servers without an index on _id (FerretDB) read the whole
	// collection for each, one delete after the other; given up too early, each would be done twice.
	deleteTime = 2 * time.Minute
	// disconnectTime is how long closing the connections may take.
	disconnectTime = 5 * time.Second
)

// importFiles reads the files and stores their documents. What came of it is in the summary, errors included.
func (p *program) importFiles(ctx context.Context, stop <-chan struct{}, o *options, show *screen) *summary {
	s := &summary{Database: o.database, Collection: o.collection, Files: o.files, start: time.Now(), dryRun: o.dryRun, numbered: len(o.sequences) > 0}
	in, err := p.read(ctx, o, show)
	defer in.close()
	s.reading(in, err)
	if s.failed() || o.dryRun {
		return s
	}
	show.note("read %d %s in %s", s.Read, plural(s.Read, "document"), seconds(time.Since(s.start)))
	client, err := p.connect(ctx, o)
	if err != nil {
		s.cause = err
		return s
	}
	defer disconnect(client)
	s.storing(ctx, stop, client.Database(o.database), in, o, show)
	return s
}

// connect returns a client of a server that answers.
func (p *program) connect(ctx context.Context, o *options) (*mongo.Client, error) {
	settings := driver.Client().SetAppName("intact import").SetServerSelectionTimeout(connectTime).ApplyURI(o.uri) // which can say otherwise
	if p.dialer != nil {
		settings.SetDialer(p.dialer)
	}
	client, err := mongo.Connect(settings)
	if err != nil {
		return nil, fmt.Errorf("no connection: %w", withoutURI(err, o.uri))
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
func (s *summary) storing(ctx context.Context, stop <-chan struct{}, db *mongo.Database, in *input, o *options, show *screen) {
	part, err := in.part(db.Collection(o.collection))
	if err != nil {
		s.cause = err
		return
	}
	counters := make(map[string]*counter) // fields that share a counter share its reservations
	for _, q := range o.sequences {
		if counters[q.name] == nil {
			counters[q.name] = newCounter(db.Collection(o.counters), q, o.zone)
			s.counters = append(s.counters, counters[q.name])
		}
		part = part.Number(q.field, counters[q.name])
	}
	view := &batchView{show: show, uri: o.uri, total: in.count()}
	config := batch.Config{
		Concurrency: o.workers,
		StampField:  o.stampField,
		RemoveStamp: !o.keepStamp,
		Lease:       o.lease,
		Progress:    view.progress,
		Observe:     view.observe,
		Rollback:    rollback.Policy{Stop: stop, CommandTimeout: deleteTime},
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
	show.end()
	s.inserting(result, err, in)
}

// batchView shows the phases of a batch. The batch calls its methods one at a time.
type batchView struct {
	show  *screen
	uri   string
	total int // documents
	last  batch.Progress
	told  time.Time // when trouble was told last
}

// troubleEvery is the time between two lines about what is being tried again.
const troubleEvery = 5 * time.Second

// trouble says why nothing goes on. A rollback is tried until it succeeds, so that this can be all there is to see.
func (v *batchView) trouble(event batch.Event) {
	if now := time.Now(); now.Sub(v.told) >= troubleEvery {
		v.told = now
		v.show.say("import: trying again: %s", clip(withoutURI(event.Err, v.uri).Error(), 200))
	}
}

// observe begins the phases that take long.
func (v *batchView) observe(event batch.Event) {
	switch event.Kind {
	case batch.Prepared:
		v.begin(batch.Inserting, "storing", v.total, documentsUnit)
	case batch.Retrying:
		v.trouble(event)
	case batch.RollbackStep:
		if event.Err != nil {
			v.trouble(event)
		}
	case batch.RollbackStarted:
		v.show.end()
		v.show.note("import: deleting what was stored")
		v.begin(batch.RollingBack, "rolling back", event.Documents, deletionsUnit)
	}
}

func (v *batchView) begin(phase batch.Phase, name string, total int, unit unit) {
	v.show.begin(name, int64(total), unit)
	v.last = batch.Progress{Phase: phase}
}

func (v *batchView) progress(p batch.Progress) {
	switch {
	case p.Phase == batch.Preparing && v.last.Phase != p.Phase:
		v.begin(p.Phase, "checking", v.total, documentsUnit)
	case p.Phase == batch.Committing && v.last.Phase != p.Phase:
		v.begin(p.Phase, "removing marks", v.total, documentsUnit)
	}
	v.show.add(p.Done-v.last.Done, p.Done)
	v.last = p
}

// counter is a sequence that remembers which numbers it gave out.
type counter struct {
	from batch.Sequence
	step int64
	got  numbers
}

func newCounter(coll *mongo.Collection, q sequence, zone *time.Location) *counter {
	c := &counter{step: q.step, got: numbers{Sequence: q.name, dated: q.periodic}}
	if q.periodic {
		c.from = idgen.NewPeriodic(coll, q.name, idgen.PeriodicConfig{Period: q.period, Zone: zone, Digits: q.digits})
	} else {
		c.from = idgen.NewCounter(coll, q.name, idgen.CounterConfig{Start: q.start, FromZero: q.start == 0, Step: q.step})
	}
	return c
}

// Reserve is called once for a batch, or chunk by chunk if its documents are not in memory.
func (c *counter) Reserve(ctx context.Context, n int) ([]any, error) {
	values, err := c.from.Reserve(ctx, n)
	if err != nil || len(values) == 0 {
		return values, err
	}
	first, _ := values[0].(int64)
	last, _ := values[len(values)-1].(int64)
	if c.got.Count == 0 {
		c.got.First = first
	} else if first != c.got.Last+c.step {
		c.got.Gaps = true
	}
	c.got.Last = last
	c.got.Count += len(values)
	return values, nil
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

// reason says why a document was refused, to the person whose data it is: unlike the library's errors, which end up in
// logs, it quotes the server.
func reason(d batch.DocumentError, place func(index int) records.Position) string {
	var twin *batch.DuplicateIDError
	switch {
	case errors.As(d.Err, &twin):
		return fmt.Sprintf("the same _id as in %v", place(twin.First))
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
