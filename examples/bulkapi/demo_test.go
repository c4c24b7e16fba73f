package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/intact-go/intact/internal/servertest"
)

// The demonstration ends well, fits into 80 columns, and shows what it should.
func TestDemo(t *testing.T) {
	x := newTarget(t)
	var stdout, stderr bytes.Buffer
	p := &program{stdout: &stdout, stderr: &stderr, env: func(string) string { return "" }}
	for range 2 { // it may be run again on the same database
		stdout.Reset()
		if code := p.run(context.Background(), x.args("--demo")); code != exitStopped {
			t.Fatalf("exit code %d\n%s\n%s", code, &stdout, &stderr)
		}
	}
	if stderr.Len() > 0 {
		t.Errorf("it complains: %s", &stderr)
	}
	for line := range strings.Lines(stdout.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, text := range []string{"201 Created", "Idempotency-Replayed: true", "409 Conflict", `"state": "open"`, "There are 4 companies"} {
		if !strings.Contains(stdout.String(), text) {
			t.Errorf("no %q in\n%s", text, &stdout)
		}
	}
	if n := x.count(); n != 4 {
		t.Errorf("%d companies", n)
	}
}

// Without --uri and MONGODB_URI, the program brings its server.
func TestEmbedded(t *testing.T) {
	servertest.Embedded(t) // so that it is built
	t.Setenv("MONGODB_URI", "")
	var stdout, stderr bytes.Buffer
	signals := make(chan os.Signal, 1)
	p := &program{stdout: &stdout, stderr: &stderr, env: os.Getenv, signals: signals, listening: func(string) { signals <- os.Interrupt }}
	if code := p.run(context.Background(), nil); code != exitStopped || !strings.Contains(stderr.String(), "embedded") || !strings.Contains(stdout.String(), "curl -i http://127.0.0.1:") {
		t.Errorf("exit code %d\n%s\n%s", code, &stdout, &stderr)
	}
}

// MONGODB_URI names the server if --uri does not.
func TestURI(t *testing.T) {
	for _, c := range []struct{ env, flag, want string }{{"a", "", "a"}, {"a", "b", "b"}, {"", "b", "b"}, {"", "", ""}} {
		args := []string{}
		if c.flag != "" {
			args = append(args, "--uri", c.flag)
		}
		o, err := parse(args, func(string) string { return c.env }, &bytes.Buffer{})
		if err != nil || o.uri != c.want {
			t.Errorf("%+v: %+v, %v", c, o, err)
		}
	}
}

// A command line that makes no sense is refused, and so is an address or a server that does not exist.
func TestCannotStart(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--nonsense"}, exitUsage, "unknown flag: --nonsense"},
		{[]string{"serve"}, exitUsage, `"serve" is too much`},
		{[]string{"--max-documents", "0"}, exitUsage, "--max-documents"},
		{[]string{"--max-bytes", "17000000"}, exitUsage, "--max-bytes"},
		{[]string{"--request-timeout", "0"}, exitUsage, "--request-timeout"},
		{[]string{"--grace", "-1s"}, exitUsage, "--grace"},
		{[]string{"--lease", "1ms"}, exitUsage, "--lease"},
		{[]string{"--retention", "0"}, exitUsage, "--retention"},
		{[]string{"--uri", "mongodb://user:secret@"}, exitFailed, "bulkapi:"},
		{[]string{"--uri", "mongodb://user:secret@127.0.0.1:1/?serverSelectionTimeoutMS=100"}, exitFailed, "the database cannot be used"},
		{append(newTarget(t).args(), "--listen", "256.0.0.1:0"), exitFailed, "256.0.0.1"},
	} {
		var stdout, stderr bytes.Buffer
		p := &program{stdout: &stdout, stderr: &stderr, env: func(string) string { return "" }}
		code := p.run(context.Background(), c.args)
		if code != c.code || !strings.Contains(stderr.String(), c.text) || strings.Contains(stderr.String(), "secret") || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, &stdout, &stderr)
		}
	}
	var stdout, stderr bytes.Buffer
	p := &program{stdout: &stdout, stderr: &stderr, env: func(string) string { return "" }}
	if code := p.run(context.Background(), []string{"--help"}); code != exitStopped || !strings.Contains(stdout.String(), "--max-documents") || stderr.Len() > 0 {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
	for line := range strings.Lines(stdout.String()) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("wide: %s", line)
		}
	}
}
