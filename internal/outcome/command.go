package outcome

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Labels that servers and the driver put on errors.
const (
	labelNetwork           = "NetworkError"
	labelRetryableWrite    = "RetryableWriteError"
	labelOverloaded        = "SystemOverloadedError"
	labelRetryable         = "RetryableError"
	labelTransientTxn      = "TransientTransactionError"
	codeThrottled          = 16500 // Cosmos DB: request rate is large
	codeWriteConcernFailed = 64
)

// Codes as listed in MongoDB's src/mongo/base/error_codes.yml. The transient ones are the drivers' lists for retryable
// reads and writes, and those that say "busy" or "in between" without any fault of the command.
func kindOfCode(code int) Kind {
	switch code {
	case 6, // HostUnreachable
		7,     // HostNotFound
		24,    // LockTimeout
		46,    // LockBusy
		48,    // NamespaceExists: two clients created the collection by inserting into it
		50,    // MaxTimeMSExpired
		63,    // StaleShardVersion
		64,    // WriteConcernFailed (WriteConcernTimeout)
		89,    // NetworkTimeout
		91,    // ShutdownInProgress
		112,   // WriteConflict
		117,   // ConflictingOperationInProgress
		133,   // FailedToSatisfyReadPreference
		134,   // ReadConcernMajorityNotAvailableYet
		150,   // StaleEpoch
		189,   // PrimarySteppedDown
		202,   // NetworkInterfaceExceededTimeLimit
		262,   // ExceededTimeLimit
		314,   // ObjectIsBusy
		365,   // TemporarilyUnavailable
		9001,  // SocketException
		10058, // not primary, before 4.4
		10107, // NotWritablePrimary
		11600, // InterruptedAtShutdown
		11602, // InterruptedDueToReplStateChange
		12586, // BackgroundOperationInProgressForDatabase
		12587, // BackgroundOperationInProgressForNamespace
		13388, // StaleConfig
		13435, // NotPrimaryNoSecondaryOk
		13436, // NotPrimaryOrSecondary
		codeThrottled:
		return Transient
	case 2, // BadValue
		9,     // FailedToParse
		11,    // UserNotFound
		13,    // Unauthorized
		14,    // TypeMismatch
		18,    // AuthenticationFailed
		20,    // IllegalOperation: among others, a delete from a capped collection before 5.0
		31,    // RoleNotFound
		52,    // DollarPrefixedFieldName
		53,    // InvalidIdField
		55,    // InvalidDBRef
		56,    // EmptyFieldName
		57,    // DottedFieldName
		59,    // CommandNotFound
		66,    // ImmutableField
		67,    // CannotCreateIndex
		72,    // InvalidOptions
		73,    // InvalidNamespace
		79,    // UnknownReplWriteConcern
		115,   // CommandNotSupported
		121,   // DocumentValidationFailure
		166,   // CommandNotSupportedOnView
		238,   // NotImplemented
		323,   // APIStrictError
		10089, // remove from a capped collection, before 2.6
		10101, // remove from a capped collection
		10334, // BSONObjectTooLarge
		11000, // DuplicateKey
		11001, // DuplicateKey, on update, before 3.0
		12582: // DuplicateKey, in a capped collection
		return Permanent
	}
	return Unclear
}

// refusesBeforeRunning lists the codes of checks that a server makes before a write command touches anything, so that
// such an answer proves that the command changed nothing.
func refusesBeforeRunning(code int) bool {
	switch code {
	case 2, 9, 11, 13, 14, 18, 31, 59, 72, 73, 115, 166, 238, 323:
		return true
	}
	return false
}

// Command says what an error of a whole command means. A nil error and an error that nobody here has heard of are
// both Unclear. The end of a context is Transient when a deadline passed (the command's own, as far as this package can
// know), and also when somebody cancelled while the command was under way, which the driver reports as a network
// error; callers check their own contexts first.
func Command(err error) Class {
	if err == nil {
		return Class{}
	}
	class := Class{}
	var command mongo.CommandError
	var exception mongo.WriteException
	var bulk mongo.BulkWriteException
	switch {
	case neverSent(err):
		return Class{Kind: Transient, Refused: true}
	case errors.Is(err, mongo.ErrClientDisconnected):
		return Class{Kind: Permanent, Refused: true}
	case errors.As(err, &command):
		class = ofCode(int(command.Code), command.Message, command.Raw)
		stored, _ := command.Raw.Lookup("n").AsInt64OK() // a failure that counts documents is not believed
		class.Refused = refusesBeforeRunning(class.Code) && stored == 0
	case errors.As(err, &exception):
		// Not Refused, whatever was: a deleteMany has deleted some documents before it met one that it could not.
		if len(exception.WriteErrors) > 0 {
			class = ofWriteError(exception.WriteErrors[0])
			class.Refused = false
		} else if exception.WriteConcernError != nil {
			class = ofCode(exception.WriteConcernError.Code, exception.WriteConcernError.Message, exception.WriteConcernError.Raw)
		}
	case errors.As(err, &bulk):
		if bulk.WriteConcernError != nil {
			class = ofCode(bulk.WriteConcernError.Code, bulk.WriteConcernError.Message, bulk.WriteConcernError.Raw)
		} else if len(bulk.WriteErrors) > 0 {
			class = ofWriteError(bulk.WriteErrors[0].WriteError)
			class.Refused = false
		}
	}
	if class.Kind == Unclear && errors.Is(err, context.DeadlineExceeded) {
		class.Kind = Transient
	}
	var cleared driver.RetryablePoolError
	if class.Kind == Unclear && errors.As(err, &cleared) && cleared.Retryable() {
		class.Kind = Transient
	}
	addLabels(&class, err)
	return class
}

