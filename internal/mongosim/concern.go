package mongosim

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// writeConcern is what a write asks to wait for.
type writeConcern struct {
	given    bool
	w        int64
	majority bool
	tag      string // a named mode: none is configured
	j        bool
	timeout  time.Duration
	raw      bsoncore.Value
}

func (w *writeConcern) parse(v bsoncore.Value) error {
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return wrongType("writeConcern", "writeConcern", v, "object")
	}
	w.given, w.w, w.raw = true, 1, v
	for it := fieldsOf(v.Data); it.next(); {
		name := string(it.name)
		switch name {
		case "w":
			if it.value.Type == bsoncore.TypeString {
				w.majority = it.value.StringValue() == "majority"
				if !w.majority {
					w.tag = it.value.StringValue()
				}
				continue
			}
			n, ok := wholeNumber(it.value)
			if !ok || n < 0 || n > 50 {
				return errorf(codeFailedToParse, "w has to be a non-negative number and not greater than 50; or a string")
			}
			w.w = n
		case "j", "fsync":
			w.j = truthy(it.value)
		case "wtimeout":
			n, ok := wholeNumber(it.value)
			if !ok || n < 0 {
				return errorf(codeFailedToParse, "wtimeout must be a non-negative number")
			}
			w.timeout = time.Duration(n) * time.Millisecond
		case "provenance":
		default:
			return errorf(codeFailedToParse, "unrecognized write concern field: %.100s", name)
		}
	}
	return nil
}

// awaitConcern waits until the write concern is satisfied and returns the writeConcernError of the reply, if there is
// one. The write itself stands in any case. A write that changed nothing waits for everything before it, because its
// outcome may rest on a write that is not yet on the majority (manual, "Write Concern").
func (op *operation) awaitConcern() []byte {
	s := op.server
	if e := op.effects.concern; e != nil {
		op.concernCode = e.Code
		return op.concernError(e, false)
	}
	w := op.concern
	if !w.given {
		// The implicit default is majority since 5.0 (manual, "Default MongoDB Write Concern").
		w.majority, w.w = s.config.MaxWireVersion >= 13, 1
	}
	if len(s.members) == 1 {
		return nil
	}
	position := op.position
	if position == 0 {
		position = s.data.position
	}
	switch {
	case !w.majority && w.tag == "" && w.w <= 1:
		return nil // nothing to wait for, not even for the primary to be still one
	case w.tag != "":
		return op.concernError(errorf(codeUnknownReplWriteConcern, "No write concern mode named '%.100s' found in replica set configuration", w.tag), false)
	case !w.majority && w.w > int64(len(s.members)):
		return op.concernError(errorf(codeUnsatisfiableWriteConcern, "Not enough data-bearing nodes"), false)
	}
	var expired <-chan struct{}
	if w.timeout > 0 {
		fire, stop := s.clock.timer(s.now().Add(w.timeout))
		defer stop()
		expired = fire
	}
	for {
		if op.cause != nil && op.cause.Code == codeInterruptedDueToReplStateChange {
			return op.concernError(errorf(codePrimarySteppedDown, "Primary stepped down while waiting for replication"), false)
		}
		if s.satisfied(w, position) {
			return nil
		}
		select {
		case <-expired:
			return op.concernError(errorf(codeWriteConcernFailed, "waiting for replication timed out"), true)
		default:
		}
		if err := op.waitEither(s.changed, expired); err != nil && op.cause == nil {
			return op.concernError(asError(err), false)
		} else if err != nil && op.cause.Code != codeInterruptedDueToReplStateChange {
			return op.concernError(op.cause, false)
		}
	}
}

func (s *Server) satisfied(w writeConcern, position int64) bool {
	if w.majority {
		return s.majorityPosition() >= position
	}
	n := int64(0)
	for _, m := range s.members {
		if s.memberData(m).position >= position {
			n++
		}
	}
	return n >= w.w
}

func (op *operation) concernError(e *Error, timedOut bool) []byte {
	op.concernCode = e.Code
	elements := bsoncore.AppendInt32Element(nil, "code", e.Code)
	elements = bsoncore.AppendStringElement(elements, "codeName", codeName(e.Code))
	elements = bsoncore.AppendStringElement(elements, "errmsg", e.Message)
	if timedOut {
		info := bsoncore.AppendBooleanElement(nil, "wtimeout", true)
		if op.concern.given {
			info = bsoncore.AppendValueElement(info, "writeConcern", op.concern.raw)
		}
		elements = bsoncore.BuildDocumentElement(elements, "errInfo", info)
	} else {
		elements = append(elements, e.fields...)
	}
	return bsoncore.BuildDocumentElement(nil, "writeConcernError", elements)
}
