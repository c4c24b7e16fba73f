package mongosim

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// member is one member of the set. A standalone server is a set of one that does not say so.
type member struct {
	index    int
	address  string // "" for a hidden member
	listener net.Listener
	behind   *dataset // what the member has while its replication is held; nil: everything the primary has
	down     bool     // refuses connections
}

// memberData is what a member has stored.
func (s *Server) memberData(m *member) *dataset {
	if m.behind != nil {
		return m.behind
	}
	return s.data
}

// majorityMember is the member with the newest state that a majority of the set has.
func (s *Server) majorityMember() *member {
	order := slices.Clone(s.members)
	slices.SortStableFunc(order, func(a, b *member) int {
		return int(s.memberData(b).position - s.memberData(a).position)
	})
	return order[len(order)/2]
}

func (s *Server) majorityPosition() int64 { return s.memberData(s.majorityMember()).position }

// majorityData is the majority's state as m knows it: a member that lags cannot show more than it has.
func (s *Server) majorityData(m *member) *dataset {
	own, majority := s.memberData(m), s.memberData(s.majorityMember())
	if own.position < majority.position {
		return own
	}
	return majority
}

// allowed checks that this member may run the command now (writes: only a primary; reads: a secondary too, if the
// client said so).
func (op *operation) allowed() error {
	s := op.server
	if s.config.ShardKeys != nil {
		return nil
	}
	if s.config.ReplicaSet == "" {
		if op.number >= 0 {
			return errorf(codeIllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos")
		}
		if op.concern.w > 1 && !op.concern.majority {
			return errorf(codeBadValue, "cannot use 'w' > 1 when a host is not replicated")
		}
		return nil
	}
	switch {
	case op.member.index == s.primary:
		return nil
	case op.command.write:
		return errorf(codeNotWritablePrimary, "not primary")
	case op.command.read && (op.readPref == "" || op.readPref == "primary"):
		return errorf(codeNotPrimaryNoSecondaryOk, "not primary and secondaryOk=false")
	}
	return nil
}

// catchUp waits until the member has the state that a causally consistent read asks for.
func (op *operation) catchUp() error {
	for op.after > op.data().position {
		if op.after > op.server.data.position {
			return nil // a time from before a rollback: that state will never come
		}
		if err := op.wait(op.server.changed); err != nil {
			return err
		}
	}
	return nil
}

// timestamp turns a position into a cluster time.
func timestamp(position int64) (t, i uint32) { return 1, uint32(position) }

// times are the elements that a member of a set adds to every reply.
func (s *Server) times(op *operation) []byte {
	t, i := timestamp(s.data.position)
	cluster := bsoncore.AppendTimestampElement(nil, "clusterTime", t, i)
	cluster = bsoncore.BuildDocumentElement(cluster, "signature",
		bsoncore.AppendBinaryElement(nil, "hash", 0, make([]byte, 20)), bsoncore.AppendInt64Element(nil, "keyId", 0))
	out := bsoncore.BuildDocumentElement(nil, "$clusterTime", cluster)
	t, i = timestamp(s.memberData(op.member).position)
	return bsoncore.AppendTimestampElement(out, "operationTime", t, i)
}

// topologyVersion lets drivers tell news from old news.
func (s *Server) topologyVersion() []byte {
	return bsoncore.BuildDocumentElement(nil, "topologyVersion",
		bsoncore.AppendObjectIDElement(nil, "processId", [12]byte{11: 1}),
		bsoncore.AppendInt64Element(nil, "counter", s.topology))
}

// errStandalone is returned by what only a replica set can do.
var errStandalone = errors.New("mongosim: not a replica set")

// HoldReplication stops replication to the given members (all secondaries, if none is named): they keep what they have.
// While a majority lags, writes at majority wait, and a failover can lose what only the primary has.
func (s *Server) HoldReplication(members ...int) error {
	return s.replication(members, func(m *member) {
		if m.behind == nil {
			m.behind = s.data.clone()
		}
	})
}

// Replicate brings members on which replication is held up to the present, once, and goes on holding.
func (s *Server) Replicate(members ...int) error {
	return s.replication(members, func(m *member) {
		if m.behind != nil {
			m.behind = s.data.clone()
		}
	})
}

// ReleaseReplication lets members follow the primary again.
func (s *Server) ReleaseReplication(members ...int) error {
	return s.replication(members, func(m *member) { m.behind = nil })
}

func (s *Server) replication(members []int, f func(*member)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config.ReplicaSet == "" {
		return errStandalone
	}
	for _, m := range s.members {
		if m.index != s.primary && (len(members) == 0 || slices.Contains(members, m.index)) {
			f(m)
		}
	}
	s.forget()
	s.notify()
	return nil
}

// forget drops the part of the log that no member lacks.
func (s *Server) forget() {
	oldest := s.data.position
	for _, m := range s.members {
		oldest = min(oldest, s.memberData(m).position)
	}
	i := 0
	for i < len(s.log) && s.log[i].Position <= oldest {
		i++
	}
	s.log = slices.Clone(s.log[i:])
}

// lagging says whether some member does not follow.
func (s *Server) lagging() bool {
	for _, m := range s.members {
		if m.behind != nil {
			return true
		}
	}
	return false
}

// StepDown makes the primary a secondary, as replSetStepDown with force does. Writes that are running are interrupted
// (11602), those that wait for their write concern are told so (189), connections stay open, and until StepUp or
// Failover there is no primary. What sessions did without writing anything is forgotten.
func (s *Server) StepDown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config.ReplicaSet == "" {
		return errStandalone
	}
	s.stepDown()
	return nil
}

