package idgen_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
)

// Primaries crash and take with them what they had not replicated. A number that was in that part is nobody's.
func TestCounterSurvivesFailovers(t *testing.T) {
	written := make(chan struct{}, 1)
	sim, err := mongosim.Start(mongosim.Config{ReplicaSet: "rs", Members: 3, Observe: func(mongosim.Write) {
		select {
		case written <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &servertest.Server{Kind: servertest.KindSim, URI: sim.URI()}
	counters := database(t, s, options.Client().SetHeartbeatInterval(500*time.Millisecond)).Collection("counters")
	retry := idgen.Retry{Attempts: 50, Timeout: 2 * time.Second}

	for _, test := range []struct {
		name    string
		numbers interface {
			Reserve(context.Context, int) ([]any, error)
		}
	}{
		{"upserted", idgen.NewCounter(counters, "upserted", idgen.CounterConfig{Retry: retry})},
		{"begun", idgen.NewCounter(counters, "begun", idgen.CounterConfig{Start: 1000, Retry: retry})},
		{"striped", idgen.NewStriped(counters, "striped", idgen.StripedConfig{Stripes: 2, Retry: retry})},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := testContext(t)
			stop, taken := make(chan struct{}), make(chan struct{}, 1)
			var callers sync.WaitGroup
			var mu sync.Mutex
			var numbers []int64
			for range 6 {
				callers.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						values, err := test.numbers.Reserve(ctx, 2)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						for _, v := range values {
							numbers = append(numbers, v.(int64))
						}
						mu.Unlock()
						select {
						case taken <- struct{}{}:
						default:
						}
					}
				})
			}
			wait := func(signal chan struct{}, what string) {
				select {
				case <-signal: // perhaps one from before
				default:
				}
				select {
				case <-signal:
				case <-ctx.Done():
					t.Errorf("nothing is %s any more", what)
				}
			}
			lost := 0
			for range 10 {
				if err := sim.HoldReplication(); err != nil {
					t.Error(err)
				}
				wait(written, "written")
				writes, err := sim.Failover()
				if err != nil {
					t.Error(err)
				}
				lost += len(writes)
				if err := sim.ReleaseReplication(); err != nil {
					t.Error(err)
				}
				wait(taken, "given out")
			}
			close(stop)
			callers.Wait()
			if lost == 0 {
				t.Error("no failover lost anything")
			}
			given := len(numbers)
			slices.Sort(numbers)
			if n := len(slices.Compact(numbers)); n != given {
				t.Errorf("%d numbers were given out twice", given-n)
			}
			t.Logf("%d numbers; %d writes were lost", given, lost)
		})
	}
}
