package idgen_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

type reserved struct {
	values []any
	err    error
}

// reserve asks for numbers in a goroutine of its own.
func reserve(ctx context.Context, b *idgen.Buffered, n int) <-chan reserved {
	out := make(chan reserved, 1)
	go func() {
		values, err := b.Reserve(ctx, n)
		out <- reserved{values, err}
	}()
	return out
}

// until waits for a condition.
func until(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
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
		waiting := reserve(testContext(t), b, 2)
		until(t, func() bool { _, n := b.State(); return n == 1 })
		held.Release()
		if got := <-waiting; got.err != nil || !slices.Equal(got.values, []any{int64(11), int64(12)}) {
			t.Errorf("after the fetch: %d, %v", got.values, got.err)
		}
	})
}

// A caller that leaves takes nothing with it.
func TestBufferedCancelledWaiter(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, _, wire := buffered(t, s, 10)
		held := wire.On(faultwire.FindAndModify).Once().HoldReply()
		ctx, cancel := context.WithCancel(testContext(t))
		left := reserve(ctx, b, 1)
		<-held.Arrived()
		cancel()
		err := (<-left).err
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

// Callers are served in turn; when one leaves, those behind do not wait for what it wanted.
func TestBufferedServesInTurn(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, _, wire := buffered(t, s, 10)
		take(t, b, 4) // 6 left
		held := wire.On(faultwire.FindAndModify).Once().HoldReply()
		take(t, b, 1) // 5 left, and a fetch that hangs
		ctx, cancel := context.WithCancel(testContext(t))
		many := reserve(ctx, b, 8)
		until(t, func() bool { _, waiting := b.State(); return waiting == 1 })
		few := reserve(testContext(t), b, 2)
		until(t, func() bool { _, waiting := b.State(); return waiting == 2 }) // in turn, although 5 are left
		cancel()
		if got := <-many; !errors.Is(got.err, context.Canceled) {
			t.Errorf("who left gets %d, %v", got.values, got.err)
		}
		if got := <-few; got.err != nil || !slices.Equal(got.values, []any{int64(6), int64(7)}) {
			t.Errorf("who stayed gets %d, %v", got.values, got.err)
		}
		if fetching, _ := b.State(); !fetching {
			t.Error("the fetch is over: this has shown nothing")
		}
		held.Release()
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
		until(t, func() bool { fetching, _ := b.State(); return !fetching })
		if got := take(t, b, 5); got[4] != 10 {
			t.Errorf("while a fetch fails: %d", got)
		}
		if n := wire.Count(faultwire.FindAndModify); n != 2 {
			t.Errorf("%d fetches: a failed one is repeated only when it is needed", n-1)
		}
		if got := take(t, b, 1)[0]; got != 11 {
			t.Errorf("after the failure comes %d", got)
		}

		// Who comes while a fetch ahead of need is failing is not told: it was not his.
		ahead = wire.On(faultwire.FindAndModify).Once().Do(faultwire.HoldRequest(), faultwire.Reply(refusal))
		take(t, b, 4) // 5 left
		<-ahead.Arrived()
		late := reserve(testContext(t), b, 20)
		until(t, func() bool { _, waiting := b.State(); return waiting == 1 })
		ahead.Release()
		if got := <-late; got.err != nil || got.values[0] != int64(16) || got.values[19] != int64(35) {
			t.Errorf("got %d, %v", got.values, got.err)
		}

		until(t, func() bool { fetching, _ := b.State(); return !fetching })
		take(t, b, 4) // 6 left
		rule := wire.On(faultwire.FindAndModify).Reply(refusal)
		take(t, b, 6)
		for range 3 {
			_, err := b.Next(testContext(t))
			if e := reason(t, err, idgen.Unavailable); !strings.Contains(e.Error(), "Unauthorized") {
				t.Errorf("the error hides the server's reason: %v", err)
			}
		}
		rule.Off()
		if got := take(t, b, 1)[0]; got != 46 {
			t.Errorf("when all is well again comes %d", got)
		}
	})
}

func TestBufferedClose(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		b, counter, wire := buffered(t, s, 10)
		take(t, b, 1)
		held := wire.On(faultwire.FindAndModify).HoldReply()
		waiting := reserve(testContext(t), b, 20)
		<-held.Arrived()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if fetching, _ := b.State(); fetching {
			t.Error("a fetch outlives Close")
		}
		if got := <-waiting; got.err != idgen.ErrClosed {
			t.Errorf("a waiting caller gets %d, %v", got.values, got.err)
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
