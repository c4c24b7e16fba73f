package batch_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
)

// An earlier command stored its documents, a later one fails as a whole: nothing of either is left, and the error is the
// later one's.
func TestLaterCommandFails(t *testing.T) {
	tests := []struct {
		name string
		code int
	}{{"refused for good", 13}, {"a code that nobody knows", 765_432}, {"a shutdown that does not end", 91}}
	for _, test := range tests {
		for _, nth := range []int{1, 3} {
			for kind, documents := range map[string][]bson.D{"minted": unnumbered(50), "claimed": numbered(1, 50)} {
				t.Run(fmt.Sprintf("%s, command %d, %s", test.name, nth, kind), func(t *testing.T) {
					eachServer(t, func(w *world) {
						fails := w.wire.On(faultwire.Insert).Skip(nth - 1).Reply(faultwire.CommandError{Code: test.code, Message: "no"})
						config := batch.Config{ChunkSize: 10, Concurrency: 1, RetryTime: 50 * time.Millisecond}
						failed := w.mustRollBack(config, batch.Into(w.coll("c"), documents))
						var command mongo.CommandError
						if !errors.As(failed.Cause, &command) || int(command.Code) != test.code {
							w.Errorf("the cause is %v, want code %d", failed.Cause, test.code)
						}
						if len(failed.Documents) != 0 || fails.Fired() == 0 {
							w.Errorf("documents %v are blamed, %d commands failed", indexes(failed), fails.Fired())
						}
						if want := int64(10 * (nth - 1)); failed.Rollback.Deleted != want {
							w.Errorf("%d documents were deleted, want %d", failed.Rollback.Deleted, want)
						}
						if n, most := w.wire.Count(faultwire.Insert), nth+20; n > most {
							w.Errorf("%d inserts, want %d at most", n, most)
						}
					})
				})
			}
		}
	}
}

// The answer says that the write concern was not met: the documents are there, and not as durably as promised.
func TestWriteConcernNotMet(t *testing.T) {
	tests := []struct {
		name   string
		answer faultwire.WriteConcernError
	}{
		{"timeout", faultwire.WriteConcernError{Code: 64, CodeName: "WriteConcernFailed", Message: "waiting for replication timed out", Info: bson.D{{Key: "wtimeout", Value: true}}}},
		{"cannot be met", faultwire.WriteConcernError{Code: 100, CodeName: "UnsatisfiableWriteConcern", Message: "Not enough data-bearing nodes"}},
		{"unknown", faultwire.WriteConcernError{Code: 79, CodeName: "UnknownReplWriteConcern", Message: "No write concern mode named"}},
		{"shutdown", faultwire.WriteConcernError{Code: 91, CodeName: "ShutdownInProgress", Message: "Replication is being shut down"}},
		{"stepdown, to be retried", faultwire.WriteConcernError{Code: 189, CodeName: "PrimarySteppedDown", Message: "stepped down", Labels: []string{"RetryableWriteError"}}},
	}
	for _, test := range tests {
		for _, size := range []int{1, 3} {
			for kind, documents := range map[string][]bson.D{"minted": unnumbered(size), "claimed": numbered(1, size)} {
				t.Run(fmt.Sprintf("%s, %d %s", test.name, size, kind), func(t *testing.T) {
					lossy(t, func(w *world) {
						w.wire.On(faultwire.Insert).Lie(test.answer)
						config := batch.Config{RetryTime: 50 * time.Millisecond, CommandTimeout: 200 * time.Millisecond}
						failed := w.mustRollBack(config, batch.Into(w.coll("c"), documents))
						if failed.Rollback.Deleted != int64(size) {
							w.Errorf("%d documents were deleted, want %d", failed.Rollback.Deleted, size)
						}
					})
				})
			}
		}
	}
}

// The write concern is not met by one chunk only, and another has a refused document: neither hides the other.
func TestWriteConcernAndRefusal(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same command=%t", same), func(t *testing.T) {
			eachServer(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: 4}})
				concern := faultwire.WriteConcernError{Code: 64, Message: "timed out"}
				config := batch.Config{Concurrency: 1}
				if same {
					w.wire.On(faultwire.Insert).Once().Lie(concern)
				} else {
					config.ChunkSize = 3
					w.wire.On(faultwire.Insert).Nth(2).Lie(concern)
				}
				failed := w.mustRollBack(config, batch.Into(w.coll("c"), numbered(1, 6)))
				if at := indexes(failed); !slices.Equal(at, []int{3}) {
					w.Errorf("documents %v are refused, want the fourth: %v", at, failed)
				}
				if failed.Rollback.Deleted != 5 {
					w.Errorf("%d documents were deleted, want 5", failed.Rollback.Deleted)
				}
			})
		})
	}
}

