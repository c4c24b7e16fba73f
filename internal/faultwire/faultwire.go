// Package faultwire breaks the connection between a MongoDB client and its server on purpose, one command at a time, and
// keeps a record of every command. It is for tests.
//
// A Wire is a dialer for the driver. It passes everything on until a rule says otherwise:
//
//	wire := faultwire.ForTest(t)
//	client, _ := mongo.Connect(options.Client().ApplyURI(uri).SetDialer(wire))
//
//	wire.On(faultwire.Insert.In("shop.orders")).Nth(2).DropReply()
//	wire.On(faultwire.Delete).First(3).Reply(faultwire.Throttled(300 * time.Millisecond))
//
// What a rule returns counts how often the fault happened, and lets go what it holds. Here an insert reaches the server when
// its client has given up long ago:
//
//	held := wire.On(faultwire.Insert).Once().Hold()
//	// … insert with a context that ends; roll back …
//	held.Release()
//	<-held.Done() // the server has run it
//
// # Rules
//
// A sentence names the commands (On, with a Name or a Match), the turns (Nth, First, Once, Sometimes and so on), and ends
// with a fault. Rules are asked in the order in which they were made; the first that fires takes the command, and the rules
// after it do not count it. Commands that keep a connection going (hello, ping, endSessions, authentication) are left alone
// and unrecorded unless a rule names them.
//
// Three faults answer falsely or with a refusal, and differ in what the server has done: Reply never asks it, Lie asks it
// and changes the answer, WriteErrors refuses some statements and has the others run.
//
// # Certainty
//
// DropReply and HoldReply act when the server's reply has been read, so the server has run the command by then. A request
// that was dropped, or answered by Reply, has not been written to the server and never will be. In between are Cut and a
// client that leaves: what a client has written completely is forwarded, in order, even after it has closed its connection,
// and the connection to the server stays open until the server has answered. That is what a network may do at its worst;
// a real server may also notice the client's leaving and stop, which no test should depend on.
//
// An unacknowledged write has no reply: faults of the reply that would end the connection do so as soon as it was sent, the
// others do nothing.
//
// # Record
//
// Events, Count, Observe and String look at the commands and what became of them, in one order for all connections. The
// marks err on the safe side: Forwarded comes before the server can see the request, Answered after its reply was read.
//
// # Speed
//
// The driver takes up to half a second to come back from a lost connection. Where many are lost, run tests in parallel, or
// see LoadBalanced. For benchmarks, see KeepLast.
//
// # Limits
//
// The wire speaks OP_MSG, and OP_QUERY as far as a first hello needs it. Anything else, compression and TLS included, ends
// the connection and is reported by Err and Close.
package faultwire

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrClosed is returned for a connection that is dialed after Wire.Close, and read from one that Close ended.
var ErrClosed = errors.New("faultwire: the wire is closed")

// Dialer makes connections to a server. *net.Dialer and *tls.Dialer are Dialers.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Wire is a dialer whose connections do to commands what its rules say, and records the commands. It may be used by several
// clients and concurrently. Make one with New and end it with Close, or use ForTest.
type Wire struct {
	dialer    Dialer
	keep      int // events kept; -1 is all
	recordAll bool
	balancing Fault // done to every hello that no rule takes
	start     time.Time

	// life ends with Close. It is what held commands and functions of rules wait on, beside their own affairs.
	life context.Context
	end  context.CancelCauseFunc
	work sync.WaitGroup // one for each connection

	// order is held while a stage is recorded and observed. It comes before mu and before any rule's lock; no connection's
	// lock is held while it is taken.
	order sync.Mutex

	mu        sync.Mutex // guards all below
	closed    bool
	refusing  bool
	rules     []*Rule         // replaced, not changed
	observers []*func(Change) // replaced, not changed
	conns     map[*conn]struct{}
	dialed    int
	errs      []error
	events    []*Event
	counts    map[Name]int
	seq       int
	marks     int
	underWay  int // recorded exchanges that are not over, without those that only keep connections going
	drained   []chan struct{}
}

// Option is a setting of New.
type Option func(*Wire)

// Over sets the dialer that makes the real connections. Defaults to a *net.Dialer. A *tls.Dialer reaches servers that want
// TLS; the client is then connected without.
func Over(d Dialer) Option { return func(w *Wire) { w.dialer = d } }

