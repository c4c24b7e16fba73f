package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.opentelemetry.io/otel/trace"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/rollback"
)

const (
	// commandTime is how long one command may take.
	commandTime = 5 * time.Second
	// retryTime is how long a command is repeated when the database is busy, fails over or does not answer.
	retryTime = 10 * time.Second
	// rollbackTime is how long a request waits for its rollback. After that, and earlier when the process has to end, the
	// rest is recovery's.
	rollbackTime = 30 * time.Second
)

// service is what the handlers share.
type service struct {
	*options
	log      *slog.Logger
	metrics  *metrics
	tracer   trace.Tracer
	db       *mongo.Database
	journal  *mongo.Collection // of the batches
	requests *mongo.Collection // which companies a key belongs to
	number   *idgen.Counter

	// recorders has *recorder: as many as requests have run at a time.
	recorders sync.Pool
	// giveUp, once closed, ends rollbacks that run.
	giveUp   chan struct{}
	stopping atomic.Bool
	running  atomic.Int64 // batches
	cutOff   atomic.Int64 // batches that stopping has cancelled and that were rolled back
	left     atomic.Int64 // batches whose end stopping did not wait for
}

// keyRecord remembers which companies a key belongs to. It is stored by the batch itself, all or nothing like the rest.
type keyRecord struct {
	Key    string    `bson:"key"` // unique; as an _id it would be a claimed one, which costs the journal two writes more
	Digest string    `bson:"digest"`
	At     time.Time `bson:"at"`
}

func newService(ctx context.Context, o *options, db *mongo.Database, log *slog.Logger, traces trace.TracerProvider) (*service, error) {
	s := &service{
		options: o, log: log, db: db,
		metrics:  newMetrics(),
		tracer:   traces.Tracer("github.com/intact-go/intact/examples/bulkapi"),
		journal:  db.Collection("batches"),
		requests: db.Collection("requests"),
		giveUp:   make(chan struct{}),
		// That a company's number is unique is the counter's promise, which needs no index.
		number: idgen.NewCounter(db.Collection("counters"), "companyNo", idgen.CounterConfig{
			Retry: idgen.Retry{Attempts: 3, Timeout: commandTime},
		}),
	}
	s.recorders.New = func() any { return s.newRecorder() }
	return s, s.prepare(ctx)
}

func (s *service) companies() *mongo.Collection { return s.db.Collection("companies") }

// codes of servers' answers.
const (
	codeExists         = 48
	codeUnauthorized   = 13
	codeNotImplemented = 238
	codeThrottled      = 16500 // Cosmos DB
)

// prepare makes what is not there yet.
func (s *service) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := s.db.CreateCollection(ctx, s.companies().Name(), driver.CreateCollection().SetValidator(schema))
	var refused mongo.CommandError
	switch {
	case errors.As(err, &refused) && refused.Code == codeNotImplemented:
		s.log.Info("this database server has no validators; companies are checked by this program alone")
	case errors.As(err, &refused) && refused.Code == codeExists: // with the validator that somebody gave it
	case err != nil:
		return err
	}
	for field, coll := range map[string]*mongo.Collection{"registration": s.companies(), "key": s.requests} {
		unique := mongo.IndexModel{Keys: bson.D{{Key: field, Value: 1}}, Options: driver.Index().SetUnique(true)}
		if _, err := coll.Indexes().CreateOne(ctx, unique); err != nil {
			return err
		}
	}
	return nil
}

// config is for batches that are observed by observe.
//
// A request is one insert command: the answer to it names every company that is refused. The key's record follows in a
// second one, which is not sent any more when the client has gone.
func (s *service) config(observe func(batch.Event)) batch.Config {
	return batch.Config{
		Journal:        s.journal,
		Lease:          s.lease,
		ChunkSize:      mostDocuments,
		ChunkBytes:     3 * mostBytes,
		Concurrency:    1,
		CommandTimeout: commandTime,
		RetryTime:      retryTime,
		Rollback:       rollback.Policy{Stop: s.giveUp, Budget: rollbackTime, CommandTimeout: commandTime},
		Logger:         s.log,
		Observe:        observe,
	}
}

// errOtherCompanies: the key's batch has as many companies, but not the same.
var errOtherCompanies = fmt.Errorf("%w: its companies differ", batch.ErrKeyReused)

// create stores the companies, or finds what was stored under the key before.
func (s *service) create(ctx context.Context, key string, companies []company) (*batch.Result, error) {
	fingerprint, err := digest(companies)
	if err != nil {
		return nil, err
	}
	r := s.recorders.Get().(*recorder)
	defer s.recorders.Put(r)
	result, err := r.insertOnce(ctx, key,
		batch.Into(s.companies(), companies).Number("companyNo", s.number),
		batch.Into(s.requests, []keyRecord{{key, fingerprint, time.Now()}}),
	)
	if err != nil || !result.Replayed {
		return result, err
	}
	var before keyRecord
	if err := s.requests.FindOne(ctx, bson.D{{Key: "_id", Value: result.Parts[1].IDs[0]}}).Decode(&before); err != nil {
		return nil, fmt.Errorf("the batch is stored, but not which companies it had: %w", err)
	}
	if before.Digest != fingerprint {
		return nil, errOtherCompanies
	}
	return result, nil
}

// recover ends, until ctx does, what processes that died have left.
func (s *service) recover(ctx context.Context) {
	_, err := rollback.Recover(ctx, s.journal, rollback.Recovery{
		Policy:    rollback.Policy{Logger: s.log, CommandTimeout: commandTime},
		Retention: s.retention,
		Every:     s.lease / 2,
	})
	if ctx.Err() == nil {
		s.log.Error("the recovery has ended", "error", err)
	}
}

// passes reports whether the database is away, busy or between two primaries, so that repeating may help.
func passes(err error) bool {
	var server mongo.ServerError
	var number *idgen.Error
	switch {
	case errors.Is(err, batch.ErrFenced), errors.Is(err, context.DeadlineExceeded), mongo.IsTimeout(err), mongo.IsNetworkError(err):
		return true
	case errors.As(err, &server):
		return server.HasErrorCode(codeThrottled) || server.HasErrorLabel("RetryableWriteError") || server.HasErrorLabel("RetryableError")
	case errors.As(err, &number):
		return number.Reason == idgen.Unavailable
	}
	return false
}
