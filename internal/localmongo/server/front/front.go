// Package front is a proxy for a server whose single-document writes are not atomic.
//
// FerretDB 1.24 answers update, delete and findAndModify by reading the documents, deciding, and writing them back in
// a second statement. Two of these at the same time lose one of the changes. The front lets one of them through at a
// time, over all connections; every other command passes in parallel.
//
// Inserts need no turn: SQLite's unique indexes decide between two of them, and between an insert and an upsert, and
// an insert neither reads first nor changes a document that an update may have read. (Measured with the tests of this
// package: of 16 inserts of one _id, or of one value under a unique index, exactly one succeeds, also while the
// collection and the database do not exist yet.)
package front

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Front relays MongoDB wire messages between clients and one backend. Its zero value is not usable, call New.
type Front struct {
	backend string

	// turn holds one token while a command that needs the turn is with the backend.
	turn chan struct{}
}

// New returns a front for the server that listens on the TCP address backend.
func New(backend string) *Front {
	return &Front{backend: backend, turn: make(chan struct{}, 1)}
}

// Serve accepts clients from l until ctx ends or l fails. It then accepts no more, lets each command that is with the
// backend finish and be answered, closes every connection, and returns. Commands that still wait for their turn
// are not sent any more. The error is nil if ctx ended.
func (f *Front) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel() // before the Wait: an error of Accept must also end the clients
	defer context.AfterFunc(ctx, func() { l.Close() })()

	for {
		client, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
				continue
			}
			return fmt.Errorf("front: %w", err)
		}
		clients.Go(func() { f.relay(ctx, client) })
	}
}

// relay serves one client. A connection whose message cannot be understood, or whose peer is gone, is closed without
// a word, which is what servers do.
func (f *Front) relay(ctx context.Context, client net.Conn) {
	defer client.Close()
	var d net.Dialer
	backend, err := d.DialContext(ctx, "tcp", f.backend)
	if err != nil {
		return
	}
	defer backend.Close()

	// Wakes the read of the next request, and only that: a command that is with the backend is finished and answered.
	defer context.AfterFunc(ctx, func() { client.SetReadDeadline(time.Unix(1, 0)) })()

	requests, replies := bufio.NewReader(client), bufio.NewReader(backend)
	for ctx.Err() == nil {
		request, err := read(requests)
		if err != nil {
			return
		}
		plan, err := inspect(request)
		if err != nil {
			return
		}
		reply, err := f.exchange(ctx, backend, replies, request, plan.turn)
		if err != nil {
			return
		}
		if plan.silent {
			continue
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// exchange sends one request to the backend and reads its whole answer.
//
// The turn is kept until the answer is here, or until the backend has closed the connection, which it does after
// its handler has returned. So a client that is gone, or does not read, neither frees the turn while its command is
// still running nor keeps it afterwards.
func (f *Front) exchange(ctx context.Context, backend net.Conn, replies *bufio.Reader, request message, turn bool) (message, error) {
	if turn {
		select {
		case f.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		defer func() { <-f.turn }()
	}
	if _, err := backend.Write(request); err != nil {
		return nil, err
	}
	return read(replies)
}
