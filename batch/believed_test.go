package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
)

// The answer to an insert is lost, and a repetition, by the driver or by the batch, is refused as a whole. That nothing
// was written, says a label of the refusal or not: it says so of one sending only. What the first one stored is removed.
func TestNoWritesPerformedIsSaidOfOneSending(t *testing.T) {
	for _, code := range []int{13, 462, 10107} {
		for _, label := range []bool{true, false} {
			for kind, documents := range map[string][]bson.D{"minted": unnumbered(3), "claimed": numbered(1, 3)} {
				t.Run(fmt.Sprintf("code %d, label=%t, %s", code, label, kind), func(t *testing.T) {
					lossy(t, func(w *world) {
						refusal := faultwire.CommandError{Code: code, Message: "no"}
						if code == 10107 {
							refusal.Labels = append(refusal.Labels, "RetryableWriteError")
						}
						if label {
							refusal.Labels = append(refusal.Labels, "NoWritesPerformed")
						}
						w.wire.On(faultwire.Insert).Once().DropReply()
						refused := w.wire.On(faultwire.Insert).Reply(refusal)
						config := batch.Config{RetryTime: 200 * time.Millisecond, CommandTimeout: 400 * time.Millisecond}
						failed := w.mustRollBack(config, batch.Into(w.coll("c"), documents))
						if failed.Rollback.Deleted != 3 || refused.Fired() == 0 {
							w.Errorf("%d documents were deleted, want the 3 of the first sending; %d were refused", failed.Rollback.Deleted, refused.Fired())
						}
					})
				})
			}
		}
	}
}

// A write concern is not met, a failover loses the document, and somebody else takes its _id. Without a stamp nothing tells
// whether it is still the batch's: it is named, and stays.
func TestUnmetWriteConcernIsNoProof(t *testing.T) {
	w := simulated(t, mongosim.Config{ReplicaSet: "rs"})
	lose := func(ctx context.Context, _ *faultwire.Request) {
		if _, err := w.around.Collection("c").DeleteOne(ctx, bson.D{{Key: "_id", Value: 2}}); err != nil {
			t.Error(err)
		}
		w.plant("c", bson.D{{Key: "_id", Value: 2}, {Key: "x", Value: "theirs"}})
	}
	unmet := faultwire.Lie(faultwire.WriteConcernError{Code: 64, CodeName: "WriteConcernTimeout", Message: "waiting for replication timed out"})
	w.wire.On(faultwire.Insert).Do(unmet, faultwire.After(lose))
	w.mustNameAsLeft(once(batch.Config{Stamp: batch.StampNone}), []int{1, 2, 3}, batch.Into(w.coll("c"), numbered(1, 3)))
}

// The same label on the only sending, or none: nothing was stored, nothing is left, and nothing of others is touched.
func TestNoWritesPerformedOnTheOnlySending(t *testing.T) {
	for _, labels := range [][]string{{"NoWritesPerformed"}, {"NoWritesPerformed", "RetryableWriteError"}, {"RetryableWriteError"}, nil} {
		t.Run(fmt.Sprint(labels), func(t *testing.T) {
			eachRetry(t, func(w *world) {
				w.plant("c", bson.D{{Key: "_id", Value: 2}, {Key: "x", Value: "ours"}})
				w.wire.On(faultwire.Insert).Reply(faultwire.CommandError{Code: 112, Message: "conflict", Labels: labels})
				failed := w.mustRollBack(once(batch.Config{CommandTimeout: 300 * time.Millisecond}), batch.Into(w.coll("c"), numbered(1, 3)))
				if failed.Rollback.Deleted != 0 {
					w.Errorf("%d documents were deleted, and none was stored", failed.Rollback.Deleted)
				}
			})
		})
	}
}

// A validator that the server itself has: its reasons for each document arrive, from the versions that give any.
func TestValidatorOfTheServer(t *testing.T) {
	for _, version := range []int{9, 13, 21} {
		t.Run(fmt.Sprintf("wire version %d", version), func(t *testing.T) {
			w := simulated(t, mongosim.Config{ReplicaSet: "rs", MaxWireVersion: version})
			validator := bson.D{{Key: "n", Value: bson.D{{Key: "$gte", Value: 0}}}}
			if err := w.around.CreateCollection(t.Context(), "c", options.CreateCollection().SetValidator(validator)); err != nil {
				t.Fatal(err)
			}
			documents := make([]bson.D, 10)
			for i := range documents {
				documents[i] = bson.D{{Key: "n", Value: i}}
			}
			documents[2], documents[7] = bson.D{{Key: "n", Value: -1}}, bson.D{{Key: "n", Value: "x"}}
			failed := w.mustRollBack(batch.Config{}, batch.Into(w.coll("c"), documents))
			if at := indexes(failed); !slices.Equal(at, []int{2, 7}) {
				t.Fatalf("documents %v are refused, want the third and the eighth: %v", at, failed)
			}
			for _, d := range failed.Documents {
				var refused mongo.WriteError
				if d.Code != 121 || !errors.As(d, &refused) || string(d.ErrInfo) != string(refused.Details) {
					t.Errorf("document %d: code %d, details %v, of the driver's %v", d.Index, d.Code, d.ErrInfo, refused)
				}
				if version >= 13 && d.ErrInfo == nil {
					t.Errorf("document %d has no details", d.Index)
				}
			}
		})
	}
}
