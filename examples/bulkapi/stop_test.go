package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
)

// holding has the program in a process of its own (asProgram) hold the answer to its first insert of companies, which
// the database has carried out by then. Its value is the collection.
const holding = "INTACT_TEST_HOLD"

// hold makes the dialer of such a process.
func hold() driver.ContextDialer {
	collection := os.Getenv(holding)
	if collection == "" {
		return nil
	}
	wire := faultwire.New()
	wire.On(faultwire.Insert.In(collection)).Once().HoldReply()
	return wire
}

// child is the program in a process of its own.
type child struct {
	*served
	command *exec.Cmd
	stdout  *bufio.Reader
}

// start runs the program in a process of its own. With held, its first insert of companies gets no answer.
func (x *target) start(held bool, args ...string) *child {
	x.t.Helper()
	c := &child{served: &served{target: x, log: &output{}}, command: exec.Command(os.Args[0], x.args(args...)...)}
	c.command.Env = append(os.Environ(), asProgram+"=1")
	if held {
		c.command.Env = append(c.command.Env, holding+"="+x.db.Name()+".companies")
	}
	c.command.Stderr = c.log
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		x.t.Fatal(err)
	}
	if err := c.command.Start(); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		c.command.Process.Kill() // does nothing to one that has ended
		c.command.Wait()
		if x.t.Failed() {
			x.t.Log(c.log)
		}
	})
	c.stdout = bufio.NewReader(stdout)
	line, err := c.stdout.ReadString('\n')
	if _, c.url, _ = strings.Cut(line, "serves on "); err != nil || c.url == "" {
		x.t.Fatalf("it says %q, %v\n%s", line, err, c.log)
	}
	c.url, _, _ = strings.Cut(c.url, " ")
	return c
}

// code waits for the end and returns the exit code.
func (c *child) code() int {
	c.t.Helper()
	var rest strings.Builder
	c.stdout.WriteTo(&rest)
	c.command.Wait()
	return c.command.ProcessState.ExitCode()
}

// SIGTERM in the middle of a batch, while the database does not answer: the batch is stored if that is possible within
// the grace, and else rolled back, which the exit code tells. Either way it takes less than the 30 s that orchestrators
// give.
func TestTerminated(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		grace        string
		code, status int
		stored       int64
	}{
		{"15s", exitStopped, http.StatusCreated, 500},
		{"1s", exitCutOff, http.StatusServiceUnavailable, 0},
	} {
		t.Run(c.grace, func(t *testing.T) {
			t.Parallel()
			x := newTarget(t)
			p := x.start(true, "--grace", c.grace)
			first := p.postLater("k", many("A", 500))
			x.wait("the companies are stored", func() bool { return x.count() == 500 })
			began := time.Now()
			if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			r := <-first
			if code := p.code(); code != c.code {
				t.Errorf("exit code %d, not %d", code, c.code)
			}
			if took := time.Since(began); took > 25*time.Second {
				t.Errorf("it took %v", took)
			}
			if r.status != c.status || r.status != http.StatusCreated && (r.problem.name != "unavailable" || !strings.Contains(r.problem.Detail, "stopping")) {
				t.Errorf("the client is told %d %.500s", r.status, r.body)
			}
			if n, keys := x.count(), x.countIn("requests"); n != c.stored || keys != c.stored/500 {
				t.Errorf("%d companies, %d keys", n, keys)
			}
			s := x.serve()
			if r := s.get("/batches"); c.stored > 0 && r.body != `{"unfinished":[]}` {
				t.Errorf("%s", r.body)
			}
			if again := s.post("k", many("A", 500)); again.status != http.StatusCreated || x.count() != 500 || c.stored > 0 && again.body != r.body {
				t.Errorf("the same again: %d, %d companies", again.status, x.count())
			}
		})
	}
}

