package mongosim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Error codes as MongoDB numbers them (src/mongo/base/error_codes.yml).
const (
	codeInternalError                   = 1
	codeBadValue                        = 2
	codeFailedToParse                   = 9
	codeUnauthorized                    = 13
	codeTypeMismatch                    = 14
	codeOverflow                        = 15
	codeInvalidLength                   = 16
	codeIllegalOperation                = 20
	codeInvalidBSON                     = 22
	codeNamespaceNotFound               = 26
	codeIndexNotFound                   = 27
	codePathNotViable                   = 28
	codeConflictingUpdateOperators      = 40
	codeCursorNotFound                  = 43
	codeNamespaceExists                 = 48
	codeMaxTimeMSExpired                = 50
	codeDollarPrefixedFieldName         = 52
	codeEmptyFieldName                  = 56
	codeCommandNotFound                 = 59
	codeShardKeyNotFound                = 61
	codeWriteConcernFailed              = 64
	codeImmutableField                  = 66
	codeCannotCreateIndex               = 67
	codeInvalidOptions                  = 72
	codeInvalidNamespace                = 73
	codeUnknownReplWriteConcern         = 79
	codeIndexOptionsConflict            = 85
	codeIndexKeySpecsConflict           = 86
	codeShutdownInProgress              = 91
	codeUnsatisfiableWriteConcern       = 100
	codeDocumentValidationFailure       = 121
	codeCommandNotSupportedOnView       = 166
	codeCannotIndexParallelArrays       = 171
	codePrimarySteppedDown              = 189
	codeTransactionTooOld               = 225
	codeNotImplemented                  = 238
	codeOperationNotSupportedInTxn      = 263
	codeBSONObjectTooLarge              = 10334
	codeNotWritablePrimary              = 10107
	codeDuplicateKey                    = 11000
	codeInterruptedAtShutdown           = 11600
	codeInterrupted                     = 11601
	codeInterruptedDueToReplStateChange = 11602
	codeNotPrimaryNoSecondaryOk         = 13435
	codeNotPrimaryOrSecondary           = 13436
	codeTooManyRequests                 = 16500
	codeCannotBackfillArray             = 34
	codeUnknownField                    = 40415
	codeMissingField                    = 40414
	codeDuplicateField                  = 40413
)

// codeNames are the names that a reply carries in codeName. A code without a name is called Location and its number.
var codeNames = map[int32]string{
	codeInternalError: "InternalError", codeBadValue: "BadValue", codeFailedToParse: "FailedToParse",
	codeUnauthorized: "Unauthorized", codeTypeMismatch: "TypeMismatch", codeOverflow: "Overflow",
	codeInvalidLength: "InvalidLength", codeIllegalOperation: "IllegalOperation", codeInvalidBSON: "InvalidBSON",
	codeNamespaceNotFound: "NamespaceNotFound", codeIndexNotFound: "IndexNotFound", codePathNotViable: "PathNotViable",
	codeConflictingUpdateOperators: "ConflictingUpdateOperators", codeCursorNotFound: "CursorNotFound",
	codeNamespaceExists: "NamespaceExists", codeMaxTimeMSExpired: "MaxTimeMSExpired",
	codeDollarPrefixedFieldName: "DollarPrefixedFieldName", codeEmptyFieldName: "EmptyFieldName",
	codeCommandNotFound: "CommandNotFound", codeShardKeyNotFound: "ShardKeyNotFound", codeWriteConcernFailed: "WriteConcernFailed",
	codeImmutableField: "ImmutableField", codeCannotCreateIndex: "CannotCreateIndex",
	codeInvalidOptions: "InvalidOptions", codeInvalidNamespace: "InvalidNamespace",
	codeUnknownReplWriteConcern: "UnknownReplWriteConcern", codeIndexOptionsConflict: "IndexOptionsConflict",
	codeIndexKeySpecsConflict: "IndexKeySpecsConflict", codeShutdownInProgress: "ShutdownInProgress",
	codeUnsatisfiableWriteConcern: "UnsatisfiableWriteConcern", codeDocumentValidationFailure: "DocumentValidationFailure",
	codeCommandNotSupportedOnView: "CommandNotSupportedOnView", codeCannotIndexParallelArrays: "CannotIndexParallelArrays",
	codePrimarySteppedDown: "PrimarySteppedDown", codeTransactionTooOld: "TransactionTooOld",
	codeNotImplemented:             "NotImplemented",
	codeOperationNotSupportedInTxn: "OperationNotSupportedInTransaction", codeBSONObjectTooLarge: "BSONObjectTooLarge",
	codeNotWritablePrimary: "NotWritablePrimary", codeDuplicateKey: "DuplicateKey",
	codeInterruptedAtShutdown: "InterruptedAtShutdown", codeInterrupted: "Interrupted",
	codeInterruptedDueToReplStateChange: "InterruptedDueToReplStateChange",
	codeNotPrimaryNoSecondaryOk:         "NotPrimaryNoSecondaryOk", codeNotPrimaryOrSecondary: "NotPrimaryOrSecondary",
}

