package main

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/intact-go/intact/examples/internal/cities"
)

// The file that examples/import has built in is what the command in its SOURCE.md makes.
func TestExtract(t *testing.T) {
	if _, err := cities.Find(); errors.Is(err, cities.ErrMissing) {
		t.Skip(err)
	}
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"-extract", "DK,FI,FO,GL,IS,NO,SE"}, &stdout, &stderr); err != nil {
		t.Fatal(err, stderr.String())
	}
	builtIn, err := os.ReadFile("../../../import/data/nordic-places.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stdout.Bytes(), builtIn) {
		t.Errorf("%d bytes instead of %d, or others", stdout.Len(), len(builtIn))
	}
}
