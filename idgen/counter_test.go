package idgen_test

import (
	"context"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/servertest"
)

func TestCounterFirstNumbers(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		db := database(t, s)
		for _, test := range []struct {
			name   string
			config idgen.CounterConfig
			want   []int64
		}{
			{"zero config", idgen.CounterConfig{}, []int64{1, 2, 3}},
			{"start", idgen.CounterConfig{Start: 1000}, []int64{1000, 1001, 1002}},
			{"step", idgen.CounterConfig{Step: 5}, []int64{1, 6, 11}},
			{"start and step", idgen.CounterConfig{Start: 5, Step: 5}, []int64{5, 10, 15}},
			{"from zero", idgen.CounterConfig{FromZero: true}, []int64{0, 1, 2}},
			{"from zero by two", idgen.CounterConfig{FromZero: true, Step: 2}, []int64{0, 2, 4}},
			{"the last ones", idgen.CounterConfig{Start: math.MaxInt64 - 2}, []int64{math.MaxInt64 - 2, math.MaxInt64 - 1, math.MaxInt64}},
			{"up to max", idgen.CounterConfig{Max: 3}, []int64{1, 2, 3}},
		} {
			t.Run(test.name, func(t *testing.T) {
				// In one call and in three.
				counter := idgen.NewCounter(db.Collection("counters"), test.name+" at once", test.config)
				if got := take(t, counter, 3); !slices.Equal(got, test.want) {
					t.Errorf("at once: %d, want %d", got, test.want)
				}
				counter = idgen.NewCounter(db.Collection("counters"), test.name+" in turn", test.config)
				for _, want := range test.want {
					if got, err := counter.Next(testContext(t)); err != nil || got != want {
						t.Fatalf("in turn: %d, %v; want %d", got, err, want)
					}
				}
			})
		}
	})
}

