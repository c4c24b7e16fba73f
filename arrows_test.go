package intact_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/intact-go/intact"

// arrows says which packages of the library a package may import. Whatever is not here is a helper of tests.
var arrows = map[string][]string{
	"":                 nil,
	"batch":            {"rollback", "internal/journal", "internal/outcome", "internal/retry"},
	"rollback":         {"internal/journal", "internal/outcome", "internal/retry"},
	"idgen":            {"internal/outcome", "internal/retry"},
	"internal/journal": {"internal/outcome", "internal/retry"},
	"internal/outcome": nil,
	"internal/retry":   nil,
}

// direct is what the module may require itself, and forTests what of it only tests may use.
var (
	direct   = []string{"github.com/cenkalti/backoff/v4", "go.mongodb.org/mongo-driver/v2", "go.uber.org/goleak", "golang.org/x/sync", "pgregory.net/rapid"}
	forTests = []string{"go.uber.org/goleak", "pgregory.net/rapid"}
)

// listed is what go list tells about a package.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
	Standard   bool
}

// goList runs go list for the root module alone, as its users have it.
func goList(t *testing.T, args ...string) []listed {
	t.Helper()
	var packages []listed
	decoder := json.NewDecoder(strings.NewReader(goCommand(t, append([]string{"list", "-json"}, args...)...)))
	for {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.Command("go", args...)
	command.Env = append(os.Environ(), "GOWORK=off")
	var problems strings.Builder
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &problems)
	}
	return string(out)
}

// within returns a package's path within the module; ok is false for one of another module.
func within(path string) (name string, ok bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

// Imports point one way, and nothing that users get needs what only tests need.
func TestArrows(t *testing.T) {
	found := make(map[string]bool)
	for _, p := range goList(t, "./...") {
		name, _ := within(p.ImportPath)
		allowed, ours := arrows[name]
		if !ours {
			continue
		}
		found[name] = true
		for _, path := range p.Imports {
			if other, inside := within(path); inside && !slices.Contains(allowed, other) {
				t.Errorf("package %q imports %q; its arrows lead to %q", name, other, allowed)
			}
		}
		for _, path := range p.Deps {
			if other, inside := within(path); inside {
				if _, ours := arrows[other]; !ours {
					t.Errorf("package %q needs %q, a helper of tests", name, other)
				}
			}
			if path == "testing" || slices.ContainsFunc(forTests, func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }) {
				t.Errorf("package %q needs %s, which is for tests only", name, path)
			}
		}
	}
	for name := range arrows {
		if !found[name] {
			t.Errorf("there is no package %q", name)
		}
	}
}

// Users get the driver, a little of x/sync, backoff, and nothing else: nested modules are none of their business.
func TestRequirements(t *testing.T) {
	var mod struct {
		Module  struct{ Path string }
		Go      string
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace, Exclude []any
	}
	if err := json.Unmarshal([]byte(goCommand(t, "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, r := range mod.Require {
		if !r.Indirect {
			have = append(have, r.Path)
		}
		if strings.HasPrefix(r.Path, module) {
			t.Errorf("the root requires a module of its own: %s", r.Path)
		}
	}
	if slices.Sort(have); !slices.Equal(have, direct) {
		t.Errorf("direct requirements are %q, want %q", have, direct)
	}
	if mod.Module.Path != module || len(mod.Replace)+len(mod.Exclude) > 0 || !strings.HasPrefix(mod.Go, "1.25") {
		t.Errorf("module %s, go %s, %d replaced, %d excluded", mod.Module.Path, mod.Go, len(mod.Replace), len(mod.Exclude))
	}
	if used := goList(t, "-deps", "./..."); len(used) < 100 {
		t.Errorf("go list tells of %d packages only", len(used))
	}
}

// Nothing happens before somebody calls something: no package has an init function.
func TestNoInit(t *testing.T) {
	files := 0
	for _, p := range goList(t, "./...") {
		if name, _ := within(p.ImportPath); name != "" {
			if _, ours := arrows[name]; !ours {
				continue
			}
		}
		for _, name := range p.GoFiles {
			files++
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, declared := range file.Decls {
				if f, isFunc := declared.(*ast.FuncDecl); isFunc && f.Recv == nil && f.Name.Name == "init" {
					t.Errorf("%s/%s has an init function", p.ImportPath, name)
				}
			}
		}
	}
	if files < 20 {
		t.Errorf("%d files were looked at", files)
	}
}
