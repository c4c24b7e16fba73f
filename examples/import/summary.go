package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/records"
	"github.com/intact-go/intact/examples/internal/screen"
	"github.com/intact-go/intact/rollback"
)

// summary is what came of an import. Its exported fields are those of --json.
type summary struct {
	Result     string   `json:"result"` // stored, checked, not stored or incomplete
	Files      []string `json:"files"`
	Database   string   `json:"database"`
	Collection string   `json:"collection"`
	Batch      string   `json:"batch,omitempty"`
	Replayed   bool     `json:"replayed,omitempty"` // stored by an earlier import with the same --batch-id; nothing was written

	Read      int `json:"read"`      // records, good or bad
	Stored    int `json:"stored"`    // all or none
	Refused   int `json:"refused"`   // records that are not fit, or that the server did not take
	NotStored int `json:"notStored"` // the others, because of those or of Error

	Numbers      []job.Numbers `json:"numbers,omitempty"`
	Problems     []problem     `json:"problems,omitempty"`
	MoreProblems int           `json:"moreProblems,omitempty"`
	Error        string        `json:"error,omitempty"`
	Leftovers    int           `json:"leftovers,omitempty"`
	LeftoverFile string        `json:"leftoverFile,omitempty"`
	Warnings     []string      `json:"warnings,omitempty"`
	Seconds      float64       `json:"seconds"`

	start      time.Time
	dryRun     bool
	numbered   bool // --sequence was given
	stopped    bool // a file was not read to its end
	sent       bool // an insert was sent
	unresolved bool // stored, but whether for good is not known yet
	deleted    int64
	problems   []problem
	counters   []*job.Counter
	cause      error // if it was no single record
	incomplete error
	left       []rollback.Leftover
	warnings   []error
}

// problem is a record that was refused.
type problem struct {
	records.Position
	Text  string
	hint  string
	order int // of its file
}

func (p problem) String() string { return p.Position.String() + ": " + p.Text + p.hint }

// MarshalJSON makes one object of the place and the text.
func (p problem) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		File   string `json:"file"`
		Line   int    `json:"line"`
		Column int    `json:"column,omitempty"`
		Text   string `json:"text"`
	}{p.File, p.Line, p.Column, p.Text + p.hint})
}

// hintFor names the flag that helps.
func hintFor(p *records.Problem) string {
	switch {
	case errors.Is(p, records.ErrArray):
		return " (--jsonArray reads arrays)"
	case errors.Is(p, records.ErrNotArray):
		return " (without --jsonArray, one document a line is expected)"
	}
	return ""
}

func (s *summary) failed() bool { return s.cause != nil || len(s.problems) > 0 || s.incomplete != nil }

func (s *summary) code() int {
	switch {
	case s.unresolved || len(s.left) > 0 || s.incomplete != nil && s.sent:
		return exitIncomplete
	case s.failed():
		return exitNotStored
	}
	return exitStored
}

// report writes everything that the user wants to know: problems to the screen, the summary to out.
func (s *summary) report(out io.Writer, show *screen.Screen, o *options) {
	s.complete(o)
	for _, p := range s.Problems {
		show.Say("import: %s", p.String())
	}
	if s.MoreProblems > 0 {
		show.Say("import: and %d more (--errors says how many are shown)", s.MoreProblems)
	}
	var signal *job.Interrupted
	if s.Error != "" && !(errors.As(s.cause, &signal) && s.incomplete == nil) { // a signal was told when it came
		show.Say("import: %s", s.Error)
	}
	if s.stopped {
		show.Say("import: what follows there was not checked")
	}
	s.listLeftovers(show, o)
	for _, w := range s.Warnings {
		show.Say("import: warning: %s", w)
	}
	switch {
	case o.json:
		encoded := json.NewEncoder(out)
		encoded.SetEscapeHTML(false)
		_ = encoded.Encode(s) // the exit code tells the same
	case s.failed(): // also with --quiet
		show.Say("import: %s", s.text(show))
	case !o.quiet:
		fmt.Fprintln(out, s.text(show))
	}
}

