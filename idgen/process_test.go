package idgen_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// What the processes of TestProcesses are told.
const (
	envKind     = "IDGEN_TEST_KIND" // what to take numbers from; set only in those processes
	envURI      = "IDGEN_TEST_URI"
	envDatabase = "IDGEN_TEST_DATABASE"
	envSeed     = "IDGEN_TEST_SEED" // of the cuts; set it to repeat a run's
)

const (
	processes = 4
	callers   = 8
)

// shared is a way for several processes to take numbers from one sequence at once.
type shared struct {
	kind string
	// prepare makes the collection ready, if it needs to be.
	prepare func(testing.TB, *mongo.Database)
	rounds  int // calls of each caller
	// take returns what one caller in one process calls again and again. Numbers whose answer was lost are left out.
	take func(*mongo.Database) (func(ctx context.Context) ([]string, error), func() error)
	// check looks at the numbers that one caller got, in order.
	check func(testing.TB, []int64)
	// final looks at all numbers, sorted.
	final func(testing.TB, *mongo.Database, []int64)
}

func sequences() []shared {
	counter := func(config idgen.CounterConfig, n int) func(*mongo.Database) (func(context.Context) ([]string, error), func() error) {
		return func(db *mongo.Database) (func(context.Context) ([]string, error), func() error) {
			return reserving(idgen.NewCounter(db.Collection("counters"), "orderNo", config), n), nothing
		}
	}
	return []shared{
		{kind: "counter", rounds: 20, take: counter(idgen.CounterConfig{}, 1), check: increasing},
		{kind: "counter with a start", rounds: 10, take: counter(idgen.CounterConfig{Start: 1000, Step: 5}, 3), check: runs(3, 5)},
		{kind: "counter in blocks", rounds: 10, take: counter(idgen.CounterConfig{}, 100), check: runs(100, 1)},
		{
			kind: "counter with a key of its own", rounds: 10,
			prepare: func(t testing.TB, db *mongo.Database) {
				uniqueOn(t, db.Collection("counters"), bson.D{{Key: "prefix", Value: 1}})
			},
			take:  counter(idgen.CounterConfig{Fields: idgen.Fields{Key: "prefix", Value: "count"}}, 1),
			check: increasing,
		},
		{
			kind: "scope", rounds: 10,
			take: func(db *mongo.Database) (func(context.Context) ([]string, error), func() error) {
				return reserving(idgen.NewCounter(db.Collection("counters"), "orderNo").Scope("tenant"), 1), nothing
			},
			check: increasing,
		},
		{
			kind: "periodic", rounds: 20,
			take: func(db *mongo.Database) (func(context.Context) ([]string, error), func() error) {
				// The processes' clocks differ by days and stand in different zones, run through a change of the year, and
				// are set back.
				var calls atomic.Int64
				begin := time.Date(2025, 12, 30, 12, 0, 0, 0, time.UTC)
				clock := func() time.Time {
					return begin.Add(time.Duration(calls.Add(1)%100+int64(os.Getpid()%50)) * time.Hour)
				}
				zone := time.FixedZone("of this process", (os.Getpid()%27-12)*3600)
				p := idgen.NewPeriodic(db.Collection("ids"), "invoice", idgen.PeriodicConfig{Clock: clock, Zone: zone})
				return reserving(p, 2), nothing
			},
			check: runs(2, 1),
		},
		{
			kind: "text", rounds: 10,
			take: func(db *mongo.Database) (func(context.Context) ([]string, error), func() error) {
				return reserving(idgen.Format{Width: 3}.Of(idgen.NewCounter(db.Collection("counters"), "invoice")), 1), nothing
			},
			check: increasing,
		},
		{
			kind: "buffered", rounds: 100,
			take: func(db *mongo.Database) (func(context.Context) ([]string, error), func() error) {
				b := idgen.NewBuffered(idgen.NewCounter(db.Collection("counters"), "orderNo"), idgen.BufferedConfig{Block: 20})
				return reserving(b, 1), b.Close
			},
			check: increasing,
		},
		{
			kind: "striped", rounds: 20,
			take: func(db *mongo.Database) (func(context.Context) ([]string, error), func() error) {
				return reserving(idgen.NewStriped(db.Collection("counters"), "eventNo", idgen.StripedConfig{Stripes: 3}), 2), nothing
			},
			check: func(t testing.TB, numbers []int64) {
				byStripe := map[int64][]int64{}
				for _, n := range numbers {
					byStripe[n%3] = append(byStripe[n%3], n)
				}
				for _, of := range byStripe {
					runs(2, 3)(t, of)
				}
			},
		},
		{
			kind: "optimistic", rounds: 4,
			prepare: func(t testing.TB, db *mongo.Database) {
				uniqueOn(t, db.Collection("companies"), bson.D{{Key: "companyId", Value: 1}})
			},
			take: func(db *mongo.Database) (func(context.Context) ([]string, error), func() error) {
				coll := db.Collection("companies")
				o := idgen.NewOptimistic(coll, "companyId", idgen.OptimisticConfig{Start: 1000})
				return func(ctx context.Context) ([]string, error) {
					n, err := o.Insert(ctx, into(coll, "companyId"))
					if own := (*idgen.Error)(nil); err != nil && !errors.As(err, &own) {
						return nil, nil // the insert's own error: its answer was lost, and the document may be there
					}
					return []string{strconv.FormatInt(n, 10)}, err
				}, nothing
			},
			check: increasing,
			final: func(t testing.TB, db *mongo.Database, numbers []int64) {
				// Nothing was deleted: the numbers in the collection have no gap, and all that were given out are there.
				var inside []int64
				for _, d := range stored(t, db.Collection("companies")) {
					inside = append(inside, d["companyId"].(int64))
				}
				onceEach(t, inside, 1000)
				for _, n := range numbers {
					if _, found := slices.BinarySearch(inside, n); !found {
						t.Errorf("%d was given out and is not there", n)
					}
				}
			},
		},
	}
}

