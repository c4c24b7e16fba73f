// Import stores the documents of files in a MongoDB collection, all or none.
//
//	go run ./examples/import                                   shows what it does, on an embedded server
//	go run ./examples/import --uri mongodb://localhost --db shop --collection places \
//	    --sequence no=places places.ndjson                     imports a file and numbers its documents
//
// Flags are named as those of mongoimport where they mean the same; --help lists them.
//
// # What happens to a file
//
// The whole of it (or of several: they are one batch) is read and checked before anything is written. A record that
// is not fit is reported with file, line and column; reading goes on, so that one run finds all of them, and then
// nothing was written and no number was used. Otherwise the documents are numbered and inserted. If the server refuses
// one, or the connection is lost for long, or the program is interrupted, everything stored so far is deleted again,
// and the program says which lines were refused. Never is a part of a file left without saying so.
//
// Files are NDJSON (one document a line; blank lines and a byte-order mark in front do not matter, nor whether lines end
// with LF or CR LF, nor whether the last one ends at all), one JSON array (--jsonArray), CSV or TSV, all of them in UTF-8,
// plain or compressed with gzip or zstd. JSON is Extended JSON in any of its forms; the order of fields is kept. A file
// without documents is imported by storing none.
//
// Refused, because anything else would change data without a word: a field that stands twice in an object, a whole number
// that does not fit into 64 bits, text that is not UTF-8 (UTF-16 is recognised), an object that looks like an Extended
// JSON value and is none, a file that was cut off, a document above MongoDB's 16 MiB, a row of a table with too few or
// too many cells. Cells of tables are text as they stand there, leading zeros included, unless --columnsHaveTypes says
// otherwise; an empty cell is empty text, with --ignoreBlanks no field.
//
// Documents with an _id of their own carry a mark (--stampField) while the import runs: the proof that a rollback deletes
// only what this import stored. It is removed at the end unless --keepStamp is given.
//
// Up to 64 MB of documents (as BSON) are held in memory; larger files go through a temporary file, so that their size is
// no matter. An _id that stands twice in such a file is then found by the server, not in the reading.
//
// There is no --drop as mongoimport has it: the old documents would be gone when the new ones turn out not to be fit.
//
// # Interrupting
//
// SIGINT, SIGTERM and SIGHUP end the reading or inserting and roll back. A second signal ends the rollback as well and
// lists the documents that may be left; a third ends the program at once.
//
// If the program is killed in another way, documents can be left, unless it has a --journal: then the next import with
// this journal deletes them, and so does --recover. Both wait until they know that nobody works on them any more
// (twice the --lease). With --batch-id, the same command can be repeated until it succeeds: what was stored under this
// key is not stored again.
//
// # Output and exit codes
//
// The summary goes to the standard output, as text or with --json as one object; everything else to the standard error,
// with a progress bar if that is a terminal. The counts add up: read = stored + refused + not stored.
//
//	0  stored (with --dry-run: fit to be stored)
//	1  not stored: nothing of the files is in the collection
//	2  the command line makes no sense; nothing was done
//	3  incomplete: not stored, but documents may be left; their ids are written to a file (--leftovers). With a journal
//	   also: whether it is stored is not known yet, or a recovery could not finish
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/pflag"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
)

// Exit codes.
const (
	exitStored     = 0
	exitNotStored  = 1
	exitUsage      = 2
	exitIncomplete = 3
)

func main() {
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, signals: job.Signals(), exit: os.Exit}
	os.Exit(p.run(context.Background(), os.Args[1:]))
}

// program is what a run has to do with the outside.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(string) string
	signals        <-chan os.Signal
	dialer         driver.ContextDialer // to the server; nil for the network
	exit           func(code int)       // for the third signal
	memory         int                  // bytes of documents before a temporary file is used; 0 for the default
}

// run does what the arguments say and returns the exit code. It leaves no goroutine, except one that waits for the
// standard input if it was interrupted there.
func (p *program) run(ctx context.Context, args []string) int {
	show := screen.New("import", p.stderr)
	if len(args) == 0 {
		ctx, stop, done := p.watch(ctx, show)
		defer done()
		return p.demo(ctx, stop, show)
	}
	o, err := parse(args, p.env, p.stdout)
	var misused *job.UsageError
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return exitStored
	case errors.As(err, &misused):
		show.Say("import: %s", err.Error())
		show.Say("import --help shows how it is used")
		return exitUsage
	}
	if o.quiet {
		show.Silence()
	}
	ctx, stop, done := p.watch(ctx, show)
	defer done()
	if o.recover {
		return p.recoverJournal(ctx, o, show)
	}
	s := p.importFiles(ctx, stop, o, show)
	s.report(p.stdout, show, o)
	return s.code()
}

// watch waits for signals: the first ends the context, the second closes stop, the third ends the process. The caller
// calls done when none of this matters any more.
func (p *program) watch(ctx context.Context, show *screen.Screen) (_ context.Context, stop <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	over := job.Watch(p.signals, func(s os.Signal) {
		show.Interrupt("import: %s: no more is read or sent, and what was stored is deleted again (once more to leave that undone)", job.SignalName(s))
		cancel(&job.Interrupted{Signal: s})
	}, func(s os.Signal) {
		show.Interrupt("import: %s again: the rollback ends, and what may be left is listed (once more to leave at once)", job.SignalName(s))
		close(stopped)
	}, func(s os.Signal) {
		show.Interrupt("import: %s again: documents of this import may be left", job.SignalName(s))
		p.exit(exitIncomplete)
	})
	return ctx, stopped, func() {
		over()
		cancel(nil)
	}
}
