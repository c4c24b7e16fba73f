package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

// started is a server that runs in this process.
type started struct {
	dir      string // the working directory at its start
	out, err *bufio.Reader
	code     chan int
}

// launch runs the command with these arguments in a working directory of its own.
func launch(t *testing.T, stdin io.Reader, args ...string) *started {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	outReader, out := io.Pipe()
	errReader, err := io.Pipe()
	s := &started{dir: dir, out: bufio.NewReader(outReader), err: bufio.NewReader(errReader), code: make(chan int, 1)}
	go func() {
		s.code <- run(args, stdin, out, err)
		out.Close()
		err.Close()
	}()
	return s
}

// wait waits for the end and returns the exit code.
func (s *started) wait(t *testing.T) int {
	t.Helper()
	go io.Copy(io.Discard, s.out)
	go io.Copy(io.Discard, s.err)
	select {
	case code := <-s.code:
		return code
	case <-time.After(patience):
		t.Fatal("does not stop")
		return 0
	}
}

func insert(t *testing.T, uri string) {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect(context.Background())
	if _, err := c.Database("db").Collection("c").InsertOne(t.Context(), bson.M{"_id": 1}); err != nil {
		t.Fatal(err)
	}
}

// byHand reads what a server that was started by hand says, and returns the connection string.
func byHand(t *testing.T, s *started) (uri, said string) {
	t.Helper()
	for !strings.Contains(said, "Ctrl-C") {
		line, err := s.err.ReadString('\n')
		if err != nil {
			t.Fatalf("it says %q, then %v", said, err)
		}
		said += line
	}
	uri = regexp.MustCompile(`mongodb://127\.0\.0\.1:\d+/`).FindString(said)
	if uri == "" || !strings.Contains(said, `mongosh "`+uri+`"`) {
		t.Fatalf("no way to connect in %q", said)
	}
	return uri, said
}

func TestByHand(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP} {
		t.Run(name, func(t *testing.T) {
			temporary := t.TempDir()
			t.Setenv("TMPDIR", temporary)
			s := launch(t, strings.NewReader("")) // standard input has ended, and that means nothing
			uri, said := byHand(t, s)
			if !strings.Contains(said, "removed at the end") {
				t.Errorf("it does not say that the data is temporary: %q", said)
			}
			insert(t, uri)
			if files, _ := filepath.Glob(filepath.Join(temporary, "*", "db.sqlite")); len(files) != 1 {
				t.Errorf("data in %v", files)
			}
			process, err := os.FindProcess(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			if err := process.Signal(sig); err != nil {
				t.Skipf("this system cannot send itself a signal: %v", err)
			}
			if code := s.wait(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if left, _ := filepath.Glob(filepath.Join(temporary, "*")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestKeepsDirectory(t *testing.T) {
	stdin, stop := io.Pipe()
	s := launch(t, stdin, "-parent", "-dir", "data/of mine")
	defer signal.Reset()
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var a address
	if err := json.Unmarshal(line, &a); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if want := filepath.Join(s.dir, "data", "of mine"); a.Dir != want || a.Temporary {
		t.Errorf("directory %q, temporary %v; want %q, to be kept", a.Dir, a.Temporary, want)
	}
	insert(t, a.URI)
	stop.Close()
	if code := s.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(filepath.Join(a.Dir, "db.sqlite")); err != nil {
		t.Error(err)
	}
	u, err := url.Parse(a.URI)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", u.Host); err == nil {
		c.Close()
		t.Error("still accepts connections")
	}
}

func TestArguments(t *testing.T) {
	for name, args := range map[string][]string{
		"unknown flag":     {"-nonsense"},
		"unknown argument": {"data"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, said bytes.Buffer
			if code := run(args, strings.NewReader(""), &out, &said); code != 2 {
				t.Errorf("exit code %d", code)
			}
			if said.Len() == 0 || out.Len() != 0 {
				t.Errorf("it says %q, %q", out.String(), said.String())
			}
		})
	}
}
