package idgen_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/servertest"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(envKind); kind != "" {
		if err := child(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	servertest.Main(m)
}

// testContext bounds a test that would otherwise wait for ever.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// database returns a fresh database of a client of its own.
func database(t testing.TB, s *servertest.Server, opts ...*options.ClientOptions) *mongo.Database {
	t.Helper()
	return s.Database(t, s.Client(t, opts...))
}

// unreachable returns a collection of a server that cannot be reached, to show that nothing is sent.
func unreachable(t testing.TB) *mongo.Collection {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://nobody.invalid"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client.Database("shop").Collection("counters")
}

// take fails the test unless n numbers are given out, and returns them.
func take(t testing.TB, numbers interface {
	Reserve(context.Context, int) ([]any, error)
}, n int) []int64 {
	t.Helper()
	values, err := numbers.Reserve(testContext(t), n)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]int64, len(values))
	for i, v := range values {
		out[i] = v.(int64)
	}
	return out
}

// reason fails the test unless err is an idgen.Error with the reason, and returns it.
func reason(t testing.TB, err error, want idgen.Reason) *idgen.Error {
	t.Helper()
	var e *idgen.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want one with reason %q", err, want)
	}
	if e.Reason != want {
		t.Fatalf("reason is %q, want %q: %v", e.Reason, want, err)
	}
	return e
}

// stored returns the documents of a collection, in no particular order.
func stored(t testing.TB, coll *mongo.Collection) []bson.M {
	t.Helper()
	cursor, err := coll.Find(testContext(t), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var documents []bson.M
	if err := cursor.All(testContext(t), &documents); err != nil {
		t.Fatal(err)
	}
	return documents
}

func insert(t testing.TB, coll *mongo.Collection, documents ...any) {
	t.Helper()
	if _, err := coll.InsertMany(testContext(t), documents); err != nil {
		t.Fatal(err)
	}
}

func uniqueOn(t testing.TB, coll *mongo.Collection, keys bson.D) {
	t.Helper()
	if _, err := coll.Indexes().CreateOne(testContext(t), mongo.IndexModel{Keys: keys, Options: options.Index().SetUnique(true)}); err != nil {
		t.Fatal(err)
	}
}

// together runs f in n goroutines at once.
func together(n int, f func(i int)) {
	var wait sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wait.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wait.Wait()
}

// onceEach fails the test unless numbers are first, first+1, … in any order.
func onceEach(t testing.TB, numbers []int64, first int64) {
	t.Helper()
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != first+int64(i) {
			t.Fatalf("number %d in place of %d", n, first+int64(i))
		}
	}
}
