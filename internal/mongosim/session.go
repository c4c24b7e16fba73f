package mongosim

import (
	"maps"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// session is what a member remembers of a logical session while it is primary. It dies with a restart or a change of
// primary, and with it the number of an operation that wrote nothing: only what was written is in the history.
type session struct {
	number  int64 // the newest transaction number seen
	busy    bool
	waiting []chan struct{} // operations that want the session, oldest first
}

// history is what a session's newest retryable write has done, kept as data: it is replicated and rolled back together
// with the writes themselves (config.transactions and the oplog).
type history struct {
	number int64
	done   map[int32]*statement
	shared bool // a snapshot holds this history too: copy before changing it
}

// statement is the remembered result of one statement.
type statement struct {
	n        int32
	modified int32
	upserted *bsoncore.Value // the _id an update inserted
	document bsoncore.Value  // findAndModify: the value it returned
}

// checkOut waits until the operation's session is free and takes it. It refuses numbers older than the newest one,
// whether or not the operation with the newest one changed anything (TransactionParticipant::beginOrContinue).
// s.mu is held before and after, not while waiting.
func (op *operation) checkOut() error {
	if op.number < 0 {
		return nil
	}
	s := op.server
	sess := s.sessions[op.lsid]
	if sess == nil {
		sess = &session{number: -1}
		if h := s.data.sessions[op.lsid]; h != nil {
			sess.number = h.number
		}
		s.sessions[op.lsid] = sess
	}
	if sess.busy {
		turn := make(chan struct{})
		sess.waiting = append(sess.waiting, turn)
		if err := op.wait(turn); err != nil {
			for i, w := range sess.waiting {
				if w == turn {
					sess.waiting = append(sess.waiting[:i:i], sess.waiting[i+1:]...)
					return err
				}
			}
			sess.pass() // it was this operation's turn already
			return err
		}
	}
	sess.busy = true
	if op.number < sess.number {
		sess.pass()
		return errorf(codeTransactionTooOld, "Retryable write with txnNumber %d is prohibited on this session because a newer retryable write with txnNumber %d has already started on it.", op.number, sess.number)
	}
	sess.number = op.number
	op.session = sess
	return nil
}

// checkIn gives the session to the next in line.
func (op *operation) checkIn() {
	if op.session == nil {
		return
	}
	op.session.pass()
	op.session = nil
}

// pass hands the session to the operation that has waited longest; it stays busy then, so that nobody overtakes.
func (sess *session) pass() {
	if len(sess.waiting) == 0 {
		sess.busy = false
		return
	}
	next := sess.waiting[0]
	sess.waiting = sess.waiting[1:]
	close(next)
}

// executed is the remembered result of a statement of this very operation, nil if it was not executed before.
func (op *operation) executed(stmt int32) *statement {
	if op.number < 0 {
		return nil
	}
	h := op.server.data.sessions[op.lsid]
	if h == nil || h.number != op.number {
		return nil
	}
	return h.done[stmt]
}

// remember puts a statement into the history. Only statements that wrote something are remembered, because MongoDB finds
// them in the oplog.
func (op *operation) remember(stmt int32, st *statement) {
	if op.number < 0 {
		return
	}
	d := op.server.data
	h := d.sessions[op.lsid]
	switch {
	case h == nil || h.number != op.number:
		h = &history{number: op.number, done: map[int32]*statement{}}
	case h.shared:
		h = &history{number: h.number, done: maps.Clone(h.done)}
	}
	d.sessions[op.lsid] = h
	h.done[stmt] = st
}
