package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/examples/internal/job"
)

// place is a collection on the command line.
type place struct{ uri, database, collection string }

func (p place) namespace() string { return p.database + "." + p.collection }

// options are what the command line says.
type options struct {
	from, to   place
	filter     bson.D
	reshape    reshape
	newIDs     bool
	numbering  job.Numbering
	journal    string
	batchID    string
	lease      time.Duration
	workers    int
	stampField string
	dryRun     bool
	json       bool
	quiet      bool
	errors     int
}

const usage = `migrate copies a MongoDB collection into another collection, database or server,
all of it or nothing, and changes its documents on the way.

Usage:
  migrate --from-collection NAME --to-collection NAME [flags]
  migrate               show what it does, on an embedded server

Stop it wherever you like and run it again with the same arguments: the target
has all documents or none. A copy that was done is not done again.

Flags:
%s
Exit codes:
  0  stored, now or by an earlier run (or, with --dry-run, fit to be stored)
  1  not stored: nothing of this run is in the target
  2  the command line makes no sense
  3  incomplete: documents of the copy may be left, or another run is at work;
     the same command again clears up
  4  unfinished: stored for good, but the count is not right or marks are left;
     the same command again does the rest
`

// parse reads the command line. The error is pflag.ErrHelp after help was asked for and written, or a *job.UsageError.
func parse(args []string, env func(string) string, help io.Writer) (*options, error) {
	o := &options{}
	var filter string
	var renames []string
	f := pflag.NewFlagSet("migrate", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprintf(help, usage, f.FlagUsagesWrapped(80)) }
	f.StringVar(&o.from.uri, "from-uri", "", "connection `string` of the source's server (default $MONGODB_URI, or else "+job.DefaultURI+")")
	f.StringVar(&o.from.database, "from-db", "", "`name` of the source's database (default that of the URI, or else test)")
	f.StringVar(&o.from.collection, "from-collection", "", "`name` of the source")
	f.StringVar(&o.to.uri, "to-uri", "", "connection `string` of the target's server (default that of the source)")
	f.StringVar(&o.to.database, "to-db", "", "`name` of the target's database (default that of --to-uri, or else the source's)")
	f.StringVar(&o.to.collection, "to-collection", "", "`name` of the target (default the source's)")
	f.StringVar(&filter, "filter", "", "copy only documents that match, a query in Extended `JSON`")
	f.StringArrayVar(&renames, "rename", nil, "rename a field at the top of the documents: `old=new`")
	f.StringArrayVar(&o.reshape.drop, "drop-field", nil, "leave out a `field` at the top of the documents")
	f.BoolVar(&o.newIDs, "new-ids", false, "give the documents a new _id (default: they keep theirs)")
	o.numbering.AddFlags(f)
	f.StringVar(&o.journal, "journal", "migrate_journal", "`name` of a collection in the target's database, in which the copy is noted, so that the next run can delete what a killed one has left")
	f.StringVar(&o.batchID, "batch-id", "", "the `key` under which the copy is noted: what was stored under it is not stored again (default made of the names of source and target, as \"shop.a -> shop.b\", and of what is done to the documents)")
	f.DurationVar(&o.lease, "lease", 10*time.Second, "how long a run may show no sign of life before it counts as killed")
	f.IntVar(&o.workers, "numInsertionWorkers", 4, "`number` of insert commands at a time")
	f.StringVar(&o.stampField, "stampField", "_migration", "`name` of the field that marks documents with an _id of their own during the copy")
	f.BoolVar(&o.dryRun, "dry-run", false, "read and transform everything, report what could not be stored, write nothing; what only unique indexes other than that of _id, or validators, refuse is left for a run to find")
	f.BoolVar(&o.json, "json", false, "write the summary as a JSON object to the standard output")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no progress and no summary, only what is wrong")
	f.IntVar(&o.errors, "errors", 20, "how `many` bad documents to show")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, err
		}
		return nil, job.Misused("%v", err)
	}
	if f.NArg() > 0 {
		return nil, job.Misused("%q is too much", f.Arg(0))
	}
	if err := o.places(env); err != nil {
		return nil, err
	}
	if filter != "" {
		if err := bson.UnmarshalExtJSON([]byte(filter), false, &o.filter); err != nil {
			return nil, job.Misused("--filter: not a query in Extended JSON: %v", err)
		}
	}
	if err := o.numbering.Parse(); err != nil {
		return nil, err
	}
	if err := o.changes(renames); err != nil {
		return nil, err
	}
	if o.batchID == "" {
		o.batchID = o.key(filter, renames)
	}
	return o, o.check()
}

