package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// The metrics count what happened, and have every event from the start.
func TestMetrics(t *testing.T) {
	s := newTarget(t).serve()
	metric := func(name string, want int) {
		t.Helper()
		if body := s.get("/metrics").body; !strings.Contains(body, fmt.Sprintf("\n%s %d\n", name, want)) {
			t.Errorf("not %s %d in\n%s", name, want, body)
		}
	}
	metric(`bulkapi_batch_events_total{event="incomplete"}`, 0)
	s.expectStored(s.post("k", list("A-1", "A-2", "A-3")), 3)
	s.post("k", list("A-1", "A-2", "A-3"))
	s.expect(s.post("", list("B-1", "B-2", "A-1", "A-2")), http.StatusConflict, "duplicate")
	s.expect(s.post("", "[{}]"), http.StatusUnprocessableEntity, "invalid")
	metric(`bulkapi_requests_total{code="201"}`, 2)
	metric(`bulkapi_requests_total{code="409"}`, 1)
	metric(`bulkapi_requests_total{code="422"}`, 1)
	metric(`bulkapi_request_seconds_count`, 4)
	metric(`bulkapi_requests_running`, 0)
	metric(`bulkapi_batch_events_total{event="committed"}`, 1)
	metric(`bulkapi_batch_events_total{event="failed"}`, 1)
	metric(`bulkapi_batch_events_total{event="rolled_back"}`, 1)
	metric(`bulkapi_batch_documents_total{event="inserted"}`, 3+1+2)
	metric(`bulkapi_batch_documents_total{event="refused"}`, 2)
	metric(`bulkapi_batch_documents_total{event="rolled_back"}`, 2)
	held := s.wire.On(s.inserts()).Once().Hold()
	first := s.postLater("", list("C-1"))
	<-held.Arrived()
	metric(`bulkapi_requests_running`, 1)
	held.Release()
	<-first
}

// Companies whose insert is repeated because its answer got lost count once.
func TestMetricsOfRepetitions(t *testing.T) {
	s := newTarget(t).serve()
	s.wire.On(s.inserts()).Once().DropReply()
	s.expectStored(s.post("", list("A-1", "A-2", "A-3")), 3)
	body := s.get("/metrics").body
	for _, line := range []string{
		`bulkapi_batch_events_total{event="retrying"} 1`, `bulkapi_batch_documents_total{event="committed"} 4`,
		`bulkapi_batch_events_total{event="committed"} 1`, `bulkapi_batch_events_total{event="refused"} 0`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("not %s in\n%s", line, body)
		}
	}
}

// spans remembers which spans have begun, besides those that have ended.
type spans struct {
	*tracetest.SpanRecorder
}

// tree returns the ended spans of a trace as lines, each with its parent's name.
func (s *spans) tree(id trace.TraceID) []string {
	names := make(map[trace.SpanID]string)
	for _, span := range s.Ended() {
		names[span.SpanContext().SpanID()] = span.Name()
	}
	var lines []string
	for _, span := range s.Ended() {
		if span.SpanContext().TraceID() == id {
			lines = append(lines, fmt.Sprintf("%s in %q", span.Name(), names[span.Parent().SpanID()]))
		}
	}
	slices.Sort(lines)
	return lines
}

// Each request has a span, in it one of its batch, in that one of the rollback if there is one; all have ended when the
// answers are there, also those of requests that run at the same time.
func TestTraces(t *testing.T) {
	recorded := &spans{tracetest.NewSpanRecorder()}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorded))
	s := newTarget(t).serveWith(&program{tracer: provider})
	id := func(n int) trace.TraceID { return trace.TraceID{15: byte(n)} }
	send := func(n int, key, body string) {
		header := http.Header{"Traceparent": {fmt.Sprintf("00-%s-00000000000000%02x-01", id(n), n)}}
		if _, err := s.do(context.Background(), http.MethodPost, "/companies:batchCreate", key, body, header); err != nil {
			t.Error(err)
		}
	}
	send(1, "k", list("A-1", "A-2"))
	send(2, "k", list("A-1", "A-2"))
	send(3, "", "nonsense")
	var group sync.WaitGroup
	for n := 4; n < 24; n++ {
		body := list(fmt.Sprint("B-", n), "A-1")
		if n%2 == 0 {
			body = list(fmt.Sprint("B-", n))
		}
		group.Go(func() { send(n, "", body) })
	}
	group.Wait()
	s.wait("all have ended", func() bool { return len(recorded.Ended()) == len(recorded.Started()) })

	const request, batch, rollback = `POST /companies:batchCreate in ""`, `batch in "POST /companies:batchCreate"`, `rollback in "batch"`
	for n := 1; n < 24; n++ {
		want := []string{request, batch}
		switch {
		case n == 3:
			want = want[:1]
		case n > 3 && n%2 == 1:
			want = append(want, rollback)
		}
		slices.Sort(want)
		if got := recorded.tree(id(n)); !slices.Equal(got, want) {
			t.Errorf("trace %d has %q instead of %q", n, got, want)
		}
	}
	events := make(map[string]int)
	for _, span := range recorded.Ended() {
		for _, e := range span.Events() {
			events[span.Name()+": "+e.Name]++
		}
	}
	for event, want := range map[string]int{
		"batch: prepared": 22, "batch: committed": 11, "batch: refused": 10, "batch: failed": 10, "rollback: rollback started": 10, "rollback: rolled back": 10,
	} {
		if events[event] != want {
			t.Errorf("%d events %q instead of %d", events[event], event, want)
		}
	}
}

// With --trace, spans are written to the standard error.
func TestTraceFlag(t *testing.T) {
	for _, flags := range [][]string{nil, {"--trace"}} {
		s := newTarget(t).serve(flags...)
		s.expectStored(s.post("k", list("A-1")), 1)
		s.end()
		if got := strings.Contains(s.log.String(), `"Name":"batch"`); got != (flags != nil) {
			t.Errorf("%v: %s", flags, s.log)
		}
	}
}
