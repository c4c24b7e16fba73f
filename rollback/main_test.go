package rollback_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// site is a collection on a server, twice: through a wire, where a test undoes, and past it, where it stores and looks.
type site struct {
	server *servertest.Server
	wire   *faultwire.Wire
	coll   *mongo.Collection
	past   *mongo.Collection
}

// onEach runs the test on every kind of server.
func onEach(t *testing.T, test func(t *testing.T, s *site)) {
	servertest.Each(t, func(t *testing.T, server *servertest.Server) { test(t, newSite(t, server)) })
}

func newSite(t testing.TB, server *servertest.Server, opts ...*options.ClientOptions) *site {
	t.Helper()
	wire := faultwire.ForTest(t)
	past := server.Database(t, server.Client(t)).Collection("orders")
	client := server.Client(t, append([]*options.ClientOptions{options.Client().SetDialer(wire)}, opts...)...)
	return &site{server: server, wire: wire, coll: client.Database(past.Database().Name()).Collection("orders"), past: past}
}

func (s *site) name() string { return s.past.Database().Name() + "." + s.past.Name() }

// session starts a session that ends with the test.
func (s *site) session(t testing.TB) *mongo.Session {
	t.Helper()
	session, err := s.coll.Database().Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.EndSession(context.Background()) })
	return session
}

// store puts documents into the collection and returns their bytes.
func (s *site) store(t testing.TB, documents ...any) []bson.Raw {
	t.Helper()
	raws := make([]bson.Raw, len(documents))
	for i, document := range documents {
		raws[i] = raw(t, document)
	}
	for some := range slices.Chunk(raws, 10_000) {
		if _, err := s.past.InsertMany(ending(t), some); err != nil {
			t.Fatal(err)
		}
	}
	return raws
}

// has fails the test unless the collection holds exactly these documents, byte for byte.
func (s *site) has(t testing.TB, want ...bson.Raw) {
	t.Helper()
	cursor, err := s.past.Find(ending(t), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var got []bson.Raw
	if err := cursor.All(ending(t), &got); err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, func(g bson.Raw) bool { return bytes.Equal(g, w) }) {
			t.Errorf("this document is gone or changed: %v", w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d documents in the collection, want %d", len(got), len(want))
		for _, g := range got[:min(len(got), 5)] {
			if !slices.ContainsFunc(want, func(w bson.Raw) bool { return bytes.Equal(g, w) }) {
				t.Errorf("for example this one is still there: %v", g)
			}
		}
	}
}

// count returns how many documents the collection holds.
func (s *site) count(t testing.TB) int64 {
	t.Helper()
	n, err := s.past.CountDocuments(ending(t), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// undo undoes and fails the test if that does not succeed.
func (s *site) undo(t testing.TB, policy rollback.Policy, targets ...rollback.Target) rollback.Report {
	t.Helper()
	report, err := rollback.Undo(ending(t), policy, targets...)
	if err != nil {
		t.Fatalf("%v (report %+v)", err, report)
	}
	return report
}

// quick is a policy for tests that do not look at times: everything that is waited for is short, and a mistake does not
// go on for ever.
func quick() rollback.Policy {
	return rollback.Policy{InitialDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond, Settle: 20 * time.Millisecond, Budget: 30 * time.Second}
}

// observed is what Policy.Observe was told.
type observed struct {
	mu     sync.Mutex
	events []rollback.Event
}

func (o *observed) observe(e rollback.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

func (o *observed) of(kind rollback.EventKind) []rollback.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(o.events), func(e rollback.Event) bool { return e.Kind != kind })
}

// ending bounds a test that would otherwise wait for ever.
func ending(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func raw(t testing.TB, document any) bson.Raw {
	t.Helper()
	encoded, err := bson.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// value is the BSON of an _id.
func value(t testing.TB, id any) bson.RawValue {
	t.Helper()
	kind, encoded, err := bson.MarshalValue(id)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: kind, Value: encoded}
}

// doc is a document with this _id.
func doc(id any, fields ...bson.E) bson.D {
	return append(bson.D{{Key: "_id", Value: id}}, fields...)
}

// first makes the first id of a range: random bytes that nobody else has, and this counter.
func first(counter uint32) bson.ObjectID {
	return plus(bson.NewObjectID(), 0, &counter)
}

// after returns the n-th id after another, negative n for those before, without regard to the end of the counter.
func after(id bson.ObjectID, n int) bson.ObjectID { return plus(id, n, nil) }

func plus(id bson.ObjectID, n int, counter *uint32) bson.ObjectID {
	low := binary.BigEndian.Uint64(id[4:])
	if counter != nil {
		low = low&^0xffffff | uint64(*counter)
	}
	binary.BigEndian.PutUint64(id[4:], low+uint64(n))
	return id
}

// run returns n documents whose ids begin with from.
func run(from bson.ObjectID, n int) []any {
	documents := make([]any, n)
	for i := range documents {
		documents[i] = doc(after(from, i), bson.E{Key: "i", Value: i})
	}
	return documents
}

// idsOf returns the _ids of documents.
func idsOf(documents []bson.Raw) []any {
	ids := make([]any, len(documents))
	for i, d := range documents {
		ids[i] = d.Lookup("_id")
	}
	return ids
}