// places works out what is left to defaults.
func (o *options) places(env func(string) string) error {
	o.from.uri = cmp.Or(o.from.uri, env("MONGODB_URI"), job.DefaultURI)
	if err := job.CheckURI("--from-uri", o.from.uri); err != nil {
		return err
	}
	if o.to.uri != "" {
		if err := job.CheckURI("--to-uri", o.to.uri); err != nil {
			return err
		}
		o.to.database = cmp.Or(o.to.database, job.DatabaseOf(o.to.uri))
	}
	o.from.database = cmp.Or(o.from.database, job.DatabaseOf(o.from.uri), "test")
	o.to = place{cmp.Or(o.to.uri, o.from.uri), cmp.Or(o.to.database, o.from.database), cmp.Or(o.to.collection, o.from.collection)}
	switch {
	case o.from.collection == "":
		return job.Misused("--from-collection is needed")
	case o.from == o.to:
		return job.Misused("source and target are the same, %s", o.from.namespace())
	}
	return nil
}

// changes works out what happens to the documents.
func (o *options) changes(renames []string) error {
	o.reshape.rename = make(map[string]string)
	for _, text := range renames {
		old, to, _ := strings.Cut(text, "=")
		if old == "" || to == "" || old == "_id" || to == "_id" || strings.HasPrefix(to, "$") || strings.Contains(to, ".") {
			return job.Misused("--rename %s: expected old=new, two names of fields other than _id and without dots", text)
		}
		if _, twice := o.reshape.rename[old]; twice || slices.Contains(o.reshape.drop, old) {
			return job.Misused("--rename %s: something else happens to %q already", text, old)
		}
		o.reshape.rename[old] = to
	}
	if slices.Contains(o.reshape.drop, "_id") {
		return job.Misused("--drop-field _id: documents get a new _id with --new-ids")
	}
	if o.newIDs {
		o.reshape.drop = append(o.reshape.drop, "_id")
	}
	o.reshape.number = o.numbering.Fields()
	if o.newIDs && slices.Contains(o.reshape.number, "_id") {
		return job.Misused("--new-ids and --sequence _id=… exclude each other")
	}
	return nil
}

// key names the copy. What changes which documents are stored, or how, is part of it, so that another copy between the
// same collections is not taken for this one.
func (o *options) key(filter string, renames []string) string {
	key := o.from.namespace() + " -> " + o.to.namespace()
	how := fmt.Sprintf("%q %q %q %+v", filter, renames, o.reshape.drop, o.numbering.Sequences)
	if filter == "" && len(renames)+len(o.reshape.drop)+len(o.numbering.Sequences) == 0 {
		return key
	}
	return fmt.Sprintf("%s, %.4x", key, sha256.Sum256([]byte(how)))
}

// check finds what makes no sense.
func (o *options) check() error {
	switch {
	case o.workers < 1 || o.workers > 100:
		return job.Misused("--numInsertionWorkers %d: expected a number from 1 to 100", o.workers)
	case o.lease < time.Second || o.lease > 24*time.Hour:
		return job.Misused("--lease %v: expected a time from 1s to 24h", o.lease)
	case len(o.batchID) > 512 || strings.ContainsRune(o.batchID, 0):
		return job.Misused("--batch-id: at most 512 bytes")
	case o.errors < 0:
		return job.Misused("--errors %d: expected a number from 0 on", o.errors)
	case o.journal == "":
		return job.Misused("--journal: the name is empty")
	case o.to.collection == o.journal || o.to.collection == o.numbering.Counters:
		return job.Misused("the target %s is needed for the journal or the counters", o.to.namespace())
	}
	return nil
}

// copy is the job.
func (o *options) copy(from, to *mongo.Client) *Copy {
	db := to.Database(o.to.database)
	return &Copy{
		From:      from.Database(o.from.database).Collection(o.from.collection),
		Filter:    o.filter,
		To:        []*mongo.Collection{db.Collection(o.to.collection)},
		Transform: func(bool) Transform { return o.reshape.transform },
		Numbering: o.numbering,
		ID:        o.batchID,
		Journal:   db.Collection(o.journal),
		Lease:     o.lease,
		Workers:   o.workers,
		Mark:      o.stampField,
	}
}
