package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/localmongo"
	"github.com/intact-go/intact/internal/servertest"
)

// Without arguments the program shows, on a server of its own, that it keeps what it promises.
func TestDemo(t *testing.T) {
	t.Setenv(localmongo.EnvURI, servertest.Embedded(t).URI) // saves starting another one, and covers the clean-up
	var stdout, stderr bytes.Buffer
	p := &program{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, env: func(string) string { return "" }}
	if code := p.run(t.Context(), nil); code != exitStored {
		t.Fatalf("code %d\n%s\n%s", code, stdout.String(), stderr.String())
	}
	for _, want := range []string{
		"GeoNames", "CC BY 4.0",
		"stored 2,759 documents in demo_", "places 1 … 2,759",
		"There are 2,759 places now; the last number given out is 5,518.",
		"places 5,519\n",
		"There are 2,760 places now; the last number given out is 5,519.",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no word of %q in\n%s", want, stdout.String())
		}
	}
	for _, want := range []string{
		"one-id-is-taken.ndjson:1379: refused by the server: E11000",
		"NOT STORED, nothing of it is in demo_",
		"places 2,760 … 5,518 stay unused",
		"one-line-is-cut.ndjson:1379:", "the line ends in the middle of a document",
		"NOT STORED, nothing was written; no number was used",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no word of %q in\n%s", want, stderr.String())
		}
	}
	client := servertest.Embedded(t).Client(t)
	names, err := client.ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: "^demo_"}}}})
	if err != nil || len(names) > 0 {
		t.Errorf("databases are left: %v, %v", names, err)
	}
}

// The demo ends when it is told to, and cleans up.
func TestDemoInterrupted(t *testing.T) {
	t.Setenv(localmongo.EnvURI, servertest.Embedded(t).URI)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	p := &program{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, env: func(string) string { return "" }}
	if code := p.run(ctx, nil); code != exitNotStored {
		t.Errorf("code %d\n%s\n%s", code, stdout.String(), stderr.String())
	}
}
