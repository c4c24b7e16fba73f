package crashtest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/rollback"
)

var (
	historySeed  = flag.Uint64("crash.history", 0, "run the one history with this seed, and tell its story")
	historyCount = flag.Int("crash.histories", 2_000, "how many random histories to run")
)

// TestHistories lets owners and recoveries run into each other on a simulated server, with delays of every single
// command, lost requests and replies, crashes, partitions and elections, drawn by seed. Time is synctest's, so that leases
// cost nothing. Whatever happens, there is one verdict, nothing committed is deleted, and nothing is left of the rest.
//
// A seed draws the same actors and faults again; which of two commands that are on their way at the same instant is faster
// is up to the scheduler.
//
// The race detector makes a history five times as expensive, so that it watches one in twenty only. The others are
// run by a process without it.
func TestHistories(t *testing.T) {
	t.Parallel()
	if *historySeed != 0 {
		h := newHistory(*historySeed)
		synctest.Test(t, h.run)
		t.Log(h.story())
		return
	}
	count := *historyCount
	if testing.Short() {
		count /= 10
	}
	if raceDetector && !testing.Short() {
		count /= 20
		others := exec.CommandContext(t.Context(), "go", "test", "-v", "-count=1", "-run=^TestHistories$", ".", "-crash.histories", fmt.Sprint(*historyCount-count))
		output, err := others.CombinedOutput()
		t.Logf("without the race detector: %s", output)
		if err != nil {
			t.Errorf("without the race detector: %v", err)
		}
	}
	first := rand.Uint64()>>1 | 1
	t.Logf("%d histories from seed %d on; to run one: go test ./internal/crashtest -run TestHistories -crash.history=SEED", count, first)
	seen := runHistories(t, first, count)
	t.Logf("outcomes: %v", seen)
	for _, outcome := range []string{"stored", "rolled back", "fenced", "crashed", "unresolved", "in progress", "replayed", "incomplete"} {
		if seen[outcome] == 0 && count >= 1_000 {
			t.Errorf("no history had the outcome %q: the faults are not what they should be", outcome)
		}
	}
}

// runHistories runs as many histories at a time as there are processors, and counts the calls by their outcomes.
func runHistories(t *testing.T, first uint64, count int) map[string]int {
	var mu sync.Mutex // protects seen
	seen := make(map[string]int)
	workers := runtime.GOMAXPROCS(0)
	t.Run("seeds", func(t *testing.T) { // ends when all workers have
		for worker := range workers {
			t.Run(fmt.Sprintf("modulo %d", worker), func(t *testing.T) {
				t.Parallel()
				for i := worker; i < count; i += workers {
					h := newHistory(first + uint64(i))
					synctest.Test(t, h.run)
					mu.Lock()
					for _, c := range h.oracle.calls {
						seen[c.outcome]++
					}
					mu.Unlock()
				}
			})
		}
	})
	return seen
}

// The times of a history. Requests travel for less than the settle time, which is what the promise is conditioned on; but
// longer than a lease.
const (
	lease   = time.Second
	settle  = 2 * time.Second
	travel  = 1800 * time.Millisecond
	command = 1500 * time.Millisecond // see join
)

// history is one random run.
type history struct {
	t      *testing.T
	seed   uint64
	oracle *oracle
	sim    *mongosim.Server
	keyed  bool
	stamp  batch.Stamp
	retain time.Duration

	mu     sync.Mutex // protects the rest
	random *rand.Rand // of the server's delays
	delays float64    // how often a command is delayed
}

func newHistory(seed uint64) *history {
	return &history{seed: seed, oracle: newOracle(), random: rand.New(rand.NewPCG(seed, 1))}
}

func (h *history) story() string { return strings.Join(h.oracle.log, "\n") }

