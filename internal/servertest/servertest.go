// Package servertest gives tests a server, clients and databases of their own.
//
// A package whose tests use it has
//
//	func TestMain(m *testing.M) { servertest.Main(m) }
//
// and calls [Each] in a test that has to hold on every kind of server, or [Embedded] in one that needs one real
// server.
package servertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/localmongo"
	"github.com/intact-go/intact/internal/mongosim"
)

// Kind says what a server is, for a test whose expectations differ.
type Kind int

const (
	KindEmbedded Kind = iota + 1 // FerretDB on SQLite, started by package localmongo
	KindSim                      // package mongosim, in this process
	KindExternal                 // the server that MONGODB_URI names
)

// String returns the name of the kind's subtest.
func (k Kind) String() string {
	switch k {
	case KindEmbedded:
		return "embedded"
	case KindSim:
		return "mongosim"
	case KindExternal:
		return "uri"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Server is a server for tests. Its methods may be called from several goroutines.
type Server struct {
	Kind Kind
	URI  string

	// Sim is the simulator, to make it fail; nil for another kind.
	Sim *mongosim.Server
}

// What happens after a test is bounded by times of its own: the test's context has ended by then.
const (
	// disconnectTime is short because a test may have stopped the server on purpose: the driver would look for it, to
	// end its sessions.
	disconnectTime = 5 * time.Second

	dropTime = 30 * time.Second
)

// shared is the embedded server of this test process. It cannot live in a test: the point is that all of them use the
// same one.
var shared struct {
	mu     sync.Mutex // guards the rest
	server *localmongo.Server
	err    error // why it could not be started; not tried again
}

// Each runs the test as one subtest for each kind of server: "embedded", or "uri" if MONGODB_URI is set, and "mongosim",
// a replica set of its own for this subtest.
func Each(t *testing.T, test func(t *testing.T, s *Server)) {
	t.Helper()
	kinds := []struct {
		kind  Kind
		start func(testing.TB) *Server
	}{
		{realKind(), Embedded},
		{KindSim, sim},
	}
	for _, k := range kinds {
		t.Run(k.kind.String(), func(t *testing.T) { test(t, k.start(t)) })
	}
}

// Embedded returns the embedded server that all tests of this process share, and starts it the first time; if
// MONGODB_URI is set, it returns that one. It ends the test if the server cannot be started.
func Embedded(t testing.TB) *Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil && shared.err == nil {
		// Not the context of this test: the server outlives it.
		shared.server, shared.err = localmongo.Start(context.Background(), localmongo.Options{})
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &Server{Kind: realKind(), URI: shared.server.URI()}
}

// sim starts a simulated replica set that ends with the test.
func sim(t testing.TB) *Server {
	t.Helper()
	s, err := mongosim.Start(mongosim.Config{ReplicaSet: "rs0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Server{Kind: KindSim, URI: s.URI(), Sim: s}
}

// stop stops the shared server, if there is one.
func stop() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return nil
	}
	err := shared.server.Close()
	shared.server = nil
	return err
}

func realKind() Kind {
	if os.Getenv(localmongo.EnvURI) != "" {
		return KindExternal
	}
	return KindEmbedded
}

// Client returns a client of the server with these options on top of its URI. It is disconnected at the end of the test,
// if the test has not done so.
func (s *Server) Client(t testing.TB, opts ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	all := append([]*options.ClientOptions{options.Client().ApplyURI(s.URI)}, opts...)
	client, err := mongo.Connect(all...)
	if err != nil {
		t.Fatalf("client of the %v server: %v", s.Kind, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), disconnectTime)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil && !errors.Is(err, mongo.ErrClientDisconnected) {
			t.Errorf("disconnecting from the %v server: %v", s.Kind, err)
		}
	})
	return client
}

// Database returns a database that no other test uses, through the client c. It is dropped at the end of the test,
// through another client: c may be disconnected by then, or have a broken network on purpose.
func (s *Server) Database(t testing.TB, c *mongo.Client) *mongo.Database {
	t.Helper()
	var random [6]byte
	rand.Read(random[:]) // never fails
	name := "intact_" + hex.EncodeToString(random[:])
	t.Cleanup(func() {
		if s.Kind == KindSim {
			return // it goes away as a whole, and may be without a primary on purpose
		}
		if err := s.drop(name); err != nil {
			t.Errorf("dropping the test's database on the %v server: %v", s.Kind, err)
		}
	})
	return c.Database(name)
}

func (s *Server) drop(database string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTime)
	defer cancel()
	c, err := mongo.Connect(options.Client().ApplyURI(s.URI))
	if err != nil {
		return err
	}
	return errors.Join(c.Database(database).Drop(ctx), c.Disconnect(ctx))
}
