package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
)

var errHelp = pflag.ErrHelp

// options are what the command line says.
type options struct {
	uri, database  string
	listen         string
	maxDocuments   int
	maxBytes       int64
	requestTimeout time.Duration
	grace          time.Duration
	lease          time.Duration
	retention      time.Duration
	trace, demo    bool
	level          slog.Level
}

const usage = `bulkapi creates companies over HTTP, all of a request or none.

Usage:
  bulkapi [flags]        serve until interrupted; without --uri on an
                         embedded server
  bulkapi --demo         make some calls, show the answers, and end

Flags:
%s
Exit codes:
  0  stopped, every request had its answer in time
  1  could not start, or stopped serving on its own
  2  the command line makes no sense
  3  stopped, batches were cut off and rolled back
  4  stopped, a rollback was not finished: a recovery has to delete the rest
`

// What fits into one insert command, so that one answer names every company that is refused. A company takes up to three
// times as many bytes in BSON as in JSON, and the library sends 32 MiB at most.
const (
	mostDocuments = 100_000
	mostBytes     = 10 << 20
)

func parse(args []string, env func(string) string, help io.Writer) (*options, error) {
	o := &options{}
	f := pflag.NewFlagSet("bulkapi", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprintf(help, usage, f.FlagUsagesWrapped(80)) }
	f.StringVar(&o.uri, "uri", "", "connection `string` of the database server (default $MONGODB_URI, or an embedded server)")
	f.StringVar(&o.database, "db", "bulkapi", "`name` of the database")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "`address` to serve on; port 0 is any free one")
	f.IntVar(&o.maxDocuments, "max-documents", 5000, "the most companies in a request")
	f.Int64Var(&o.maxBytes, "max-bytes", 8<<20, "the most bytes in a request")
	f.DurationVar(&o.requestTimeout, "request-timeout", 20*time.Second, "how long a request may take before it is rolled back")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "how long requests may go on after SIGTERM before they are rolled back")
	f.DurationVar(&o.lease, "lease", 30*time.Second, "how long a process may show no life before its batches are rolled back")
	f.DurationVar(&o.retention, "retention", 24*time.Hour, "how long the answer under an Idempotency-Key is kept")
	f.BoolVar(&o.trace, "trace", false, "write OpenTelemetry spans to the standard error")
	f.BoolVar(&o.demo, "demo", false, "make some calls, show the answers, and end")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.uri == "" {
		o.uri = env("MONGODB_URI")
	}
	if o.demo {
		o.level = slog.LevelError // what is rolled back on purpose is no news
	}
	return o, o.check(f.Args())
}

// check refuses what makes no sense, before anything is done.
func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is too much: there are only flags", rest[0])
	case o.maxDocuments < 1 || o.maxDocuments > mostDocuments:
		return fmt.Errorf("--max-documents has to be from 1 to %d", mostDocuments)
	case o.maxBytes < 1 || o.maxBytes > mostBytes:
		return fmt.Errorf("--max-bytes has to be from 1 to %d", mostBytes)
	case o.requestTimeout <= 0:
		return errors.New("--request-timeout has to be more than nothing")
	case o.grace < 0:
		return errors.New("--grace cannot be negative")
	case o.lease < 100*time.Millisecond || o.lease > 24*time.Hour:
		return errors.New("--lease has to be from 100ms to 24h")
	case o.retention <= 0:
		return errors.New("--retention has to be more than nothing")
	}
	return nil
}
