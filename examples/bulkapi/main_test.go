package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// asProgram has a test binary be the program itself, for what only a process of its own can show.
const asProgram = "INTACT_TEST_AS_BULKAPI"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		p := newProgram()
		p.dialer = hold()
		os.Exit(p.run(context.Background(), os.Args[1:]))
	}
	flag.Set("test.parallel", "8") // those that are parallel wait, most of the time
	servertest.Main(m)
}

// target is an empty database, and serves it.
type target struct {
	t    testing.TB
	uri  string
	db   *mongo.Database
	wire *faultwire.Wire // between the program and the database
}

func newTarget(t testing.TB) *target {
	t.Helper()
	return targetOn(t, servertest.Embedded(t))
}

func targetOn(t testing.TB, server *servertest.Server) *target {
	t.Helper()
	return &target{t: t, uri: server.URI, db: server.Database(t, server.Client(t)), wire: faultwire.ForTest(t)}
}

func (x *target) args(more ...string) []string {
	return append([]string{"--uri", x.uri, "--db", x.db.Name()}, more...)
}

// served is a program that serves, in this process.
type served struct {
	*target
	url     string
	signals chan os.Signal
	log     *output
	end     func() int // as by a signal; gives the exit code
}

// serve starts the program. The test fails if it does not end with 0, unless the test has ended it itself.
func (x *target) serve(args ...string) *served {
	x.t.Helper()
	return x.serveWith(&program{}, args...)
}

func (x *target) serveWith(p *program, args ...string) *served {
	x.t.Helper()
	s := &served{target: x, signals: make(chan os.Signal, 3), log: &output{}}
	urls, codes := make(chan string, 1), make(chan int, 1)
	p.stdout, p.stderr, p.dialer, p.signals = io.Discard, s.log, x.wire, s.signals
	p.env = func(string) string { return "" }
	p.listening = func(url string) { urls <- url }
	go func() { codes <- p.run(context.Background(), x.args(args...)) }()
	select {
	case s.url = <-urls:
	case code := <-codes:
		x.t.Fatalf("it ended with %d: %s", code, s.log)
	}
	ended := false
	s.end = func() int {
		ended = true
		s.signals <- os.Interrupt
		return <-codes
	}
	x.t.Cleanup(func() {
		if !ended {
			x.wire.Calm()
			if code := s.end(); code != exitStopped {
				x.t.Errorf("it ended with %d: %s", code, s.log)
			}
		}
		if x.t.Failed() {
			x.t.Log(s.log)
		}
	})
	return s
}

// output is what a program writes, while it writes it.
type output struct {
	mu   sync.Mutex // protects text
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// reply is an answer over HTTP.
type reply struct {
	status  int
	header  http.Header
	body    string
	problem problem // if it is one
	created answer  // if it is one
}

// post creates companies. The answer has to be as the description says.
func (s *served) post(key, body string) reply {
	s.t.Helper()
	r, err := s.do(s.t.Context(), http.MethodPost, "/companies:batchCreate", key, body, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *served) get(path string) reply {
	s.t.Helper()
	r, err := s.do(s.t.Context(), http.MethodGet, path, "", "", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *served) do(ctx context.Context, method, path, key, body string, header http.Header) (reply, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set(keyHeader, key)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}
	r := reply{status: response.StatusCode, header: response.Header, body: string(text)}
	switch {
	case response.Header.Get("Content-Type") == "application/problem+json":
		err = json.Unmarshal(text, &r.problem)
		r.problem.name = strings.TrimPrefix(r.problem.Type, "/problems/")
		if err == nil && r.problem.Status != r.status {
			err = fmt.Errorf("the body says %d, the answer %d", r.problem.Status, r.status)
		}
	case r.status == http.StatusCreated:
		err = json.Unmarshal(text, &r.created)
	}
	return r, errors.Join(err, matches(request, body, r))
}

// expect checks an answer that is a problem.
func (s *served) expect(r reply, status int, name string) problem {
	s.t.Helper()
	if r.status != status || r.problem.name != name {
		s.t.Fatalf("%d %s instead of %d %s\n%s\n%s", r.status, r.problem.name, status, name, r.body, s.log)
	}
	return r.problem
}

// expectStored checks an answer that is none, and that the database has what it says.
func (s *served) expectStored(r reply, n int) answer {
	s.t.Helper()
	if r.status != http.StatusCreated || len(r.created.Companies) != n {
		s.t.Fatalf("%d with %d companies instead of %d\n%.500s\n%s", r.status, len(r.created.Companies), n, r.body, s.log)
	}
	for _, c := range r.created.Companies {
		id, err := bson.ObjectIDFromHex(c.ID)
		if err != nil {
			s.t.Fatal(err)
		}
		var have struct {
			CompanyNo int64   `bson:"companyNo"`
			Company   company `bson:",inline"`
		}
		if err := s.db.Collection("companies").FindOne(s.t.Context(), bson.D{{Key: "_id", Value: id}}).Decode(&have); err != nil {
			s.t.Fatalf("%s: %v", c.ID, err)
		}
		if have.CompanyNo != c.CompanyNo || have.Company.Name != c.Name || have.Company.Registration != c.Registration {
			s.t.Errorf("stored is %+v, the answer says %+v", have, c)
		}
	}
	return r.created
}

// count is the number of companies, and of records of keys, which has to be that of the batches.
func (x *target) count() int64 { return x.countIn("companies") }

func (x *target) countIn(collection string) int64 {
	x.t.Helper()
	n, err := x.db.Collection(collection).CountDocuments(x.t.Context(), bson.D{})
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}

// registrations returns those of the companies that are stored.
func (x *target) registrations() []string {
	x.t.Helper()
	cursor, err := x.db.Collection("companies").Find(x.t.Context(), bson.D{}, driver.Find().SetSort(bson.D{{Key: "registration", Value: 1}}))
	if err != nil {
		x.t.Fatal(err)
	}
	var companies []company
	if err := cursor.All(x.t.Context(), &companies); err != nil {
		x.t.Fatal(err)
	}
	all := make([]string, len(companies))
	for i, c := range companies {
		all[i] = c.Registration
	}
	return all
}

// inserts are those of companies.
func (x *target) inserts() faultwire.Match { return faultwire.Insert.In(x.db.Name() + ".companies") }

// wait waits for a condition.
func (x *target) wait(what string, condition func() bool) {
	x.t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			x.t.Fatalf("%s: not within a minute", what)
		}
	}
}

// list is a body of companies with these registrations.
func list(registrations ...string) string {
	texts := make([]string, len(registrations))
	for i, r := range registrations {
		texts[i] = fmt.Sprintf(`{"name":"Company %s","registration":%q}`, r, r)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// many is a body of n companies.
func many(prefix string, n int) string {
	registrations := make([]string, n)
	for i := range registrations {
		registrations[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return list(registrations...)
}
