//go:build unix

package crashtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

var (
	killSeed  = flag.Uint64("crash.kill", 0, "run the one kill with this seed")
	killCount = flag.Int("crash.kills", 500, "how many processes to kill at least; every point once in any case")
)

// TestKill kills processes with SIGKILL at every point, and then has nothing but Recover put things right.
func TestKill(t *testing.T) {
	t.Parallel()
	all := points()
	if *killSeed != 0 {
		k := newKill(*killSeed, all)
		t.Logf("%v", k.point)
		runKills(t, []kill{k})
		return
	}
	count := max(*killCount, len(all))
	if testing.Short() {
		count = len(all)
	}
	// A seed's remainder says which point it is about, so that consecutive seeds go through all of them. After the first
	// round chance decides.
	first := rand.Uint64N(1<<40)*uint64(len(all)) + uint64(len(all))
	t.Logf("%d points, %d kills, seeds from %d on; to run one: go test ./internal/crashtest -run TestKill -crash.kill=SEED", len(all), count, first)
	var kills []kill
	for i := range uint64(count) {
		if i >= uint64(len(all)) {
			i = uint64(len(all)) + rand.Uint64N(1<<40)
		}
		kills = append(kills, newKill(first+i, all))
	}
	runKills(t, kills)
}

// kill is one process's life.
type kill struct {
	seed        uint64
	point       point
	key         string
	concurrency int
	stampAll    bool
}

func newKill(seed uint64, all []point) kill {
	random := rand.New(rand.NewPCG(seed, 0))
	k := kill{seed: seed, point: all[seed%uint64(len(all))], concurrency: 1 + random.IntN(4), stampAll: random.IntN(2) == 0}
	first, _ := k.point.job.before()
	if first != "" || strings.HasPrefix(k.point.name, "result") || random.IntN(2) == 0 {
		k.key = fmt.Sprintf("key %d", seed)
	}
	return k
}

func (k kill) String() string { return fmt.Sprintf("seed %d, %v", k.seed, k.point) }

// killGroup is some kills in a database of their own: in a larger one the server, which reads a whole collection for most
// commands, would be what everybody waits for.
type killGroup struct {
	kills   []kill
	db      *mongo.Database
	foreign map[string]bson.Raw
}

const (
	groupSize = 20
	// busy is how many children work at a time, idle how many wait for the lease of a dead one, or for their own beats.
	busy, idle = 8, 40
)

// runKills kills all processes, some at a time, recovers, and looks what is there.
func runKills(t *testing.T, kills []kill) {
	t.Helper()
	server := servertest.Embedded(t)
	client := server.Client(t)
	var groups []*killGroup
	for some := range slices.Chunk(kills, groupSize) {
		db := server.Database(t, client)
		groups = append(groups, &killGroup{kills: some, db: db, foreign: plantAround(t, db, len(some))})
	}
	var working, waiting errgroup.Group
	working.SetLimit(busy)
	waiting.SetLimit(idle)
	for _, g := range groups {
		for number, k := range g.kills {
			last := k.task(server.URI, g.db.Name(), number)
			run := func(what task, dies bool) bool {
				err := what.start(t.Context(), dies)
				if err != nil {
					t.Errorf("%v: the process %s: %v", k, what.Job, err)
				}
				return err == nil
			}
			working.Go(func() error {
				if earlier, dies, ok := last.before(); ok && !run(earlier, dies) {
					return nil
				}
				if k.point.job == undoing || k.point.job == slow {
					waiting.Go(func() error { run(last, true); return nil })
				} else {
					run(last, true)
				}
				return nil
			})
		}
	}
	_ = working.Wait()
	_ = waiting.Wait()

	var recovering errgroup.Group
	for _, g := range groups {
		recovering.Go(func() error {
			for pass := range 2 {
				if _, err := rollback.Recover(t.Context(), g.db.Collection(journalName), recovery); err != nil {
					t.Errorf("recovery, pass %d: %v", pass+1, err)
				}
			}
			return nil
		})
	}
	_ = recovering.Wait()
	for _, g := range groups {
		g.judge(t)
	}
}

// recovery is what puts things right after kills.
var recovery = rollback.Recovery{Policy: rollback.Policy{Settle: childSettle, Concurrency: 2, Budget: -1}}

