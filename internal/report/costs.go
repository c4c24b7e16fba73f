package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
)

// cost is a line of the table.
type cost struct {
	what   string
	server string
	ratio  string // measured
	aim    string
	short  bool // stands in the README too
}

const (
	requestCount = 1_000
	singleShare  = 50 // of the documents, one in so many is inserted one by one

	claimedAtMost = 5_000 // with claimed ids, in a rollback on the embedded server
)

// measureCosts makes all comparisons and prints each as soon as it is made.
func measureCosts(ctx context.Context, s settings, all servers) ([]cost, error) {
	m := meter{settings: s}
	for _, on := range []*server{all.embedded, all.simulated, all.discarding} {
		if err := m.inserts(ctx, on, on != all.simulated); err != nil {
			return nil, fmt.Errorf("%s: %w", on.name, err)
		}
	}
	for _, on := range []*server{all.embedded, all.simulated} {
		if err := m.small(ctx, on); err != nil {
			return nil, fmt.Errorf("%s: %w", on.name, err)
		}
		if err := m.rollbacks(ctx, on); err != nil {
			return nil, fmt.Errorf("%s: %w", on.name, err)
		}
	}
	if err := m.singles(ctx, all.embedded); err != nil {
		return nil, err
	}
	return m.costs, m.memory(ctx, all.discarding)
}

// meter gathers the lines of the table.
type meter struct {
	settings
	costs []cost
}

func (m *meter) add(c cost) {
	m.costs = append(m.costs, c)
	fmt.Printf("%-78s %-29s %-22s %s\n", c.what, c.server, c.ratio, c.aim)
}

func times(ratio float64) string { return fmt.Sprintf("%.2f ×", ratio) }

// inserts compares Insert, as it is, with a journal and with numbers, to the plain driver.
func (m *meter) inserts(ctx context.Context, on *server, short bool) error {
	ours, theirs := on.db.Collection("ours"), on.db.Collection("theirs")
	clean := func(ctx context.Context) error { return drop(ctx, ours, theirs, on.db.Collection("journal")) }
	plain, identified := withoutIDs(m.documents), withIDs(m.documents)
	number := idgen.NewCounter(on.db.Collection("counters"), "no")
	if _, err := number.Next(ctx); err != nil { // the first use is another's
		return err
	}
	for _, way := range []struct {
		what   string
		part   batch.Part
		config batch.Config
		rival  []bson.D
		aim    string
		allocs bool
	}{
		{"Insert, against InsertMany", batch.Into(ours, plain), batch.Config{}, plain, "1.05 ×, 1.1 × allocations", true},
		{"Insert, against InsertMany of documents that have an _id", batch.Into(ours, plain), batch.Config{}, identified, "", true},
		{"Insert with a journal, against InsertMany", batch.Into(ours, plain), batch.Config{Journal: on.db.Collection("journal")}, plain, "1.10 ×", false},
		{"Insert with one sequence, against InsertMany", batch.Into(ours, plain).Number("no", number), batch.Config{}, plain, "1.05 ×", false},
	} {
		if way.config.Journal != nil && on.name == discarding {
			continue // a journal has to be kept
		}
		c, err := compare(ctx, m.rounds, insertOurs(way.config, way.part), insertMany(theirs, way.rival, chunk), clean)
		if err != nil {
			return err
		}
		ratio := times(c.ratio())
		if way.allocs {
			ratio += fmt.Sprintf(", %.1f × allocations", c.allocRatio())
		}
		m.add(cost{way.what, on.name, ratio, way.aim, short})
	}
	c, err := compare(ctx, m.rounds, insertMany(ours, identified, chunk), insertMany(theirs, plain, chunk), clean)
	if err != nil {
		return err
	}
	m.add(cost{"for comparison: InsertMany of documents that have an _id, against InsertMany", on.name,
		fmt.Sprintf("%s, %.1f × allocations", times(c.ratio()), c.allocRatio()), "", short})
	return nil
}