// RecordAll records hello, ping, endSessions and the authentication too. Defaults to recording them only where a rule that
// names them does something to them.
func RecordAll() Option { return func(w *Wire) { w.recordAll = true } }

// KeepLast keeps the last n events only; 0 keeps none and leaves Count, Observe and the rules' counters. Defaults to
// keeping all, with their documents.
func KeepLast(n int) Option { return func(w *Wire) { w.keep = n } }

// LoadBalanced lets the wire pass for a load balancer before the server, so that a client can be connected with
// SetLoadBalanced(true). Such a client watches no servers and replaces a lost connection at once; any other takes up to
// half a second (minHeartbeatInterval in the driver's package topology), which is long where faults are many. The client
// must speak to one server only and does not follow a failover.
func LoadBalanced() Option { return func(w *Wire) { w.balancing = balance() } }

// balance is what a load balancer does to a hello. A server of its own would not know the request's field, and the driver
// insists on the reply's.
func balance() Fault {
	return RewriteRequest(func(command bson.Raw) bson.Raw {
		var d bson.D
		if err := bson.Unmarshal(command, &d); err != nil {
			return command
		}
		return encode(slices.DeleteFunc(d, func(e bson.E) bool { return e.Key == "loadBalanced" }))
	}).and(Lie(Set("serviceId", bson.ObjectID{1})))
}

// New makes a wire that passes everything on.
func New(options ...Option) *Wire {
	w := &Wire{
		dialer: &net.Dialer{},
		keep:   -1,
		start:  time.Now(),
		conns:  make(map[*conn]struct{}),
		counts: make(map[Name]int),
	}
	w.life, w.end = context.WithCancelCause(context.Background())
	for _, set := range options {
		set(w)
	}
	return w
}

// DialContext connects to a server through the wire. It is called by the driver.
func (w *Wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if err := w.accepting(network); err != nil {
		return nil, err
	}
	server, err := w.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.acceptingLocked(network); err != nil { // it may have changed while dialing
		_ = server.Close()
		return nil, err
	}
	w.dialed++
	c := newConn(w, w.dialed, address, server)
	w.conns[c] = struct{}{}
	w.work.Go(c.serve)
	return c, nil
}

func (w *Wire) accepting(network string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acceptingLocked(network)
}

func (w *Wire) acceptingLocked(network string) error {
	if w.closed {
		return ErrClosed
	}
	if w.refusing {
		return &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	return nil
}

// Refuse lets every new connection fail as if no server listened, until Up. Existing connections are left alone.
func (w *Wire) Refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusing = true
}

// Cut resets all connections. A command that the server is running is run to its end, and a held one can still be released;
// all other commands that were written but not forwarded are lost.
func (w *Wire) Cut() {
	for _, c := range w.open() {
		c.cut(reset())
	}
}

// Down is Refuse and Cut: the server is gone until Up.
func (w *Wire) Down() {
	w.Refuse()
	w.Cut()
}

// Up accepts connections again.
func (w *Wire) Up() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusing = false
}

// Connections returns how many connections to servers are open. A connection that its client has closed counts until the
// commands on it are over.
func (w *Wire) Connections() int { return len(w.open()) }

func (w *Wire) open() []*conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	conns := make([]*conn, 0, len(w.conns))
	for c := range w.conns {
		conns = append(conns, c)
	}
	slices.SortFunc(conns, func(a, b *conn) int { return a.id - b.id })
	return conns
}

// enforce puts a rule in force, behind those that are.
func (w *Wire) enforce(r *Rule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = append(slices.Clip(w.rules), r)
}

// Calm ends all rules, releases what they hold and takes the server up: from now on the wire only passes and records. With
// Drain after it, a test comes to rest before it looks at what the server holds.
func (w *Wire) Calm() {
	w.mu.Lock()
	rules := w.rules
	w.rules = nil
	w.mu.Unlock()
	for _, r := range rules {
		r.Off()
		r.Release()
	}
	w.Up()
}

// Err returns what the wire could not do or understand, joined; nil if there was nothing. A server's or a client's
// broken connection is no such error.
func (w *Wire) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}

func (w *Wire) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err)
}

// Close ends all connections, drops what is held, refuses further connections and waits until nothing of the wire is left
// running. It returns Err. Closing again does nothing more. Functions given to rules must have returned, or return when
// their context ends.
func (w *Wire) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end(ErrClosed)
	for _, c := range w.open() {
		c.abort()
	}
	w.work.Wait()
	return w.Err()
}
