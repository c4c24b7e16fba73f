package storm

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var planted = flag.Bool("storm.planted", false, "look for each of the planted bugs; takes minutes")

// bug is a mistake in the library that the search has to find. It is put in with go's -overlay, so that the library itself
// has no switch for it.
type bug struct {
	name string
	file string // from the module's root
	old  string // must be there exactly once
	new  string
}

// bugs are mistakes that are easily made in a library like this one; several were made in others.
var bugs = []bug{
	{
		"claimed ids are deleted without the stamp", "rollback/plan.go",
		"append(byIDs(ids, keys, from, to), proof...)", "append(byIDs(ids, keys, from, to), proof[:0]...)",
	},
	{
		"a lost answer counts as a refusal", "internal/outcome/outcome.go",
		"	default:\n		report.Err = err", "	default:\n		report.fill(Rejected)\n		report.Err = err",
	},
	{
		"no second look after the settle time", "rollback/undo.go",
		"		if s.late || u.unfenced.Load() && !s.bare {", "		if s.late && s.unproven {",
	},
	{
		"the settle time is not waited for", "rollback/undo.go",
		"if retry.Sleep(ctx, u.policy.Settle) != nil {", "if retry.Sleep(ctx, u.policy.Settle/1000) != nil {",
	},
	{
		"documents without a proof are deleted without their shard key", "batch/undo.go",
		"ShardKeys: slices.Concat(t.acknowledged.shardKeys, t.unproven.shardKeys),", "ShardKeys: nil,",
	},
	{
		"sessions are not fenced", "rollback/undo.go",
		"	u.fence(ctx)\n", "",
	},
	{
		"inserts are cancelled and forgotten", "batch/send.go",
		"ctx, cancel := context.WithTimeout(mongo.NewSessionContext(context.WithoutCancel(s.going), s.session), s.config.CommandTimeout)\n	defer cancel()\n	return outcome.Send(ctx, s.part.inserts, models)",
		"ctx, cancel := context.WithTimeout(mongo.NewSessionContext(s.going, s.session), s.config.CommandTimeout)\n	defer cancel()\n	if inserted, err = outcome.Send(ctx, s.part.inserts, models); errors.Is(err, context.Canceled) {\n		s.session, err = nil, mongo.ErrClientDisconnected\n	}\n	return inserted, err",
	},
	{
		"the state is changed without comparing", "internal/journal/journal.go",
		`filter := append(unchanged(from), bson.E{Key: "state", Value: string(from.State)})`, "filter := byID(from.ID)",
	},
	{
		"the batch is committed without the journal", "batch/batch.go",
		"		r.commitJournal(ctx)\n", "",
	},
	{
		"writes are acknowledged by the primary alone", "batch/options.go",
		`c.WriteConcern = &writeconcern.WriteConcern{W: "majority", Journal: &journaled}`, `c.WriteConcern = &writeconcern.WriteConcern{W: 1, Journal: &journaled}`,
	},
	{
		"a duplicate key after a lost answer is believed", "batch/send.go",
		"case refusal.Duplicate != nil && d.provable() && (d.unsure || onID):", "case refusal.Duplicate != nil && d.index < 0:",
	},
	{
		"a duplicate key after a lost answer counts as stored", "batch/suspects.go",
		"case ours[identity(d)] && !twins[identity(d)]:", "case ours[identity(d)] || !twins[identity(d)]:",
	},
	{
		"an _id that the batch claims twice counts as stored", "batch/suspects.go",
		"case ours[identity(d)] && !twins[identity(d)]:", "case ours[identity(d)] && len(twins) >= 0:",
	},
	{
		"a server without a history is trusted like any other", "batch/target.go",
		"return s.repeats() && !s.history", "return s.repeats() && !s.history && s.maxBatch < 0",
	},
	{
		"a write concern that was not met counts as success", "internal/outcome/outcome.go",
		"	if exception.WriteConcernError != nil {", "	if exception.WriteConcernError != nil && n < 0 {",
	},
	{
		"the count of a reply is not looked at", "internal/outcome/outcome.go",
		"		if inserted != int64(n) {", "		if inserted < 0 {",
	},
	{
		"a delete is not repeated", "rollback/undo.go",
		"		if final {\n			return err\n		}", "		if final || err != nil {\n			return nil\n		}",
	},
	{
		"claimed ids are not journaled", "batch/journal.go",
		"		if err := s.ledger.journal.AddPage(ctx, page); err != nil {", "		if err := ctx.Err(); err != nil && page.Target < 0 {",
	},
}

// within is the number of schedules in which each planted bug is found.
const within = 20_000

// TestPlantedBugs shows that the search can find anything.
func TestPlantedBugs(t *testing.T) {
	if !*planted {
		t.Skip("it builds the library anew for each bug; run it with -storm.planted")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			overlay := plant(t, root, b)
			command := exec.Command("go", "test", "-overlay", overlay, "-run", "TestSearch$", "./internal/storm",
				"-storm.runs", fmt.Sprint(within), "-storm.repeat", "0", "-timeout", "20m", "-v")
			command.Dir = root
			out, err := command.CombinedOutput()
			switch {
			case bytes.Contains(out, []byte("[build failed]")):
				t.Fatalf("the planted bug does not compile:\n%s", out)
			case err == nil:
				t.Errorf("not found in %d schedules", within)
			case !bytes.Contains(out, []byte("a promise is broken")):
				t.Errorf("the search ended otherwise:\n%s", out)
			default:
				t.Log(summary(out))
			}
		})
	}
}

// plant writes the patched file and go's description of the overlay.
func plant(t *testing.T, root string, b bug) string {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(b.file))
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), b.old); n != 1 {
		t.Fatalf("%s has the place of the bug %d times, not once", b.file, n)
	}
	dir := t.TempDir()
	patched := filepath.Join(dir, filepath.Base(path))
	changed := strings.Replace(string(source), b.old, b.new, 1)
	if err := os.WriteFile(patched, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	description, err := json.Marshal(map[string]map[string]string{"Replace": {path: patched}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, description, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// summary takes the lines out of a search's output that say after how many schedules it found something, and what.
func summary(out []byte) string {
	var after, found string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if _, schedules, ok := strings.Cut(line, ": "); ok && strings.Contains(line, " schedules in ") {
			after = schedules
		}
		for _, promise := range []string{"all: ", "nothing: ", "bystander: ", "honesty: ", "crash: ", "numbers: "} {
			if found == "" && strings.HasPrefix(line, promise) {
				found = line
			}
		}
	}
	return after + "\n" + found
}

// TestPlantedBugsHaveTheirPlaces keeps the list of bugs in step with the library.
func TestPlantedBugsHaveTheirPlaces(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) { plant(t, root, b) })
	}
}