// small compares many batches of one document to InsertOne.
func (m *meter) small(ctx context.Context, on *server) error {
	ours, theirs := on.db.Collection("ours"), on.db.Collection("theirs")
	inserter := batch.New(batch.Config{})
	c, err := compare(ctx, 2*m.rounds,
		requests(requestCount, func(ctx context.Context, i int) error {
			_, err := inserter.Insert(ctx, batch.Into(ours, []bson.D{small(i)}))
			return err
		}),
		requests(requestCount, func(ctx context.Context, i int) error {
			_, err := theirs.InsertOne(ctx, small(i))
			return err
		}),
		func(ctx context.Context) error { return drop(ctx, ours, theirs) })
	if err != nil {
		return err
	}
	m.add(cost{fmt.Sprintf("%d batches of one document at a time, against InsertOne", requestCount), on.name, times(c.ratio()), "1.2 ×", true})
	return nil
}

// rollbacks compares a rollback to the insert before it.
func (m *meter) rollbacks(ctx context.Context, on *server) error {
	coll := on.db.Collection("undone")
	claimed := m.documents
	if on.name == embedded { // FerretDB 1.24 compares each document with each id of a delete, so that the time grows with the square
		claimed = min(claimed, claimedAtMost)
	}
	for _, kind := range []struct {
		what      string
		documents []bson.D
		aim       string
	}{
		{"rollback of documents with minted ids, against their insert", withoutIDs(m.documents), "0.5 ×"},
		{fmt.Sprintf("rollback of %d documents with claimed ids, against their insert", claimed), withIDs(claimed), "1.0 ×"},
	} {
		insert, undo := rollback(coll, kind.documents)
		c, err := compare(ctx, m.rounds, undo, insert, func(context.Context) error { return nil })
		if err != nil {
			return err
		}
		m.add(cost{kind.what, on.name, times(c.ratio()), kind.aim, true})
	}
	return drop(ctx, coll)
}

// singles compares a numbered batch to a goroutine for each document, of which a part is done, for they take long.
func (m *meter) singles(ctx context.Context, on *server) error {
	ours, theirs := on.db.Collection("ours"), on.db.Collection("theirs")
	number := idgen.NewCounter(on.db.Collection("counters"), "no")
	documents := withoutIDs(m.documents)
	c, err := compare(ctx, m.rounds, insertOurs(batch.Config{}, batch.Into(ours, documents).Number("no", number)),
		insertSingly(theirs, documents[:m.documents/singleShare], number),
		func(ctx context.Context) error { return drop(ctx, ours, theirs) })
	if err != nil {
		return err
	}
	m.add(cost{"Insert with one sequence, against a goroutine, findAndModify and InsertOne each", on.name,
		fmt.Sprintf("%.0f times faster", singleShare/c.ratio()), "40 times", true})
	return nil
}

// memory compares what a long stream holds to what a short one does.
func (m *meter) memory(ctx context.Context, on *server) error {
	few, err := held(ctx, on.db.Collection("stream"), m.stream/100)
	if err != nil {
		return err
	}
	many, err := held(ctx, on.db.Collection("stream"), m.stream)
	if err != nil {
		return err
	}
	m.add(cost{fmt.Sprintf("a stream of %d documents, against one of %d", m.stream, m.stream/100), on.name,
		fmt.Sprintf("%+.1f MiB held", (float64(many)-float64(few))/(1<<20)), "+64 MiB", true})
	return nil
}

// held is how many bytes are in use at most while a stream of n documents is inserted, garbage left out.
func held(ctx context.Context, coll *mongo.Collection, n int) (most uint64, err error) {
	source := func(yield func(bson.D, error) bool) {
		for i := range n {
			if i%(n/10) == 0 {
				var now runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			}
			if !yield(small(i), nil) {
				return
			}
		}
	}
	_, err = batch.New(batch.Config{}).Insert(ctx, batch.Stream(coll, source))
	return most, err
}

func drop(ctx context.Context, colls ...*mongo.Collection) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, coll := range colls {
		if err := coll.Drop(ctx); err != nil {
			return err
		}
	}
	return nil
}
