package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

var errHelp = pflag.ErrHelp

// options is what the command line says.
type options struct {
	command     string
	id          string // of the record to forget, or the only one to look at
	uri, db     string
	collection  string
	deployments map[string]string // names and URIs
	json        bool
	reason      string
	settle      time.Duration
	budget      time.Duration
	retention   time.Duration
	every       time.Duration
	timeout     time.Duration
}

var commands = []string{"list", "check", "recover", "watch", "forget"}

func parse(args []string, stderr io.Writer, env func(string) string) (*options, error) {
	o := &options{}
	flags := pflag.NewFlagSet("recover", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.SortFlags = false
	flags.Usage = func() {
		fmt.Fprintf(stderr, "recover [flags] %s\n\n", strings.Join(commands, "|"))
		fmt.Fprintf(stderr, "Lists the batches in a journal, finishes what a crash has left behind, and forgets what a person has dealt with.\n\n")
		fmt.Fprintf(stderr, "%s\nexit codes: 0 done, 1 something failed, 2 usage, 3 done, and records are unfinished\n", flags.FlagUsages())
	}
	flags.StringVar(&o.uri, "uri", "", "connection string of the journal's deployment (default $MONGODB_URI, or mongodb://localhost:27017)")
	flags.StringVar(&o.db, "db", "", "database of the journal")
	flags.StringVar(&o.collection, "journal", "journal", "collection of the journal")
	flags.StringToStringVar(&o.deployments, "deployment", nil, "name=URI of another deployment that batches have stored documents on; can be given several times")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flags.StringVar(&o.id, "id", "", "look at this record only (check, recover)")
	flags.StringVar(&o.reason, "reason", "", "why the record is forgotten (forget)")
	flags.DurationVar(&o.settle, "settle", 0, "how long a request may travel before it reaches the server (recover, watch; default 2s)")
	flags.DurationVar(&o.budget, "budget", 0, "how long one batch may take (recover, watch; default 1m)")
	flags.DurationVar(&o.retention, "retention", 0, "how long finished records are kept (recover, watch; default 24h, negative is for ever)")
	flags.DurationVar(&o.every, "every", 30*time.Second, "pause between two passes (watch)")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long to look for a server")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if o.uri == "" {
		o.uri = env("MONGODB_URI")
	}
	if o.uri == "" {
		o.uri = "mongodb://localhost:27017"
	}
	return o, o.check(flags.Args())
}

// check refuses what makes no sense, before anything is done.
func (o *options) check(args []string) error {
	if len(args) == 0 || !slices.Contains(commands, args[0]) {
		return fmt.Errorf("say what to do: %s", strings.Join(commands, ", "))
	}
	o.command = args[0]
	rest := args[1:]
	if o.command == "forget" {
		if len(rest) != 1 {
			return errors.New("forget needs the id of one record, as list shows it")
		}
		if o.reason == "" {
			return errors.New("forget needs a --reason, for those who look at the journal later")
		}
		o.id, rest = rest[0], nil
	} else if o.reason != "" {
		return errors.New("--reason is for forget")
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is too much", rest[0])
	case o.db == "":
		return errors.New("--db is needed: the database of the journal")
	case o.every <= 0:
		return errors.New("--every has to be more than nothing")
	}
	return nil
}
