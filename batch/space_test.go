package batch_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/rollback"
)

// A server without space refuses inserts, and perhaps deletes as well, for a while or for good. When deletes work again,
// nothing is left; when they never do, a budget ends it and everything is named.
func TestOutOfSpace(t *testing.T) {
	for _, code := range []int{8000, 12501, 14031} {
		for _, refused := range []int{0, 5, 1 << 30} { // deletes
			t.Run(fmt.Sprintf("code %d, %d deletes refused", code, refused), func(t *testing.T) {
				eachServer(t, func(w *world) {
					full := faultwire.CommandError{Code: code, Message: "you are over your space quota"}
					w.wire.On(faultwire.Insert).Skip(2).Reply(full)
					if refused > 0 {
						w.wire.On(faultwire.Delete).First(refused).Reply(full)
					}
					config := batch.Config{ChunkSize: 2, Concurrency: 1, RetryTime: 50 * time.Millisecond}
					if refused > 100 {
						config.Rollback.Budget = 200 * time.Millisecond
					}
					_, failed := w.insert(config, batch.Into(w.coll("c"), append(unnumbered(3), numbered(1, 5)...)))
					var command mongo.CommandError
					if failed == nil || !errors.As(failed.Cause, &command) || int(command.Code) != code {
						w.Fatalf("want code %d, got %v", code, failed)
					}
					if failed.RolledBack() == (refused > 100) || errors.Is(failed, rollback.ErrBudget) != (refused > 100) {
						w.Errorf("after %d refused deletes: %v", refused, failed)
					}
					if n := len(failed.Leftovers()); refused > 100 && (n < 4 || n > 6) { // the chunk that was refused as a whole may be there
						w.Errorf("%d leftovers, want the 4 documents that were stored, and perhaps 2 more", n)
					}
				})
			})
		}
	}
}
