package main

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// problem is an error's body, as RFC 9457 has it. The members after Detail are this program's own.
type problem struct {
	Type     string    `json:"type"` // where it is explained
	Title    string    `json:"title"`
	Status   int       `json:"status"`
	Detail   string    `json:"detail"`
	Stored   string    `json:"stored"`          // what this very request has left in the database: "nothing" or "unknown"
	Batch    string    `json:"batch,omitempty"` // the Idempotency-Key, given or made
	Line     int       `json:"line,omitzero"`
	Column   int       `json:"column,omitzero"` // in characters
	Pointer  string    `json:"pointer,omitempty"`
	Failures []failure `json:"failures,omitempty"`

	name       string
	retryAfter time.Duration // zero for never
}

// failure is one company that was refused.
type failure struct {
	Index   int    `json:"index"`   // in the list
	Pointer string `json:"pointer"` // JSON Pointer in the body
	Reason  string `json:"reason"`
}

const (
	storedNothing = "nothing"
	storedUnknown = "unknown"
)

// statusClientGone is told to nobody but the log and the metrics.
const statusClientGone = 499

type kind struct {
	status             int
	title, explanation string
}

// kinds has every problem by its name. The names are part of the interface.
var kinds = map[string]kind{
	"malformed": {http.StatusBadRequest, "The body is not what is expected",
		"The body is no JSON, or has a name twice in an object, or something behind its\nend, or is neither a list of companies nor an object with \"requests\". Line and\ncolumn say where. Nothing was stored. Repeating it does not help."},
	"invalid-key": {http.StatusBadRequest, "The Idempotency-Key cannot be used",
		"It has to be one header with 1 to 255 visible ASCII characters, with or\nwithout quotes around it. Nothing was stored."},
	"not-found":  {http.StatusNotFound, "There is nothing here", "See /openapi.yaml for what there is."},
	"method":     {http.StatusMethodNotAllowed, "The method is not allowed here", "The header Allow names the one that is."},
	"too-slow":   {http.StatusRequestTimeout, "The body did not arrive in time", "Nothing was stored."},
	"too-large":  {http.StatusRequestEntityTooLarge, "The request is too large", "Divide it into several requests. Each is then all or nothing for itself.\nNothing was stored."},
	"media-type": {http.StatusUnsupportedMediaType, "The content type is not supported", "Send application/json in UTF-8, without a Content-Encoding. Nothing was\nstored."},
	"invalid": {http.StatusUnprocessableEntity, "Companies are not fit to be stored",
		"Every company that was refused is in \"failures\", by its index in the list.\nNothing was stored, not even the good ones. Repeating it does not help."},
	"key-reused": {http.StatusUnprocessableEntity, "The Idempotency-Key belongs to another request",
		"The batch of that key has other companies, or was stored so long ago that its\nanswer is no longer kept. It stays as it is. Nothing of this request was\nstored. Use a new key for a new request."},
	"duplicate": {http.StatusConflict, "Companies are there already",
		"Every company whose registration is taken, in the database or by an earlier\none of the same request, is in \"failures\". What was stored of the request was\ndeleted again. Numbers that it used are not used again. The other company may\nbe one of a request that is still running, which may yet fail."},
	"in-progress": {http.StatusConflict, "A request with this Idempotency-Key is in progress",
		"Ask again after Retry-After with the same key. If the process that worked on\nit has died, a recovery ends it first; GET /batches shows that."},
	"client-gone": {statusClientGone, "The client went away", "What was stored of the request was deleted again."},
	"internal": {http.StatusInternalServerError, "The server has a fault",
		"Nothing was stored. The log has the reason; repeating it helps only when\nsomebody has done something about it."},
	"unavailable": {http.StatusServiceUnavailable, "The database or this server cannot take it now",
		"Nothing was stored, or what was stored was deleted again. Repeat it after\nRetry-After, with the same Idempotency-Key."},
	"incomplete": {http.StatusServiceUnavailable, "The batch failed and could not be undone yet",
		"Companies of this request may be in the database for now. The journal knows\nwhich; the recovery that runs in every process of this program deletes them.\nGET /batches shows the batch until then. Repeat the request with the same\nIdempotency-Key: it is answered with 409 until everything is deleted, and is\nthen stored anew."},
	"unresolved": {http.StatusServiceUnavailable, "Whether the batch is stored is not known yet",
		"All companies are in the database, but the last word in the journal got lost.\nEither they are stored for good, or a recovery deletes all of them. Repeat the\nrequest with the same Idempotency-Key to learn which."},
}

func newProblem(name string, format string, args ...any) *problem {
	k := kinds[name]
	return &problem{name: name, Type: "/problems/" + name, Title: k.title, Status: k.status, Detail: fmt.Sprintf(format, args...), Stored: storedNothing}
}

// again says when to repeat the request.
func (p *problem) again(after time.Duration) *problem {
	p.retryAfter = after
	return p
}

// write answers with the problem, over several lines: it is also read by people.
func (p *problem) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
	}
	body, err := json.Marshal(p, jsontext.WithIndent("  "))
	if err != nil {
		panic(err) // cannot happen: every text in it is UTF-8
	}
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n')) // a client that is gone does not read it
}

// explain serves /problems/{name}.
func explain(w http.ResponseWriter, r *http.Request) {
	k, known := kinds[r.PathValue("name")]
	if !known {
		notFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "%s (%d)\n\n%s\n", k.title, k.status, k.explanation)
}

func notFound(w http.ResponseWriter, r *http.Request) {
	newProblem("not-found", "There is no %s; GET /openapi.yaml describes what there is.", clip(strconv.Quote(r.URL.Path))).write(w)
}

// indexes counts the different companies among failures, which are in their order.
func indexes(failures []failure) int {
	n := 0
	for i, f := range failures {
		if i == 0 || f.Index != failures[i-1].Index {
			n++
		}
	}
	return n
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
