package records

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxDepth is how deep MongoDB lets stored documents be nested (BSONDepth::getMaxDepthForUserStorage in its source; its
// manual promises 100).
const maxDepth = 180

// flaw is what is wrong with the text of a document.
type flaw struct {
	text   string
	offset int // in bytes, where it begins; negative if nobody knows
	err    error
	cut    bool // the text ends too early
	more   bool // something follows the document
}

// document converts the text of one document, in any form of Extended JSON (canonical, relaxed, or the older form that
// mongoexport wrote before version 4.2), to BSON.
//
// The driver does the converting. It is lenient where data could be changed without a word, so that the text is checked
// before, token by token, and what was left unconverted after it.
func document(text []byte) (bson.Raw, *flaw) {
	if flaw := check(text); flaw != nil {
		return nil, flaw
	}
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON(text, false, &raw); err != nil {
		return nil, misfit(text, err)
	}
	if bytes.IndexByte(text, '$') >= 0 || bytes.Contains(text, []byte(`\u0024`)) {
		var flaw *flaw
		if raw, flaw = finish(text, raw); flaw != nil {
			return nil, flaw
		}
	}
	if len(raw) > MaxDocument {
		return nil, &flaw{offset: -1, text: fmt.Sprintf("the document has %d bytes as BSON (%d as text); MongoDB stores %d at most", len(raw), len(text), MaxDocument)}
	}
	return raw, nil
}

// check makes sure that the text is one JSON object: valid JSON and UTF-8, no name twice in an object, no whole number
// that the driver would round to a double.
func check(text []byte) *flaw {
	tokens := jsontext.NewDecoder(bytes.NewReader(text))
	for first := true; ; first = false {
		if !first && tokens.StackDepth() == 0 {
			break
		}
		token, err := tokens.ReadToken()
		if err != nil {
			return syntax(text, err)
		}
		end := int(tokens.InputOffset())
		switch {
		case first && token.Kind() != '{':
			return &flaw{text: "a document is expected, in braces", offset: leadingSpace(text)}
		case tokens.StackDepth() > maxDepth:
			return &flaw{text: fmt.Sprintf("the document is nested deeper than %d levels, which is MongoDB's limit", maxDepth), offset: end - 1}
		case token.Kind() == '0':
			number := token.String()
			if strings.ContainsAny(number, ".eE") {
				continue
			}
			if _, err := strconv.ParseInt(number, 10, 64); err != nil {
				return &flaw{offset: end - len(number), text: fmt.Sprintf(
					`the whole number %s does not fit into 64 bits; it can be stored exactly as {"$numberDecimal":"…"} with up to 34 digits, or rounded if it is written with a decimal point`, short(number))}
			}
		}
	}
	rest := int(tokens.InputOffset())
	if behind := bytes.TrimLeft(text[rest:], " \t\r\n"); len(behind) > 0 {
		return &flaw{text: "something follows the document", offset: len(text) - len(behind), more: true}
	}
	return nil
}

func leadingSpace(text []byte) int { return len(text) - len(bytes.TrimLeft(text, " \t\r\n")) }

// syntax puts an error of jsontext into a flaw.
func syntax(text []byte, err error) *flaw {
	f := &flaw{text: err.Error(), offset: -1, err: err}
	var at *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		f.cut, f.offset = true, len(text)
		f.text = "it ends in the middle of a document"
	case errors.As(err, &at):
		f.offset = int(at.ByteOffset)
		f.text = at.Err.Error()
		if errors.Is(err, jsontext.ErrDuplicateName) {
			f.text = fmt.Sprintf("the field %q stands twice in the same object", short(at.JSONPointer.LastToken()))
		} else if f.offset < len(text) {
			f.text += hint(text[f.offset:])
		}
	}
	return f
}

// hint explains what people take for JSON.
func hint(rest []byte) string {
	for _, word := range []string{"ObjectId", "ISODate", "NumberLong", "NumberInt", "NumberDecimal", "BinData", "UUID", "Timestamp", "new "} {
		if bytes.HasPrefix(rest, []byte(word)) {
			return `; values such as ObjectId(…) are for the shell, in a file they are written as Extended JSON: {"$oid":"…"}`
		}
	}
	switch rest[0] {
	case '\'':
		return "; text stands in double quotes"
	case 0:
		return "; is the file UTF-16, or not text at all?"
	case 0x1f:
		return "; is the file compressed?"
	}
	return ""
}

