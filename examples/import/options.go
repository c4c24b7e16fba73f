package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/records"
)

const (
	defaultDatabase = "test"
	standardInput   = "-"
)

// options are what the command line says.
type options struct {
	uri        string
	database   string
	collection string
	files      []string
	dir        string // where files are, if that is not to be shown with their names

	kind      string
	jsonArray bool
	header    bool
	fields    []string
	table     records.Table
	separator string

	numbering job.Numbering

	journal string
	batchID string
	recover bool
	lease   time.Duration

	workers    int
	stampField string
	keepStamp  bool

	dryRun    bool
	json      bool
	quiet     bool
	errors    int
	leftovers string
}

const usage = `import stores the documents of files in a MongoDB collection, all or none.

Usage:
  import [flags] FILE...        import the files as one batch
  import [flags] < FILE         import the standard input (also as FILE "-")
  import --recover [flags]      delete what killed imports have left
  import                        show what it does, on an embedded server

Files are NDJSON (one Extended JSON document a line), a JSON array, CSV or TSV,
in UTF-8, plain or compressed with gzip or zstd. Everything is read and checked
before anything is written.

Flags:
%s
Exit codes:
  0  stored (or, with --dry-run, fit to be stored)
  1  not stored: nothing of the files is in the collection
  2  the command line makes no sense
  3  incomplete: not stored, but documents may be left, which are listed
`

// parse reads the command line. The error is pflag.ErrHelp after help was asked for and written, or a *job.UsageError.
func parse(args []string, env func(string) string, help io.Writer) (*options, error) {
	o := &options{}
	f := pflag.NewFlagSet("import", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprintf(help, usage, f.FlagUsagesWrapped(80)) }
	f.StringVar(&o.uri, "uri", "", "connection `string` of the server (default $MONGODB_URI, or else "+job.DefaultURI+")")
	f.StringVarP(&o.database, "db", "d", "", "`name` of the database (default that of the URI, or else "+defaultDatabase+")")
	f.StringVarP(&o.collection, "collection", "c", "", "`name` of the collection (default the file's name without suffixes)")
	f.StringArrayVar(&o.files, "file", nil, "a `file` to import, like an argument without flag")
	f.StringVar(&o.kind, "type", "", "json, csv or tsv (default by the suffix of the file: .csv, .tsv, otherwise json)")
	f.BoolVar(&o.jsonArray, "jsonArray", false, "the file is one JSON array instead of one document a line")
	f.BoolVar(&o.header, "headerline", false, "CSV, TSV: the first row has the fields' names")
	f.StringSliceVarP(&o.fields, "fields", "f", nil, "CSV, TSV: the fields' `names`, separated by commas, instead of --headerline")
	f.BoolVar(&o.table.Typed, "columnsHaveTypes", false, `CSV, TSV: names have types, as in founded.int32() (default: every cell is text)`)
	f.BoolVar(&o.table.OmitEmpty, "ignoreBlanks", false, `CSV, TSV: leave out empty cells (default: they are stored as "")`)
	f.StringVar(&o.separator, "separator", ",", "CSV: the `character` between cells")
	f.BoolVar(&o.table.Lenient, "lenient", false, "CSV, TSV: take quotes within cells as they are, and rows that are too short")
	o.numbering.AddFlags(f)
	f.StringVar(&o.journal, "journal", "", "`name` of a collection in the same database, in which the import is noted, so that what it leaves when it is killed can be deleted: by --recover, or by the next import with the same journal")
	f.StringVar(&o.batchID, "batch-id", "", "a `key` of your choice: what was imported under it is not imported again for at least a day (implies --journal import_journal)")
	f.BoolVar(&o.recover, "recover", false, "import nothing, but delete what the journal's killed imports have left")
	f.DurationVar(&o.lease, "lease", 10*time.Second, "how long an import may show no sign of life before it counts as killed")
	f.IntVar(&o.workers, "numInsertionWorkers", 4, "`number` of insert commands at a time")
	f.StringVar(&o.stampField, "stampField", "_batch", "`name` of the field that marks documents with an _id of their own during the import")
	f.BoolVar(&o.keepStamp, "keepStamp", false, "leave the mark in the documents")
	f.BoolVar(&o.dryRun, "dry-run", false, "read and check everything, connect to nothing, write nothing")
	f.BoolVar(&o.json, "json", false, "write the summary as a JSON object to the standard output")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no progress and no summary, only what is wrong")
	f.IntVar(&o.errors, "errors", 20, "how `many` bad records to show")
	f.StringVar(&o.leftovers, "leftovers", "", "`file` for the ids of documents that may be left (default import-leftovers-BATCH.ndjson)")

	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, err
		}
		return nil, job.Misused("%v", err)
	}
	if o.uri == "" {
		o.uri = cmp.Or(env("MONGODB_URI"), job.DefaultURI)
	}
	o.files = append(o.files, f.Args()...)
	if o.batchID != "" && o.journal == "" {
		o.journal = "import_journal"
	}
	if o.recover {
		return o, o.recovery()
	}
	if len(o.files) == 0 {
		o.files = []string{standardInput}
	}
	if err := o.numbering.Parse(); err != nil {
		return nil, err
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	return o, nil
}

