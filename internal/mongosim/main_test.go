package mongosim_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// start brings a server up for one test.
func start(t testing.TB, config mongosim.Config) *mongosim.Server {
	t.Helper()
	s, err := mongosim.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// connect is a client of s, disconnected when the test ends.
func connect(t testing.TB, s *mongosim.Server, opts ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	own := options.Client().ApplyURI(s.URI()).SetDialer(s.Dialer())
	client, err := mongo.Connect(append([]*options.ClientOptions{own}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	return client
}