func (s *Server) stepDown() {
	s.primary = -1
	for op := range s.running {
		if op.command != nil && op.command.write {
			op.kill(errorf(codeInterruptedDueToReplStateChange, "operation was interrupted"))
		}
	}
	s.sessions = map[string]*session{}
	s.topology++
	s.notify()
}

// StepUp makes a member primary at once, without loss if it has everything. If its replication was held, what it lacks is
// rolled back on the others; that is refused, as by a real election, if it lacks something a majority has. It returns the
// writes that were lost.
func (s *Server) StepUp(index int) ([]Write, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elect(index)
}

// Failover crashes the primary, its connections are cut, and makes the most advanced other member primary at once. Writes
// that were not replicated to it are lost; they are returned, newest last. With a single reachable member its address
// serves the new state. The crashed member comes back as a secondary, rolled back.
func (s *Server) Failover() ([]Write, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config.ReplicaSet == "" {
		return nil, errStandalone
	}
	old := s.primary
	s.stepDown()
	next := -1
	for _, m := range s.members {
		if m.index != old && (next < 0 || s.memberData(m).position > s.memberData(s.members[next]).position) {
			next = m.index
		}
	}
	for c := range s.conns {
		if c.member.index == old || s.members[next].address == "" {
			c.cut()
		}
	}
	if s.members[next].address != "" {
		return s.elect(next)
	}
	// The winner is hidden: a reachable member takes over its state, which to clients is the same.
	visible := max(old, 0)
	s.members[visible].behind, s.members[next].behind = s.members[next].behind, nil
	return s.elect(visible)
}

func (s *Server) elect(index int) ([]Write, error) {
	if s.config.ReplicaSet == "" {
		return nil, errStandalone
	}
	if index < 0 || index >= len(s.members) || s.members[index].address == "" {
		return nil, fmt.Errorf("mongosim: member %d cannot be reached by clients", index)
	}
	next := s.members[index]
	state := s.memberData(next)
	if state.position < s.majorityPosition() {
		return nil, fmt.Errorf("mongosim: member %d lacks writes that a majority has, it would not be elected", index)
	}
	if s.primary >= 0 {
		s.stepDown()
	}
	var lost []Write
	if state != s.data {
		for _, w := range s.log {
			if w.Position > state.position {
				lost = append(lost, w)
			}
		}
		// The others lose what the new primary does not have; those that are behind even that stay behind.
		for _, m := range s.members {
			if m.behind == nil || m.behind.position >= state.position {
				m.behind = nil
			}
		}
		s.data = state.clone()
		s.rolledBack(lost)
	}
	s.log = slices.DeleteFunc(s.log, func(w Write) bool { return w.Position > state.position })
	s.primary = index
	s.term++
	s.topology++
	s.notify()
	return lost, nil
}

// Restart stops the server and starts it again: connections are cut, cursors and the memory of sessions are gone, stored
// data is kept. In a set the same member is primary afterwards.
func (s *Server) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	primary := s.primary
	for op := range s.running {
		op.kill(errorf(codeInterruptedAtShutdown, "interrupted at shutdown"))
	}
	for c := range s.conns {
		c.cut()
	}
	s.cursors = map[int64]*cursor{}
	s.stepDown()
	s.primary = primary
	s.term++
	s.topology++
	s.notify()
}
