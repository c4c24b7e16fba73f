package storm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/rollback"
)

// How long things take in a run, by its own clock.
const (
	settle         = 80 * time.Millisecond
	commandTimeout = 60 * time.Millisecond
	retryTime      = 300 * time.Millisecond
	lease          = 150 * time.Millisecond
	way            = time.Millisecond // what a message takes on the network at most
	journalName    = "journal"
)

// world is a plan being carried out.
type world struct {
	plan   plan
	server *mongosim.Server
	over   chan struct{} // closed when everything has been inserted

	wires    []*faultwire.Wire // of the inserters
	networks []*network
	clients  []*mongo.Client
	calm     *mongo.Client // without faults: for others' writes, for recovery and for looking
	calmly   *faultwire.Wire

	rules   []armed
	refused map[refusal]bool // protected by mu
	late    []*faultwire.Rule
	seen    atomic.Int64 // commands

	bystanders *bystanders

	mu       sync.Mutex                    // protects the rest
	sendings map[string]*faultwire.Request // the first one of each command, by session and transaction number
	outcomes []outcome
	stored   []storedNumber // what the server was given to store, in order
}

// outcome is what the library said about a batch.
type outcome struct {
	batch  batchPlan
	died   bool
	result *batch.Result
	err    error
}

// storedNumber is a number in a document that the server stored.
type storedNumber struct {
	sequence string
	number   int64
	marker   string
}

func newWorld(p plan) (*world, error) {
	w := &world{plan: p, over: make(chan struct{}), sendings: make(map[string]*faultwire.Request), refused: make(map[refusal]bool)}
	config := mongosim.Config{InProcess: true, Duplicates: p.duplicates, Seed: p.seed, Observe: w.observe, NoStreaming: true, NoHistory: p.noHistory}
	if p.replicaSet {
		config.ReplicaSet = "rs0"
	}
	if p.sharded {
		config.ShardKeys = make(map[string]string)
		for i := range p.collections {
			config.ShardKeys[fmt.Sprintf("w.c%d", i)] = "tenant"
		}
	}
	server, err := mongosim.Start(config)
	if err != nil {
		return nil, err
	}
	w.server = server
	address, _, _ := strings.Cut(server.URI(), "/?") // the set's name does not go with a load balancer
	connect := func(between *network, patience time.Duration) (*faultwire.Wire, *mongo.Client, error) {
		wire := faultwire.New(faultwire.Over(between), faultwire.LoadBalanced(), faultwire.KeepLast(400))
		client, err := mongo.Connect(options.Client().ApplyURI(address).SetLoadBalanced(true).
			SetRetryWrites(p.retryWrites).SetDialer(wire).SetServerSelectionTimeout(patience))
		return wire, client, err
	}
	if w.calmly, w.calm, err = connect(&network{server: server.Dialer(), seed: p.seed}, 30*time.Second); err != nil {
		return nil, err
	}
	w.calmly.Observe(w.onDelete)
	for i := range p.inserters {
		between := &network{server: server.Dialer(), seed: p.seed, number: uint64(i) + 1}
		wire, client, err := connect(between, retryTime)
		if err != nil {
			return nil, err
		}
		w.networks = append(w.networks, between)
		w.wires, w.clients = append(w.wires, wire), append(w.clients, client)
		wire.Observe(func(c faultwire.Change) {
			w.onDelete(c)
			if c.Stage == faultwire.Seen {
				w.firstSending(c.Event.Request)
				w.seen.Add(1)
			}
		})
		if dies := p.inserters[i].dies; dies > 0 {
			wire.On(faultwire.Insert).Nth(dies).ServerDown()
		}
	}
	for i, f := range p.faults {
		w.refuseAgain(i, f) // before anything else can happen to a repetition
	}
	for i, f := range p.faults {
		w.arm(i, f)
	}
	w.bystanders = newBystanders(w)
	return w, nil
}

// onDelete lets late writes go when a rollback has begun to delete.
func (w *world) onDelete(c faultwire.Change) {
	if c.Stage == faultwire.Given && c.Event.Name == faultwire.Delete {
		w.releaseLate(settle / 8)
	}
}

// onEvent lets late writes go when a rollback has begun that may delete nothing, and only look.
func (w *world) onEvent(e batch.Event) {
	if e.Kind == batch.RollbackStarted {
		w.releaseLate(settle / 2)
	}
}

// releaseLate lets late writes go, where only the settle time protects: a while later, so that a rollback that does not
// wait has ended by then, and within the settle time, as the promise asks.
func (w *world) releaseLate(after time.Duration) {
	if !w.plan.settles() {
		return
	}
	for _, rule := range w.late {
		time.AfterFunc(after, rule.Release)
	}
}

