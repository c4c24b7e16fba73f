package batch

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/rollback"
)

// Config holds the settings of an Inserter. The zero Config is safe.
type Config struct {
	// Registry and BSONOptions encode the documents. A mongo.Collection does not tell its own, so a client that was
	// made with options.Client().SetRegistry or SetBSONOptions needs the same here; then the stored bytes are those
	// that Collection.InsertMany would store. Default to the driver's defaults.
	Registry    *bson.Registry
	BSONOptions *options.BSONOptions

	// Stamp says which documents carry the batch's stamp. Defaults to StampClaimed.
	Stamp Stamp
	// StampField is the stamp's field. Defaults to "_batch".
	StampField string
	// RemoveStamp has the stamp removed once the whole batch is stored, with one update for each chunk. Defaults to
	// false: it stays.
	RemoveStamp bool

	// ChunkSize is the number of documents in one insert command. Defaults to 1,000; 100,000 at most, which is what
	// MongoDB takes, or less if the server says so.
	ChunkSize int
	// ChunkBytes is the size of the documents in one insert command, in bytes. A larger document travels alone.
	// Defaults to 8 MiB; 32 MiB at most, so that MongoDB's limit of 48,000,000 bytes a message is never reached.
	ChunkBytes int
	// Concurrency is the number of insert commands of one batch that run at a time. Defaults to 4. A server that says
	// it has too much to do gets one at a time until it recovers.
	Concurrency int

	// CommandTimeout bounds each command of the inserting. An insert that exceeds it has an unknown outcome.
	// Defaults to 30 s.
	CommandTimeout time.Duration
	// RetryTime is how long one insert command is repeated when it meets errors that pass: throttling, failover, a
	// lost connection, a full connection pool. Defaults to 30 s; negative means no repetition. What the driver repeats on
	// its own, with retryable writes, comes on top: v2.10.0 does so for up to CommandTimeout where a server goes on
	// answering with an error that may be retried.
	RetryTime time.Duration
	// InitialDelay and MaxDelay bound the growing, jittered delay between repetitions. Default to 100 ms and 10 s. A
	// server that asks for a longer delay gets it.
	InitialDelay, MaxDelay time.Duration

	// WriteConcern of the batch, whatever the collections' own is. Defaults to majority, journaled. Unacknowledged
	// (w:0) is refused: it could not be told what was stored.
	WriteConcern *writeconcern.WriteConcern

	// Journal, if not nil, is the collection for the records with which a batch is undone, or its verdict is found, after
	// its process has died; see rollback.Recover, which somebody has to run. A second collection beside it, its name with
	// ".pages" appended, holds claimed ids. It may be in another database than the documents. Its own write concern and
	// read preference do not matter: majority, journaled, on the primary. Defaults to nil: a batch whose process dies
	// leaves its documents behind.
	Journal *mongo.Collection
	// Lease is how long a batch's owner may show no life in the journal before a recovery takes over. It beats four times
	// as often. Defaults to 30 s; 24 hours at most.
	Lease time.Duration
	// Deployments names the clients of collections that are not on the journal's client; a recovery needs the same
	// names. Defaults to nil: all are on the journal's.
	Deployments map[string]*mongo.Client

	// Rollback is the policy of the clean-up after a failure. Its WriteConcern, Logger and delays default to the
	// Config's; its Observe is called besides the Config's. With a journal, its Budget defaults to one minute, after
	// which a recovery owns the rest; negative means unlimited.
	Rollback rollback.Policy

	// Logger gets what happens: chunks at debug level, repetitions and failures as warnings, an incomplete rollback
	// as an error. No document contents are logged. Defaults to nil: silent.
	Logger *slog.Logger
	// Progress, if not nil, is told how far a batch is. See Progress.
	Progress func(Progress)
	// Observe, if not nil, is told each event of a batch's life. See Event.
	Observe func(Event)
}

// Stamp says which documents carry the batch's stamp, a field that holds the id of the very attempt that stored them.
// A rollback deletes a document with a claimed _id only if it carries the stamp.
type Stamp uint8

