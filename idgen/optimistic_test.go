package idgen_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// into stores {field: number} and more in coll.
func into(coll *mongo.Collection, field string, more ...bson.E) func(context.Context, int64) error {
	return func(ctx context.Context, n int64) error {
		_, err := coll.InsertOne(ctx, append(bson.D{{Key: field, Value: n}}, more...))
		return err
	}
}

func TestOptimisticNumbers(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, test := range []struct {
			name   string
			config idgen.OptimisticConfig
			stored []any
			n      int
			want   []int64
			fails  idgen.Reason
		}{
			{name: "empty", n: 3, want: []int64{1, 2, 3}},
			{name: "start", config: idgen.OptimisticConfig{Start: 1000}, n: 2, want: []int64{1000, 1001}},
			{name: "from zero", config: idgen.OptimisticConfig{FromZero: true}, n: 2, want: []int64{0, 1}},
			{name: "step", config: idgen.OptimisticConfig{Start: 10, Step: 5}, n: 2, want: []int64{10, 15}},
			{name: "int32", stored: []any{int32(9), int32(10)}, n: 2, want: []int64{11, 12}},
			{name: "mixed kinds of numbers", stored: []any{int32(9), 12.0, int64(11)}, n: 1, want: []int64{13}},
			{name: "start below", config: idgen.OptimisticConfig{Start: 1000}, stored: []any{int64(5)}, n: 1, want: []int64{6}},
			{name: "step from what is there", config: idgen.OptimisticConfig{Step: 5}, stored: []any{int64(7)}, n: 2, want: []int64{12, 17}},
			{name: "null beside", stored: []any{nil, int64(3)}, n: 1, want: []int64{4}},
			{name: "only null", stored: []any{nil}, n: 1, want: []int64{1}},
			{name: "text beside", stored: []any{"9999", int64(3)}, n: 1, fails: idgen.Unreadable},
			{name: "fraction", stored: []any{10.5}, n: 1, fails: idgen.Unreadable},
			{name: "2^53", stored: []any{float64(1 << 53)}, n: 1, fails: idgen.Unreadable},
			{name: "the last", stored: []any{int64(math.MaxInt64 - 2)}, n: 2, want: []int64{math.MaxInt64 - 1, math.MaxInt64}},
			{name: "past the last", stored: []any{int64(math.MaxInt64 - 2)}, n: 5, fails: idgen.Exhausted},
			{name: "max", config: idgen.OptimisticConfig{Max: 10}, stored: []any{int64(9)}, n: 1, want: []int64{10}},
			{name: "past max", config: idgen.OptimisticConfig{Max: 10}, stored: []any{int64(9)}, n: 2, fails: idgen.Exhausted},
			{name: "above max", config: idgen.OptimisticConfig{Max: 10}, stored: []any{int64(math.MaxInt64)}, n: 1, fails: idgen.Exhausted},
			{name: "step too large", config: idgen.OptimisticConfig{Step: math.MaxInt64}, n: 2, want: []int64{1, 1}, fails: idgen.Exhausted},
			{name: "none asked for", n: 0, fails: idgen.Misused},
		} {
			t.Run(test.name, func(t *testing.T) {
				coll := database(t, s).Collection("companies")
				uniqueOn(t, coll, bson.D{{Key: "companyId", Value: 1}})
				for _, v := range test.stored {
					insert(t, coll, bson.D{{Key: "companyId", Value: v}})
				}
				o := idgen.NewOptimistic(coll, "companyId", test.config)
				if test.fails != 0 {
					_, err := o.Reserve(testContext(t), test.n)
					reason(t, err, test.fails)
					return
				}
				if got := take(t, o, test.n); !slices.Equal(got, test.want) {
					t.Errorf("proposes %d, want %d", got, test.want)
				}
				for _, want := range test.want {
					if got, err := o.Insert(testContext(t), into(coll, "companyId")); err != nil || got != want {
						t.Errorf("stores %d, %v; want %d", got, err, want)
					}
				}
			})
		}
	})
}

