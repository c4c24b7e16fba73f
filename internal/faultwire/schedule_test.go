package faultwire_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
)

// Several workers insert documents, each under a fault of its own, and some give up meanwhile. In the end the server holds
// what the faults promise, and the record agrees with both sides.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { randomSchedule(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func randomSchedule(t *testing.T, random *rand.Rand) {
	const workers, each = 4, 12
	faults := slices.DeleteFunc(faultwire.Faults(), func(f faultwire.Fault) bool {
		return f.String() == "server down" // takes the other documents with it
	})
	faults = append(faults, faultwire.Pass())
	wire := faultwire.ForTest(t, faultwire.LoadBalanced())
	s := start(t)
	orders := s.connect(t, wire, options.Client().SetLoadBalanced(true))

	type insert struct {
		fault faultwire.Fault
		rule  *faultwire.Rule
		leave bool // give up when the fault happens
		err   error
	}
	inserts := make([]insert, workers*each)
	for id := range inserts {
		x := &inserts[id]
		x.fault = faults[random.IntN(len(faults))]
		x.leave = random.IntN(3) == 0
		x.rule = wire.On(faultwire.Insert.Where(func(r *faultwire.Request) bool {
			return r.IDs()[0].AsInt64() == int64(id)
		})).Do(x.fault)
	}
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range each {
				x := &inserts[w*each+i]
				ctx, giveUp := context.WithCancel(context.Background())
				happened := make(chan struct{})
				arrived := x.rule.Arrived()
				go func() {
					defer close(happened)
					select {
					case <-arrived:
					case <-ctx.Done():
						return
					}
					if x.leave {
						giveUp()
					} else {
						x.rule.Release()
					}
				}()
				_, x.err = orders.InsertMany(ctx, docs(w*each+i))
				giveUp()
				<-happened
			}
		})
	}
	group.Wait()
	wire.Calm()
	if err := wire.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}

	stored := s.ids()
	events := map[int]faultwire.Event{}
	for _, e := range wire.Events() {
		id := int(e.IDs()[0].AsInt64())
		if _, twice := events[id]; twice {
			t.Errorf("%d was sent twice", id)
		}
		events[id] = e
	}
	forwarded := 0
	for id, x := range inserts {
		is := slices.Contains(stored, id)
		e, sent := events[id]
		if !sent {
			if is || x.err == nil || x.rule.Fired() != 0 {
				t.Errorf("%d was never sent: stored %v, error %v, fired %d", id, is, x.err, x.rule.Fired())
			}
			continue
		}
		if e.Forwarded.Happened() {
			forwarded++
		}
		lost := mongo.IsNetworkError(x.err) || errors.Is(x.err, context.Canceled)
		refused := x.fault.String() == "refuse statements"
		switch {
		case is != (x.fault.Runs() && !refused):
			t.Errorf("%d, %v: stored %v", id, x.fault, is)
		case is != (e.Answered.Happened() && e.Forwarded.Before(e.Answered)):
			t.Errorf("%d: stored %v, but %v", id, is, e)
		case !lost && !e.Given.Happened():
			t.Errorf("%d: answered %v, but %v", id, x.err, e)
		case !lost && !x.fault.Answers():
			t.Errorf("%d, %v: answered %v", id, x.fault, x.err)
		case lost && !x.leave && x.fault.Answers():
			t.Errorf("%d, %v: %v", id, x.fault, x.err)
		case e.Given.Happened() == e.Lost.Happened():
			t.Errorf("%d: both or neither of given and lost: %v", id, e)
		}
	}
	same(t, "inserts run", s.count("insert"), forwarded)
	same(t, "documents stored", len(stored), forwarded)
}

// What passing costs, beside a client without a wire.
func BenchmarkPass(b *testing.B) {
	for _, row := range []struct {
		name string
		wire func() *faultwire.Wire
	}{
		{"direct", func() *faultwire.Wire { return nil }},
		{"wire", func() *faultwire.Wire { return faultwire.New() }},
		{"counters only", func() *faultwire.Wire { return faultwire.New(faultwire.KeepLast(0)) }},
	} {
		for _, n := range []int{1, 1000} {
			b.Run(fmt.Sprintf("%s/docs=%d", row.name, n), func(b *testing.B) {
				s := start(b, func(s *server) { s.forget = true })
				opts := options.Client()
				if wire := row.wire(); wire != nil {
					b.Cleanup(func() { _ = wire.Close() })
					opts.SetDialer(wire)
				}
				client, err := mongo.Connect(opts.ApplyURI(s.uri()))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = client.Disconnect(context.Background()) })
				orders := client.Database("shop").Collection("orders")
				var all []any
				for id := range n {
					all = append(all, bson.D{{Key: "_id", Value: id}, {Key: "text", Value: "some text"}})
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := orders.InsertMany(context.Background(), all); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
