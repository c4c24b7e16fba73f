package outcome_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/intact-go/intact/internal/outcome"
)

// FuzzOfInsert feeds replies through the driver's own reading of replies. Whatever a server says, nothing panics, and
// a document counts as stored or refused only if the reply says so and adds up.
func FuzzOfInsert(f *testing.F) {
	seed := func(fields ...any) { f.Add([]byte(encode(f, made(fields...)))) }
	refused := func(index any, code int) bson.D {
		return bson.D{{Key: "index", Value: index}, {Key: "code", Value: code}, {Key: "errmsg", Value: "E11000 duplicate key error collection: a.b index: c_1 dup key: { c: 1 }"}}
	}
	seed()
	seed("ok", 1, "n", 6)
	seed("ok", 1.0, "n", int64(6))
	seed("ok", true, "n", 5.5)
	seed("ok", 1, "n", -1)
	seed("ok", 1, "n", 5, "writeErrors", bson.A{refused(1, 11000)})
	seed("ok", 1, "n", 3, "writeErrors", bson.A{refused(5, 11000), refused(1, 121), refused(1, 11000)})
	seed("ok", 1, "n", 5, "writeErrors", bson.A{refused(-1, 11000)})
	seed("ok", 1, "n", 5, "writeErrors", bson.A{refused(99, 11000)})
	seed("ok", 1, "n", 5, "writeErrors", bson.A{refused("1", 11000)})
	seed("ok", 1, "n", 5, "writeErrors", bson.A{refused(1.5, 16500), "nothing"})
	seed("ok", 1, "n", 2, "writeErrors", bson.A{refused(2, 11000)})
	seed("ok", 1, "n", 6, "writeConcernError", bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "RetryAfterMs=5"}})
	seed("ok", 1, "n", 5, "writeErrors", bson.A{refused(0, 11000)}, "writeConcernError", bson.D{{Key: "code", Value: 79}})
	seed("ok", 0, "code", 13, "errmsg", "not authorized")
	seed("ok", 0, "code", 50)
	seed("ok", 0, "code", 16500, "errmsg", "RetryAfterMs=99999999999999999999999", "RetryAfterMs", -7)
	seed("ok", 0, "code", 462, "errorLabels", bson.A{"SystemOverloadedError", "RetryableError", 7}, "baseBackoffMS", 1e300)
	f.Fuzz(func(t *testing.T, reply []byte) {
		judge(t, reply)
	})
}

// FuzzOfInsertParts makes the replies out of numbers, because few random bytes are a reply.
func FuzzOfInsertParts(f *testing.F) {
	f.Add(1.0, int64(6), []byte{}, int32(0), int32(0), "")
	f.Add(1.0, int64(5), []byte{1}, int32(11000), int32(0), "E11000 duplicate key error collection: a.b index: c_1 dup key: { c: 1 }")
	f.Add(1.0, int64(3), []byte{5, 1, 1}, int32(11000), int32(64), "index: a.b.$c dup key: ")
	f.Add(1.0, int64(2), []byte{2}, int32(16500), int32(0), "RetryAfterMs=300")
	f.Add(1.0, int64(0), []byte{0, 1, 2, 3, 4, 5}, int32(121), int32(79), "")
	f.Add(1.0, int64(5), []byte{255}, int32(11000), int32(0), "")
	f.Add(0.0, int64(0), []byte{}, int32(13), int32(0), "not authorized")
	f.Add(0.0, int64(6), []byte{3}, int32(10107), int32(91), "RetryAfterMs=-1")
	f.Fuzz(func(t *testing.T, ok float64, n int64, refused []byte, code, concern int32, message string) {
		entries := bson.A{}
		for _, index := range refused {
			entries = append(entries, bson.D{{Key: "index", Value: int32(int8(index))}, {Key: "code", Value: code}, {Key: "errmsg", Value: message}})
		}
		reply := bson.D{{Key: "ok", Value: ok}, {Key: "n", Value: n}, {Key: "code", Value: code}, {Key: "errmsg", Value: message}}
		if len(entries) > 0 {
			reply = append(reply, bson.E{Key: "writeErrors", Value: entries})
		}
		if concern != 0 {
			reply = append(reply, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: concern}, {Key: "errmsg", Value: message}}})
		}
		judge(t, encode(t, reply))
	})
}