func TestOptimisticAtOnce(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, field := range []string{"companyId", "nested.number", "_id"} {
			t.Run(field, func(t *testing.T) {
				coll := database(t, s).Collection("companies")
				if field != "_id" {
					uniqueOn(t, coll, bson.D{{Key: field, Value: 1}})
				}
				o := idgen.NewOptimistic(coll, field, idgen.OptimisticConfig{Start: 1000})
				var mu sync.Mutex
				var numbers []int64
				together(20, func(int) {
					n, err := o.Insert(testContext(t), func(ctx context.Context, n int64) error {
						document := bson.D{{Key: field, Value: n}}
						if outer, inner, nested := strings.Cut(field, "."); nested {
							document = bson.D{{Key: outer, Value: bson.D{{Key: inner, Value: n}}}}
						}
						_, err := coll.InsertOne(ctx, document)
						return err
					})
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					numbers = append(numbers, n)
				})
				onceEach(t, numbers, 1000)
			})
		}
	})
}

// Each tenant counts for itself.
func TestOptimisticScopes(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		coll := database(t, s).Collection("invoices")
		uniqueOn(t, coll, bson.D{{Key: "tenant", Value: 1}, {Key: "year", Value: 1}, {Key: "no", Value: -1}})
		o := idgen.NewOptimistic(coll, "no")
		for round := int64(1); round <= 3; round++ {
			for _, tenant := range []any{"a", int32(5)} {
				for _, year := range []int{2025, 2026} {
					scope := bson.D{{Key: "year", Value: year}, {Key: "tenant", Value: tenant}}
					n, err := o.Scope(scope).Insert(testContext(t), into(coll, "no", scope...))
					if err != nil || n != round {
						t.Errorf("round %d, scope %v: %d, %v", round, scope, n, err)
					}
				}
			}
		}
	})
}

func TestOptimisticNeedsTheIndex(t *testing.T) {
	tenant := bson.D{{Key: "tenant", Value: "a"}}
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, test := range []struct {
			name   string
			keys   bson.D
			index  *options.IndexOptionsBuilder
			scope  bson.D
			reject bool
		}{
			{"none", nil, nil, nil, true},
			{"not unique", bson.D{{Key: "seq", Value: 1}}, options.Index(), nil, true},
			{"partial", bson.D{{Key: "seq", Value: 1}}, options.Index().SetUnique(true).SetPartialFilterExpression(bson.D{{Key: "active", Value: true}}), nil, true},
			{"of a tenant, without scope", bson.D{{Key: "tenant", Value: 1}, {Key: "seq", Value: 1}}, options.Index().SetUnique(true), nil, true},
			{"alone, with scope", bson.D{{Key: "seq", Value: 1}}, options.Index().SetUnique(true), tenant, true},
			{"of more than the scope", bson.D{{Key: "tenant", Value: 1}, {Key: "year", Value: 1}, {Key: "seq", Value: 1}}, options.Index().SetUnique(true), tenant, true},
			{"right", bson.D{{Key: "seq", Value: 1}}, options.Index().SetUnique(true), nil, false},
			{"descending", bson.D{{Key: "seq", Value: -1}}, options.Index().SetUnique(true), nil, false},
			{"sparse", bson.D{{Key: "seq", Value: 1}}, options.Index().SetUnique(true).SetSparse(true), nil, false},
			{"of the scope", bson.D{{Key: "tenant", Value: 1}, {Key: "seq", Value: 1}}, options.Index().SetUnique(true), tenant, false},
			{"of the scope, the other way round", bson.D{{Key: "seq", Value: 1}, {Key: "tenant", Value: 1}}, options.Index().SetUnique(true), tenant, false},
		} {
			t.Run(test.name, func(t *testing.T) {
				if s.Kind == servertest.KindEmbedded && test.name == "partial" {
					t.Skip("FerretDB 1.24 has no partial indexes")
				}
				coll := database(t, s).Collection("numbered")
				if test.keys != nil {
					if _, err := coll.Indexes().CreateOne(testContext(t), mongo.IndexModel{Keys: test.keys, Options: test.index}); err != nil {
						t.Fatal(err)
					}
				}
				o := idgen.NewOptimistic(coll, "seq")
				if test.scope != nil {
					o = o.Scope(test.scope)
				}
				if !test.reject {
					if n, err := o.Insert(testContext(t), into(coll, "seq", test.scope...)); err != nil || n != 1 {
						t.Errorf("%d, %v", n, err)
					}
					return
				}
				var stored atomic.Int32
				together(20, func(int) {
					_, err := o.Insert(testContext(t), func(context.Context, int64) error { stored.Add(1); return nil })
					if e := reason(t, err, idgen.NoIndex); !strings.Contains(e.Repair, `db.getCollection("numbered").createIndex({"seq": 1`) {
						t.Errorf("the error does not say how to create it: %q", e.Repair)
					}
				})
				if n := stored.Load(); n != 0 {
					t.Errorf("%d documents got a number", n)
				}
			})
		}
	})
}

