package mongosim

import (
	"bufio"
	"errors"
	"net"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// conn serves one connection. One goroutine reads, executes and answers: a client sends its next command only after the
// reply to the last one.
type conn struct {
	server *Server
	member *member
	conn   net.Conn
	reader *bufio.Reader
	id     int64
	app    string       // appName from the client's metadata; only the connection's goroutine uses it
	last   atomic.Int32 // id of the last reply
	ended  int64        // Server.ended at the last hello; guarded by Server.mu
}

func newConn(s *Server, m *member, c net.Conn, id int64) *conn {
	return &conn{server: s, member: m, conn: c, reader: bufio.NewReaderSize(c, 16<<10), id: id}
}

func (c *conn) run() {
	defer func() {
		_ = c.conn.Close() // closing twice is all that can fail here
		c.server.mu.Lock()
		delete(c.server.conns, c)
		c.server.ended++
		c.server.notify()
		c.server.mu.Unlock()
	}()
	for {
		message, err := readMessage(c.reader, c.server.config.MaxMessageBytes)
		if err != nil {
			return
		}
		if !c.serve(message) {
			return
		}
	}
}

// serve answers one message and says whether the connection stays open.
func (c *conn) serve(message []byte) bool {
	req, err := parseMessage(message, c.server.config.MaxDocumentBytes)
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return req.unwanted || c.reply(req, finish(nil, refused), false)
	case err != nil:
		return false
	}
	for {
		doc, more, stay := c.server.execute(c, req)
		if doc != nil && !req.unwanted && !c.reply(req, doc, more) {
			return false
		}
		if !stay || !more {
			return stay
		}
		// A streamed hello: the next reply answers the last one (specification "Server Monitoring", streaming protocol).
		v, ok := lookup(doc, "topologyVersion")
		if !ok {
			return true
		}
		req.id = c.last.Load()
		req.body = withField(req.body, "topologyVersion", v)
	}
}

func (c *conn) reply(req *request, doc []byte, more bool) bool {
	buf := make([]byte, 0, len(doc)+64)
	_, err := c.conn.Write(appendReply(buf, req, c.last.Add(1), doc, more))
	return err == nil
}

// gone waits until the client has closed the connection. Anything the client sends instead is left for later, and the
// wait ends: it did not give up.
func (c *conn) gone() {
	_, _ = c.reader.Peek(1) // either outcome ends the wait
}

// cut closes the connection under whatever it is doing.
func (c *conn) cut() {
	_ = c.conn.Close() // the connection's own goroutine notices and cleans up
}

// withField is doc with one field replaced.
func withField(doc bsoncore.Document, name string, v bsoncore.Value) bsoncore.Document {
	out, err := setAt(doc, []string{name}, v)
	if err != nil {
		return doc // cannot be: a top-level field can always be set
	}
	return out
}
