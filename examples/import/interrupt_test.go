package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/internal/faultwire"
)

// A signal during the inserting rolls back, whatever of it is stored.
func TestInterrupted(t *testing.T) {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(job.SignalName(s), func(t *testing.T) {
			x := newTarget(t)
			wire := faultwire.ForTest(t)
			x.dialer = wire
			signals := make(chan os.Signal)
			inserts := faultwire.Insert.In(x.db.Name() + ".c")
			wire.On(inserts).Nth(3).Before(func(context.Context, *faultwire.Request) { signals <- s })
			r := x.runWith(&program{signals: signals}, "--json", "--sequence", "no=s", x.file("f.ndjson", ndjson(10_000, nil)))
			sum := x.expect(r, exitNotStored, 0)
			if sum.Error != "interrupted by "+job.SignalName(s) || sum.Read != 10_000 || sum.NotStored != 10_000 {
				t.Errorf("%+v", sum)
			}
			x.mention(r, job.SignalName(s)+": no more is read or sent")
			if n := wire.Count(faultwire.Insert); n >= 10 {
				t.Errorf("%d of 10 inserts were sent", n)
			}
			if n := x.counter("s"); n != 10_000 {
				t.Errorf("the counter is at %d", n)
			}
		})
	}
}

// A second signal ends the rollback: the program says so, lists what may be left, and does not call it a success.
func TestInterruptedTwice(t *testing.T) {
	x := newTarget(t)
	wire := faultwire.ForTest(t)
	x.dialer = wire
	signals := make(chan os.Signal)
	wire.On(faultwire.Insert.In(x.db.Name() + ".c")).Nth(3).Before(func(context.Context, *faultwire.Request) { signals <- os.Interrupt })
	wire.On(faultwire.Delete).First(1).Before(func(closed context.Context, _ *faultwire.Request) {
		signals <- os.Interrupt
		<-closed.Done() // it never reaches the server
	})
	r := x.runWith(&program{signals: signals}, "--json", x.file("f.ndjson", ndjson(10_000, nil)))
	s := x.expect(r, exitIncomplete, 0)
	left := x.count()
	if left == 0 {
		t.Fatal("the deletes went through, so that the test shows nothing")
	}
	if s.Leftovers < int(left) || s.LeftoverFile == "" || s.Stored != 0 {
		t.Errorf("%d documents are left; %+v", left, s)
	}
	listed, err := os.ReadFile(s.LeftoverFile)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(listed), "{\"_id\":{\"$oid\":"); n != s.Leftovers {
		t.Errorf("%d ids are listed instead of %d", n, s.Leftovers)
	}
	x.mention(r, "the rollback ends", "the ids of what may be left are in "+s.LeftoverFile)
}

// Where the list cannot be written to its file, it is written to the screen.
func TestLeftoversWithoutFile(t *testing.T) {
	x := newTarget(t)
	wire := faultwire.ForTest(t)
	x.dialer = wire
	signals := make(chan os.Signal)
	wire.On(faultwire.Delete).First(1).Before(func(closed context.Context, _ *faultwire.Request) {
		signals <- os.Interrupt
		signals <- os.Interrupt
		<-closed.Done() // it never reaches the server
	})
	x.insert(struct {
		ID int `bson:"_id"`
	}{7})
	r := x.runWith(&program{signals: signals}, "--leftovers", x.dir, x.file("f.ndjson", "{\"v\":1}\n{\"_id\":7}\n{\"v\":2}\n"))
	x.expect(r, exitIncomplete, 0)
	x.mention(r, "could not be written", `{"_id":{"$oid":"`, "INCOMPLETE: read 3, refused 1")
}

// A third signal does not wait for anything.
func TestInterruptedThrice(t *testing.T) {
	signals, exited := make(chan os.Signal), make(chan int, 1)
	var shown strings.Builder
	p := &program{signals: signals, exit: func(code int) { exited <- code }}
	ctx, stop, done := p.watch(context.Background(), screen.New("import", &shown))
	signals <- os.Interrupt
	<-ctx.Done()
	signals <- os.Interrupt
	<-stop
	signals <- os.Interrupt
	if code := <-exited; code != exitIncomplete {
		t.Errorf("code %d", code)
	}
	done()
	if n := strings.Count(shown.String(), "\n"); n != 3 {
		t.Errorf("%d lines:\n%s", n, shown.String())
	}
}

// Nothing was sent yet: the standard input that nobody writes to does not hold the program up.
func TestInterruptedWhileReading(t *testing.T) {
	x := newTarget(t)
	in, writer := io.Pipe()
	signals := make(chan os.Signal)
	go func() {
		io.WriteString(writer, ndjson(10, nil))
		signals <- syscall.SIGTERM
	}()
	r := x.runWith(&program{stdin: in, signals: signals}, "--sequence", "no=s")
	writer.Close() // ends the read that nobody waits for
	x.expect(r, exitNotStored, 0)
	x.mention(r, "SIGTERM: no more is read", "NOT STORED, nothing was written; no number was used")
}

// command is the program as a process of its own.
func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	return c
}

// A real signal to a real process.
func TestProcessInterrupted(t *testing.T) {
	x := newTarget(t)
	c := command(t.Context(), "--uri", x.uri, "--db", x.db.Name(), "--collection", "c", "-")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	screen, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, ndjson(30_000, nil)); err != nil {
		t.Fatal(err)
	}
	in.Close()
	lines := bufio.NewScanner(screen)
	lines.Scan() // "read 30,000 documents"
	for x.count() == 0 {
		if t.Context().Err() != nil {
			t.Fatal("nothing was stored in time")
		}
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var rest strings.Builder
	for lines.Scan() {
		fmt.Fprintln(&rest, lines.Text())
	}
	c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitNotStored || x.count() != 0 || !strings.Contains(rest.String(), "SIGTERM") {
		t.Errorf("code %d, %d documents\n%s", code, x.count(), rest.String())
	}
}

// A reader of the output that goes away must not kill the import half-way.
func TestOutputGoesAway(t *testing.T) {
	x := newTarget(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := command(ctx, "--uri", x.uri, "--db", x.db.Name(), "--collection", "c", x.file("f.ndjson", ndjson(5000, nil)))
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = write, write
	read.Close()
	err = c.Run()
	write.Close()
	if n := x.count(); err != nil || n != 5000 {
		t.Errorf("%v, %d documents", err, n)
	}
}
