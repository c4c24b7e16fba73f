package idgen

import (
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FuzzWhole reads a counter out of whatever a document may hold. A number is believed only if no other number could be
// meant by what is stored.
func FuzzWhole(f *testing.F) {
	for _, value := range []any{
		int32(41), int64(math.MaxInt64 - 2), 41.0, 41.5, math.NaN(), math.Inf(1), float64(exactDouble), -float64(exactDouble) + 1, "41", nil, true,
		bson.NewDateTimeFromTime(bson.NilObjectID.Timestamp()), bson.NilObjectID, bson.A{41}, bson.D{{Key: "seq", Value: 41}},
		bson.Regex{Pattern: "4"}, bson.Timestamp{T: 41}, bson.MinKey{}, bson.Binary{Data: []byte{41}},
	} {
		for _, document := range []bson.D{{{Key: "seq", Value: value}}, {{Key: "a", Value: bson.D{{Key: "seq", Value: value}}}}} {
			raw, err := bson.Marshal(document)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw, "seq")
			f.Add(raw, "a.seq")
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, field string) {
		if bson.Raw(raw).Validate() != nil || checkField(field) != nil {
			return // the driver hands out no such document, and no such field is asked for
		}
		value, blocked := lookup(raw, field)
		if blocked && value.Type == bson.TypeEmbeddedDocument {
			t.Errorf("a document stands in the way of %q in %v", field, bson.Raw(raw))
		}
		if value.IsZero() {
			return
		}
		n, what, ok := whole(value)
		switch value.Type {
		case bson.TypeInt32, bson.TypeInt64:
			if want := value.AsInt64(); !ok || n != want {
				t.Errorf("%v is read as %d, %q", value, n, what)
			}
		case bson.TypeDouble:
			d := value.Double()
			exact := d == math.Trunc(d) && math.Abs(d) < exactDouble // no other double is the same integer, and back
			if ok != exact || ok && float64(n) != d {
				t.Errorf("the double %v is read as %d, %q", d, n, what)
			}
		default:
			if ok {
				t.Errorf("%v is read as %d", value, n)
			}
		}
		if ok == (what != "") {
			t.Errorf("%v: %q says what it is, and ok is %t", value, what, ok)
		}
	})
}
