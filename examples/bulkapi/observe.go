package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/intact-go/intact/batch"
)

// metrics are what /metrics shows.
type metrics struct {
	registry  *prometheus.Registry
	running   prometheus.Gauge
	requests  *prometheus.CounterVec
	seconds   prometheus.Histogram
	events    *prometheus.CounterVec
	documents *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		running:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "bulkapi_requests_running", Help: "Requests that have no answer yet."}),
		requests:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bulkapi_requests_total", Help: "Requests by the status of their answer; 499 if the client went away."}, []string{"code"}),
		seconds:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bulkapi_request_seconds", Help: "Time until the answer, rollback included.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 14)}),
		events:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bulkapi_batch_events_total", Help: "Events in the lives of batches. Alert on incomplete."}, []string{"event"}),
		documents: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bulkapi_batch_documents_total", Help: "Documents by what happened to them. A batch has one more than companies."}, []string{"event"}),
	}
	m.registry.MustRegister(m.running, m.requests, m.seconds, m.events, m.documents,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for kind := batch.Prepared; kind <= batch.Committed; kind++ {
		m.events.WithLabelValues(label(kind)) // so that an alert sees 0 before it sees 1
	}
	return m
}

func label(kind batch.EventKind) string { return strings.ReplaceAll(kind.String(), " ", "_") }

func (m *metrics) answered(status int, took time.Duration) {
	m.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	m.seconds.Observe(took.Seconds())
}

// begin starts a request's span, which belongs to the trace that the client may have begun.
func (s *service) begin(r *http.Request) (context.Context, func(status int, key string)) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := s.tracer.Start(ctx, "POST /companies:batchCreate", trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(status int, key string) {
		span.SetAttributes(attribute.Int("http.response.status_code", status), attribute.String("batch.key", key))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// recorder turns a batch's events into metrics and spans. An event does not tell which request it is for, so a recorder
// has an Inserter of its own and serves one request at a time; it is used again, because an Inserter remembers what it
// has looked up.
type recorder struct {
	*service
	inserter *batch.Inserter
	ctx      context.Context // with span
	span     trace.Span      // of the batch
	rollback trace.Span      // nil if there is none
}

func (s *service) newRecorder() *recorder {
	r := &recorder{service: s}
	r.inserter = batch.New(s.config(r.observe))
	return r
}

// insertOnce is the Inserter's, with a span around it.
func (r *recorder) insertOnce(ctx context.Context, key string, parts ...batch.Part) (*batch.Result, error) {
	r.ctx, r.span = r.tracer.Start(ctx, "batch")
	defer func() {
		if r.rollback != nil {
			r.rollback.End()
		}
		r.span.End()
		r.ctx, r.span, r.rollback = nil, nil, nil
	}()
	result, err := r.inserter.InsertOnce(r.ctx, key, parts...)
	var failed *batch.Error
	switch {
	case errors.As(err, &failed):
		r.span.SetAttributes(attribute.String("batch.id", failed.BatchID.Hex()), attribute.Bool("batch.rolled_back", failed.RolledBack()))
		r.span.SetStatus(codes.Error, err.Error()) // which quotes no documents
	case err == nil:
		r.span.SetAttributes(attribute.String("batch.id", result.BatchID.Hex()), attribute.Bool("batch.replayed", result.Replayed), attribute.Int("batch.documents", result.Inserted))
	}
	return result, err
}

// observe is told of one event after the other, and only while insertOnce runs.
func (r *recorder) observe(e batch.Event) {
	r.metrics.events.WithLabelValues(label(e.Kind)).Inc()
	if e.Documents > 0 {
		r.metrics.documents.WithLabelValues(label(e.Kind)).Add(float64(e.Documents))
	}
	if e.Kind == batch.RollbackStarted {
		_, r.rollback = r.tracer.Start(r.ctx, "rollback")
	}
	span := r.span
	if r.rollback != nil {
		span = r.rollback
	}
	attributes := []attribute.KeyValue{attribute.Int("documents", e.Documents)}
	if e.Collection != "" {
		attributes = append(attributes, attribute.String("collection", e.Collection))
	}
	if e.Delay > 0 {
		attributes = append(attributes, attribute.String("delay", e.Delay.String()))
	}
	span.AddEvent(e.Kind.String(), trace.WithAttributes(attributes...))
	if e.Kind == batch.Incomplete {
		span.SetStatus(codes.Error, "documents may be left")
	}
}

// flushTime is how long the last spans may take to be written.
const flushTime = time.Second

// traces returns where spans go, and what has to be called at the end.
func (p *program) traces(o *options) (trace.TracerProvider, func(), error) {
	switch {
	case p.tracer != nil:
		return p.tracer, func() {}, nil
	case !o.trace:
		return noop.NewTracerProvider(), func() {}, nil
	}
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(p.stderr))
	if err != nil {
		return nil, nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTime)
		defer cancel()
		_ = provider.Shutdown(ctx) // spans that get lost are no reason for another exit code
	}, nil
}
