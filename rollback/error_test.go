package rollback_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

func TestErrorMessage(t *testing.T) {
	leftover := func(id any) rollback.Leftover {
		return rollback.Leftover{Collection: "shop.orders", ID: value(t, id)}
	}
	refused := mongo.CommandError{Code: 13, Name: "Unauthorized", Message: "not authorized on shop"}
	tests := []struct {
		name string
		err  rollback.Error
		want string
	}{
		{"one", rollback.Error{Leftovers: []rollback.Leftover{leftover("a")}, Reasons: []error{rollback.ErrBudget}},
			`1 document may still be there (shop.orders _id "a"); the time that the policy allows for a rollback is used up`},
		{"three", rollback.Error{Leftovers: []rollback.Leftover{leftover("a"), leftover(int32(7)), leftover(bson.ObjectID{11: 1})}, Reasons: []error{rollback.ErrStopped, refused}},
			`3 documents may still be there (shop.orders _id "a", shop.orders _id {"$numberInt":"7"}, shop.orders _id {"$oid":"000000000000000000000001"}); ` +
				`the rollback was told to stop; server error 13: (Unauthorized) not authorized on shop`},
		{"more", rollback.Error{
			Leftovers: []rollback.Leftover{leftover("a"), leftover("b"), leftover("c"), leftover("d"), leftover("e")},
			Reasons:   []error{errors.New("1"), errors.New("2"), errors.New("3"), errors.New("4"), errors.New("5")},
		}, `5 documents may still be there (shop.orders _id "a", shop.orders _id "b", shop.orders _id "c", +2 more); 1; 2; 3; +2 more reasons`},
		{"excess only", rollback.Error{Excess: 2, Reasons: []error{rollback.ErrExcess}},
			`everything named is gone; ALARM: deletes removed more documents than they named`},
		{"a document in the server's words", rollback.Error{Leftovers: []rollback.Leftover{leftover("a")}, Reasons: []error{
			mongo.CommandError{Code: 11000, Name: "DuplicateKey", Message: `E11000 duplicate key error collection: shop.orders index: email_1 dup key: { email: "secret" }`},
		}}, `1 document may still be there (shop.orders _id "a"); server error 11000: (DuplicateKey) E11000 duplicate key error collection: shop.orders index: email_1`},
		{"long", rollback.Error{Leftovers: []rollback.Leftover{leftover(strings.Repeat("x", 100))}, Reasons: []error{errors.New(strings.Repeat("y", 1000))}},
			`1 document may still be there (shop.orders _id "` + strings.Repeat("x", 76) + `...); ` + strings.Repeat("y", 197) + `...`},
	}
	for _, test := range tests {
		if got := test.err.Error(); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
	}
}

// However much is wrong, the message stays short, and is text.
func TestErrorMessageIsBounded(t *testing.T) {
	for _, letter := range []string{"x", "é", "€", "🙂", "\xff"} {
		for shift := range 4 { // so that the limit falls at every place within a letter
			failed := rollback.Error{}
			id := value(t, strings.Repeat("-", shift)+strings.Repeat("€", 5_000))
			for i := range 10_000 {
				failed.Leftovers = append(failed.Leftovers, rollback.Leftover{Collection: "shop.orders", ID: id})
				if i < 100 {
					failed.Reasons = append(failed.Reasons, errors.New(strings.Repeat("-", shift)+strings.Repeat(letter, 5_000)))
				}
			}
			text := failed.Error()
			if len(text) > 1_200 {
				t.Errorf("a message of %d bytes", len(text))
			}
			if !utf8.ValidString(text) {
				t.Errorf("%q is cut within a letter", text)
			}
			if !strings.Contains(text, "10000 documents") || !strings.Contains(text, "+9997 more") || !strings.Contains(text, "+97 more reasons") {
				t.Errorf("%q does not tell how much is left out", text)
			}
		}
	}
}

// errors.Is and errors.As reach every reason.
func TestErrorUnwraps(t *testing.T) {
	var err error = fmt.Errorf("outside: %w", &rollback.Error{Reasons: []error{
		rollback.ErrBudget, rollback.ErrUnproven, fmt.Errorf("%w; last attempt: %w", rollback.ErrStopped, mongo.CommandError{Code: 7}),
	}})
	for _, reason := range []error{rollback.ErrBudget, rollback.ErrUnproven, rollback.ErrStopped} {
		if !errors.Is(err, reason) {
			t.Errorf("%v cannot be reached", reason)
		}
	}
	if errors.Is(err, rollback.ErrExcess) {
		t.Error("a reason that is not there was found")
	}
	var command mongo.CommandError
	if !errors.As(err, &command) || command.Code != 7 {
		t.Error("the server's error cannot be reached")
	}
}

// What the server says may hold documents and may be different each time; messages and logs stay clean and short.
func TestServersWordsAreKeptShort(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		s.store(t, stamped("a", bson.E{Key: "email", Value: "secret"}), stamped("b"), stamped("c"), stamped("d"), stamped("e"))
		times := 0
		s.wire.On(faultwire.Delete).Reply(faultwire.Edit(func(*faultwire.Request, bson.Raw) bson.Raw {
			times++
			code := 1
			if times > 3 {
				code = 13
			}
			return raw(t, bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: code}, {Key: "errmsg", Value: fmt.Sprintf("attempt %d dup key: { email: \"secret\" }", times)}})
		}))
		var log bytes.Buffer
		policy := quick()
		policy.ChunkIDs, policy.Concurrency = 1, 1
		policy.Logger = slog.New(slog.NewTextHandler(&log, nil))
		_, err := rollback.Undo(ending(t), policy, rollback.Target{Collection: s.coll, IDs: []any{"a", "b", "c", "d", "e"}, Stamp: ours})
		failed := failure(t, err, nil)
		if len(failed.Leftovers) != 5 || len(failed.Reasons) != 5 {
			t.Errorf("%d leftovers and %d reasons, want 5 and 5", len(failed.Leftovers), len(failed.Reasons))
		}
		for what, text := range map[string]string{"message": err.Error(), "log": log.String()} {
			if strings.Contains(text, "secret") || !strings.Contains(text, "attempt 4") {
				t.Errorf("the %s is %q", what, text)
			}
		}
		for text, want := range map[string]int{"will try again": 3, "gave up": 5, "code=1 ": 3} {
			if got := strings.Count(log.String(), text); got != want {
				t.Errorf("the log tells %q %d times, want %d:\n%s", text, got, want, log.String())
			}
		}
	})
}

// The same reason of many parts is told once.
func TestReasonsAreToldOnce(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		from := first(9)
		s.store(t, run(from, 20)...)
		s.wire.On(faultwire.Delete).Reply(faultwire.CommandError{Code: 13, Message: "not authorized"})
		policy := quick()
		policy.ChunkRange = 2
		_, err := rollback.Undo(ending(t), policy, rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: 20}}})
		failed := failure(t, err, nil)
		if len(failed.Leftovers) != 20 || len(failed.Reasons) != 1 {
			t.Errorf("%d leftovers and reasons %v, want 20 and one", len(failed.Leftovers), failed.Reasons)
		}
		if want := "20 documents may still be there ("; !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "server error 13: not authorized") {
			t.Errorf("message %q", err)
		}
	})
}

func TestEventNames(t *testing.T) {
	for kind, want := range map[rollback.EventKind]string{
		rollback.Fenced: "fenced", rollback.Deleted: "deleted", rollback.Retrying: "retrying",
		rollback.Settling: "settling", rollback.GaveUp: "gave up", 0: "EventKind(0)", 9: "EventKind(9)",
	} {
		if got := kind.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
