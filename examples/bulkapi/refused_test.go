package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/intact-go/intact/internal/faultwire"
)

// Every company that is not fit is told, and nothing is sent.
func TestInvalid(t *testing.T) {
	s := newTarget(t).serve()
	body := `{"requests":[
		{"company":{"name":"Good","registration":"A-1","country":"FI","employees":0}},
		{"company":{"name":" ","registration":"a-1"}},
		{},
		{"company":{"name":7,"registration":"A-2"}},
		{"company":{"name":"A","registration":"A-3","companyNo":1}},
		{"company":{"name":"A","registration":"A-4","country":"Finland"}},
		{"company":null},
		{"company":[]},
		{"company":{"name":"` + strings.Repeat("å", 201) + `","registration":"A-5","employees":-1}}
	]}`
	p := s.expect(s.post("", body), http.StatusUnprocessableEntity, "invalid")
	want := []string{
		"/requests/1/company/name: name is missing or empty",
		"/requests/1/company/registration: registration has to be 1 to 40 of A-Z, 0-9 and -",
		"/requests/2/company: there is no company",
		"/requests/3/company/name: name has to be text",
		"/requests/4/company/companyNo: companyNo is no field of a company that can be given",
		"/requests/5/company/country: country has to be two capital letters, such as FI",
		"/requests/6/company/name: name is missing or empty",
		"/requests/6/company/registration: registration is missing or empty",
		"/requests/7/company: a company has to be a JSON object",
		"/requests/8/company/name: name has 201 characters; 200 are the most",
		"/requests/8/company/employees: employees cannot be negative",
	}
	var got []string
	for _, f := range p.Failures {
		got = append(got, f.Pointer+": "+f.Reason)
		if !strings.Contains(f.Pointer, fmt.Sprintf("/%d/", f.Index)) {
			t.Errorf("index %d, pointer %s", f.Index, f.Pointer)
		}
	}
	if !slices.Equal(got, want) || !strings.HasPrefix(p.Detail, "8 companies are refused") {
		t.Errorf("%s\n%s\ninstead of\n%s", p.Detail, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, empty := range []string{"[]", `{}`, `{"requests":[]}`, `{"requests":null}`} {
		s.expect(s.post("", empty), http.StatusUnprocessableEntity, "invalid")
	}
	if n := s.wire.Count(faultwire.Insert, faultwire.FindAndModify); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
}

// What is not JSON, or could mean two things, is refused with its place.
func TestMalformed(t *testing.T) {
	s := newTarget(t).serve()
	for _, c := range []struct {
		body         string
		line, column int
		reason       string
	}{
		{``, 1, 1, "the body is empty"},
		{" \n ", 2, 2, "the body is empty"},
		{`[{"name":"A","registration":"1"}`, 1, 33, "the text ends too early"},
		{"[\n  {\"name\":\"Å\",\"registration\":\"1\"},,\n]", 2, 35, "invalid character ','"},
		{`[{"name":"A","name":"B","registration":"1"}]`, 1, 14, `the name "name" stands twice`},
		{`{"requests":[],"requests":[]}`, 1, 16, `the name "requests" stands twice`},
		{`[{"name":"A","registration":"1"}] []`, 1, 35, "invalid character '['"},
		{`[{"name":"A","registration":"1"}]x`, 1, 34, "invalid character 'x'"},
		{"[{\"name\":\"\xff\",\"registration\":\"1\"}]", 1, 11, "invalid UTF-8"},
		{`[{"name":"A","registration":NaN}]`, 1, 29, "invalid character 'N'"},
		{`{"requests":{}}`, 1, 13, "is expected"},
		{`{"companies":[]}`, 1, 2, "is expected"},
		{`{"requests":[7]}`, 1, 14, "is expected"},
		{`"text"`, 1, 1, "is expected"},
	} {
		p := s.expect(s.post("", c.body), http.StatusBadRequest, "malformed")
		if p.Line != c.line || p.Column != c.column || !strings.Contains(p.Detail, c.reason) || p.Stored != storedNothing {
			t.Errorf("%q: line %d, column %d instead of %d, %d: %s", c.body, p.Line, p.Column, c.line, c.column, p.Detail)
		}
	}
	p := s.expect(s.post("", `{"requests":[{"company":{"name":"A"}},{"company":{"name":"A","name":"A"}}]}`), http.StatusBadRequest, "malformed")
	if p.Pointer != "/requests/1/company/name" {
		t.Errorf("%+v", p)
	}
	if n := s.count(); n != 0 {
		t.Errorf("%d companies", n)
	}
}

// A request above the limits is refused, one at them is not.
func TestTooLarge(t *testing.T) {
	at := list("A-1", "A-2", "A-3")
	s := newTarget(t).serve("--max-documents", "3", "--max-bytes", fmt.Sprint(len(at)))
	s.expectStored(s.post("", at), 3)
	p := s.expect(s.post("", `[{},{},{},{}]`), http.StatusRequestEntityTooLarge, "too-large")
	if !strings.Contains(p.Detail, "4 companies; 3 are the most") {
		t.Errorf("%+v", p)
	}
	p = s.expect(s.post("", at+" "), http.StatusRequestEntityTooLarge, "too-large")
	if !strings.Contains(p.Detail, fmt.Sprint(len(at), " bytes")) {
		t.Errorf("%+v", p)
	}
}

func TestMediaType(t *testing.T) {
	s := newTarget(t).serve()
	for _, c := range []struct {
		header http.Header
		status int
	}{
		{http.Header{"Content-Type": {"application/json; charset=UTF-8"}}, 201},
		{http.Header{"Content-Type": {"Application/JSON"}}, 201},
		{http.Header{"Content-Type": {"text/plain"}}, 415},
		{http.Header{"Content-Type": {"application/json; charset=latin1"}}, 415},
		{http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, 415},
		{http.Header{"Content-Type": nil}, 415},
		{http.Header{"Content-Encoding": {"gzip"}}, 415},
	} {
		r, err := s.do(t.Context(), http.MethodPost, "/companies:batchCreate", "", list(fmt.Sprint("A-", s.count())), c.header)
		if err != nil {
			t.Fatal(err)
		}
		if r.status != c.status {
			t.Errorf("%v: %d\n%s", c.header, r.status, r.body)
		}
		if r.status == 415 && r.header.Get("Accept-Post") != "application/json" {
			t.Errorf("%v", r.header)
		}
	}
}

// A key that cannot be one is refused before anything else.
func TestInvalidKey(t *testing.T) {
	s := newTarget(t).serve()
	longest := strings.Repeat("k", maxKey)
	for _, key := range []string{longest, "9f6c1c7e-2f0a-4c61-a4c5-6f0d0d6f7b11", "$where", "a.b/c:d=~"} {
		r := s.post(key, list(fmt.Sprint("A-", s.count())))
		s.expectStored(r, 1)
		if r.created.Batch != key {
			t.Errorf("the key is %q now", r.created.Batch)
		}
	}
	for _, keys := range [][]string{{longest + "k"}, {""}, {`""`}, {"a b"}, {"a,b"}, {`a"b`}, {`a\b`}, {"å"}, {"a\tb"}, {"a", "b"}} {
		r, err := s.do(t.Context(), http.MethodPost, "/companies:batchCreate", "", list("B-1"), http.Header{keyHeader: keys})
		if err != nil {
			t.Fatal(err)
		}
		p := s.expect(r, http.StatusBadRequest, "invalid-key")
		if p.Batch != "" || r.header.Get(keyHeader) != "" {
			t.Errorf("%q: %+v", keys, r)
		}
	}
	if n := s.count(); n != 4 {
		t.Errorf("%d companies", n)
	}
}

// A body that does not arrive keeps nobody waiting for ever.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	s := newTarget(t).serve()
	connection, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	fmt.Fprintf(connection, "POST /companies:batchCreate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n%s", list("A-1"))
	if answer, err := io.ReadAll(connection); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408 ") || !strings.Contains(string(answer), "/problems/too-slow") {
		t.Errorf("%v\n%s", err, answer)
	}
	if n := s.count(); n != 0 {
		t.Errorf("%d companies", n)
	}
}

// A body that ends before its length is nobody's request.
func TestCutBody(t *testing.T) {
	s := newTarget(t).serve()
	connection, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(connection, "POST /companies:batchCreate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n%s", list("A-1"))
	if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	bufio.NewReader(connection).ReadString('\n') // the answer, or the end
	connection.Close()
	s.wait("the request has ended", func() bool { return strings.Contains(s.log.String(), "status=499") })
	if n := s.count(); n != 0 {
		t.Errorf("%d companies", n)
	}
}