// Whatever a counter holds when it is adopted.
func TestCounterFoundState(t *testing.T) {
	const whole53 = 1 << 53
	decimal, err := bson.ParseDecimal128("41")
	if err != nil {
		t.Fatal(err)
	}
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		counters := database(t, s).Collection("counters")
		for _, test := range []struct {
			name  string
			value any
			n     int
			want  int64        // first number given out
			fails idgen.Reason // if not zero
			found string       // in the error
		}{
			{name: "int32", value: int32(7), n: 1, want: 8},
			{name: "int32 at its end", value: int32(math.MaxInt32), n: 1, want: math.MaxInt32 + 1},
			{name: "int32 near its end, a block", value: int32(math.MaxInt32 - 1), n: 5, want: math.MaxInt32},
			{name: "int64", value: int64(41), n: 3, want: 42},
			{name: "negative", value: int64(-3), n: 5, want: -2},
			{name: "whole double", value: 41.0, n: 3, want: 42},
			{name: "last exact double", value: float64(whole53 - 1), n: 3, want: whole53},
			{name: "int64 at 2^53", value: int64(whole53), n: 2, want: whole53 + 1},
			{name: "2^53", value: float64(whole53), n: 1, fails: idgen.Unreadable, found: "too large to be exact"},
			{name: "fraction", value: 41.5, n: 1, fails: idgen.Unreadable, found: "41.5"},
			{name: "NaN", value: math.NaN(), n: 1, fails: idgen.Unreadable, found: "NaN"},
			{name: "infinity", value: math.Inf(1), n: 1, fails: idgen.Unreadable, found: "Inf"},
			{name: "text", value: "8120", n: 1, fails: idgen.Unreadable, found: "text"},
			{name: "null", value: nil, n: 1, fails: idgen.Unreadable, found: "null"},
			{name: "document", value: bson.D{{Key: "n", Value: 1}}, n: 1, fails: idgen.Unreadable, found: "a document"},
			{name: "array", value: bson.A{int32(5)}, n: 1, fails: idgen.Unreadable, found: "an array"},
			{name: "decimal", value: decimal, n: 1, fails: idgen.Unreadable, found: "decimal"},
			{name: "MaxInt64-2, five", value: int64(math.MaxInt64 - 2), n: 5, fails: idgen.Exhausted, found: "9223372036854775805"},
			{name: "MaxInt64-2, two", value: int64(math.MaxInt64 - 2), n: 2, want: math.MaxInt64 - 1},
			{name: "MaxInt64", value: int64(math.MaxInt64), n: 1, fails: idgen.Exhausted, found: "9223372036854775807"},
		} {
			t.Run(test.name, func(t *testing.T) {
				if s.Kind == servertest.KindEmbedded && slices.Contains([]string{"decimal", "NaN", "infinity"}, test.name) {
					t.Skip("FerretDB 1.24 cannot store one")
				}
				insert(t, counters, bson.D{{Key: "_id", Value: test.name}, {Key: "seq", Value: test.value}, {Key: "note", Value: "kept"}})
				before := one(t, counters, test.name)
				counter := idgen.NewCounter(counters, test.name)
				block, err := counter.Take(testContext(t), test.n)
				if test.fails == 0 {
					if err != nil || block.First != test.want || block.Count != test.n {
						t.Fatalf("got %+v, %v; want %d numbers from %d", block, err, test.n, test.want)
					}
					var after struct {
						Seq  int64
						Note string
					}
					if err := bson.Unmarshal(one(t, counters, test.name), &after); err != nil {
						t.Fatal(err)
					}
					if last := test.want + int64(test.n) - 1; after.Seq != last || after.Note != "kept" {
						t.Errorf("stored afterwards: %+v, want seq %d", after, last)
					}
					return
				}
				e := reason(t, err, test.fails)
				if !strings.Contains(e.Problem, test.found) {
					t.Errorf("the error does not say %q: %v", test.found, err)
				}
				if strings.Contains(e.Error(), "8120") {
					t.Errorf("the error repeats the stored text: %v", err)
				}
				if test.fails == idgen.Unreadable && !strings.Contains(e.Repair, `.updateOne({"_id": "`+test.name+`"}, {"$set": {"seq": NumberLong(`) {
					t.Errorf("the error does not say how to repair it: %q", e.Repair)
				}
				if after := one(t, counters, test.name); !slices.Equal(after, before) {
					t.Errorf("the counter was changed from %v to %v", before, after)
				}
			})
		}
		t.Run("something else on the way", func(t *testing.T) {
			for _, odd := range []any{nil, "text", int32(5), bson.A{bson.D{{Key: "seq", Value: 5}}}} {
				id := bson.NewObjectID()
				insert(t, counters, bson.D{{Key: "_id", Value: id}, {Key: "stats", Value: odd}})
				for _, config := range []idgen.CounterConfig{{}, {Start: 7}, {MustExist: true}} {
					config.Fields.Value = "stats.seq"
					_, err := idgen.NewCounter(counters, id, config).Next(testContext(t))
					reason(t, err, idgen.Unreadable)
				}
			}
		})
		t.Run("missing field", func(t *testing.T) {
			for _, config := range []idgen.CounterConfig{{}, {Start: 1000}, {Step: 5}, {Start: 1000, MustExist: true}} {
				id := bson.NewObjectID()
				insert(t, counters, bson.D{{Key: "_id", Value: id}, {Key: "note", Value: "kept"}})
				want := config.Start
				if want == 0 {
					want = 1
				}
				if got := take(t, idgen.NewCounter(counters, id, config), 2); got[0] != want {
					t.Errorf("%+v starts with %d", config, got[0])
				}
				if note := one(t, counters, id).Lookup("note").StringValue(); note != "kept" {
					t.Errorf("the document was replaced: note %q", note)
				}
			}
		})
	})
}

