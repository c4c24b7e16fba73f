package localmongo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBuild builds into a cache directory of its own; that of the compiler stays, so it takes seconds.
func TestBuild(t *testing.T) {
	out, err := exec.Command("go", "env", "GOCACHE", "GOPATH").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := strings.Fields(string(out))
	t.Setenv("GOCACHE", paths[0])
	t.Setenv("GOPATH", paths[1])
	for _, name := range []string{"XDG_CACHE_HOME", "HOME", "LocalAppData"} { // wherever os.UserCacheDir looks
		t.Setenv(name, t.TempDir())
	}

	type result struct {
		binary string
		log    bytes.Buffer
		err    error
	}
	build := func() *result {
		var r result
		r.binary, r.err = build(t.Context(), &writer{w: &r.log})
		return &r
	}
	const n = 3
	results := make(chan *result, n)
	for range n {
		go func() { results <- build() }()
	}
	var binary string
	for range n {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		if strings.Count(r.log.String(), "only the first time") != 1 {
			t.Errorf("the first build says %q", r.log.String())
		}
		binary = r.binary
	}
	made, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if r := build(); r.err != nil || r.log.Len() != 0 || r.binary != binary {
		t.Errorf("the second build: %q, %v, says %q", r.binary, r.err, r.log.String())
	}
	again, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(again, made) {
		t.Error("the second build was not needed, and replaced the binary")
	}
	interrupted := errors.New("killed")
	err = rebuild(binary, func() error { return errors.Join(os.Truncate(binary, made.Size()/2), interrupted) })
	if !errors.Is(err, interrupted) {
		t.Fatal(err)
	}
	if r := build(); r.err != nil {
		t.Fatal(r.err)
	}
	if repaired, err := os.Stat(binary); err != nil || repaired.Size() != made.Size() {
		t.Errorf("half a binary was not replaced: %v", err)
	}
}

func TestCompileFails(t *testing.T) {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	source := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module broken\n\ngo 1.25.0\n")
	write("main.go", "package main\n\nfunc main() { undefinedName() }\n")
	binary := filepath.Join(t.TempDir(), "server")
	err = compile(t.Context(), goCommand, source, binary)
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedName") {
		t.Errorf("the error does not quote the compiler: %v", err)
	}
	if _, err := os.Stat(binary); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a binary of a failed build: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := compile(ctx, goCommand, source, binary); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	write("main.go", "package main\n\nfunc main() {}\n")
	t.Setenv("GOFLAGS", "-mod=vendor -race -cover")
	t.Setenv("GOWORK", filepath.Join(t.TempDir(), "go.work"))
	if err := compile(t.Context(), goCommand, source, binary); err != nil {
		t.Errorf("settings of the caller matter: %v", err)
	}
}

func TestSourceDir(t *testing.T) {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	want, err := filepath.Abs("server")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := sourceDir(t.Context(), goCommand); err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := acquire(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := tryLock(file); second != nil || err != nil {
		t.Fatalf("taken twice: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := acquire(ctx, file); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for it: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		unlock, err := acquire(t.Context(), file)
		if err == nil {
			unlock()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Errorf("after it was given back: %v", err)
	}
	if _, err := acquire(t.Context(), filepath.Join(file, "impossible")); err == nil {
		t.Error("a lock in a directory that is none")
	}
}

func TestTail(t *testing.T) {
	var end tail
	if got := end.quote(); got != "" {
		t.Errorf("of nothing: %q", got)
	}
	end.Write([]byte("a line\n"))
	if got := end.quote(); got != ":\na line" {
		t.Errorf("of a line: %q", got)
	}
	for range tailSize {
		end.Write([]byte("xy"))
	}
	end.Write([]byte("the end"))
	if got := end.quote(); len(got) > tailSize+10 || !strings.HasPrefix(got, ":\n… ") || !strings.HasSuffix(got, "xythe end") {
		t.Errorf("of a lot: %d bytes, %.10q…", len(got), got)
	}
}

func TestSignOfLife(t *testing.T) {
	calls := make(chan time.Duration)
	stop := every(time.Millisecond, func(elapsed time.Duration) {
		select {
		case calls <- elapsed:
		default:
		}
	})
	first, second := <-calls, <-calls
	if first <= 0 || second <= first {
		t.Errorf("elapsed %v, then %v", first, second)
	}
	stop()
	select {
	case <-calls:
		t.Error("called after stop")
	default:
	}
}
