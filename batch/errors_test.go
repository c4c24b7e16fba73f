package batch_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// The index of a refused document is its position in the caller's slice, whatever chunk it travelled in.
func TestIndexesAreTheCallers(t *testing.T) {
	tests := []struct {
		size, chunk, concurrency int
		bad                      []int
	}{
		{5_000, 100, 8, []int{0}}, {5_000, 100, 8, []int{99}}, {5_000, 100, 8, []int{100}}, {5_000, 100, 8, []int{4_999}},
		{1_000, 1_000, 1, []int{0, 99, 100, 999}}, // one chunk: all are named
		{1_000, 1, 4, []int{500}}, {1_000, 999, 2, []int{999}}, {1_000, 7, 1, []int{998}},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%v of %d by %d", test.bad, test.size, test.chunk), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.uniqueIndex("c", "n")
				documents := make([]bson.D, test.size)
				for i := range documents {
					documents[i] = bson.D{{Key: "n", Value: i}, {Key: "pad", Value: "x"}}
				}
				for _, i := range test.bad {
					w.plant("c", bson.D{{Key: "n", Value: i}, {Key: "theirs", Value: true}})
				}
				failed := w.mustRollBack(batch.Config{ChunkSize: test.chunk, Concurrency: test.concurrency}, batch.Into(w.coll("c"), documents))
				if at := indexes(failed); !slices.Equal(at, test.bad) {
					w.Errorf("documents %v are refused, want %v: %v", at, test.bad, failed)
				}
				for _, d := range failed.Documents {
					var refused mongo.WriteError
					if d.Code != 11000 || d.Duplicate == nil || d.Collection != w.db.Name()+".c" || !errors.As(d, &refused) {
						w.Errorf("document %d: code %d, duplicate %v, collection %s, error %v", d.Index, d.Code, d.Duplicate, d.Collection, d.Err)
					}
					if d.ID.Type != bson.TypeObjectID {
						w.Errorf("document %d has the _id %v, want the one it was given", d.Index, d.ID)
					}
				}
			})
		})
	}
}

// Chunks that run at the same time may each have refused documents; all that were refused are named, in order.
func TestSeveralRefusalsInSeveralParts(t *testing.T) {
	eachServer(t, func(w *world) {
		for _, coll := range []string{"a", "b"} {
			w.plant(coll, bson.D{{Key: "_id", Value: 3}}, bson.D{{Key: "_id", Value: 5}})
		}
		documents := make([]bson.D, 10)
		for i := range documents {
			documents[i] = bson.D{{Key: "_id", Value: 9 - i}}
		}
		// Both chunks are on their way before the first answer.
		held := w.wire.On(faultwire.Insert).Hold()
		go func() {
			<-held.ArrivedN(2)
			held.Release()
		}()
		failed := w.mustRollBack(batch.Config{Concurrency: 2}, batch.Into(w.coll("a"), documents), batch.Into(w.coll("b"), documents))
		var have []string
		for _, d := range failed.Documents {
			have = append(have, fmt.Sprintf("%d.%d", d.Part, d.Index))
		}
		if want := []string{"0.4", "0.6", "1.4", "1.6"}; !slices.Equal(have, want) {
			w.Errorf("refused are %v, want %v", have, want)
		}
		if n := failed.Rollback.Deleted; n != 16 {
			w.Errorf("%d documents were deleted, want 16", n)
		}
	})
}

