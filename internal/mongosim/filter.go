package mongosim

import (
	"regexp"
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