// postLater posts in the background.
func (s *served) postLater(key, body string) <-chan reply {
	replies := make(chan reply, 1)
	go func() {
		r, err := s.do(context.Background(), http.MethodPost, "/companies:batchCreate", key, body, nil)
		if err != nil {
			r.body = err.Error()
		}
		replies <- r
	}()
	return replies
}

// A process that is killed in the middle of a batch: the next one shows the batch, deletes what is there, and frees the
// key.
func TestKilled(t *testing.T) {
	t.Parallel()
	x := newTarget(t)
	p := x.start(true, "--lease", "1s")
	first := p.postLater("k", many("A", 500))
	x.wait("the companies are stored", func() bool { return x.count() == 500 })
	if err := p.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if r := <-first; r.status != 0 {
		t.Errorf("the client is told %+v", r)
	}
	p.code()
	if n := x.count(); n != 500 {
		t.Fatalf("%d companies: the test shows nothing", n)
	}
	s := x.serve("--lease", "1s")
	if r := s.get("/batches"); !strings.Contains(r.body, `"batch":"k","state":"open"`) || !strings.Contains(r.body, `"companies":500`) {
		t.Errorf("%s", r.body)
	}
	s.expect(s.post("k", many("A", 500)), http.StatusConflict, "in-progress")
	s.expectStored(s.post("other", list("B-1", "B-2")), 2)
	x.wait("the companies are deleted", func() bool { return x.count() == 2 })
	x.wait("no batch is left", func() bool { return s.get("/batches").body == `{"unfinished":[]}` })
	if r := s.post("k", many("A", 500)); r.status != http.StatusCreated || x.count() != 502 {
		t.Errorf("%d, %d companies", r.status, x.count())
	}
}

// While it stops, what runs goes on, and nothing new is taken. A second signal cuts off what runs.
func TestStopping(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]int{"in time": 0, "a second signal": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTarget(t).serve()
			held := s.wire.On(s.inserts()).Once().HoldReply()
			first := s.postLater("k", list("A-1", "A-2"))
			<-held.Arrived()
			code := make(chan int, 1)
			go func() { code <- s.end() }()
			s.wait("it takes no requests", func() bool {
				_, err := s.do(t.Context(), http.MethodGet, "/healthz", "", "", nil)
				return err != nil
			})
			for range more {
				s.signals <- syscall.SIGTERM
				s.cutOff("k")
			}
			held.Release()
			r, want := <-first, exitStopped
			if more == 0 {
				s.expectStored(r, 2)
			} else {
				want = exitCutOff
				s.unavailable(r)
			}
			if code := <-code; code != want || s.count() != int64(len(r.created.Companies)) {
				t.Errorf("exit code %d, %d companies", code, s.count())
			}
		})
	}
}

// A third signal, or the end of the time, ends the rollbacks too. The exit code says that something is left, and the next
// process deletes it.
func TestStoppingAtOnce(t *testing.T) {
	t.Parallel()
	x := newTarget(t)
	s := x.serve("--lease", "1s")
	inserted := x.wire.On(x.inserts()).Once().HoldReply()
	deleting := x.wire.On(faultwire.Delete.In(x.db.Name() + ".companies")).Hold()
	first := s.postLater("k", list("A-1", "A-2"))
	<-inserted.Arrived()
	code := make(chan int, 1)
	go func() { code <- s.end() }()
	s.signals <- syscall.SIGTERM
	s.cutOff("k")
	inserted.Release()
	<-deleting.Arrived()
	s.signals <- syscall.SIGTERM
	if code := <-code; code != exitIncomplete {
		t.Errorf("exit code %d", code)
	}
	s.expect(<-first, http.StatusServiceUnavailable, "incomplete")
	deleting.Off()
	deleting.Drop()
	if n := x.count(); n != 2 {
		t.Errorf("%d companies", n)
	}
	x.serve("--lease", "1s")
	x.wait("the companies are deleted", func() bool { return x.count() == 0 })
}
