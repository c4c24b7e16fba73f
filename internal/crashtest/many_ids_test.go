package crashtest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/rollback"
)

// TestRecoverManyLongIDs: a recovery reads as many pages as the claimed ids of a dead owner fill, several for one chunk.
func TestRecoverManyLongIDs(t *testing.T) {
	t.Parallel()
	inBubble(t, "", func(j *journaled) { // FerretDB takes minutes, see TestManyLongIDs
		t := j.T
		const size = 5_000
		documents := make([]bson.D, size)
		for i := range documents {
			documents[i] = bson.D{{Key: "_id", Value: fmt.Sprintf("%01000d", i)}}
		}
		dies := j.wire.On(to("committed"), to("aborting")).Reply(refuse)
		config := j.config(func(c *batch.Config) {
			c.ChunkSize, c.ChunkBytes, c.Concurrency = size, 32<<20, 1
			c.Lease, c.CommandTimeout = time.Minute, time.Minute
			c.Rollback.Stop = alreadyStopped()
		})
		failed := j.failed(batch.New(config).Insert(context.Background(), batch.Into(j.db.Collection("b"), documents)))
		if failed.RolledBack() {
			t.Fatalf("the batch: %v", failed)
		}
		dies.Off()
		j.expect(size, "open")
		pages, err := j.around.Collection("journal.pages").CountDocuments(context.Background(), bson.D{})
		if err != nil || pages < 2 {
			t.Errorf("there are %d pages, %v", pages, err)
		}
		patient := func(r *rollback.Recovery) { r.Policy.Budget = -1 }
		if report, err := j.pass(patient); err != nil || report.Deleted != size {
			t.Errorf("the recovery: %+v, %v", report, err)
		}
		if report, err := j.pass(patient); err != nil || len(report.Closed) != 1 {
			t.Errorf("the second pass: %+v, %v", report, err)
		}
		j.expect(0, "aborted")
	})
}

func alreadyStopped() <-chan struct{} {
	stop := make(chan struct{})
	close(stop)
	return stop
}
