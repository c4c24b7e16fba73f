//go:build unix

package crashtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

// task is what a child is told.
type task struct {
	URI, Database string
	Job           job
	Case          int    // marks the documents
	Key           string // of the batch; "" for none
	Lease         time.Duration
	Concurrency   int
	StampAll      bool
	Point         string // where to send Signal to itself; "" for nowhere
	Signal        syscall.Signal
}

// report is what a child that comes to an end says on its standard output.
type report struct {
	Error      string
	Fenced     bool
	RolledBack bool
	Inserts    int // insert commands to the documents' collections after the signal
}

// The times of children and of those who recover after them. A lease is long enough for a loaded machine; those who have to
// wait for it wait together, as far as they can.
const (
	killLease   = 10 * time.Second
	pauseLease  = 5 * time.Second
	childSettle = 30 * time.Millisecond
)

func child(text string) int {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	said, err := t.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func (t task) run() (report, error) {
	wire, inserts, err := t.wire()
	if err != nil {
		return report{}, err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(t.URI).SetDialer(wire))
	if err != nil {
		return report{}, err
	}
	db := client.Database(t.Database)
	var said report
	switch t.Job {
	case undoing, tidying:
		err = t.recover(db)
	default:
		if t.Job == late {
			wire.On(chunkInsert).Nth(chunks).DropReply()
		}
		if t.Job == slow {
			wire.On(chunkInsert).Nth(2).DelayReply(t.Lease * 3 / 2)
		}
		err = t.insert(db)
		var failed *batch.Error
		if errors.As(err, &failed) {
			said = report{Error: err.Error(), Fenced: errors.Is(err, batch.ErrFenced), RolledBack: failed.RolledBack()}
			err = nil
		}
	}
	said.Inserts = int(inserts.Load())
	return said, errors.Join(err, client.Disconnect(context.Background()), wire.Close())
}

func policy() rollback.Policy {
	return rollback.Policy{Settle: childSettle, ChunkIDs: 4, ChunkRange: 5, InitialDelay: time.Millisecond, MaxDelay: 50 * time.Millisecond}
}

// recover makes as many passes as it takes until the record is gone.
func (t task) recover(db *mongo.Database) error {
	for {
		report, err := rollback.Recover(context.Background(), db.Collection(journalName), rollback.Recovery{ID: t.Key, Policy: policy(), Retention: time.Nanosecond})
		if err != nil || len(report.Removed) > 0 {
			return err
		}
	}
}

func (t task) insert(db *mongo.Database) error {
	config := batch.Config{
		Journal: db.Collection(journalName), Lease: t.Lease, ChunkSize: chunkSize, Concurrency: t.Concurrency,
		InitialDelay: time.Millisecond, MaxDelay: 50 * time.Millisecond, Rollback: policy(),
	}
	if t.StampAll {
		config.Stamp = batch.StampAll
	}
	switch t.Job {
	case failing:
		config.Concurrency = 1 // all is sent when the last chunk fails
	case late:
		config.Concurrency, config.RetryTime = 1, -1 // the last chunk is that of the last part
	}
	documents := func(n int, id func(i int) any) []bson.D {
		all := make([]bson.D, n)
		for i := range all {
			if id != nil {
				all[i] = bson.D{{Key: "_id", Value: id(i)}}
			}
			all[i] = append(all[i], bson.E{Key: "case", Value: int32(t.Case)}, bson.E{Key: "i", Value: int32(i)})
		}
		return all
	}
	claimed := documents(claimedDocuments, func(i int) any { return fmt.Sprintf("case %d, %d", t.Case, i) })
	if t.Job == failing {
		claimed[claimedDocuments-1][0].Value = clashingID(t.Case)
	}
	parts := []batch.Part{
		batch.Into(db.Collection("minted"), documents(mintedDocuments, nil)).Number("no", texts{idgen.NewCounter(db.Collection("counters"), "texts")}),
		batch.Into(db.Collection("numbered"), documents(numberedDocuments, nil)).Number("_id", idgen.NewCounter(db.Collection("counters"), "ids")),
		batch.Into(db.Collection("claimed"), claimed),
	}
	if t.Job == streaming {
		for i, documents := range [][]bson.D{documents(mintedDocuments, nil), documents(numberedDocuments, nil), claimed} {
			source := func(yield func(bson.D, error) bool) {
				for _, d := range documents {
					if !yield(d, nil) {
						return
					}
				}
			}
			name := []string{"minted", "numbered", "claimed"}[i]
			parts[i] = batch.Stream(db.Collection(name), source)
			if name == "numbered" {
				parts[i] = parts[i].Number("_id", idgen.NewCounter(db.Collection("counters"), "ids"))
			}
		}
	}
	var err error
	if t.Key != "" {
		_, err = batch.New(config).InsertOnce(context.Background(), t.Key, parts...)
	} else {
		_, err = batch.New(config).Insert(context.Background(), parts...)
	}
	return err
}

// clashingID is the _id of somebody else's document, which the last document of a failing batch wants too.
func clashingID(number int) string { return fmt.Sprintf("taken from case %d", number) }

// texts numbers with texts.
type texts struct{ *idgen.Counter }

func (s texts) Reserve(ctx context.Context, n int) ([]any, error) {
	values, err := s.Counter.Reserve(ctx, n)
	for i := range values {
		values[i] = fmt.Sprint("no. ", values[i])
	}
	return values, err
}

// wire returns connections that send the process a signal at the task's point, and the number of inserts of documents that
// were made after that.
func (t task) wire() (*faultwire.Wire, *atomic.Int64, error) {
	dialer := &watchedDialer{strike: t.strike}
	wire := faultwire.New(faultwire.Over(dialer))
	var struck atomic.Bool
	inserts := new(atomic.Int64)
	wire.Observe(func(c faultwire.Change) {
		if c.Stage == faultwire.Seen && struck.Load() && c.Event.Name == faultwire.Insert && c.Event.Collection != journalName && c.Event.Collection != pagesName {
			inserts.Add(1)
		}
	})
	if t.Point == "" {
		return wire, inserts, nil
	}
	for _, p := range points() {
		if p.String() != t.Point {
			continue
		}
		strike := func(context.Context, *faultwire.Request) {
			struck.Store(true)
			t.strike()
		}
		when := wire.On(p.match).Nth(p.nth)
		switch p.moment {
		case before:
			when.Before(strike)
		case during:
			when.Before(func(_ context.Context, r *faultwire.Request) { dialer.watchFor(r) })
		case after:
			when.After(strike)
		}
		return wire, inserts, nil
	}
	return nil, nil, fmt.Errorf("there is no point %q", t.Point)
}

// strike sends the signal to this very process. Its threads may run for an instant yet, but the command at the point goes
// no further before the process is dead, or goes on.
func (t task) strike() {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	_ = syscall.Kill(os.Getpid(), t.Signal)
	<-goesOn
}

// watchedDialer strikes when a certain request has been written to the server.
type watchedDialer struct {
	net.Dialer
	strike func()
	needle atomic.Pointer[[]byte]
}

// watchFor has to be called before the request is written.
func (d *watchedDialer) watchFor(r *faultwire.Request) {
	needle := []byte(r.Lookup("query").Value) // of a findAndModify
	if statements := r.Statements(); len(statements) > 0 {
		needle = statements[0]
	}
	d.needle.Store(&needle)
}

func (d *watchedDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	return watchedConn{c, d}, err
}

type watchedConn struct {
	net.Conn
	dialer *watchedDialer
}

func (c watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if needle := c.dialer.needle.Load(); needle != nil && bytes.Contains(b, *needle) {
		c.dialer.strike()
	}
	return n, err
}
