package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
)

// The same command with a key imports once, however often it is run.
func TestBatchID(t *testing.T) {
	for _, memory := range []int{0, small} {
		x := newTarget(t)
		const n = 3000
		file := x.file("f.ndjson", ndjson(n, nil))
		args := []string{"--json", "--batch-id", "january", "--sequence", "no=s", file}
		if s := x.expect(x.runWith(&program{memory: memory}, args...), exitStored, 0); s.Stored != n || s.Replayed {
			t.Errorf("%+v", s)
		}
		s := x.runWith(&program{memory: memory}, args...)
		if s.code != exitStored || !strings.Contains(s.stdout, `"replayed":true`) || !strings.Contains(s.stdout, `"stored":3000`) {
			t.Errorf("%+v", s)
		}
		r := x.runWith(&program{memory: memory}, args[1:]...)
		if want := "an earlier import with this --batch-id stored 3,000 documents"; r.code != exitStored || !strings.Contains(r.stdout, want) {
			t.Errorf("%+v", r)
		}
		if x.count() != n || x.counter("s") != n {
			t.Errorf("%d documents, counter at %d", x.count(), x.counter("s"))
		}
		x.expect(x.runWith(&program{memory: memory}, "--json", "--batch-id", "february", "--sequence", "no=s", file), exitStored, n)
	}
}

// A key that failed can be used again.
func TestBatchIDAfterFailure(t *testing.T) {
	x := newTarget(t)
	x.insert(bson.D{{Key: "_id", Value: "theirs"}})
	file := x.file("f.ndjson", ndjson(3000, map[int]string{2000: `{"_id":"theirs"}`}))
	x.expect(x.run("--json", "--batch-id", "k", file), exitNotStored, 1)
	x.file("f.ndjson", ndjson(3000, nil))
	x.expect(x.run("--json", "--batch-id", "k", file), exitStored, 1)
}

// While an import is at work, another one with the same key does nothing.
func TestBatchIDInUse(t *testing.T) {
	x := newTarget(t)
	file := x.file("f.ndjson", ndjson(3000, nil))
	wire := faultwire.ForTest(t)
	var second result
	wire.On(faultwire.Insert.In(x.db.Name() + ".c")).Nth(2).Before(func(context.Context, *faultwire.Request) {
		other := *x
		other.dialer = nil
		second = other.run("--batch-id", "k", "--lease", "1s", file)
	})
	x.dialer = wire
	x.expect(x.run("--json", "--batch-id", "k", "--lease", "1s", file), exitStored, 0)
	if second.code != exitNotStored || !strings.Contains(second.stderr, "in progress") || !strings.Contains(second.stderr, "NOT STORED") {
		t.Errorf("%+v", second)
	}
}

// What a killed import has left, the next one with the same journal deletes; or --recover does.
func TestKilled(t *testing.T) {
	for name, next := range map[string]func(x *target) result{
		"the next import": func(x *target) result {
			r := x.run("--journal", "j", x.file("other.ndjson", ndjson(3, nil)))
			x.mention(r, "1 other import did not end")
			if n := x.count(); n != 4 {
				x.t.Errorf("%d documents instead of 1 + 3", n)
			}
			return r
		},
		"--recover": func(x *target) result { return x.run("--recover", "--journal", "j") },
	} {
		t.Run(name, func(t *testing.T) {
			x := newTarget(t)
			x.insert(bson.D{{Key: "_id", Value: 0}})
			c := command(t.Context(), "--uri", x.uri, "--db", x.db.Name(), "--collection", "c", "--journal", "j", "--lease", "1s",
				x.file("f.ndjson", ndjson(60_000, map[int]string{5: `{"_id":"mine"}`})))
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); x.count() < 3000; {
				if time.Now().After(deadline) {
					t.Fatal("nothing was stored in time")
				}
			}
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			c.Wait()
			if left := x.count(); left < 3000 || left == 60_001 {
				t.Fatalf("%d documents: the test shows nothing", left)
			}
			if r := next(x); r.code != exitStored {
				t.Errorf("%+v", r)
			}
			got := x.documents()
			if !slices.Contains(got, `{"_id":0}`) || len(got) > 4 {
				t.Errorf("%d documents, among them %.5q", len(got), got)
			}
		})
	}
}

// A recovery that cannot do its work says so.
func TestRecoverFails(t *testing.T) {
	x := newTarget(t)
	wire := faultwire.ForTest(t)
	x.dialer = wire
	wire.On(faultwire.Find).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not allowed"})
	r := x.run("--recover", "--journal", "j")
	if r.code != exitIncomplete || !strings.Contains(r.stderr, "the recovery is not complete") {
		t.Errorf("%+v", r)
	}
}

// After a second signal, the journal is how the rest is done.
func TestInterruptedTwiceWithJournal(t *testing.T) {
	x := newTarget(t)
	wire := faultwire.ForTest(t)
	signals := make(chan os.Signal)
	wire.On(faultwire.Insert.In(x.db.Name() + ".c")).Nth(3).Before(func(context.Context, *faultwire.Request) { signals <- os.Interrupt })
	wire.On(faultwire.Delete.In(x.db.Name() + ".c")).First(1).Before(func(closed context.Context, _ *faultwire.Request) {
		signals <- os.Interrupt
		<-closed.Done() // it never reaches the server
	})
	x.dialer = wire
	r := x.runWith(&program{signals: signals}, "--journal", "j", "--lease", "1s", x.file("f.ndjson", ndjson(10_000, nil)))
	x.dialer = nil
	x.expect(r, exitIncomplete, 0)
	x.mention(r, "import --recover --journal j deletes them")
	if x.count() == 0 {
		t.Fatal("nothing is left, so that the test shows nothing")
	}
	if r := x.run("--recover", "--journal", "j"); r.code != exitStored || x.count() != 0 {
		t.Errorf("%+v, %d documents are left", r, x.count())
	}
}