const (
	// StampClaimed, the default: documents whose _id was chosen by the caller or taken from a sequence. Documents
	// that get their _id from the batch need no stamp and are stored as they are.
	StampClaimed Stamp = iota
	// StampAll: every document, as provenance, or so that readers can leave out what is not complete yet.
	StampAll
	// StampNone: no document. After a failure, documents with claimed ids are deleted by their _id if the server
	// acknowledged their insert; where the answer was lost nothing proves whose they are: they are reported as
	// leftovers if they are there, and never deleted. So is what stood in the way of a document, on a server that has the
	// driver repeat writes and does not recognise the repetitions (one that tells no cluster time, like FerretDB with the
	// name of a replica set). Whoever stores another document under the _id of one of the batch's that is gone, before
	// the batch fails or while it is rolled back, may lose it, for which a stamp is the only remedy. Refused for claimed ids on a sharded cluster
	// unless Part.ShardKey names the shard key, because an _id is unique per shard only.
	StampNone
)

func (s Stamp) String() string {
	switch s {
	case StampClaimed:
		return "claimed"
	case StampAll:
		return "all"
	case StampNone:
		return "none"
	}
	return fmt.Sprintf("Stamp(%d)", uint8(s))
}

const (
	defaultStampField     = "_batch"
	defaultChunkSize      = 1_000
	maxChunkSize          = 100_000
	defaultChunkBytes     = 8 << 20
	maxChunkBytes         = 32 << 20
	defaultConcurrency    = 4
	defaultCommandTimeout = 30 * time.Second
	defaultRetryTime      = 30 * time.Second
	minLease              = 100 * time.Millisecond
)

// withDefaults fills in the defaults and refuses what makes no sense.
func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil { // first of all: a refused Config is logged as well
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		// Not the driver's shared one: a registry remembers how it read a struct's tags the first time, whatever the
		// options (v2.10.0), so that a bson.Marshal elsewhere in the process would undo UseJSONStructTags.
		c.Registry = bson.NewRegistry()
	}
	if c.StampField == "" {
		c.StampField = defaultStampField
	}
	if c.StampField == "_id" || strings.ContainsAny(c.StampField, "$.\x00") {
		return c, fmt.Errorf("StampField %q: it must be the name of a top-level field other than _id, without $ or dots", c.StampField)
	}
	if c.Stamp > StampNone {
		return c, fmt.Errorf("Stamp: there is no %s", c.Stamp)
	}
	if c.Stamp == StampNone && c.RemoveStamp {
		return c, errors.New("RemoveStamp: with StampNone there is no stamp to remove")
	}
	count := func(n *int, value, most int) {
		if *n <= 0 {
			*n = value
		}
		*n = min(*n, most)
	}
	count(&c.ChunkSize, defaultChunkSize, maxChunkSize)
	count(&c.ChunkBytes, defaultChunkBytes, maxChunkBytes)
	count(&c.Concurrency, defaultConcurrency, 1_000)
	if c.CommandTimeout <= 0 {
		c.CommandTimeout = defaultCommandTimeout
	}
	if c.RetryTime == 0 {
		c.RetryTime = defaultRetryTime
	}
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	if c.Lease < minLease {
		return c, fmt.Errorf("a Lease of %s leaves no time for a beat to arrive; %s is the least", c.Lease, minLease)
	}
	if c.Lease > journal.MaxLease {
		return c, fmt.Errorf("a Lease of %s is longer than any recovery should have to wait; %s is the most", c.Lease, journal.MaxLease)
	}
	if c.WriteConcern == nil {
		journaled := true
		c.WriteConcern = &writeconcern.WriteConcern{W: "majority", Journal: &journaled}
	}
	for _, concern := range []*writeconcern.WriteConcern{c.WriteConcern, c.Rollback.WriteConcern} {
		if concern != nil && !concern.Acknowledged() {
			return c, errors.New("WriteConcern: with unacknowledged writes (w:0) nobody can tell what was stored; use an acknowledged one")
		}
	}
	if c.Rollback.WriteConcern == nil {
		c.Rollback.WriteConcern = c.WriteConcern
	}
	if c.Rollback.Logger == nil {
		c.Rollback.Logger = c.Logger
	}
	if c.Rollback.InitialDelay <= 0 {
		c.Rollback.InitialDelay = c.InitialDelay
	}
	if c.Rollback.MaxDelay <= 0 {
		c.Rollback.MaxDelay = c.MaxDelay
	}
	return c, nil
}
