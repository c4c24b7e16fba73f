package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func appendInt64(dst []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(v))
}

// element is a place in a document: document[start:end] is the whole element, document[value:end] its value.
type element struct {
	kind              bson.Type
	start, value, end int
}

// elements yields the elements of a document that is known to be valid, with their keys.
func elements(document []byte) func(yield func(key string, e element) bool) {
	return func(yield func(key string, e element) bool) {
		for at := 4; at < len(document)-1; {
			read, _, ok := bsoncore.ReadElement(document[at : len(document)-1])
			if !ok {
				return
			}
			key := read.Key()
			e := element{kind: bson.Type(read[0]), start: at, value: at + 1 + len(key) + 1, end: at + len(read)}
			if !yield(key, e) {
				return
			}
			at = e.end
		}
	}
}

// lookup finds the value at a path; ok is false if there is none.
func lookup(document []byte, path []string) (e element, ok bool) {
	offset := 0
	for depth, name := range path {
		found := false
		for key, at := range elements(document) {
			if key == name {
				e, found = at, true
				break
			}
		}
		if !found || depth < len(path)-1 && e.kind != bson.TypeEmbeddedDocument {
			return element{}, false
		}
		if depth < len(path)-1 {
			document = document[e.value:e.end]
			offset += e.value
		}
	}
	e.start, e.value, e.end = e.start+offset, e.value+offset, e.end+offset
	return e, true
}

// setField returns a document in which the value at path is v, creating documents on the way. Unless overwrite is set,
// a value that is there already has to be null, zero or an empty text. The document itself is not changed.
func setField(document []byte, path []string, v bson.RawValue, overwrite bool) ([]byte, error) {
	return setIn(document, path, v, overwrite, true)
}

func setIn(document []byte, path []string, v bson.RawValue, overwrite, top bool) ([]byte, error) {
	at, err := findStep(document, path)
	if err != nil {
		return nil, err
	}
	old := bson.RawValue{Type: at.kind, Value: document[at.value:at.end]}
	if len(path) > 1 {
		inner := []byte{5, 0, 0, 0, 0}
		switch {
		case at.kind == bson.TypeEmbeddedDocument:
			inner = old.Value
		case at.start < at.end && at.kind != bson.TypeNull:
			return nil, fmt.Errorf("%q is of type %s, not a document", path[0], at.kind)
		}
		changed, err := setIn(inner, path[1:], v, overwrite, false)
		if err != nil {
			return nil, err
		}
		v = bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: changed}
	} else if at.start < at.end && !overwrite && !isBlank(old) {
		return nil, fmt.Errorf("the field already holds a value of type %s; unset it, or leave the numbering out", at.kind)
	}
	if at.start == at.end && top && path[0] == "_id" {
		at.start, at.end = 4, 4 // an _id goes first
	}
	out := make([]byte, 0, len(document)+len(path[0])+2+len(v.Value))
	out = append(out, document[:at.start]...)
	out = append(out, byte(v.Type))
	out = append(out, path[0]...)
	out = append(out, 0)
	out = append(out, v.Value...)
	out = append(out, document[at.end:]...)
	binary.LittleEndian.PutUint32(out, uint32(len(out)))
	return out, nil
}

// findStep finds the element for path[0]. If there is none, it returns an empty element at the document's end. A path
// that could mean two things is an error.
func findStep(document []byte, path []string) (element, error) {
	at := element{start: len(document) - 1, value: len(document) - 1, end: len(document) - 1}
	found := false
	whole := strings.Join(path, ".")
	for key, e := range elements(document) {
		switch {
		case key == path[0] && found:
			return at, fmt.Errorf("the field %q is there twice", key)
		case key == path[0]:
			at, found = e, true
		case strings.Contains(key, ".") && (whole == key || strings.HasPrefix(whole, key+".")):
			return at, fmt.Errorf("the document has a field named %q, dot included, so that the path is ambiguous", key)
		}
	}
	return at, nil
}

// isBlank reports whether a value stands for "no value yet".
func isBlank(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeNull, bson.TypeUndefined:
		return true
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		n, ok := v.AsInt64OK()
		return ok && n == 0 && (v.Type != bson.TypeDouble || v.Double() == 0)
	case bson.TypeString:
		return v.StringValue() == ""
	}
	return false
}

// errBadID says why a value cannot be an _id on any server, or would act as an operator in a filter.
func errBadID(id bson.RawValue) error {
	switch id.Type {
	case bson.TypeArray, bson.TypeRegex, bson.TypeUndefined:
		return fmt.Errorf("its _id is of type %s, which no server takes", id.Type)
	case bson.TypeEmbeddedDocument:
		return operatorKey(id.Value)
	}
	return nil
}

func operatorKey(document []byte) error {
	for key, e := range elements(document) {
		if strings.HasPrefix(key, "$") {
			return errors.New("its _id is a document with a key that begins with $, like a query operator")
		}
		if e.kind == bson.TypeEmbeddedDocument || e.kind == bson.TypeArray {
			if err := operatorKey(document[e.value:e.end]); err != nil {
				return err
			}
		}
	}
	return nil
}
