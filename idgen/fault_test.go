package idgen_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

var duplicateKey = faultwire.CommandError{Code: 11000, CodeName: "DuplicateKey", Message: "E11000 duplicate key error"}

// Whatever happens to an increment: its numbers are given out once or never, and the caller knows.
func TestCounterEveryFault(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, fault := range faultwire.Faults() {
			for _, retryWrites := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, retryWrites %t", fault, retryWrites), func(t *testing.T) {
					if fault.String() == faultwire.ServerDown().String() {
						t.Skip("the driver waits for another server; this takes longer than it tells")
					}
					clean := database(t, s)
					wire := faultwire.ForTest(t)
					broken := s.Client(t, options.Client().SetDialer(wire).SetRetryWrites(retryWrites)).Database(clean.Name())
					other := idgen.NewCounter(clean.Collection("counters"), "n")
					counter := idgen.NewCounter(broken.Collection("counters"), "n", idgen.CounterConfig{
						Retry: idgen.Retry{Attempts: 3, Timeout: 500 * time.Millisecond},
					})
					numbers := take(t, other, 1)
					rule := wire.On(faultwire.FindAndModify).Once().Do(fault)
					block, err := counter.Take(testContext(t), 10)
					if rule.Fired() == 0 {
						t.Fatal("nothing happened")
					}
					if err == nil {
						numbers = slices.AppendSeq(numbers, block.All())
					} else {
						reason(t, err, idgen.Unavailable)
					}
					numbers = append(numbers, take(t, other, 3)...)
					rule.Release()
					<-rule.Done()
					numbers = append(numbers, take(t, other, 3)...)
					for i := 1; i < len(numbers); i++ {
						if numbers[i] <= numbers[i-1] {
							t.Fatalf("number %d after %d", numbers[i], numbers[i-1])
						}
					}
					// A gap of ten for each time that the increment was sent.
					if sent := wire.Count(faultwire.FindAndModify); numbers[len(numbers)-1] > int64(7+10*sent) {
						t.Errorf("%d increments went up to %d", sent, numbers[len(numbers)-1])
					}
				})
			}
		}
	})
}

// Answers are lost for ever: the attempts are bounded, and no read takes an answer's place.
func TestCounterLosesEveryAnswer(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		db := database(t, s)
		other := idgen.NewCounter(db.Collection("counters"), "n")
		wire := faultwire.ForTest(t)
		client := s.Client(t, options.Client().SetDialer(wire).SetRetryWrites(false))
		counter := idgen.NewCounter(client.Database(db.Name()).Collection("counters"), "n", idgen.CounterConfig{Retry: idgen.Retry{Attempts: 3}})
		take(t, other, 1)
		wire.On(faultwire.FindAndModify).DropReply()
		_, err := counter.Take(testContext(t), 10)
		reason(t, err, idgen.Unavailable)
		if n := wire.Count(faultwire.FindAndModify); n != 3 {
			t.Errorf("%d attempts, want 3", n)
		}
		if n := wire.Count(faultwire.Find); n != 0 {
			t.Errorf("%d reads", n)
		}
		if got := take(t, other, 1)[0]; got != 32 {
			t.Errorf("after three lost tens comes %d, want 32", got)
		}
	})
}

// The write was done but may be taken back: nobody gets its number.
func TestCounterWriteConcernError(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, code := range []int{64, 79, 91, 100} {
			t.Run(fmt.Sprint(code), func(t *testing.T) {
				wire := faultwire.ForTest(t)
				counter := idgen.NewCounter(database(t, s, options.Client().SetDialer(wire)).Collection("counters"), "n")
				wire.On(faultwire.FindAndModify).Once().WriteConcernError(code, "waiting for replication failed")
				first, err := counter.Next(testContext(t))
				if err != nil {
					reason(t, err, idgen.Unavailable)
					if !strings.Contains(err.Error(), "waiting for replication failed") {
						t.Errorf("the error hides the server's reason: %v", err)
					}
				} else if first != 2 {
					t.Errorf("number %d, want 2: nobody may have 1", first)
				}
				second, err := counter.Next(testContext(t))
				if err != nil || second != max(first, 1)+1 {
					t.Errorf("then %d, %v", second, err)
				}
			})
		}
	})
}

