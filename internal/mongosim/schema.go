package mongosim

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func decimal(h, l uint64) bson.Decimal128 { return bson.NewDecimal128(h, l) }

// schema is the part of $jsonSchema that tests of this library need: bsonType, required, properties, minimum, maximum,
// enum and additionalProperties: false. Every other keyword is refused.
type schema struct {
	types      map[bsoncore.Type]bool
	required   []string
	properties map[string]*schema
	closed     bool
	enum       []bsoncore.Value
	minimum    []byte
	maximum    []byte
}

func compileSchema(v bsoncore.Value) (*schema, error) {
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return nil, errorf(codeTypeMismatch, "$jsonSchema must be an object")
	}
	s := &schema{properties: map[string]*schema{}}
	for it := fieldsOf(v.Data); it.next(); {
		switch name := string(it.name); name {
		case "bsonType":
			s.types = map[bsoncore.Type]bool{}
			if err := typesOf(it.value, s.types); err != nil {
				return nil, err
			}
		case "required":
			if it.value.Type != bsoncore.TypeArray {
				return nil, errorf(codeTypeMismatch, "$jsonSchema keyword 'required' must be an array")
			}
			for r := fieldsOf(it.value.Data); r.next(); {
				if r.value.Type != bsoncore.TypeString {
					return nil, errorf(codeTypeMismatch, "$jsonSchema keyword 'required' must be an array of strings")
				}
				s.required = append(s.required, r.value.StringValue())
			}
		case "properties":
			if it.value.Type != bsoncore.TypeEmbeddedDocument {
				return nil, errorf(codeTypeMismatch, "$jsonSchema keyword 'properties' must be an object")
			}
			for p := fieldsOf(it.value.Data); p.next(); {
				kid, err := compileSchema(p.value)
				if err != nil {
					return nil, err
				}
				s.properties[string(p.name)] = kid
			}
		case "additionalProperties":
			if it.value.Type != bsoncore.TypeBoolean {
				return nil, notSimulated("additionalProperties other than true and false")
			}
			s.closed = !it.value.Boolean()
		case "enum":
			if it.value.Type != bsoncore.TypeArray {
				return nil, errorf(codeTypeMismatch, "$jsonSchema keyword 'enum' must be an array")
			}
			for e := fieldsOf(it.value.Data); e.next(); {
				s.enum = append(s.enum, e.value)
			}
		case "minimum":
			s.minimum = collation{}.order(nil, it.value)
		case "maximum":
			s.maximum = collation{}.order(nil, it.value)
		case "title", "description":
		default:
			return nil, notSimulated("the $jsonSchema keyword %s", name)
		}
	}
	return s, nil
}

func (s *schema) matches(v bsoncore.Value) bool {
	return len(s.broken(v)) == 0
}

// broken lists the rules that v breaks, as schemaRulesNotSatisfied of an error 121 does.
func (s *schema) broken(v bsoncore.Value) []bsoncore.Value {
	var out []bsoncore.Value
	rule := func(name string, more ...[]byte) {
		out = append(out, document(append([][]byte{bsoncore.AppendStringElement(nil, "operatorName", name)}, more...)...))
	}
	considered := bsoncore.AppendValueElement(nil, "consideredValue", v)
	if s.types != nil && !s.types[v.Type] {
		rule("bsonType", bsoncore.AppendStringElement(nil, "reason", "type did not match"), considered)
	}
	if len(s.enum) > 0 {
		in := false
		for _, e := range s.enum {
			in = in || collation{}.equal(e, v)
		}
		if !in {
			rule("enum", bsoncore.AppendStringElement(nil, "reason", "value was not found in enum"), considered)
		}
	}
	key := collation{}.order(nil, v)
	if s.minimum != nil && key[0] == classNumber && string(key) < string(s.minimum) {
		rule("minimum", bsoncore.AppendStringElement(nil, "reason", "comparison failed"), considered)
	}
	if s.maximum != nil && key[0] == classNumber && string(key) > string(s.maximum) {
		rule("maximum", bsoncore.AppendStringElement(nil, "reason", "comparison failed"), considered)
	}
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return out
	}
	var absent []bsoncore.Value
	for _, name := range s.required {
		if _, ok := lookup(v.Data, name); !ok {
			absent = append(absent, text(name))
		}
	}
	if absent != nil {
		rule("required", bsoncore.BuildArrayElement(nil, "missingProperties", absent...))
	}
	var wrong, extra []bsoncore.Value
	for it := fieldsOf(v.Data); it.next(); {
		kid, ok := s.properties[string(it.name)]
		switch {
		case ok:
			if b := kid.broken(it.value); b != nil {
				wrong = append(wrong, document(bsoncore.AppendStringElement(nil, "propertyName", string(it.name)),
					bsoncore.BuildArrayElement(nil, "details", b...)))
			}
		case s.closed:
			extra = append(extra, text(string(it.name)))
		}
	}
	if wrong != nil {
		rule("properties", bsoncore.BuildArrayElement(nil, "propertiesNotSatisfied", wrong...))
	}
	if extra != nil {
		rule("additionalProperties", bsoncore.BuildArrayElement(nil, "additionalProperties", extra...))
	}
	return out
}

// text is a string value.
func text(s string) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, s)}
}

// explain is errInfo.details of an error 121: why a validator refused the document.
func (f *filter) explain(doc []byte) bsoncore.Value {
	name := bsoncore.AppendStringElement(nil, "operatorName", f.op)
	switch f.op {
	case "$jsonSchema":
		return document(name, bsoncore.BuildArrayElement(nil, "schemaRulesNotSatisfied",
			f.rules.broken(bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: doc})...))
	case "$and", "$or", "$nor":
		var clauses []bsoncore.Value
		for i, k := range f.kids {
			if k.match(doc) == (f.op == "$nor") {
				clauses = append(clauses, document(bsoncore.AppendInt32Element(nil, "index", int32(i)),
					bsoncore.AppendValueElement(nil, "details", k.explain(doc))))
			}
		}
		return document(name, bsoncore.BuildArrayElement(nil, "clausesNotSatisfied", clauses...))
	}
	specified := bsoncore.BuildDocumentElement(nil, "specifiedAs",
		bsoncore.BuildDocumentElement(nil, f.field, bsoncore.AppendValueElement(nil, f.op, f.value)))
	var considered []bsoncore.Value
	if len(f.path) > 0 {
		walk(doc, f.path, func(v bsoncore.Value) bool {
			if !isMissing(v) {
				considered = append(considered, v)
			}
			return false
		})
	}
	if len(considered) == 0 {
		return document(name, specified, bsoncore.AppendStringElement(nil, "reason", "field was missing"))
	}
	return document(name, specified, bsoncore.AppendStringElement(nil, "reason", "comparison failed"),
		bsoncore.AppendValueElement(nil, "consideredValue", considered[0]))
}
