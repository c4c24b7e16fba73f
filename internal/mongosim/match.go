package mongosim

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// match says whether the document satisfies the filter.
func (f *filter) match(doc []byte) bool {
	if f == nil {
		return true
	}
	switch f.op {
	case "$and":
		for _, k := range f.kids {
			if !k.match(doc) {
				return false
			}
		}
		return true
	case "$or", "$nor":
		for _, k := range f.kids {
			if k.match(doc) {
				return f.op == "$or"
			}
		}
		return f.op == "$nor"
	case "$not":
		return !f.kids[0].match(doc)
	case "shard":
		return f.on(doc)
	case "$jsonSchema":
		return f.rules.matches(bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: doc})
	}
	return walk(doc, f.path, f.holds)
}

// holds is the predicate for one value that the path yields.
func (f *filter) holds(v bsoncore.Value) bool {
	if isMissing(v) {
		// A missing field equals null, and so {$gte: null} and {$lte: null} hold for it (manual, "Query for Null or Missing Fields").
		switch f.op {
		case "$eq", "$gte", "$lte":
			return f.value.Type == bsoncore.TypeNull
		case "$in":
			return f.null
		}
		return false
	}
	switch f.op {
	case "$exists":
		return true
	case "$type":
		return f.types[v.Type]
	case "$size":
		n := 0
		if v.Type != bsoncore.TypeArray {
			return false
		}
		for it := fieldsOf(v.Data); it.next(); {
			n++
		}
		return n == f.size
	case "$regex":
		return f.matchRegex(v)
	}
	if f.op == "$eq" && v.Type == f.value.Type && !f.coll.fold && string(v.Data) == string(f.value.Data) {
		return true
	}
	var buf [64]byte
	key := f.coll.order(buf[:0], v)
	switch f.op {
	case "$eq":
		return string(key) == string(f.key)
	case "$in":
		return f.set[string(key)] || len(f.regex) > 0 && f.matchRegex(v)
	}
	return f.inRange(key)
}

// inRange: range operators compare only values of one class ("type bracketing"), except with MinKey and MaxKey; NaN is
// in no range, it only equals itself (ComparisonMatchExpression::matchesSingleElement).
func (f *filter) inRange(key []byte) bool {
	limit := f.key[0] == classMin || f.key[0] == classMax
	if key[0] != f.key[0] && !limit {
		return false
	}
	if key[0] == classNumber && f.key[0] == classNumber && (key[1] == numberNaN || f.key[1] == numberNaN) {
		return key[1] == f.key[1] && (f.op == "$gte" || f.op == "$lte")
	}
	c := strings.Compare(string(key), string(f.key))
	switch f.op {
	case "$gt":
		return c > 0
	case "$gte":
		return c >= 0
	case "$lt":
		return c < 0
	default:
		return c <= 0
	}
}

func (f *filter) matchRegex(v bsoncore.Value) bool {
	for _, re := range f.regex {
		switch v.Type {
		case bsoncore.TypeString:
			if re.MatchString(v.StringValue()) {
				return true
			}
		case bsoncore.TypeSymbol:
			if re.MatchString(v.Symbol()) {
				return true
			}
		}
	}
	return false
}

// truthy is MongoDB's idea of a flag: everything but false, zero and null.
func truthy(v bsoncore.Value) bool {
	switch v.Type {
	case bsoncore.TypeBoolean:
		return v.Boolean()
	case bsoncore.TypeNull, bsoncore.TypeUndefined:
		return false
	}
	var buf [32]byte
	key := collation{}.order(buf[:0], v)
	return key[0] != classNumber || key[1] != numberZero
}

// wholeNumber is a number without a fraction that fits an int64, whatever its type.
func wholeNumber(v bsoncore.Value) (int64, bool) {
	switch v.Type {
	case bsoncore.TypeInt32:
		return int64(v.Int32()), true
	case bsoncore.TypeInt64:
		return v.Int64(), true
	case bsoncore.TypeDouble:
		f := v.Double()
		if f != float64(int64(f)) || f >= 1<<63 || f < -1<<63 {
			return 0, false
		}
		return int64(f), true
	case bsoncore.TypeDecimal128:
		h, l := v.Decimal128()
		key := orderDecimal(nil, decimal(h, l))
		return keyInt(key)
	}
	return 0, false
}

// keyInt reads a whole number back from order bytes.
func keyInt(key []byte) (int64, bool) {
	switch key[0] {
	case numberZero:
		return 0, true
	case numberPositive, numberNegative:
		rest := append([]byte(nil), key[1:]...)
		if key[0] == numberNegative {
			for i := range rest {
				rest[i] = ^rest[i]
			}
		}
		exponent := int(rest[0])<<8 + int(rest[1]) - 1<<15
		digits := string(rest[2 : len(rest)-1])
		if exponent < len(digits) || exponent > 19 {
			return 0, false
		}
		text := digits + strings.Repeat("0", exponent-len(digits))
		if key[0] == numberNegative {
			text = "-" + text
		}
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil
	}
	return 0, false
}