func one(t testing.TB, coll *mongo.Collection, id any) bson.Raw {
	t.Helper()
	document, err := coll.FindOne(testContext(t), bson.D{{Key: "_id", Value: id}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// Counters collections of the usual shapes, as other programs left them.
func TestCounterAdoptsShapes(t *testing.T) {
	tenant, other := bson.NewObjectID(), bson.NewObjectID()
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, test := range []struct {
			name     string
			unique   bson.D
			document bson.D
			counter  func(*mongo.Collection) *idgen.Counter
			want     int64
		}{
			{
				name:     "named",
				document: bson.D{{Key: "_id", Value: "userid"}, {Key: "seq", Value: int32(41)}},
				counter:  func(c *mongo.Collection) *idgen.Counter { return idgen.NewCounter(c, "userid") },
				want:     42,
			},
			{
				name:     "made beforehand",
				document: bson.D{{Key: "_id", Value: "productId"}, {Key: "sequence_value", Value: int32(0)}},
				counter: func(c *mongo.Collection) *idgen.Counter {
					return idgen.NewCounter(c, "productId", idgen.CounterConfig{MustExist: true, Fields: idgen.Fields{Value: "sequence_value"}})
				},
				want: 1,
			},
			{
				name:     "key in a field of its own",
				unique:   bson.D{{Key: "prefix", Value: 1}},
				document: bson.D{{Key: "prefix", Value: int32(260131)}, {Key: "count", Value: int32(17)}},
				counter: func(c *mongo.Collection) *idgen.Counter {
					return idgen.NewCounter(c, 260131, idgen.CounterConfig{Fields: idgen.Fields{Key: "prefix", Value: "count"}})
				},
				want: 18,
			},
			{
				name:     "key and tenant in fields of their own",
				unique:   bson.D{{Key: "tenant", Value: 1}, {Key: "model", Value: -1}},
				document: bson.D{{Key: "model", Value: "invoice"}, {Key: "tenant", Value: tenant}, {Key: "seq", Value: int64(5)}},
				counter: func(c *mongo.Collection) *idgen.Counter {
					return idgen.NewCounter(c, "invoice", idgen.CounterConfig{Fields: idgen.Fields{Key: "model", Scope: "tenant"}}).Scope(tenant)
				},
				want: 6,
			},
			{
				name:     "inside the parent document",
				document: bson.D{{Key: "_id", Value: tenant}, {Key: "counters", Value: bson.D{{Key: "invoice", Value: int32(8)}}}},
				counter: func(c *mongo.Collection) *idgen.Counter {
					return idgen.NewCounter(c, nil, idgen.CounterConfig{MustExist: true, Fields: idgen.Fields{Value: "counters.invoice"}}).Scope(tenant)
				},
				want: 9,
			},
			{
				name:     "embedded _id",
				document: bson.D{{Key: "_id", Value: bson.D{{Key: "model", Value: "m"}, {Key: "tenant", Value: tenant}}}, {Key: "seq", Value: 3.0}},
				counter: func(c *mongo.Collection) *idgen.Counter {
					return idgen.NewCounter(c, bson.D{{Key: "model", Value: "m"}, {Key: "tenant", Value: tenant}})
				},
				want: 4,
			},
		} {
			t.Run(test.name, func(t *testing.T) {
				counters := database(t, s).Collection("counters")
				if test.unique != nil {
					uniqueOn(t, counters, test.unique)
				}
				bystander := bson.D{{Key: "_id", Value: other}, {Key: "prefix", Value: 1}, {Key: "tenant", Value: other}, {Key: "model", Value: "invoice"}}
				insert(t, counters, test.document, bystander)
				counter := test.counter(counters)
				if got := take(t, counter, 1)[0]; got != test.want {
					t.Errorf("number %d, want %d", got, test.want)
				}
				if got := take(t, counter, 2); !slices.Equal(got, []int64{test.want + 1, test.want + 2}) {
					t.Errorf("then %d", got)
				}
				if n := len(stored(t, counters)); n != 2 {
					t.Errorf("%d documents, want the two that were there", n)
				}
			})
		}
	})
}

func TestCounterScopes(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		db := database(t, s)
		uniqueOn(t, db.Collection("own"), bson.D{{Key: "name", Value: 1}, {Key: "tenant", Value: 1}})
		for _, counter := range []*idgen.Counter{
			idgen.NewCounter(db.Collection("embedded"), "no"),
			idgen.NewCounter(db.Collection("own"), "no", idgen.CounterConfig{Fields: idgen.Fields{Key: "name", Scope: "tenant"}}),
		} {
			scopes := []any{"a", "b", int64(7), bson.NewObjectID(), true, bson.D{{Key: "year", Value: 2026}, {Key: "tenant", Value: "a"}}, 0.5, bson.DateTime(0)}
			for round := int64(1); round <= 2; round++ {
				for _, scope := range scopes {
					if got := take(t, counter.Scope(scope), 1)[0]; got != round {
						t.Errorf("scope %v: number %d in round %d", scope, got, round)
					}
				}
			}
		}
		if n := len(stored(t, db.Collection("embedded"))); n != 8 {
			t.Errorf("%d counters, want 8", n)
		}
		// The scopes leave the counter of the key alone.
		if got := take(t, idgen.NewCounter(db.Collection("embedded"), "no"), 1)[0]; got != 1 {
			t.Errorf("the counter without a scope gives %d", got)
		}
	})
}

