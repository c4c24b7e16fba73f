package batch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// encoder encodes documents as the driver's Collection does with the same registry and options. It is for one goroutine.
type encoder struct {
	registry *bson.Registry
	options  options.BSONOptions
	buffer   bytes.Buffer
	bson     *bson.Encoder
}

func newEncoder(registry *bson.Registry, opts *options.BSONOptions) *encoder {
	e := &encoder{registry: registry}
	if opts != nil {
		e.options = *opts
	}
	return e
}

// reset makes a new bson.Encoder; needed at first, and after an error, which leaves half a document in the old one.
func (e *encoder) reset() {
	e.bson = bson.NewEncoder(bson.NewDocumentWriter(&e.buffer))
	if e.registry != nil {
		e.bson.SetRegistry(e.registry)
	}
	for _, set := range []struct {
		on    bool
		apply func()
	}{
		{e.options.ErrorOnInlineDuplicates, e.bson.ErrorOnInlineDuplicates},
		{e.options.IntMinSize, e.bson.IntMinSize},
		{e.options.NilByteSliceAsEmpty, e.bson.NilByteSliceAsEmpty},
		{e.options.NilMapAsEmpty, e.bson.NilMapAsEmpty},
		{e.options.NilSliceAsEmpty, e.bson.NilSliceAsEmpty},
		{e.options.OmitZeroStruct, e.bson.OmitZeroStruct},
		{e.options.OmitEmpty, e.bson.OmitEmpty},
		{e.options.StringifyMapKeysWithFmt, e.bson.StringifyMapKeysWithFmt},
		{e.options.UseJSONStructTags, e.bson.UseJSONStructTags},
	} {
		if set.on {
			set.apply()
		}
	}
}

// encode returns the document's BSON, which is valid until the next call.
func (e *encoder) encode(document any) (bson.Raw, error) {
	switch d := document.(type) {
	case nil:
		return nil, errors.New("the document is nil")
	case bson.Raw:
		return checked(d)
	case []byte:
		return checked(d)
	}
	if value := reflect.ValueOf(document); value.Kind() == reflect.Map && value.IsNil() || value.Kind() == reflect.Pointer && value.IsNil() {
		return nil, fmt.Errorf("the document is a nil %s", value.Type())
	}
	if e.bson == nil {
		e.reset()
	}
	e.buffer.Reset()
	if err := e.bson.Encode(document); err != nil {
		e.bson = nil
		return nil, fmt.Errorf("it cannot be encoded: %w", err)
	}
	// The driver's encoder copies a bson.RawValue or the result of a MarshalBSON as it is.
	return checked(e.buffer.Bytes())
}

// value encodes one value with the same registry.
func (e *encoder) value(v any) (bson.RawValue, error) {
	switch v := v.(type) {
	case int64:
		return bson.RawValue{Type: bson.TypeInt64, Value: appendInt64(nil, v)}, nil
	case bson.RawValue:
		return v, v.Validate()
	}
	raw, err := e.encode(bson.D{{Key: "v", Value: v}})
	if err != nil {
		return bson.RawValue{}, err
	}
	value := raw.Lookup("v")
	value.Value = bytes.Clone(value.Value)
	return value, nil
}

// checked refuses bytes that are not one whole document. A server refuses the whole command for them, or drops the
// connection, and so it would a delete that names such an _id.
func checked(raw bson.Raw) (bson.Raw, error) {
	if len(raw) == 0 {
		return nil, errors.New("the document is empty bytes")
	}
	if err := raw.Validate(); err != nil {
		return nil, fmt.Errorf("it is not valid BSON: %w", err)
	}
	if length := binary.LittleEndian.Uint32(raw); int(length) != len(raw) {
		return nil, errors.New("it is not valid BSON: bytes follow the end of the document")
	}
	if kind := unsound(raw); kind != 0 {
		return nil, fmt.Errorf("it is not valid BSON: a value of type %s does not end as it should", kind)
	}
	return raw, nil
}

// unsound returns the type of a value that Raw.Validate lets pass although no server does: a text that does not end in
// NUL, a boolean that is neither 0 nor 1; 0 if there is none.
func unsound(document []byte) bson.Type {
	for _, e := range elements(document) {
		value := document[e.value:e.end]
		sound := true
		switch e.kind {
		case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
			sound = value[len(value)-1] == 0
		case bson.TypeDBPointer:
			sound = value[len(value)-1-len(bson.ObjectID{})] == 0
		case bson.TypeCodeWithScope:
			_, scope, ok := bson.RawValue{Type: e.kind, Value: value}.CodeWithScopeOK()
			sound = ok && value[len(value)-len(scope)-1] == 0 && unsound(scope) == 0
		case bson.TypeBoolean:
			sound = value[0] <= 1
		case bson.TypeEmbeddedDocument, bson.TypeArray:
			if kind := unsound(value); kind != 0 {
				return kind
			}
		}
		if !sound {
			return e.kind
		}
	}
	return 0
}