func (h *history) run(t *testing.T) {
	h.t = t
	defer func() {
		if t.Failed() { // which ends the whole test
			t.Logf("seed %d\n%s", h.seed, h.story())
		}
	}()
	plan := rand.New(rand.NewPCG(h.seed, 0))
	config := mongosim.Config{InProcess: true, Seed: h.seed, Observe: h.oracle.observe, Step: h.step}
	if plan.IntN(3) > 0 {
		config.ReplicaSet, config.Members = "set", 1+2*plan.IntN(2)
	}
	var err error
	if h.sim, err = mongosim.Start(config); err != nil {
		t.Fatal(err)
	}
	h.keyed = plan.IntN(2) == 0
	h.stamp = []batch.Stamp{batch.StampClaimed, batch.StampAll}[plan.IntN(2)]
	h.retain = -1
	if !h.keyed && plan.IntN(2) == 0 {
		h.retain = time.Millisecond // finished records vanish under everybody's eyes
	}

	calm := h.join(nil, trouble{})
	h.plant(calm)
	h.mu.Lock()
	h.delays = []float64{0, 0.05, 0.3}[plan.IntN(3)]
	h.mu.Unlock()

	ctx, stop := context.WithCancel(t.Context())
	var owners, others sync.WaitGroup
	for i := range 1 + plan.IntN(2) {
		random := rand.New(rand.NewPCG(h.seed, 100+uint64(i)))
		owners.Go(func() { h.own(random, i) })
	}
	for i := range plan.IntN(3) {
		random := rand.New(rand.NewPCG(h.seed, 200+uint64(i)))
		others.Go(func() { h.recover(ctx, random, i) })
	}
	if config.Members > 1 && plan.IntN(2) == 0 {
		others.Go(func() { h.elect(ctx, rand.New(rand.NewPCG(h.seed, 300))) })
	}
	owners.Wait()
	stop()
	others.Wait()
	h.mu.Lock()
	h.delays = 0
	h.mu.Unlock()

	h.settleDown(calm)
	h.oracle.end(h.keyed)
	for _, broken := range h.oracle.broken {
		t.Error(broken)
	}
	calm.leave(t)
	if err := h.sim.Close(); err != nil {
		t.Error(err)
	}
}

// step delays commands in the server: their clients may be gone by the time they are run.
func (h *history) step(s mongosim.Step) {
	if s.Point != mongosim.PointArrived || !strings.HasPrefix(s.Namespace, database+".") {
		return
	}
	h.mu.Lock()
	var wait time.Duration
	if h.random.Float64() < h.delays {
		wait = time.Duration(h.random.Int64N(int64(travel)))
		if h.random.IntN(2) == 0 {
			wait /= 20
		}
	}
	h.mu.Unlock()
	time.Sleep(wait)
}

// own is a process that stores a batch, and tries again as long as it is not told that it is stored.
func (h *history) own(random *rand.Rand, which int) {
	what := someTrouble(random)
	config := batch.Config{
		ChunkSize: 1 + random.IntN(3), Concurrency: 1 + random.IntN(3), Lease: lease,
		CommandTimeout: command, RetryTime: command, InitialDelay: 10 * time.Millisecond, MaxDelay: 200 * time.Millisecond,
		Stamp:    h.stamp,
		Rollback: rollback.Policy{Settle: settle, Budget: 10 * time.Second, CommandTimeout: command},
	}
	if what.partition > 0 {
		// An insert that waits out the partition must not be given up meanwhile: then it would be one that travels
		// longer than the settle time.
		config.CommandTimeout = time.Minute
	}
	minted, claimed := 1+random.IntN(4), random.IntN(4)
	doomed := random.IntN(3) == 0
	if what.forbidden { // something is stored, something is not, and nothing can be removed: that is incomplete
		claimed, doomed = max(claimed, 1), true
	}
	key := "key"
	a := h.join(random, what)
	defer a.leave(h.t)
	config.Journal = a.db.Collection(journalName)
	number := idgen.NewCounter(a.db.Collection("counters"), "number")
	for range 3 {
		c := h.oracle.newCall(minted + claimed)
		config.Observe = func(e batch.Event) {
			if e.Kind == batch.Prepared {
				h.oracle.begin(c, e.BatchID)
			}
		}
		var first, second []bson.D
		for i := range minted {
			first = append(first, bson.D{{Key: "call", Value: int32(c.number)}, {Key: "i", Value: i}})
		}
		for i := range claimed {
			id := fmt.Sprint("mine ", i)
			if !h.keyed {
				id += fmt.Sprint(" of ", c.number)
			}
			if doomed && i == claimed-1 {
				id = "wanted"
			}
			second = append(second, bson.D{{Key: "_id", Value: id}, {Key: "call", Value: int32(c.number)}})
		}
		parts := []batch.Part{
			batch.Into(a.db.Collection("minted"), first).Number("no", number),
			batch.Into(a.db.Collection("claimed"), second),
		}
		inserter := batch.New(config)
		var result *batch.Result
		var err error
		if h.keyed {
			result, err = inserter.InsertOnce(context.Background(), key, parts...)
		} else {
			result, err = inserter.Insert(context.Background(), parts...)
		}
		if h.judge(a, c, result, err) {
			return
		}
		time.Sleep(time.Duration(random.Int64N(int64(3 * lease))))
		if c.outcome == "unresolved" {
			h.resolve(inserter, c, err)
		}
	}
}

