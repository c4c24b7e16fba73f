package localmongo_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"github.com/intact-go/intact/internal/localmongo"
	"github.com/intact-go/intact/internal/servertest"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

// parentEnv makes this test binary the parent of a server that is killed in TestParentKilled; its value is the
// data directory.
const parentEnv = "INTACT_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnv); dir != "" {
		parent(dir)
		return
	}
	servertest.Main(m)
}

// start starts a server of this test's own, also when the other tests use the one that MONGODB_URI names.
func start(t *testing.T, o localmongo.Options) *localmongo.Server {
	t.Helper()
	t.Setenv(localmongo.EnvURI, "")
	s, err := localmongo.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *localmongo.Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The server may be gone on purpose; the driver would look for it for half a minute, to end its sessions.
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		c.Disconnect(ctx)
	})
	return c
}

// refuses says whether nobody listens any more at the address of a URI.
func refuses(t *testing.T, uri string) bool {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err == nil {
		c.Close()
	}
	return err != nil
}

func TestStartAndClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary) // Unix
	t.Setenv("TMP", temporary)    // Windows
	var log bytes.Buffer
	s := start(t, localmongo.Options{Log: &log})
	c := connect(t, s.URI())
	if _, err := c.Database("db").Collection("c").InsertOne(t.Context(), bson.M{"_id": 1}); err != nil {
		t.Fatal(err)
	}
	if files, _ := filepath.Glob(filepath.Join(temporary, "*", "db.sqlite")); len(files) != 1 {
		t.Errorf("data in %v", files)
	}
	c.Disconnect(t.Context())

	for range 2 {
		stop(t, s)
		if !refuses(t, s.URI()) {
			t.Error("still accepts connections")
		}
	}
	if left, _ := filepath.Glob(filepath.Join(temporary, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if log.Len() > 0 && !strings.Contains(log.String(), "compiling") {
		t.Errorf("a server that is already compiled says %q", log.String())
	}
	goleak.VerifyNone(t, before)
}

func TestClosedWhileInUse(t *testing.T) {
	s := start(t, localmongo.Options{})
	c := connect(t, s.URI()).Database("db").Collection("c")
	if _, err := c.InsertOne(t.Context(), bson.M{}); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 4 {
		writers.Go(func() {
			for ctx.Err() == nil {
				c.InsertOne(ctx, bson.M{})
			}
		})
	}
	begun := time.Now()
	stop(t, s)
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("busy clients held the stop up for %v", took)
	}
	cancel()
	writers.Wait()
}

func TestKeptDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not yet", "kept #1 100% ?mode=memory&ü")
	for restart := range 3 {
		s := start(t, localmongo.Options{Dir: dir})
		c := connect(t, s.URI()).Database("db").Collection("c")
		if err := uniqueIndex(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if n, err := c.CountDocuments(t.Context(), bson.M{}); err != nil || int(n) != restart {
			t.Fatalf("%d documents after %d restarts, %v", n, restart, err)
		}
		if _, err := c.InsertOne(t.Context(), bson.M{"number": restart}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.InsertOne(t.Context(), bson.M{"number": 0}); !mongo.IsDuplicateKeyError(err) {
			t.Errorf("the unique index is gone after %d restarts: %v", restart, err)
		}
		stop(t, s)
	}
}

func TestTwoServers(t *testing.T) {
	servers := []*localmongo.Server{
		start(t, localmongo.Options{}),
		start(t, localmongo.Options{Dir: t.TempDir()}),
	}
	for i, s := range servers {
		if _, err := connect(t, s.URI()).Database("db").Collection("c").InsertOne(t.Context(), bson.M{"server": i}); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range servers {
		var all []struct{ Server int }
		cursor, err := connect(t, s.URI()).Database("db").Collection("c").Find(t.Context(), bson.M{})
		if err == nil {
			err = cursor.All(t.Context(), &all)
		}
		if err != nil || len(all) != 1 || all[0].Server != i {
			t.Errorf("server %d has %v, %v", i, all, err)
		}
	}
	stop(t, servers[0])
	if err := connect(t, servers[1].URI()).Ping(t.Context(), nil); err != nil {
		t.Errorf("the second server after the end of the first: %v", err)
	}
}

func TestStartAtOnce(t *testing.T) {
	t.Setenv(localmongo.EnvURI, "")
	for _, err := range together(4, func(int) error {
		s, err := localmongo.Start(t.Context(), localmongo.Options{})
		if err == nil {
			err = s.Close()
		}
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestGivenServer(t *testing.T) {
	const uri = "mongodb://db.example:27017/?replicaSet=rs0"
	t.Setenv(localmongo.EnvURI, uri)
	t.Setenv("PATH", "") // starting anything is impossible
	dir := filepath.Join(t.TempDir(), "unused")
	s, err := localmongo.Start(t.Context(), localmongo.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if s.URI() != uri {
		t.Errorf("URI %q, want %q", s.URI(), uri)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory of a given server: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	used := t.TempDir()
	first := start(t, localmongo.Options{Dir: used})
	u, err := url.Parse(first.URI())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx  context.Context
		o    localmongo.Options
		path string // value of PATH, "" for the real one
		want string // a part of the error
	}{
		"directory in use":        {o: localmongo.Options{Dir: used}, want: "another server is using"},
		"address in use":          {o: localmongo.Options{Listen: u.Host}, want: "listen tcp"},
		"no directory":            {o: localmongo.Options{Dir: file}, want: "mkdir"},
		"no go command":           {path: t.TempDir(), want: "no go command in PATH"},
		"context has ended":       {ctx: done, want: "context canceled"},
		"no such address":         {o: localmongo.Options{Listen: "nonsense"}, want: "missing port"},
		"address of another host": {o: localmongo.Options{Listen: "192.0.2.1:0"}, want: "listen tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			if test.path != "" {
				t.Setenv("PATH", test.path)
			}
			if test.ctx == nil {
				test.ctx = t.Context()
			}
			test.o.Log = io.Discard
			s, err := localmongo.Start(test.ctx, test.o)
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not say %q", err, test.want)
			}
			if test.ctx == done && !errors.Is(err, context.Canceled) {
				t.Errorf("%v is not context.Canceled", err)
			}
			goleak.VerifyNone(t, before)
		})
	}
	if err := connect(t, first.URI()).Ping(t.Context(), nil); err != nil {
		t.Errorf("the first server is harmed: %v", err)
	}
}

// parent starts a server, tells the URI, and waits to be killed.
func parent(dir string) {
	os.Unsetenv(localmongo.EnvURI)
	s, err := localmongo.Start(context.Background(), localmongo.Options{Dir: dir})
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString(s.URI() + "\n")
	select {}
}

// TestParentKilled kills the parent of a server in the way that leaves it no chance to say goodbye.
func TestParentKilled(t *testing.T) {
	dir := t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), parentEnv+"="+dir)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	uri := strings.TrimSpace(line)
	if err != nil || !strings.HasPrefix(uri, "mongodb://") {
		command.Process.Kill()
		t.Fatalf("the parent says %q, %v", line, err)
	}
	c := connect(t, uri).Database("db").Collection("c")
	if _, err := c.InsertOne(t.Context(), bson.M{"_id": 1}); err != nil {
		t.Fatal(err)
	}
	if refuses(t, uri) {
		t.Fatal("there is no server to begin with")
	}

	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	command.Wait()
	deadline := time.Now().Add(patience)
	for !refuses(t, uri) {
		if time.Now().After(deadline) {
			t.Fatal("the server still listens")
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Its lock on the directory ends with the process: when another server can have it, the first is gone.
	t.Setenv(localmongo.EnvURI, "")
	for {
		s, err := localmongo.Start(t.Context(), localmongo.Options{Dir: dir, Log: io.Discard})
		if err == nil {
			n, err := connect(t, s.URI()).Database("db").Collection("c").CountDocuments(t.Context(), bson.M{"_id": 1})
			if err != nil || n != 1 {
				t.Errorf("%d documents survived, %v", n, err)
			}
			stop(t, s)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server still runs: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
