package batch

import (
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"pgregory.net/rapid"

	"github.com/intact-go/intact/internal/servertest"
)

func identityOf(t interface{ Fatal(...any) }, v any) string {
	if v == nil {
		return string(appendIdentity(nil, bson.TypeNull, nil))
	}
	kind, value, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(appendIdentity(nil, kind, value))
}

func decimal(t *testing.T, s string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The rows are classes: what is in one is equal, as MongoDB's manual says of comparing values of different types; what is
// in two is not.
func TestIdentity(t *testing.T) {
	d := func(s string) bson.Decimal128 { return decimal(t, s) }
	oid := bson.ObjectID{1}
	classes := [][]any{
		{int32(1), int64(1), 1.0, d("1"), d("1.0"), d("10E-1"), d("1.000000000000000000000000000000000")},
		{int32(0), int64(0), 0.0, math.Copysign(0, -1), d("0"), d("-0"), d("0E+10"), d("-0E-6176")},
		{int64(1) << 53, float64(1 << 53), d("9007199254740992")},
		{int64(1)<<53 + 1, d("9007199254740993")},
		{int64(math.MaxInt64), d("9223372036854775807")},
		{float64(1 << 63), d("9223372036854775808")},
		{0.1, d("0.1000000000000000055511151231257827")}, // not quite: 34 digits are fewer than the double has
		{d("0.1"), d("0.10"), d("1E-1")},
		{0.5, d("0.5"), d("5E-1")},
		{math.NaN(), d("NaN"), math.Float64frombits(0x7ff8000000000001)},
		{math.Inf(1), d("Infinity")},
		{math.Inf(-1), d("-Infinity")},
		{1e300, d("1E+300")}, // not quite: 1e300 is no power of ten in binary
		{d("1E+6000"), d("10E+5999")},
		{"a", bson.Symbol("a")},
		{"A"}, {""}, {nil}, {"1"}, {true}, {false},
		{oid}, {oid.Hex()},
		{bson.Binary{Subtype: 0, Data: oid[:]}}, {bson.Binary{Subtype: 4, Data: oid[:]}},
		{bson.DateTime(1)}, {bson.Timestamp{T: 0, I: 1}}, {bson.Timestamp{T: 1}},
		{bson.D{}}, {bson.A{}},
		{bson.D{{Key: "a", Value: int32(1)}}, bson.D{{Key: "a", Value: 1.0}}, bson.D{{Key: "a", Value: d("1.0")}}},
		{bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: int32(1)}}}, {bson.D{{Key: "b", Value: int32(1)}, {Key: "a", Value: int32(1)}}},
		{bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: int64(2)}}}}, bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: 2.0}}}}},
		{bson.D{{Key: "a", Value: bson.A{int64(2)}}}, bson.D{{Key: "a", Value: bson.A{2.0}}}},
		{bson.D{{Key: "a", Value: bson.D{}}, {Key: "b", Value: int32(1)}}}, {bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: int32(1)}}}}},
		{bson.D{{Key: "a", Value: "b"}}}, {bson.D{{Key: "ab", Value: ""}}}, {bson.D{{Key: "", Value: "ab"}}},
		{bson.D{{Key: "a", Value: "x"}, {Key: "b", Value: "y"}}}, {bson.D{{Key: "a", Value: "x\xff\x02b\x00\x02\x00\x00\x00y"}}},
		{bson.MinKey{}}, {bson.MaxKey{}}, {bson.JavaScript("a")},
	}
	type named struct {
		class int
		value any
	}
	seen := make(map[string]named)
	for i, class := range classes {
		for j, value := range class {
			key := identityOf(t, value)
			first, known := seen[key]
			switch {
			case known && first.class != i:
				t.Errorf("%T %v is taken for %T %v", value, value, first.value, first.value)
			case !known && j > 0 && i != 6 && i != 12:
				t.Errorf("%T %v is not taken for %T %v", value, value, class[0], class[0])
			case !known:
				seen[key] = named{i, value}
			}
		}
	}
}

// manyNumbers are whole numbers that are easily taken for each other.
var manyNumbers = []int64{0, 1, 2, -1, 1 << 31, 1 << 52, 1 << 53, 1<<53 + 1, math.MaxInt64, math.MinInt64}

// ids draws values that a server can hold as an _id, often such that two drawn ones are equal or nearly so.
func ids(depth int, numbers []int64) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		n := rapid.SampledFrom(numbers).Draw(t, "n")
		most := 7
		if depth > 0 {
			most = 9
		}
		switch rapid.IntRange(0, most).Draw(t, "kind") {
		case 0:
			return int32(n)
		case 1:
			return n
		case 2:
			return float64(n)
		case 3:
			return float64(n) + 0.5
		case 4:
			return rapid.SampledFrom([]string{"", "0", "1", "a", "A", "a\x00", "é"}).Draw(t, "text")
		case 5:
			return n%2 == 0
		case 6:
			return bson.ObjectID{byte(n)}
		case 7:
			return nil
		}
		var d bson.D
		for range rapid.IntRange(0, 2).Draw(t, "fields") {
			d = append(d, bson.E{Key: rapid.SampledFrom([]string{"a", "b", "ab"}).Draw(t, "key"), Value: ids(depth-1, numbers).Draw(t, "value")})
		}
		if len(d) == 2 && d[0].Key == d[1].Key {
			d = d[:1]
		}
		if d == nil {
			d = bson.D{}
		}
		return d
	})
}

// Two ids have the same identity exactly when the server calls the second a duplicate.
func TestIdentityIsTheServers(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		coll := s.Database(t, s.Client(t)).Collection("c")
		numbers := manyNumbers
		if s.Kind == servertest.KindEmbedded {
			numbers = manyNumbers[:6] // FerretDB 1.24 compares larger ones as text
		}
		rapid.Check(t, func(rt *rapid.T) {
			a, b := ids(2, numbers).Draw(rt, "a"), ids(2, numbers).Draw(rt, "b")
			if _, err := coll.DeleteMany(t.Context(), bson.D{}); err != nil {
				rt.Fatal(err)
			}
			if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: a}}); err != nil {
				rt.Fatal(err)
			}
			_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: b}})
			if err != nil && !mongo.IsDuplicateKeyError(err) {
				rt.Fatal(err)
			}
			if same := identityOf(rt, a) == identityOf(rt, b); same != (err != nil) {
				rt.Fatalf("%T %v and %T %v: the same=%t, the server says %v", a, a, b, b, same, err)
			}
		})
	})
}