// Duplicate keys of other indexes are final, however the server words them.
func TestOptimisticOtherIndex(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, test := range []struct {
			name   string
			answer faultwire.WriteError
			says   string
		}{
			{"with keyPattern", faultwire.WriteError{Code: 11000, Message: "E11000 duplicate key error",
				KeyPattern: bson.D{{Key: "email", Value: 1}}}, "email"},
			{"index in the text", faultwire.WriteError{Code: 11000,
				Message: `E11000 duplicate key error collection: shop.users index: email_1 dup key: { : "a@b" }`}, "email_1"},
			{"nothing but the code", faultwire.WriteError{Code: 11000, Message: "E11000 duplicate key error"}, "unknown index"},
		} {
			for _, clash := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, the number's too: %t", test.name, clash), func(t *testing.T) {
					wire := faultwire.ForTest(t)
					coll := database(t, s, options.Client().SetDialer(wire)).Collection("users")
					uniqueOn(t, coll, bson.D{{Key: "seq", Value: 1}})
					insert(t, coll, bson.D{{Key: "seq", Value: int64(5)}})
					o := idgen.NewOptimistic(coll, "seq")
					var tried []int64
					n, err := o.Insert(testContext(t), func(ctx context.Context, n int64) error {
						tried = append(tried, n)
						if clash && len(tried) == 1 {
							insert(t, coll, bson.D{{Key: "seq", Value: n}}) // somebody else is faster
						} else {
							wire.On(faultwire.Insert).Once().Reply(test.answer)
						}
						return into(coll, "seq")(ctx, n)
					})
					want := []int64{6}
					if clash {
						want = []int64{6, 7}
					}
					if err == nil || !slices.Equal(tried, want) {
						t.Errorf("got %d, %v after trying %d", n, err, tried)
					} else if !strings.Contains(err.Error(), test.says) && test.says != "email" {
						t.Errorf("the error does not say %q: %v", test.says, err)
					}
					if !mongo.IsDuplicateKeyError(errors.Unwrap(err)) && !mongo.IsDuplicateKeyError(err) {
						t.Errorf("the driver's error is lost: %v", err)
					}
					if got := len(stored(t, coll)); got != len(want) {
						t.Errorf("%d documents", got)
					}
				})
			}
		}
	})
}

