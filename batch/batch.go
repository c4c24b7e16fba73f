// Package batch stores a group of MongoDB documents all or not at all, without server transactions.
//
// The documents are encoded and checked first, then numbered, then inserted concurrently. When anything fails, what was
// stored is deleted again, with backoff, until nothing is left.
//
//	inserter := batch.New(batch.Config{})
//	result, err := inserter.Insert(ctx,
//		batch.Into(orders, newOrders).Number("orderNo", numbers),
//		batch.Into(lines, newLines),
//	)
//	var failed *batch.Error
//	if errors.As(err, &failed) {
//		for _, refused := range failed.Documents {
//			log.Print(refused)
//		}
//		// failed.RolledBack(): nothing of the batch is in the database
//	}
//
// # What is promised
//
// Insert returns nil only when the server acknowledged every document at the write concern. When it returns an Error
// that is RolledBack, no document of the batch is left and none will appear later; where a late insert cannot be fenced
// off (standalone servers, FerretDB, Cosmos DB, retryWrites=false), and across a change of primary, this holds provided
// that no request travels longer than the settle time, rollback.Policy.Settle. A document that the batch did not store is
// never deleted or changed. If neither success nor a complete rollback can be had, the Error says so and lists what may be
// left.
//
// A batch that a replica set refuses whole has nothing to delete; a late copy of it is fenced off, but not waited for. A
// batch of one document without a journal is one command, and against late copies of it no safer than InsertOne.
//
// A document that somebody edited after the batch stored it and before the batch failed is deleted with the batch, on
// every path.
//
// Not promised is isolation: other clients and change streams can see documents of a batch that later fails. With
// StampAll a reader can leave out the documents of batches that it does not know to be stored.
//
// # Whose document is it
//
// A document without an _id gets an ObjectID out of a block that only this batch can make, so that its _id proves whose
// it is. A document with an _id of the caller's or of a sequence carries a stamp, a small field with the attempt's
// random id, and is deleted only by _id and stamp together. See Stamp for the choices.
//
// # Scale
//
// A batch is ceil(documents / ChunkSize) insert commands, Concurrency of them at a time, one command for the numbers of
// each sequence (of a stream, for each chunk), and one listCollections for each collection that the Inserter has not seen.
// A rollback is one delete for each 10,000 minted or 1,000 claimed ids, and on a replica set or a sharded cluster one more
// for each insert of which anything was refused, or that was not answered.
//
// Any number of documents can be in a batch. With Into they are all encoded in memory first; with Stream a few chunks are.
// What is kept of each stored document is nothing for a minted id, whose batch has one range for up to 16,777,216 of
// them, and for a claimed id the id itself. With a journal, a hundred million documents with minted ids are one record of
// less than a kilobyte, and their recovery 10,000 deletes; with claimed ids they are 100,000 pages and as many deletes.
//
// On sharded collections, chunks are unordered, so that mongos sends the parts of each to their shards at once. Deletes
// name ranges of ids or ids with the stamp, not the shard key: mongos sends them to all shards, which is right, and slower
// than a targeted delete. An _id is unique on its shard only, unless it is the shard key; the stamp tells documents with
// the same _id apart. Under StampNone nothing does, and Part.ShardKey is needed.
//
// A server that throttles (error 16500 with a hint, as Cosmos DB; SystemOverloadedError, as MongoDB) is sent only what it
// refused, after the delay that it asks for, one command at a time until answers come well again; a rollback waits for
// the same signs and is never given up for them.
//
// Many processes can share one Config's collections and sequences; what they contend for is the document of a counter, once
// a batch. Package idgen tells when to take blocks or stripes.
package batch

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Inserter inserts batches. Make it with New; the zero Inserter is not usable. It may be used by several goroutines; one
// for a whole process is a good number, because it remembers which collections it has looked at.
type Inserter struct {
	config  Config
	err     error // what is wrong with the Config
	targets checkedTargets
}

// New returns an Inserter with the given settings. A setting that makes no sense is reported by Insert.
func New(config Config) *Inserter {
	config, err := config.withDefaults()
	return &Inserter{config: config, err: err}
}