// A unique index counts a missing field as null: the second document without it clashes, and not over its _id.
func TestMissingFieldOfUniqueIndex(t *testing.T) {
	tests := map[string]struct {
		documents []any
		bad       []int
	}{
		"one is there already":     {[]any{bson.D{{Key: "ref", Value: 1}}, bson.D{{Key: "x", Value: 1}}}, []int{1}},
		"null is a value, too":     {[]any{bson.D{{Key: "ref", Value: 1}}, bson.D{{Key: "ref", Value: nil}}}, []int{1}},
		"two":                      {[]any{bson.D{}, bson.D{{Key: "ref", Value: 2}}, bson.D{}}, []int{0, 2}},
		"claimed ids, one missing": {[]any{bson.D{{Key: "_id", Value: 1}, {Key: "ref", Value: 3}}, bson.D{{Key: "_id", Value: 2}}}, []int{1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				index := w.uniqueIndex("c", "ref")
				w.plant("c", bson.D{{Key: "theirs", Value: true}})
				if w.server.Kind == servertest.KindEmbedded { // its unique indexes let any number of nulls in
					var refusals []faultwire.WriteError
					for _, i := range test.bad {
						refusals = append(refusals, faultwire.WriteError{Index: i, Code: 11000, KeyPattern: bson.D{{Key: "ref", Value: 1}}, KeyValue: bson.D{{Key: "ref"}},
							Message: "E11000 duplicate key error collection: shop.c index: " + index + " dup key: { ref: null }"})
					}
					w.wire.On(faultwire.Insert).WriteErrors(refusals...)
				}
				failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), test.documents))
				if at := indexes(failed); !slices.Equal(at, test.bad) {
					w.Errorf("documents %v are refused, want %v: %v", at, test.bad, failed)
				}
				for _, d := range failed.Documents {
					if d.Duplicate == nil || d.Duplicate.Index != index {
						w.Errorf("document %d clashed with %v, want the index %q", d.Index, d.Duplicate, index)
					}
				}
			})
		})
	}
}

// What a server says about a duplicate key, from the oldest to the newest form, tells which index it is.
func TestFormsOfDuplicateKey(t *testing.T) {
	text := "E11000 duplicate key error collection: shop.c index: email_1 dup key: { email: \"secret@example.com\" }"
	tests := []struct {
		name  string
		error faultwire.WriteError
		want  batch.Duplicate
		says  string
	}{
		{"modern", faultwire.WriteError{Code: 11000, Message: text, KeyPattern: bson.D{{Key: "email", Value: 1}}, KeyValue: bson.D{{Key: "email", Value: "secret@example.com"}}},
			batch.Duplicate{Index: "email_1", Keys: []string{"email"}}, "email_1"},
		{"text only", faultwire.WriteError{Code: 11000, Message: text}, batch.Duplicate{Index: "email_1"}, "email_1"},
		{"old text", faultwire.WriteError{Code: 11000, Message: "E11000 duplicate key error index: shop.c.$email_1 dup key: { : \"secret@example.com\" }"}, batch.Duplicate{Index: "email_1"}, "email_1"},
		{"keys only", faultwire.WriteError{Code: 11001, Message: "E11001", KeyPattern: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: -1}}}, batch.Duplicate{Keys: []string{"a", "b"}}, "a, b"},
		{"bare", faultwire.WriteError{Code: 11000, Message: "E11000 duplicate key error"}, batch.Duplicate{}, "did not name"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				test.error.Index = 1
				w.wire.On(faultwire.Insert).WriteErrors(test.error)
				failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), []note{{"a"}, {"b"}}))
				if len(failed.Documents) != 1 || failed.Documents[0].Duplicate == nil {
					w.Fatalf("refused are %v", failed.Documents)
				}
				have := *failed.Documents[0].Duplicate
				if have.Index != test.want.Index || !slices.Equal(have.Keys, test.want.Keys) {
					w.Errorf("%+v, want %+v", have, test.want)
				}
				if text := failed.Error(); !strings.Contains(text, test.says) || strings.Contains(text, "secret") {
					w.Errorf("the message has to tell %q and no contents: %s", test.says, text)
				}
			})
		})
	}
}

