package idgen

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// exactDouble is where doubles stop telling whole numbers apart: 2^53 + 1 is stored as 2^53, so a counter that holds a
// double of this size may already stand for a number that was given out.
const exactDouble = 1 << 53

// whole reads a number that a sequence can go on from. what describes the value when it is none, without repeating
// text from the database.
func whole(v bson.RawValue) (n int64, what string, ok bool) {
	switch v.Type {
	case bson.TypeInt32:
		return int64(v.Int32()), "", true
	case bson.TypeInt64:
		return v.Int64(), "", true
	case bson.TypeDouble:
		d := v.Double()
		what = "the double " + strconv.FormatFloat(d, 'g', -1, 64)
		switch {
		case math.IsNaN(d) || math.IsInf(d, 0):
			return 0, what, false
		case math.Abs(d) >= exactDouble:
			return 0, what + ", too large to be exact", false
		case d != math.Trunc(d):
			return 0, what, false
		}
		return int64(d), "", true
	case bson.TypeString:
		return 0, "text", false
	case bson.TypeNull:
		return 0, "null", false
	case bson.TypeDecimal128:
		return 0, "a decimal", false
	case bson.TypeEmbeddedDocument:
		return 0, "a document", false
	case bson.TypeArray:
		return 0, "an array", false
	}
	return 0, "a value of type " + v.Type.String(), false
}

// lookup finds a nested field; v is zero where it is absent. If something that is not a document stands in the way, that
// is returned, and blocked is true.
func lookup(document bson.Raw, field string) (v bson.RawValue, blocked bool) {
	parts := path(field)
	for i, part := range parts {
		value, err := document.LookupErr(part)
		if err != nil {
			return bson.RawValue{}, false
		}
		if i == len(parts)-1 {
			return value, false
		}
		inner, ok := value.DocumentOK()
		if !ok {
			return value, true
		}
		document = inner
	}
	return bson.RawValue{}, false
}

// product returns a*b for a, b >= 0, and false when it does not fit.
func product(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}

// keyValue encodes a key or a scope and refuses what would not select exactly one value in a filter.
func keyValue(v any) (bson.RawValue, error) {
	if v == nil {
		v = bson.Null{}
	}
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		return bson.RawValue{}, fmt.Errorf("has no BSON form: %w", err)
	}
	raw := bson.RawValue{Type: t, Value: data}
	switch t {
	case bson.TypeNull, bson.TypeUndefined:
		return raw, fmt.Errorf("is null")
	case bson.TypeArray, bson.TypeRegex, bson.TypeMinKey, bson.TypeMaxKey:
		return raw, fmt.Errorf("is of type %s, which does not stand for one value in a filter", t)
	case bson.TypeString:
		if raw.StringValue() == "" {
			return raw, fmt.Errorf("is empty")
		}
	case bson.TypeEmbeddedDocument:
		elements, err := raw.Document().Elements()
		if err != nil {
			return raw, err
		}
		for _, e := range elements {
			if strings.HasPrefix(e.Key(), "$") {
				return raw, fmt.Errorf("is a document with the operator-like field %q", e.Key())
			}
		}
	case bson.TypeDouble:
		if math.IsNaN(raw.Double()) {
			return raw, fmt.Errorf("is NaN")
		}
	}
	return raw, nil
}

// checkField refuses names that would not address one plain field.
func checkField(name string) error {
	for _, part := range strings.Split(name, ".") {
		if part == "" || strings.HasPrefix(part, "$") || strings.ContainsRune(part, 0) {
			return fmt.Errorf("%q is not the name of a field", name)
		}
	}
	return nil
}

// placeholder stands for the number that only the reader of a message can know.
const placeholder = bson.Symbol("last")

// literal renders a filter or an update as mongosh reads it, bounded in length.
func literal(v any) string {
	t, data, err := bson.MarshalValue(v)
	if err != nil {
		return "…"
	}
	return bounded(literalOf(bson.RawValue{Type: t, Value: data}), 300)
}

func literalOf(v bson.RawValue) string {
	switch v.Type {
	case bson.TypeInt64:
		return `NumberLong("` + strconv.FormatInt(v.Int64(), 10) + `")`
	case bson.TypeInt32:
		return strconv.Itoa(int(v.Int32()))
	case bson.TypeObjectID:
		return `ObjectId("` + v.ObjectID().Hex() + `")`
	case bson.TypeSymbol:
		return `NumberLong("<` + v.Symbol() + `>")`
	case bson.TypeEmbeddedDocument:
		elements, _ := v.Document().Elements()
		fields := make([]string, len(elements))
		for i, e := range elements {
			fields[i] = strconv.Quote(e.Key()) + ": " + literalOf(e.Value())
		}
		return "{" + strings.Join(fields, ", ") + "}"
	case bson.TypeString:
		return strconv.Quote(v.StringValue())
	}
	return v.String()
}

// nested turns dotted field names into embedded documents, as an insert needs them.
func nested(d bson.D) bson.D {
	out := make(bson.D, len(d))
	for i, e := range d {
		parts := path(e.Key)
		value := e.Value
		for j := len(parts) - 1; j > 0; j-- {
			value = bson.D{{Key: parts[j], Value: value}}
		}
		out[i] = bson.E{Key: parts[0], Value: value}
	}
	return out
}

// times words a number of attempts.
func times(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return strconv.Itoa(n) + " attempts"
}
