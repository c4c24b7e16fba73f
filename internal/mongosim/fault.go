package mongosim

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Fault is something that goes wrong inside the server. The first part of the fields chooses the commands that it strikes,
// the second says what happens to them, in the order of the fields. Add it with Server.AddFault and do not change it afterwards.
type Fault struct {
	// Commands are the names of the commands to strike. Empty means every command except hello and ping.
	Commands []string
	// Namespace ("db.collection") and AppName narrow the choice further; so does Match, which sees the command's own
	// document without its document sequences, while the server is locked.
	Namespace string
	AppName   string
	Match     func(Step, bson.Raw) bool
	// Skip is how many commands are let through first, Times how many are struck then; 0 is all until it is removed.
	Skip  int
	Times int

	// Hold keeps the command from starting until the channel is closed.
	Hold <-chan struct{}
	// Block keeps the command from starting for a time on the server's clock.
	Block time.Duration
	// AfterClientGone keeps the command from starting until the client has closed the connection. Then it is executed.
	AfterClientGone bool
	// CloseBefore closes the connection instead of executing the command.
	CloseBefore bool
	// Err is the answer instead of executing the command.
	Err *Error
	// Labels replace the labels that the server would give an error of the command, unless nil; empty means none.
	Labels []string
	// Refuse can refuse single statements of insert, update and delete, by their position: nil lets one through.
	Refuse func(statement int) *Error
	// WriteConcernErr is reported after the command was executed.
	WriteConcernErr *Error
	// Rewrite replaces the reply.
	Rewrite func(bson.Raw) bson.Raw
	// CloseAfter executes the command and then closes the connection instead of replying.
	CloseAfter bool

	skipped, hits int // guarded by Server.mu
}

// effects is what the faults that strike an operation do to it.
type effects struct {
	faults     []*Fault
	refuse     []func(int) *Error
	concern    *Error
	labels     []string
	rewrite    func([]byte) []byte
	closeAfter bool
}

// AddFault arms a fault. Faults strike in the order in which they were added.
func (s *Server) AddFault(f *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// RemoveFault disarms a fault; commands that it already holds go on being held.
func (s *Server) RemoveFault(f *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = slices.DeleteFunc(s.faults, func(g *Fault) bool { return g == f })
}

// Hits is how often a fault has struck.
func (s *Server) Hits(f *Fault) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.hits
}

// strike collects the faults that hit an operation and counts them. s.mu is held.
func (s *Server) strike(op *operation) effects {
	var e effects
	armed := s.faults
	if f := s.failures["failCommand"]; f != nil {
		armed = append([]*Fault{f}, armed...)
	}
	for _, f := range armed {
		if !f.chooses(op) {
			continue
		}
		if f.skipped < f.Skip {
			f.skipped++
			continue
		}
		if f.Times > 0 && f.hits >= f.Times {
			continue
		}
		f.hits++
		e.faults = append(e.faults, f)
		if f.Refuse != nil {
			e.refuse = append(e.refuse, f.Refuse)
		}
		if f.WriteConcernErr != nil {
			e.concern = f.WriteConcernErr
		}
		if f.Labels != nil {
			e.labels = f.Labels
		}
		if f.Rewrite != nil {
			inner, rewrite := e.rewrite, f.Rewrite
			e.rewrite = func(doc []byte) []byte {
				if inner != nil {
					doc = inner(doc)
				}
				return rewrite(doc)
			}
		}
		e.closeAfter = e.closeAfter || f.CloseAfter
	}
	return e
}

func (f *Fault) chooses(op *operation) bool {
	if len(f.Commands) > 0 {
		if !slices.Contains(f.Commands, op.name) {
			return false
		}
	} else if slices.Contains([]string{"hello", "isMaster", "ismaster", "ping", "configureFailPoint"}, op.name) {
		return false
	}
	if f.Namespace != "" && f.Namespace != op.ns || f.AppName != "" && f.AppName != op.conn.app {
		return false
	}
	return f.Match == nil || f.Match(Step{Point: PointArrived, Command: op.name, Namespace: op.ns, Connection: op.conn.id,
		LSID: op.lsid, TxnNumber: op.number}, bson.Raw(op.req.body))
}

// before is what faults do to an operation before it starts. s.mu is held before and after.
func (op *operation) before() error {
	if !op.deadline.IsZero() && op.server.failures["maxTimeAlwaysTimeOut"] != nil {
		return errorf(codeMaxTimeMSExpired, "operation exceeded time limit")
	}
	for _, f := range op.effects.faults {
		if f.Hold != nil {
			if err := op.wait(f.Hold); err != nil {
				return err
			}
		}
		if f.Block > 0 {
			if err := op.sleep(f.Block); err != nil {
				return err
			}
		}
		if f.AfterClientGone {
			op.server.mu.Unlock()
			op.conn.gone()
			op.server.mu.Lock()
			if err := op.interrupted(); err != nil {
				return err
			}
		}
		if f.CloseBefore {
			return errNoReply
		}
		if f.Err != nil {
			return f.Err
		}
	}
	return nil
}

// refused asks the faults and the throttle about one statement.
func (op *operation) refused(statement int) error {
	for _, f := range op.effects.refuse {
		if err := f(statement); err != nil {
			return err
		}
	}
	if t := op.server.throttle; t != nil {
		if err := t.take(op.server.now()); err != nil {
			return err
		}
	}
	return nil
}
