package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// router finds the operation of a request in the description.
var router = sync.OnceValues(func() (routers.Router, error) {
	document, err := openapi3.NewLoader().LoadFromData(description)
	if err != nil {
		return nil, err
	}
	openapi3filter.RegisterBodyDecoder("application/yaml", openapi3filter.FileBodyDecoder) // its contents are not looked at
	return legacy.NewRouter(document)
})

// matches checks an answer against the description; and the request, if it was a good one.
func matches(request *http.Request, body string, r reply) error {
	find, err := router()
	if err != nil {
		return err
	}
	if r.status == http.StatusNotFound || r.status == http.StatusMethodNotAllowed {
		return nil // no operation
	}
	asked := request.Clone(context.Background())
	asked.URL = &url.URL{Path: request.URL.Path} // the description names no host
	route, parameters, err := find.FindRoute(asked)
	if err != nil {
		return err
	}
	asked.Body = io.NopCloser(strings.NewReader(body))
	input := &openapi3filter.RequestValidationInput{Request: asked, PathParams: parameters, Route: route}
	if r.status == http.StatusCreated {
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			return err
		}
	}
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: r.status, Header: r.header, Body: io.NopCloser(bytes.NewReader([]byte(r.body))),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	})
}

// The description is a valid one, names each problem's status, and refuses what the program refuses.
func TestDescription(t *testing.T) {
	document, err := openapi3.NewLoader().LoadFromData(description)
	if err != nil {
		t.Fatal(err)
	}
	if err := document.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	responses := document.Paths.Value("/companies:batchCreate").Post.Responses
	for name, k := range kinds {
		if k.status != statusClientGone && k.status != http.StatusNotFound && responses.Status(k.status) == nil {
			t.Errorf("%s: no response %d is described", name, k.status)
		}
	}
	request, err := http.NewRequest(http.MethodPost, "/companies:batchCreate", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for body, good := range map[string]bool{
		`[{"name":"A","registration":"1"}]`:                                         true,
		`{"requests":[{"company":{"name":"A","registration":"1","country":"FI"}}]}`: true,
		`[{"name":"A"}]`:                                    false,
		`[{"name":"A","registration":"a"}]`:                 false,
		`[{"name":"A","registration":"1","more":1}]`:        false,
		`[{"name":"A","registration":"1","employees":-1}]`:  false,
		`[{"name":"A","registration":"1","employees":1.5}]`: false,
		`[]`: false,
		`{"requests":[{"company":{"name":"A"}}]}`: false,
	} {
		_, p := read([]byte(body), 10)
		find, err := router()
		if err != nil {
			t.Fatal(err)
		}
		route, parameters, err := find.FindRoute(request)
		if err != nil {
			t.Fatal(err)
		}
		asked := request.Clone(t.Context())
		asked.Body = io.NopCloser(strings.NewReader(body))
		described := openapi3filter.ValidateRequest(t.Context(), &openapi3filter.RequestValidationInput{Request: asked, PathParams: parameters, Route: route})
		if (p == nil) != good || (described == nil) != good {
			t.Errorf("%s: the program says %+v, the description %v", body, p, described)
		}
	}
}

// Every address that the description names is served.
func TestDescribedPaths(t *testing.T) {
	s := newTarget(t).serve()
	s.expectStored(s.post("", list("A-1")), 1)
	for path, status := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/batches": 200, "/metrics": 200, "/openapi.yaml": 200, "/problems/duplicate": 200, "/problems/none": 404, "/": 404, "/%ff": 404,
	} {
		if r := s.get(path); r.status != status {
			t.Errorf("%s: %d\n%s", path, r.status, r.body)
		}
	}
	if r := s.get("/companies:batchCreate"); r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != http.MethodPost {
		t.Errorf("%+v", r)
	}
	for name, k := range kinds {
		if r := s.get("/problems/" + name); r.status != 200 || !strings.HasPrefix(r.body, k.title) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
