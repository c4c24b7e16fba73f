package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Nobody there is told in time, and the message does not show the password.
func TestNoServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits until the driver gives up")
	}
	x := newTarget(t)
	uri := x.uri
	x.uri = "mongodb://amy:s%40cret@127.0.0.1:1/?serverSelectionTimeoutMS=500"
	r := x.run(x.file("f.ndjson", ndjson(1, nil)))
	x.uri = uri
	x.expect(r, exitNotStored, 0)
	x.mention(r, "no connection to the server", "nothing was written")
	if strings.Contains(r.stderr+r.stdout, "cret") {
		t.Errorf("the password is told: %s", r.stderr)
	}
}

func TestUsage(t *testing.T) {
	x := newTarget(t)
	csv, lines := x.file("f.csv", "a\n1\n"), x.file("f.ndjson", ndjson(1, nil))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--nonsense", lines}, "unknown flag: --nonsense"},
		{[]string{"--type", "xml", lines}, "--type xml: expected json, csv or tsv"},
		{[]string{csv}, "say with --headerline"},
		{[]string{"--headerline", lines}, "is JSON"},
		{[]string{"--headerline", "--fields", "a", csv}, "exclude each other"},
		{[]string{"--headerline", "--separator", "ab", csv}, "--separator"},
		{[]string{"--headerline", "--jsonArray", csv}, "--jsonArray is not for CSV"},
		{[]string{"--sequence", "no", lines}, "expected field=name"},
		{[]string{"--sequence", "no=s:x", lines}, `"x" is not a whole number`},
		{[]string{"--sequence", "no=s:1:0", lines}, `"0" is not a whole number from 1 on`},
		{[]string{"--sequence", "no=s@week", lines}, "expected @hour, @day, @month or @year"},
		{[]string{"--sequence", "no=s@day:30", lines}, `"30" is not a whole number`},
		{[]string{"--sequence", "no=s@day:4:4", lines}, "expected field=name"},
		{[]string{"--zone", "Mars/Olympus", lines}, "--zone Mars/Olympus"},
		{[]string{"--lease", "1ms", lines}, "--lease 1ms"},
		{[]string{"--recover"}, "--recover needs the name of the --journal"},
		{[]string{"--recover", "--journal", "j", lines}, "--recover imports nothing"},
		{[]string{"--recover", "--journal", "j", "--dry-run"}, "exclude each other"},
		{[]string{"--numInsertionWorkers", "0", lines}, "--numInsertionWorkers 0"},
		{[]string{"--uri", "http://amy:secret@host/", lines}, "--uri: not a valid connection string"},
		{[]string{"--uri", "mongodb://amy:se@cret@host/", lines}, "--uri: not a valid connection string"},
		{[]string{"-", "-"}, "the standard input can be read only once"},
		{[]string{""}, "the name of a file is empty"},
		{[]string{"--errors", "-1", lines}, "--errors -1"},
	} {
		r := x.run(c.args...)
		if r.code != exitUsage || !strings.Contains(r.stderr, c.says) || r.stdout != "" {
			t.Errorf("%q: code %d\n%s%s", c.args, r.code, r.stdout, r.stderr)
		}
		if strings.Contains(r.stderr, "cret") {
			t.Errorf("the password is told: %s", r.stderr)
		}
	}
	if r := x.run("--help"); r.code != exitStored || !strings.Contains(r.stdout, "Exit codes:") || r.stderr != "" {
		t.Errorf("%d\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	if x.count() != 0 {
		t.Error("documents were stored")
	}
}

// Where nothing is said, the database is the URI's and the collection has the name of the file.
func TestDefaults(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"places.ndjson.gz", "mongodb://localhost:27017 test places"},
		{"--uri mongodb://h1,h2/shop?w=1 dir/places.csv --headerline", "mongodb://h1,h2/shop?w=1 shop places"},
		{"--uri mongodb://a:b%2Fc@h/sh%6Fp -c x f.json g.json", "mongodb://a:b%2Fc@h/sh%6Fp shop x"},
		{"--uri mongodb+srv://h/shop -d other f.json", "mongodb+srv://h/shop other f"},
		{"-c x", "mongodb://localhost:27017 test x"},
	} {
		o, err := parse(strings.Fields(c.args), func(string) string { return "" }, nil)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if got := fmt.Sprint(o.uri, " ", o.database, " ", o.collection); got != c.want {
			t.Errorf("%s: %s, not %s", c.args, got, c.want)
		}
	}
	if _, err := parse([]string{"a.json", "b.json"}, os.Getenv, nil); err == nil {
		t.Error("two files without --collection are accepted")
	}
	if _, err := parse([]string{"--json"}, os.Getenv, nil); err == nil {
		t.Error("the standard input without --collection is accepted")
	}
	o, err := parse([]string{"f.json"}, func(name string) string { return map[string]string{"MONGODB_URI": "mongodb://elsewhere/db"}[name] }, nil)
	if err != nil || o.uri != "mongodb://elsewhere/db" || o.database != "db" {
		t.Errorf("%+v, %v", o, err)
	}
}
