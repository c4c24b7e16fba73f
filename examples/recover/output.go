package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/intact-go/intact/rollback"
)

// output prints results.
type output struct {
	stdout io.Writer
	json   bool
	now    time.Time
}

// line is what is shown of one record.
type line struct {
	ID        string        `json:"id"`
	State     string        `json:"state"`
	Started   *time.Time    `json:"started,omitempty"`
	Finished  *time.Time    `json:"finished,omitempty"`
	Owner     string        `json:"owner"`
	Lease     string        `json:"lease"`
	Documents int64         `json:"documents"`
	Stored    *int          `json:"stored,omitempty"` // of an unfinished batch, now
	Targets   []target      `json:"targets"`
	Attempts  int           `json:"attempts"`
	Problem   string        `json:"problem,omitempty"`
	Reason    string        `json:"reason,omitempty"`
	Err       string        `json:"error,omitempty"` // why nobody can act on it, or look
	Leftovers []leftover    `json:"leftovers,omitempty"`
	age       time.Duration // negative if it is not known
}

type target struct {
	Deployment string `json:"deployment,omitempty"`
	Collection string `json:"collection"`
	Documents  int64  `json:"documents"`
}

type leftover struct {
	Collection string          `json:"collection"`
	ID         json.RawMessage `json:"_id"` // extended JSON
}

func (o output) line(r rollback.Record) line {
	l := line{
		ID: r.ID, State: r.State, Owner: r.Owner, Lease: r.Lease.String(), Documents: r.Documents, Attempts: r.Attempts,
		Problem: r.Problem, Reason: r.Reason, age: -1, Targets: []target{},
	}
	if !r.Started.IsZero() {
		l.Started, l.age = &r.Started, max(o.now.Sub(r.Started), 0)
	}
	if !r.Finished.IsZero() {
		l.Finished = &r.Finished
	}
	for _, t := range r.Targets {
		l.Targets = append(l.Targets, target(t))
	}
	if r.Err != nil {
		l.Err = r.Err.Error()
	}
	return l
}

// look adds what was found of a batch.
func (l *line) look(f rollback.Finding) {
	if f.Err != nil {
		l.Err = f.Err.Error()
		return
	}
	stored := len(f.Stored)
	l.Stored = &stored
}

func leftovers(stored []rollback.Leftover) []leftover {
	all := make([]leftover, len(stored))
	for i, s := range stored {
		all[i] = leftover{Collection: s.Collection, ID: json.RawMessage(s.ID.String())}
		if !json.Valid(all[i].ID) {
			all[i].ID, _ = json.Marshal(s.ID.String()) // a string is always fit
		}
	}
	return all
}

func (o output) list(lines []line) error {
	if o.json {
		return o.object(lines)
	}
	if len(lines) == 0 {
		_, err := fmt.Fprintln(o.stdout, "the journal is empty")
		return err
	}
	return o.table(lines)
}

// table shows one record a row. On a terminal, rows are cut to its width.
func (o output) table(lines []line) error {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tAGE\tDOCUMENTS\tSTORED\tTRIES\tOWNER\tREMARKS")
	for _, l := range lines {
		stored := "-"
		if l.Stored != nil {
			stored = fmt.Sprint(*l.Stored)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", oneLine(l.ID), oneLine(l.State), age(l.age), l.Documents, stored, l.Attempts, oneLine(l.Owner), oneLine(l.remarks()))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	width := o.width()
	for row := range strings.Lines(text.String()) {
		row = strings.TrimRight(row, " \n")
		if width > 0 && utf8.RuneCountInString(row) > width {
			row = string([]rune(row)[:width-1]) + "…"
		}
		if _, err := fmt.Fprintln(o.stdout, row); err != nil {
			return err
		}
	}
	return nil
}

// width is the terminal's, or 0 if there is none.
func (o output) width() int {
	file, isFile := o.stdout.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

func (l line) remarks() string {
	for _, remark := range []string{l.Err, l.Reason, l.Problem} {
		if remark != "" {
			return remark
		}
	}
	return ""
}

// oneLine keeps what a database says from disturbing the table, or the terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

// age shows two units of a duration.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "?"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// shown is how many documents of a batch check lists, unless it prints JSON.
const shown = 20

func (o output) check(lines []line) error {
	if o.json {
		return o.object(lines)
	}
	if len(lines) == 0 {
		_, err := fmt.Fprintln(o.stdout, "no record is unfinished")
		return err
	}
	if err := o.table(lines); err != nil {
		return err
	}
	for _, l := range lines {
		if len(l.Leftovers) == 0 {
			continue
		}
		fmt.Fprintf(o.stdout, "\n%s, stored now:\n", oneLine(l.ID))
		for i, left := range l.Leftovers {
			if i == shown {
				fmt.Fprintf(o.stdout, "  … and %d more\n", len(l.Leftovers)-shown)
				break
			}
			if _, err := fmt.Fprintf(o.stdout, "  %s %s\n", left.Collection, oneLine(string(left.ID))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o output) report(r rollback.RecoveryReport) error {
	if o.json {
		return o.object(map[string]any{
			"rolledBack": list(r.RolledBack), "closed": list(r.Closed), "removed": list(r.Removed), "alive": list(r.Alive),
			"failed": list(r.Failed), "deleted": r.Deleted,
		})
	}
	for _, part := range []struct {
		what string
		ids  []string
	}{
		{"rolled back", r.RolledBack}, {"closed", r.Closed}, {"left alone, their owners live", r.Alive}, {"failed", r.Failed},
		{"removed, finished long ago", r.Removed},
	} {
		if len(part.ids) > 0 {
			fmt.Fprintf(o.stdout, "%d %s: %s\n", len(part.ids), part.what, oneLine(some(part.ids)))
		}
	}
	_, err := fmt.Fprintf(o.stdout, "%d documents deleted\n", r.Deleted)
	return err
}

// list makes an empty array of none.
func list(ids []string) []string { return append([]string{}, ids...) }

func some(ids []string) string {
	if len(ids) > shown {
		return fmt.Sprintf("%s, … and %d more", strings.Join(ids[:shown], ", "), len(ids)-shown)
	}
	return strings.Join(ids, ", ")
}

func (o output) forgotten(id, reason string) error {
	if o.json {
		return o.object(map[string]string{"forgotten": id, "reason": reason})
	}
	_, err := fmt.Fprintf(o.stdout, "%s is forgotten\n", oneLine(id))
	return err
}

func (o output) object(v any) error {
	encoder := json.NewEncoder(o.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// log is where watch tells what it does.
func (o output) log() slog.Handler {
	if o.json {
		return slog.NewJSONHandler(o.stdout, nil)
	}
	return slog.NewTextHandler(o.stdout, nil)
}
