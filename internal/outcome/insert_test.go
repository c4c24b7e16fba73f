package outcome_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/outcome"
)

// duplicate is a server's refusal of the document with this index.
func duplicate(index int) faultwire.WriteError {
	return faultwire.WriteError{Index: index, Code: 11000, Message: "E11000 duplicate key error collection: shop.orders index: _id_ dup key: { _id: 1 }",
		KeyPattern: bson.D{{Key: "_id", Value: 1}}, KeyValue: bson.D{{Key: "_id", Value: 1}}}
}

// made is a reply that consists of these fields.
func made(fields ...any) faultwire.Document {
	d := faultwire.Document{}
	for i := 0; i < len(fields); i += 2 {
		d = append(d, bson.E{Key: fields[i].(string), Value: fields[i+1]})
	}
	return d
}

// Replies that say what became of each document: what the driver makes of them, and what is believed.
func TestRepliesThatNameDocuments(t *testing.T) {
	throttled := faultwire.WriteError{Index: 3, Code: 16500, Message: "Error=16500, RetryAfterMs=34, Details='Request rate is large'"}
	tests := []struct {
		name     string
		answers  []faultwire.Answer
		verdicts string
		refused  []int // indexes of the refusals, in order
	}{
		{"all stored", nil, "AAAAAA", nil},
		{"all stored, count as a double", []faultwire.Answer{faultwire.Set("n", 6.0)}, "AAAAAA", nil},
		{"all stored, count as int64", []faultwire.Answer{faultwire.Set("n", int64(6))}, "AAAAAA", nil},
		{"one refused", []faultwire.Answer{duplicate(1)}, "ARAAAA", []int{1}},
		{"first refused", []faultwire.Answer{duplicate(0)}, "RAAAAA", []int{0}},
		{"last refused", []faultwire.Answer{duplicate(5)}, "AAAAAR", []int{5}},
		{"two refused, out of order", []faultwire.Answer{duplicate(5), duplicate(1)}, "ARAAAR", []int{5, 1}},
		{"one throttled", []faultwire.Answer{throttled}, "AAARAA", []int{3}},
		{"all refused", []faultwire.Answer{
			duplicate(0), duplicate(1), duplicate(2), duplicate(3), duplicate(4), duplicate(5),
		}, "RRRRRR", []int{0, 1, 2, 3, 4, 5}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, "")
			r.wire.On(faultwire.Insert).Reply(append([]faultwire.Answer{faultwire.Set("n", sent)}, test.answers...)...)
			inserted, err := r.insert(within(t, time.Minute))
			report := outcome.OfInsert(sent, inserted, err)
			if got := verdicts(report); got != test.verdicts {
				t.Errorf("verdicts %s, want %s (driver: %v)", got, test.verdicts, err)
			}
			if report.Err != nil || report.Class != (outcome.Class{}) {
				t.Errorf("error %v of class %+v, want none: only the documents named were refused", report.Err, report.Class)
			}
			if len(report.Refusals) != len(test.refused) {
				t.Fatalf("%d refusals, want %d", len(report.Refusals), len(test.refused))
			}
			for i, refusal := range report.Refusals {
				want := outcome.Class{Kind: outcome.Permanent, Refused: true, Code: 11000}
				if refusal.Code == 16500 {
					want = outcome.Class{Kind: outcome.Transient, Throttled: true, Refused: true, After: 34 * time.Millisecond, Code: 16500}
				}
				if refusal.Index != test.refused[i] || refusal.Class != want {
					t.Errorf("refusal %d: index %d of class %+v, want index %d of class %+v", i, refusal.Index, refusal.Class, test.refused[i], want)
				}
				if isDuplicate := refusal.Code == 11000; (refusal.Duplicate != nil) != isDuplicate {
					t.Errorf("refusal %d of code %d: duplicate %+v", i, refusal.Code, refusal.Duplicate)
				} else if isDuplicate && !refusal.Duplicate.OnID() {
					t.Errorf("refusal %d: %+v is not about the _id", i, refusal.Duplicate)
				}
			}
		})
	}
}