// A number that came with an unmet write concern may be lost with a failover, and given out again: it is not used.
func TestWriteConcernOfNumbers(t *testing.T) {
	eachServer(t, func(w *world) {
		w.wire.On(faultwire.FindAndModify).Once().Lie(faultwire.WriteConcernError{Code: 64, Message: "timed out"})
		number := idgen.NewCounter(w.db.Collection(counters), "n")
		result, failed := w.insert(batch.Config{}, batch.Into(w.coll("c"), unnumbered(3)).Number("n", number))
		if failed == nil && result.Parts[0].Numbers["n"][0] == int64(1) {
			w.Errorf("the numbers %v were used", result.Parts[0].Numbers["n"])
		}
	})
}

// Replies that cannot be true are not believed: every document may be stored, and everything is deleted with a proof.
func TestImpossibleReplies(t *testing.T) {
	refuse := func(indexes ...int) []faultwire.Answer {
		var answers []faultwire.Answer
		for _, i := range indexes {
			answers = append(answers, faultwire.WriteError{Index: i, Code: 2, Message: "no"})
		}
		return answers
	}
	tests := map[string][]faultwire.Answer{
		"repeated":          append(refuse(5, 1, 1), faultwire.Set("n", 3)),
		"negative":          refuse(-1),
		"out of range":      refuse(99),
		"just out of range": refuse(6),
		"more than refused": append(refuse(2), faultwire.Set("n", 6)),
		"none stored":       {faultwire.Set("n", 0)},
		"more than sent":    {faultwire.Set("n", 7)},
		"negative count":    {faultwire.Set("n", -1)},
		"no count": {faultwire.Edit(func(*faultwire.Request, bson.Raw) bson.Raw {
			return bson.Raw("\x13\x00\x00\x00\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f\x00")
		})},
		"all are impossible": append(refuse(6, 7, 8, -5), faultwire.Set("n", 2)),
	}
	for name, answers := range tests {
		for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
			for kind, documents := range map[string][]bson.D{"minted": unnumbered(6), "claimed": numbered(1, 6)} {
				t.Run(fmt.Sprintf("%s, %s, %s", name, stamp, kind), func(t *testing.T) {
					eachServer(t, func(w *world) {
						w.wire.On(faultwire.Insert).Lie(answers...)
						_, failed := w.insert(batch.Config{Stamp: stamp}, batch.Into(w.coll("c"), documents))
						switch unproven := stamp == batch.StampNone && kind == "claimed"; {
						case failed == nil:
							w.Fatal("a reply that cannot be true was taken for success")
						case unproven && len(failed.Leftovers()) != 6, !unproven && !failed.RolledBack():
							w.Errorf("%d leftovers: %v", len(failed.Leftovers()), failed)
						}
					})
				})
			}
		}
	}
}

// Refused documents are told from others whatever the order in which a reply names them, and only what is stored is
// deleted. Without a stamp the verdict on each document decides.
func TestRefusalsInAnyOrder(t *testing.T) {
	eachServer(t, func(w *world) {
		w.plant("c", bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: 6}})
		w.wire.On(faultwire.Insert).Lie(faultwire.Edit(reversed))
		failed := w.mustRollBack(batch.Config{Stamp: batch.StampNone}, batch.Into(w.coll("c"), numbered(1, 6)))
		if at := indexes(failed); !slices.Equal(at, []int{1, 5}) {
			w.Errorf("documents %v are refused, want 1 and 5", at)
		}
		var deleted []int32
		for _, e := range w.wire.Events(faultwire.Delete) { // a fence may be one of them
			values, _ := e.Filters()[0].Lookup("_id", "$in").Array().Values()
			for _, v := range values {
				deleted = append(deleted, v.Int32())
			}
		}
		if slices.Sort(deleted); !slices.Equal(deleted, []int32{1, 3, 4, 5}) {
			w.Errorf("%v are deleted, want the 4 that the server acknowledged, once each\n%s", deleted, w.wire)
		}
	})
}

// reversed turns the order of a reply's writeErrors around.
func reversed(_ *faultwire.Request, reply bson.Raw) bson.Raw {
	var d bson.D
	if err := bson.Unmarshal(reply, &d); err != nil {
		panic(err)
	}
	for _, e := range d {
		if list, ok := e.Value.(bson.A); ok && e.Key == "writeErrors" {
			slices.Reverse(list)
		}
	}
	made, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return made
}

