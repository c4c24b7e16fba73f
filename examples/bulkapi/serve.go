package main

import (
	"context"
	_ "embed" // for the description
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/intact-go/intact/rollback"
)

const (
	// undoTime is how long batches that stopping has cancelled may take to be rolled back.
	undoTime = 12 * time.Second
	// lastTime is how long handlers may take to return once their rollbacks were ended.
	lastTime = 3 * time.Second
	// lookTime is how long /readyz and /batches may take.
	lookTime = 3 * time.Second
)

//go:embed openapi.yaml
var description []byte

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /companies:batchCreate", s.batchCreate)
	mux.HandleFunc("/companies:batchCreate", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		newProblem("method", "%s is not allowed here; POST is.", clip(r.Method)).write(w)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /batches", s.batches)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		w.Write(description)
	})
	mux.HandleFunc("GET /problems/{name}", explain)
	mux.HandleFunc("/", notFound)
	return mux
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, body) // a client that is gone does not read it
}

// ready serves /readyz. Batches that wait for a recovery do not make this process unfit.
func (s *service) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookTime)
	defer cancel()
	switch {
	case s.stopping.Load():
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "stopping"})
	case s.db.Client().Ping(ctx, readpref.Primary()) != nil:
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "the database does not answer"})
	default:
		writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
	}
}

// unfinished is one batch in the answer of /batches.
type unfinished struct {
	Batch     string    `json:"batch"`
	State     string    `json:"state"`
	Started   time.Time `json:"started"`
	Owner     string    `json:"owner"`
	Lease     string    `json:"lease"`
	Companies int64     `json:"companies"`
	Attempts  int       `json:"attempts"` // of recoveries
	Problem   string    `json:"problem,omitempty"`
}

// batches serves /batches. It reads the whole journal, so it is for people and for alerts, not for probes every second.
func (s *service) batches(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookTime)
	defer cancel()
	records, err := rollback.List(ctx, s.journal)
	if err != nil {
		s.log.Error("the journal cannot be read", "error", err)
		newProblem("unavailable", "The journal cannot be read.").again(soon).write(w)
		return
	}
	list := []unfinished{}
	for _, record := range records {
		if !record.Unfinished() {
			continue
		}
		u := unfinished{
			Batch: record.ID, State: record.State, Started: record.Started, Owner: record.Owner, Lease: record.Lease.String(),
			Attempts: record.Attempts, Problem: record.Problem,
		}
		for _, target := range record.Targets {
			if target.Collection == s.db.Name()+"."+s.companies().Name() {
				u.Companies = target.Documents
			}
		}
		if record.Err != nil {
			u.Problem = record.Err.Error()
		}
		list = append(list, u)
	}
	writeJSON(w, http.StatusOK, map[string]any{"unfinished": list})
}

// serve takes requests until a signal or the end of ctx, and returns when nothing runs any more.
func (p *program) serve(ctx context.Context, o *options, s *service, listener net.Listener) (int, error) {
	requests, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // the contexts of all requests
	defer cancel(nil)
	server := &http.Server{
		Handler:           s.handler(),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	recovering, endRecovery := context.WithCancel(requests)
	recovered, served := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(recovered)
		s.recover(recovering)
	}()
	go func() { served <- server.Serve(listener) }()
	defer func() {
		endRecovery()
		<-recovered
	}()

	url := "http://" + listener.Addr().String()
	if p.listening != nil {
		p.listening(url)
	}
	if o.demo {
		err := p.demo(ctx, url, s)
		return s.stop(server, cancel, p.signals), err
	}
	fmt.Fprintf(p.stdout, greeting, url)
	select {
	case signal := <-p.signals:
		s.log.Info("stopping: what runs may end", "signal", signal, "grace", s.grace)
	case <-ctx.Done():
	case err := <-served:
		return s.stop(server, cancel, p.signals), fmt.Errorf("no more requests are taken: %w", err)
	}
	return s.stop(server, cancel, p.signals), nil
}

const greeting = `bulkapi serves on %[1]s until Ctrl-C. Try it:

  curl -i %[1]s/companies:batchCreate \
    -H 'Content-Type: application/json' -H 'Idempotency-Key: first' \
    -d '[{"name":"Kahvila Aalto","registration":"FI-1"}]'

`

// stop lets requests end, then cancels them and lets them roll back, then gives up. A signal takes it to the next stage.
func (s *service) stop(server *http.Server, cancel context.CancelCauseFunc, signals <-chan os.Signal) int {
	s.stopping.Store(true)
	server.SetKeepAlivesEnabled(false)
	if s.shutdown(server, s.grace, signals) == nil {
		return s.code()
	}
	s.log.Warn("stopping: what still runs is cancelled and rolled back", "requests", s.running.Load())
	cancel(errStopping)
	if s.shutdown(server, undoTime, signals) == nil {
		return s.code()
	}
	s.log.Error("stopping: rollbacks are given up; a recovery has to delete the rest", "requests", s.running.Load())
	close(s.giveUp)
	if s.shutdown(server, lastTime, signals) != nil {
		s.left.Add(s.running.Load())
		server.Close()
	}
	return s.code()
}

// shutdown stops taking connections and waits for the requests that run.
func (s *service) shutdown(server *http.Server, limit time.Duration, signals <-chan os.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- server.Shutdown(ctx) }()
	select {
	case err := <-done:
		return err
	case <-signals:
		cancel()
		return errors.Join(errStopping, <-done)
	}
}

// code is the exit code after stopping.
func (s *service) code() int {
	switch {
	case s.left.Load() > 0:
		return exitIncomplete
	case s.cutOff.Load() > 0:
		return exitCutOff
	}
	return exitStopped
}
