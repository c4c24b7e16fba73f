// Recover is a tool for the journals of batches: it lists them, finishes what a crash has left behind, and forgets what a
// person has dealt with.
//
//	go run ./examples/recover --uri mongodb://localhost --db shop --journal batches list
//
// # Commands
//
//	list        every record of the journal: its state, age and owner, how many documents the batch has, and how many of an
//	            unfinished batch are stored now
//	check       the unfinished records, with the documents of theirs that are stored: what recover would delete
//	recover     delete what dead owners have left, and close their records
//	watch       recover again and again, until interrupted: what a service does with rollback.Recover
//	forget ID   take a record out of recovery's hands, because a person has cleaned up; --reason is stored in the record
//
// List and check change nothing. Recover waits until it knows which owners are dead: up to twice the longest lease of an
// unfinished record. It makes two passes, because a batch that was rolled back is looked at once more before its record is
// closed; a batch whose owner lives is left alone.
//
// Ages are by the clocks of those who wrote the records and of this machine. Nothing but the column depends on them.
//
// # Output and exit codes
//
// The results go to the standard output, as a table, or with --json as JSON: an array for list and check, an object for
// recover and forget, one object a line for watch. Everything else goes to the standard error.
//
//	0  done, and no record is unfinished
//	1  something failed: the journal cannot be read, or a record cannot be finished; the reason is on the standard error
//	2  the command line makes no sense; nothing was done
//	3  done, but records are unfinished: their owners live, or they wait for a recovery or for its last look
//
// Watch ends with 0 when it is interrupted. Forget does not care for other records.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Exit codes.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitUnfinished = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// run does what the arguments say and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, env func(string) string) int {
	o, err := parse(args, stderr, env)
	switch {
	case errors.Is(err, errHelp):
		return exitDone
	case err != nil:
		fmt.Fprintf(stderr, "recover: %v\nrecover --help shows how it is used\n", err)
		return exitUsage
	}
	t := &tool{options: o, out: output{stdout: stdout, json: o.json, now: time.Now()}, stderr: stderr}
	code, err := t.connectAndDo(ctx)
	if err != nil {
		fmt.Fprintf(stderr, "recover: %v\n", err)
		return exitFailed
	}
	return code
}

// tool is one run.
type tool struct {
	*options
	out     output
	stderr  io.Writer
	journal *mongo.Collection
	clients map[string]*mongo.Client // of the other deployments
}

// disconnectTime is how long leaving may take.
const disconnectTime = 5 * time.Second

func (t *tool) connectAndDo(ctx context.Context) (code int, err error) {
	var all []*mongo.Client
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disconnectTime)
		defer cancel()
		for _, client := range all {
			err = errors.Join(err, client.Disconnect(ctx))
		}
	}()
	connect := func(uri string) (*mongo.Client, error) {
		client, err := mongo.Connect(driver.Client().ApplyURI(uri).SetServerSelectionTimeout(t.timeout).SetAppName("intact recover"))
		if err == nil {
			all = append(all, client)
		}
		return client, err
	}
	home, err := connect(t.uri)
	if err != nil {
		return 0, err
	}
	t.journal = home.Database(t.db).Collection(t.collection)
	t.clients = make(map[string]*mongo.Client)
	for name, uri := range t.deployments {
		if t.clients[name], err = connect(uri); err != nil {
			return 0, fmt.Errorf("deployment %s: %w", name, err)
		}
	}
	if err := home.Ping(ctx, nil); err != nil {
		return 0, fmt.Errorf("there is no server: %w", err)
	}
	switch t.command {
	case "list":
		return t.list(ctx)
	case "check":
		return t.check(ctx)
	case "watch":
		return t.watch(ctx)
	case "forget":
		return t.forget(ctx)
	}
	return t.recover(ctx)
}
