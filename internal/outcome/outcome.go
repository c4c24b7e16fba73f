// Package outcome turns what the driver returns into what is proven.
//
// An answer proves something about a document only if it says so: a document is Applied when the server counted it,
// Rejected when the server named it or when nothing was sent, and Unknown in every other case.
//
// The driver repeats writes by itself, and an error of a later sending says nothing about an earlier one. With a deadline
// in the context, v2.10.0 (Operation.Execute) repeats without limit, and the error that it returns in the end may be that
// of any sending: when no server can be selected any more it is that of the last one, even if that was labelled
// NoWritesPerformed and one before it was answered by nothing but a broken connection. Therefore the label proves
// nothing here, nor does a connection pool that was cleared. Two things do: that no server was selected, or no
// connection free, which the driver only reports when it has sent nothing at all; and the codes of checks that every
// sending of the command meets alike (the command's syntax, the namespace, the rights). The latter hold unless the rights
// or the kind of the collection changed between two sendings.
//
// Errors are told apart by type, code and label, never by their text. Two facts that some servers put nowhere else are
// read out of the text all the same, because a wrong reading of them does no harm: the name of the index that a
// duplicate key clashed with, and the delay that Cosmos DB asks for.
package outcome

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Verdict says what is proven about the insert of one document.
type Verdict uint8

const (
	// Unknown: the answer was lost, or it contradicts itself. The document may be stored, now or later.
	Unknown Verdict = iota
	// Rejected: the server refused this document, or it was never sent.
	Rejected
	// Applied: the server said that it stored this document.
	Applied
)

func (v Verdict) String() string {
	switch v {
	case Unknown:
		return "unknown"
	case Rejected:
		return "rejected"
	case Applied:
		return "applied"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Refusal is the server's reason for not storing one document.
type Refusal struct {
	mongo.WriteError // Index counts within the command
	Class            Class
	Duplicate        *Duplicate // set when the reason is a duplicate key
}

// Insert is what is known after one insert command.
type Insert struct {
	// Verdicts has one entry per document sent.
	Verdicts []Verdict
	// Refusals names documents that the server refused one by one, in the order in which it did.
	Refusals []Refusal
	// Err is why the command as a whole cannot count as done: it failed, its answer was lost or contradicts itself,
	// or the write concern was not met. Nil when the command succeeded or only Refusals speak against it.
	Err error
	// Class tells what Err means for sending the command again.
	Class Class
}

// ContradictionError says that a reply cannot be true, so that nothing in it was believed.
type ContradictionError struct {
	Sent     int   // documents in the command
	Inserted int64 // documents that the reply counts as stored; -1 if the driver did not tell
	Refused  int   // documents that the reply names as refused
	Index    int   // an index that is out of range or named twice; -1 if there is none, -2 if it is not known which
}

const (
	noIndex  = -1
	anyIndex = -2
)

func (e *ContradictionError) Error() string {
	if e.Index >= 0 {
		return fmt.Sprintf("the server's reply to an insert of %d documents contradicts itself: it refuses an impossible or repeated index %d", e.Sent, e.Index)
	}
	if e.Index == anyIndex {
		return fmt.Sprintf("the server's reply to an insert of %d documents contradicts itself: it refuses an impossible index", e.Sent)
	}
	return fmt.Sprintf("the server's reply to an insert of %d documents contradicts itself: %d stored and %d refused do not add up",
		e.Sent, e.Inserted, e.Refused)
}

// OfInsert judges one unordered insert command of n documents, sent through Collection.BulkWrite. inserted is the
// reply's count of stored documents; err is the driver's error.
func OfInsert(n int, inserted int64, err error) Insert {
	report := Insert{Verdicts: make([]Verdict, n)}
	var exception mongo.BulkWriteException
	switch {
	case err == nil:
		if inserted != int64(n) {
			report.contradict(&ContradictionError{Sent: n, Inserted: inserted, Index: noIndex})
			return report
		}
		report.fill(Applied)
	case errors.As(err, &exception):
		report.judge(n, inserted, exception)
	default:
		report.Err = err
		report.Class = Command(err)
		if report.Class.Refused {
			report.fill(Rejected)
		}
	}
	return report
}

func (r *Insert) judge(n int, inserted int64, exception mongo.BulkWriteException) {
	for _, refused := range exception.WriteErrors {
		if !named(refused) {
			r.contradict(&ContradictionError{Sent: n, Inserted: inserted, Refused: len(exception.WriteErrors), Index: anyIndex})
			return
		}
		if refused.Index >= n || r.Verdicts[refused.Index] == Rejected {
			r.contradict(&ContradictionError{Sent: n, Inserted: inserted, Refused: len(exception.WriteErrors), Index: refused.Index})
			return
		}
		r.Verdicts[refused.Index] = Rejected
	}
	if inserted != int64(n-len(exception.WriteErrors)) {
		r.contradict(&ContradictionError{Sent: n, Inserted: inserted, Refused: len(exception.WriteErrors), Index: noIndex})
		return
	}
	for i, verdict := range r.Verdicts {
		if verdict != Rejected {
			r.Verdicts[i] = Applied
		}
	}
	for _, refused := range exception.WriteErrors {
		refusal := Refusal{WriteError: refused.WriteError, Class: ofWriteError(refused.WriteError)}
		if duplicate, ok := DuplicateKey(refused.Code, refused.Message, refused.Raw); ok {
			refusal.Duplicate = &duplicate
		}
		r.Refusals = append(r.Refusals, refusal)
	}
	if exception.WriteConcernError != nil {
		r.Err = exception
		r.Class = Command(exception)
	}
}

// named reports whether the server itself gave the index: the driver takes a missing one, or a text, for 0.
func named(refused mongo.BulkWriteError) bool {
	if refused.Raw == nil {
		return refused.Index >= 0
	}
	index, ok := refused.Raw.Lookup("index").AsInt64OK()
	return ok && index >= 0 && index == int64(refused.Index)
}

// contradict forgets everything that the reply said.
func (r *Insert) contradict(err *ContradictionError) {
	r.fill(Unknown)
	r.Refusals = nil
	r.Err = err
	r.Class = Class{Kind: Unclear}
}

func (r *Insert) fill(v Verdict) {
	for i := range r.Verdicts {
		r.Verdicts[i] = v
	}
}

// Send inserts documents, unordered, with one call of Collection.BulkWrite, and returns how many the reply counts as stored.
// Collection.InsertMany and InsertOne hide that, so that a reply that does not add up would be believed.
func Send(ctx context.Context, coll *mongo.Collection, inserts []mongo.WriteModel) (inserted int64, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			impossible, is := IndexPanic(len(inserts), panicked)
			if !is {
				panic(panicked)
			}
			inserted, err = 0, impossible
		}
	}()
	result, err := coll.BulkWrite(ctx, inserts, options.BulkWrite().SetOrdered(false))
	if result != nil {
		inserted = result.InsertedCount
	}
	return inserted, err
}