// A duplicate key on first use comes as an error of the command. It is retried; what it means is looked up.
func TestCounterDuplicateKeyOnFirstUse(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		counters := database(t, s, options.Client().SetDialer(wire)).Collection("counters")
		counter := idgen.NewCounter(counters, "new")
		wire.On(faultwire.FindAndModify).First(2).Reply(duplicateKey)
		var mu sync.Mutex
		var numbers []int64
		together(50, func(int) {
			n, err := counter.Next(testContext(t))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			numbers = append(numbers, n)
		})
		onceEach(t, numbers, 1)

		for _, test := range []struct {
			answer   faultwire.CommandError
			attempts int
		}{
			{duplicateKey, 4},
			{faultwire.CommandError{Code: 48, CodeName: "NamespaceExists"}, 4},
			{faultwire.CommandError{Code: 112, CodeName: "WriteConflict"}, 4},
			{faultwire.CommandError{Code: 13, CodeName: "Unauthorized"}, 1},
			{faultwire.CommandError{Code: 121, CodeName: "DocumentValidationFailure"}, 1},
		} {
			counter := idgen.NewCounter(counters, "new", idgen.CounterConfig{Retry: idgen.Retry{Attempts: 4}})
			before := wire.Count(faultwire.FindAndModify)
			rule := wire.On(faultwire.FindAndModify).Reply(test.answer)
			_, err := counter.Next(testContext(t))
			reason(t, err, idgen.Unavailable)
			rule.Off()
			if n := wire.Count(faultwire.FindAndModify) - before; n != test.attempts {
				t.Errorf("code %d: %d attempts, want %d", test.answer.Code, n, test.attempts)
			}
		}
	})
}

// What travels: one command in ordinary life, two at most to find out what is wrong.
func TestCounterRoundTrips(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		db := database(t, s, options.Client().SetDialer(wire))
		counters := db.Collection("counters")
		insert(t, counters, bson.D{{Key: "_id", Value: "text"}, {Key: "seq", Value: "8120"}},
			bson.D{{Key: "_id", Value: "full"}, {Key: "seq", Value: int64(99)}})
		for _, test := range []struct {
			name    string
			counter *idgen.Counter
			want    []faultwire.Name
		}{
			{"first use", idgen.NewCounter(counters, "n"), []faultwire.Name{"findAndModify"}},
			{"second use", idgen.NewCounter(counters, "n"), []faultwire.Name{"findAndModify"}},
			{"first use, other start", idgen.NewCounter(counters, "m", idgen.CounterConfig{Start: 1000}),
				[]faultwire.Name{"findAndModify", "find", "update", "findAndModify"}},
			{"text", idgen.NewCounter(counters, "text"), []faultwire.Name{"findAndModify", "find"}},
			{"exhausted", idgen.NewCounter(counters, "full", idgen.CounterConfig{Max: 100}), []faultwire.Name{"findAndModify", "find"}},
			{"missing", idgen.NewCounter(counters, "none", idgen.CounterConfig{MustExist: true}), []faultwire.Name{"findAndModify", "find"}},
		} {
			t.Run(test.name, func(t *testing.T) {
				before := len(wire.Events())
				_, _ = test.counter.Take(testContext(t), 1000)
				var sent []faultwire.Name
				for _, e := range wire.Events()[before:] {
					sent = append(sent, e.Name)
				}
				if !slices.Equal(sent, test.want) {
					t.Errorf("sent %v, want %v", sent, test.want)
				}
			})
		}
	})
}

// Every command is sent to the primary, at majority, outside the caller's session, whatever the handle says.
func TestCounterConcerns(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		db := database(t, s, options.Client().SetDialer(wire))
		counters := db.Collection("counters", options.Collection().
			SetReadPreference(readpref.SecondaryPreferred()).
			SetReadConcern(readconcern.Available()).
			SetWriteConcern(writeconcern.W1()))
		take(t, idgen.NewCounter(counters, "begun", idgen.CounterConfig{Start: 1000}), 1)
		if err := idgen.NewCounter(counters, "raised").RaiseToMax(testContext(t), counters, "seq", nil); err != nil {
			t.Fatal(err)
		}
		seen := map[faultwire.Name]int{}
		for _, e := range wire.Events(faultwire.Command("findAndModify", "update", "find")) {
			seen[e.Name]++
			if mode, ok := e.ReadPreference().Lookup("mode").StringValueOK(); ok && mode != "primary" && mode != "primaryPreferred" {
				t.Errorf("%s with read preference %s", e, mode)
			}
			if e.Name == "find" {
				if level := e.ReadConcern().Lookup("level").String(); level == `"available"` {
					t.Errorf("%s with read concern %s", e, level)
				}
				continue
			}
			if w, j := e.WriteConcern().Lookup("w").String(), e.WriteConcern().Lookup("j").String(); w != `"majority"` || j != "true" {
				t.Errorf("%s with w %s, j %s", e, w, j)
			}
		}
		if seen["findAndModify"] == 0 || seen["update"] == 0 || seen["find"] < 2 {
			t.Errorf("the test has seen too little: %v", seen)
		}
	})
}
