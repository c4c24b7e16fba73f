// Package mongosim is an in-memory MongoDB server for tests. It speaks MongoDB's wire protocol to the real driver, as a
// standalone server or as a replica set, and can be told to fail the way real deployments fail: step-downs in the middle of
// a command, failovers that lose acknowledged writes, replies that never arrive, requests that are executed long after the
// client gave up, throttling, a majority point that lags.
//
// What it answers is MongoDB's behaviour, not a convenience: every rule that the library relies on has a row in the
// conformance suite of this package, which runs the same against the simulator and against real servers. What it does not
// know it refuses (codes 59, 238, 2 and 40415); it never ignores an operator, a stage or an option.
//
// All state is behind one lock. A command that touches many documents gives the lock up now and then, at the places where
// MongoDB yields, so that operations interleave and can be interrupted half-way. Time stands still unless the test drives
// the Clock, and randomness comes from Config.Seed alone.
package mongosim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"
)

// Config describes a server. The zero value is a standalone server like MongoDB 7.0, on the wall clock.
type Config struct {
	// ReplicaSet is the set's name; empty means a standalone server.
	ReplicaSet string

	// Members is how many members of the set clients can reach. Defaults to 1. A set always has at least three voting
	// members; those beyond Members are hidden from clients but count for majorities.
	Members int

	// ShardKeys makes the server a mongos in front of two shards, with these collections ("db.collection") sharded by
	// these fields. An _id is unique on its shard only, and a write of one document that names neither the shard key nor
	// an _id is refused before 7.0. Not together with ReplicaSet.
	ShardKeys map[string]string

	// InProcess serves clients over in-memory pipes instead of loopback TCP: faster, and without sockets. Clients must
	// use Dialer.
	InProcess bool

	// MaxWireVersion is the newest protocol version to offer: 9 is MongoDB 4.4, 13 is 5.0, 17 is 6.0, 21 is 7.0.
	// It also decides what those versions do differently (deletes in capped collections, the default write concern,
	// fields that begin with $). Defaults to 21.
	MaxWireVersion int

	// NoStreaming leaves topologyVersion out of hello, so that drivers poll instead of being told of changes.
	NoStreaming bool

	// NoHistory has the server take transaction numbers and ignore them: a command that is repeated is a new one, and no
	// late one is refused. It has no cluster time to tell either. FerretDB 1.24 is such a server when it is given the
	// name of a replica set.
	NoHistory bool

	// MaxDocumentBytes, MaxMessageBytes and MaxBatch are the limits that hello announces and the server enforces.
	// They default to MongoDB's: 16 MiB, 48,000,000 bytes, 100,000 statements.
	MaxDocumentBytes int
	MaxMessageBytes  int
	MaxBatch         int

	// Duplicates is the form of duplicate-key errors. Defaults to DuplicateModern.
	Duplicates DuplicateStyle

	// CappedDeleteCode is the error with which versions before 5.0 refuse deletes in capped collections. Defaults to 20.
	CappedDeleteCode int32

	// YieldEvery is how many documents a command touches before it lets others in and can be interrupted. Defaults to 64:
	// MongoDB inserts in groups of 64 to 500 (internalInsertMaxBatchSize) and yields after 128 documents or 10 ms
	// (internalQueryExecYieldIterations). With 1, small batches can be cut at every document.
	YieldEvery int

	// Clock is the server's time. Defaults to the wall clock.
	Clock *Clock

	// Seed decides what the server chooses by chance (the ids it makes). Defaults to 0.
	Seed uint64

	// Observe is called with every write in the order in which they were applied, while the server is locked: it must
	// be quick and must not call the server.
	Observe func(Write)

	// Step is called, without the server's lock, when an operation reaches one of the named points. It may block: that
	// holds this operation, and nothing else, at the point.
	Step func(Step)

	// Discard makes inserts count documents without keeping them (and without checking unique indexes), for benchmarks
	// of a client's memory. Finds and deletes then see nothing.
	Discard bool
}

// Server is a running simulator. Its methods are safe for concurrent use.
type Server struct {
	config Config
	clock  *Clock
	done   chan struct{} // closed by Close
	wg     sync.WaitGroup

	mu       sync.Mutex // guards everything below
	closed   bool
	conns    map[*conn]bool
	lastConn int64
	ended    int64 // connections that are gone
	random   *rand.Rand
	serial   uint64

	members  []*member
	primary  int           // index of the primary, -1 while there is none
	term     int64         // number of elections
	topology int64         // topologyVersion's counter
	changed  chan struct{} // closed and renewed when roles or replication positions change

	data     *dataset // of the primary, or of the last one
	sessions map[string]*session
	running  map[*operation]bool
	cursors  map[int64]*cursor
	log      []Write // since the oldest snapshot, to tell what a failover lost
	faults   []*Fault
	failures map[string]*Fault // set by configureFailPoint, by name
	throttle *Throttle
}

