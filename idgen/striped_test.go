package idgen_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

func TestStripedNumbers(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, test := range []struct {
			name        string
			config      idgen.StripedConfig
			lowest      int64
			step        int64
			stripes     int64
			takeAtATime int
		}{
			{"zero config", idgen.StripedConfig{}, 1, 1, 8, 1},
			{"blocks", idgen.StripedConfig{Stripes: 3}, 1, 1, 3, 7},
			{"one stripe", idgen.StripedConfig{Stripes: 1}, 1, 1, 1, 2},
			{"start and step", idgen.StripedConfig{Stripes: 3, Start: 1000, Step: 5}, 1000, 5, 3, 2},
			{"from zero", idgen.StripedConfig{Stripes: 2, FromZero: true}, 0, 1, 2, 1},
		} {
			t.Run(test.name, func(t *testing.T) {
				seq := idgen.NewStriped(database(t, s).Collection("counters"), "eventNo", test.config)
				last := map[int64]int64{} // by stripe
				for range 12 {
					block, err := seq.Take(testContext(t), test.takeAtATime)
					if err != nil {
						t.Fatal(err)
					}
					for n := range block.All() {
						if n < test.lowest || (n-test.lowest)%test.step != 0 {
							t.Fatalf("%d is not a number of the sequence", n)
						}
						stripe := (n - test.lowest) / test.step % test.stripes
						want := test.lowest + stripe*test.step
						if before, ok := last[stripe]; ok {
							want = before + test.stripes*test.step
						}
						if n != want {
							t.Fatalf("stripe %d gives %d, want %d", stripe, n, want)
						}
						last[stripe] = n
					}
				}
				if test.stripes > 1 && len(last) < 2 {
					t.Errorf("all numbers came from one stripe")
				}
			})
		}
	})
}

func TestStripedAtOnce(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		seq := idgen.NewStriped(database(t, s).Collection("counters"), "eventNo", idgen.StripedConfig{Stripes: 4})
		var mu sync.Mutex
		given := map[int64]bool{}
		together(16, func(int) {
			for range 5 {
				block, err := seq.Take(testContext(t), 3)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for n := range block.All() {
					if given[n] {
						t.Errorf("%d twice", n)
					}
					given[n] = true
				}
				mu.Unlock()
			}
		})
	})
}

// Two programs must not divide one sequence in different ways.
func TestStripedLayoutIsOne(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		counters := database(t, s, options.Client().SetDialer(wire)).Collection("counters")
		seq := idgen.NewStriped(counters, "eventNo", idgen.StripedConfig{Stripes: 4})
		before := len(stored(t, counters))
		take(t, seq, 1)
		if before != 0 {
			t.Fatal("the collection was not empty")
		}
		for name, config := range map[string]idgen.StripedConfig{
			"stripes": {Stripes: 8}, "start": {Stripes: 4, Start: 2}, "step": {Stripes: 4, Step: 2},
		} {
			other := idgen.NewStriped(counters, "eventNo", config)
			_, err := other.Next(testContext(t))
			if e := reason(t, err, idgen.Misused); !strings.Contains(e.Problem, name+" is ") {
				t.Errorf("the error does not say that the %s differ: %v", name, err)
			}
			reason(t, other.RaiseTo(testContext(t), 100), idgen.Misused)
		}
		same := idgen.NewStriped(counters, "eventNo", idgen.StripedConfig{Stripes: 4, Max: 1000})
		take(t, same, 1)
		take(t, same.Scope("a"), 1)
		take(t, idgen.NewStriped(counters, "other", idgen.StripedConfig{Stripes: 2}), 1)

		// Once it is known, one number is one round trip.
		for range 200 { // until each stripe was begun
			take(t, seq, 1)
		}
		sent := len(wire.Events())
		for range 10 {
			take(t, seq, 1)
		}
		if n := len(wire.Events()) - sent; n != 10 {
			t.Errorf("%d round trips for 10 numbers", n)
		}
	})
}

