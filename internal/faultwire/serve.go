package faultwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// serve carries the connection's requests to the server, one after the other, until the client or the wire has ended it
// and the server has answered what it was asked.
func (c *conn) serve() {
	defer c.retire()
	for {
		x := c.next()
		if x == nil {
			return
		}
		stands, err := c.carry(x)
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
		c.wire.finish(x, err)
		if !stands {
			return
		}
	}
}

func (c *conn) next() *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) == 0 && c.failure == nil && !c.closed {
		c.requested.Wait()
	}
	if len(c.queue) == 0 {
		return nil
	}
	c.current = c.queue[0]
	c.queue = c.queue[1:]
	return c.current
}

func (c *conn) retire() {
	c.mu.Lock()
	c.over = true
	dropped := c.queue
	c.queue = nil
	c.mu.Unlock()
	_ = c.server.Close()
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	for _, x := range dropped {
		c.lose(x)
	}
}

// carry brings one request on its way, with the faults in the order of Fault's fields. It reports whether the connection
// still stands, and why the server did not answer, if it should have.
func (c *conn) carry(x *exchange) (stands bool, err error) {
	f := x.fault
	if f.before != nil {
		f.before(c.wire.life, x.request)
	}
	if f.hold && !x.rule.wait() || c.wire.life.Err() != nil {
		c.cut(io.EOF)
		return false, context.Cause(c.wire.life)
	}
	if f.down {
		x.rule.takeDown()
		c.cut(reset())
		return false, nil
	}
	if f.drop || (c.isCut() && !f.hold) {
		c.cut(io.EOF)
		return false, nil
	}

	request, refused, err := x.outgoing()
	if err != nil {
		return false, c.refuse(err)
	}
	var reply *message
	if request != nil {
		if reply, err = c.ask(x, request); err != nil {
			return false, c.broken(err)
		}
	}
	if !x.request.Acknowledged() {
		if f.dropReply || f.cutReply > 0 {
			c.cut(io.EOF)
			return false, nil
		}
		return true, nil
	}

	if f.after != nil && reply != nil {
		f.after(c.wire.life, x.request)
	}
	if f.holdReply && !x.rule.wait() || c.wire.life.Err() != nil {
		c.cut(io.EOF)
		return false, context.Cause(c.wire.life)
	}
	if f.dropReply || f.cut {
		c.cut(io.EOF)
		return false, nil
	}
	given := x.answer(reply, refused)
	if f.cutReply > 0 {
		c.push(given.raw[:min(f.cutReply-1, len(given.raw)-1)])
		c.cut(reset())
		return false, nil
	}
	if c.wire.mark(x, Given, given) {
		c.push(given.raw)
	}
	for reply != nil && reply.moreToCome() { // a hello that goes on by itself
		if reply, err = c.receive(); err != nil {
			return false, c.broken(err)
		}
		c.push(reply.raw)
	}
	return true, nil
}

// ask sends a request to the server and waits for its reply; nil after an unacknowledged write.
func (c *conn) ask(x *exchange, request *message) (*message, error) {
	c.wire.mark(x, Forwarded, nil)
	if _, err := c.server.Write(request.raw); err != nil {
		return nil, err
	}
	if x.fault.cut {
		c.cut(reset())
	}
	if request.moreToCome() {
		return nil, nil
	}
	reply, err := c.receive()
	if err != nil {
		return nil, err
	}
	if reply.responseTo != request.id {
		err := fmt.Errorf("faultwire: the server answered request %d when it was asked %d", reply.responseTo, request.id)
		c.wire.fail(err)
		return nil, err
	}
	c.wire.mark(x, Answered, reply)
	return reply, nil
}

// receive reads one message from the server.
func (c *conn) receive() (*message, error) {
	header, err := c.replies.Peek(headerSize)
	if err != nil {
		return nil, err
	}
	size, err := messageSize(header)
	if err != nil {
		c.wire.fail(err)
		return nil, err
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(c.replies, raw); err != nil {
		return nil, err
	}
	reply, err := parse(raw)
	if err != nil {
		c.wire.fail(err)
	}
	return reply, err
}

// broken ends the client's connection as the server's has ended.
func (c *conn) broken(err error) error {
	if errors.Is(err, io.EOF) {
		c.cut(io.EOF)
	} else {
		c.cut(reset())
	}
	return err
}

// outgoing returns what is sent to the server; nil if nothing is. The refusal is nil unless statements are refused.
func (x *exchange) outgoing() (*message, *refusal, error) {
	request := x.request
	if x.fault.rewrite != nil {
		m, err := request.rewritten(x.fault.rewrite(slices.Clone(request.Document())))
		if err != nil {
			return nil, nil, err
		}
		request = newRequest(m)
	}
	outgoing := request.message
	var refused *refusal
	if x.fault.refused != nil {
		r, err := request.refuse(x.fault.refused)
		if err != nil {
			return nil, nil, err
		}
		outgoing, refused = r.request, &r
	}
	if x.fault.refuse {
		outgoing = nil
	}
	return outgoing, refused, nil
}

// answer returns what the client is told when the server said reply, which is nil if it was not asked.
func (x *exchange) answer(reply *message, refused *refusal) *message {
	if refused == nil && len(x.fault.answers) == 0 && reply != nil {
		return reply
	}
	var document bson.Raw
	if reply != nil {
		document = reply.body
	}
	if refused != nil {
		document = refused.answer(x.request, document)
	}
	for _, a := range x.fault.answers {
		document = a.Apply(x.request, document)
	}
	if document == nil {
		document = success(x.request)
	}
	return &message{raw: encodeAnswer(x.request.message, document), body: document}
}