// SendOne is Send of one document. An answer that does not count it, and names no reason, is a *ContradictionError.
func SendOne(ctx context.Context, coll *mongo.Collection, document any) error {
	inserted, err := Send(ctx, coll, []mongo.WriteModel{&mongo.InsertOneModel{Document: document}})
	if err == nil && inserted != 1 {
		err = &ContradictionError{Sent: 1, Inserted: inserted, Index: noIndex}
	}
	return err
}

// IndexPanic reports whether a panic that came out of Collection.BulkWrite is the driver's answer to a reply that
// names an impossible index (v2.10.0 uses the index unchecked), and returns the error that stands for it.
func IndexPanic(n int, panicked any) (error, bool) {
	boundsError, ok := panicked.(interface {
		error
		RuntimeError()
	})
	if !ok {
		return nil, false
	}
	return fmt.Errorf("%w (%v)", &ContradictionError{Sent: n, Inserted: -1, Index: anyIndex}, boundsError), true
}

// Kind says whether sending a command again can help.
type Kind uint8

const (
	// Unclear: the error is not one of those known to be either.
	Unclear Kind = iota
	// Transient: the same command can succeed later.
	Transient
	// Permanent: the same command will fail for ever, until somebody changes the server, the rights or the command.
	Permanent
)

func (k Kind) String() string {
	switch k {
	case Unclear:
		return "unclear"
	case Transient:
		return "transient"
	case Permanent:
		return "permanent"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Class is what an error of a command means.
type Class struct {
	Kind Kind
	// Throttled: the server has too much to do; come back with less at a time.
	Throttled bool
	// Refused: it is certain that the command changed nothing.
	Refused bool
	// After is the delay that the server asked for before the next attempt; zero if it named none.
	After time.Duration
	// Code is the server's error code; zero if the error did not come from a server.
	Code int
}