// A collection's validator refuses documents one by one; what it says about each is kept. A validator that refuses the
// stamp gets a hint.
func TestValidator(t *testing.T) {
	details := bson.D{{Key: "failingDocumentId", Value: 1}, {Key: "details", Value: bson.D{{Key: "operatorName", Value: "$jsonSchema"}}}}
	for _, claimed := range []bool{true, false} {
		t.Run(fmt.Sprintf("claimed=%t", claimed), func(t *testing.T) {
			eachServer(t, func(w *world) {
				documents := make([]bson.D, 10)
				for i := range documents {
					if documents[i] = (bson.D{{Key: "n", Value: i}}); claimed {
						documents[i] = append(documents[i], bson.E{Key: "_id", Value: i})
					}
				}
				refusal := func(index int) faultwire.WriteError {
					return faultwire.WriteError{Index: index, Code: 121, Message: "Document failed validation", Info: details}
				}
				w.wire.On(faultwire.Insert).WriteErrors(refusal(7), refusal(2))
				failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), documents))
				if at := indexes(failed); !slices.Equal(at, []int{2, 7}) {
					w.Fatalf("documents %v are refused, want the third and the eighth: %v", at, failed)
				}
				for _, d := range failed.Documents {
					if want := raw(w.T, details); d.Code != 121 || string(d.ErrInfo) != string(want) {
						w.Errorf("document %d: code %d, details %v, want 121, %v", d.Index, d.Code, d.ErrInfo, want)
					}
					if hint := strings.Contains(d.Message, "stamp"); hint != claimed {
						w.Errorf("document %d, stamped %t: %s", d.Index, claimed, d.Message)
					}
				}
				for _, e := range w.wire.Events(faultwire.Insert) {
					if bypass := e.Lookup("bypassDocumentValidation"); !bypass.IsZero() {
						w.Errorf("nobody asked to bypass the validator: %v", e)
					}
				}
			})
		})
	}
}

// Messages tell what happened in few words and without what is in the documents; and errors reach both reasons.
func TestMessages(t *testing.T) {
	const secret = "4111-1111-1111-1111"
	long := strings.Repeat("and so on ", 1_000)
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	tests := map[string]func(w *world) *faultwire.Rule{
		"documents refused": func(w *world) *faultwire.Rule {
			return w.wire.On(faultwire.Insert).WriteErrors(faultwire.WriteError{Index: 0, Code: 2, Message: secret + long}, faultwire.WriteError{Index: 1, Code: 2, Message: secret},
				faultwire.WriteError{Index: 2, Code: 11000, Message: "E11000 " + secret}, faultwire.WriteError{Index: 3, Code: 121, Message: secret}, faultwire.WriteError{Index: 4, Code: 17280, Message: secret})
		},
		"command refused": func(w *world) *faultwire.Rule {
			return w.wire.On(faultwire.Insert).Reply(faultwire.CommandError{Code: 13, CodeName: "Unauthorized", Message: "not authorized to store " + secret + long})
		},
		"command failed, no known code": func(w *world) *faultwire.Rule {
			return w.wire.On(faultwire.Insert).Reply(faultwire.CommandError{Code: 987_654, Message: "cannot store " + secret + long})
		},
		"write concern": func(w *world) *faultwire.Rule {
			return w.wire.On(faultwire.Insert).Lie(faultwire.WriteConcernError{Code: 79, Message: "unknown mode for " + secret})
		},
	}
	for name, fault := range tests {
		t.Run(name, func(t *testing.T) {
			eachServer(t, func(w *world) {
				fault(w)
				documents := make([]bson.D, 9)
				for i := range documents {
					documents[i] = bson.D{{Key: "_id", Value: fmt.Sprint(secret, i)}, {Key: "card", Value: secret}}
				}
				log.Reset()
				failed := w.mustRollBack(batch.Config{Logger: logger}, batch.Into(w.coll("c"), documents))
				if text := failed.Error(); strings.Contains(text, secret) || len(text) > 600 {
					w.Errorf("the message has %d bytes, or tells what it should not: %s", len(text), text)
				}
				if !strings.Contains(failed.Error(), failed.BatchID.Hex()) || !strings.Contains(failed.Error(), "9 documents") {
					w.Errorf("which batch? %v", failed)
				}
				if text := log.String(); strings.Contains(text, secret) || !strings.Contains(text, failed.BatchID.Hex()) {
					w.Errorf("the log tells what it should not, or nothing of the batch:\n%s", text)
				}
			})
		})
	}
}