func TestStripedRaise(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		db := database(t, s)
		seq := idgen.NewStriped(db.Collection("counters"), "eventNo", idgen.StripedConfig{Stripes: 4})
		take(t, seq, 5)
		if err := seq.RaiseTo(testContext(t), 5200); err != nil {
			t.Fatal(err)
		}
		insert(t, db.Collection("events"), bson.D{{Key: "no", Value: int64(6001)}}, bson.D{{Key: "no", Value: nil}})
		given := map[int64]bool{}
		for above := int64(5200); above <= 6001; above += 801 {
			for range 40 {
				n := take(t, seq, 1)[0]
				if n <= above || given[n] || n > above+40*4 {
					t.Fatalf("%d after raising to %d", n, above)
				}
				given[n] = true
			}
			if err := seq.RaiseToMax(testContext(t), db.Collection("events"), "no", nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := seq.RaiseTo(testContext(t), 10); err != nil { // never lowers
			t.Fatal(err)
		}
		if n := take(t, seq, 1)[0]; n <= 6001 {
			t.Errorf("lowered to %d", n)
		}
	})
}

// The last numbers come from whichever stripe still has some.
func TestStripedExhaustion(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, limit := range []int64{10, math.MaxInt64} {
			counters := database(t, s).Collection("counters")
			seq := idgen.NewStriped(counters, "eventNo", idgen.StripedConfig{Stripes: 4, Start: limit - 9, Max: limit})
			var numbers []int64
			for range 10 {
				numbers = append(numbers, take(t, seq, 1)[0])
			}
			slices.Sort(numbers)
			if numbers[0] != limit-9 || numbers[9] != limit || len(slices.Compact(numbers)) != 10 {
				t.Errorf("ten numbers from %d to %d", numbers[0], numbers[9])
			}
			_, err := seq.Next(testContext(t))
			reason(t, err, idgen.Exhausted)
		}
	})
}

// A stripe that somebody has set to a number of another stripe gives out nothing.
func TestStripedForeignNumber(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		counters := database(t, s).Collection("counters")
		seq := idgen.NewStriped(counters, "eventNo", idgen.StripedConfig{Stripes: 2})
		for i, v := range []any{int64(2), "7"} { // the first has 1, 3, 5, …
			insert(t, counters, bson.D{{Key: "_id", Value: bson.D{{Key: "key", Value: "eventNo"}, {Key: "stripe", Value: int32(i)}}}, {Key: "seq", Value: v}})
		}
		for range 10 {
			_, err := seq.Next(testContext(t))
			reason(t, err, idgen.Unreadable)
		}
	})
}

func TestStripedSettings(t *testing.T) {
	coll := unreachable(t)
	for _, test := range []struct {
		name string
		seq  *idgen.Striped
		says string
	}{
		{"negative stripes", idgen.NewStriped(coll, "a", idgen.StripedConfig{Stripes: -1}), "Stripes is -1"},
		{"too many stripes", idgen.NewStriped(coll, "a", idgen.StripedConfig{Stripes: 10_001}), "Stripes is 10001"},
		{"negative start", idgen.NewStriped(coll, "a", idgen.StripedConfig{Start: -1}), "Start is -1"},
		{"no room", idgen.NewStriped(coll, "a", idgen.StripedConfig{Start: 5, Max: 10}), "do not fit"},
		{"overflow", idgen.NewStriped(coll, "a", idgen.StripedConfig{Step: math.MaxInt64 / 2}), "do not fit"},
		{"no collection", idgen.NewStriped(nil, "a"), "nil"},
		{"no key", idgen.NewStriped(coll, nil), "neither a key nor a scope"},
		{"two configs", idgen.NewStriped(coll, "a", idgen.StripedConfig{}, idgen.StripedConfig{}), "more than one config"},
		{"scope of a scope", idgen.NewStriped(coll, "a").Scope(1).Scope(2), "scope within a scope"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.seq.Next(context.Background())
			if e := reason(t, err, idgen.Misused); !strings.Contains(e.Error(), test.says) {
				t.Errorf("the error does not say %q: %v", test.says, err)
			}
			reason(t, test.seq.RaiseTo(context.Background(), 1), idgen.Misused)
			reason(t, test.seq.RaiseToMax(context.Background(), coll, "n", nil), idgen.Misused)
		})
	}
	_, err := idgen.NewStriped(coll, "a").Take(context.Background(), 0)
	reason(t, err, idgen.Misused)
}
