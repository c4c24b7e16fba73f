// Package front is a proxy for a server whose commands are not atomic against each other.
//
// FerretDB 1.24 answers update, delete and findAndModify by reading the documents, deciding, and writing them back in
// a second statement; two of these at the same time lose one of the changes. It answers an insert by looking up the
// collection and then writing to it; if drop or dropDatabase comes in between, it panics and closes the connection, and
// a dropped database can block every writer for minutes. So the front lets through
//
//   - one update, delete or findAndModify at a time, over all connections and databases;
//   - drop, dropDatabase and renameCollection only while none of these and no insert is running;
//   - everything else at once, inserts among them.
//
// Inserts need no more than that. Measured with 16 clients at a time: of inserts of one _id, or of one value under a
// unique index, exactly one succeeds, also while the collection and the database do not exist yet; no insert into a
// new database is lost; an insert that meets an upsert of the same _id leaves one document. The tests of package
// localmongo repeat this.
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
	hooks   Hooks

	// turn is held while an update, delete or findAndModify is with the backend. It is taken before structure, so
	// that those which wait for it do not hold up a drop.
	turn sync.Mutex

	// structure is read-held while a command is with the backend that needs its collection to stay, and held by the
	// commands that remove collections.
	structure sync.RWMutex
}

// Hooks are called while a command has got what it needs and before it is sent. They hold it up. Each may be nil.
type Hooks struct {
	// Write is called for each update, delete and findAndModify, so never twice at a time.
	Write func(database, collection string)

	// Drop is called for each command that removes or renames collections, so never together with another hook.
	Drop func()
}

// New returns a front for the server that listens on the TCP address backend.
func New(backend string, hooks Hooks) *Front {
	return &Front{backend: backend, hooks: hooks}
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
		p, err := inspect(request)
		if err != nil {
			return
		}
		reply, err := f.exchange(ctx, backend, replies, request, p)
		if err != nil {
			return
		}
		if p.silent {
			continue
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// exchange sends one request to the backend and reads its whole answer.
//
// What the command needs is kept until the answer is here, or until the backend has closed the connection, which it
// does after its handler has returned. So a client that is gone, or does not read, neither lets the next command in
// while its own is still running nor keeps it out afterwards.
func (f *Front) exchange(ctx context.Context, backend net.Conn, replies *bufio.Reader, request message, p plan) (message, error) {
	defer f.acquire(p.needs)()
	if err := ctx.Err(); err != nil {
		return nil, err // it ended while we waited
	}
	switch {
	case p.needs == turn && f.hooks.Write != nil:
		f.hooks.Write(p.database, p.collection)
	case p.needs == emptiness && f.hooks.Drop != nil:
		f.hooks.Drop()
	}
	if _, err := backend.Write(request); err != nil {
		return nil, err
	}
	return read(replies)
}

// acquire waits for what a command needs. It waits for commands that are with the backend, and for nothing else.
func (f *Front) acquire(n needs) (release func()) {
	switch n {
	case turn:
		f.turn.Lock()
		f.structure.RLock()
		return func() { f.structure.RUnlock(); f.turn.Unlock() }
	case structure:
		f.structure.RLock()
		return f.structure.RUnlock
	case emptiness:
		f.structure.Lock()
		return f.structure.Unlock
	}
	return func() {}
}
