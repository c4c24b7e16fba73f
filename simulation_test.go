package intact_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/internal/wirecheck"
	"github.com/intact-go/intact/rollback"
)

var (
	seedFlag = flag.Uint64("intact.seed", 0, "carry out the one plan of this seed, and tell its story; 0 for many")
	runsFlag = flag.Int("intact.runs", 0, "how many plans to carry out on each server; 0 for the test's own number")
)

// TestSimulation carries out random batches through random faults, and compares what is stored with what the library
// said: all or nothing, the documents of others untouched, every leftover named, every number given once. A seed that
// breaks a promise is told; it can be carried out again with
//
//	go test -run Simulation -intact.seed SEED -v .
func TestSimulation(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		first, runs, workers := rand.Uint64N(1<<40), *runsFlag, 16
		switch {
		case *seedFlag != 0:
			first, runs, workers = *seedFlag, 1, 1
		case runs == 0 && testing.Short():
			runs = 50
		case runs == 0:
			runs = 1_500
		}
		t.Logf("seeds %d to %d; one alone: go test -run Simulation -intact.seed SEED -v .", first, first+uint64(runs)-1)
		started := time.Now()
		var next atomic.Uint64
		var all sync.WaitGroup
		var mu sync.Mutex // protects outcomes
		outcomes := make(map[string]int)
		for range workers {
			all.Go(func() {
				w := newWorker(t, s)
				for i := next.Add(1) - 1; i < uint64(runs) && !t.Failed(); i = next.Add(1) - 1 {
					outcome := w.carryOut(makePlan(first + i))
					mu.Lock()
					outcomes[outcome]++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		t.Logf("%d plans, %.0f a second: %v", runs, float64(runs)/time.Since(started).Seconds(), outcomes)
		if *seedFlag == 0 && runs >= 500 && !t.Failed() {
			for _, outcome := range []string{stored, rolledBack, incomplete} {
				if outcomes[outcome] < runs/100 {
					t.Errorf("only %d of %d batches were %s: the plans are too kind or too hard", outcomes[outcome], runs, outcome)
				}
			}
		}
	})
}

const (
	stored     = "stored"
	rolledBack = "rolled back"
	incomplete = "incomplete"
)

// worker carries out plans one after the other in a database of its own.
type worker struct {
	*testing.T
	server *servertest.Server
	around *mongo.Database // not over a wire
	given  map[string]bool // numbers given out so far
}

func newWorker(t *testing.T, s *servertest.Server) *worker {
	w := &worker{T: t, server: s, given: make(map[string]bool)}
	w.around = s.Database(t, s.Client(t))
	for i := range collections {
		// A partial index would do as well; this one lets any number of documents without the field in on no server, so
		// that documents without it get a value of their own.
		_, err := w.coll(i).Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true)})
		if err != nil {
			t.Error(err)
		}
	}
	return w
}

func (w *worker) coll(i int) *mongo.Collection { return w.around.Collection(fmt.Sprint("c", i)) }

// run is one plan under way.
type run struct {
	*worker
	plan     plan
	wire     *faultwire.Wire
	db       *mongo.Database
	problems []string
	before   map[string]bson.Raw
}

func (r *run) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// carryOut runs a plan and returns how the batch ended.
func (w *worker) carryOut(p plan) string {
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	r := &run{worker: w, plan: p, wire: faultwire.New(faultwire.LoadBalanced())}
	client, err := r.connect()
	if err != nil {
		w.Error(err)
		return "not run"
	}
	r.db = client.Database(w.around.Name())
	if err := r.prepare(ctx); err != nil {
		w.Errorf("preparing seed %d: %v", p.seed, err)
		return "not run"
	}
	result, insertErr := r.insert(ctx)
	r.wire.Calm()
	if err := r.wire.Drain(ctx); err != nil {
		r.problem("the wire does not come to rest: %v", err)
	}
	outcome := r.judge(ctx, result, insertErr)
	if err := errors.Join(client.Disconnect(ctx), r.wire.Close()); err != nil {
		r.problem("disconnecting: %v", err)
	}
	if len(r.problems) > 0 || *seedFlag != 0 {
		report := w.Logf
		if len(r.problems) > 0 {
			report = w.Errorf
		}
		report("%v%s\n%s: %v\n%s", p, strings.Join(r.problems, "\n"), outcome, insertErr, r.wire)
	}
	return outcome
}

// connect makes a client that believes in a load balancer, so that a lost connection is replaced at once.
func (r *run) connect() (*mongo.Client, error) {
	uri, err := url.Parse(r.server.URI)
	if err != nil {
		return nil, err
	}
	query := uri.Query()
	query.Del("replicaSet")
	uri.RawQuery = query.Encode()
	return mongo.Connect(options.Client().ApplyURI(uri.String()).SetDialer(r.wire).SetLoadBalanced(true).SetRetryWrites(r.plan.retryWrites))
}