// What the server says of the index decides; where it says nothing, a look at the collection does.
func TestOptimisticClashed(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		coll := database(t, s, options.Client().SetDialer(wire)).Collection("users")
		if _, err := coll.Indexes().CreateOne(testContext(t), mongo.IndexModel{Keys: bson.D{{Key: "seq", Value: 1}},
			Options: options.Index().SetUnique(true).SetName("numbers")}); err != nil {
			t.Fatal(err)
		}
		insert(t, coll, bson.D{{Key: "seq", Value: int32(5)}})
		o := idgen.NewOptimistic(coll, "seq")
		take(t, o, 1)
		named := func(index string) mongo.WriteError {
			return mongo.WriteError{Code: 11000, Message: "E11000 duplicate key error collection: a.b index: " + index + " dup key: { : 5 }"}
		}
		keys := func(fields ...string) mongo.WriteError {
			pattern := bson.D{}
			for _, f := range fields {
				pattern = append(pattern, bson.E{Key: f, Value: 1})
			}
			raw, err := bson.Marshal(bson.D{{Key: "keyPattern", Value: pattern}})
			if err != nil {
				t.Fatal(err)
			}
			return mongo.WriteError{Code: 11000, Message: "E11000 duplicate key error", Raw: raw}
		}
		for _, test := range []struct {
			name    string
			refused mongo.WriteError
			number  any
			want    bool
			finds   int
		}{
			{"named", named("numbers"), int64(6), true, 0},
			{"named otherwise", named("email_1"), int64(5), false, 0},
			{"keys", keys("seq"), int64(6), true, 0},
			{"other keys", keys("email"), int64(5), false, 0},
			{"more keys", keys("seq", "email"), int64(5), false, 0},
			{"unknown, taken", mongo.WriteError{Code: 11000}, int64(5), true, 1},
			{"unknown, free", mongo.WriteError{Code: 11000}, int64(6), false, 1},
			{"another error", mongo.WriteError{Code: 121}, int64(5), false, 0},
		} {
			t.Run(test.name, func(t *testing.T) {
				before := wire.Count(faultwire.Find)
				if got := o.Clashed(testContext(t), test.refused, test.number); got != test.want {
					t.Errorf("says %t", got)
				}
				if n := wire.Count(faultwire.Find) - before; n != test.finds {
					t.Errorf("%d reads, want %d", n, test.finds)
				}
			})
		}
		ended, cancel := context.WithCancel(testContext(t))
		cancel()
		if o.Clashed(ended, mongo.WriteError{Code: 11000}, int64(5)) {
			t.Error("says true although it could not look")
		}
	})
}

// Only what clashed gets new numbers, as package batch does it.
func TestOptimisticRenumbersOnlyWhatClashed(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		coll := database(t, s).Collection("users")
		uniqueOn(t, coll, bson.D{{Key: "seq", Value: 1}})
		o := idgen.NewOptimistic(coll, "seq")
		var sent atomic.Int64
		together(4, func(i int) {
			left := 25
			for attempt := 1; left > 0; attempt++ {
				numbers, err := o.Reserve(testContext(t), left)
				if err != nil {
					t.Error(err)
					return
				}
				documents := make([]any, left)
				for j, n := range numbers {
					documents[j] = bson.D{{Key: "seq", Value: n}, {Key: "writer", Value: i}}
				}
				sent.Add(int64(left))
				left = 0
				_, err = coll.InsertMany(testContext(t), documents, options.InsertMany().SetOrdered(false))
				var refused mongo.BulkWriteException
				if errors.As(err, &refused) {
					for _, e := range refused.WriteErrors {
						if !o.Clashed(testContext(t), e.WriteError, numbers[e.Index]) {
							t.Errorf("a refusal that is no clash: %v", e)
							return
						}
						left++
					}
				} else if err != nil {
					t.Error(err)
					return
				}
				if left > 0 {
					if err := o.Again(testContext(t), attempt, left); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		perWriter := map[any]int{}
		var numbers []int64
		for _, d := range stored(t, coll) {
			perWriter[d["writer"]]++
			numbers = append(numbers, d["seq"].(int64))
		}
		onceEach(t, numbers, 1)
		for i := range int32(4) {
			if perWriter[i] != 25 {
				t.Errorf("writer %d stored %d documents", i, perWriter[i])
			}
		}
		t.Logf("%d documents sent for 100 stored", sent.Load())
	})
}

// Clashes without end are an error after a bounded number of attempts.
func TestOptimisticGivesUp(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		coll := database(t, s).Collection("users")
		uniqueOn(t, coll, bson.D{{Key: "seq", Value: 1}})
		o := idgen.NewOptimistic(coll, "seq", idgen.OptimisticConfig{Attempts: 5})
		tries := 0
		_, err := o.Insert(testContext(t), func(ctx context.Context, n int64) error {
			tries++
			insert(t, coll, bson.D{{Key: "seq", Value: n}})
			return into(coll, "seq")(ctx, n)
		})
		if e := reason(t, err, idgen.Clashing); !strings.Contains(e.Problem, "5 attempts") || tries != 5 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		ended, cancel := context.WithCancel(testContext(t))
		cancel()
		if err := o.Again(ended, 1, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("waits for an ended context: %v", err)
		}
	})
}

