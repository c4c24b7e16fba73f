package intact_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/servertest"
)

// TestReadmeProgram runs the README's program, whose code nothing else compiles.
func TestReadmeProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```go\npackage main\n")
	code, _, closed := strings.Cut(rest, "\n```")
	if !found || !closed {
		t.Fatal("the README has no program")
	}
	server := servertest.Embedded(t)
	database := server.Database(t, server.Client(t, options.Client()))
	code = replaceOnce(t, code, "mongodb://localhost:27017", server.URI)
	code = replaceOnce(t, code, `"shop"`, `"`+database.Name()+`"`)
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte("package main\n"+code), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "run", file)
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "stored 4 documents; order numbers [1 2]\n"; string(out) != want {
		t.Errorf("it prints %q, not %q", out, want)
	}
}

func replaceOnce(t *testing.T, text, old, with string) string {
	t.Helper()
	if n := strings.Count(text, old); n != 1 {
		t.Fatalf("the program has %q %d times, not once", old, n)
	}
	return strings.Replace(text, old, with, 1)
}
