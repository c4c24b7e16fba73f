package batch

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/rollback"
)

// ErrInvalidDocuments is the Cause of an Error whose documents were refused before anything was sent.
var ErrInvalidDocuments = errors.New("documents are not fit to be stored")

// DuplicateIDError is the reason for which a document is refused that has the _id of an earlier one of its batch.
type DuplicateIDError struct {
	First int // index of the earlier document in the caller's slice
}

func (e *DuplicateIDError) Error() string {
	return fmt.Sprintf("it has the same _id as document %d", e.First)
}

// DocumentError is one document that was refused, and why.
type DocumentError struct {
	Part       int           // position of its Part in the call
	Index      int           // position in the caller's slice
	Collection string        // database.collection
	ID         bson.RawValue // its _id; the zero RawValue if it has none
	// Code and Message are the server's; Code is 0 if the document was refused before it was sent. A server's message
	// can quote the document; Error does not repeat it.
	Code    int
	Message string
	// Duplicate says which unique index the document clashed with; nil if it was refused for something else.
	Duplicate *Duplicate
	// ErrInfo holds the server's details, such as the rules of a validator that are not met. Nil if it gave none.
	ErrInfo bson.Raw
	// Err is the underlying error: a mongo.WriteError, a *DuplicateIDError, or one of the encoding.
	Err error
}

// codeValidation is DocumentValidationFailure.
const codeValidation = 121

// Duplicate names a unique index.
type Duplicate struct {
	Index string   // the index's name; empty if the server did not tell
	Keys  []string // the index's fields; nil if the server did not tell
}

// Error names the document by its index and the reason without the document's contents.
func (e DocumentError) Error() string {
	return fmt.Sprintf("%s, document %d: %s", e.Collection, e.Index, e.reason())
}

func (e DocumentError) reason() string {
	switch {
	case e.Duplicate != nil && e.Duplicate.Index != "":
		return fmt.Sprintf("duplicate key in the unique index %s (E%d)", e.Duplicate.Index, e.Code)
	case e.Duplicate != nil && len(e.Duplicate.Keys) > 0:
		return fmt.Sprintf("duplicate key in the unique index on %s (E%d)", strings.Join(e.Duplicate.Keys, ", "), e.Code)
	case e.Duplicate != nil:
		return fmt.Sprintf("duplicate key in a unique index that the server did not name (E%d)", e.Code)
	case e.Code == codeValidation:
		return "the collection's validator refused it (code 121, see ErrInfo)"
	case e.Code != 0:
		return fmt.Sprintf("the server refused it (code %d, see Message)", e.Code)
	}
	return e.Message
}

// Unwrap returns Err.
func (e DocumentError) Unwrap() error { return e.Err }

// Error is what Inserter.Insert returns when a batch was not stored. RolledBack tells what is true of the data.
type Error struct {
	// BatchID is the id of the attempt, which the batch's stamped documents carry.
	BatchID bson.ObjectID
	// JournalID is the id of the batch's journal record, for Inserter.Resolve: the key given to InsertOnce, or the hex
	// form of BatchID. Empty without a journal.
	JournalID string
	// Total is the number of documents in the batch.
	Total int
	// Cause is why the batch failed: the first error that could not be repeated away, the end of the caller's context
	// (context.Cause), or ErrInvalidDocuments.
	Cause error
	// Documents are the documents that were refused, in the order of parts and indexes. When the server refused the
	// first of them, chunks that were not sent yet stayed unsent, so that other documents may be refused as well next
	// time.
	Documents []DocumentError
	// Sent says whether any insert was sent.
	Sent bool
	// Rollback tells what the rollback did.
	Rollback rollback.Report
	// Incomplete is why the rollback could not finish, usually a *rollback.Error with the leftovers; nil if it could.
	Incomplete error
}

// RolledBack reports whether nothing of the batch is in the database, now and later, under the condition that the
// package comment states for late writes.
func (e *Error) RolledBack() bool {
	return !e.Unresolved() && e.nothingLeft()
}