// prepare empties the collections and stores the documents of others.
func (r *run) prepare(ctx context.Context) error {
	for i := range collections {
		if _, err := r.coll(i).DeleteMany(ctx, bson.D{}); err != nil {
			return err
		}
	}
	for i, d := range r.plan.foreign {
		if d.u == nil {
			d.u = fmt.Sprint("theirs ", i)
		}
		if _, err := r.coll(d.coll).InsertOne(ctx, d.document(-i)); err != nil {
			return fmt.Errorf("foreign document %d: %w", i, err)
		}
	}
	var err error
	r.before, err = r.read(ctx)
	return err
}

// read returns all documents by their place.
func (r *run) read(ctx context.Context) (map[string]bson.Raw, error) {
	all := make(map[string]bson.Raw)
	for i := range collections {
		cursor, err := r.coll(i).Find(ctx, bson.D{})
		if err != nil {
			return nil, err
		}
		var documents []bson.Raw
		if err := cursor.All(ctx, &documents); err != nil {
			return nil, err
		}
		for _, raw := range documents {
			all[place(r.around.Name()+"."+r.coll(i).Name(), raw.Lookup("_id"))] = raw
		}
	}
	return all, nil
}

func place(collection string, id bson.RawValue) string {
	return fmt.Sprintf("%s %s %s", collection, id.Type, id)
}

// insert carries out the batch among its faults.
func (r *run) insert(ctx context.Context) (*batch.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if n := r.plan.cancelAt; n > 0 {
		r.wire.Observe(func(c faultwire.Change) {
			if c.Stage == faultwire.Answered && c.Event.Name == faultwire.Insert && r.wire.Count(faultwire.Insert) >= n {
				cancel()
			}
		})
	}
	var timers sync.WaitGroup
	defer timers.Wait()
	done := make(chan struct{})
	defer close(done)
	sent := r.countSendings()
	for _, f := range r.plan.faults {
		r.enforce(f, sent, &timers, done)
	}
	number := idgen.NewCounter(r.db.Collection("counters"), "no", idgen.CounterConfig{Retry: idgen.Retry{Attempts: 3, Timeout: r.plan.config.CommandTimeout}})
	var parts []batch.Part
	for _, p := range r.plan.parts {
		documents := make([]any, len(p.documents))
		for i, d := range p.documents {
			if d.u == nil {
				d.u = bson.NewObjectID()
			}
			documents[i] = d.document(i)
		}
		part := batch.Into(r.db.Collection(r.coll(p.coll).Name()), documents)
		for _, field := range p.numbers {
			part = part.Number(field, number)
		}
		parts = append(parts, part)
	}
	return batch.New(r.plan.config).Insert(ctx, parts...)
}

// enforce puts a fault in force. What it holds is let go one by one, each some time after it came.
func (r *run) enforce(f planFault, sent func(*faultwire.Request) int, timers *sync.WaitGroup, done <-chan struct{}) {
	match := faultwire.Command(f.name)
	if strings.HasPrefix(f.what, "refuse the first") {
		match = match.Where(func(request *faultwire.Request) bool { return sent(request) == 1 })
	}
	when := r.wire.On(match).Skip(f.skip)
	if f.times > 0 {
		when = when.Times(f.times)
	}
	faults := []faultwire.Fault{f.fault}
	if strings.HasSuffix(f.what, "then drop reply") {
		faults = append(faults, faultwire.DropReply())
	}
	rule := when.Do(faults...)
	if !f.fault.Holds() {
		return
	}
	timers.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-rule.ArrivedN(n):
			case <-done:
				return // Calm lets go of what is held
			}
			timers.Go(func() {
				timer := time.NewTimer(f.release)
				defer timer.Stop()
				select {
				case <-timer.C:
					rule.ReleaseNext()
				case <-done:
				}
			})
		}
	})
}

// countSendings returns what tells how often a retryable write was sent so far; any other is sent once. A server that has
// carried out a statement does not refuse it afterwards, so that only a first sending is refused in parts.
func (r *run) countSendings() func(*faultwire.Request) int {
	count := make(map[string]int)
	key := func(request *faultwire.Request) string {
		n, _ := request.TxnNumber()
		return fmt.Sprintf("%v %d", request.Session(), n)
	}
	r.wire.On(faultwire.Any.Where(func(request *faultwire.Request) bool { // the first rule is asked about every command
		count[key(request)]++
		return false
	})).Pass()
	return func(request *faultwire.Request) int {
		if _, retryable := request.TxnNumber(); !retryable {
			return 1
		}
		return count[key(request)]
	}
}

