package faultwire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
)

func TestServerLeaves(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	c := s.dial(t, wire)
	held := wire.On(faultwire.Insert).Hold()
	if _, err := c.Write(message(t, 1, false)); err != nil {
		t.Fatal(err)
	}
	within(t, "arriving", held.Arrived())
	eventually(t, "accepting", func() bool { return s.connections() == 1 })
	s.disconnect()
	held.Release()
	within(t, "being over", held.Done())
	if held.Err() == nil {
		t.Error("the rule has no error although the server did not answer")
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection stands")
	}
	if err := wire.Err(); err != nil {
		t.Errorf("the wire's error: %v", err)
	}
}

// What was written before a close arrives, in order; also what waits behind a request that is held.
func TestClientLeavesRequestsBehind(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	c := s.dial(t, wire)
	held := wire.On(faultwire.Insert).Nth(2).Hold()
	for id := 1; id <= 3; id++ {
		if _, err := c.Write(message(t, id, false)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(message(t, 4, false)[:30]); err != nil { // not written completely
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "arriving", held.Arrived())
	same(t, "stored while the second is held", s.ids(), []int{1})
	held.Release()
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "stored in the end", s.ids(), []int{1, 2, 3})
	same(t, "lost for the client", wire.Events()[2].Lost.Happened(), true)
	eventually(t, "leaving the server", func() bool { return wire.Connections() == 0 && s.connections() == 0 })
}

// What waits behind a fault that ends the connection does not arrive.
func TestFaultEndsWhatIsBehind(t *testing.T) {
	for _, row := range []struct {
		fault faultwire.Fault
		runs  int
		end   error // nil stands for io.EOF
	}{
		{faultwire.DropRequest(), 0, nil},
		{faultwire.DropReply(), 1, nil},
		{faultwire.Cut(), 1, syscall.ECONNRESET},
		{faultwire.CutReply(3), 1, syscall.ECONNRESET},
	} {
		t.Run(row.fault.String(), func(t *testing.T) {
			wire := faultwire.ForTest(t)
			s := start(t)
			c := s.dial(t, wire)
			held := wire.On(faultwire.Insert).First(1).Do(faultwire.HoldRequest(), row.fault)
			for id := 1; id <= 3; id++ {
				if _, err := c.Write(message(t, id, false)); err != nil {
					t.Fatal(err)
				}
			}
			held.Release()
			if err := wire.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			same(t, "inserts run", s.count("insert"), row.runs)
			if _, err := io.ReadAll(c); !errors.Is(err, row.end) {
				t.Errorf("reading: %v", err)
			}
			if _, err := c.Write(message(t, 4, false)); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("writing afterwards: %v", err)
			}
			same(t, "recorded", wire.Count(), 3)
		})
	}
}

func TestCutReply(t *testing.T) {
	for _, row := range []struct{ n, arrive int }{{-1, 0}, {0, 0}, {1, 1}, {16, 16}, {1000, 44}} {
		wire := faultwire.ForTest(t)
		s := start(t)
		c := s.dial(t, wire)
		wire.On(faultwire.Insert).CutReply(row.n)
		if _, err := c.Write(message(t, 1, false)); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("reading: %v", err)
		}
		same(t, "bytes that arrive", len(b), row.arrive)
		same(t, "stored", s.ids(), []int{1})
	}
}

func TestDeadlines(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	c := s.dial(t, wire)
	held := wire.On(faultwire.Insert).Hold()
	if _, err := c.Write(message(t, 1, false)); err != nil {
		t.Fatal(err)
	}
	timeout := func(what string, err error) {
		t.Helper()
		var netErr net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &netErr) || !netErr.Timeout() {
			t.Errorf("%s: %v", what, err)
		}
	}
	read := func() error { _, err := c.Read(make([]byte, 4)); return err }
	write := func() error { _, err := c.Write(message(t, 2, false)); return err }

	if err := c.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	timeout("reading after the deadline", read())
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	timeout("reading until the deadline", read())
	timeout("reading again", read())
	if err := write(); err != nil {
		t.Errorf("writing under a read deadline: %v", err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	timeout("writing after the deadline", write())
	if err := c.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	timeout("reading after both", read())
	timeout("writing after both", write())

	// A deadline that comes while a read waits wakes it, as the driver's cancelling does.
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- read() }()
	blocked(t, "faultwire.(*conn).Read", "sync.Cond.Wait")
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	timeout("reading when the deadline comes", take(t, result))

	// A deadline that was taken back does not.
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	go func() { result <- read() }()
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-result:
		t.Errorf("a read without a deadline ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	held.Release()
	same(t, "the read", take(t, result), nil)

	// A close wakes a read, and ends everything else.
	go func() {
		for {
			if err := read(); err != nil {
				result <- err
				return
			}
		}
	}()
	blocked(t, "faultwire.(*conn).Read", "sync.Cond.Wait")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"the waiting read": take(t, result), "read": read(), "write": write(), "close": c.Close(),
		"read deadline": c.SetReadDeadline(time.Time{}), "write deadline": c.SetWriteDeadline(time.Time{}),
		"deadline": c.SetDeadline(time.Time{}),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after the close: %v", what, err)
		}
	}
	same(t, "addresses", c.RemoteAddr().String() == s.listener.Addr().String() && c.LocalAddr() != nil, true)
}

// A close that meets a write comes after it: the driver closes a connection while it is writing when its context ends.
func TestCloseMeetsWrite(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	c := s.dial(t, wire)
	entered, leave := make(chan struct{}), make(chan struct{})
	wire.Observe(func(change faultwire.Change) {
		if change.Stage == faultwire.Seen {
			close(entered)
			<-leave
		}
	})
	wrote, closed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := c.Write(message(t, 1, false)); wrote <- err }()
	within(t, "writing", entered)
	go func() { closed <- c.Close() }()
	blocked(t, "faultwire.(*conn).Close", "sync.Mutex.Lock")
	close(leave)
	same(t, "the write", take(t, wrote), nil)
	same(t, "the close", take(t, closed), nil)
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "stored", s.ids(), []int{1})
}

