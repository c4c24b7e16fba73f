package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/intact-go/intact/examples/internal/job"
)

// Command lines that make no sense are told before anything is done.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"--to-collection b", "--from-collection is needed"},
		{"--from-collection a", "source and target are the same, test.a"},
		{"--from-collection a --to-collection b more", `"more" is too much`},
		{"--from-collection a --to-collection b --nothing", "unknown flag"},
		{"--from-collection a --to-collection b --from-uri nonsense", "--from-uri: not a valid connection string"},
		{"--from-collection a --to-collection b --to-uri nonsense", "--to-uri: not a valid connection string"},
		{"--from-collection a --to-collection b --filter {", "--filter: not a query"},
		{"--from-collection a --to-collection b --filter []", "--filter: not a query"},
		{"--from-collection a --to-collection b --rename a", "expected old=new"},
		{"--from-collection a --to-collection b --rename _id=a", "expected old=new"},
		{"--from-collection a --to-collection b --rename a=_id", "expected old=new"},
		{"--from-collection a --to-collection b --rename a=b --rename a=c", `something else happens to "a" already`},
		{"--from-collection a --to-collection b --drop-field _id", "--new-ids"},
		{"--from-collection a --to-collection b --new-ids --sequence _id=n", "exclude each other"},
		{"--from-collection a --to-collection b --sequence n", "expected field=name"},
		{"--from-collection a --to-collection b --numInsertionWorkers 0", "from 1 to 100"},
		{"--from-collection a --to-collection b --lease 1ms", "from 1s to 24h"},
		{"--from-collection a --to-collection b --errors -1", "from 0 on"},
		{"--from-collection a --to-collection b --journal b", "needed for the journal"},
		{"--from-collection a --to-collection counters", "needed for the journal or the counters"},
	} {
		var stderr strings.Builder
		p := &program{stdout: &strings.Builder{}, stderr: &stderr, env: func(string) string { return "" }}
		if code := p.run(t.Context(), strings.Fields(c.args)); code != exitUsage || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%s: code %d\n%s", c.args, code, stderr.String())
		}
	}
}

// What is not said is worked out from what is.
func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		args     string
		from, to place
		key      string
	}{
		{"--from-collection a --to-collection b", place{job.DefaultURI, "test", "a"}, place{job.DefaultURI, "test", "b"}, "test.a -> test.b"},
		{"--from-collection a --to-db d", place{job.DefaultURI, "test", "a"}, place{job.DefaultURI, "d", "a"}, "test.a -> d.a"},
		{"--from-uri mongodb://h/e --from-collection a --to-collection b", place{"mongodb://h/e", "e", "a"}, place{"mongodb://h/e", "e", "b"}, "e.a -> e.b"},
		{"--from-db d --from-collection a --to-uri mongodb://h/e", place{job.DefaultURI, "d", "a"}, place{"mongodb://h/e", "e", "a"}, "d.a -> e.a"},
		{"--from-db d --from-collection a --to-uri mongodb://h", place{job.DefaultURI, "d", "a"}, place{"mongodb://h", "d", "a"}, "d.a -> d.a"},
		{"--from-collection a --to-collection b --batch-id k", place{job.DefaultURI, "test", "a"}, place{job.DefaultURI, "test", "b"}, "k"},
	} {
		o, err := parse(strings.Fields(c.args), func(string) string { return "" }, nil)
		if err != nil || o.from != c.from || o.to != c.to || o.batchID != c.key {
			t.Errorf("%s: %+v, %v", c.args, o, err)
		}
	}
}

// Two command lines have the same key only if they do the same.
func TestKeys(t *testing.T) {
	var keys []string
	for _, args := range []string{"", "--filter {\"a\":1}", "--filter {\"a\":2}", "--rename a=b", "--rename b=a", "--drop-field a", "--new-ids", "--sequence a=n", "--sequence a=n:2"} {
		args := append(strings.Fields(args), "--from-collection", "a", "--to-collection", "b")
		o, err := parse(args, func(string) string { return "" }, nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(args, func(string) string { return "" }, nil)
		if err != nil || again.batchID != o.batchID || !strings.HasPrefix(o.batchID, "test.a -> test.b") {
			t.Errorf("%v: %q and %q, %v", args, o.batchID, again.batchID, err)
		}
		keys = append(keys, o.batchID)
	}
	slices.Sort(keys)
	if len(slices.Compact(slices.Clone(keys))) != len(keys) {
		t.Errorf("%q", keys)
	}
}

func TestHelp(t *testing.T) {
	var help strings.Builder
	_, err := parse([]string{"--help"}, nil, &help)
	if !errors.Is(err, pflag.ErrHelp) {
		t.Error(err)
	}
	for _, want := range []string{"--from-uri", "--dry-run", "shop.a -> shop.b", "Exit codes", "4  unfinished"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("no word of %q in\n%s", want, help.String())
		}
	}
	for line := range strings.Lines(help.String()) {
		if len([]rune(line)) > 81 {
			t.Errorf("too wide: %s", line)
		}
	}
}
