package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
)

// conflictCost is how long the model's server is busy with one write of a document, during which other writes of the same
// document wait: the most that one counter can do is a thousand writes a second, however many clients there are.
const conflictCost = time.Millisecond

// modelTime is how long each number of clients takes numbers.
const modelTime = 2 * time.Second

// counterRow is what one way of taking numbers yields, in numbers a second, by the number of clients.
type counterRow struct {
	way string
	at  []float64
}

var clientCounts = []int{1, 4, 16, 64, 256}

// measureCounters lets many clients, each with a connection of its own, take numbers from one sequence of a simulated
// server on which writes of the same document wait for each other.
func measureCounters(ctx context.Context) ([]counterRow, error) {
	rows := []counterRow{{way: "one by one"}, {way: "blocks of 100"}, {way: "Buffered, blocks of 100"}, {way: "Striped, 8 stripes, one by one"}}
	for i := range rows {
		for _, clients := range clientCounts {
			perSecond, err := model(ctx, i, clients)
			if err != nil {
				return nil, fmt.Errorf("%s, %d clients: %w", rows[i].way, clients, err)
			}
			rows[i].at = append(rows[i].at, perSecond)
		}
		fmt.Printf("%-32s %.0f numbers/s with %d clients\n", rows[i].way, rows[i].at, clientCounts)
	}
	return rows, nil
}

// taker takes numbers and says how many it got.
type taker func(ctx context.Context) (int, error)

// takerOf makes one client's taker of the given way, and what ends it.
func takerOf(way int, coll *mongo.Collection) (taker, func() error) {
	counter := idgen.NewCounter(coll, "no")
	nothing := func() error { return nil }
	switch way {
	case 0:
		return func(ctx context.Context) (int, error) { _, err := counter.Next(ctx); return 1, err }, nothing
	case 1:
		return func(ctx context.Context) (int, error) { block, err := counter.Take(ctx, 100); return block.Count, err }, nothing
	case 2:
		buffered := idgen.NewBuffered(counter, idgen.BufferedConfig{Block: 100})
		return func(ctx context.Context) (int, error) { _, err := buffered.Next(ctx); return 1, err }, buffered.Close
	}
	striped := idgen.NewStriped(coll, "no", idgen.StripedConfig{Stripes: 8})
	return func(ctx context.Context) (int, error) { _, err := striped.Next(ctx); return 1, err }, nothing
}

func model(ctx context.Context, way, clients int) (perSecond float64, err error) {
	sim, err := mongosim.Start(mongosim.Config{InProcess: true, ReplicaSet: "rs"})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sim.Close()) }()
	wire := faultwire.New(faultwire.Over(sim.Dialer()), faultwire.KeepLast(1))
	defer func() { err = errors.Join(err, wire.Close()) }()
	client, err := mongo.Connect(options.Client().ApplyURI(sim.URI()).SetDialer(wire).SetMaxPoolSize(512).SetWriteConcern(journaled()))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Disconnect(context.WithoutCancel(ctx))) }()
	coll := client.Database("report").Collection("counters")
	takers := make([]taker, clients)
	for i := range takers {
		take, end := takerOf(way, coll)
		defer func() { err = errors.Join(err, end()) }()
		if _, err := take(ctx); err != nil { // the first use is not measured
			return 0, err
		}
		takers[i] = take
	}
	wire.On(faultwire.FindAndModify).Before(newConflicts().wait)
	return count(ctx, takers)
}

// count lets all takers take numbers for a while.
func count(ctx context.Context, takers []taker) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, modelTime)
	defer cancel()
	start := time.Now()
	var group sync.WaitGroup
	taken, errs := make([]int, len(takers)), make([]error, len(takers))
	for i, take := range takers {
		group.Go(func() {
			for {
				n, err := take(ctx)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					errs[i] = err
					return
				}
				taken[i] += n
			}
		})
	}
	group.Wait()
	sum := 0
	for _, n := range taken {
		sum += n
	}
	return float64(sum) / time.Since(start).Seconds(), errors.Join(errs...)
}

// conflicts makes writes of the same document wait for each other.
type conflicts struct {
	mu    sync.Mutex
	locks map[string]*sync.Mutex
}

func newConflicts() *conflicts { return &conflicts{locks: make(map[string]*sync.Mutex)} }

func (c *conflicts) wait(_ context.Context, r *faultwire.Request) {
	lock := c.of(r.Lookup("query"))
	lock.Lock()
	defer lock.Unlock()
	time.Sleep(conflictCost)
}

func (c *conflicts) of(filter bson.RawValue) *sync.Mutex {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := filter.String()
	if c.locks[key] == nil {
		c.locks[key] = new(sync.Mutex)
	}
	return c.locks[key]
}
