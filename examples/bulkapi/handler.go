package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"
	maxKey         = 255
	// bodyTime is how long a body may take to arrive.
	bodyTime = 15 * time.Second
	// soon is when to ask again about what should pass.
	soon = 2 * time.Second
)

// errStopping is the cause of the end of a request that stopping has cancelled.
var errStopping = errors.New("the server is stopping")

// answer is the body of 201.
type answer struct {
	Batch     string          `json:"batch"`
	Companies []storedCompany `json:"companies"` // in the order of the request
}

type storedCompany struct {
	ID        string `json:"id"`
	CompanyNo int64  `json:"companyNo"`
	company
}

// batchCreate serves POST /companies:batchCreate.
func (s *service) batchCreate(w http.ResponseWriter, r *http.Request) {
	started := time.Now()
	s.metrics.running.Inc()
	s.running.Add(1)
	defer func() {
		s.running.Add(-1)
		s.metrics.running.Dec()
	}()
	ctx, end := s.begin(r)
	key, created, replayed, p := s.answer(ctx, w, r)
	status := http.StatusCreated
	if key != "" {
		w.Header().Set(keyHeader, key)
	}
	if p != nil {
		p.Batch = key
		status = p.Status
		p.write(w)
	} else {
		if replayed {
			w.Header().Set(replayedHeader, "true")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.MarshalWrite(w, created) // a client that is gone asks again with its key
	}
	end(status, key)
	s.metrics.answered(status, time.Since(started))
	s.log.Info("request", "status", status, "key", key, "took", time.Since(started).Round(time.Millisecond))
}

// answer does the request.
func (s *service) answer(ctx context.Context, w http.ResponseWriter, r *http.Request) (key string, created *answer, replayed bool, p *problem) {
	key, p = keyOf(r)
	if p != nil {
		return "", nil, false, p
	}
	body, p := s.body(w, r)
	if p != nil {
		return key, nil, false, p
	}
	request, p := read(body, s.maxDocuments)
	if p != nil {
		return key, nil, false, p
	}
	ctx, cancel := context.WithTimeout(ctx, s.requestTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		s.log.Info("a request is cut off: what is stored of it will be deleted", "key", key, "cause", context.Cause(ctx))
	})()
	result, err := s.create(ctx, key, request.companies)
	if err != nil {
		return key, nil, false, s.explain(ctx, key, request, err)
	}
	created = &answer{Batch: key, Companies: make([]storedCompany, len(request.companies))}
	ids, numbers := result.Parts[0].IDs, result.Parts[0].Numbers["companyNo"]
	for i, c := range request.companies {
		id, _ := ids[i].(bson.ObjectID) // which a document without an _id gets
		number, _ := numbers[i].(int64) // which a Counter gives
		created.Companies[i] = storedCompany{ID: id.Hex(), CompanyNo: number, company: c}
	}
	return key, created, result.Replayed, nil
}

// keyOf returns the request's key, or a new one.
func keyOf(r *http.Request) (string, *problem) {
	given := r.Header.Values(keyHeader)
	if len(given) == 0 {
		return rand.Text(), nil
	}
	key := given[0]
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' { // as the draft of the header's standard writes it
		key = key[1 : len(key)-1]
	}
	switch {
	case len(given) > 1:
		return "", newProblem("invalid-key", "There are %d headers %s; one is the most.", len(given), keyHeader)
	case key == "" || len(key) > maxKey:
		return "", newProblem("invalid-key", "The %s has %d characters; 1 to %d are allowed.", keyHeader, len(key), maxKey)
	}
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' || c == ',' {
			return "", newProblem("invalid-key", "Character %d of the %s is not allowed: visible ASCII characters are, except \" \\ and comma.", i+1, keyHeader)
		}
	}
	return key, nil
}

// body reads the request's body. Only when all of it is read does the server notice that a client goes away.
func (s *service) body(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	kind, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := strings.ToLower(parameters["charset"])
	if encoding := r.Header.Get("Content-Encoding"); err != nil || kind != "application/json" || charset != "" && charset != "utf-8" || encoding != "" && encoding != "identity" {
		w.Header().Set("Accept-Post", "application/json")
		return nil, newProblem("media-type", "Send application/json in UTF-8 and not compressed; this is %s.", described(r.Header.Get("Content-Type"), encoding))
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.maxBytes))
	var large *http.MaxBytesError
	switch {
	case err == nil: // from here on, the deadline would pass for a client that goes away; otherwise it bounds what is left of the body
		_ = control.SetReadDeadline(time.Time{})
	case errors.As(err, &large):
		return nil, newProblem("too-large", "The request has more than %d bytes.", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, newProblem("too-slow", "The body did not arrive within %v.", bodyTime)
	default:
		return nil, newProblem("client-gone", "The body did not arrive.")
	}
	return body, nil
}

