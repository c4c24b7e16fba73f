package faultwire_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
)

func TestLateWrite(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	if err := orders.Database().Client().Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	before := s.connections() // one of the monitor, one of the ping
	held := wire.On(faultwire.Insert.In("shop.orders")).Once().Hold()

	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := orders.InsertMany(ctx, docs(1, 2))
		result <- err
	}()
	within(t, "arriving", held.Arrived())
	cancel()
	if err := take(t, result); !errors.Is(err, context.Canceled) {
		t.Fatalf("the client that gave up: %v", err)
	}
	if deleted, err := orders.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil || deleted.DeletedCount != 0 {
		t.Fatalf("the delete before the late write: %v, %v", deleted, err)
	}
	same(t, "stored before the release", s.ids(), []int{})
	select {
	case <-held.Done():
		t.Fatal("it is over before it was released")
	default:
	}

	held.Release()
	within(t, "running", held.Done())
	same(t, "stored after it", s.ids(), []int{1, 2})
	same(t, "inserts run", s.count("insert"), 1)
	insert, remove := wire.Events(faultwire.Insert)[0], wire.Events(faultwire.Delete)[0]
	if !insert.Seen.Before(insert.Lost) || !insert.Lost.Before(remove.Seen) || !remove.Answered.Before(insert.Forwarded) ||
		!insert.Forwarded.Before(insert.Answered) || insert.Given.Happened() {
		t.Errorf("not in the order of a late write:\n%s", wire)
	}
	eventually(t, "closing the late connection", func() bool { return s.connections() == before })
}

func TestLateWriteAfterTimeout(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	if _, err := orders.InsertMany(t.Context(), docs(1)); err != nil { // connects, so that the timeout hits the insert
		t.Fatal(err)
	}
	held := wire.On(faultwire.Insert).Once().Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := orders.InsertMany(ctx, docs(2)); !mongo.IsTimeout(err) {
		t.Fatalf("the client that waited: %v", err)
	}
	same(t, "stored before the release", s.ids(), []int{1})
	held.Release()
	within(t, "running", held.Done())
	same(t, "stored after it", s.ids(), []int{1, 2})
}

func TestHeldOneByOne(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	held := wire.On(faultwire.Insert).First(4).Hold()
	if held.ReleaseNext() {
		t.Error("released one where none is held")
	}
	results := make(chan error, 4)
	for i := 1; i <= 4; i++ {
		go func() {
			_, err := orders.InsertMany(context.Background(), docs(i))
			results <- err
		}()
		within(t, "arriving", held.ArrivedN(i))
	}
	for i := 1; i <= 2; i++ {
		held.ReleaseNext()
		within(t, "running", held.DoneN(i))
	}
	same(t, "stored after two", s.ids(), []int{1, 2})
	held.Drop()
	within(t, "being over", held.DoneN(4))
	same(t, "stored after the rest was dropped", s.ids(), []int{1, 2})
	lost := 0
	for range 4 {
		if err := take(t, results); mongo.IsNetworkError(err) {
			lost++
		} else if err != nil {
			t.Error(err)
		}
	}
	same(t, "clients that lost their connection", lost, 2)

	held = wire.On(faultwire.Insert).Hold()
	held.Release()
	if _, err := orders.InsertMany(t.Context(), docs(9)); err != nil {
		t.Errorf("an insert after the release: %v", err)
	}
}

func TestServerDown(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire, options.Client().SetServerSelectionTimeout(100*time.Millisecond))
	if _, err := orders.InsertMany(t.Context(), docs(1)); err != nil {
		t.Fatal(err)
	}
	wire.Down()
	eventually(t, "cutting all connections", func() bool { return wire.Connections() == 0 && s.connections() == 0 })
	if _, err := orders.InsertMany(t.Context(), docs(2)); err == nil {
		t.Error("inserted into a server that is down")
	}
	same(t, "stored while it is down", s.ids(), []int{1})
	wire.Up()
	eventually(t, "finding the server", func() bool {
		_, err := orders.InsertMany(t.Context(), docs(3))
		return err == nil
	})

	// Refuse leaves the connections alone.
	open := wire.Connections()
	wire.Refuse()
	if _, err := orders.InsertMany(t.Context(), docs(4)); err != nil {
		t.Errorf("over a connection that was there before: %v", err)
	}
	if wire.Connections() < open {
		t.Errorf("%d connections, %d before", wire.Connections(), open)
	}
}

// A cut, as a fault or of all connections, is ahead of the server, which runs the command nevertheless.
func TestCutIsAheadOfServer(t *testing.T) {
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all connections ", all), func(t *testing.T) {
			wire := faultwire.ForTest(t)
			stall := make(chan struct{})
			s := start(t, func(s *server) { s.stall = stall })
			orders := s.connect(t, wire)
			if !all {
				wire.On(faultwire.Insert).Cut()
			}
			result := make(chan error, 1)
			go func() {
				_, err := orders.InsertMany(context.Background(), docs(1))
				result <- err
			}()
			eventually(t, "forwarding", func() bool {
				events := wire.Events(faultwire.Insert)
				return len(events) == 1 && events[0].Forwarded.Happened()
			})
			if all {
				wire.Cut()
			}
			select {
			case err := <-result:
				if !mongo.IsNetworkError(err) {
					t.Errorf("the client whose connection was cut: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the client still waits")
			}
			same(t, "stored while the server is at it", s.ids(), []int{})
			close(stall)
			if err := wire.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			same(t, "stored when it is done", s.ids(), []int{1})
		})
	}
}

// When all connections are cut, a held request can still be released, but one that only waits for its turn is lost.
func TestCutMeetsRequestsNotForwarded(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	held := wire.On(faultwire.Insert).Nth(1).Hold()
	cutter := wire.On(faultwire.Insert).Nth(1).Before(func(context.Context, *faultwire.Request) { wire.Cut() })
	first, second := s.dial(t, wire), s.dial(t, wire)
	if _, err := first.Write(message(t, 1, false)); err != nil {
		t.Fatal(err)
	}
	within(t, "arriving", held.Arrived())
	if _, err := second.Write(message(t, 2, false)); err != nil {
		t.Fatal(err)
	}
	within(t, "cutting", cutter.Done())
	held.Release()
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "stored", s.ids(), []int{1})
}
