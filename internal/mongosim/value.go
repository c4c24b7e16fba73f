package mongosim

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"unicode"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Classes of BSON types in MongoDB's comparison order (manual, "Comparison/Sort Order"; canonicalizeBSONType in
// bson/bsontypes.h). Values of different classes never compare equal, and range operators stay inside a class.
const (
	classMin byte = iota + 1
	classUndefined
	classNull
	classNumber
	classString
	classDocument
	classArray
	classBinary
	classObjectID
	classBoolean
	classDate
	classTimestamp
	classRegex
	classDBPointer
	classCode
	classCodeWithScope
	classMax
)

// collation is the part of a collation that changes what equality means. The zero value compares bytes.
type collation struct {
	fold bool // strength 2: letters of different case are equal
}

// order turns a value into bytes whose order is MongoDB's order of values and whose equality is MongoDB's equality:
// 1, 1.0, NumberLong(1) and NumberDecimal("1.00") give the same bytes. It is the only definition of comparison here:
// filters, sorting and indexes all compare these bytes.
func (c collation) order(dst []byte, v bsoncore.Value) []byte {
	switch v.Type {
	case bsoncore.TypeMinKey:
		return append(dst, classMin)
	case bsoncore.TypeMaxKey:
		return append(dst, classMax)
	case bsoncore.TypeUndefined:
		return append(dst, classUndefined)
	case bsoncore.TypeNull:
		return append(dst, classNull)
	case bsoncore.TypeInt32:
		return orderInt(append(dst, classNumber), int64(v.Int32()))
	case bsoncore.TypeInt64:
		return orderInt(append(dst, classNumber), v.Int64())
	case bsoncore.TypeDouble:
		return orderDouble(append(dst, classNumber), v.Double())
	case bsoncore.TypeDecimal128:
		h, l := v.Decimal128()
		return orderDecimal(append(dst, classNumber), bson.NewDecimal128(h, l))
	case bsoncore.TypeString:
		return c.orderText(append(dst, classString), v.StringValue())
	case bsoncore.TypeSymbol:
		return c.orderText(append(dst, classString), v.Symbol())
	case bsoncore.TypeEmbeddedDocument:
		return c.orderFields(append(dst, classDocument), v.Data, true)
	case bsoncore.TypeArray:
		return c.orderFields(append(dst, classArray), v.Data, false)
	case bsoncore.TypeBinary:
		// Length first, then subtype, then the bytes (manual, "BinData").
		subtype, data := v.Binary()
		dst = binary.BigEndian.AppendUint32(append(dst, classBinary), uint32(len(data)))
		return append(append(dst, subtype), data...)
	case bsoncore.TypeObjectID:
		return append(append(dst, classObjectID), v.Data...)
	case bsoncore.TypeBoolean:
		return append(dst, classBoolean, v.Data[0])
	case bsoncore.TypeDateTime:
		return binary.BigEndian.AppendUint64(append(dst, classDate), uint64(v.DateTime())^1<<63)
	case bsoncore.TypeTimestamp:
		t, i := v.Timestamp()
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(append(dst, classTimestamp), t), i)
	case bsoncore.TypeRegex:
		pattern, flags := v.Regex()
		return orderBytes(orderBytes(append(dst, classRegex), pattern), flags)
	case bsoncore.TypeDBPointer:
		ns, id := v.DBPointer()
		dst = binary.BigEndian.AppendUint32(append(dst, classDBPointer), uint32(len(ns)))
		return append(append(dst, ns...), id[:]...)
	case bsoncore.TypeJavaScript:
		return orderBytes(append(dst, classCode), v.JavaScript())
	case bsoncore.TypeCodeWithScope:
		code, scope := v.CodeWithScope()
		return c.orderFields(orderBytes(append(dst, classCodeWithScope), code), scope, true)
	}
	return append(dst, classUndefined)
}

// orderFields compares element by element: class first, then name, then value (BSONElement::woCompare). Embedded
// documents with the same fields in another order are therefore different values.
func (c collation) orderFields(dst, doc []byte, names bool) []byte {
	for it := fieldsOf(doc); it.next(); {
		// The class leads the value's own bytes; the name goes between the two.
		if !names {
			dst = c.order(dst, it.value)
			continue
		}
		var scratch [32]byte
		v := c.order(scratch[:0], it.value)
		dst = append(dst, v[0])
		dst = append(append(dst, it.name...), 0)
		dst = append(dst, v[1:]...)
	}
	return append(dst, 0)
}

func (c collation) orderText(dst []byte, s string) []byte {
	if c.fold {
		s = strings.Map(func(r rune) rune { return unicode.ToLower(unicode.ToUpper(r)) }, s)
	}
	return orderBytes(dst, s)
}