// judge compares what a call returned with what the oracle knows. It reports whether the owner is content, or dead.
func (h *history) judge(a *actor, c *call, result *batch.Result, err error) bool {
	state := h.oracle.state(c.attempt)
	o := h.oracle
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		o.say("call %d (%s) of %d documents: %s: %v", c.number, short(c.attempt), c.documents, c.outcome, err)
	}()
	if a.isDead() { // nobody hears what it says
		c.outcome = "crashed"
		return true
	}
	var failed *batch.Error
	switch {
	case err == nil && result.Replayed:
		c.outcome = "replayed"
		if was := o.stateLocked(result.BatchID); was != "committed" {
			o.breach("call %d got the result of an attempt that is %q", c.number, was)
		}
		return true
	case err == nil:
		c.outcome = "stored"
		if state != "committed" || len(c.present) != c.documents {
			o.breach("call %d says stored; the record is %q and %d of %d documents are there", c.number, state, len(c.present), c.documents)
		}
		return true
	case !errors.As(err, &failed):
		o.breach("call %d returned a %T", c.number, err)
		return true
	case failed.Unresolved():
		c.outcome = "unresolved"
		return false
	case errors.Is(err, batch.ErrInProgress):
		c.outcome = "in progress"
		return false
	}
	if state == "committed" {
		o.breach("call %d says %v, but the record is committed", c.number, err)
	}
	if failed.RolledBack() {
		c.outcome = "rolled back"
		if len(c.present) > 0 {
			o.breach("call %d says rolled back; %d documents are there", c.number, len(c.present))
		}
		c.returned = max(o.position, 1)
	} else {
		c.outcome = "incomplete"
	}
	if errors.Is(err, batch.ErrFenced) {
		c.outcome = "fenced"
	}
	return false
}

// resolve asks what became of a batch whose commit was not answered.
func (h *history) resolve(inserter *batch.Inserter, c *call, err error) {
	var failed *batch.Error
	errors.As(err, &failed)
	resolution, _, err := inserter.Resolve(context.Background(), failed.JournalID)
	state := h.oracle.state(c.attempt)
	o := h.oracle
	o.mu.Lock()
	defer o.mu.Unlock()
	o.say("call %d resolved: %v, %v", c.number, resolution, err)
	if resolution == batch.Stored && state != "committed" && !h.keyed || resolution == batch.NotStored && state == "committed" {
		o.breach("call %d is said to be %v, and its record is %s", c.number, resolution, state)
	}
}

// recover is a process that recovers again and again.
func (h *history) recover(ctx context.Context, random *rand.Rand, which int) {
	a := h.join(random, someTrouble(random))
	defer a.leave(h.t)
	recovery := rollback.Recovery{
		Policy:    rollback.Policy{Settle: settle, Budget: 10 * time.Second, CommandTimeout: command, InitialDelay: 10 * time.Millisecond, MaxDelay: 200 * time.Millisecond},
		Retention: h.retain,
	}
	if random.IntN(2) == 0 {
		recovery.Every = time.Duration(1 + random.Int64N(int64(lease)))
	}
	for ctx.Err() == nil && !a.isDead() {
		report, err := rollback.Recover(ctx, a.db.Collection(journalName), recovery)
		h.oracle.note("recovery %d: %+v %v", which, report, err)
		time.Sleep(time.Duration(random.Int64N(int64(lease))))
	}
}

// elect makes other members primary now and then. No member lags, so that nothing is lost.
func (h *history) elect(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
		if err := h.sim.StepDown(); err != nil {
			h.t.Error(err)
		}
		h.oracle.note("no primary")
		time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
		if _, err := h.sim.StepUp(random.IntN(3)); err != nil {
			h.t.Error(err)
		}
		h.oracle.note("a new primary")
	}
}

// settleDown recovers until nothing is unfinished, which must not take long, and then once more, which must change
// nothing.
func (h *history) settleDown(a *actor) {
	recovery := rollback.Recovery{Policy: rollback.Policy{Settle: settle}, Retention: -1}
	for pass := 1; ; pass++ {
		report, err := rollback.Recover(context.Background(), a.db.Collection(journalName), recovery)
		h.oracle.note("last recovery: %+v %v", report, err)
		if err != nil {
			h.t.Errorf("the last recovery: %v", err)
			return
		}
		if report.Alive == nil && report.RolledBack == nil {
			break
		}
		if pass == 4 {
			h.t.Errorf("after %d passes there is something to do: %+v", pass, report)
			return
		}
	}
	h.oracle.mu.Lock()
	before := h.oracle.position
	h.oracle.mu.Unlock()
	if _, err := rollback.Recover(context.Background(), a.db.Collection(journalName), recovery); err != nil {
		h.t.Errorf("a recovery with nothing to do: %v", err)
	}
	h.oracle.mu.Lock()
	defer h.oracle.mu.Unlock()
	if h.oracle.position != before {
		h.t.Errorf("a recovery with nothing to do made %d writes", h.oracle.position-before)
	}
}