func TestCounterMustExist(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		counters := database(t, s).Collection("counters")
		counter := idgen.NewCounter(counters, "productId", idgen.CounterConfig{MustExist: true, Start: 100, Fields: idgen.Fields{Value: "sequence_value"}})
		_, err := counter.Next(testContext(t))
		e := reason(t, err, idgen.Missing)
		if want := `db.getCollection("counters").insertOne({"_id": "productId", "sequence_value": NumberLong("99")})`; !strings.Contains(e.Repair, want) {
			t.Errorf("the error does not say how to create it: %q", e.Repair)
		}
		reason(t, counter.RaiseTo(testContext(t), 5), idgen.Missing)
		if n := len(stored(t, counters)); n != 0 {
			t.Fatalf("%d documents were created", n)
		}
		insert(t, counters, bson.D{{Key: "_id", Value: "productId"}, {Key: "sequence_value", Value: int64(99)}})
		if got := take(t, counter, 1)[0]; got != 100 {
			t.Errorf("number %d, want 100", got)
		}
	})
}

func TestCounterNeedsTheIndexOfItsKey(t *testing.T) {
	fields := idgen.CounterConfig{Fields: idgen.Fields{Key: "prefix", Value: "count"}}
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		db := database(t, s)
		for _, test := range []struct {
			name string
			keys bson.D // not unique, or on other fields
			uniq bool
		}{
			{"none", nil, false},
			{"not unique", bson.D{{Key: "prefix", Value: 1}}, false},
			{"on more", bson.D{{Key: "prefix", Value: 1}, {Key: "count", Value: 1}}, true},
			{"on another", bson.D{{Key: "count", Value: 1}}, true},
		} {
			t.Run(test.name, func(t *testing.T) {
				coll := db.Collection(test.name)
				if test.keys != nil {
					if _, err := coll.Indexes().CreateOne(testContext(t), mongo.IndexModel{Keys: test.keys, Options: options.Index().SetUnique(test.uniq)}); err != nil {
						t.Fatal(err)
					}
				}
				counter := idgen.NewCounter(coll, 260131, fields)
				_, err := counter.Next(testContext(t))
				e := reason(t, err, idgen.NoIndex)
				if !strings.Contains(e.Repair, `createIndex({"prefix": 1}, {unique: true})`) {
					t.Errorf("the error does not say how to create it: %q", e.Repair)
				}
				if n := len(stored(t, coll)); n != 0 {
					t.Errorf("%d documents were created all the same", n)
				}
				if test.name != "not unique" {
					uniqueOn(t, coll, bson.D{{Key: "prefix", Value: 1}})
					if got := take(t, counter, 1)[0]; got != 1 {
						t.Errorf("with the index: %d", got)
					}
				}
			})
		}
	})
}

