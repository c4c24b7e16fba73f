package records

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// finish converts the older forms that the driver leaves alone, and refuses documents in which an Extended JSON value was
// left as a document because it is not in the form that makes it one.
func finish(text []byte, raw bson.Raw) (bson.Raw, *flaw) {
	var document bson.D
	if err := bson.Unmarshal(raw, &document); err != nil {
		return nil, &flaw{text: err.Error(), offset: -1, err: err}
	}
	changed, left := older(document, "")
	if left != "" {
		name := left.LastToken()
		return nil, &flaw{offset: find(text, left), text: fmt.Sprintf("%s does not stand where it makes a value; it is written as %s", name, forms[name])}
	}
	if !changed {
		return raw, nil
	}
	raw, err := bson.Marshal(document)
	if err != nil {
		return nil, &flaw{text: err.Error(), offset: -1, err: err}
	}
	return raw, nil
}

// older converts values of older forms within a document, in place. It returns where the first unconverted name of forms
// is, or "".
func older(document bson.D, at jsontext.Pointer) (changed bool, left jsontext.Pointer) {
	for i := range document {
		e := &document[i]
		here := at.AppendToken(e.Key)
		if _, known := forms[e.Key]; known {
			return changed, here
		}
		value, changedHere, left := olderValue(e.Value, here)
		if left != "" {
			return changed, left
		}
		if changedHere {
			e.Value, changed = value, true
		}
	}
	return changed, ""
}

func olderValue(value any, at jsontext.Pointer) (_ any, changed bool, left jsontext.Pointer) {
	switch v := value.(type) {
	case bson.D:
		if converted := oldForm(v); converted != nil {
			return converted, true, ""
		}
		changed, left = older(v, at)
		return v, changed, left
	case bson.A:
		for i := range v {
			element, changedHere, left := olderValue(v[i], at.AppendToken(strconv.Itoa(i)))
			if left != "" {
				return v, changed, left
			}
			if changedHere {
				v[i], changed = element, true
			}
		}
	}
	return value, changed, ""
}

// oldForm converts {"$regex":…,"$options":…}, of which the second may be missing, and a {"$binary":…,"$type":…} that is
// the other way round. It returns nil for everything else.
func oldForm(d bson.D) any {
	text := make(map[string]string, 2)
	for _, e := range d {
		s, ok := e.Value.(string)
		if !ok {
			return nil
		}
		text[e.Key] = s
	}
	pattern, isRegex := text["$regex"]
	options, hasOptions := text["$options"]
	if isRegex && (len(d) == 1 || len(d) == 2 && hasOptions) {
		letters := []byte(options)
		slices.Sort(letters) // as BSON demands
		return bson.Regex{Pattern: pattern, Options: string(letters)}
	}
	if _, isBinary := text["$binary"]; !isBinary || len(d) != 2 {
		return nil
	}
	kind, hasKind := text["$type"]
	if !hasKind {
		return nil
	}
	var converted bson.D
	again := fmt.Sprintf(`{"v":{"$binary":%q,"$type":%q}}`, text["$binary"], kind)
	if bson.UnmarshalExtJSON([]byte(again), false, &converted) != nil {
		return nil
	}
	return converted[0].Value
}

// find returns the offset at which the name that the pointer names begins, or -1.
func find(text []byte, pointer jsontext.Pointer) int {
	tokens := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		token, err := tokens.ReadToken()
		if err != nil {
			return -1
		}
		if token.Kind() == '"' && tokens.StackPointer() == pointer {
			end := int(tokens.InputOffset())
			return end - len(strconv.Quote(token.String()))
		}
	}
}
