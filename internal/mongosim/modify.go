package mongosim

import (
	"math"
	"math/big"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// update is a compiled update: a replacement document or a list of changes.
type update struct {
	replacement []byte // nil for operators
	changes     []change
}

type change struct {
	op   string
	name string
	path []string
	v    bsoncore.Value
}

func compileUpdate(v bsoncore.Value) (*update, error) {
	if v.Type == bsoncore.TypeArray {
		return nil, notSimulated("updates with aggregation pipelines")
	}
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return nil, errorf(codeFailedToParse, "Update argument must be either an object or an array")
	}
	u := &update{}
	if !isOperators(v) {
		u.replacement = v.Data
		return u, nil
	}
	for it := fieldsOf(v.Data); it.next(); {
		name := string(it.name)
		switch name {
		case "$set", "$unset", "$inc", "$max", "$min", "$setOnInsert":
		case "$mul", "$rename", "$currentDate", "$push", "$pull", "$pullAll", "$addToSet", "$pop", "$bit":
			return nil, notSimulated("the update operator %s", name)
		default:
			return nil, errorf(codeFailedToParse, "Unknown modifier: %.100s. Expected a valid update modifier or pipeline-style update specified as an array", name)
		}
		if it.value.Type != bsoncore.TypeEmbeddedDocument {
			return nil, errorf(codeFailedToParse, "Modifiers operate on fields but we found type %s instead. For example: {$mod: {<field>: ...}}", it.value.Type)
		}
		for f := fieldsOf(it.value.Data); f.next(); {
			if err := u.add(name, string(f.name), f.value); err != nil {
				return nil, err
			}
		}
	}
	// New fields appear in the order of their names, not of the update (manual, "Update Operators Behavior", since 5.0).
	slices.SortStableFunc(u.changes, func(a, b change) int { return comparePaths(a.path, b.path) })
	for i := 1; i < len(u.changes); i++ {
		a, b := u.changes[i-1], u.changes[i]
		if len(a.path) <= len(b.path) && slices.Equal(a.path, b.path[:len(a.path)]) {
			return nil, errorf(codeConflictingUpdateOperators, "Updating the path '%s' would create a conflict at '%s'", b.name, a.name)
		}
	}
	return u, nil
}

// comparePaths orders by component, numbers by value.
func comparePaths(a, b []string) int {
	for i := range min(len(a), len(b)) {
		if isPosition(a[i]) && isPosition(b[i]) && len(a[i]) != len(b[i]) {
			return len(a[i]) - len(b[i])
		}
		if c := strings.Compare(a[i], b[i]); c != 0 {
			return c
		}
	}
	return len(a) - len(b)
}

func (u *update) add(op, name string, v bsoncore.Value) error {
	path, err := splitPath(name)
	if err != nil {
		return err
	}
	for _, p := range path {
		if strings.HasPrefix(p, "$") {
			return notSimulated("positional and $-prefixed paths in updates")
		}
	}
	if op == "$inc" && !isNumber(v) {
		return errorf(codeTypeMismatch, "Cannot increment with non-numeric argument: {%s: (a %s)}", name, v.Type)
	}
	u.changes = append(u.changes, change{op: op, name: name, path: path, v: v})
	return nil
}