// Fifty callers use a counter first, all at once.
func TestCounterFirstUseAtOnce(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, test := range []struct {
			name   string
			config idgen.CounterConfig
			unique bson.D
			first  int64
		}{
			{"upserted", idgen.CounterConfig{}, nil, 1},
			{"begun", idgen.CounterConfig{Start: 1000}, nil, 1000},
			{"own key", idgen.CounterConfig{Fields: idgen.Fields{Key: "prefix"}}, bson.D{{Key: "prefix", Value: 1}}, 1},
		} {
			t.Run(test.name, func(t *testing.T) {
				coll := database(t, s).Collection("counters") // does not exist yet
				if test.unique != nil {
					uniqueOn(t, coll, test.unique)
				}
				counter := idgen.NewCounter(coll, "new", test.config)
				var mu sync.Mutex
				var numbers []int64
				together(50, func(int) {
					n, err := counter.Next(testContext(t))
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					numbers = append(numbers, n)
				})
				onceEach(t, numbers, test.first)
				if n := len(stored(t, coll)); n != 1 {
					t.Errorf("%d counter documents", n)
				}
			})
		}
	})
}

// Callers that take blocks of different sizes at once get disjoint runs of consecutive numbers.
func TestCounterBlocksDoNotInterleave(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		counter := idgen.NewCounter(database(t, s).Collection("counters"), "orderNo")
		var mu sync.Mutex
		var numbers []int64
		together(16, func(i int) {
			for range 5 {
				block, err := counter.Take(testContext(t), 1+i*7)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				numbers = slices.AppendSeq(numbers, block.All())
				mu.Unlock()
			}
		})
		onceEach(t, numbers, 1)
	})
}

func TestCounterSettings(t *testing.T) {
	coll := unreachable(t)
	tooLarge := uint64(math.MaxUint64 - 5)
	for _, test := range []struct {
		name    string
		counter *idgen.Counter
		says    string
	}{
		{"negative start", idgen.NewCounter(coll, "a", idgen.CounterConfig{Start: -1}), "Start is -1"},
		{"start from a large uint64", idgen.NewCounter(coll, "a", idgen.CounterConfig{Start: int64(tooLarge)}), "uint64"},
		{"negative step", idgen.NewCounter(coll, "a", idgen.CounterConfig{Step: -1}), "Step is -1"},
		{"negative max", idgen.NewCounter(coll, "a", idgen.CounterConfig{Max: -1}), "Max is -1"},
		{"start above max", idgen.NewCounter(coll, "a", idgen.CounterConfig{Start: 5, Max: 4}), "above Max"},
		{"two starts", idgen.NewCounter(coll, "a", idgen.CounterConfig{Start: 5, FromZero: true}), "FromZero"},
		{"two configs", idgen.NewCounter(coll, "a", idgen.CounterConfig{}, idgen.CounterConfig{}), "more than one config"},
		{"no collection", idgen.NewCounter(nil, "a"), "nil"},
		{"no key", idgen.NewCounter(coll, nil), "neither a key nor a scope"},
		{"empty key", idgen.NewCounter(coll, ""), "the key is empty"},
		{"operator as key", idgen.NewCounter(coll, bson.D{{Key: "$gt", Value: ""}}), "operator"},
		{"regex as key", idgen.NewCounter(coll, bson.Regex{Pattern: "."}), "regex"},
		{"array as key", idgen.NewCounter(coll, bson.A{1}), "array"},
		{"key without a BSON form", idgen.NewCounter(coll, make(chan int)), "no BSON form"},
		{"key too large for BSON", idgen.NewCounter(coll, uint64(math.MaxUint64)), "no BSON form"},
		{"nil scope", idgen.NewCounter(coll, "a").Scope(nil), "the scope is null"},
		{"scope of a scope", idgen.NewCounter(coll, "a").Scope(1).Scope(2), "scope within a scope"},
		{"scope of what is wrong", idgen.NewCounter(coll, "").Scope(2), "the key is empty"},
		{"scope without a field", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Key: "k"}}).Scope(1), "the scope has no field"},
		{"key without a field", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Scope: "t"}}).Scope(1), "the key has no field"},
		{"field without a scope", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Key: "k", Scope: "t"}}), "there is no scope"},
		{"field of a period", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Key: "k", Period: "p"}}), "there is no period"},
		{"one field twice", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Key: "k", Value: "k.n"}}), "not apart"},
		{"one field for two", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Key: "k", Value: "k"}}), "not apart"},
		{"value in the _id", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Value: "_id"}}), "_id"},
		{"_id and more", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Key: "_id", Scope: "t"}}).Scope(1), "unique by itself"},
		{"operator as field", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Value: "$seq"}}), "not the name of a field"},
		{"field with an empty part", idgen.NewCounter(coll, "a", idgen.CounterConfig{Fields: idgen.Fields{Value: "a..b"}}), "not the name of a field"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The server cannot be reached: whatever was sent would end with the context.
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			_, err := test.counter.Next(ctx)
			if e := reason(t, err, idgen.Misused); !strings.Contains(e.Error(), test.says) {
				t.Errorf("the error does not say %q: %v", test.says, err)
			}
			reason(t, test.counter.RaiseTo(ctx, 1), idgen.Misused)
			reason(t, test.counter.RaiseToMax(ctx, coll, "n", nil), idgen.Misused)
		})
	}
	for _, n := range []int{0, -1, math.MinInt} {
		_, err := idgen.NewCounter(coll, "a").Reserve(context.Background(), n)
		reason(t, err, idgen.Misused)
	}
	_, err := idgen.NewCounter(coll, "a", idgen.CounterConfig{Step: math.MaxInt64}).Take(context.Background(), 2)
	reason(t, err, idgen.Exhausted)

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = idgen.NewCounter(coll, "a").Next(ended)
	if e := reason(t, err, idgen.Unavailable); e.Err != context.Canceled {
		t.Errorf("an ended context gives %v", err)
	}
}