// orderBytes ends the text with two zero bytes and marks zero bytes inside it, so that a prefix sorts first.
func orderBytes(dst []byte, s string) []byte {
	if strings.IndexByte(s, 0) < 0 {
		return append(append(dst, s...), 0, 0)
	}
	for i := range len(s) {
		dst = append(dst, s[i])
		if s[i] == 0 {
			dst = append(dst, 0xff)
		}
	}
	return append(dst, 0, 0)
}

// Kinds of numbers in their order; NaN is below everything (manual, "Numeric Types").
const (
	numberNaN byte = iota + 1
	numberMinusInf
	numberNegative
	numberZero
	numberPositive
	numberInf
)

// orderDigits writes 0.digits × 10^exponent. Every int64, double and Decimal128 is a finite decimal fraction, so all
// numeric types meet in one exact form.
func orderDigits(dst []byte, negative bool, digits []byte, exponent int) []byte {
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
	}
	for len(digits) > 0 && digits[0] == '0' {
		digits = digits[1:]
		exponent--
	}
	if len(digits) == 0 {
		return append(dst, numberZero)
	}
	kind := numberPositive
	if negative {
		kind = numberNegative
	}
	dst = append(dst, kind)
	at := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, uint16(exponent+1<<15))
	dst = append(append(dst, digits...), 0)
	if negative {
		for i := at; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst
}

func orderInt(dst []byte, n int64) []byte {
	var buf [20]byte
	u := uint64(n)
	if n < 0 {
		u = -u
	}
	digits := strconv.AppendUint(buf[:0], u, 10)
	return orderDigits(dst, n < 0, digits, len(digits))
}

func orderDouble(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, numberNaN)
	case math.IsInf(f, 1):
		return append(dst, numberInf)
	case math.IsInf(f, -1):
		return append(dst, numberMinusInf)
	case f == math.Trunc(f) && math.Abs(f) < 1<<62:
		return orderInt(dst, int64(f))
	}
	// 767 significant digits are enough for the exact value of any double.
	text := strconv.AppendFloat(nil, math.Abs(f), 'e', 766, 64)
	digits := append([]byte{text[0]}, text[2:768]...)
	exponent, err := strconv.Atoi(string(text[769:]))
	if err != nil {
		panic("mongosim: the exponent of a formatted double: " + err.Error())
	}
	return orderDigits(dst, f < 0, digits, exponent+1)
}

func orderDecimal(dst []byte, d bson.Decimal128) []byte {
	switch {
	case d.IsNaN():
		return append(dst, numberNaN)
	case d.IsInf() > 0:
		return append(dst, numberInf)
	case d.IsInf() < 0:
		return append(dst, numberMinusInf)
	}
	n, exponent, err := d.BigInt()
	if err != nil {
		return append(dst, numberNaN)
	}
	negative := n.Sign() < 0
	digits := []byte(n.Abs(n).String())
	return orderDigits(dst, negative, digits, len(digits)+exponent)
}

// equal says whether two values are the same for MongoDB.
func (c collation) equal(a, b bsoncore.Value) bool {
	if a.Type == b.Type && !c.fold && string(a.Data) == string(b.Data) {
		return true
	}
	return c.compare(a, b) == 0
}

func (c collation) compare(a, b bsoncore.Value) int {
	var x, y [64]byte
	return strings.Compare(string(c.order(x[:0], a)), string(c.order(y[:0], b)))
}

// fields walks the elements of a valid document without allocating.
type fields struct {
	rest  []byte
	raw   []byte // the whole element
	name  []byte
	value bsoncore.Value
}

func fieldsOf(doc []byte) fields {
	if len(doc) < 5 {
		return fields{}
	}
	return fields{rest: doc[4 : len(doc)-1]}
}

func (it *fields) next() bool {
	if len(it.rest) == 0 {
		return false
	}
	t := bsoncore.Type(it.rest[0])
	end := 1
	for end < len(it.rest) && it.rest[end] != 0 {
		end++
	}
	if end == len(it.rest) {
		return false
	}
	v, rest, ok := bsoncore.ReadValue(it.rest[end+1:], t)
	if !ok {
		return false
	}
	it.raw = it.rest[:len(it.rest)-len(rest)]
	it.name = it.rest[1:end]
	it.value = v
	it.rest = rest
	return true
}

// lookup is the value of a field of doc, by name, not by path.
func lookup(doc []byte, name string) (bsoncore.Value, bool) {
	for it := fieldsOf(doc); it.next(); {
		if string(it.name) == name {
			return it.value, true
		}
	}
	return bsoncore.Value{}, false
}