// apply returns the document after the update. The _id may be set to itself, never changed (code 66).
func (u *update) apply(doc []byte, insert bool) ([]byte, error) {
	oldID, had := lookup(doc, "_id")
	out := doc
	var err error
	if u.replacement != nil {
		out, err = replacement(u.replacement, oldID, had)
	} else {
		for _, c := range u.changes {
			if c.op == "$setOnInsert" && !insert {
				continue
			}
			if out, err = c.apply(out); err != nil {
				break
			}
		}
	}
	if err != nil {
		return nil, err
	}
	newID, has := lookup(out, "_id")
	if had && (!has || newID.Type != oldID.Type && !isNumber(newID) || !(collation{}).equal(newID, oldID)) {
		if u.replacement != nil {
			return nil, errorf(codeImmutableField, "After applying the update, the (immutable) field '_id' was found to have been altered to _id: %s", shell(newID))
		}
		return nil, errorf(codeImmutableField, "Performing an update on the path '_id' would modify the immutable field '_id'")
	}
	if has {
		if err := checkID(newID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func replacement(doc []byte, id bsoncore.Value, had bool) ([]byte, error) {
	if own, ok := lookup(doc, "_id"); ok {
		id, had = own, true
	}
	for it := fieldsOf(doc); it.next(); {
		if len(it.name) > 0 && it.name[0] == '$' {
			return nil, errorf(codeDollarPrefixedFieldName, "The dollar ($) prefixed field '%.100s' in '%.100s' is not allowed in the context of an update's replacement document.", it.name, it.name)
		}
	}
	out := make([]byte, 4, len(doc)+32)
	if had {
		out = bsoncore.AppendValueElement(out, "_id", id)
	}
	for it := fieldsOf(doc); it.next(); {
		if string(it.name) != "_id" {
			out = append(out, it.raw...)
		}
	}
	out = append(out, 0)
	return bsoncore.UpdateLength(out, 0, int32(len(out))), nil
}

func (c change) apply(doc []byte) ([]byte, error) {
	switch c.op {
	case "$set", "$setOnInsert":
		return setAt(doc, c.path, c.v)
	case "$unset":
		return unsetAt(doc, c.path)
	}
	old, ok := at(doc, c.path)
	if !ok {
		return setAt(doc, c.path, c.v)
	}
	switch c.op {
	case "$inc":
		sum, err := add(old, c.v, c.name)
		if err != nil {
			return nil, err
		}
		return setAt(doc, c.path, sum)
	case "$max", "$min":
		// Values of different types are compared in the order of types (manual, "$max").
		cmp := collation{}.compare(c.v, old)
		if c.op == "$max" && cmp > 0 || c.op == "$min" && cmp < 0 {
			return setAt(doc, c.path, c.v)
		}
		return doc, nil
	}
	return nil, notSimulated("the update operator %s", c.op)
}

func isNumber(v bsoncore.Value) bool {
	switch v.Type {
	case bsoncore.TypeInt32, bsoncore.TypeInt64, bsoncore.TypeDouble, bsoncore.TypeDecimal128:
		return true
	}
	return false
}

// add is $inc: int32 grows into int64 when it must, int64 overflow is refused, a double or Decimal128 decides the type
// of the sum (SafeNum::addInternal).
func add(a, b bsoncore.Value, name string) (bsoncore.Value, error) {
	switch {
	case !isNumber(a):
		return missing, errorf(codeTypeMismatch, "Cannot apply $inc to a value of non-numeric type. The field '%s' has non-numeric type %s", name, a.Type)
	case a.Type == bsoncore.TypeDecimal128 || b.Type == bsoncore.TypeDecimal128:
		return addDecimals(a, b)
	case a.Type == bsoncore.TypeDouble || b.Type == bsoncore.TypeDouble:
		return bsoncore.Value{Type: bsoncore.TypeDouble, Data: bsoncore.AppendDouble(nil, float(a)+float(b))}, nil
	}
	x, _ := wholeNumber(a)
	y, _ := wholeNumber(b)
	sum := x + y
	if (sum > x) != (y > 0) && y != 0 {
		return missing, errorf(codeBadValue, "Failed to apply $inc operations to current value ((NumberLong)%d) for document", x)
	}
	if a.Type == bsoncore.TypeInt32 && b.Type == bsoncore.TypeInt32 && sum >= math.MinInt32 && sum <= math.MaxInt32 {
		return bsoncore.Value{Type: bsoncore.TypeInt32, Data: bsoncore.AppendInt32(nil, int32(sum))}, nil
	}
	return bsoncore.Value{Type: bsoncore.TypeInt64, Data: bsoncore.AppendInt64(nil, sum)}, nil
}

func float(v bsoncore.Value) float64 {
	if v.Type == bsoncore.TypeDouble {
		return v.Double()
	}
	n, _ := wholeNumber(v)
	return float64(n)
}

func addDecimals(a, b bsoncore.Value) (bsoncore.Value, error) {
	x, xe, err := bigDecimal(a)
	if err != nil {
		return missing, err
	}
	y, ye, err := bigDecimal(b)
	if err != nil {
		return missing, err
	}
	if xe-ye > 200 || ye-xe > 200 {
		return missing, notSimulated("sums of Decimal128 values of very different size")
	}
	exponent := min(xe, ye)
	scale := func(n *big.Int, e int) *big.Int {
		return n.Mul(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(e-exponent)), nil))
	}
	sum, ok := bson.ParseDecimal128FromBigInt(x.Add(scale(x, xe), scale(y, ye)), exponent)
	if !ok {
		return missing, notSimulated("sums of Decimal128 values that have to be rounded")
	}
	h, l := sum.GetBytes()
	return bsoncore.Value{Type: bsoncore.TypeDecimal128, Data: bsoncore.AppendDecimal128(nil, h, l)}, nil
}

func bigDecimal(v bsoncore.Value) (*big.Int, int, error) {
	if v.Type == bsoncore.TypeDecimal128 {
		h, l := v.Decimal128()
		n, e, err := bson.NewDecimal128(h, l).BigInt()
		if err != nil {
			return nil, 0, notSimulated("sums with NaN and infinity in Decimal128")
		}
		return n, e, nil
	}
	n, ok := wholeNumber(v)
	if !ok {
		return nil, 0, notSimulated("sums of a Decimal128 and a fraction in a double")
	}
	return big.NewInt(n), 0, nil
}