// A handle made for other purposes, and a client too, do not weaken a counter.
func TestCounterIgnoresTheHandle(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		registry := bson.NewRegistry()
		registry.RegisterTypeEncoder(reflect.TypeFor[int64](), bson.ValueEncoderFunc(
			func(_ bson.EncodeContext, w bson.ValueWriter, v reflect.Value) error {
				return w.WriteString(strconv.FormatInt(v.Int(), 10))
			}))
		small := &options.BSONOptions{IntMinSize: true, ObjectIDAsHexString: true}
		db := database(t, s, options.Client().
			SetWriteConcern(writeconcern.Unacknowledged()).
			SetReadPreference(readpref.SecondaryPreferred()))
		for name, handle := range map[string]*options.CollectionOptionsBuilder{
			"registry":     options.Collection().SetRegistry(registry),
			"BSON options": options.Collection().SetBSONOptions(small),
			"concerns": options.Collection().SetReadPreference(readpref.SecondaryPreferred()).
				SetReadConcern(readconcern.Available()).SetWriteConcern(writeconcern.Unacknowledged()),
		} {
			id := bson.NewObjectID()
			counter := idgen.NewCounter(db.Collection(name, handle), id, idgen.CounterConfig{Start: 10})
			for want := int64(10); want < 13; want++ {
				if got := take(t, counter, 1)[0]; got != want {
					t.Fatalf("%s: number %d, want %d", name, got, want)
				}
			}
			if v := one(t, db.Collection(name), id).Lookup("seq"); v.Type != bson.TypeInt64 || v.Int64() != 12 {
				t.Errorf("%s: stored %s", name, v)
			}
		}
	})
}

// A transaction that aborts must not take numbers back.
func TestCounterStaysOutOfSessions(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		client := s.Client(t)
		counter := idgen.NewCounter(s.Database(t, client).Collection("counters"), "orderNo")
		ctx := testContext(t)
		session, err := client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(ctx)
		if err := session.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		inside := mongo.NewSessionContext(ctx, session)
		if n, err := counter.Next(inside); err != nil || n != 1 {
			t.Fatalf("inside: %d, %v", n, err)
		}
		if err := session.AbortTransaction(inside); err != nil {
			t.Fatal(err)
		}
		if n, err := counter.Next(ctx); err != nil || n != 2 {
			t.Errorf("after the abort: %d, %v; want 2", n, err)
		}
	})
}

