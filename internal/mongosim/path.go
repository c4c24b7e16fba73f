package mongosim

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// missing is what a path that leads nowhere yields: a value without a type.
var missing = bsoncore.Value{}

func isMissing(v bsoncore.Value) bool { return v.Type == 0 }

// walk yields what a dotted path finds in doc, as a query sees it: an array in the middle is entered element by element
// (and by position, if the component is a number), an array at the end yields its elements and then itself, and a path
// that ends early yields missing. It stops when f returns true, and says whether it did (manual, "Query an Array").
func walk(doc []byte, path []string, f func(bsoncore.Value) bool) bool {
	v, ok := lookup(doc, path[0])
	if !ok {
		return f(missing)
	}
	return walkValue(v, path[1:], f)
}

func walkValue(v bsoncore.Value, rest []string, f func(bsoncore.Value) bool) bool {
	switch {
	case len(rest) == 0:
		if v.Type == bsoncore.TypeArray {
			for it := fieldsOf(v.Data); it.next(); {
				if f(it.value) {
					return true
				}
			}
		}
		return f(v)
	case v.Type == bsoncore.TypeEmbeddedDocument:
		return walk(v.Data, rest, f)
	case v.Type == bsoncore.TypeArray:
		for it := fieldsOf(v.Data); it.next(); {
			if it.value.Type == bsoncore.TypeEmbeddedDocument && walk(it.value.Data, rest, f) {
				return true
			}
		}
		if isPosition(rest[0]) {
			if e, ok := lookup(v.Data, rest[0]); ok {
				return walkValue(e, rest[1:], f)
			}
		}
		return false
	default:
		return f(missing)
	}
}

