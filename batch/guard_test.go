package batch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/journal"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/internal/wirecheck"
	"github.com/intact-go/intact/rollback"
)

// world is a test's database, seen over a wire that can fail and around it, and what has to be in there. At the end of
// the test it checks what every batch has to keep: documents that no batch stored are as they were, nothing of a failed
// batch is there that its error does not name, every stored batch is there as a whole, and no command broke a rule.
type world struct {
	*testing.T
	server *servertest.Server
	wire   *faultwire.Wire
	db     *mongo.Database // over the wire
	around *mongo.Database // not over the wire
	rules  wirecheck.Rules

	mu       sync.Mutex          // protects the rest
	planted  map[string]bson.Raw // by place: documents of others, byte for byte
	stored   map[string]bool     // by place: what successful batches say that they stored
	leftover map[string]bool     // by place: what incomplete batches say may be left
	counted  map[field]any       // what a result says the number is
}

// field is a field of a document.
type field struct{ place, name string }

const checkTime = 30 * time.Second

// eachServer runs a test on every kind of server.
func eachServer(t *testing.T, test func(w *world), opts ...*options.ClientOptions) {
	t.Helper()
	servertest.Each(t, func(t *testing.T, s *servertest.Server) { test(newWorld(t, s, opts...)) })
}

// eachRetry runs a test on every kind of server, with and without the driver's retryable writes.
func eachRetry(t *testing.T, test func(w *world)) {
	t.Helper()
	for _, retry := range []bool{true, false} {
		t.Run(fmt.Sprintf("retryWrites=%t", retry), func(t *testing.T) {
			eachServer(t, test, options.Client().SetRetryWrites(retry))
		})
	}
}

// lossy is eachRetry for tests in which connections break, in balanced worlds. Retryable writes are left out on a server that has none, where the driver would send none either.
func lossy(t *testing.T, test func(w *world)) {
	t.Helper()
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, retry := range []bool{true, false} {
			if retry && s.Kind != servertest.KindSim {
				continue
			}
			t.Run(fmt.Sprintf("retryWrites=%t", retry), func(t *testing.T) {
				test(balanced(t, s, options.Client().SetRetryWrites(retry)))
			})
		}
	})
}

// balanced makes a world whose client believes in a load balancer. It watches no servers, and so gets a new connection at
// once, and repeats each write whose answer is lost; any other finds no connection to repeat on now and then, because its
// monitor notices the loss too, and clears the pool a second time.
func balanced(t *testing.T, s *servertest.Server, opts ...*options.ClientOptions) *world {
	t.Helper()
	uri, err := url.Parse(s.URI)
	if err != nil {
		t.Fatal(err)
	}
	query := uri.Query()
	query.Del("replicaSet") // a load balancer has none
	uri.RawQuery = query.Encode()
	alone := *s
	alone.URI = uri.String()
	return makeWorld(t, &alone, faultwire.ForTest(t, faultwire.LoadBalanced()), append(opts, options.Client().SetLoadBalanced(true))...)
}

// simulated makes the world of a test that needs a server of a special kind.
func simulated(t *testing.T, config mongosim.Config, opts ...*options.ClientOptions) *world {
	t.Helper()
	return newWorld(t, simulatedServer(t, config), opts...)
}

func simulatedServer(t *testing.T, config mongosim.Config) *servertest.Server {
	t.Helper()
	server, err := mongosim.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return &servertest.Server{Kind: servertest.KindSim, URI: server.URI()}
}

func newWorld(t *testing.T, s *servertest.Server, opts ...*options.ClientOptions) *world {
	return makeWorld(t, s, faultwire.ForTest(t), opts...)
}

func makeWorld(t *testing.T, s *servertest.Server, wire *faultwire.Wire, opts ...*options.ClientOptions) *world {
	w := &world{
		T: t, server: s, wire: wire,
		planted: make(map[string]bson.Raw), stored: make(map[string]bool), leftover: make(map[string]bool), counted: make(map[field]any),
	}
	around := s.Client(t)
	w.around = s.Database(t, around)
	w.db = s.Client(t, append(opts, options.Client().SetDialer(w.wire))...).Database(w.around.Name())
	t.Cleanup(func() {
		w.calm()
		w.check()
		if broken := wirecheck.Check(w.wire.Events(), w.rules); len(broken) > 0 {
			t.Errorf("commands that break a rule:\n%s", wirecheck.Story(broken))
		}
	})
	return w
}