func nothing() error { return nil }

func reserving(numbers interface {
	Reserve(context.Context, int) ([]any, error)
}, n int) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		values, err := numbers.Reserve(ctx, n)
		texts := make([]string, len(values))
		for i, v := range values {
			texts[i] = fmt.Sprint(v)
		}
		return texts, err
	}
}

func increasing(t testing.TB, numbers []int64) { runs(1, 1)(t, numbers) }

// runs checks that numbers come in runs of n with the given distance, each above the one before; for periods, above the
// one before of the same date.
func runs(n int, step int64) func(testing.TB, []int64) {
	return func(t testing.TB, numbers []int64) {
		last := map[int64]int64{}
		for run := range slices.Chunk(numbers, n) {
			date := int64(0)
			if run[0] > 1e9 {
				date = run[0] / 10000
			}
			if run[0] <= last[date] {
				t.Errorf("%d after %d", run[0], last[date])
			}
			for i, number := range run {
				if number != run[0]+int64(i)*step {
					t.Errorf("%d is number %d of the run from %d", number, i, run[0])
				}
			}
			last[date] = run[len(run)-1]
		}
	}
}

// Four processes with eight callers each use a sequence that does not exist yet, all at once, over connections that break.
// No number comes twice, and each caller's come in the documented order.
func TestProcesses(t *testing.T) {
	seed := os.Getenv(envSeed)
	if seed == "" {
		seed = strconv.FormatUint(uint64(rand.Uint32()), 10)
	}
	t.Logf("%s=%s", envSeed, seed)
	servertest.Each(t, func(t *testing.T, s *servertest.Server) { runProcesses(t, s, seed) })
}

func runProcesses(t *testing.T, s *servertest.Server, seed string) {
	for _, seq := range sequences() {
		t.Run(seq.kind, func(t *testing.T) {
			t.Parallel() // the processes mostly wait
			db := database(t, s)
			if seq.prepare != nil {
				seq.prepare(t, db)
			}
			var children []*exec.Cmd
			var outputs, errs [processes]bytes.Buffer
			for i := range processes {
				c := exec.CommandContext(testContext(t), os.Args[0])
				c.Env = append(os.Environ(), envKind+"="+seq.kind, envURI+"="+s.URI, envDatabase+"="+db.Name(), envSeed+"="+seed+strconv.Itoa(i))
				c.Stdout, c.Stderr = &outputs[i], &errs[i]
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				children = append(children, c)
			}
			var all []int64
			for i, c := range children {
				if err := c.Wait(); err != nil {
					t.Errorf("process %d: %v\n%s", i, err, &errs[i])
				}
				byCaller := map[string][]int64{}
				for line := range strings.Lines(outputs[i].String()) {
					caller, text, _ := strings.Cut(strings.TrimSpace(line), " ")
					n, err := strconv.ParseInt(text, 10, 64)
					if err != nil {
						t.Fatalf("process %d prints %q", i, line)
					}
					byCaller[caller] = append(byCaller[caller], n)
					all = append(all, n)
				}
				for _, numbers := range byCaller {
					seq.check(t, numbers)
				}
				t.Logf("process %d: %s", i, strings.TrimSpace(errs[i].String()))
			}
			slices.Sort(all)
			if len(all) < processes*callers*seq.rounds/2 {
				t.Errorf("only %d numbers were given out", len(all))
			}
			for i := 1; i < len(all); i++ {
				if all[i] == all[i-1] {
					t.Errorf("%d was given out twice", all[i])
				}
			}
			if seq.final != nil {
				seq.final(t, db, all)
			}
		})
	}
}

// child is one of the processes. It prints "caller number" for each number, and on standard error what it went through.
func child(kind string) error {
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 64)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(sequences(), func(s shared) bool { return s.kind == kind })
	if at < 0 {
		return fmt.Errorf("no sequence is called %q", kind)
	}
	seq := sequences()[at]
	wire := faultwire.New(faultwire.KeepLast(0))
	random := rand.New(rand.NewPCG(seed, 0))
	var rules []*faultwire.Rule
	for _, fault := range []faultwire.Fault{faultwire.DropRequest(), faultwire.DropReply(), faultwire.Cut(), faultwire.CutReply(7)} {
		rules = append(rules, wire.On().Sometimes(0.01, random).Do(fault))
	}
	client, err := mongo.Connect(options.Client().ApplyURI(os.Getenv(envURI)).SetDialer(wire).SetRetryWrites(seed%2 == 0))
	if err != nil {
		return err
	}
	next, end := seq.take(client.Database(os.Getenv(envDatabase)))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	var failed error
	together(callers, func(i int) {
		for range seq.rounds {
			texts, err := next(ctx)
			mu.Lock()
			if err != nil {
				failed, texts = err, nil
			}
			for _, text := range texts {
				fmt.Fprintln(out, i, text)
			}
			mu.Unlock()
		}
	})
	cuts := 0
	for _, rule := range rules {
		cuts += rule.Fired()
	}
	fmt.Fprintf(os.Stderr, "%d commands, %d broken\n", wire.Count(), cuts)
	for _, f := range []func() error{out.Flush, end, func() error { return client.Disconnect(ctx) }, wire.Close} {
		if err := f(); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}