// Insert stores the documents of all parts, or none of them.
//
// It returns a nil error only when the server acknowledged every document at the write concern. Otherwise it returns an
// *Error:
//
//   - documents that are not fit to be stored (cannot be encoded, too large, an impossible _id, the same _id twice): each
//     is named; nothing was written and no number was used;
//   - a part or a setting that makes no sense, or a collection on which all-or-nothing cannot be kept: the same;
//   - a sequence that gives no numbers: nothing was written;
//   - documents that the server refused, an error that repeating does not help, or the end of ctx: the running inserts
//     are waited for, each at most for Config.CommandTimeout, and everything stored is deleted before Insert returns.
//     Error.RolledBack tells whether that was possible, Error.Leftovers what may be left. Numbers are not given back.
//
// A batch without documents is stored by doing nothing. When ctx is done already, nothing is sent.
//
// The end of ctx stops the inserting, never the rollback: that has the budget of Config.Rollback, by default until it
// succeeds. A session in ctx is not used; a running transaction in it is an error, because the batch would not be part
// of it. Insert starts no goroutine that outlives the call. If a process dies during Insert, documents can stay behind.
//
// The Inserter's hooks (Logger, Progress, Observe) are called during Insert only.
func (in *Inserter) Insert(ctx context.Context, parts ...Part) (*Result, error) {
	return in.insert(ctx, "", parts)
}

// InsertOnce is Insert with an idempotency key, of at most 512 bytes; it needs Config.Journal. A batch that was stored
// under the same key before is not stored again: its Result is returned, ids and numbers included, with Replayed set. If
// the key's last attempt has not ended, the error is ErrInProgress; if that attempt's process has died, a recovery ends
// it. After an attempt that stored nothing the batch is attempted again.
//
// A key is remembered for the retention of the journal, see rollback.Recovery. The documents of the calls are not
// compared, but their collections and numbers are: ErrKeyReused tells that they differ.
func (in *Inserter) InsertOnce(ctx context.Context, key string, parts ...Part) (*Result, error) {
	switch {
	case in.err == nil && in.config.Journal == nil:
		return nil, newRun(in, "").unsent(errors.New("InsertOnce needs Config.Journal, where keys are remembered"))
	case key == "" || len(key) > maxKey || strings.ContainsRune(key, 0):
		return nil, newRun(in, "").unsent(fmt.Errorf("the key has %d bytes; it must have 1 to %d and no NUL", len(key), maxKey))
	}
	return in.insert(ctx, key, parts)
}

const maxKey = 512

func (in *Inserter) insert(ctx context.Context, key string, parts []Part) (*Result, error) {
	r := newRun(in, key)
	if err := in.check(ctx); err != nil {
		return nil, r.unsent(err)
	}
	ctx = mongo.NewSessionContext(ctx, nil)
	if err := r.prepare(parts); err != nil {
		return nil, r.unsent(err)
	}
	r.tell(Event{Kind: Prepared, Documents: r.total})
	if r.total == 0 && !r.streams {
		return r.result(), nil
	}
	for _, before := range []func(context.Context) error{r.checkTargets, r.checkJournal} {
		if err := before(ctx); err != nil {
			return nil, r.unsent(err)
		}
	}
	if key != "" {
		if result, err := r.replay(ctx); err != nil {
			return nil, r.unsent(err)
		} else if result != nil {
			return result, nil
		}
	}
	for _, before := range []func(context.Context) error{r.number, r.openJournal} {
		if err := before(ctx); err != nil {
			return nil, r.unsent(err)
		}
	}
	defer r.release()
	r.insert(ctx)
	if r.failure == nil {
		r.commitJournal(ctx)
	}
	if r.failure != nil {
		err := r.rollBack(ctx)
		if r.panicked != nil {
			panic(r.panicked)
		}
		return nil, err
	}
	r.commit(ctx)
	return r.result(), nil
}

func (in *Inserter) check(ctx context.Context) error {
	if in.err != nil {
		return fmt.Errorf("batch.Config: %w", in.err)
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if session := mongo.SessionFromContext(ctx); session != nil && session.TransactionRunning() {
		return errors.New("the context carries a running transaction, which the batch would not be part of; insert within the transaction instead, or call Insert with another context")
	}
	return nil
}