// blocked waits until a goroutine waits in the function, for a condition or a mutex.
func blocked(t testing.TB, function, on string) {
	t.Helper()
	eventually(t, "blocking in "+function, func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for _, g := range strings.Split(string(stacks), "\n\n") {
			if strings.Contains(g, function) && strings.Contains(g, on) {
				return true
			}
		}
		return false
	})
}

func TestClose(t *testing.T) {
	wire := faultwire.New()
	s := start(t)
	orders := s.connect(t, wire)
	requests := wire.On(faultwire.Insert).Hold()
	replies := wire.On(faultwire.Delete).HoldReply()
	functions := wire.On(faultwire.Update).Before(func(ctx context.Context, _ *faultwire.Request) { <-ctx.Done() })
	delayed := wire.On(faultwire.Find).Delay(time.Hour)
	results := make(chan error, 4)
	go func() { _, err := orders.InsertMany(context.Background(), docs(1)); results <- err }()
	go func() { _, err := orders.DeleteMany(context.Background(), bson.D{}); results <- err }()
	go func() {
		_, err := orders.UpdateMany(context.Background(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}})
		results <- err
	}()
	go func() {
		results <- orders.Database().RunCommand(context.Background(), bson.D{{Key: "find", Value: "orders"}}).Err()
	}()
	for _, rule := range []*faultwire.Rule{requests, replies, functions, delayed} {
		within(t, "arriving", rule.Arrived())
	}
	if err := wire.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	same(t, "connections left", wire.Connections(), 0)
	for range 4 {
		if err := take(t, results); err == nil {
			t.Error("a client has got an answer")
		}
	}
	same(t, "inserts run", s.count("insert"), 0)
	same(t, "deletes run", s.count("delete"), 1)
	for _, rule := range []*faultwire.Rule{requests, replies} {
		within(t, "being over", rule.Done())
		if !errors.Is(rule.Err(), faultwire.ErrClosed) {
			t.Errorf("%v ended with %v", rule, rule.Err())
		}
	}
	if _, err := wire.DialContext(t.Context(), "tcp", s.listener.Addr().String()); !errors.Is(err, faultwire.ErrClosed) {
		t.Errorf("dialing a closed wire: %v", err)
	}
	if err := wire.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	eventually(t, "leaving the server", func() bool { return s.connections() == 0 })
}

// A server that never answers does not keep the wire from closing.
func TestCloseWhileServerIsStuck(t *testing.T) {
	wire := faultwire.New()
	stall := make(chan struct{})
	s := start(t, func(s *server) { s.stall = stall })
	defer close(stall)
	passed := wire.On(faultwire.Insert).Pass()
	c := s.dial(t, wire)
	if _, err := c.Write(message(t, 1, false)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "forwarding", func() bool { return wire.Events()[0].Forwarded.Happened() })
	closed := make(chan error, 1)
	go func() { closed <- wire.Close() }()
	same(t, "closing", take(t, closed), nil)
	if passed.Err() == nil {
		t.Error("the rule has no error although the server did not answer")
	}
}

// The wire may be closed or taken down while a connection is being made.
func TestDialMeetsChange(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*faultwire.Wire)
		want   error
	}{
		{"close", func(w *faultwire.Wire) { _ = w.Close() }, faultwire.ErrClosed},
		{"down", (*faultwire.Wire).Down, syscall.ECONNREFUSED},
	} {
		t.Run(row.name, func(t *testing.T) {
			var wire *faultwire.Wire
			there, here := net.Pipe()
			wire = faultwire.New(faultwire.Over(dialer(func() (net.Conn, error) {
				row.change(wire)
				return here, nil
			})))
			defer func() { _ = wire.Close() }()
			if _, err := wire.DialContext(t.Context(), "tcp", "ignored"); !errors.Is(err, row.want) {
				t.Errorf("dialing: %v", err)
			}
			if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the server's end: %v", err)
			}
		})
	}
}

// A client behind a load balancer watches no server: all its connections are for commands.
func TestLoadBalanced(t *testing.T) {
	wire := faultwire.ForTest(t, faultwire.LoadBalanced())
	s := start(t)
	orders := s.connect(t, wire, options.Client().SetLoadBalanced(true))
	lost := wire.On(faultwire.Insert).EveryNth(2).DropReply()
	for id := range 20 {
		_, err := orders.InsertMany(t.Context(), docs(id))
		same(t, "the client has lost its connection", err != nil, id%2 == 1)
	}
	same(t, "lost", lost.Fired(), 10)
	same(t, "stored", len(s.ids()), 20)
	if _, err := orders.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: 3}}); err != nil {
		t.Error(err)
	}
	same(t, "connections made", wire.Events(faultwire.Delete)[0].Conn, 11)
}

// A rule for hello works behind a load balancer, too.
func TestLoadBalancedLie(t *testing.T) {
	wire := faultwire.ForTest(t, faultwire.LoadBalanced())
	lie := wire.On(faultwire.Hello).Lie(faultwire.Set("setName", "rs"))
	orders := start(t).connect(t, wire, options.Client().SetLoadBalanced(true).SetRetryWrites(true))
	if _, err := orders.InsertMany(t.Context(), docs(1)); err != nil {
		t.Fatal(err)
	}
	same(t, "lies", lie.Fired(), 1)
	if _, retryable := wire.Events(faultwire.Insert)[0].TxnNumber(); !retryable {
		t.Errorf("the client does not believe the lie\n%s", wire)
	}
}
