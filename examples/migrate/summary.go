package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/examples/internal/job"
	"github.com/intact-go/intact/examples/internal/screen"
)

// summary is what came of a run. Its exported fields are those of --json.
type summary struct {
	Result   string   `json:"result"` // stored, unfinished, checked, not stored or incomplete: see the exit codes
	From     string   `json:"from"`
	Targets  []target `json:"targets"`
	Batch    string   `json:"batch"`              // the batch id
	Replayed bool     `json:"replayed,omitempty"` // stored by an earlier run

	Read    int `json:"read"`    // documents of the source; 0 if an earlier run has read them
	Stored  int `json:"stored"`  // all or none
	Refused int `json:"refused"` // by the transform, the library or the server

	Numbers      []job.Numbers `json:"numbers,omitempty"`
	Problems     []problem     `json:"problems,omitempty"`
	MoreProblems int           `json:"moreProblems,omitempty"`
	Unmarked     int           `json:"unmarked,omitempty"` // documents whose marks were removed
	Error        string        `json:"error,omitempty"`
	Seconds      float64       `json:"seconds"`

	start      time.Time
	uris       []string
	feed       *feed // nil if nothing was read
	counters   []*job.Counter
	result     *batch.Result // nil if it is not stored
	dryRun     bool
	sent       bool
	unknown    bool // documents may be there that are not there for good
	deleted    int64
	problems   []problem
	cause      error // if it was no single document
	incomplete error
	unfinished error // it is stored, but this is missing
}

// target is what is in one collection.
type target struct {
	Collection string `json:"collection"`
	Stored     int    `json:"stored"`
	Counted    int    `json:"counted"` // those of the copy that are there
	before     int64  // documents that were there before
}

// problem is a document of the source that cannot be copied.
type problem struct {
	ID   string `json:"id"` // Extended JSON
	Text string `json:"text"`
}

// mostProblems is how many are kept.
const mostProblems = 1000

func (c *Copy) summary(uris []string) *summary {
	s := &summary{From: c.From.Database().Name() + "." + c.From.Name(), Batch: c.ID, start: time.Now(), uris: uris}
	for _, coll := range c.To {
		s.Targets = append(s.Targets, target{Collection: coll.Database().Name() + "." + coll.Name()})
	}
	return s
}

func (s *summary) stored(result *batch.Result) {
	s.result, s.Stored, s.Replayed = result, result.Inserted, result.Replayed
	for i, part := range result.Parts {
		s.Targets[i].Stored = part.Inserted
	}
}

func (s *summary) refuse(p problem) {
	s.Refused++
	if len(s.problems) < mostProblems {
		s.problems = append(s.problems, p)
	}
}

// failed takes down why nothing is stored. If the context has ended, that is why, whatever stumbled over it.
func (s *summary) failed(ctx context.Context, err error) {
	var failed *batch.Error
	if errors.As(err, &failed) {
		s.sent, s.deleted, s.incomplete = failed.Sent, failed.Rollback.Deleted, failed.Incomplete
		s.unknown = !failed.RolledBack() || errors.Is(err, batch.ErrInProgress)
		for _, d := range failed.Documents {
			s.refuse(problem{s.origin(d), job.Reason(d)})
		}
		err = failed.Cause
	}
	var refused *refusedError
	switch {
	case ctx.Err() != nil:
		s.cause = context.Cause(ctx)
	case errors.As(err, &refused):
		s.refuse(problem{idText(refused.id), refused.err.Error()})
	case s.Refused == 0:
		s.cause = err
	}
}

// origin names a document of the source.
func (s *summary) origin(d batch.DocumentError) string {
	if id, ok := s.feed.origin(d.Part, d.Index); ok {
		return idText(id)
	}
	return idText(d.ID)
}

// idText is an _id as relaxed Extended JSON.
func idText(id bson.RawValue) string {
	text, err := bson.MarshalExtJSON(bson.D{{Key: "_id", Value: id}}, false, false)
	if err != nil {
		return id.String()
	}
	return "_id " + screen.Clip(strings.TrimSuffix(strings.TrimPrefix(string(text), `{"_id":`), "}"), 200)
}

func (s *summary) code() int {
	switch {
	case s.unfinished != nil:
		return exitUnfinished
	case s.result != nil:
		return exitStored
	case s.unknown:
		return exitIncomplete
	case s.cause != nil || s.Refused > 0:
		return exitNotStored
	}
	return exitStored
}

