package mongosim

import (
	"regexp"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// filter is a compiled query: a tree of and, or, nor and predicates over one path each. A nil filter matches all.
type filter struct {
	op    string
	kids  []*filter      // $and, $or, $nor, $not (one kid)
	path  []string       // predicates
	field string         // the path as written
	value bsoncore.Value // the operand as written
	key   []byte         // the operand's order bytes
	set   map[string]bool
	null  bool // $in holds null
	regex []*regexp.Regexp
	types map[bsoncore.Type]bool
	size  int
	coll  collation
	rules *schema
	on    func(doc []byte) bool // the pseudo-operator "shard"
}

// compileFilter understands the operators listed here and refuses every other, because a filter that quietly loses a
// condition deletes what it should not.
func compileFilter(doc []byte, c collation) (*filter, error) {
	all := &filter{op: "$and"}
	for it := fieldsOf(doc); it.next(); {
		name := string(it.name)
		switch name {
		case "$and", "$or", "$nor":
			f, err := compileList(name, it.value, c)
			if err != nil {
				return nil, err
			}
			all.kids = append(all.kids, f)
			continue
		case "$comment":
			continue
		case "$jsonSchema":
			s, err := compileSchema(it.value)
			if err != nil {
				return nil, err
			}
			all.kids = append(all.kids, &filter{op: name, rules: s, value: it.value})
			continue
		case "$expr", "$where", "$text":
			return nil, notSimulated("the operator %s", name)
		}
		if strings.HasPrefix(name, "$") {
			return nil, errorf(codeBadValue, "unknown top level operator: %s. If you have a field name that starts with a '$' symbol, consider using $getField or $setField.", name)
		}
		kids, err := compileField(name, it.value, c)
		if err != nil {
			return nil, err
		}
		all.kids = append(all.kids, kids...)
	}
	if len(all.kids) == 1 {
		return all.kids[0], nil
	}
	return all, nil
}

func compileList(op string, v bsoncore.Value, c collation) (*filter, error) {
	if v.Type != bsoncore.TypeArray {
		return nil, errorf(codeBadValue, "%s must be an array", op)
	}
	f := &filter{op: op}
	for it := fieldsOf(v.Data); it.next(); {
		if it.value.Type != bsoncore.TypeEmbeddedDocument {
			return nil, errorf(codeBadValue, "$or/$and/$nor entries need to be full objects")
		}
		kid, err := compileFilter(it.value.Data, c)
		if err != nil {
			return nil, err
		}
		f.kids = append(f.kids, kid)
	}
	if len(f.kids) == 0 {
		return nil, errorf(codeBadValue, "%s must be a nonempty array", op)
	}
	return f, nil
}

// isOperators says whether a value is {$op: …}: its first field begins with $ (a DBRef's $ref, $id, $db do not count).
func isOperators(v bsoncore.Value) bool {
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return false
	}
	it := fieldsOf(v.Data)
	if !it.next() || len(it.name) == 0 || it.name[0] != '$' {
		return false
	}
	name := string(it.name)
	return name != "$ref" && name != "$id" && name != "$db"
}

func compileField(name string, v bsoncore.Value, c collation) ([]*filter, error) {
	path := strings.Split(name, ".")
	if !isOperators(v) {
		f, err := compileOperator(name, path, "$eq", v, c, nil)
		return []*filter{f}, err
	}
	var out []*filter
	for it := fieldsOf(v.Data); it.next(); {
		f, err := compileOperator(name, path, string(it.name), it.value, c, v.Data)
		if err != nil {
			return nil, err
		}
		if f != nil {
			out = append(out, f)
		}
	}
	return out, nil
}