// judge looks whether every batch is whole or gone, and everything else as it was.
func (g *killGroup) judge(t *testing.T) {
	t.Helper()
	now := dump(t, g.db)
	for number, k := range g.kills {
		have := count(now, number)
		possible := map[result][]int{nothing: {0}, whole: {allDocuments}, either: {0, allDocuments}}[k.point.result]
		if !slices.Contains(possible, have) {
			t.Errorf("%v: %d documents are there; %s was to be expected", k, have, k.point.result)
		}
	}
	records, err := rollback.List(t.Context(), g.db.Collection(journalName))
	if err != nil {
		t.Error(err)
	}
	for _, record := range records {
		if record.Unfinished() || record.Err != nil {
			t.Errorf("the record %q is %s: %v %s", record.ID, record.State, record.Err, record.Problem)
		}
	}
	for place, raw := range g.foreign {
		if !bytes.Equal(now[place], raw) {
			t.Errorf("somebody else's document %s was %v and is %v", place, raw, now[place])
		}
	}
	third, err := rollback.Recover(t.Context(), g.db.Collection(journalName), recovery)
	if err != nil || fmt.Sprint(third) != fmt.Sprint(rollback.RecoveryReport{}) {
		t.Errorf("the third pass: %+v, %v", third, err)
	}
	if again := dump(t, g.db); !equalDumps(now, again) {
		t.Errorf("the third pass changed something")
	}
}

// task is what the process is told that is killed.
func (k kill) task(uri, database string, number int) task {
	return task{
		URI: uri, Database: database, Job: k.point.job, Case: number, Key: k.key, Lease: killLease,
		Concurrency: k.concurrency, StampAll: k.stampAll, Signal: syscall.SIGKILL, Point: k.point.String(),
	}
}

// before returns what another process has to have done first, and whether it is killed.
func (t task) before() (earlier task, dies, ok bool) {
	first, at := t.Job.before()
	earlier = t
	earlier.Job, earlier.Point = first, ""
	if at != "" {
		earlier.Point = fmt.Sprintf("%s: %s", first, at)
	}
	return earlier, at != "", first != ""
}

// start runs a child to its end, which has to be the signal, or not.
func (t task) start(ctx context.Context, dies bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	command, output := t.command(ctx)
	err := command.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("it did not come to an end: %s", output)
	}
	status, ok := command.ProcessState.Sys().(syscall.WaitStatus)
	killed := ok && status.Signaled() && status.Signal() == syscall.SIGKILL
	switch {
	case dies && killed:
		return nil
	case dies:
		return fmt.Errorf("the point was not reached: %v, %s", err, output)
	case err != nil:
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

func (t task) command(ctx context.Context) (*exec.Cmd, *bytes.Buffer) {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // the test's own value
	}
	command := exec.CommandContext(ctx, os.Args[0])
	command.Env = append(os.Environ(), childTask+"="+string(text))
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	return command, &output
}

// plantAround stores somebody else's documents in the collections, those with the ids that failing batches want among them.
func plantAround(t *testing.T, db *mongo.Database, cases int) map[string]bson.Raw {
	t.Helper()
	for _, name := range []string{"minted", "numbered", "claimed"} {
		foreign := []bson.D{
			{{Key: "_id", Value: bson.NewObjectID()}, {Key: "of", Value: "somebody else"}},
			{{Key: "_id", Value: int64(-1)}, {Key: "of", Value: "somebody else"}},
		}
		for number := range cases {
			foreign = append(foreign, bson.D{{Key: "_id", Value: clashingID(number)}, {Key: "of", Value: "somebody else"}})
		}
		if _, err := db.Collection(name).InsertMany(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
	}
	return dump(t, db)
}

// count counts the documents of a case.
func count(all map[string]bson.Raw, number int) (n int) {
	for _, raw := range all {
		if of, ok := raw.Lookup("case").Int32OK(); ok && int(of) == number {
			n++
		}
	}
	return n
}

// dump reads the whole database but for the counters.
func dump(t *testing.T, db *mongo.Database) map[string]bson.Raw {
	t.Helper()
	all := make(map[string]bson.Raw)
	for _, name := range []string{"minted", "numbered", "claimed", journalName, pagesName} {
		cursor, err := db.Collection(name).Find(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var documents []bson.Raw
		if err := cursor.All(t.Context(), &documents); err != nil {
			t.Fatal(err)
		}
		for _, raw := range documents {
			all[name+" "+raw.Lookup("_id").String()] = raw
		}
	}
	return all
}

func equalDumps(a, b map[string]bson.Raw) bool {
	if len(a) != len(b) {
		return false
	}
	for place, raw := range a {
		if !bytes.Equal(raw, b[place]) {
			return false
		}
	}
	return true
}
