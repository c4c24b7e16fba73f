package localmongo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	// lockPoll is how often to look whether another process has finished its build.
	lockPoll = 100 * time.Millisecond

	// signOfLife is the time between two lines while a build goes on.
	signOfLife = 15 * time.Second
)

// build returns the path of the server's binary, compiled if it does not exist or is older than its sources.
// Whether it is, the go command decides: a build of what is up to date takes about a second.
func build(ctx context.Context, log io.Writer) (string, error) {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		return "", fmt.Errorf("the embedded server has to be compiled, and there is no go command in PATH: install Go from https://go.dev/dl/, or set %s to use another server (%w)", EnvURI, err)
	}
	source, err := sourceDir(ctx, goCommand)
	if err != nil {
		return "", err
	}
	dir, err := cacheDir(source)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "server")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	if _, err := os.Stat(binary); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(log, "localmongo: compiling the embedded server; this takes some minutes, and only the first time")
	}
	stop := every(signOfLife, func(elapsed time.Duration) {
		fmt.Fprintf(log, "localmongo: still compiling the embedded server, %d s\n", int(elapsed.Seconds()))
	})
	defer stop()

	// Test binaries of several packages start at once. One of them compiles, the others wait and find it done.
	unlock, err := acquire(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", fmt.Errorf("waiting for another build of the embedded server: %w", err)
	}
	defer unlock()
	return binary, rebuild(binary, func() error { return compile(ctx, goCommand, source, binary) })
}

// rebuild runs compile, which keeps a binary that is up to date. The go command judges that by the binary's first bytes; so
// a mark stands beside the binary until a build is over, and one that was interrupted while it wrote the file is not
// taken for good.
func rebuild(binary string, compile func() error) error {
	mark := binary + ".unfinished"
	if _, err := os.Stat(mark); err == nil {
		if err := os.Remove(binary); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	} else if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	if err := compile(); err != nil {
		return err
	}
	return os.Remove(mark)
}

// compile builds the nested module by itself, whatever workspace, vendoring or instrumentation the caller uses: the
// binary does not depend on who asks for it first.
func compile(ctx context.Context, goCommand, source, binary string) error {
	var output tail
	c := exec.CommandContext(ctx, goCommand, "build",
		"-mod=readonly", "-buildvcs=false", "-race=false", "-cover=false", "-o", binary, ".")
	c.Dir = source
	c.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	c.Stdout, c.Stderr = &output, &output
	c.WaitDelay = 5 * time.Second // compilers that outlive a cancelled go command must not hold us up
	if err := c.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("compiling the embedded server was given up: %w", ctx.Err())
		}
		return fmt.Errorf("compiling the embedded server failed: %w%s", err, output.quote())
	}
	return nil
}

// sourceDir finds the nested module: beside this file, or, if the binary was built with -trimpath, where the go
// command finds this module from the current directory.
func sourceDir(ctx context.Context, goCommand string) (string, error) {
	var tried []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir := filepath.Join(filepath.Dir(file), "server")
		if isModule(dir) {
			return dir, nil
		}
		tried = append(tried, dir)
	}
	out, err := exec.CommandContext(ctx, goCommand, "list", "-m", "-f", "{{.Dir}}", "github.com/intact-go/intact").Output()
	if err == nil {
		dir := filepath.Join(strings.TrimSpace(string(out)), "internal", "localmongo", "server")
		if isModule(dir) {
			return dir, nil
		}
		tried = append(tried, dir)
	}
	return "", fmt.Errorf("the source of the embedded server is not there (looked in %s): it is only in a checkout of the repository, not in the module cache; work in a checkout, or set %s",
		strings.Join(tried, ", "), EnvURI)
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// cacheDir returns the directory for the binary of this source directory: two checkouts do not overwrite each other's.
func cacheDir(source string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory to keep the compiled server in: %w", err)
	}
	sum := sha256.Sum256([]byte(source))
	dir := filepath.Join(cache, "intact-localmongo", hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("no directory to keep the compiled server in: %w", err)
	}
	return dir, nil
}

// acquire takes the lock that the file stands for, over all processes. It ends with the process.
func acquire(ctx context.Context, file string) (unlock func(), err error) {
	for {
		unlock, err := tryLock(file)
		if err != nil {
			return nil, err
		}
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// every calls f again and again until stop is called, which waits for a call that is running.
func every(d time.Duration, f func(elapsed time.Duration)) (stop func()) {
	start := time.Now()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				f(time.Since(start))
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}