// report writes everything that the user wants to know: problems to the screen, the summary to out.
func (s *summary) report(out io.Writer, show *screen.Screen, shown int, asJSON, quiet bool) {
	s.complete(shown)
	for _, p := range s.Problems {
		show.Say("%s: %s: %s", show.Program, p.ID, p.Text)
	}
	if s.MoreProblems > 0 {
		show.Say("%s: and %d more (--errors says how many are shown)", show.Program, s.MoreProblems)
	}
	var signal *job.Interrupted
	if s.Error != "" && !(errors.As(s.cause, &signal) && s.incomplete == nil) { // a signal was told when it came
		show.Say("%s: %s", show.Program, s.Error)
	}
	switch {
	case asJSON:
		encoded := json.NewEncoder(out)
		encoded.SetEscapeHTML(false)
		_ = encoded.Encode(s) // the exit code tells the same
	case s.code() != exitStored: // also with --quiet
		for line := range strings.SplitSeq(s.text(show), "\n") {
			show.Say("%s: %s", show.Program, line)
		}
	case !quiet:
		show.Numbers.Fprintf(out, "%s\n", s.text(show))
	}
}

// complete fills what is to be shown.
func (s *summary) complete(shown int) {
	s.Seconds = float64(time.Since(s.start).Milliseconds()) / 1000
	s.Result = map[int]string{exitStored: "stored", exitNotStored: "not stored", exitIncomplete: "incomplete", exitUnfinished: "unfinished"}[s.code()]
	if s.Result == "stored" && s.result == nil {
		s.Result = "checked"
	}
	if s.feed != nil {
		s.Read = s.feed.read
	}
	s.Problems = s.problems[:min(len(s.problems), shown)]
	s.MoreProblems = s.Refused - len(s.Problems)
	for _, c := range s.counters {
		if c.Got.Count > 0 {
			s.Numbers = append(s.Numbers, c.Got)
		}
	}
	var reasons []string
	for _, err := range []error{s.cause, s.incomplete, s.unfinished} {
		if err != nil {
			reasons = append(reasons, screen.Clip(screen.HideCredentials(err, s.uris...).Error(), 500))
		}
	}
	s.Error = strings.Join(reasons, "; ")
}

// text says in a few lines what is true of the data now.
func (s *summary) text(show *screen.Screen) string {
	n := show.Numbers
	var stored, counted, numbers []string
	for _, t := range s.Targets {
		stored = append(stored, n.Sprintf("%d in %s", t.Stored, t.Collection))
		counted = append(counted, n.Sprint(t.Counted))
	}
	for _, c := range s.Numbers {
		numbers = append(numbers, c.Text(show))
	}
	where, count := strings.Join(stored, ", "), strings.Join(counted, " and ")
	read := n.Sprintf("read %d from %s", s.Read, s.From)
	switch s.Result {
	case "stored":
		switch {
		case s.Unmarked > 0 && s.Replayed:
			return "already stored: " + where + n.Sprintf("\nthat run was stopped before it had removed its marks: done now, from %d", s.Unmarked)
		case s.Replayed:
			return "already done, nothing was written now. An earlier run stored\n" + where
		}
		if s.Read == 0 {
			return "stored nothing, because " + s.From + " has no such documents"
		}
		text := "stored " + where + "\n" + read + " in " + screen.Seconds(time.Since(s.start)) + "; counted afterwards: " + count
		if len(numbers) > 0 {
			text += "\nnumbers: " + strings.Join(numbers, ", ")
		}
		return text
	case "unfinished":
		return "STORED BUT NOT FINISHED: " + where + ", counted afterwards: " + count + "\nthe same command again does the rest"
	case "checked":
		return read + ": all fit to be stored; nothing was written"
	case "incomplete":
		return "INCOMPLETE: documents of the copy may be in the target, but not for good.\nThe same command again clears up first, and so does examples/recover"
	}
	if s.dryRun {
		return read + n.Sprintf(": NOT FIT to be stored, %d refused; nothing was written", s.Refused)
	}
	if len(numbers) > 0 {
		read += "; unused: " + strings.Join(numbers, ", ")
	}
	if !s.sent {
		return "NOT STORED, nothing was written\n" + read
	}
	return n.Sprintf("NOT STORED, nothing of it is in the target (%d deleted again)\n", s.deleted) + read
}