// judge compares what is stored with what the library said.
func (r *run) judge(ctx context.Context, result *batch.Result, insertErr error) string {
	after, err := r.read(ctx)
	if err != nil {
		r.problem("reading: %v", err)
		return "not judged"
	}
	for at, raw := range r.before {
		if now, there := after[at]; !there || !bytes.Equal(raw, now) {
			r.problem("somebody else's %s was %v and is %v", at, raw, now)
		}
		delete(after, at)
	}
	rules := wirecheck.Rules{StampField: r.plan.config.StampField, Unsent: true}
	r.problems = append(r.problems, wirecheck.Check(r.wire.Events(), rules)...)
	if insertErr == nil {
		r.judgeStored(after, result)
		return stored
	}
	var failed *batch.Error
	if !errors.As(insertErr, &failed) {
		r.problem("the error is a %T", insertErr)
		return "not judged"
	}
	if len(r.plan.faults) == 0 && r.plan.cancelAt == 0 && !r.plan.doomed {
		r.problem("nothing speaks against the batch, and it was not stored")
	}
	if failed.RolledBack() {
		for at, raw := range after {
			r.problem("left behind: %s %v", at, raw)
		}
		return rolledBack
	}
	r.judgeIncomplete(after, failed)
	return incomplete
}

func (r *run) judgeStored(after map[string]bson.Raw, result *batch.Result) {
	if r.plan.doomed {
		r.problem("a batch that could not be stored is said to be")
	}
	stamp := r.plan.config.StampField
	if stamp == "" {
		stamp = "_batch"
	}
	last := int64(-1)
	for i, p := range r.plan.parts {
		for j, d := range p.documents {
			id := marshal(result.Parts[i].IDs[j])
			at := place(result.Parts[i].Collection, id)
			raw, there := after[at]
			if delete(after, at); !there {
				r.problem("document %d of part %d is said to be stored, but %s is not there", j, i, at)
				continue
			}
			if n, _ := raw.Lookup("i").AsInt64OK(); n != int64(j) {
				r.problem("document %d of part %d is stored as %v", j, i, raw)
			}
			if d.id != nil && !id.Equal(marshal(d.id)) {
				r.problem("document %d of part %d has the _id %v, want %v", j, i, id, d.id)
			}
			_, err := raw.LookupErr(stamp)
			wants := !r.plan.config.RemoveStamp && (r.plan.config.Stamp == batch.StampAll || r.plan.config.Stamp == batch.StampClaimed && d.id != nil)
			if stamped := err == nil; stamped != wants && result.Warnings == nil {
				r.problem("document %d of part %d, stamp wanted: %t: %v", j, i, wants, raw)
			}
		}
		for _, field := range p.numbers {
			for j, number := range result.Parts[i].Numbers[field] {
				n, isNumber := number.(int64)
				key := fmt.Sprint(n)
				if !isNumber || r.given[key] || n <= last {
					r.problem("document %d of part %d has the number %v in %s, after %d; given before: %t", j, i, number, field, last, r.given[key])
				}
				r.given[key], last = true, n
				if have, want := r.lookup(result.Parts[i], j, field), marshal(number); !have.Equal(want) {
					r.problem("document %d of part %d has %v in %s, the result says %v", j, i, have, field, number)
				}
			}
		}
	}
	for at, raw := range after {
		r.problem("there is more than the batch: %s %v", at, raw)
	}
}

// lookup reads a field of a stored document.
func (r *run) lookup(part batch.PartResult, i int, field string) bson.RawValue {
	_, name, _ := strings.Cut(part.Collection, ".")
	raw, err := r.around.Collection(name).FindOne(r.Context(), bson.D{{Key: "_id", Value: part.IDs[i]}}).Raw()
	if err != nil {
		r.problem("reading document %d of %s: %v", i, part.Collection, err)
		return bson.RawValue{}
	}
	return raw.Lookup(strings.Split(field, ".")...)
}

// judgeIncomplete checks the leftovers: they name all that is there, and what was seen is there.
func (r *run) judgeIncomplete(after map[string]bson.Raw, failed *batch.Error) {
	lasting := false
	for _, f := range r.plan.faults {
		lasting = lasting || f.times == 0 || f.name == faultwire.Delete || f.name == faultwire.Find
	}
	if !lasting && !errors.Is(failed, rollback.ErrUnproven) {
		r.problem("nothing kept the rollback from finishing")
	}
	if errors.Is(failed, rollback.ErrUnproven) && !r.plan.unproven {
		r.problem("every document has its proof")
	}
	named := make(map[string]bool)
	for _, left := range failed.Leftovers() {
		at := place(left.Collection, left.ID)
		if named[at] {
			r.problem("leftover %s is named twice", at)
		}
		named[at] = true
		_, ours := after[at]
		_, theirs := r.before[at]
		switch {
		case left.Seen && !ours && !theirs:
			r.problem("leftover %s was seen and is not there", at)
		case left.Seen && theirs && !r.plan.unproven:
			r.problem("leftover %s was seen and is somebody else's", at)
		}
	}
	if len(named) == 0 {
		r.problem("incomplete, and nothing is named")
	}
	for at := range maps.Keys(after) {
		if !named[at] {
			r.problem("left behind, and not named: %s", at)
		}
	}
}

func marshal(v any) bson.RawValue {
	if v == nil {
		return bson.RawValue{Type: bson.TypeNull}
	}
	kind, value, err := bson.MarshalValue(v)
	if err != nil {
		panic(err) // only values that came from the server
	}
	return bson.RawValue{Type: kind, Value: value}
}
