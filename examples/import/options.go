package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/examples/internal/records"
)

const (
	defaultURI      = "mongodb://localhost:27017"
	defaultDatabase = "test"
	standardInput   = "-"
)

// options are what the command line says.
type options struct {
	uri        string
	database   string
	collection string
	files      []string

	kind      string
	jsonArray bool
	header    bool
	fields    []string
	table     records.Table
	separator string

	sequences []sequence
	counters  string

	workers    int
	stampField string
	keepStamp  bool

	dryRun    bool
	json      bool
	quiet     bool
	errors    int
	leftovers string
}

// sequence is one --sequence.
type sequence struct {
	field, name string
	start, step int64
}

// usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func misused(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

const usage = `import stores the documents of files in a MongoDB collection, all or none.

Usage:
  import [flags] FILE...        import the files as one batch
  import [flags] < FILE         import the standard input (also as FILE "-")
  import                        show what it does, on an embedded server

Files are NDJSON (one Extended JSON document a line), a JSON array, CSV or TSV, in UTF-8, plain or compressed with
gzip or zstd. Everything is read and checked before anything is written.

Flags:
%s
Exit codes:
  0  stored (or, with --dry-run, fit to be stored)
  1  not stored: nothing of the files is in the collection
  2  the command line makes no sense
  3  incomplete: not stored, but documents may be left, which are listed
`

// parse reads the command line. The error is pflag.ErrHelp after help was asked for and written, or a *usageError.
func parse(args []string, env func(string) string, help io.Writer) (*options, error) {
	o := &options{}
	var sequences []string
	f := pflag.NewFlagSet("import", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprintf(help, usage, f.FlagUsagesWrapped(110)) }
	f.StringVar(&o.uri, "uri", "", "connection `string` of the server (default $MONGODB_URI, or else "+defaultURI+")")
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
	f.StringArrayVar(&sequences, "sequence", nil, "number the documents: `field=name[:start[:step]]` sets the field to the next number of the counter of that name")
	f.StringVar(&o.counters, "counters", "counters", "`name` of the collection of counters")
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
		return nil, &usageError{err.Error()}
	}
	o.files = append(o.files, f.Args()...)
	if len(o.files) == 0 {
		o.files = []string{standardInput}
	}
	if o.uri == "" {
		o.uri = env("MONGODB_URI")
	}
	if o.uri == "" {
		o.uri = defaultURI
	}
	for _, text := range sequences {
		s, err := parseSequence(text)
		if err != nil {
			return nil, err
		}
		o.sequences = append(o.sequences, s)
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	return o, nil
}

// parseSequence reads field=name[:start[:step]].
func parseSequence(text string) (sequence, error) {
	field, rest, ok := strings.Cut(text, "=")
	parts := strings.Split(rest, ":")
	s := sequence{field: field, name: parts[0], start: 1, step: 1}
	if !ok || s.field == "" || s.name == "" || len(parts) > 3 {
		return s, misused("--sequence %s: expected field=name[:start[:step]]", text)
	}
	for i, number := range []*int64{&s.start, &s.step} {
		if i+1 >= len(parts) {
			break
		}
		n, err := strconv.ParseInt(parts[i+1], 10, 64)
		if err != nil || n < int64(i) {
			return s, misused("--sequence %s: %q is not a whole number from %d on", text, parts[i+1], i)
		}
		*number = n
	}
	return s, nil
}

// complete finds contradictions and works out what was left to defaults.
func (o *options) complete() error {
	if slices.Contains(o.files, "") {
		return misused("the name of a file is empty")
	}
	if i := slices.Index(o.files, standardInput); i >= 0 && slices.Contains(o.files[i+1:], standardInput) {
		return misused("the standard input can be read only once")
	}
	switch {
	case o.kind != "" && !slices.Contains([]string{"json", "csv", "tsv"}, o.kind):
		return misused("--type %s: expected json, csv or tsv", o.kind)
	case o.workers < 1 || o.workers > 100:
		return misused("--numInsertionWorkers %d: expected a number from 1 to 100", o.workers)
	case o.counters == "":
		return misused("--counters: the name is empty")
	case o.header && o.fields != nil:
		return misused("--headerline and --fields exclude each other")
	case utf8.RuneCountInString(o.separator) != 1 || strings.ContainsAny(o.separator, "\"\r\n\uFFFD"):
		return misused("--separator %q: expected one character, other than a quote or a line break", o.separator)
	case o.errors < 0:
		return misused("--errors %d: expected a number from 0 on", o.errors)
	}
	o.table.Fields = o.fields
	o.table.Separator, _ = utf8.DecodeRuneInString(o.separator)
	for _, file := range o.files {
		table := o.format(file) == records.CSV || o.format(file) == records.TSV
		switch {
		case table && o.jsonArray:
			return misused("--jsonArray is not for %v (%s)", o.format(file), file)
		case table && !o.header && o.fields == nil:
			return misused("%s is %v: say with --headerline that its first row has the fields' names, or name them with --fields", file, o.format(file))
		case !table && (o.header || o.fields != nil || o.table.Typed || o.table.OmitEmpty || o.table.Lenient):
			return misused("%s is JSON: --headerline, --fields, --columnsHaveTypes, --ignoreBlanks and --lenient are for CSV and TSV", file)
		}
	}
	return o.target()
}

// target works out the database and the collection.
func (o *options) target() error {
	if !validURI(o.uri) {
		// The driver's own words can quote the password.
		return misused("--uri: not a valid connection string; expected mongodb://[user:password@]host[:port][,…]/[database][?options], with special characters of the password percent-encoded")
	}
	if o.database == "" {
		o.database = databaseOf(o.uri)
	}
	if o.database == "" {
		o.database = defaultDatabase
	}
	if o.collection == "" {
		if len(o.files) != 1 || o.files[0] == standardInput {
			return misused("--collection is needed for %s", map[bool]string{true: "the standard input", false: "several files"}[len(o.files) == 1])
		}
		o.collection, _, _ = strings.Cut(filepath.Base(o.files[0]), ".")
	}
	if o.collection == "" {
		return misused("--collection is needed: %s names none", o.files[0])
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

// validURI looks at the form only: what is behind mongodb+srv:// is looked up when the server is needed.
func validURI(uri string) bool {
	if strings.HasPrefix(uri, "mongodb+srv://") {
		return true
	}
	return driver.Client().ApplyURI(uri).Validate() == nil
}

// databaseOf returns the database that a connection string names, or "".
func databaseOf(uri string) string {
	_, rest, _ := strings.Cut(uri, "://")
	rest, _, _ = strings.Cut(rest, "?")
	_, name, _ := strings.Cut(rest[strings.LastIndexByte(rest, '@')+1:], "/")
	if unescaped, err := url.PathUnescape(name); err == nil {
		return unescaped
	}
	return name
}