func compileOperator(name string, path []string, op string, v bsoncore.Value, c collation, siblings []byte) (*filter, error) {
	f := &filter{op: op, path: path, field: name, value: v, coll: c}
	not := func(inner *filter, err error) (*filter, error) {
		if err != nil {
			return nil, err
		}
		return &filter{op: "$not", kids: []*filter{inner}, field: name, path: path, value: v}, nil
	}
	switch op {
	case "$eq", "$gt", "$gte", "$lt", "$lte":
		switch v.Type {
		case bsoncore.TypeUndefined:
			return nil, errorf(codeBadValue, "cannot compare to undefined")
		case bsoncore.TypeRegex:
			if op != "$eq" {
				return nil, errorf(codeBadValue, "Can't have RegEx as arg to predicate over field '%s'.", name)
			}
			if siblings == nil { // {field: /pattern/}
				pattern, flags := v.Regex()
				f.op = "$regex"
				return f, f.addRegex(pattern, flags)
			}
		}
		f.key = c.order(nil, v)
		return f, nil
	case "$ne":
		if v.Type == bsoncore.TypeRegex {
			return nil, errorf(codeBadValue, "Can't have regex as arg to $ne.")
		}
		return not(compileOperator(name, path, "$eq", v, c, v.Data))
	case "$nin":
		return not(compileOperator(name, path, "$in", v, c, siblings))
	case "$in":
		if v.Type != bsoncore.TypeArray {
			return nil, errorf(codeBadValue, "$in needs an array")
		}
		f.set = map[string]bool{}
		for it := fieldsOf(v.Data); it.next(); {
			switch {
			case isOperators(it.value):
				return nil, errorf(codeBadValue, "cannot nest $ under $in")
			case it.value.Type == bsoncore.TypeRegex:
				pattern, flags := it.value.Regex()
				if err := f.addRegex(pattern, flags); err != nil {
					return nil, err
				}
			default:
				f.null = f.null || it.value.Type == bsoncore.TypeNull
				f.set[string(c.order(nil, it.value))] = true
			}
		}
		return f, nil
	case "$exists":
		if !truthy(v) {
			f.value = bsoncore.Value{Type: bsoncore.TypeBoolean, Data: []byte{1}}
			return not(f, nil)
		}
		return f, nil
	case "$not":
		if v.Type == bsoncore.TypeRegex {
			return not(compileOperator(name, path, "$eq", v, c, nil))
		}
		if !isOperators(v) {
			return nil, errorf(codeBadValue, "$not needs a regex or a document")
		}
		kids, err := compileField(name, v, c)
		return not(&filter{op: "$and", kids: kids}, err)
	case "$type":
		f.types = map[bsoncore.Type]bool{}
		return f, f.addTypes(v)
	case "$regex":
		pattern, flags := "", ""
		switch v.Type {
		case bsoncore.TypeString:
			pattern = v.StringValue()
		case bsoncore.TypeRegex:
			pattern, flags = v.Regex()
		default:
			return nil, errorf(codeBadValue, "$regex has to be a string")
		}
		if o, ok := lookup(siblings, "$options"); ok {
			if o.Type != bsoncore.TypeString {
				return nil, errorf(codeBadValue, "$options has to be a string")
			}
			flags = o.StringValue()
		}
		return f, f.addRegex(pattern, flags)
	case "$options":
		if _, ok := lookup(siblings, "$regex"); !ok {
			return nil, errorf(codeBadValue, "$options needs a $regex")
		}
		return nil, nil
	case "$size":
		n, ok := wholeNumber(v)
		if !ok || n < 0 {
			return nil, errorf(codeFailedToParse, "Failed to parse $size. Expected a non-negative whole number")
		}
		f.size = int(n)
		return f, nil
	case "$all", "$elemMatch", "$mod", "$geoWithin", "$geoIntersects", "$near", "$nearSphere", "$within",
		"$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear":
		return nil, notSimulated("the operator %s", op)
	}
	return nil, errorf(codeBadValue, "unknown operator: %s", op)
}

func (f *filter) addRegex(pattern, flags string) error {
	mode := ""
	for _, r := range flags {
		switch r {
		case 'i', 'm', 's':
			mode += string(r)
		default:
			return notSimulated("the regular expression option %q", string(r))
		}
	}
	if mode != "" {
		pattern = "(?" + mode + ")" + pattern
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return notSimulated("this regular expression: %v", err)
	}
	f.regex = append(f.regex, re)
	return nil
}

// typeAliases are the names that $type and bsonType accept (manual, "$type").
var typeAliases = map[string]bsoncore.Type{
	"double": bsoncore.TypeDouble, "string": bsoncore.TypeString, "object": bsoncore.TypeEmbeddedDocument,
	"array": bsoncore.TypeArray, "binData": bsoncore.TypeBinary, "undefined": bsoncore.TypeUndefined,
	"objectId": bsoncore.TypeObjectID, "bool": bsoncore.TypeBoolean, "date": bsoncore.TypeDateTime,
	"null": bsoncore.TypeNull, "regex": bsoncore.TypeRegex, "dbPointer": bsoncore.TypeDBPointer,
	"javascript": bsoncore.TypeJavaScript, "symbol": bsoncore.TypeSymbol,
	"javascriptWithScope": bsoncore.TypeCodeWithScope, "int": bsoncore.TypeInt32,
	"timestamp": bsoncore.TypeTimestamp, "long": bsoncore.TypeInt64, "decimal": bsoncore.TypeDecimal128,
	"minKey": bsoncore.TypeMinKey, "maxKey": bsoncore.TypeMaxKey,
}

func typesOf(v bsoncore.Value, into map[bsoncore.Type]bool) error {
	switch v.Type {
	case bsoncore.TypeArray:
		for it := fieldsOf(v.Data); it.next(); {
			if err := typesOf(it.value, into); err != nil {
				return err
			}
		}
		return nil
	case bsoncore.TypeString:
		if v.StringValue() == "number" {
			into[bsoncore.TypeDouble], into[bsoncore.TypeInt32] = true, true
			into[bsoncore.TypeInt64], into[bsoncore.TypeDecimal128] = true, true
			return nil
		}
		t, ok := typeAliases[v.StringValue()]
		if !ok {
			return errorf(codeBadValue, "Unknown type name alias: %s", v.StringValue())
		}
		into[t] = true
		return nil
	}
	n, ok := wholeNumber(v)
	t := bsoncore.Type(byte(n))
	if !ok || n < -1 || n > 127 || !known(t) {
		return errorf(codeBadValue, "Invalid numerical type code")
	}
	into[t] = true
	return nil
}

func (f *filter) addTypes(v bsoncore.Value) error { return typesOf(v, f.types) }

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
