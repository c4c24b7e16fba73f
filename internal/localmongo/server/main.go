// Command server is a MongoDB-compatible server in one process: FerretDB 1.24 on SQLite, for tests and examples.
//
// From the root of the repository:
//
//	go run ./internal/localmongo/server -dir data
//
// It prints how to connect and how to stop it. The data stays in the directory; without -dir it lives in a
// temporary one that is removed at the end.
//
// Clients are served by a proxy (package front) that makes single-document writes atomic, which FerretDB's are not.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run returns the exit code: 0 after a clean stop, 1 after a failure, 2 for wrong arguments.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var c config
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.dir, "dir", "", "keep the data in this `directory`, made if missing (default: a temporary one, removed at the end)")
	flags.StringVar(&c.listen, "listen", "127.0.0.1:0", "listen on this `address`; port 0 means any free one")
	parent := flags.Bool("parent", false, "for launchers: print one line of JSON on standard output when ready, stop when standard input ends")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "server: unexpected argument %q\n", flags.Arg(0))
		return 2
	}

	ctx, stop := lifetime(*parent, stdin)
	defer stop()
	if *parent {
		c.ready = func(a address) error { return announce(stdout, a) }
	} else {
		c.ready = func(a address) error { return explain(stderr, a) }
	}
	if err := serve(ctx, c, stderr); err != nil {
		fmt.Fprintf(stderr, "server: %v\n", err)
		return 1
	}
	return 0
}