func isPosition(s string) bool {
	if s == "" || len(s) > 9 || len(s) > 1 && s[0] == '0' {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// splitPath refuses what MongoDB refuses as a path: empty components.
func splitPath(s string) ([]string, error) {
	path := strings.Split(s, ".")
	for _, p := range path {
		if p == "" {
			return nil, errorf(codeEmptyFieldName, "The path '%s' contains an empty field name, which is not allowed.", s)
		}
	}
	return path, nil
}

// at is the value at a path that only enters documents (and arrays by position), as updates, sorting by shard key and
// projections of single values need it.
func at(doc []byte, path []string) (bsoncore.Value, bool) {
	v, ok := lookup(doc, path[0])
	for _, p := range path[1:] {
		if !ok || v.Type != bsoncore.TypeEmbeddedDocument && v.Type != bsoncore.TypeArray {
			return missing, false
		}
		v, ok = lookup(v.Data, p)
	}
	return v, ok
}

// maxDepth is the nesting that MongoDB stores (limits: 100 documented, 180 enforced by BSONDepth for user storage).
const maxDepth = 180

// checkDocument says whether data is one well-formed BSON document, no deeper than maxDepth. Everything else here
// walks documents without looking for damage, because nothing gets in except through this check.
func checkDocument(data []byte) error { return checkFields(data, 1) }

func checkFields(data []byte, depth int) error {
	if depth > maxDepth {
		return errorf(codeOverflow, "cannot insert document because it exceeds %d levels of nesting", maxDepth)
	}
	length, _, ok := bsoncore.ReadLength(data)
	if !ok || int(length) != len(data) || length < 5 || data[length-1] != 0 {
		return errorf(codeInvalidBSON, "invalid bson: a document's length does not fit")
	}
	rest := data[4 : length-1]
	for len(rest) > 0 {
		t, _, after, ok := readHeader(rest)
		if !ok {
			return errorf(codeInvalidBSON, "invalid bson: an element has no name")
		}
		v, tail, ok := bsoncore.ReadValue(after, t)
		if !ok || !known(t) {
			return errorf(codeInvalidBSON, "invalid bson: an element's value does not fit")
		}
		var err error
		switch t {
		case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
			err = checkFields(v.Data, depth+1)
		case bsoncore.TypeCodeWithScope:
			_, scope, _, fits := bsoncore.ReadCodeWithScope(v.Data)
			if !fits {
				return errorf(codeInvalidBSON, "invalid bson: code with scope does not fit")
			}
			err = checkFields(scope, depth+1)
		case bsoncore.TypeString, bsoncore.TypeSymbol, bsoncore.TypeJavaScript:
			if _, _, fits := bsoncore.ReadString(v.Data); !fits {
				return errorf(codeInvalidBSON, "invalid bson: a string does not fit")
			}
		case bsoncore.TypeBinary:
			if _, _, _, fits := bsoncore.ReadBinary(v.Data); !fits {
				return errorf(codeInvalidBSON, "invalid bson: binary data does not fit")
			}
		case bsoncore.TypeDBPointer:
			if _, _, _, fits := bsoncore.ReadDBPointer(v.Data); !fits {
				return errorf(codeInvalidBSON, "invalid bson: a pointer does not fit")
			}
		case bsoncore.TypeBoolean:
			if v.Data[0] > 1 {
				return errorf(codeInvalidBSON, "invalid bson: a boolean is neither 0 nor 1")
			}
		}
		if err != nil {
			return err
		}
		rest = tail
	}
	return nil
}

func readHeader(b []byte) (t bsoncore.Type, key, rest []byte, ok bool) {
	for i := 1; i < len(b); i++ {
		if b[i] == 0 {
			return bsoncore.Type(b[0]), b[1:i], b[i+1:], true
		}
	}
	return 0, nil, nil, false
}

func known(t bsoncore.Type) bool {
	return t >= bsoncore.TypeDouble && t <= bsoncore.TypeDecimal128 || t == bsoncore.TypeMinKey || t == bsoncore.TypeMaxKey
}

// setAt returns doc with v at path: in the field's place if it is there, else as a new last field, with the documents
// on the way created. It refuses to step into something that is no document ("Cannot create field", code 28).
func setAt(doc []byte, path []string, v bsoncore.Value) ([]byte, error) {
	return rebuild(doc, false, path, func(old bsoncore.Value) (bsoncore.Value, bool, error) { return v, true, nil })
}

// unsetAt returns doc without the value at path; inside an array the place becomes null (manual, "$unset").
func unsetAt(doc []byte, path []string) ([]byte, error) {
	if _, ok := at(doc, path); !ok {
		return doc, nil
	}
	return rebuild(doc, false, path, func(bsoncore.Value) (bsoncore.Value, bool, error) { return missing, false, nil })
}

// rebuild copies doc and lets change decide about the value at path.
func rebuild(doc []byte, array bool, path []string, change func(old bsoncore.Value) (v bsoncore.Value, keep bool, err error)) ([]byte, error) {
	out := make([]byte, 4, len(doc)+32)
	found := false
	count := 0
	for it := fieldsOf(doc); it.next(); count++ {
		if found || string(it.name) != path[0] {
			out = append(out, it.raw...)
			continue
		}
		found = true
		v, keep, err := descendValue(it.value, path, change)
		if err != nil {
			return nil, err
		}
		if !keep && array {
			v, keep = bsoncore.Value{Type: bsoncore.TypeNull}, true
		}
		if keep {
			out = bsoncore.AppendValueElement(out, path[0], v)
		}
	}
	if !found {
		v, keep, err := descendValue(missing, path, change)
		if err != nil {
			return nil, err
		}
		if keep && array {
			n, err := strconv.Atoi(path[0])
			if err != nil || !isPosition(path[0]) {
				return nil, errorf(codePathNotViable, "Cannot create field '%s' in an array", path[0])
			}
			if n-count > 1_500_000 {
				return nil, errorf(codeCannotBackfillArray, "can't backfill more than 1500000 elements")
			}
			for ; count < n; count++ {
				out = bsoncore.AppendNullElement(out, strconv.Itoa(count))
			}
		}
		if keep {
			out = bsoncore.AppendValueElement(out, path[0], v)
		}
	}
	out = append(out, 0)
	return bsoncore.UpdateLength(out, 0, int32(len(out))), nil
}

func descendValue(old bsoncore.Value, path []string, change func(bsoncore.Value) (bsoncore.Value, bool, error)) (bsoncore.Value, bool, error) {
	if len(path) == 1 {
		return change(old)
	}
	switch old.Type {
	case 0:
		inner, err := rebuild(emptyDocument, false, path[1:], change)
		return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: inner}, true, err
	case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
		inner, err := rebuild(old.Data, old.Type == bsoncore.TypeArray, path[1:], change)
		return bsoncore.Value{Type: old.Type, Data: inner}, true, err
	default:
		return missing, false, errorf(codePathNotViable, "Cannot create field '%s' in element {%s: (a %s)}", path[1], path[0], old.Type)
	}
}

var emptyDocument = []byte{5, 0, 0, 0, 0}