func judge(t *testing.T, reply bson.Raw) {
	elements, err := reply.Elements()
	if err != nil || reply.Validate() != nil {
		return // the driver refuses to read it
	}
	keys := map[string]bool{}
	for _, e := range elements {
		if keys[e.Key()] {
			return // which of two fields with one name counts is the driver's affair
		}
		keys[e.Key()] = true
	}
	inserted, err := read(reply)
	report := outcome.OfInsert(sent, inserted, err)
	if report.Class.After < 0 || report.Class.After > time.Hour {
		t.Errorf("a hint of %v", report.Class.After)
	}
	want := oracle(reply)
	for i, verdict := range report.Verdicts {
		if verdict != outcome.Unknown && verdict != want[i] {
			t.Errorf("document %d is %v, but the reply %v says %v", i, verdict, reply, want[i])
		}
	}
	if report.Err == nil && slices.Contains(report.Verdicts, outcome.Unknown) {
		t.Errorf("something is unknown without an error: %v", report.Verdicts)
	}
	for _, refusal := range report.Refusals {
		if report.Verdicts[refusal.Index] != outcome.Rejected {
			t.Errorf("document %d is named as refused, and is %v", refusal.Index, report.Verdicts[refusal.Index])
		}
	}
	if report.Err != nil {
		_ = report.Err.Error()
	}
}

// read does what the driver does between a reply and BulkWrite's results: the reading is the driver's, the few lines of
// putting the parts into another type are those of mongo/bulk_write.go and mongo/errors.go.
func read(reply bson.Raw) (inserted int64, err error) {
	if n, ok := reply.Lookup("n").AsInt64OK(); ok {
		inserted = n
	}
	var failure driver.Error
	var writeFailure driver.WriteCommandError
	switch err := driver.ExtractErrorFromServerResponse(bsoncore.Document(reply)); {
	case err == nil:
		return inserted, nil
	case errors.As(err, &failure):
		return 0, mongo.CommandError{Code: failure.Code, Message: failure.Message, Labels: failure.Labels, Name: failure.Name, Wrapped: err, Raw: bson.Raw(failure.Raw)}
	case errors.As(err, &writeFailure):
		exception := mongo.BulkWriteException{Labels: writeFailure.Labels}
		if concern := writeFailure.WriteConcernError; concern != nil {
			exception.WriteConcernError = &mongo.WriteConcernError{Name: concern.Name, Code: int(concern.Code), Message: concern.Message, Raw: bson.Raw(concern.Raw)}
		}
		for _, e := range writeFailure.WriteErrors {
			if e.Index < 0 || e.Index >= sent {
				err, _ := outcome.IndexPanic(sent, panicOf(int(e.Index)))
				return 0, err
			}
			exception.WriteErrors = append(exception.WriteErrors, mongo.BulkWriteError{
				WriteError: mongo.WriteError{Index: int(e.Index), Code: int(e.Code), Message: e.Message, Raw: bson.Raw(e.Raw)},
			})
		}
		return inserted, exception
	default:
		return 0, err
	}
}

// panicOf returns what indexing six documents with this index panics with.
func panicOf(index int) (panicked any) {
	defer func() { panicked = recover() }()
	_ = make([]mongo.WriteModel, sent)[index]
	return nil
}

// oracle reads the reply on its own and says what it proves about each document.
func oracle(reply bson.Raw) [sent]outcome.Verdict {
	var unknown, verdicts [sent]outcome.Verdict
	ok := reply.Lookup("ok")
	if n, is := ok.AsFloat64OK(); !(is && n == 1) && !(ok.Type == bson.TypeBoolean && ok.Boolean()) {
		// Refused as a whole: believed of some codes only, which are not the matter here.
		code, _ := reply.Lookup("code").Int32OK()
		stored, _ := reply.Lookup("n").AsInt64OK()
		if stored == 0 && slices.Contains([]int32{2, 9, 11, 13, 14, 18, 31, 59, 72, 73, 115, 166, 238, 323}, code) {
			for i := range verdicts {
				verdicts[i] = outcome.Rejected
			}
		}
		return verdicts
	}
	for i := range verdicts {
		verdicts[i] = outcome.Applied
	}
	left := int64(sent)
	if list, is := reply.Lookup("writeErrors").ArrayOK(); is {
		entries, err := list.Values()
		if err != nil {
			return unknown
		}
		for _, entry := range entries {
			document, is := entry.DocumentOK()
			if !is {
				continue
			}
			index, is := document.Lookup("index").AsInt64OK()
			if !is || index < 0 || index >= sent || verdicts[index] == outcome.Rejected {
				return unknown
			}
			verdicts[index] = outcome.Rejected
			left--
		}
	}
	if n, is := reply.Lookup("n").AsInt64OK(); !is || n != left {
		return unknown
	}
	return verdicts
}
