package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// company is what a client sends. It is checked before anything is sent, because that names every bad company at once and
// costs nothing, and because not every server knows validators.
type company struct {
	Name         string `json:"name" bson:"name"`
	Registration string `json:"registration" bson:"registration"` // unique
	Country      string `json:"country,omitempty" bson:"country,omitempty"`
	Employees    *int64 `json:"employees,omitempty" bson:"employees,omitempty"`
}

const maxName = 200 // characters

var (
	registrations = regexp.MustCompile(`^[A-Z0-9-]{1,40}$`)
	countries     = regexp.MustCompile(`^[A-Z]{2}$`)
)

// schema is the collection's validator, on servers that know validators: what no program may store there.
var schema = bson.D{{Key: "$jsonSchema", Value: bson.D{
	{Key: "required", Value: bson.A{"name", "registration", "companyNo"}},
	{Key: "properties", Value: bson.D{
		{Key: "name", Value: bson.D{{Key: "bsonType", Value: "string"}}},
		{Key: "registration", Value: bson.D{{Key: "bsonType", Value: "string"}}},
		{Key: "country", Value: bson.D{{Key: "bsonType", Value: "string"}}},
		{Key: "employees", Value: bson.D{{Key: "bsonType", Value: "long"}, {Key: "minimum", Value: 0}}},
		{Key: "companyNo", Value: bson.D{{Key: "bsonType", Value: "long"}}},
	}},
}}}

// flaws says what is wrong with a company: field and reason.
func (c *company) flaws(found func(field, reason string)) {
	switch n := utf8.RuneCountInString(c.Name); {
	case strings.TrimSpace(c.Name) == "":
		found("name", "is missing or empty")
	case n > maxName:
		found("name", fmt.Sprintf("has %d characters; %d are the most", n, maxName))
	}
	switch {
	case c.Registration == "":
		found("registration", "is missing or empty")
	case !registrations.MatchString(c.Registration):
		found("registration", "has to be 1 to 40 of A-Z, 0-9 and -")
	}
	if c.Country != "" && !countries.MatchString(c.Country) {
		found("country", "has to be two capital letters, such as FI")
	}
	if c.Employees != nil && *c.Employees < 0 {
		found("employees", "cannot be negative")
	}
}

// digest tells requests apart that have the same key. Spaces and the form of the request do not matter.
func digest(companies []company) (string, error) {
	hash := sha256.New()
	for _, c := range companies {
		raw, err := bson.Marshal(c)
		if err != nil {
			return "", err
		}
		hash.Write(raw)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// request is a request's body.
type request struct {
	companies []company
	wrapped   bool // in the manner of AIP-233, not a plain list
}

// pointer is the JSON Pointer of a company, or of a field of it, in the body.
func (r *request) pointer(index int, field string) string {
	pointer := fmt.Sprintf("/%d", index)
	if r.wrapped {
		pointer = fmt.Sprintf("/requests/%d/company", index)
	}
	if field != "" {
		pointer += "/" + field
	}
	return pointer
}

// read understands a body, or says everything that is wrong with it.
func read(body []byte, most int) (*request, *problem) {
	r := &request{}
	texts, err := r.split(body)
	if err != nil {
		return nil, malformed(body, err)
	}
	switch {
	case len(texts) == 0:
		return nil, newProblem("invalid", "There is no company in the request.")
	case len(texts) > most:
		return nil, newProblem("too-large", "The request has %d companies; %d are the most.", len(texts), most)
	}
	r.companies = make([]company, len(texts))
	var failures []failure
	for i, text := range texts {
		found := func(field, reason string) {
			failures = append(failures, failure{Index: i, Pointer: r.pointer(i, field), Reason: strings.TrimSpace(field + " " + reason)})
		}
		if len(text) == 0 {
			found("", "there is no company")
		} else if err := json.Unmarshal(text, &r.companies[i], json.RejectUnknownMembers(true)); err != nil {
			misfit(err, found)
		} else {
			r.companies[i].flaws(found)
		}
	}
	if failures != nil {
		p := newProblem("invalid", "%s refused, so nothing of the request was stored.", count(indexes(failures), "company is", "companies are"))
		p.Failures = failures
		return nil, p
	}
	return r, nil
}

// split finds the texts of the companies in either form of a body.
func (r *request) split(body []byte) ([]jsontext.Value, error) {
	strict := json.RejectUnknownMembers(true)
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '[' {
		var texts []jsontext.Value
		return texts, json.Unmarshal(body, &texts, strict)
	}
	var envelope struct {
		Requests []struct {
			Company jsontext.Value `json:"company"`
		} `json:"requests"`
	}
	if err := json.Unmarshal(body, &envelope, strict); err != nil {
		return nil, err
	}
	r.wrapped = true
	texts := make([]jsontext.Value, len(envelope.Requests))
	for i := range texts {
		texts[i] = envelope.Requests[i].Company
	}
	return texts, nil
}

// misfit explains why a company's JSON is none of a company.
func misfit(err error, found func(field, reason string)) {
	var at *json.SemanticError
	if !errors.As(err, &at) {
		found("", "cannot be read")
		return
	}
	field := clip(at.JSONPointer.LastToken())
	switch {
	case errors.Is(err, json.ErrUnknownName):
		found(field, "is no field of a company that can be given")
	case field == "":
		found("", "a company has to be a JSON object")
	case at.GoType != nil && at.GoType.Kind() == reflect.String:
		found(field, "has to be text")
	default:
		found(field, "has to be a whole number, at most 9223372036854775807")
	}
}

// malformed says where a body stops being one.
func malformed(body []byte, err error) *problem {
	offset, pointer, reason := len(body), jsontext.Pointer(""), `a list of companies, or an object {"requests":[{"company":{…}}, …]}, is expected`
	var syntax *jsontext.SyntacticError
	var shape *json.SemanticError
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		reason = "the body is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		reason = "the text ends too early"
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		offset, pointer = int(syntax.ByteOffset), syntax.JSONPointer
		reason = fmt.Sprintf("the name %q stands twice in the same object", clip(pointer.LastToken()))
	case errors.As(err, &syntax):
		offset, pointer, reason = int(syntax.ByteOffset), syntax.JSONPointer, syntax.Err.Error()
	case errors.As(err, &shape):
		offset, pointer = int(shape.ByteOffset), shape.JSONPointer
	}
	before := body[:min(offset, len(body))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	p := newProblem("malformed", "Line %d, column %d: %s. Nothing was stored.", line, column, reason)
	p.Line, p.Column, p.Pointer = line, column, clip(string(pointer))
	return p
}

// clip keeps what a client sent from filling the answer.
func clip(text string) string {
	if len(text) > 100 {
		return strings.ToValidUTF8(text[:97], "") + "..."
	}
	return text
}