// firstSending reports whether the driver has not sent the command before.
func (w *world) firstSending(r *faultwire.Request) bool {
	if _, numbered := r.TxnNumber(); !numbered {
		return true
	}
	key := sendingKey(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sendings[key] == nil {
		w.sendings[key] = r
	}
	return w.sendings[key] == r
}

// sendingKey is what a command has in common with its repetitions by the driver.
func sendingKey(r *faultwire.Request) string {
	number, _ := r.TxnNumber()
	return fmt.Sprint(r.Session(), number)
}

// observe takes down the numbers that are stored.
func (w *world) observe(write mongosim.Write) {
	if write.Kind != mongosim.WriteInsert || write.RolledBack {
		return
	}
	marker, err := write.After.LookupErr("m")
	if err != nil {
		return
	}
	for _, sequence := range []string{"counter", "buffered", "striped", "_id"} {
		if n, ok := write.After.Lookup(sequence).Int64OK(); ok {
			w.mu.Lock()
			w.stored = append(w.stored, storedNumber{sequence, n, marker.String()})
			w.mu.Unlock()
		}
	}
}

func (w *world) collection(client *mongo.Client, i int) *mongo.Collection {
	return client.Database("w").Collection(fmt.Sprintf("c%d", i))
}

func (w *world) journal(client *mongo.Client) *mongo.Collection {
	return client.Database("w").Collection(journalName)
}

// prepare makes the indexes and the documents of others.
func (w *world) prepare(ctx context.Context) error {
	for i, unique := range w.plan.unique {
		if w.plan.sharded {
			break // a unique index would have to begin with the shard key
		}
		coll := w.collection(w.calm, i)
		model := []mongo.IndexModel{{Keys: bson.D{{Key: "optimistic", Value: 1}}, Options: options.Index().SetUnique(true).SetSparse(true)}}
		if unique {
			model = append(model, mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true).SetSparse(true)})
		}
		if _, err := coll.Indexes().CreateMany(ctx, model); err != nil {
			return err
		}
	}
	half := len(w.plan.foreign) / 2
	for _, op := range w.plan.foreign[:half] {
		w.bystanders.do(ctx, op)
	}
	return nil
}

// run carries the plan out and waits until everything has come to rest.
func (w *world) run(ctx context.Context) {
	var group, helpers sync.WaitGroup
	recovering, stop := context.WithCancel(ctx)
	defer stop()
	for i, in := range w.plan.inserters {
		group.Go(func() {
			for _, b := range in.batches {
				w.insert(ctx, i, b)
			}
		})
	}
	helpers.Go(func() {
		for _, op := range w.plan.foreign[len(w.plan.foreign)/2:] {
			w.waitSeen(int64(op.id % 10))
			w.bystanders.do(ctx, op)
		}
	})
	for range w.plan.recoverers {
		helpers.Go(func() {
			loop := w.recovery()
			loop.Every = 10 * time.Millisecond
			_, _ = rollback.Recover(recovering, w.journal(w.calm), loop) // what counts is what is left in the end
		})
	}
	for _, event := range w.plan.events {
		helpers.Go(func() { w.happen(event) })
	}
	group.Wait()
	close(w.over)
	stop()
	helpers.Wait()
	for _, wire := range append(w.wires, w.calmly) {
		wire.Calm()
		_ = wire.Drain(ctx)
	}
}

// waitSeen waits until so many commands were seen, or everything has been inserted.
func (w *world) waitSeen(n int64) { w.waitSeenFor(n, time.Hour) }

// waitSeenFor waits for commands no longer than that.
func (w *world) waitSeenFor(n int64, most time.Duration) {
	began := time.Now()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for w.seen.Load() < n && time.Since(began) < most {
		select {
		case <-w.over:
			return
		case <-ticker.C:
		}
	}
}

func (w *world) happen(event eventPlan) {
	w.waitSeen(int64(event.after))
	switch event.kind {
	case eventStepDown:
		if w.server.StepDown() == nil {
			_, _ = w.server.StepUp(0)
		}
	case eventFailover:
		_, _ = w.server.Failover()
	case eventRestart:
		w.server.Restart()
	case eventLag:
		if w.server.HoldReplication() != nil {
			return
		}
		w.waitSeenFor(w.seen.Load()+int64(event.length), 2*commandTimeout)
		_, _ = w.server.Failover()
		_ = w.server.ReleaseReplication()
	case eventPartition:
		wire := w.wires[min(event.inserter, len(w.wires)-1)]
		wire.Down()
		w.pause(time.Duration(event.length) * lease / 2)
		wire.Up()
	case eventSlow:
		slow := &w.networks[min(event.inserter, len(w.wires)-1)].slow
		slow.Store(int64(settle) * 7 / 8)
		w.pause(time.Duration(event.length) * lease / 2)
		slow.Store(0)
	}
}

// pause waits, or until everything has been inserted.
func (w *world) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.over:
	}
}

