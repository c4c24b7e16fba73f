//go:build unix

package crashtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// TestPause stops processes with SIGSTOP for longer than their lease, has a recovery take over, and has them go on: as a
// laptop that was closed would, or a container that was frozen. There is one verdict, and both sides know it.
func TestPause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at     string
		fenced bool // and so rolled back; else the batch is stored
	}{
		{"storing: record/after", true},
		{"storing: page 3/after", true},
		{"storing: chunk 1/before", true}, // it is sent when everything is over
		{"storing: chunk 4/during", true},
		{"storing: chunk 8/after", true},
		{"storing: commit/before", true},
		{"storing: commit/after", false},
		{"failing: delete 3/before", true},
	} {
		t.Run(c.at, func(t *testing.T) {
			t.Parallel()
			server := servertest.Embedded(t)
			client := server.Client(t)
			db := server.Database(t, client)
			foreign := plantAround(t, db, 1)
			name, _, _ := strings.Cut(c.at, ":")
			task := task{
				URI: server.URI, Database: db.Name(), Job: job(name), Key: "key", Lease: pauseLease,
				Concurrency: 1, Point: c.at, Signal: syscall.SIGSTOP,
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			command, output := task.command(ctx)
			command.WaitDelay = 10 * time.Second
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			waitUntilStopped(t, command, output)

			for range 2 {
				if _, err := rollback.Recover(ctx, db.Collection(journalName), recovery); err != nil {
					t.Errorf("recovery: %v", err)
				}
			}
			state, documents := "aborted", 0
			if !c.fenced {
				state, documents = "committed", allDocuments
			}
			look := func(when string) {
				t.Helper()
				records, err := rollback.List(ctx, db.Collection(journalName))
				if err != nil || len(records) != 1 || records[0].State != state {
					t.Errorf("%s, the records are %+v, %v", when, records, err)
				}
				if have := count(dump(t, db), 0); have != documents {
					t.Errorf("%s, %d documents are there, not %d", when, have, documents)
				}
			}
			look("while the process stands still")

			if err := command.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if err := command.Wait(); err != nil {
				t.Fatalf("the process ended with %v: %s", err, output)
			}
			var said report
			if err := json.Unmarshal(output.Bytes(), &said); err != nil {
				t.Fatalf("the process said %s: %v", output, err)
			}
			failing := job(name) == failing // its own error comes first
			if said.Fenced != (c.fenced && !failing) || said.RolledBack != c.fenced || (said.Error == "") == c.fenced {
				t.Errorf("the process says: %+v", said)
			}
			if said.Inserts > 0 {
				t.Errorf("after it went on, it sent %d chunks", said.Inserts)
			}
			look("after the process went on")
			before := dump(t, db)
			if _, err := rollback.Recover(ctx, db.Collection(journalName), recovery); err != nil || !equalDumps(before, dump(t, db)) {
				t.Errorf("a last recovery changed something, or failed: %v", err)
			}
			for place, raw := range foreign {
				if now := before[place]; !bytes.Equal(now, raw) {
					t.Errorf("somebody else's document %s was %v and is %v", place, bson.Raw(raw), now)
				}
			}
		})
	}
}

// waitUntilStopped waits for a process to stand still.
func waitUntilStopped(t *testing.T, command *exec.Cmd, output *bytes.Buffer) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		state, err := exec.Command("ps", "-o", "state=", "-p", fmt.Sprint(command.Process.Pid)).Output()
		switch {
		case err != nil:
			t.Fatalf("the process is gone: %v; %s", err, output)
		case strings.HasPrefix(string(state), "T"):
			return
		case strings.HasPrefix(string(state), "Z"):
			t.Fatalf("the process ended before it came to the point: %s", output)
		case time.Now().After(deadline):
			t.Fatalf("the process does not come to the point; its state is %s", state)
		}
	}
}