// short bounds what a message quotes.
func short(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// forms are the names that make an object an Extended JSON value, and how it is written.
var forms = map[string]string{
	"$oid":               `{"$oid":"507f1f77bcf86cd799439011"}`,
	"$date":              `{"$date":"2024-01-31T12:00:00Z"} or, in milliseconds since 1970, {"$date":{"$numberLong":"1706702400000"}}`,
	"$numberInt":         `{"$numberInt":"42"}`,
	"$numberLong":        `{"$numberLong":"42"}`,
	"$numberDouble":      `{"$numberDouble":"4.2"}`,
	"$numberDecimal":     `{"$numberDecimal":"4.20"}`,
	"$binary":            `{"$binary":{"base64":"AQID","subType":"00"}}`,
	"$uuid":              `{"$uuid":"c8edabc3-f738-4ca3-b68d-ab92a91478a3"}`,
	"$timestamp":         `{"$timestamp":{"t":1706702400,"i":1}}`,
	"$regularExpression": `{"$regularExpression":{"pattern":"^a","options":"i"}}`,
	"$code":              `{"$code":"…"} or {"$code":"…","$scope":{}}`,
	"$scope":             `{"$code":"…","$scope":{}}`,
	"$symbol":            `{"$symbol":"…"}`,
	"$dbPointer":         `{"$dbPointer":{"$ref":"…","$id":{"$oid":"507f1f77bcf86cd799439011"}}}`,
	"$minKey":            `{"$minKey":1}`,
	"$maxKey":            `{"$maxKey":1}`,
	"$undefined":         `{"$undefined":true}`,
}

// misfit says of which value the driver's error is, which it does not tell.
func misfit(text []byte, err error) *flaw {
	f := &flaw{offset: -1, err: err, text: strings.TrimPrefix(short80(err.Error()), "invalid JSON input; ")}
	at, name, why := locate(text, 0)
	if why == nil {
		return f
	}
	f.offset, f.err = at, why
	f.text = strings.TrimPrefix(short80(why.Error()), "invalid JSON input; ")
	if form, known := forms[name]; known {
		f.text = fmt.Sprintf("not a valid %s (%s); it is written as %s", name, f.text, form)
	}
	return f
}

func short80(s string) string {
	if len(s) <= 80 {
		return s
	}
	return strings.ToValidUTF8(s[:80], "") + "…"
}

// locate returns the offset of the innermost value that the driver does not take, and the first name in it if it is an
// object. The text is a valid object or array, which begins at base.
func locate(text []byte, base int) (offset int, name string, err error) {
	tokens := jsontext.NewDecoder(bytes.NewReader(text))
	open, _ := tokens.ReadToken()
	for open.Kind() == '{' && tokens.PeekKind() == '"' || open.Kind() == '[' && tokens.PeekKind() != ']' {
		first := ""
		if open.Kind() == '{' {
			key, _ := tokens.ReadToken()
			first = key.String()
			if strings.ContainsRune(first, 0) {
				return base + int(tokens.InputOffset()), "", errors.New("the name of a field must not contain \\u0000")
			}
		}
		value, readErr := tokens.ReadValue()
		if readErr != nil {
			return 0, "", nil
		}
		at := base + int(tokens.InputOffset()) - len(value)
		why := convertible(value)
		if why == nil {
			continue
		}
		if k := value.Kind(); k == '{' || k == '[' {
			if offset, name, err := locate(value, at); err != nil {
				return offset, name, err
			}
		}
		return at, firstName(value), why
	}
	return 0, "", nil
}

func convertible(value jsontext.Value) error {
	var raw bson.Raw
	return bson.UnmarshalExtJSON(slices.Concat([]byte(`{"v":`), value, []byte("}")), false, &raw)
}

func firstName(value jsontext.Value) string {
	tokens := jsontext.NewDecoder(bytes.NewReader(value))
	if open, err := tokens.ReadToken(); err != nil || open.Kind() != '{' || tokens.PeekKind() != '"' {
		return ""
	}
	name, _ := tokens.ReadToken()
	return name.String()
}