// Start brings a server up. Close it when done.
func Start(config Config) (*Server, error) {
	if config.Members == 0 {
		config.Members = 1
	}
	if config.MaxWireVersion == 0 {
		config.MaxWireVersion = 21
	}
	if config.YieldEvery == 0 {
		config.YieldEvery = 64
	}
	if config.MaxDocumentBytes == 0 {
		config.MaxDocumentBytes = 16 << 20
	}
	if config.MaxMessageBytes == 0 {
		config.MaxMessageBytes = 48_000_000
	}
	if config.MaxBatch == 0 {
		config.MaxBatch = 100_000
	}
	if config.ReplicaSet != "" && config.ShardKeys != nil {
		return nil, errors.New("mongosim: either a replica set or a mongos")
	}
	if config.ReplicaSet == "" && config.Members != 1 {
		return nil, errors.New("mongosim: a standalone server has one member")
	}
	if config.MaxWireVersion < 9 || config.MaxWireVersion > 25 {
		return nil, fmt.Errorf("mongosim: wire version %d is not simulated, 9 to 25 are", config.MaxWireVersion)
	}
	s := &Server{
		config:   config,
		clock:    config.Clock,
		done:     make(chan struct{}),
		conns:    map[*conn]bool{},
		random:   rand.New(rand.NewPCG(config.Seed, 0x1e35)),
		changed:  make(chan struct{}),
		data:     newDataset(),
		sessions: map[string]*session{},
		running:  map[*operation]bool{},
		cursors:  map[int64]*cursor{},
		failures: map[string]*Fault{},
		term:     1,
		topology: 1,
	}
	voters := 1
	if config.ReplicaSet != "" || config.ShardKeys != nil {
		voters = max(3, config.Members)
	}
	for i := range voters {
		m := &member{index: i}
		s.members = append(s.members, m)
		if i >= config.Members {
			continue
		}
		if config.InProcess {
			m.address = fmt.Sprintf("member%d.mongosim.invalid:27017", i)
			continue
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		m.listener, m.address = listener, listener.Addr().String()
		s.wg.Go(func() { s.accept(m) })
	}
	return s, nil
}

func (s *Server) accept(m *member) {
	for {
		c, err := m.listener.Accept()
		if err != nil {
			return
		}
		s.serve(m, c)
	}
}

// serve starts a connection, unless the server is closing or the member is down.
func (s *Server) serve(m *member, c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || m.down {
		_ = c.Close() // the client sees a cut connection, which is what is meant
		return
	}
	s.lastConn++
	cn := newConn(s, m, c, s.lastConn)
	s.conns[cn] = true
	s.wg.Go(cn.run)
}

// URI is the connection string of the server: all reachable members and the set's name.
func (s *Server) URI() string {
	var hosts []string
	for _, m := range s.members {
		if m.address != "" {
			hosts = append(hosts, m.address)
		}
	}
	uri := "mongodb://" + strings.Join(hosts, ",") + "/"
	if s.config.ReplicaSet != "" {
		uri += "?replicaSet=" + s.config.ReplicaSet
	}
	return uri
}

// Dialer connects clients without sockets; give it to options.Client().SetDialer. It knows the addresses of URI only.
func (s *Server) Dialer() *Dialer { return &Dialer{server: s} }

// Dialer dials the members of one server over in-memory pipes.
type Dialer struct{ server *Server }

// DialContext returns the client's end of a new connection to the member with that address. A member that is down
// refuses, as a closed port does.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := d.server
	for _, m := range s.members {
		if m.address != address {
			continue
		}
		s.mu.Lock()
		refuse := s.closed || m.down
		s.mu.Unlock()
		if refuse {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("mongosim: connection refused")}
		}
		client, server := net.Pipe()
		s.serve(m, server)
		return client, nil
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("mongosim: no member has the address %s", address)}
}

// Close cuts all connections, stops what is running and returns when every goroutine of the server is gone.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	for c := range s.conns {
		_ = c.conn.Close() // nobody is left who could use the error
	}
	s.mu.Unlock()
	var errs []error
	for _, m := range s.members {
		if m.listener != nil {
			errs = append(errs, m.listener.Close())
		}
	}
	s.wg.Wait()
	return errors.Join(errs...)
}

// now is the server's time.
func (s *Server) now() time.Time { return s.clock.Now() }

// notify wakes everything that waits for a change of roles or of replication. s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}
