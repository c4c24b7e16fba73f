package intact_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/servertest"
)

// goBlocks returns the README's blocks of Go code.
func goBlocks(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, match := range regexp.MustCompile("(?s)```go\n(.*?)\n```").FindAllStringSubmatch(string(readme), -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

// TestReadmeProgram runs the README's program, whose code nothing else compiles.
func TestReadmeProgram(t *testing.T) {
	blocks := goBlocks(t)
	if len(blocks) == 0 || !strings.HasPrefix(blocks[0], "package main\n") {
		t.Fatal("the README does not begin with a program")
	}
	server := servertest.Embedded(t)
	database := server.Database(t, server.Client(t, options.Client()))
	code := replaceOnce(t, blocks[0], "mongodb://localhost:27017", server.URI)
	code = replaceOnce(t, code, `"shop"`, `"`+database.Name()+`"`)
	out, err := goRun(t, "run", code)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "stored 4 documents; order numbers [1 2]\n"; out != want {
		t.Errorf("it prints %q, not %q", out, want)
	}
}

// fragments is what the README's other blocks may take for granted.
const fragments = `package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/rollback"
)

var (
	_ = bytes.Clone
	_ = cmp.Or[int]
	_ = errors.As
	_ = io.EOF
	_ = log.Print
	_ time.Time
	_ bson.D
	_ = rollback.Recover

	inserter  *batch.Inserter
	documents []bson.M
)

func main() {}

`

// TestReadmeFragments compiles the blocks that are no programs, each as the body of a function.
func TestReadmeFragments(t *testing.T) {
	code := fragments
	count := 0
	for _, block := range goBlocks(t)[1:] {
		if !strings.Contains(block, "return err\n") && !strings.HasSuffix(block, "return err") {
			block += "\nreturn err"
		}
		code += fmt.Sprintf("func fragment%d(ctx context.Context, shop *mongo.Database) error {\n%s\n}\n\n", count, block)
		count++
	}
	if count < 4 {
		t.Errorf("the README has %d blocks beside its program", count)
	}
	if out, err := goRun(t, "vet", code); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// goRun has the go command work on a program of one file.
func goRun(t *testing.T, verb, code string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "go", verb, file).CombinedOutput()
	return string(out), err
}

func replaceOnce(t *testing.T, text, old, with string) string {
	t.Helper()
	if n := strings.Count(text, old); n != 1 {
		t.Fatalf("the program has %q %d times, not once", old, n)
	}
	return strings.Replace(text, old, with, 1)
}
