package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// fixture is a database with a journal, and the tool with a server to talk to.
type fixture struct {
	*testing.T
	server *servertest.Server
	wire   *faultwire.Wire
	db     *mongo.Database // over the wire
}

func onEach(t *testing.T, test func(f *fixture)) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		wire := faultwire.ForTest(t)
		test(&fixture{t, s, wire, s.Database(t, s.Client(t, driver.Client().SetDialer(wire)))})
	})
}

// tool runs the program and returns what it printed.
func (f *fixture) tool(want int, args ...string) (stdout, stderr string) {
	f.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"--uri", f.server.URI, "--db", f.db.Name(), "--settle", "50ms"}, args...)
	if code := run(f.Context(), args, &out, &errs, func(string) string { return "" }); code != want {
		f.Errorf("recover %v ended with %d, not %d\n%s%s", args, code, want, &out, &errs)
	}
	return out.String(), errs.String()
}

// batch stores three documents under a key. Its owner dies before the commit, unless it lives.
func (f *fixture) batch(key string, lives bool) {
	f.Helper()
	commit := false
	gone := f.wire.On(faultwire.Any.Where(func(r *faultwire.Request) bool {
		if r.Collection == "journal" && r.Name == faultwire.Update {
			commit = true
		}
		return !lives && commit && r.Collection == "journal"
	})).Reply(faultwire.CommandError{Code: 13, Message: "not authorized"})
	defer gone.Off()
	config := batch.Config{Journal: f.db.Collection("journal"), Lease: 2 * time.Second, Rollback: rollback.Policy{Settle: time.Millisecond}}
	documents := []bson.D{{{Key: "_id", Value: key + " 1"}}, {{Key: "_id", Value: key + " 2"}}, {{Key: "n", Value: 3}}}
	_, err := batch.New(config).InsertOnce(f.Context(), key, batch.Into(f.db.Collection("orders"), documents))
	var failed *batch.Error
	if lives && err != nil || !lives && !(errors.As(err, &failed) && failed.Unresolved()) {
		f.Fatalf("the batch %q: %v", key, err)
	}
}

func (f *fixture) orders() int {
	f.Helper()
	n, err := f.db.Collection("orders").CountDocuments(f.Context(), bson.D{})
	if err != nil {
		f.Fatal(err)
	}
	return int(n)
}

// rows splits a table.
func rows(text string) [][]string {
	var all [][]string
	for row := range strings.Lines(text) {
		all = append(all, strings.Fields(row))
	}
	return all
}

func TestRecoverAndLook(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		if out, _ := f.tool(exitDone, "list"); out != "the journal is empty\n" {
			t.Errorf("of an empty journal, list says %q", out)
		}
		if out, _ := f.tool(exitDone, "check"); out != "no record is unfinished\n" {
			t.Errorf("of an empty journal, check says %q", out)
		}
		f.batch("stored", true)
		f.tool(exitDone, "list")
		f.batch("dead", false)

		out, _ := f.tool(exitUnfinished, "list")
		table := rows(out)
		if len(table) != 3 || table[1][0] != "dead" || table[1][1] != "open" || table[1][3] != "3" || table[1][4] != "3" ||
			table[2][0] != "stored" || table[2][1] != "committed" || table[2][4] != "-" {
			t.Errorf("list says\n%s", out)
		}
		if out, _ := f.tool(exitUnfinished, "check"); !strings.Contains(out, `orders "dead 1"`) || strings.Contains(out, "stored 1") {
			t.Errorf("check says\n%s", out)
		}
		if f.orders() != 6 {
			t.Errorf("looking left %d documents", f.orders())
		}

		out, _ = f.tool(exitDone, "recover")
		if !strings.Contains(out, "1 rolled back: dead\n") || !strings.Contains(out, "1 closed: dead\n") || !strings.Contains(out, "3 documents deleted\n") {
			t.Errorf("recover says\n%s", out)
		}
		if f.orders() != 3 {
			t.Errorf("%d documents are left", f.orders())
		}
		if out, _ := f.tool(exitDone, "recover"); out != "0 documents deleted\n" {
			t.Errorf("recover, again, says\n%s", out)
		}
		if out, _ := f.tool(exitDone, "recover", "--retention", "1ns"); !strings.Contains(out, "2 removed") {
			t.Errorf("recover, when the retention is over, says\n%s", out)
		}
		f.tool(exitDone, "list")
	})
}

func TestJSON(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		var lines []line
		decode := func(text string, into any) {
			t.Helper()
			if err := json.Unmarshal([]byte(text), into); err != nil {
				t.Errorf("%v: %s", err, text)
			}
		}
		out, _ := f.tool(exitDone, "list", "--json")
		if decode(out, &lines); strings.TrimSpace(out) != "[]" {
			t.Errorf("of an empty journal, list says %s", out)
		}
		f.batch("dead", false)
		out, _ = f.tool(exitUnfinished, "list", "--json")
		decode(out, &lines)
		if len(lines) != 1 || lines[0].ID != "dead" || lines[0].Stored == nil || *lines[0].Stored != 3 || lines[0].Started == nil ||
			lines[0].Finished != nil || lines[0].Lease != "2s" || len(lines[0].Targets) != 1 || lines[0].Leftovers != nil {
			t.Errorf("list says %s", out)
		}
		out, _ = f.tool(exitUnfinished, "check", "--json")
		decode(out, &lines)
		ids := fmt.Sprintf("%s", lines[0].Leftovers)
		if len(lines[0].Leftovers) != 3 || !strings.Contains(ids, `"dead 2"`) || !strings.Contains(ids, `$oid`) {
			t.Errorf("check says %s", out)
		}
		var report struct {
			RolledBack, Closed, Alive, Failed, Removed []string
			Deleted                                    int
		}
		out, _ = f.tool(exitDone, "recover", "--json")
		decode(out, &report)
		if fmt.Sprint(report) != "{[dead] [dead] [] [] [] 3}" || strings.Contains(out, "null") {
			t.Errorf("recover says %s", out)
		}
	})
}