func TestCounterRaise(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		db := database(t, s)
		counters := db.Collection("counters")
		for _, test := range []struct {
			name   string
			config idgen.CounterConfig
			stored any // nil: no counter yet
			to     int64
			next   int64
		}{
			{"behind", idgen.CounterConfig{}, int64(4958), 5200, 5201},
			{"behind, int32", idgen.CounterConfig{}, int32(4958), 5200, 5201},
			{"behind, double", idgen.CounterConfig{}, 4958.0, 5200, 5201},
			{"ahead", idgen.CounterConfig{}, int64(6000), 5200, 6001},
			{"ahead, double", idgen.CounterConfig{}, 6000.0, 5200, 6001},
			{"equal", idgen.CounterConfig{}, int64(5200), 5200, 5201},
			{"not there", idgen.CounterConfig{}, nil, 5200, 5201},
			{"not there, below the start", idgen.CounterConfig{Start: 1000}, nil, 5, 1000},
			{"step", idgen.CounterConfig{Step: 5}, int64(1), 12, 21},
			{"step, on a number of its own", idgen.CounterConfig{Step: 5}, int64(1), 16, 21},
			{"mended from null", idgen.CounterConfig{}, bson.Null{}, 7, 8},
			{"to the last but one", idgen.CounterConfig{}, nil, math.MaxInt64 - 1, math.MaxInt64},
		} {
			t.Run(test.name, func(t *testing.T) {
				if test.stored != nil {
					insert(t, counters, bson.D{{Key: "_id", Value: test.name}, {Key: "seq", Value: test.stored}})
				}
				counter := idgen.NewCounter(counters, test.name, test.config)
				if err := counter.RaiseTo(testContext(t), test.to); err != nil {
					t.Fatal(err)
				}
				if got := take(t, counter, 1)[0]; got != test.next {
					t.Errorf("next is %d, want %d", got, test.next)
				}
			})
		}
		for _, config := range []idgen.CounterConfig{{Max: 99}, {Start: 5, Step: math.MaxInt64 - 50}} {
			reason(t, idgen.NewCounter(counters, "limited", config).RaiseTo(testContext(t), math.MaxInt64-1), idgen.Exhausted)
		}
		insert(t, counters, bson.D{{Key: "_id", Value: "text"}, {Key: "seq", Value: "8120"}})
		reason(t, idgen.NewCounter(counters, "text").RaiseTo(testContext(t), 5), idgen.Unreadable)

		numbered := db.Collection("numbered")
		for tenant, last := range map[string]int64{"a": 5200, "b": 17} {
			insert(t, numbered, bson.D{{Key: "tenant", Value: tenant}, {Key: "n", Value: bson.D{{Key: "o", Value: last}}}},
				bson.D{{Key: "tenant", Value: tenant}, {Key: "n", Value: bson.D{{Key: "o", Value: int32(3)}}}},
				bson.D{{Key: "tenant", Value: tenant}, {Key: "n", Value: nil}}, bson.D{{Key: "tenant", Value: tenant}})
		}
		all := idgen.NewCounter(counters, "all")
		if err := all.RaiseToMax(testContext(t), numbered, "n.o", nil); err != nil {
			t.Fatal(err)
		}
		if got := take(t, all, 300); got[0] != 5201 {
			t.Errorf("after 5200 comes %d", got[0])
		}
		some := idgen.NewCounter(counters, "by tenant").Scope("b")
		if err := some.RaiseToMax(testContext(t), numbered, "n.o", bson.D{{Key: "tenant", Value: "b"}}); err != nil {
			t.Fatal(err)
		}
		if got := take(t, some, 1)[0]; got != 18 {
			t.Errorf("after 17 comes %d", got)
		}
		none := idgen.NewCounter(counters, "none")
		if err := none.RaiseToMax(testContext(t), db.Collection("empty"), "n", nil); err != nil {
			t.Fatal(err)
		}
		if got := take(t, none, 1)[0]; got != 1 {
			t.Errorf("after nothing comes %d", got)
		}
		for _, odd := range []any{"9999", 10.5, bson.D{}, bson.A{int64(3)}} {
			oddly := db.Collection("odd")
			insert(t, oddly, bson.D{{Key: "n", Value: odd}}, bson.D{{Key: "n", Value: int64(3)}})
			reason(t, none.RaiseToMax(testContext(t), oddly, "n", nil), idgen.Unreadable)
			if err := oddly.Drop(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