// Replies that cannot be true, and replies out of which the driver can make nothing: nothing in them is believed.
func TestRepliesThatContradictThemselves(t *testing.T) {
	count := func(n any) faultwire.Answer { return faultwire.Set("n", n) }
	tests := []struct {
		name    string
		answers []faultwire.Answer
		says    string // part of the message
	}{
		{"one too few", []faultwire.Answer{count(5)}, "5 stored and 0 refused do not add up"},
		{"one too many", []faultwire.Answer{count(7)}, "7 stored and 0 refused do not add up"},
		{"fewer than none", []faultwire.Answer{count(-1)}, "-1 stored and 0 refused do not add up"},
		{"no count", []faultwire.Answer{made("ok", 1)}, "0 stored and 0 refused do not add up"},
		{"index -1", []faultwire.Answer{duplicate(-1)}, "impossible index"},
		{"index 6 of 6", []faultwire.Answer{duplicate(6)}, "impossible index"},
		{"index 99 of 6", []faultwire.Answer{duplicate(99)}, "impossible index"},
		{"index 99 of 6, n tells all stored", []faultwire.Answer{duplicate(99), count(6)}, "impossible index"},
		{"index 2^40", []faultwire.Answer{made("ok", 1, "n", 5, "writeErrors", bson.A{bson.D{{Key: "index", Value: int64(1) << 40}, {Key: "code", Value: 1}}})}, "impossible index"},
		{"no index", []faultwire.Answer{made("ok", 1, "n", 5, "writeErrors", bson.A{bson.D{{Key: "code", Value: 1}}})}, "impossible index"},
		{"index as text", []faultwire.Answer{made("ok", 1, "n", 5, "writeErrors", bson.A{bson.D{{Key: "index", Value: "3"}, {Key: "code", Value: 1}}})}, "impossible index"},
		{"repeated, n counts each", []faultwire.Answer{duplicate(5), duplicate(1), duplicate(1), count(3)}, "repeated index 1"},
		{"repeated, n counts the documents", []faultwire.Answer{duplicate(5), duplicate(1), duplicate(1), count(4)}, "repeated index 1"},
		{"an ordered answer", []faultwire.Answer{duplicate(2), count(2)}, "2 stored and 1 refused do not add up"},
		{"refused and stored", []faultwire.Answer{duplicate(2), count(6)}, "6 stored and 1 refused do not add up"},
		{"one document not accounted for", []faultwire.Answer{duplicate(2), count(4)}, "4 stored and 1 refused do not add up"},
		{"an entry that is no document", []faultwire.Answer{made("ok", 1, "n", 5, "writeErrors", bson.A{"refused"})}, "5 stored and 0 refused do not add up"},
		{"with a write concern error", []faultwire.Answer{duplicate(2), count(2), faultwire.WriteConcernError{Code: 64}}, "do not add up"},
		{"count is a text", []faultwire.Answer{count("6")}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, "")
			r.wire.On(faultwire.Insert).Reply(append([]faultwire.Answer{faultwire.Set("n", sent)}, test.answers...)...)
			inserted, err := r.insert(within(t, time.Minute))
			report := outcome.OfInsert(sent, inserted, err)
			if got := verdicts(report); got != "UUUUUU" {
				t.Errorf("verdicts %s, want all unknown (driver: %v)", got, err)
			}
			if report.Refusals != nil {
				t.Errorf("refusals %v were believed", report.Refusals)
			}
			if report.Err == nil {
				t.Fatal("no error")
			}
			if report.Class != (outcome.Class{}) {
				t.Errorf("class %+v, want the zero Class", report.Class)
			}
			var contradiction *outcome.ContradictionError
			if is := errors.As(report.Err, &contradiction); is != (test.says != "") {
				t.Fatalf("error of type %T: %v", report.Err, report.Err)
			} else if is && !strings.Contains(report.Err.Error(), test.says) {
				t.Errorf("message %q does not contain %q", report.Err, test.says)
			}
		})
	}
}

// The server stored everything it says, but not as durably as it should.
func TestRepliesWithAWriteConcernError(t *testing.T) {
	tests := []struct {
		code     int
		refused  []faultwire.Answer
		labels   []string
		verdicts string
		class    outcome.Class
	}{
		{64, nil, nil, "AAAAAA", outcome.Class{Kind: outcome.Transient, Code: 64}},
		{91, nil, nil, "AAAAAA", outcome.Class{Kind: outcome.Transient, Code: 91}},
		{79, nil, nil, "AAAAAA", outcome.Class{Kind: outcome.Permanent, Code: 79}},
		{100, nil, nil, "AAAAAA", outcome.Class{Code: 100}},
		{100, nil, []string{"RetryableWriteError"}, "AAAAAA", outcome.Class{Kind: outcome.Transient, Code: 100}},
		{64, []faultwire.Answer{duplicate(4)}, nil, "AAAARA", outcome.Class{Kind: outcome.Transient, Code: 64}},
		{79, []faultwire.Answer{duplicate(5), duplicate(0)}, nil, "RAAAAR", outcome.Class{Kind: outcome.Permanent, Code: 79}},
	}
	for _, test := range tests {
		r := newRig(t, "")
		answers := append([]faultwire.Answer{faultwire.Set("n", sent)}, test.refused...)
		r.wire.On(faultwire.Insert).Reply(append(answers, faultwire.WriteConcernError{Code: test.code, Message: "waiting for replication", Labels: test.labels})...)
		inserted, err := r.insert(within(t, time.Minute))
		report := outcome.OfInsert(sent, inserted, err)
		if got := verdicts(report); got != test.verdicts {
			t.Errorf("code %d: verdicts %s, want %s", test.code, got, test.verdicts)
		}
		if len(report.Refusals) != len(test.refused) {
			t.Errorf("code %d: %d refusals, want %d", test.code, len(report.Refusals), len(test.refused))
		}
		if report.Class != test.class {
			t.Errorf("code %d: class %+v, want %+v", test.code, report.Class, test.class)
		}
		var exception mongo.BulkWriteException
		if !errors.As(report.Err, &exception) || exception.WriteConcernError.Code != test.code {
			t.Errorf("code %d: error %v", test.code, report.Err)
		}
	}
}

// A panic that has nothing to do with a reply stays a panic.
func TestIndexPanicIsNotForOthers(t *testing.T) {
	for _, panicked := range []any{"index out of range", errors.New("index out of range"), context.Canceled, 7, nil} {
		if err, ok := outcome.IndexPanic(sent, panicked); ok || err != nil {
			t.Errorf("panic(%v) was taken for the driver's", panicked)
		}
	}
}

func TestVerdictNames(t *testing.T) {
	for verdict, want := range map[outcome.Verdict]string{
		outcome.Unknown: "unknown", outcome.Rejected: "rejected", outcome.Applied: "applied", 9: "Verdict(9)",
	} {
		if got := verdict.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for kind, want := range map[outcome.Kind]string{
		outcome.Unclear: "unclear", outcome.Transient: "transient", outcome.Permanent: "permanent", 9: "Kind(9)",
	} {
		if got := kind.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// The zero values are the cautious ones.
	var verdict outcome.Verdict
	var class outcome.Class
	if verdict != outcome.Unknown || class.Kind != outcome.Unclear || class.Refused {
		t.Error("a zero value claims to know something")
	}
}