// recovery works out what --recover needs.
func (o *options) recovery() error {
	switch {
	case o.journal == "":
		return job.Misused("--recover needs the name of the --journal")
	case len(o.files) > 0:
		return job.Misused("--recover imports nothing; leave out %s", o.files[0])
	case o.dryRun:
		return job.Misused("--recover and --dry-run exclude each other")
	}
	o.collection = o.journal
	return o.target()
}

// complete finds contradictions and works out what was left to defaults.
func (o *options) complete() error {
	if slices.Contains(o.files, "") {
		return job.Misused("the name of a file is empty")
	}
	if i := slices.Index(o.files, standardInput); i >= 0 && slices.Contains(o.files[i+1:], standardInput) {
		return job.Misused("the standard input can be read only once")
	}
	switch {
	case o.kind != "" && !slices.Contains([]string{"json", "csv", "tsv"}, o.kind):
		return job.Misused("--type %s: expected json, csv or tsv", o.kind)
	case o.workers < 1 || o.workers > 100:
		return job.Misused("--numInsertionWorkers %d: expected a number from 1 to 100", o.workers)
	case o.header && o.fields != nil:
		return job.Misused("--headerline and --fields exclude each other")
	case utf8.RuneCountInString(o.separator) != 1 || strings.ContainsAny(o.separator, "\"\r\n\uFFFD"):
		return job.Misused("--separator %q: expected one character, other than a quote or a line break", o.separator)
	case o.lease < time.Second || o.lease > 24*time.Hour:
		return job.Misused("--lease %v: expected a time from 1s to 24h", o.lease)
	case len(o.batchID) > 512 || strings.ContainsRune(o.batchID, 0):
		return job.Misused("--batch-id: at most 512 bytes")
	case o.errors < 0:
		return job.Misused("--errors %d: expected a number from 0 on", o.errors)
	}
	o.table.Fields = o.fields
	o.table.Separator, _ = utf8.DecodeRuneInString(o.separator)
	for _, file := range o.files {
		table := o.format(file) == records.CSV || o.format(file) == records.TSV
		switch {
		case table && o.jsonArray:
			return job.Misused("--jsonArray is not for %v (%s)", o.format(file), file)
		case table && !o.header && o.fields == nil:
			return job.Misused("%s is %v: say with --headerline that its first row has the fields' names, or name them with --fields", file, o.format(file))
		case !table && (o.header || o.fields != nil || o.table.Typed || o.table.OmitEmpty || o.table.Lenient):
			return job.Misused("%s is JSON: --headerline, --fields, --columnsHaveTypes, --ignoreBlanks and --lenient are for CSV and TSV", file)
		}
	}
	return o.target()
}

// target works out the database and the collection.
func (o *options) target() error {
	if err := job.CheckURI("--uri", o.uri); err != nil {
		return err
	}
	if o.database == "" {
		o.database = job.DatabaseOf(o.uri)
	}
	if o.database == "" {
		o.database = defaultDatabase
	}
	if o.collection == "" {
		if len(o.files) != 1 || o.files[0] == standardInput {
			return job.Misused("--collection is needed for %s", map[bool]string{true: "the standard input", false: "several files"}[len(o.files) == 1])
		}
		o.collection, _, _ = strings.Cut(filepath.Base(o.files[0]), ".")
	}
	if o.collection == "" {
		return job.Misused("--collection is needed: %s names none", o.files[0])
	}
	return nil
}

// format is how a file is written.
func (o *options) format(file string) records.Format {
	kind := o.kind
	if kind == "" {
		plain := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(file), ".gz"), ".zst")
		kind = strings.TrimPrefix(filepath.Ext(plain), ".")
	}
	switch {
	case kind == "csv":
		return records.CSV
	case kind == "tsv":
		return records.TSV
	case o.jsonArray:
		return records.Array
	}
	return records.Lines
}
