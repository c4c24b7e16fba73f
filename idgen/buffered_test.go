package idgen_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// buffered returns a buffer on a wire of its own, and its counter.
func buffered(t *testing.T, s *servertest.Server, block int) (*idgen.Buffered, *idgen.Counter, *faultwire.Wire) {
	t.Helper()
	wire := faultwire.ForTest(t)
	// No retries by the driver: the test counts commands.
	db := database(t, s, options.Client().SetDialer(wire).SetRetryWrites(false))
	counter := idgen.NewCounter(db.Collection("counters"), "orderNo", idgen.CounterConfig{Retry: idgen.Retry{Attempts: 2}})
	b := idgen.NewBuffered(counter, idgen.BufferedConfig{Block: block})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, counter, wire
}

func TestBufferedAtOnce(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, _, wire := buffered(t, s, 50)
		var mu sync.Mutex
		var all []int64
		together(16, func(int) {
			last := int64(0)
			for range 100 {
				n, err := b.Next(testContext(t))
				if err != nil {
					t.Error(err)
					return
				}
				if n <= last {
					t.Errorf("%d after %d", n, last)
				}
				last = n
				mu.Lock()
				all = append(all, n)
				mu.Unlock()
			}
		})
		onceEach(t, all, 1)
		if n := wire.Count(faultwire.FindAndModify); n < 32 || n > 34 {
			t.Errorf("%d round trips for 1,600 numbers in blocks of 50", n)
		}
	})
}

func TestBufferedReserve(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, counter, wire := buffered(t, s, 10)
		if got := take(t, b, 3); !slices.Equal(got, []int64{1, 2, 3}) {
			t.Errorf("%d", got)
		}
		if n, err := counter.Next(testContext(t)); err != nil || n != 11 {
			t.Fatalf("the counter gives %d, %v", n, err)
		}
		// Across the foreign number, and more than a block.
		if got := take(t, b, 25); got[0] != 4 || got[6] != 10 || got[7] != 12 || got[24] != 29 || !slices.IsSorted(got) {
			t.Errorf("%d", got)
		}
		if n := wire.Count(faultwire.FindAndModify); n > 5 {
			t.Errorf("%d round trips", n)
		}
		for _, n := range []int{0, -1} {
			_, err := b.Reserve(testContext(t), n)
			reason(t, err, idgen.Misused)
		}
	})
}

// While a block is fetched in the background, the rest of the last one is given out; when that is used up, callers wait.
func TestBufferedFetchesAhead(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, _, wire := buffered(t, s, 10)
		take(t, b, 1) // 9 left
		held := wire.On(faultwire.FindAndModify).Once().HoldReply()
		take(t, b, 4) // 5 left: half of a block, so that the next one is on its way
		<-held.Arrived()
		if got := take(t, b, 5); got[4] != 10 {
			t.Errorf("with the fetch under way: %d", got)
		}
		waiting := make(chan []int64)
		go func() { waiting <- take(t, b, 2) }()
		select {
		case got := <-waiting:
			t.Errorf("%d without a fetch", got)
		case <-held.Arrived():
		}
		held.Release()
		if got := <-waiting; !slices.Equal(got, []int64{11, 12}) {
			t.Errorf("after the fetch: %d", got)
		}
	})
}

// A caller that leaves takes nothing with it.
func TestBufferedCancelledWaiter(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, _, wire := buffered(t, s, 10)
		held := wire.On(faultwire.FindAndModify).Once().HoldReply()
		ctx, cancel := context.WithCancel(testContext(t))
		left := make(chan error)
		go func() {
			_, err := b.Next(ctx)
			left <- err
		}()
		<-held.Arrived()
		cancel()
		err := <-left
		if reason(t, err, idgen.Unavailable); !errors.Is(err, context.Canceled) {
			t.Errorf("the error hides why: %v", err)
		}
		held.Release()
		if got := take(t, b, 10); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
			t.Errorf("then %d", got)
		}
		if _, err := b.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("with an ended context: %v", err)
		}
	})
}

// A fetch ahead of need that fails is nobody's error; one that a caller waits for is that caller's, and not the next one's.
func TestBufferedErrors(t *testing.T) {
	refusal := faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized"}
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, _, wire := buffered(t, s, 10)
		take(t, b, 4)
		ahead := wire.On(faultwire.FindAndModify).Once().Reply(refusal)
		take(t, b, 1) // starts the fetch that fails
		<-ahead.Done()
		if got := take(t, b, 5); got[4] != 10 {
			t.Errorf("while a fetch fails: %d", got)
		}
		if n := wire.Count(faultwire.FindAndModify); n != 2 {
			t.Errorf("%d fetches: a failed one is repeated only when it is needed", n-1)
		}
		if got := take(t, b, 1)[0]; got != 11 {
			t.Errorf("after the failure comes %d", got)
		}

		take(t, b, 1) // 8 left
		rule := wire.On(faultwire.FindAndModify).Reply(refusal)
		take(t, b, 8)
		for range 3 {
			_, err := b.Next(testContext(t))
			if e := reason(t, err, idgen.Unavailable); !strings.Contains(e.Error(), "Unauthorized") {
				t.Errorf("the error hides the server's reason: %v", err)
			}
		}
		rule.Off()
		if got := take(t, b, 1)[0]; got != 21 {
			t.Errorf("when all is well again comes %d", got)
		}
	})
}

func TestBufferedClose(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, counter, wire := buffered(t, s, 10)
		take(t, b, 1)
		held := wire.On(faultwire.FindAndModify).HoldReply()
		waiting := make(chan error)
		go func() {
			_, err := b.Reserve(testContext(t), 20)
			waiting <- err
		}()
		<-held.Arrived()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-waiting; err != idgen.ErrClosed {
			t.Errorf("a waiting caller gets %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if _, err := b.Next(testContext(t)); err != idgen.ErrClosed {
			t.Errorf("a later caller gets %v", err)
		}
		held.Release()
		if n, err := counter.Next(testContext(t)); err != nil || n > 10+20+1 {
			t.Errorf("the gap after closing is larger than what was fetched: %d, %v", n, err)
		}
	})
}

func TestBufferedSettings(t *testing.T) {
	coll := unreachable(t)
	for _, test := range []struct {
		name string
		b    *idgen.Buffered
		says string
	}{
		{"no counter", idgen.NewBuffered(nil), "the counter is nil"},
		{"wrong counter", idgen.NewBuffered(idgen.NewCounter(coll, "")), "the key is empty"},
		{"negative block", idgen.NewBuffered(idgen.NewCounter(coll, "a"), idgen.BufferedConfig{Block: -1}), "Block is -1"},
		{"two configs", idgen.NewBuffered(idgen.NewCounter(coll, "a"), idgen.BufferedConfig{}, idgen.BufferedConfig{}), "more than one config"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.b.Next(context.Background())
			if e := reason(t, err, idgen.Misused); !strings.Contains(e.Error(), test.says) {
				t.Errorf("the error does not say %q: %v", test.says, err)
			}
			if err := test.b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