// calm ends all faults and waits for what is still on its way.
func (w *world) calm() {
	w.Helper()
	w.wire.Calm()
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	if err := w.wire.Drain(ctx); err != nil {
		w.Errorf("the wire does not come to rest: %v", err)
	}
}

func (w *world) coll(name string) *mongo.Collection { return w.db.Collection(name) }

// plant stores documents of somebody else.
func (w *world) plant(coll string, documents ...any) {
	w.Helper()
	if _, err := w.around.Collection(coll).InsertMany(w.Context(), documents); err != nil {
		w.Fatalf("planting documents: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for place, raw := range w.read(coll) {
		if !w.stored[place] {
			w.planted[place] = raw
		}
	}
}

// uniqueIndex creates an index and returns its name.
func (w *world) uniqueIndex(coll string, keys ...string) string {
	w.Helper()
	var index bson.D
	for _, key := range keys {
		index = append(index, bson.E{Key: key, Value: 1})
	}
	name, err := w.around.Collection(coll).Indexes().CreateOne(w.Context(), mongo.IndexModel{Keys: index, Options: options.Index().SetUnique(true)})
	if err != nil {
		w.Fatalf("creating an index: %v", err)
	}
	return name
}

// quick makes a configuration's waiting times short.
func quick(config batch.Config) batch.Config {
	if config.InitialDelay == 0 {
		config.InitialDelay = time.Millisecond
	}
	if config.MaxDelay == 0 {
		config.MaxDelay = 20 * time.Millisecond
	}
	if config.Rollback.Settle == 0 {
		config.Rollback.Settle = 20 * time.Millisecond
	}
	return config
}

// insert inserts a batch and checks at once that the data are as the outcome says.
func (w *world) insert(config batch.Config, parts ...batch.Part) (*batch.Result, *batch.Error) {
	w.Helper()
	return w.insertWith(w.Context(), batch.New(quick(config)), parts...)
}

func (w *world) insertWith(ctx context.Context, inserter *batch.Inserter, parts ...batch.Part) (*batch.Result, *batch.Error) {
	w.Helper()
	result, failed := w.note(inserter.Insert(ctx, parts...))
	w.check()
	return result, failed
}

// mustStore is insert where only success will do.
func (w *world) mustStore(config batch.Config, parts ...batch.Part) *batch.Result {
	w.Helper()
	result, failed := w.insert(config, parts...)
	if failed != nil {
		w.Fatalf("the batch was not stored: %v\n%s", failed, w.wire)
	}
	return result
}

// mustRollBack is insert where only a complete rollback will do.
func (w *world) mustRollBack(config batch.Config, parts ...batch.Part) *batch.Error {
	w.Helper()
	result, failed := w.insert(config, parts...)
	switch {
	case failed == nil:
		w.Fatalf("%d documents were stored, but the batch had to fail\n%s", result.Inserted, w.wire)
	case !failed.RolledBack():
		w.Fatalf("the rollback is incomplete: %v\n%s", failed, w.wire)
	}
	return failed
}

// note takes down what an outcome says about the data. Several goroutines may do so before check is called.
func (w *world) note(result *batch.Result, err error) (*batch.Result, *batch.Error) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		for _, part := range result.Parts {
			for i, id := range part.IDs {
				place := placeOf(part.Collection, marshal(w.T, id))
				if w.stored[place] {
					w.Errorf("two documents were stored as %s", place)
				}
				w.stored[place] = true
				for name, numbers := range part.Numbers {
					w.counted[field{place, name}] = numbers[i]
				}
			}
		}
		return result, nil
	}
	var failed *batch.Error
	if !errors.As(err, &failed) {
		w.Fatalf("Insert returned a %T, not a *batch.Error: %v", err, err)
	}
	if result != nil {
		w.Errorf("a result beside an error")
	}
	if failed.RolledBack() != (len(failed.Leftovers()) == 0) {
		w.Errorf("RolledBack is %t with %d leftovers: %v", failed.RolledBack(), len(failed.Leftovers()), failed)
	}
	for _, left := range failed.Leftovers() {
		w.leftover[placeOf(left.Collection, left.ID)] = true
	}
	return nil, failed
}