// The maximum comes from the primary, whatever the handle says; a stale one costs attempts, not a duplicate.
func TestOptimisticStaleMaximum(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		coll := database(t, s, options.Client().SetDialer(wire)).Collection("users", options.Collection().
			SetReadPreference(readpref.SecondaryPreferred()).
			SetReadConcern(readconcern.Available()))
		uniqueOn(t, coll, bson.D{{Key: "seq", Value: 1}})
		for n := range int64(9) {
			insert(t, coll, bson.D{{Key: "seq", Value: n + 1}})
		}
		stale := wire.On(faultwire.Find).First(3).RewriteRequest(func(command bson.Raw) bson.Raw {
			var d bson.D
			if err := bson.Unmarshal(command, &d); err != nil {
				t.Error(err)
			}
			for i := range d {
				if d[i].Key == "filter" {
					d[i].Value = bson.D{{Key: "seq", Value: bson.D{{Key: "$lte", Value: 5}}}}
				}
			}
			out, err := bson.Marshal(d)
			if err != nil {
				t.Error(err)
			}
			return out
		})
		n, err := idgen.NewOptimistic(coll, "seq").Insert(testContext(t), into(coll, "seq"))
		if err != nil || n != 10 {
			t.Errorf("%d, %v; want 10", n, err)
		}
		if stale.Fired() == 0 {
			t.Error("no read was stale")
		}
		for _, e := range wire.Events(faultwire.Find) {
			if mode, ok := e.ReadPreference().Lookup("mode").StringValueOK(); ok && mode != "primary" && mode != "primaryPreferred" {
				t.Errorf("%s with read preference %s", e, mode)
			}
			if level := e.ReadConcern().Lookup("level").String(); level != `"local"` {
				t.Errorf("%s with read concern %s", e, level)
			}
		}
	})
}

func TestOptimisticSettings(t *testing.T) {
	coll := unreachable(t)
	for _, test := range []struct {
		name string
		o    *idgen.Optimistic
		says string
	}{
		{"no collection", idgen.NewOptimistic(nil, "n"), "nil"},
		{"no field", idgen.NewOptimistic(coll, ""), "not the name of a field"},
		{"negative start", idgen.NewOptimistic(coll, "n", idgen.OptimisticConfig{Start: -1}), "Start is -1"},
		{"two configs", idgen.NewOptimistic(coll, "n", idgen.OptimisticConfig{}, idgen.OptimisticConfig{}), "more than one config"},
		{"empty scope", idgen.NewOptimistic(coll, "n").Scope(nil), "no fields"},
		{"scope of a scope", idgen.NewOptimistic(coll, "n").Scope(bson.D{{Key: "a", Value: 1}}).Scope(bson.D{{Key: "b", Value: 1}}), "scope within a scope"},
		{"scope of an _id", idgen.NewOptimistic(coll, "_id").Scope(bson.D{{Key: "a", Value: 1}}), "_id is unique"},
		{"scope on the field", idgen.NewOptimistic(coll, "n").Scope(bson.D{{Key: "n", Value: 1}}), "used twice"},
		{"operator in the scope", idgen.NewOptimistic(coll, "n").Scope(bson.D{{Key: "a", Value: bson.D{{Key: "$ne", Value: 1}}}}), "operator"},
		{"operator as scope", idgen.NewOptimistic(coll, "n").Scope(bson.D{{Key: "$or", Value: 1}}), "not the name of a field"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.o.Reserve(context.Background(), 1)
			if e := reason(t, err, idgen.Misused); !strings.Contains(e.Error(), test.says) {
				t.Errorf("the error does not say %q: %v", test.says, err)
			}
			if test.o.Clashed(context.Background(), mongo.WriteError{Code: 11000}, int64(1)) {
				t.Error("has clashed")
			}
		})
	}
}
