package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// patience is how long the demonstration waits for what should happen soon.
const patience = 30 * time.Second

// demo makes calls as a client would. The error says what was not as it should be.
func (p *program) demo(ctx context.Context, url string, s *service) error {
	d := &demo{Writer: p.stdout, url: url, service: s}
	// It may be somebody's database: names and keys are of this run.
	d.run = bson.NewObjectID().Hex()
	before, err := d.count(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d, "bulkapi creates companies over HTTP, all of a request or none.\n\n")
	good := fmt.Sprintf(`[{"name":"Kahvila Aalto","registration":"FI-%[1]s"},{"name":"Bokhandel Bergman","registration":"SE-%[1]s","employees":12}]`, d.tag())

	d.say("1. Two companies are created, and get numbers.")
	first, err := d.call(ctx, "first-"+d.run, good, http.StatusCreated)
	if err != nil {
		return err
	}
	d.say("2. The same again, as after an answer that got lost: nothing is stored twice, the answer is the same.")
	again, err := d.call(ctx, "first-"+d.run, good, http.StatusCreated)
	if err != nil {
		return err
	}
	if !bytes.Equal(first, again) {
		return errors.New("the same key had another answer")
	}
	d.say("3. Three companies, of which the last has a registration that is taken: none is stored.")
	bad := fmt.Sprintf(`{"requests":[{"company":{"name":"Anna","registration":"A-%[1]s"}},{"company":{"name":"Bo","registration":"B-%[1]s"}},{"company":{"name":"Aalto again","registration":"FI-%[1]s"}}]}`, d.tag())
	if _, err := d.call(ctx, "second-"+d.run, bad, http.StatusConflict); err != nil {
		return err
	}
	if err := d.expect(ctx, before+2); err != nil {
		return err
	}
	d.say("4. A client that hangs up while its companies are being stored: they are deleted again.")
	if err := d.hangUp(ctx); err != nil {
		return err
	}
	return d.expect(ctx, before+2)
}

// demo is one performance.
type demo struct {
	io.Writer
	*service
	url, run string
}

// tag makes registrations unique.
func (d *demo) tag() string { return strings.ToUpper(d.run[14:]) }

// call posts a body, shows the answer, and returns its body.
func (d *demo) call(ctx context.Context, key, body string, expected int) ([]byte, error) {
	d.say("$ curl -i %s/companies:batchCreate -H 'Content-Type: application/json' -H 'Idempotency-Key: %s' -d '%s'", d.url, key, body)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/companies:batchCreate", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(keyHeader, key)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(d, "   HTTP/1.1 %s\n", response.Status)
	for _, name := range []string{"Content-Type", keyHeader, replayedHeader, "Retry-After"} {
		if value := response.Header.Get(name); value != "" {
			fmt.Fprintf(d, "   %s: %s\n", name, value)
		}
	}
	indented := jsontext.Value(bytes.Clone(answer))
	if err := indented.Indent(jsontext.WithIndent("  ")); err != nil {
		return nil, err
	}
	fmt.Fprintln(d)
	for line := range strings.Lines(string(indented)) {
		d.say("%s", strings.TrimRight(line, "\n"))
	}
	fmt.Fprintln(d)
	if response.StatusCode != expected {
		return nil, fmt.Errorf("the status is %d, not %d", response.StatusCode, expected)
	}
	return answer, nil
}

// hangUp sends a large request and closes the connection when the journal shows it at work.
func (d *demo) hangUp(ctx context.Context) error {
	companies := make([]company, d.maxDocuments)
	for i := range companies {
		companies[i] = company{Name: "Nobody", Registration: fmt.Sprintf("X-%s-%d", d.tag(), i)}
	}
	body, err := json.Marshal(companies)
	if err != nil {
		return err
	}
	connection, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		return err
	}
	defer connection.Close()
	key := "third-" + d.run
	w := bufio.NewWriter(connection)
	fmt.Fprintf(w, "POST /companies:batchCreate HTTP/1.1\r\nHost: bulkapi\r\nContent-Type: application/json\r\n%s: %s\r\nContent-Length: %d\r\n\r\n", keyHeader, key, len(body))
	w.Write(body)
	if err := w.Flush(); err != nil {
		return err
	}
	state, err := d.await(ctx, func(state string) bool { return strings.Contains(state, key) })
	if err != nil {
		return err
	}
	connection.Close()
	d.say("GET /batches showed it when the connection was closed:\n%s", strings.TrimSpace(state))
	_, err = d.await(ctx, func(state string) bool { return !strings.Contains(state, key) })
	return err
}

// await asks GET /batches until its answer is as wanted.
func (d *demo) await(ctx context.Context, wanted func(string) bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/batches", nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		state, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || wanted(string(state)) {
			return string(state), err
		}
	}
}

func (d *demo) count(ctx context.Context) (int64, error) {
	return d.companies().CountDocuments(ctx, bson.D{})
}

func (d *demo) expect(ctx context.Context, n int64) error {
	have, err := d.count(ctx)
	if err != nil {
		return err
	}
	d.say("There are %d companies in the database.\n", have)
	if have != n {
		return fmt.Errorf("there should be %d", n)
	}
	return nil
}

// width is that of the narrowest terminal.
const width = 80

// say writes text, indented unless it is a heading, and folded at spaces where it is wider than a terminal.
func (d *demo) say(format string, args ...any) {
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		indent := "   "
		if len(line) > 1 && line[1] == '.' {
			indent = ""
		}
		for {
			cut := len(line)
			if cut > width-len(indent)-1 {
				cut = strings.LastIndexByte(line[:width-len(indent)-1], ' ')
				if cut <= 0 || strings.TrimSpace(line[:cut]) == "" {
					cut = width - len(indent) - 1
				}
			}
			fmt.Fprintln(d, strings.TrimRight(indent+line[:cut], " "))
			line = strings.TrimPrefix(line[cut:], " ")
			if line == "" {
				break
			}
			indent = "     "
		}
	}
}
