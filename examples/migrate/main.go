// Migrate copies a MongoDB collection into another collection, database or server, all of it or nothing, and changes its
// documents on the way.
//
//	go run ./examples/migrate                                  shows what it does, on an embedded server
//	go run ./examples/migrate --from-db shop --from-collection places --to-db archive \
//	    --rename lng=lon --sequence no=places                  copies a collection and numbers it anew
//
// What the command line can change stands in transform.go. For anything else, write a function of type Transform and a
// Copy as split.go does, which splits one collection into two that refer to each other.
//
// # All or nothing, and again
//
// The copy is one batch with a journal (--journal, in the target's database) and a key (--batch-id). Stop it wherever you
// like, and run it again with the same arguments: what a killed run has left is deleted first, as soon as it is known that
// nobody works on it any more (twice the --lease), and then the copy begins anew. A copy that was done is not done again:
// the program says so and ends with 0. The key is made of the names of source and target, and of what is done to the
// documents; to do the same copy once more, give another --batch-id. The journal remembers for as long as its records are
// there: examples/recover removes those that are older than a day unless its --retention says otherwise.
//
// SIGINT, SIGTERM and SIGHUP end the copying and roll back, for as long as it takes. A second signal ends the program at
// once; the next run clears up.
//
// There is no isolation: readers of the target see documents of the copy before it is complete. Until then those that keep
// their _id carry a mark (--stampField), which proves whose they are. At the end it is removed, which writes them a second
// time, and the documents are counted.
//
// # What the copy contains
//
// Documents are read in the order of _id, which no update changes, so that each comes once, also when a cursor is lost and
// reading goes on behind the last document. With source documents that nobody writes, the copy is the source. Otherwise it
// is not the source of one moment: a document that is there from the beginning to the end is in the copy, as it was when it
// was read; one that is inserted or deleted meanwhile may be in it or not. On a replica set or a sharded cluster reads are
// at majority: what a failover takes back is not copied. A snapshot of one moment would need a server that can keep one
// for as long as the copy takes; if you need it, stop the writers, or filter by a date in the past.
//
// Documents keep their _id unless --new-ids is given, and their bytes unless something is to be changed. One that is in the
// target under the same _id already is never touched: the copy fails instead, and --dry-run finds all such documents
// beforehand. Every _id value is kept in memory while the copy runs. Indexes are not copied.
//
// # Output and exit codes
//
// The summary goes to the standard output, as text or with --json as one object; everything else to the standard error,
// with a progress bar if that is a terminal.
//
//	0  stored: all documents are in the target for good, now or by an earlier run (with --dry-run: fit to be stored)
//	1  not stored: nothing of this run is in the target
//	2  the command line makes no sense; nothing was done
//	3  incomplete: documents of the copy may be in the target, but not for good, or another run is at work. The same command
//	   again, or examples/recover, clears up
//	4  unfinished: all documents are stored for good, but they could not be counted, or somebody has deleted some since, or
//	   marks are left. The same command again does the rest
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"
	"go.mongodb.org/mongo-driver/v2/mongo"
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
	exitUnfinished = 4
)

func main() {
	p := &program{stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, signals: job.Signals(), exit: os.Exit}
	os.Exit(p.run(context.Background(), os.Args[1:]))
}

// program is what a run has to do with the outside.
type program struct {
	stdout, stderr io.Writer
	env            func(string) string
	signals        <-chan os.Signal
	dialer         driver.ContextDialer // to the servers; nil for the network
	exit           func(code int)       // for the second signal
}

// run does what the arguments say and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	show := screen.New("migrate", p.stderr)
	var o *options
	if len(args) > 0 {
		var err error
		o, err = parse(args, p.env, p.stdout)
		var misused *job.UsageError
		switch {
		case errors.Is(err, pflag.ErrHelp):
			return exitStored
		case errors.As(err, &misused):
			show.Say("migrate: %s", err.Error())
			show.Say("migrate --help shows how it is used")
			return exitUsage
		}
		if o.quiet {
			show.Silence()
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer job.Watch(p.signals, func(s os.Signal) {
		show.Interrupt("migrate: %s: stopping; what is not complete is deleted again (once more to leave at once)", job.SignalName(s))
		cancel(&job.Interrupted{Signal: s})
	}, func(s os.Signal) {
		show.Interrupt("migrate: %s again: leaving. Documents of the copy may be left; the same command again deletes them first, and so does examples/recover", job.SignalName(s))
		p.exit(exitIncomplete)
	})()
	if o == nil {
		return p.demo(ctx, show)
	}
	return p.copy(ctx, o, show)
}

// copy does what the command line says.
func (p *program) copy(ctx context.Context, o *options, show *screen.Screen) int {
	s := p.connectAndCopy(ctx, o, show)
	s.report(p.stdout, show, o.errors, o.json, o.quiet)
	return s.code()
}

func (p *program) connectAndCopy(ctx context.Context, o *options, show *screen.Screen) *summary {
	var clients [2]*mongo.Client
	for i, uri := range []string{o.from.uri, o.to.uri} {
		client, err := job.Connect(ctx, "migrate", uri, p.dialer)
		if err != nil {
			s := &summary{From: o.from.namespace(), Targets: []target{{Collection: o.to.namespace()}}, Batch: o.batchID, start: time.Now()}
			s.failed(ctx, fmt.Errorf("the %s: %w", [...]string{"source", "target"}[i], err))
			return s
		}
		defer job.Disconnect(client)
		clients[i] = client
	}
	c := o.copy(clients[0], clients[1])
	if o.dryRun {
		return c.DryRun(ctx, show, o.from.uri, o.to.uri)
	}
	return c.Run(ctx, show, o.from.uri, o.to.uri)
}