// Throttling refuses some documents of a command and stores the others, whatever its text says. They are sent again, and
// only they; or all that was stored is removed.
func TestThrottledDocuments(t *testing.T) {
	var refused []faultwire.WriteError
	for i := range 15 {
		refused = append(refused, faultwire.WriteError{Index: 2 * i, Code: 16500, Message: "Request rate is large. No changes were made. RetryAfterMs=12, Details=…"})
	}
	for _, forever := range []bool{true, false} {
		for kind, documents := range map[string][]bson.D{"minted": unnumbered(40), "claimed": numbered(1, 40)} {
			for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
				t.Run(fmt.Sprintf("forever=%t, %s, %s", forever, kind, stamp), func(t *testing.T) {
					eachServer(t, func(w *world) {
						config := batch.Config{Stamp: stamp, RetryTime: 200 * time.Millisecond}
						w.wire.On(faultwire.Insert).Nth(1).WriteErrors(refused...)
						if !forever {
							w.mustStore(config, batch.Into(w.coll("c"), documents))
							inserts := w.wire.Events(faultwire.Insert)
							if n := len(inserts); n != 2 || len(inserts[1].Documents()) != 15 {
								w.Fatalf("%d inserts, want one more for 15 documents\n%s", n, w.wire)
							}
							if wait := inserts[1].Seen.At - inserts[0].Given.At; wait < 12*time.Millisecond {
								w.Errorf("the second came after %v, the server asked for 12 ms", wait)
							}
							return
						}
						w.wire.On(faultwire.Insert).WriteErrors(refused[0])
						failed := w.mustRollBack(config, batch.Into(w.coll("c"), documents))
						if n := len(failed.Documents); n == 0 || failed.Documents[0].Code != 16500 {
							w.Errorf("%d documents are named: %v", n, failed)
						}
						if n := failed.Rollback.Deleted; n != 39 {
							w.Errorf("%d documents were deleted, want all but one", n)
						}
					})
				})
			}
		}
	}
}

// A server that takes less in one command than MongoDB gets no more: else the driver would cut a command in two and tell
// of one of them only.
func TestServerWithSmallerLimits(t *testing.T) {
	tests := []struct {
		limits mongosim.Config
		most   int
	}{{mongosim.Config{MaxBatch: 7}, 7}, {mongosim.Config{MaxMessageBytes: 100_000}, 8}}
	for _, test := range tests {
		for _, bad := range []int{0, 6, 7, 19, -1} {
			if bad < 0 && test.limits.MaxMessageBytes > 0 {
				continue // it could not be read back in one message
			}
			for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
				t.Run(fmt.Sprintf("%d at a time, document %d, %s", test.most, bad, stamp), func(t *testing.T) {
					w := simulated(t, test.limits)
					documents := make([]bson.Raw, 20)
					for i := range documents {
						documents[i] = sized(t, 10_000, bson.E{Key: "_id", Value: int32(i)})
					}
					config, part := batch.Config{Stamp: stamp}, batch.Into(w.coll("c"), documents)
					if bad < 0 {
						w.mustStore(config, part)
					} else {
						w.plant("c", bson.D{{Key: "_id", Value: int32(bad)}})
						if at := indexes(w.mustRollBack(config, part)); !slices.Equal(at, []int{bad}) {
							t.Errorf("documents %v are refused, want %d", at, bad)
						}
					}
					for _, e := range w.wire.Events(faultwire.Insert) {
						if n := len(e.Documents()); n > test.most {
							t.Errorf("%d documents in one command, want %d at most: %v", n, test.most, e)
						}
					}
				})
			}
		}
	}
}

// The second command of an insert that such a server makes several of fails: nothing of the first stays.
func TestSecondCommandOnSmallServerFails(t *testing.T) {
	for name, fault := range map[string]faultwire.Fault{
		"lost": faultwire.DropReply(), "not sent": faultwire.DropRequest(), "refused": faultwire.Reply(faultwire.CommandError{Code: 13, Message: "no"}),
	} {
		for _, stamp := range []batch.Stamp{batch.StampClaimed, batch.StampNone} {
			for kind, documents := range map[string][]bson.D{"minted": unnumbered(20), "claimed": numbered(1, 20)} {
				t.Run(fmt.Sprintf("%s, %s, %s", name, stamp, kind), func(t *testing.T) {
					w := simulated(t, mongosim.Config{MaxBatch: 7})
					w.wire.On(faultwire.Insert).Nth(2).Do(fault)
					_, failed := w.insert(once(batch.Config{Stamp: stamp, Concurrency: 1}), batch.Into(w.coll("c"), documents))
					unproven := 0
					if stamp == batch.StampNone && kind == "claimed" && name == "lost" {
						unproven = 7
					}
					if failed == nil || len(failed.Leftovers()) != unproven {
						t.Errorf("%d leftovers expected: %v", unproven, failed)
					}
				})
			}
		}
	}
}

// A document that is too large for this server only: it says so by name, and nothing of the batch stays.
func TestServerWithSmallerDocuments(t *testing.T) {
	w := simulated(t, mongosim.Config{MaxDocumentBytes: 1_000})
	documents := append(numbered(1, 3), bson.D{{Key: "fill", Value: fmt.Sprintf("%01000d", 0)}})
	w.mustRollBack(batch.Config{ChunkSize: 1, Concurrency: 1, RetryTime: 50 * time.Millisecond}, batch.Into(w.coll("c"), documents))
}