func codeName(code int32) string {
	if name, ok := codeNames[code]; ok {
		return name
	}
	return fmt.Sprintf("Location%d", code)
}

// retriable are the codes that error_codes.yml puts into the category RetriableError; on a write with a transaction
// number they earn the label RetryableWriteError (error_labels.cpp).
var retriable = []int32{6, 7, 89, 91, 189, 262, 317, 358, 9001, 10107, 11600, 11602, 13435, 13436, 50915}

// notPrimary are the codes of the categories NotPrimaryError and Interruption by a change of state.
var notPrimary = []int32{codeNotWritablePrimary, codeNotPrimaryNoSecondaryOk, codeNotPrimaryOrSecondary,
	codeInterruptedDueToReplStateChange, codePrimarySteppedDown}

// Error is an error of a command or of one statement of it, in MongoDB's terms.
type Error struct {
	Code    int32
	Message string

	fields []byte // further elements of the reply: keyPattern, keyValue, errInfo
	kills  bool   // ends the whole command even where errors of single statements are collected
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s (%d): %s", codeName(e.Code), e.Code, e.Message)
}

func errorf(code int32, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// notSimulated refuses something that MongoDB knows and the simulator does not. Ignoring it would be a lie.
func notSimulated(what string, args ...any) *Error {
	return errorf(codeNotImplemented, "mongosim does not simulate "+what, args...)
}

// asError gives every error a code.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return errorf(codeInternalError, "%v", err)
}

// endsCommand says whether an error of one statement ends the whole command (handleError in write_ops_exec.cpp: what is
// an interruption or a loss of primacy is thrown on, everything else becomes a write error).
func (e *Error) endsCommand() bool {
	return e.kills || slices.Contains(notPrimary, e.Code) || e.Code == codeInterrupted ||
		e.Code == codeMaxTimeMSExpired || e.Code == codeInterruptedAtShutdown || e.Code == codeShutdownInProgress ||
		e.Code == codeTransactionTooOld
}

// body is the reply to a command that failed.
func (e *Error) body() []byte {
	dst := bsoncore.AppendDoubleElement(nil, "ok", 0)
	dst = bsoncore.AppendStringElement(dst, "errmsg", e.Message)
	dst = bsoncore.AppendInt32Element(dst, "code", e.Code)
	dst = bsoncore.AppendStringElement(dst, "codeName", codeName(e.Code))
	return append(dst, e.fields...)
}

// writeError is the entry in writeErrors.
func (e *Error) writeError(index int) bsoncore.Value {
	dst := bsoncore.AppendInt32Element(nil, "index", int32(index))
	dst = bsoncore.AppendInt32Element(dst, "code", e.Code)
	dst = append(dst, e.fields...)
	dst = bsoncore.AppendStringElement(dst, "errmsg", e.Message)
	return document(dst)
}

// document wraps elements into a value.
func document(elements ...[]byte) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: bsoncore.BuildDocument(nil, elements...)}
}

// shell shows a value in messages the way the server's texts do, cut to a bounded length.
func shell(v bsoncore.Value) string {
	var s string
	switch v.Type {
	case bsoncore.TypeNull:
		return "null"
	case bsoncore.TypeInt32, bsoncore.TypeInt64:
		n, _ := wholeNumber(v)
		return strconv.FormatInt(n, 10)
	case bsoncore.TypeObjectID:
		return "ObjectId('" + bson.ObjectID(v.ObjectID()).Hex() + "')"
	case bsoncore.TypeString:
		s = strconv.Quote(v.StringValue())
	default:
		s = bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}.String()
	}
	if len(s) > 150 {
		s = s[:150] + "..."
	}
	return s
}
