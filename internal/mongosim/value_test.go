package mongosim

import (
	"math"
	"math/big"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"
)

func value(t interface{ Fatal(...any) }, v any) bsoncore.Value {
	kind, data, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	return bsoncore.Value{Type: bsoncore.Type(kind), Data: data}
}

// number is a numeric value and what it is exactly.
type number struct {
	v     any
	exact *big.Rat
}

func numbers() *rapid.Generator[number] {
	whole := rapid.OneOf(rapid.Int64Range(-3, 3), rapid.Int64(), rapid.SampledFrom([]int64{
		math.MinInt64, math.MaxInt64, 1 << 53, 1<<53 + 1, 100, 1000, -100, math.MaxInt32, math.MinInt32}))
	return rapid.Custom(func(t *rapid.T) number {
		switch rapid.IntRange(0, 3).Draw(t, "type") {
		case 0:
			n := rapid.Int32().Draw(t, "int32")
			return number{n, big.NewRat(int64(n), 1)}
		case 1:
			n := whole.Draw(t, "int64")
			return number{n, big.NewRat(n, 1)}
		case 2:
			f := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 0.1, -0.1, 0.5, 1e300, 5e-324,
				math.MaxFloat64, 1 << 53, 1<<53 + 2, 1 << 62, 1 << 63, -1 << 63, 123.456})).Draw(t, "double")
			if math.IsInf(f, 0) || math.IsNaN(f) {
				f = 0
			}
			return number{f, new(big.Rat).SetFloat64(f)}
		default:
			n := big.NewInt(whole.Draw(t, "digits"))
			e := rapid.IntRange(-40, 40).Draw(t, "exponent")
			d, ok := bson.ParseDecimal128FromBigInt(new(big.Int).Set(n), e)
			if !ok {
				t.Fatal("not a decimal", n, e)
			}
			r := new(big.Rat).SetInt(n)
			scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(e, -e))), nil))
			if e >= 0 {
				return number{d, r.Mul(r, scale)}
			}
			return number{d, r.Quo(r, scale)}
		}
	})
}

// TestNumbers compares numbers of all types with exact arithmetic.
func TestNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := numbers().Draw(t, "a"), numbers().Draw(t, "b")
		if rapid.Bool().Draw(t, "related") {
			// The same number in another type, or the next double, is where comparisons go wrong.
			f, _ := a.exact.Float64()
			b = number{f, new(big.Rat).SetFloat64(f)}
		}
		if got, want := (collation{}).compare(value(t, a.v), value(t, b.v)), a.exact.Cmp(b.exact); got != want {
			t.Fatalf("%T %v and %T %v compare as %d, want %d", a.v, a.v, b.v, b.v, got, want)
		}
	})
}

// TestOrder lists values in MongoDB's order; values in one row are equal.
func TestOrder(t *testing.T) {
	nan, err := bson.ParseDecimal128("NaN")
	if err != nil {
		t.Fatal(err)
	}
	tenth, err := bson.ParseDecimal128("0.1")
	if err != nil {
		t.Fatal(err)
	}
	two, err := bson.ParseDecimal128("2.00")
	if err != nil {
		t.Fatal(err)
	}
	rows := [][]any{
		{bson.MinKey{}},
		{bson.Undefined{}},
		{bson.Null{}},
		{math.NaN(), nan},
		{math.Inf(-1)},
		{int64(math.MinInt64)},
		{-1, int64(-1), -1.0},
		{0, math.Copysign(0, -1)},
		{tenth}, {0.1}, // the double is a little more than a tenth
		{1, 1.0},
		{2, int64(2), 2.0, two},
		{int64(1) << 53, float64(1 << 53)},
		{int64(1)<<53 + 1},
		{math.Inf(1)},
		{""}, {"A"}, {"a", bson.Symbol("a")}, {"a\x00"}, {"a\x00b"}, {"aa"}, {"b"},
		{bson.D{}},
		{bson.D{{Key: "a", Value: 2}}}, {bson.D{{Key: "a", Value: 2}, {Key: "x", Value: 1}}},
		{bson.D{{Key: "b", Value: 1}}}, // class and name come before the value
		{bson.D{{Key: "a", Value: "x"}}},
		{bson.A{}}, {bson.A{1}, bson.A{1.0}}, {bson.A{1, 1}}, {bson.A{2}},
		{bson.Binary{Data: []byte{9}}}, {bson.Binary{Subtype: 4, Data: []byte{1}}}, {bson.Binary{Data: []byte{1, 2}}},
		{bson.ObjectID{}}, {bson.ObjectID{1}},
		{false}, {true},
		{bson.DateTime(-5)}, {bson.DateTime(5)},
		{bson.Timestamp{T: 1, I: 9}}, {bson.Timestamp{T: 2}},
		{bson.Regex{Pattern: "a"}},
		{bson.DBPointer{DB: "a"}},
		{bson.JavaScript("a")},
		{bson.CodeWithScope{Code: "a", Scope: bson.D{}}},
		{bson.MaxKey{}},
	}
	for i, row := range rows {
		for _, a := range row {
			for j, other := range rows {
				for _, b := range other {
					want := 0
					if i < j {
						want = -1
					} else if i > j {
						want = 1
					}
					if got := (collation{}).compare(value(t, a), value(t, b)); got != want {
						t.Errorf("%#v and %#v compare as %d, want %d", a, b, got, want)
					}
				}
			}
		}
	}
	if (collation{fold: true}).compare(value(t, "StraSSe"), value(t, "strasse")) != 0 {
		t.Error("a collation of strength 2 tells cases apart")
	}
}
