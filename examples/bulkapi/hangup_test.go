package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/intact-go/intact/internal/faultwire"
)

// send sends a request over a connection of its own and does not wait for the answer.
func (s *served) send(key, body string) *net.TCPConn {
	s.t.Helper()
	connection, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { connection.Close() })
	_, err = fmt.Fprintf(connection, "POST /companies:batchCreate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", keyHeader, key, len(body), body)
	if err != nil {
		s.t.Fatal(err)
	}
	return connection.(*net.TCPConn)
}

// cutOff waits until the server has noticed that it has to stop working on a request.
func (s *served) cutOff(key string) {
	s.t.Helper()
	s.wait("the request is cut off", func() bool { return strings.Contains(s.log.String(), "key="+key+" cause=") })
}

// handled waits until the handler of the key's request has ended.
func (s *served) handled(key string) {
	s.t.Helper()
	s.wait("the handler has ended", func() bool {
		for line := range strings.Lines(s.log.String()) {
			if strings.Contains(line, "msg=request") && strings.Contains(line, "key="+key+" ") {
				return true
			}
		}
		return false
	})
}

// A client that hangs up while its companies are stored: when the handler has ended, nothing of them is there, the key is
// free, and others do not notice.
func TestHangUp(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn) error{
		"closed":      (*net.TCPConn).Close,
		"half closed": (*net.TCPConn).CloseWrite,
		"reset":       func(c *net.TCPConn) error { c.SetLinger(0); return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newTarget(t).serve()
			held := s.wire.On(s.inserts()).Once().HoldReply()
			connection := s.send("k", many("A", 500))
			<-held.Arrived()
			if n := s.count(); n != 500 {
				t.Fatalf("%d companies: the test shows nothing", n)
			}
			if r := s.get("/batches"); !strings.Contains(r.body, `"batch":"k","state":"open"`) {
				t.Errorf("%s", r.body)
			}
			if err := leave(connection); err != nil {
				t.Fatal(err)
			}
			s.cutOff("k")
			held.Release()
			s.handled("k")
			if n, keys := s.count(), s.countIn("requests"); n != 0 || keys != 0 {
				t.Errorf("%d companies, %d keys\n%s", n, keys, s.wire)
			}
			if !strings.Contains(s.log.String(), "status=499") {
				t.Error(s.log)
			}
			if r := s.get("/batches"); r.body != `{"unfinished":[]}` {
				t.Errorf("%s", r.body)
			}
			s.expectStored(s.post("other", list("A-1", "A-2")), 2)
			s.expectStored(s.post("k", list("A-3")), 1)
		})
	}
}

// A client that hangs up when everything is stored, and only the last word is missing, finds it under its key.
func TestHangUpTooLate(t *testing.T) {
	s := newTarget(t).serve()
	held := s.wire.On(faultwire.Update.In(s.db.Name() + ".batches")).Once().Hold()
	connection := s.send("k", list("A-1", "A-2"))
	<-held.Arrived()
	connection.Close()
	s.cutOff("k")
	held.Release()
	s.handled("k")
	r := s.post("k", list("A-1", "A-2"))
	s.expectStored(r, 2)
	if r.header.Get(replayedHeader) != "true" || s.count() != 2 {
		t.Errorf("%+v, %d companies", r, s.count())
	}
}

// Requests that follow one another at once on a connection are not taken for a client that goes away.
func TestTwoOnOneConnection(t *testing.T) {
	s := newTarget(t).serve()
	connection := s.send("k", list("A-1"))
	body := list("A-2")
	fmt.Fprintf(connection, "POST /companies:batchCreate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	answers, err := io.ReadAll(bufio.NewReader(connection))
	if n := strings.Count(string(answers), "HTTP/1.1 201 Created"); err != nil || n != 2 || s.count() != 2 {
		t.Errorf("%d good answers, %v\n%s", n, err, answers)
	}
}