// check compares what is in the database with what has to be there.
func (w *world) check() {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	there := w.readAll()
	for place, raw := range w.planted {
		if now, ok := there[place]; !ok || !bytes.Equal(raw, now) {
			w.Errorf("somebody else's document %s was %v and is %v", place, raw, now)
		}
	}
	for place := range w.stored {
		if _, ok := there[place]; !ok {
			w.Errorf("a batch is said to be stored, but %s is not there", place)
		}
	}
	for place, raw := range there {
		if _, known := w.planted[place]; !known && !w.stored[place] && !w.leftover[place] {
			w.Errorf("left behind: %s %v", place, raw)
		}
	}
	for at, number := range w.counted {
		if raw, ok := there[at.place]; ok {
			if want, have := marshal(w.T, number), raw.Lookup(strings.Split(at.name, ".")...); !have.Equal(want) {
				w.Errorf("%s has %v in %s, the result says %v", at.place, have, at.name, want)
			}
		}
	}
}

// readAll returns all documents by their place.
func (w *world) readAll() map[string]bson.Raw {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	names, err := w.around.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		w.Fatalf("listing collections: %v", err)
	}
	all := make(map[string]bson.Raw)
	for _, name := range names {
		if name == counters || name == plainInserts || name == journalName || name == journalName+journal.PagesSuffix {
			continue
		}
		for place, raw := range w.read(name) {
			all[place] = raw
		}
	}
	return all
}

// Collections that check does not look at: those of sequences, and those that plain inserts are compared in.
const (
	counters     = "counters"
	journalName  = "journal"
	plainInserts = "plain"
)

func (w *world) read(coll string) map[string]bson.Raw {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	cursor, err := w.around.Collection(coll).Find(ctx, bson.D{})
	if err != nil {
		w.Fatalf("reading %s: %v", coll, err)
	}
	var documents []bson.Raw
	if err := cursor.All(ctx, &documents); err != nil {
		w.Fatalf("reading %s: %v", coll, err)
	}
	all := make(map[string]bson.Raw, len(documents))
	for _, raw := range documents {
		all[placeOf(w.around.Name()+"."+coll, raw.Lookup("_id"))] = raw
	}
	return all
}

// count returns how many documents a collection has.
func (w *world) count(coll string) int {
	w.Helper()
	return len(w.read(coll))
}

// placeOf names a document: collection and _id, type included.
func placeOf(collection string, id bson.RawValue) string {
	return fmt.Sprintf("%s %s %s", collection, id.Type, id)
}

func marshal(t *testing.T, v any) bson.RawValue {
	t.Helper()
	if v == nil {
		return bson.RawValue{Type: bson.TypeNull}
	}
	kind, value, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatalf("marshalling %T: %v", v, err)
	}
	return bson.RawValue{Type: kind, Value: value}
}

// policy is a rollback policy with a write concern.
func policy(concern *writeconcern.WriteConcern) rollback.Policy {
	return rollback.Policy{WriteConcern: concern}
}

// texts is a sequence of the same text, over and over.
type texts string

func (s texts) Reserve(_ context.Context, n int) ([]any, error) {
	values := make([]any, n)
	for i := range values {
		values[i] = string(s)
	}
	return values, nil
}

// plantInPlace returns what stores, before an insert reaches the server, a document of somebody else with the _id of the
// insert's i-th.
func (w *world) plantInPlace(coll string, i int) func(context.Context, *faultwire.Request) {
	return func(_ context.Context, r *faultwire.Request) {
		w.plant(coll, bson.D{{Key: "_id", Value: r.IDs()[i]}, {Key: "theirs", Value: true}})
	}
}

// monitor returns the world's database over the wire through a client that tells the context of each of its commands.
func (w *world) monitor(started func(context.Context)) *mongo.Database {
	w.Helper()
	opts := options.Client().SetDialer(w.wire).SetMonitor(&event.CommandMonitor{
		Started: func(ctx context.Context, _ *event.CommandStartedEvent) { started(ctx) },
	})
	return w.server.Client(w.T, opts).Database(w.db.Name())
}
