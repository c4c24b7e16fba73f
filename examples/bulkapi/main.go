// Bulkapi creates companies over HTTP, all of a request or none.
//
//	go run ./examples/bulkapi                 serves with an embedded server until interrupted; prints a curl line
//	go run ./examples/bulkapi --demo          makes some calls itself, shows the answers, and ends
//	go run ./examples/bulkapi --uri mongodb://localhost:27017 --db crm --listen 127.0.0.1:8080
//
// --help lists the flags. MONGODB_URI names a server like --uri does. Collections, unique indexes and, where the server
// knows them, the validator are made at the start. There is no authentication: that is for what stands in front of it.
//
// # Endpoints
//
//	POST /companies:batchCreate   {"requests":[{"company":{…}}, …]} or [{…}, …]; Idempotency-Key is the batch's id
//	GET  /healthz                 200 while the process lives
//	GET  /readyz                  200 while it takes requests and the database answers, else 503
//	GET  /batches                 the batches that have no end yet: at work, or left by a process that died
//	GET  /metrics                 for Prometheus
//	GET  /openapi.yaml            all of it for machines
//	GET  /problems/{name}         what an error means, for people: its "type" leads there
//
// # What is true after an answer
//
//	201  every company is stored, with the ids and numbers of the answer
//	4xx  the request has left nothing in the database
//	5xx  the member "stored" says it: "nothing", or "unknown" if the rollback or the commit could not be finished. What
//	     is left is then in the journal, and the recovery that runs in every process of this program deletes it, or finds
//	     that the batch is stored
//	none the client went away: rolled back before the handler ends, unless everything was stored by then. A client that
//	     closes its half of the connection has gone away as far as a Go server can tell
//
// After all of these, and after no answer at all, the same request with the same Idempotency-Key is safe: it stores the
// companies if they are not stored, and else gives the answer of the first time again, with the header
// Idempotency-Replayed. Without a key the program makes one and tells it in the answer.
//
// A key belongs to its companies: others under the same key are refused (422), also when the answer is no longer kept
// (--retention). For this the batch stores one small document more, in the collection "requests"; those can be deleted
// when nobody can repeat the request any more. While a request runs, another with its key gets 409 in-progress, and
// so it does after a crash until recovery has cleaned up.
//
// Numbers (companyNo) are unique and have gaps: a batch that fails does not give its numbers back.
//
// # Stopping
//
// SIGTERM or SIGINT: /readyz says 503, no connection is accepted, and what runs has the --grace to end. Then it is
// cancelled and rolled back, for 12 s at most. With the default grace of 10 s all of it fits into the 30 s that
// orchestrators give. A second signal ends the grace, a third the rollbacks.
//
// Exit codes:
//
//	0  stopped; every request had its answer in time (--demo: everything was as it should be)
//	1  could not start, or stopped serving on its own (--demo: something was not as it should be)
//	2  the command line makes no sense
//	3  stopped; batches were cut off and rolled back, nothing of them is stored
//	4  stopped; a rollback was not finished: documents may be left until a recovery deletes them, which every process of
//	   this program on the same database runs
//
// A process that is killed leaves what it was doing to the recovery of another or of the next one: it waits for the
// --lease, to be sure that nobody works on it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.opentelemetry.io/otel/trace"

	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/internal/localmongo"
)

// Exit codes.
const (
	exitStopped    = 0
	exitFailed     = 1
	exitUsage      = 2
	exitCutOff     = 3
	exitIncomplete = 4
)

const (
	// connectTime is how long to look for a server, at the start and for each command.
	connectTime = 5 * time.Second
	// disconnectTime is how long closing the connections may take.
	disconnectTime = time.Second
)

func main() { os.Exit(newProgram().run(context.Background(), os.Args[1:])) }

func newProgram() *program {
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return &program{stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, signals: signals}
}

// program is what a run has to do with the outside.
type program struct {
	stdout, stderr io.Writer
	env            func(string) string
	signals        <-chan os.Signal
	dialer         driver.ContextDialer // to the database; nil for the network
	tracer         trace.TracerProvider // nil for what --trace says
	listening      func(url string)     // told when requests are taken; may be nil
}

// run does what the arguments say and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	o, err := parse(args, p.env, p.stdout)
	switch {
	case errors.Is(err, errHelp):
		return exitStopped
	case err != nil:
		fmt.Fprintf(p.stderr, "bulkapi: %v\nbulkapi --help shows how it is used\n", err)
		return exitUsage
	}
	code, err := p.start(ctx, o)
	if err != nil {
		fmt.Fprintf(p.stderr, "bulkapi: %v\n", err)
		return max(code, exitFailed)
	}
	return code
}

// start brings up everything that serving needs, serves, and takes it down again.
func (p *program) start(ctx context.Context, o *options) (code int, err error) {
	if o.uri == "" {
		fmt.Fprintln(p.stderr, "bulkapi: no --uri: starting an embedded server, whose data goes away at the end")
		server, err := localmongo.Start(ctx, localmongo.Options{Log: p.stderr})
		if err != nil {
			return exitFailed, err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		o.uri = server.URI()
	}
	settings := driver.Client().SetAppName("bulkapi").SetServerSelectionTimeout(connectTime).ApplyURI(o.uri) // which can say otherwise
	if p.dialer != nil {
		settings.SetDialer(p.dialer)
	}
	client, err := mongo.Connect(settings)
	if err != nil {
		return exitFailed, screen.HideCredentials(err, o.uri)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disconnectTime)
		defer cancel()
		_ = client.Disconnect(ctx) // everything was acknowledged by then, or is in the journal
	}()
	log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: o.level}))
	traces, flush, err := p.traces(o)
	if err != nil {
		return exitFailed, err
	}
	defer flush()
	service, err := newService(ctx, o, client.Database(o.database), log, traces)
	if err != nil {
		return exitFailed, fmt.Errorf("the database cannot be used: %w", screen.HideCredentials(err, o.uri))
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return exitFailed, err
	}
	return p.serve(ctx, o, service, listener)
}