// complete fills what is to be shown.
func (s *summary) complete(o *options) {
	s.NotStored = s.Read - s.Stored - s.Refused
	s.Seconds = float64(time.Since(s.start).Milliseconds()) / 1000
	s.Result = map[int]string{exitStored: "stored", exitNotStored: "not stored", exitIncomplete: "incomplete"}[s.code()]
	if s.Result == "stored" && s.dryRun {
		s.Result = "checked"
	}
	shown := min(len(s.problems), o.errors)
	s.Problems, s.MoreProblems = s.problems[:shown], len(s.problems)-shown
	for _, c := range s.counters {
		if c.Got.Count > 0 {
			s.Numbers = append(s.Numbers, c.Got)
		}
	}
	if s.cause != nil {
		s.Error = screen.Clip(screen.HideCredentials(s.cause, o.uri).Error(), 500)
		var signal *job.Interrupted
		if errors.As(s.cause, &signal) {
			s.Error = signal.Error()
		}
	}
	if s.incomplete != nil {
		s.Error = strings.TrimPrefix(s.Error+"; ", "; ") + screen.Clip(screen.HideCredentials(s.incomplete, o.uri).Error(), 500)
	}
	for _, w := range s.warnings {
		s.Warnings = append(s.Warnings, screen.Clip(screen.HideCredentials(w, o.uri).Error(), 500))
	}
	s.Leftovers = len(s.left)
}

// text says in a line or two what is true of the data now.
func (s *summary) text(show *screen.Screen) string {
	n := show.Numbers
	where := s.Database + "." + s.Collection
	switch s.Result {
	case "stored":
		if s.Replayed {
			return n.Sprintf("an earlier import with this --batch-id stored %d %s in %s; nothing was written now", s.Stored, screen.Plural(s.Stored, "document"), where)
		}
		text := n.Sprintf("stored %d %s in %s (%s)", s.Stored, screen.Plural(s.Stored, "document"), where, screen.Seconds(time.Since(s.start)))
		for _, c := range s.Numbers {
			text += ", " + c.Text(show)
		}
		return text
	case "checked":
		return n.Sprintf("%d %s: all fit to be stored in %s; nothing was written", s.Read, screen.Plural(s.Read, "document"), where)
	}
	text := n.Sprintf("read %d, refused %d, stored 0: ", s.Read, s.Refused)
	switch {
	case s.unresolved:
		text = n.Sprintf("NOT KNOWN YET: read %d; all are in %s, but the journal did not answer. Run the same command again if it has a --batch-id, else --recover: either all stay or all go", s.Read, where)
	case s.Result == "incomplete":
		text = n.Sprintf("INCOMPLETE: read %d, refused %d; %d %s may be left in %s", s.Read, s.Refused, len(s.left), screen.Plural(len(s.left), "document"), where)
	case s.dryRun:
		return n.Sprintf("read %d, refused %d: NOT FIT to be stored; nothing was written", s.Read, s.Refused)
	case !s.sent:
		text += "NOT STORED, nothing was written"
	default:
		text += n.Sprintf("NOT STORED, nothing of it is in %s (%d deleted again)", where, s.deleted)
	}
	for _, c := range s.Numbers {
		text += fmt.Sprintf("; %s stay unused", c.Text(show))
	}
	if s.numbered && len(s.Numbers) == 0 {
		text += "; no number was used"
	}
	return text
}

// listLeftovers writes the ids of what may be left to a file, or to the screen if that does not work.
func (s *summary) listLeftovers(show *screen.Screen, o *options) {
	if len(s.left) == 0 {
		return
	}
	name := o.leftovers
	if name == "" {
		name = "import-leftovers-" + s.Batch + ".ndjson"
	}
	var list strings.Builder
	for _, l := range s.left {
		line, err := bson.MarshalExtJSON(bson.D{{Key: "_id", Value: l.ID}}, true, false)
		if err != nil {
			line = []byte(l.String())
		}
		list.Write(line)
		list.WriteByte('\n')
	}
	if err := os.WriteFile(name, []byte(list.String()), 0o600); err != nil {
		show.Say("import: the list of what may be left could not be written (%v), so here it is:", err)
		show.Say("%s", strings.TrimSuffix(list.String(), "\n"))
		return
	}
	s.LeftoverFile = name
	show.Say("import: the ids of what may be left are in %s; the batch is %s", name, s.Batch)
	if o.journal != "" {
		show.Say("import: they are in the journal too: import --recover --journal %s deletes them", o.journal)
	}
}

func pluralWas(n int64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}