// neverSent reports errors that arise before the first sending. When they arise before a later one, the driver returns
// the error of the sending before it. A cleared pool (driver.RetryablePoolError) is not among them: the driver itself
// repeats after it, and may return it in place of the error of a sending that came before.
func neverSent(err error) bool {
	var selection topology.ServerSelectionError
	var queue topology.WaitQueueTimeoutError
	return errors.As(err, &selection) || errors.As(err, &queue)
}

func addLabels(class *Class, err error) {
	var labelled mongo.LabeledError
	if !errors.As(err, &labelled) {
		return
	}
	if labelled.HasErrorLabel(labelOverloaded) {
		class.Throttled = true
	}
	for _, label := range []string{labelNetwork, labelRetryableWrite, labelOverloaded, labelRetryable, labelTransientTxn} {
		if class.Kind == Unclear && labelled.HasErrorLabel(label) {
			class.Kind = Transient
		}
	}
}

func ofWriteError(refused mongo.WriteError) Class {
	class := ofCode(refused.Code, refused.Message, refused.Raw)
	class.Refused = true
	return class
}

func ofCode(code int, message string, raw bson.Raw) Class {
	return Class{
		Kind:      kindOfCode(code),
		Code:      code,
		Throttled: code == codeThrottled,
		After:     hint(message, raw),
	}
}

// hint finds the delay that the server asked for: a field RetryAfterMs, or baseBackoffMS as of MongoDB's overload
// errors, or "RetryAfterMs=34" within the text, which is where Cosmos DB puts it.
func hint(message string, raw bson.Raw) time.Duration {
	for _, key := range []string{"RetryAfterMs", "baseBackoffMS"} {
		if value, err := raw.LookupErr(key); err == nil {
			if ms, ok := value.AsInt64OK(); ok {
				return milliseconds(ms)
			}
		}
	}
	const key = "RetryAfterMs="
	at := strings.Index(message, key)
	if at < 0 {
		return 0
	}
	digits := message[at+len(key):]
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	ms, err := strconv.ParseInt(digits, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // out of range, it is the largest number
		return 0
	}
	return milliseconds(ms)
}

// milliseconds bounds a hint to an hour: no server may park a rollback for ever.
func milliseconds(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), int64(time.Hour/time.Millisecond))) * time.Millisecond
}

// Duplicate says which unique index an E11000 is about.
type Duplicate struct {
	// Known is false when the server named no index.
	Known bool
	// Index is the index's name; empty if the server only told its keys.
	Index string
	// Keys are the index's fields in order, as servers from 4.4 on tell; else nil.
	Keys []string
}

// OnID reports whether the clash may be about the _id: true also when the server did not say.
func (d Duplicate) OnID() bool {
	return !d.Known || d.Index == "_id_" || len(d.Keys) == 1 && d.Keys[0] == "_id"
}

// DuplicateKey takes the index out of a duplicate-key error; ok is false for other errors. raw is the server's original
// write error or reply, and may be nil.
func DuplicateKey(code int, message string, raw bson.Raw) (d Duplicate, ok bool) {
	switch code {
	case 11000, 11001, 12582:
	default:
		return Duplicate{}, false
	}
	if pattern, err := raw.LookupErr("keyPattern"); err == nil {
		if document, isDocument := pattern.DocumentOK(); isDocument {
			if elements, err := document.Elements(); err == nil {
				for _, element := range elements {
					d.Keys = append(d.Keys, element.Key())
				}
			}
		}
	}
	d.Index = indexName(message)
	d.Known = d.Index != "" || len(d.Keys) > 0
	return d, true
}

// indexName reads "… collection: shop.users index: email_1 dup key: …", of servers before 4.2 possibly
// "… index: shop.users.$email_1 dup key: …", and of servers from 4.4 on, when the index has one,
// "… index: email_1 collation: { … } dup key: …". Whatever stands behind " dup key" is the document's.
func indexName(message string) string {
	head, _, found := strings.Cut(message, " dup key")
	if !found {
		return ""
	}
	before, name, found := strings.Cut(head, " index: ")
	if !found {
		return ""
	}
	name, _, _ = strings.Cut(name, " collation: {")
	if !strings.Contains(before, " collection: ") {
		// The old form names the collection here, in which there is no $.
		if _, index, found := strings.Cut(name, ".$"); found {
			name = index
		}
	}
	return strings.TrimSpace(name)
}
