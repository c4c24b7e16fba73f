package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/examples/internal/records"
	"github.com/intact-go/intact/idgen"
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
	dir        string // where files are, if that is not to be shown with their names

	kind      string
	jsonArray bool
	header    bool
	fields    []string
	table     records.Table
	separator string

	sequences []sequence
	counters  string
	zone      *time.Location

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

// sequence is one --sequence.
type sequence struct {
	field, name string
	start, step int64
	periodic    bool // counts anew in each period, with so many digits
	period      idgen.Period
	digits      int
}

// periods are those that --sequence knows.
var periods = map[string]idgen.Period{"hour": idgen.Hour, "day": idgen.Day, "month": idgen.Month, "year": idgen.Year}

// usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func misused(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

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

// parse reads the command line. The error is pflag.ErrHelp after help was asked for and written, or a *usageError.
func parse(args []string, env func(string) string, help io.Writer) (*options, error) {
	o := &options{}
	var sequences []string
	var zone string
	f := pflag.NewFlagSet("import", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(io.Discard)
	f.Usage = func() { fmt.Fprintf(help, usage, f.FlagUsagesWrapped(80)) }
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
	f.StringArrayVar(&sequences, "sequence", nil, "number the documents: `field=name` or field=name:start:step sets the field to the next number of the counter of that name; with field=name@day or name@day:digits (also hour, month, year) numbers begin with the date, as 2601310001")
	f.StringVar(&o.counters, "counters", "counters", "`name` of the collection of counters")
	f.StringVar(&zone, "zone", "UTC", "time `zone` of the dates in numbers, as Europe/Stockholm")
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
		return nil, &usageError{err.Error()}
	}
	if o.uri == "" {
		o.uri = cmp.Or(env("MONGODB_URI"), defaultURI)
	}
	o.files = append(o.files, f.Args()...)
	var err error
	if o.zone, err = time.LoadLocation(zone); err != nil {
		return nil, misused("--zone %s: %v", zone, err)
	}
	if o.batchID != "" && o.journal == "" {
		o.journal = "import_journal"
	}
	if o.recover {
		return o, o.recovery()
	}
	if len(o.files) == 0 {
		o.files = []string{standardInput}
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

// parseSequence reads field=name[:start[:step]] or field=name@period[:digits].
func parseSequence(text string) (sequence, error) {
	field, rest, _ := strings.Cut(text, "=")
	name, numbers, _ := strings.Cut(rest, ":")
	s := sequence{field: field, name: name, start: 1, step: 1}
	digits := int64(4)
	places, least := []*int64{&s.start, &s.step}, []int64{0, 1}
	if counter, period, dated := strings.Cut(name, "@"); dated {
		known := false
		s.name, s.periodic = counter, true
		if s.period, known = periods[period]; !known {
			return s, misused("--sequence %s: expected @hour, @day, @month or @year", text)
		}
		places, least = []*int64{&digits}, []int64{1}
	}
	if s.field == "" || s.name == "" || strings.Count(rest, ":") > len(places) {
		return s, misused("--sequence %s: expected field=name[:start[:step]] or field=name@day[:digits]", text)
	}
	for i := 0; numbers != ""; i++ {
		var number string
		number, numbers, _ = strings.Cut(numbers, ":")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < least[i] || s.periodic && n > 18 {
			return s, misused("--sequence %s: %q is not a whole number from %d on that makes sense", text, number, least[i])
		}
		*places[i] = n
	}
	s.digits = int(digits)
	return s, nil
}

// recovery works out what --recover needs.
func (o *options) recovery() error {
	switch {
	case o.journal == "":
		return misused("--recover needs the name of the --journal")
	case len(o.files) > 0:
		return misused("--recover imports nothing; leave out %s", o.files[0])
	case o.dryRun:
		return misused("--recover and --dry-run exclude each other")
	}
	o.collection = o.journal
	return o.target()
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
	case o.lease < time.Second || o.lease > 24*time.Hour:
		return misused("--lease %v: expected a time from 1s to 24h", o.lease)
	case len(o.batchID) > 512 || strings.ContainsRune(o.batchID, 0):
		return misused("--batch-id: at most 512 bytes")
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
