package batch

import (
	"math"
	"math/big"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// appendIdentity appends a key that is the same for two _id values which a MongoDB unique index holds to be equal:
// numbers are compared across their types, also inside documents; everything else by type and bytes. Values that only a
// collation makes equal get different keys; the server refuses those.
func appendIdentity(dst []byte, kind bson.Type, value []byte) []byte {
	v := bson.RawValue{Type: kind, Value: value}
	switch kind {
	case bson.TypeInt32, bson.TypeInt64:
		return strconv.AppendInt(append(dst, 'n'), v.AsInt64(), 10)
	case bson.TypeDouble:
		f := v.Double()
		switch {
		case math.IsNaN(f):
			return append(dst, "nNaN"...)
		case math.IsInf(f, 0):
			return strconv.AppendFloat(append(dst, 'n'), f, 'g', -1, 64)
		}
		return append(append(dst, 'n'), exact(new(big.Rat).SetFloat64(f))...)
	case bson.TypeDecimal128:
		return appendDecimal(dst, v.Decimal128())
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		dst = append(dst, byte(kind))
		for key, e := range elements(value) {
			dst = append(append(dst, key...), 0)
			dst = appendIdentity(dst, e.kind, value[e.value:e.end])
			dst = append(dst, 0xff)
		}
		return dst
	case bson.TypeSymbol:
		kind = bson.TypeString // equal to a string, as MongoDB compares them
	}
	return append(append(dst, byte(kind)), value...)
}

func appendDecimal(dst []byte, d bson.Decimal128) []byte {
	dst = append(dst, 'n')
	switch {
	case d.IsNaN():
		return append(dst, "NaN"...)
	case d.IsInf() != 0:
		return strconv.AppendFloat(dst, math.Inf(d.IsInf()), 'g', -1, 64)
	}
	digits, exponent, err := d.BigInt()
	if err != nil {
		return append(dst, d.String()...)
	}
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exponent, -exponent))), nil)
	value := new(big.Rat).SetInt(digits)
	if exponent >= 0 {
		value.Mul(value, new(big.Rat).SetInt(power))
	} else {
		value.Quo(value, new(big.Rat).SetInt(power))
	}
	return append(dst, exact(value)...)
}

func exact(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	return r.String()
}