// Unresolved reports whether all documents are stored but the commit's answer was lost (ErrCommitUnknown): the batch is
// then either committed, or a recovery will remove it. Only batches with a journal can be Unresolved.
func (e *Error) Unresolved() bool { return errors.Is(e.Cause, ErrCommitUnknown) }

func (e *Error) nothingLeft() bool {
	return e.Incomplete == nil || len(e.Leftovers()) == 0 && errors.Is(e.Incomplete, rollback.ErrExcess)
}

// Leftovers lists the documents that may still be in the database; empty if RolledBack.
func (e *Error) Leftovers() []rollback.Leftover {
	var failed *rollback.Error
	if errors.As(e.Incomplete, &failed) {
		return failed.Leftovers
	}
	return nil
}

// maxNamed is how many refused documents a message names before it counts the rest.
const maxNamed = 3

// Error says what happened and what is true of the data now, without documents' contents.
func (e *Error) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "batch %s of %d documents ", e.BatchID.Hex(), e.Total)
	switch {
	case e.Unresolved():
		fmt.Fprintf(&text, "is stored, but its verdict is not known: ask Resolve(%q) later; a recovery removes it whole if it was not committed: ", e.JournalID)
	case !e.Sent:
		text.WriteString("was not stored, nothing was written: ")
	case e.Incomplete == nil:
		text.WriteString("was rolled back, nothing of it is left: ")
	case e.RolledBack():
		fmt.Fprintf(&text, "was rolled back, nothing of it is left, but %v; the batch failed because ", e.Incomplete)
	default:
		fmt.Fprintf(&text, "FAILED AND IS INCOMPLETE: %v; the batch failed because ", e.Incomplete)
	}
	if len(e.Documents) == 0 {
		text.WriteString(describe(e.Cause))
		return text.String()
	}
	fmt.Fprintf(&text, "%d refused (", len(e.Documents))
	for i, document := range e.Documents {
		if i == maxNamed {
			fmt.Fprintf(&text, "; +%d more", len(e.Documents)-i)
			break
		}
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(document.Error())
	}
	text.WriteString(")")
	return text.String()
}

// describe keeps messages short. A server's words can quote documents, so that of its errors code and name are told.
func describe(err error) string {
	if err == nil {
		return "of an unknown error"
	}
	text := err.Error()
	if words, code, name := serverError(err); code != 0 {
		told := fmt.Sprintf("the server answered with error %d", code)
		if name != "" {
			told += " " + name
		}
		text = strings.ReplaceAll(text, words, told)
	}
	return firstWords(text)
}

// serverError finds a server's error within err: its text as part of err's, its code and its name if it has one.
func serverError(err error) (words string, code int, name string) {
	var command mongo.CommandError
	var exception mongo.WriteException
	var bulk mongo.BulkWriteException
	var refused mongo.WriteError
	switch {
	case errors.As(err, &command):
		return command.Error(), int(command.Code), command.Name
	case errors.As(err, &exception):
		words, code = exception.Error(), outcome.Command(err).Code
		if exception.WriteConcernError != nil {
			name = exception.WriteConcernError.Name
		}
	case errors.As(err, &bulk):
		words, code = bulk.Error(), outcome.Command(err).Code
		if bulk.WriteConcernError != nil {
			name = bulk.WriteConcernError.Name
		}
	case errors.As(err, &refused):
		words, code = refused.Error(), refused.Code
	}
	return words, code, name
}

func firstWords(text string) string {
	text, _, _ = strings.Cut(text, " dup key:")
	if len(text) > 300 {
		text = text[:297] + "..."
	}
	return text
}

// Unwrap returns Cause, the refused documents' errors and Incomplete, so that errors.Is and errors.As reach all three.
func (e *Error) Unwrap() []error {
	all := make([]error, 0, len(e.Documents)+2)
	if e.Cause != nil {
		all = append(all, e.Cause)
	}
	if e.Incomplete != nil {
		all = append(all, e.Incomplete)
	}
	for _, document := range e.Documents {
		all = append(all, document)
	}
	return all
}
