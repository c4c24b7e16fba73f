package main

import (
	"bytes"
	"context"
	"crypto/rand"
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

const (
	// patience is how long the demonstration waits for what should happen soon.
	patience = 30 * time.Second
	// hangUps is how often it hangs up, should the batch have been faster.
	hangUps = 5
)

// demo makes calls as a client would, until a signal. The error says what was not as it should be.
func (p *program) demo(ctx context.Context, url string, s *service) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.signals:
			cancel(errors.New("the demonstration was interrupted"))
		case <-ctx.Done():
		}
	}()
	defer func() {
		cancel(nil)
		<-watched
	}()
	// It may be somebody's database: names and keys are of this run alone.
	d := &demo{Writer: p.stdout, service: s, url: url, run: rand.Text()[:6]}
	err := d.play(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// demo is one performance.
type demo struct {
	io.Writer
	*service
	url, run string
}

func (d *demo) play(ctx context.Context) error {
	before, err := d.count(ctx)
	if err != nil {
		return err
	}
	d.say("bulkapi creates companies over HTTP, all of a request or none.\n\n")

	d.say("1. Two companies are created, and get numbers.\n\n")
	good := fmt.Sprintf("[{\"name\":\"Kahvila Aalto\",\"registration\":\"FI-%[1]s\"},\n {\"name\":\"Bokhandel Berg\",\"registration\":\"SE-%[1]s\",\"employees\":12}]", d.run)
	first, err := d.call(ctx, "first", good, http.StatusCreated)
	if err != nil {
		return err
	}
	d.show(first)

	d.say("2. The same again, as after an answer that got lost: nothing is stored twice.\n\n")
	again, err := d.call(ctx, "first", good, http.StatusCreated)
	if err != nil {
		return err
	}
	if !bytes.Equal(first, again) {
		return errors.New("the same key had another answer")
	}
	d.say("   … and the same body, byte for byte.\n\n")

	d.say("3. Three companies, of which the last has a registration that is taken: none\n   is stored.\n\n")
	bad := fmt.Sprintf("{\"requests\":[\n {\"company\":{\"name\":\"Anna\",\"registration\":\"A-%[1]s\"}},\n {\"company\":{\"name\":\"Bo\",\"registration\":\"B-%[1]s\"}},\n {\"company\":{\"name\":\"Aalto again\",\"registration\":\"FI-%[1]s\"}}]}", d.run)
	refused, err := d.call(ctx, "second", bad, http.StatusConflict)
	if err != nil {
		return err
	}
	d.show(refused)
	if err := d.expect(ctx, before+2); err != nil {
		return err
	}

	d.say("4. A client sends %d companies and hangs up while they are being stored: they\n   are deleted again.\n\n", d.maxDocuments)
	return d.hangUp(ctx, before+2)
}

// call posts a body, shows the answer's head, and returns its body.
func (d *demo) call(ctx context.Context, key, body string, expected int) ([]byte, error) {
	key += "-" + d.run
	d.say("   $ curl -i %s/companies:batchCreate \\\n       -H 'Content-Type: application/json' -H '%s: %s' \\\n       -d '%s'\n", d.url, keyHeader, key, strings.ReplaceAll(body, "\n", "\n         "))
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
	d.say("   %s %s\n", response.Proto, response.Status)
	for _, name := range []string{"Content-Type", keyHeader, replayedHeader, "Retry-After"} {
		if value := response.Header.Get(name); value != "" {
			d.say("   %s: %s\n", name, value)
		}
	}
	d.say("\n")
	if response.StatusCode != expected {
		return nil, fmt.Errorf("the status is %d instead of %d: %s", response.StatusCode, expected, answer)
	}
	return answer, nil
}

// hangUp sends a large request and closes the connection when the journal shows it at work. There have to be n companies
// afterwards.
func (d *demo) hangUp(ctx context.Context, n int64) error {
	for attempt := range hangUps {
		key := fmt.Sprintf("third-%s-%d", d.run, attempt)
		state, err := d.sendAndLeave(ctx, key)
		if err != nil {
			return err
		}
		if attempt == 0 {
			d.say("   GET /batches, just before the connection was closed:\n\n")
			d.show([]byte(state))
		}
		if _, err = d.await(ctx, func(state string) bool { return !strings.Contains(state, key) }); err != nil {
			return err
		}
		have, err := d.count(ctx)
		if err != nil {
			return err
		}
		if have != n+int64(d.maxDocuments) {
			return d.expect(ctx, n)
		}
		d.say("   Everything was stored before the server noticed. Once more.\n\n")
		n = have
	}
	return errors.New("every batch was faster than the hanging up")
}

// sendAndLeave returns what /batches said before it left.
func (d *demo) sendAndLeave(ctx context.Context, key string) (string, error) {
	companies := make([]company, d.maxDocuments)
	for i := range companies {
		companies[i] = company{Name: "Nobody", Registration: fmt.Sprintf("%s-%d", strings.ToUpper(key), i)}
	}
	body, err := json.Marshal(companies)
	if err != nil {
		return "", err
	}
	connection, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	_, err = fmt.Fprintf(connection, "POST /companies:batchCreate HTTP/1.1\r\nHost: bulkapi\r\nContent-Type: application/json\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		keyHeader, key, len(body), body)
	if err != nil {
		return "", err
	}
	return d.await(ctx, func(state string) bool { return strings.Contains(state, key) })
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
	d.say("   There are %d companies in the database.\n\n", have)
	if have != n {
		return fmt.Errorf("there should be %d companies", n)
	}
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d, format, args...) }

// show prints JSON for people.
func (d *demo) show(text []byte) {
	value := jsontext.Value(bytes.Clone(text))
	if err := value.Indent(jsontext.WithIndent("  ")); err != nil {
		value = text
	}
	d.say("   %s\n\n", strings.ReplaceAll(strings.TrimSpace(string(value)), "\n", "\n   "))
}
