package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
)

// child starts the program as a process of its own, and waits until the target has some documents.
func (x *bench) child(args ...string) (*exec.Cmd, *strings.Builder) {
	x.t.Helper()
	c := exec.CommandContext(x.t.Context(), os.Args[0], x.args(append(args, "--numInsertionWorkers", "1")...)...)
	c.Env = append(os.Environ(), asProgram+"=1")
	var output strings.Builder
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		x.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); x.count("b") == 0; {
		if time.Now().After(deadline) {
			x.t.Fatal("nothing was stored in time")
		}
	}
	return c, &output
}

// A run that was killed in the middle has left documents. The next one deletes them and copies everything, once.
func TestKilled(t *testing.T) {
	const n = 12_000
	for name, args := range map[string][]string{"kept ids": nil, "new ids": {"--new-ids"}} {
		t.Run(name, func(t *testing.T) {
			x := newBench(t)
			x.fill(n)
			c, output := x.child(args...)
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			c.Wait()
			if left := x.count("b"); left == 0 || left >= n {
				t.Fatalf("%d documents are left, so that the test shows nothing\n%s", left, output)
			}
			r := x.expect(exitStored, append(args, "--json")...)
			x.mention(r, "1 other copy did not end; looking for up to 2s whether somebody works on them", "documents of a run that was killed")
			if s := r.summary; s.Stored != n || s.Targets[0].Counted != n || s.Replayed {
				t.Errorf("%+v", s)
			}
			if name == "kept ids" {
				x.same("a", "b")
			}
			seen := make(map[string]bool)
			for _, raw := range x.documents("b") {
				seen[raw.Lookup("v").StringValue()] = true
			}
			if len(seen) != n || x.count("b") != n {
				t.Errorf("%d documents, %d of them different", x.count("b"), len(seen))
			}
			x.mention(x.expect(exitStored, args...), "already done")
		})
	}
}

// A run that was killed after everything was stored, while the marks were being removed, is finished by the next.
func TestKilledWithMarks(t *testing.T) {
	x := newBench(t)
	x.fill(2500)
	wire := x.wire()
	wire.On(faultwire.Update.In(x.ns("b"))).Once().Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not allowed"})
	r := x.expect(exitUnfinished)
	x.mention(r, "the marks could not be removed from "+x.ns("b"), "STORED BUT NOT FINISHED: 2,500 in "+x.ns("b")+", counted afterwards: 2,500")
	r = x.expect(exitStored)
	x.mention(r, "already stored", "removed its marks: done now, from 2,500")
	x.same("a", "b")
}

// The first signal rolls back.
func TestSignal(t *testing.T) {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		x := newBench(t)
		x.fill(6000)
		wire := x.wire()
		signals := make(chan os.Signal)
		wire.On(faultwire.Insert.In(x.ns("b"))).Nth(3).Before(func(context.Context, *faultwire.Request) { signals <- s })
		r := x.runWith(&program{signals: signals}, "--json", "--sequence", "no=s", "--numInsertionWorkers", "1")
		x.code(r, exitNotStored)
		if s := r.summary; s.Result != "not stored" || !strings.HasPrefix(s.Error, "interrupted by SIG") || s.Read == 0 {
			t.Errorf("%+v", s)
		}
		if n := x.count("b"); n != 0 {
			t.Errorf("%d documents are left", n)
		}
		x.dialer = nil
		x.expect(exitStored, "--sequence", "no=s")
		if n := x.count("b"); n != 6000 {
			t.Errorf("%d documents", n)
		}
	}
}

// A real signal to a real process.
func TestProcessInterrupted(t *testing.T) {
	x := newBench(t)
	x.fill(12_000)
	c, output := x.child("--new-ids")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitNotStored || x.count("b") != 0 || !strings.Contains(output.String(), "SIGTERM: stopping") {
		t.Errorf("code %d, %d documents\n%s", code, x.count("b"), output)
	}
	x.expect(exitStored, "--new-ids")
	if n := x.count("b"); n != 12_000 {
		t.Errorf("%d documents", n)
	}
}

// The second signal does not wait for the rollback, and says what to do.
func TestSignalTwice(t *testing.T) {
	x := newBench(t)
	x.fill(6000)
	wire := x.wire()
	signals, exited := make(chan os.Signal), make(chan int, 1)
	wire.On(faultwire.Insert.In(x.ns("b"))).Nth(2).Before(func(context.Context, *faultwire.Request) { signals <- os.Interrupt })
	left := 0
	wire.On(faultwire.Delete.In(x.ns("b"))).Once().Before(func(context.Context, *faultwire.Request) {
		signals <- os.Interrupt
		if code := <-exited; code != exitIncomplete {
			t.Errorf("code %d", code)
		}
		left = x.count("b") // a real process would have gone by now
	})
	r := x.runWith(&program{signals: signals, exit: func(code int) { exited <- code }}, "--numInsertionWorkers", "1")
	x.mention(r, "SIGINT again: leaving", "the same command again deletes them first")
	if left == 0 {
		t.Error("the rollback was over, so that the test shows nothing")
	}
}

// While a run is at work, another one of the same job does nothing and says whose it is.
func TestAtWork(t *testing.T) {
	x := newBench(t)
	x.fill(3000)
	wire := x.wire()
	var second result
	wire.On(faultwire.Insert.In(x.ns("b"))).Nth(2).Before(func(context.Context, *faultwire.Request) {
		other := *x
		other.dialer = nil
		second = other.run()
	})
	x.expect(exitStored)
	x.code(second, exitIncomplete)
	host, _ := os.Hostname()
	x.mention(second, "in progress", fmt.Sprintf("%s/%d/", host, os.Getpid()))
	x.same("a", "b")
}

// A source that cannot be read any more takes everything back.
func TestSourceFails(t *testing.T) {
	x := newBench(t)
	x.fill(3000)
	wire := x.wire()
	wire.On(faultwire.GetMore.In(x.ns("a"))).Skip(1).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not allowed"})
	r := x.expect(exitNotStored)
	x.mention(r, "not allowed", "NOT STORED, nothing of it is in the target")
	if n := x.count("b"); n != 0 {
		t.Errorf("%d documents are left", n)
	}
	if n, err := x.db.Collection("migrate_journal").CountDocuments(t.Context(), bson.D{{Key: "state", Value: "aborted"}}); n != 1 || err != nil {
		t.Errorf("%d finished records, %v", n, err)
	}
}
