package faultwire

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// conn is the client's end of a connection and, in serve, what carries its requests to the server.
//
// The client's end lives in memory. A pair of sockets would do as well, but costs four more system calls a command, and
// leaves to the kernel what has to be exact here: whether a request was written before a close, and how much of a reply
// can be read before a reset. net.Pipe has no buffer, so that a driver that stops reading would block the wire.
type conn struct {
	wire    *Wire
	id      int
	address string
	server  net.Conn
	replies *bufio.Reader // of server; serve's alone

	writing sync.Mutex // held by Write and Close, guards partial
	partial []byte     // the start of a message whose end is not yet written

	mu        sync.Mutex // guards all below
	requested *sync.Cond // serve waits for requests, or for the end
	readable  *sync.Cond // Read waits for input, or for the end
	queue     []*exchange
	current   *exchange // the one that serve has taken from the queue
	input     [][]byte  // what the client has yet to read
	failure   error     // what it reads then; nil while the connection stands
	closed    bool      // by the client
	over      bool      // serve has returned
	reads     deadline
	writes    time.Time // the write deadline; writing takes no time, so that only a passed one matters
}

func newConn(w *Wire, id int, address string, server net.Conn) *conn {
	c := &conn{wire: w, id: id, address: address, server: server, replies: bufio.NewReaderSize(server, 16<<10)}
	c.requested = sync.NewCond(&c.mu)
	c.readable = sync.NewCond(&c.mu)
	return c
}

func reset() error { return os.NewSyscallError("read", syscall.ECONNRESET) }

func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: c.server.RemoteAddr().Network(), Addr: c.server.RemoteAddr(), Err: err}
}

// Write takes what the client writes, at once and without limit, as a network with a large buffer would. When it returns,
// every request that is complete is on its way: closing the connection does not call it back.
func (c *conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.writable(); err != nil {
		return 0, c.opError("write", err)
	}
	c.partial = append(c.partial, b...)
	for {
		size, err := messageSize(c.partial)
		if err != nil {
			return 0, c.refuse(err)
		}
		if size == 0 || len(c.partial) < size {
			return len(b), nil
		}
		m, err := parse(c.partial[:size:size])
		if err != nil {
			return 0, c.refuse(err)
		}
		if c.partial = c.partial[size:]; len(c.partial) == 0 {
			c.partial = nil // the message keeps the memory
		}
		c.enqueue(c.wire.saw(c, m))
	}
}

func (c *conn) writable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return net.ErrClosed
	case !c.writes.IsZero() && !time.Now().Before(c.writes):
		return os.ErrDeadlineExceeded
	case c.failure != nil:
		return os.NewSyscallError("write", syscall.EPIPE)
	}
	return nil
}

// refuse ends the connection over something that the wire does not understand.
func (c *conn) refuse(err error) error {
	c.wire.fail(err)
	c.cut(err)
	return err
}

func (c *conn) enqueue(x *exchange) {
	c.mu.Lock()
	lost := c.over || c.failure != nil
	if !lost {
		c.queue = append(c.queue, x)
		c.requested.Signal()
	}
	c.mu.Unlock()
	if lost { // the connection ended while the client was writing
		c.lose(x)
	}
}

func (c *conn) lose(x *exchange) {
	c.wire.mark(x, Lost, nil)
	c.wire.finish(x, nil)
}

// Read gives the client its replies.
func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case c.reads.passed:
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, nil
		case len(c.input) > 0:
			n := copy(b, c.input[0])
			if c.input[0] = c.input[0][n:]; len(c.input[0]) == 0 {
				c.input = c.input[1:]
			}
			return n, nil
		case errors.Is(c.failure, io.EOF):
			return 0, io.EOF
		case c.failure != nil:
			return 0, c.opError("read", c.failure)
		}
		c.readable.Wait()
	}
}

// push lets the client read more. It is thrown away when the client has left.
func (c *conn) push(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && len(b) > 0 {
		c.input = append(c.input, b)
		c.readable.Broadcast()
	}
}

// Close is the client leaving. What it has written completely is forwarded nevertheless, and the connection to the server
// stays open until the server has answered: a real network delivers what was sent before a close, too. A Close that meets a
// Write comes after it, so that a request that a rule has taken cannot be lost in between.
func (c *conn) Close() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.input = nil
	c.reads.set(c, time.Time{})
	waiting := slices.Clone(c.queue)
	if c.current != nil {
		waiting = append(waiting, c.current)
	}
	if len(c.queue) == 0 && (c.current == nil || c.current.monitoring()) {
		_ = c.server.Close()
	}
	c.requested.Broadcast()
	c.readable.Broadcast()
	c.mu.Unlock()
	for _, x := range waiting {
		c.wire.mark(x, Lost, nil)
	}
	return nil
}

// cut ends the connection for the client: after what it can read already it gets the reason. Requests that serve has not
// begun are lost. The one that it has begun goes on, since the server may be running it.
func (c *conn) cut(reason error) {
	c.mu.Lock()
	if c.failure == nil {
		c.failure = reason
	}
	dropped := c.queue
	c.queue = nil
	current := c.current
	if current == nil || current.monitoring() {
		_ = c.server.Close()
	}
	c.requested.Broadcast()
	c.readable.Broadcast()
	c.mu.Unlock()
	if current != nil {
		c.wire.mark(current, Lost, nil)
	}
	for _, x := range dropped {
		c.lose(x)
	}
}

// abort is cut without regard for what the server is running.
func (c *conn) abort() {
	c.cut(ErrClosed)
	_ = c.server.Close()
}

// isCut reports whether the wire, not the client, has ended the connection.
func (c *conn) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure != nil
}

func (c *conn) LocalAddr() net.Addr  { return c.server.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.server.RemoteAddr() }

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.SetReadDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.reads.set(c, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.writes = t
	return nil
}

// deadline is guarded by its connection's mu.
type deadline struct {
	timer  *time.Timer
	passed bool
}

func (d *deadline) set(c *conn, t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.passed = false
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.passed = true
		c.readable.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d.timer == timer { // not replaced while it waited for the lock
			d.passed = true
			c.readable.Broadcast()
		}
	})
	d.timer = timer
}