func TestForget(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		f.batch("dead", false)
		if _, errs := f.tool(exitFailed, "forget", "--reason", "why", "other"); !strings.Contains(errs, "other") {
			t.Errorf("forgetting what is not there: %s", errs)
		}
		out, _ := f.tool(exitDone, "forget", "--reason", "cleaned up by hand", "dead")
		if out != "dead is forgotten\n" {
			t.Errorf("forget says %q", out)
		}
		out, _ = f.tool(exitDone, "list")
		if !strings.Contains(out, "forgotten") || !strings.Contains(out, "cleaned up by hand") {
			t.Errorf("list says\n%s", out)
		}
		if f.orders() != 3 {
			t.Errorf("%d documents are there", f.orders())
		}
		f.tool(exitFailed, "forget", "--reason", "why", "dead")
	})
}

func TestWhatCannotBeFinished(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		f.batch("dead", false)
		f.batch("strange", false)
		change := bson.D{{Key: "$set", Value: bson.D{{Key: "targets.0.deployment", Value: "moon"}}}}
		if _, err := f.db.Collection("journal").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "strange"}}, change); err != nil {
			t.Fatal(err)
		}
		out, errs := f.tool(exitFailed, "recover")
		if !strings.Contains(errs, `"strange"`) || !strings.Contains(errs, "moon") || !strings.Contains(out, "1 rolled back: dead\n") || !strings.Contains(out, "1 failed: strange\n") {
			t.Errorf("recover says\n%s%s", out, errs)
		}
		if out, _ := f.tool(exitUnfinished, "list"); !strings.Contains(out, "moon") {
			t.Errorf("list says\n%s", out)
		}
		out, _ = f.tool(exitDone, "recover", "--deployment", "moon="+f.server.URI)
		if f.orders() != 0 {
			t.Errorf("with the deployment, recover says\n%s", out)
		}
	})
}

func TestWatch(t *testing.T) {
	onEach(t, func(f *fixture) {
		t := f.T
		f.batch("dead", false)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan int)
		var out, errs bytes.Buffer
		go func() {
			args := []string{"watch", "--json", "--every", "50ms", "--settle", "50ms", "--uri", f.server.URI, "--db", f.db.Name()}
			done <- run(ctx, args, &out, &errs, func(string) string { return "" })
		}()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			records, err := rollback.List(t.Context(), f.db.Collection("journal"))
			if err != nil {
				t.Fatal(err)
			}
			if records[0].State == "aborted" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the record is still %s", records[0].State)
			}
		}
		cancel()
		if code := <-done; code != exitDone {
			t.Errorf("watch ended with %d: %s", code, &errs)
		}
		for row := range strings.Lines(out.String()) {
			if !json.Valid([]byte(row)) {
				t.Errorf("watch says %s", row)
			}
		}
		if !strings.Contains(out.String(), `"dead"`) || f.orders() != 0 {
			t.Errorf("watch says %s; %d documents are left", &out, f.orders())
		}
	})
}

// TestCommandLine: what makes no sense is refused before anything is sent.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		say  string
	}{
		{"", exitUsage, "list"}, {"--db d", exitUsage, "list"}, {"--db d dance", exitUsage, "list"}, {"list", exitUsage, "--db"},
		{"--db d list more", exitUsage, "more"}, {"--db d forget", exitUsage, "id"}, {"--db d forget x", exitUsage, "--reason"},
		{"--db d --reason x list", exitUsage, "--reason"}, {"--db d --every 0s watch", exitUsage, "--every"}, {"--no-such-flag", exitUsage, "no-such-flag"},
		{"--help", exitDone, "exit"}, {"--db d --timeout 10ms --uri mongodb://127.0.0.1:1 list", exitFailed, "no server"},
		{"--db d --uri nonsense list", exitFailed, "scheme"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(c.args), &out, &errs, func(string) string { return "" })
		if code != c.code || !strings.Contains(errs.String(), c.say) || out.Len() > 0 {
			t.Errorf("recover %s: %d, %s%s", c.args, code, &out, &errs)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "?", 0: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m00s", 3*time.Hour + 4*time.Minute: "3h04m", 49 * time.Hour: "2d01h",
	} {
		if got := age(d); got != want {
			t.Errorf("%s is shown as %s, not %s", d, got, want)
		}
	}
}

// TestOneLine: an id can be anything; the table stays one, and the terminal unharmed.
func TestOneLine(t *testing.T) {
	var out bytes.Buffer
	o := output{stdout: &out}
	if err := o.table([]line{{ID: "a\nb\tc\x1b[31md\u009b", State: "open", Owner: "x"}}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 || strings.ContainsAny(out.String(), "\t\x1b\u009b") {
		t.Errorf("the table is %q", out.String())
	}
}