func (w *world) recovery() rollback.Recovery {
	return rollback.Recovery{Retention: -1, Policy: rollback.Policy{
		InitialDelay: time.Millisecond, MaxDelay: 4 * time.Millisecond, Settle: settle, CommandTimeout: commandTimeout, Budget: 3 * time.Second,
	}}
}

// insert inserts one batch.
func (w *world) insert(ctx context.Context, inserter int, b batchPlan) {
	client := w.clients[inserter]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if b.cancel > 0 {
		w.wires[inserter].On(faultwire.Insert).Nth(b.cancel).Before(func(context.Context, *faultwire.Request) { cancel() })
	}
	stop := make(chan struct{})
	dies := w.plan.inserters[inserter].dies
	if dies > 0 { // a process that has died does not go on trying; this one gives up as soon as it cannot reach anybody
		timer := time.AfterFunc(retryTime, func() { close(stop) })
		defer timer.Stop()
	}
	config := batch.Config{
		ChunkSize: b.chunk, Concurrency: b.concurrency, Stamp: b.stamp, RemoveStamp: b.remove,
		CommandTimeout: commandTimeout, RetryTime: retryTime, InitialDelay: time.Millisecond, MaxDelay: 4 * time.Millisecond,
		Rollback: rollback.Policy{Settle: settle, ChunkIDs: 3, ChunkRange: 5, CommandTimeout: commandTimeout, Budget: 3 * time.Second, Stop: stop},
		Lease:    lease,
		Observe:  w.onEvent,
	}
	if b.journal {
		config.Journal = w.journal(client)
	}
	in := batch.New(config)
	parts := make([]batch.Part, len(b.parts))
	for i, part := range b.parts {
		parts[i] = w.part(client, b, i, part)
	}
	o := outcome{batch: b, died: dies > 0}
	if b.key {
		o.result, o.err = in.InsertOnce(ctx, fmt.Sprint("key-", b.id), parts...)
	} else {
		o.result, o.err = in.Insert(ctx, parts...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes = append(w.outcomes, o)
}

// marker is the field by which a run knows whose document it is. The library does not.
func marker(batch, part, document int) bson.D {
	return bson.D{{Key: "b", Value: int32(batch)}, {Key: "p", Value: int32(part)}, {Key: "i", Value: int32(document)}}
}

func (w *world) part(client *mongo.Client, b batchPlan, position int, part partPlan) batch.Part {
	documents := make([]bson.D, len(part.ids))
	for i, id := range part.ids {
		document := bson.D{{Key: "m", Value: marker(b.id, position, i)}}
		if id.claimed {
			document = append(bson.D{{Key: "_id", Value: int32(id.id)}}, document...)
		}
		u := id.u
		if u == 0 {
			u = 1_000_000 + b.id*10_000 + position*1_000 + i
		}
		documents[i] = append(document, bson.E{Key: "u", Value: int32(u)})
		if w.plan.sharded {
			documents[i] = append(documents[i], bson.E{Key: "tenant", Value: int32(id.tenant)})
		}
	}
	coll := w.collection(client, part.collection)
	p := batch.Into(coll, documents)
	if b.stream {
		var source iter.Seq2[bson.D, error] = func(yield func(bson.D, error) bool) {
			for _, document := range documents {
				if !yield(document, nil) {
					return
				}
			}
		}
		p = batch.Stream(coll, source)
	}
	if part.shardKey {
		p = p.ShardKey("tenant")
	}
	counters := client.Database("w").Collection("counters")
	again := idgen.Retry{}
	switch part.number {
	case counterNumber:
		p = p.Number("counter", idgen.NewCounter(counters, "counter", idgen.CounterConfig{Retry: again}))
	case counterID:
		p = p.Number("_id", idgen.NewCounter(counters, "ids", idgen.CounterConfig{Start: 1 << 40}))
	case bufferedNumber:
		buffered := idgen.NewBuffered(idgen.NewCounter(counters, "buffered"), idgen.BufferedConfig{Block: 7})
		w.closeAtEnd(buffered.Close)
		p = p.Number("buffered", buffered)
	case stripedNumber:
		p = p.Number("striped", idgen.NewStriped(counters, "striped"))
	case optimisticNumber:
		p = p.Number("optimistic", idgen.NewOptimistic(coll, "optimistic"))
	}
	return p
}

// closeAtEnd closes something when the world ends.
func (w *world) closeAtEnd(closer func() error) {
	go func() {
		<-w.over
		_ = closer()
	}()
}

// close takes the world down.
func (w *world) close() error {
	ctx := context.Background() // driver v2.10.0 spins until a deadline passes, and no clock goes on meanwhile
	var errs []error
	for i, client := range w.clients {
		errs = append(errs, client.Disconnect(ctx), w.wires[i].Close())
	}
	errs = append(errs, w.calm.Disconnect(ctx), w.calmly.Close(), w.server.Close())
	return errors.Join(errs...)
}