func described(contentType, encoding string) string {
	text := "without a Content-Type"
	if contentType != "" {
		text = fmt.Sprintf("%q", clip(contentType))
	}
	if encoding != "" {
		text += fmt.Sprintf(", compressed as %q", clip(encoding))
	}
	return text
}

// explain says what an error means and what is true of the data. The log gets both the key and the id of the attempt,
// which the library's own lines have.
func (s *service) explain(ctx context.Context, key string, r *request, err error) *problem {
	var failed *batch.Error
	errors.As(err, &failed)
	p := s.judge(ctx, r, err, failed)
	level, attempt := slog.LevelInfo, ""
	if p.Status >= http.StatusInternalServerError {
		level = slog.LevelError
	}
	if failed != nil {
		attempt = failed.BatchID.Hex()
	}
	s.log.Log(ctx, level, "not stored", "problem", p.name, "key", key, "batch", attempt, "stored", p.Stored, "error", err)
	return p
}

func (s *service) judge(ctx context.Context, r *request, err error, failed *batch.Error) *problem {
	stopped := errors.Is(context.Cause(ctx), errStopping)
	switch {
	case failed == nil:
	case s.stopping.Load() && !failed.RolledBack():
		s.left.Add(1)
	case stopped:
		s.cutOff.Add(1)
	}
	switch {
	case errors.Is(err, batch.ErrInProgress):
		return newProblem("in-progress", "Another request with this key has not ended, or its process has died and a recovery will end it. This one changed nothing.").again(soon)
	case errors.Is(err, batch.ErrKeyReused):
		return newProblem("key-reused", "The key belongs to a batch with other companies, which stays as it is. Nothing of this request was stored.")
	case failed == nil:
		return fault(err)
	case failed.Unresolved():
		p := newProblem("unresolved", "All %d companies are in the database, but whether they stay is not known yet. Repeat the request with the same %s to learn it. Recovery decides within about %v.", len(r.companies), keyHeader, 3*s.lease)
		p.Stored = storedUnknown
		return p.again(soon)
	case !failed.RolledBack():
		p := newProblem("incomplete", "The batch failed, and companies of it may be in the database for now. Recovery deletes them, in about %v once the database answers. Repeat the request with the same %s: then it is stored anew.", 3*s.lease, keyHeader)
		p.Stored = storedUnknown
		return p.again(3 * s.lease)
	case len(failed.Documents) > 0:
		return r.refused(failed)
	case stopped:
		return newProblem("unavailable", "The server is stopping. Whatever the request had stored was deleted again.").again(soon)
	case ctx.Err() == context.Canceled:
		return newProblem("client-gone", "The client went away. Whatever the request had stored was deleted again.")
	case ctx.Err() != nil:
		return newProblem("unavailable", "The request was not done within %v. Whatever it had stored was deleted again.", s.requestTimeout).again(soon)
	}
	return fault(failed.Cause)
}

// fault is for what is not the client's doing.
func fault(err error) *problem {
	const truth = "This request has left nothing in the database; whether an earlier one with the key has, a repetition tells."
	if passes(err) {
		return newProblem("unavailable", "The database does not answer, or is too busy. "+truth).again(soon)
	}
	return newProblem("internal", "Something is wrong with the server or its database; the log says what. "+truth)
}

// refused lists the companies that the database refused. Not its words: they may quote what others have stored.
func (r *request) refused(failed *batch.Error) *problem {
	const validation = 121
	name := "duplicate"
	var failures []failure
	first := make(map[string]int) // of each registration
	for i, c := range r.companies {
		if _, seen := first[c.Registration]; !seen {
			first[c.Registration] = i
		}
	}
	for _, d := range failed.Documents {
		if d.Part != 0 { // the key's record: the journal has forgotten the batch, the record has not
			return newProblem("key-reused", "The key belongs to a batch that was stored too long ago for its answer to be kept. Nothing of this request was stored.")
		}
		f := failure{Index: d.Index, Pointer: r.pointer(d.Index, "")}
		registration := r.companies[d.Index].Registration
		switch twin := first[registration]; {
		case d.Duplicate == nil:
			name = "invalid"
			f.Reason = "the database refused it"
			if d.Code == validation {
				f.Reason = "it does not meet the rules of the collection's validator"
			}
		case twin < d.Index:
			f.Pointer = r.pointer(d.Index, "registration")
			f.Reason = fmt.Sprintf("registration %s is also that of %s", registration, r.pointer(twin, ""))
		default:
			f.Pointer = r.pointer(d.Index, "registration")
			f.Reason = fmt.Sprintf("registration %s is taken", registration)
		}
		failures = append(failures, f)
	}
	p := newProblem(name, "%s refused, so nothing of the request is stored.", count(indexes(failures), "company was", "companies were"))
	p.Failures = failures
	return p
}
