package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/FerretDB/FerretDB/ferretdb"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/intact-go/intact/internal/localmongo/server/front"
)

// stopTime is how long commands that run at the end may take to finish. SQLite's files survive a harder stop.
const stopTime = 10 * time.Second

type config struct {
	dir    string // "" for a temporary one
	listen string

	// ready is called once, as soon as clients can connect.
	ready func(address) error
}

// serve runs the server until ctx ends. Nothing is left behind but the data of a directory that was asked for.
func serve(ctx context.Context, c config, log io.Writer) (err error) {
	a := address{Dir: c.dir, Temporary: c.dir == ""}
	if a.Temporary {
		if a.Dir, err = os.MkdirTemp("", "intact-server-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(a.Dir)) }()
	} else if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return err
	}
	if a.Dir, err = filepath.Abs(a.Dir); err != nil {
		return err
	}
	// FerretDB and SQLite take the directory as a part of URLs; from inside, its name cannot matter.
	if err := os.Chdir(a.Dir); err != nil {
		return err
	}
	defer os.Chdir(os.TempDir()) // Windows removes no directory that a process is in

	unlock, err := lock(ctx, a.Dir)
	if err != nil {
		return err
	}
	defer unlock()

	backend, err := ferretdb.New(&ferretdb.Config{
		Listener: ferretdb.ListenerConfig{TCP: "127.0.0.1:0"},
		// FerretDB warns of every command that fails, which is everyday life in tests of failures.
		Logger:    slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelError})),
		Handler:   "sqlite",
		SQLiteURL: sqliteURL(a.Temporary),
	})
	if err != nil {
		return err
	}
	// The back door outlives the front door: commands in flight are answered before FerretDB stops.
	backendCtx, stopBackend := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan error, 1)
	go func() { stopped <- backend.Run(backendCtx) }()
	door, err := url.Parse(backend.MongoDBURI())
	if err == nil {
		err = serveFront(ctx, c, a, door.Host)
	}
	stopBackend()
	select {
	case e := <-stopped:
		return errors.Join(err, e)
	case <-time.After(stopTime):
		return errors.Join(err, errors.New("FerretDB did not stop in time"))
	}
}

func serveFront(ctx context.Context, c config, a address, backend string) error {
	l, err := net.Listen("tcp", c.listen)
	if err != nil {
		return err
	}
	a.URI = "mongodb://" + reachable(l.Addr().(*net.TCPAddr)) + "/"

	served := make(chan error, 1)
	serveCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var x indexer
	f := front.New(backend, front.Hooks{Write: x.prepare, Drop: x.forget})
	go func() { served <- f.Serve(serveCtx, l) }()
	if err := c.ready(a); err != nil {
		cancel()
		return errors.Join(fmt.Errorf("cannot say that the server is ready: %w", err), <-served)
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-served:
		return err
	case <-time.After(stopTime):
		return errors.New("commands in flight did not end in time")
	}
}

// reachable turns an address to listen on into one to connect to.
func reachable(a *net.TCPAddr) string {
	if a.IP.IsUnspecified() {
		return fmt.Sprintf("localhost:%d", a.Port)
	}
	return a.String()
}

// sqliteURL returns FerretDB's setting for the current directory. A write waits up to a minute for the writers before it.
// Data that will be removed anyway need not reach the disk.
func sqliteURL(temporary bool) string {
	q := url.Values{"_pragma": {"busy_timeout(60000)", "journal_mode(wal)"}}
	if temporary {
		q.Add("_pragma", "synchronous(off)")
	}
	return "file:./?" + q.Encode()
}

// lock makes sure that no other server uses the current directory: each keeps the list of collections in memory, so
// that two would destroy each other's data. The lock is SQLite's own, on a file that FerretDB does not look at: it works on
// every operating system and ends with the process.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	db, err := sql.Open("sqlite", "file:server.lock?_pragma=busy_timeout(0)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // the transaction below stays in this one connection
	if _, err := db.ExecContext(ctx, "BEGIN EXCLUSIVE"); err != nil {
		db.Close()
		if e := (*sqlite.Error)(nil); errors.As(err, &e) && e.Code() == sqlite3.SQLITE_BUSY {
			return nil, fmt.Errorf("another server is using %s", dir)
		}
		return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	return func() { db.Close() }, nil
}
