// Package screen shows people how far a program is that stores batches.
package screen

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

const (
	// plainEvery is the time between two lines about a phase that takes long, where there is no terminal.
	plainEvery = 5 * time.Second

	// clearLine goes to the beginning of a terminal's line and empties it.
	clearLine = "\r\x1b[2K"

	// roomy is the width in columns from which a bar has room for rates and times.
	roomy = 72
)

// Unit is what a phase counts.
type Unit int

const (
	Bytes Unit = iota + 1
	Documents
	Deletions // documents in so large steps that a rate would only jump
)

// Screen shows how far a program is: a bar on a terminal, a line now and then elsewhere. It may be used by several
// goroutines.
type Screen struct {
	Numbers *message.Printer // writes numbers with separators
	Program string           // its name, with which shared messages begin

	mu       sync.Mutex // protects the rest, and makes writes one at a time
	out      io.Writer
	terminal bool
	silent   bool // no progress; Say still works
	width    func() int

	bar         *progressbar.ProgressBar
	phase       string
	unit        Unit
	total, done int64
	documents   int
	start, last time.Time
}

// New returns the screen of a program. With a terminal's file it draws bars.
func New(program string, out io.Writer) *Screen {
	s := &Screen{Program: program, out: out, Numbers: message.NewPrinter(language.English), width: func() int { return 80 }}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.terminal = true
		s.width = func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 80
			}
			return width
		}
	}
	return s
}

// Silence leaves out progress and notes from here on, for people who want to see only what is wrong.
func (s *Screen) Silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = true
}

// Say writes a line, above the bar if there is one.
func (s *Screen) Say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	s.Numbers.Fprintf(s.out, format+"\n", args...)
}

// Interrupt is Say for a signal, which may have put a ^C behind the bar: the bar stays as it is.
func (s *Screen) Interrupt(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		fmt.Fprintln(s.out)
	}
	s.Numbers.Fprintf(s.out, format+"\n", args...)
}

// Note is Say for what is left out when nobody wants to see progress.
func (s *Screen) Note(format string, args ...any) {
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		s.Say(format, args...)
	}
}

// Begin begins a phase. A negative total is one that nobody knows.
func (s *Screen) Begin(phase string, total int64, unit Unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish()
	now := time.Now()
	s.phase, s.unit, s.total, s.done, s.documents, s.start, s.last = phase, unit, total, 0, 0, now, now
	if !s.terminal || s.silent || total == 0 {
		return
	}
	wide := s.width() >= roomy
	options := []progressbar.Option{
		progressbar.OptionSetWriter(s.out),
		progressbar.OptionSetDescription(phase),
		progressbar.OptionFullWidth(),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetRenderBlankState(true), // it also starts the clock
		progressbar.OptionThrottle(50 * time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine
		progressbar.OptionSetElapsedTime(wide && total < 0),
		progressbar.OptionSetPredictTime(wide && total > 0),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "[", BarEnd: "]"}),
	}
	if wide {
		options = append(options, progressbar.OptionShowCount())
		switch unit {
		case Bytes:
			options = append(options, progressbar.OptionShowBytes(true))
		case Documents:
			options = append(options, progressbar.OptionShowIts(), progressbar.OptionSetItsString("docs"))
		}
	}
	s.bar = progressbar.NewOptions64(total, options...)
}

// Add goes on by n, with so many documents so far.
func (s *Screen) Add(n, documents int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += int64(n)
	s.documents = documents
	now := time.Now()
	switch {
	case s.bar != nil:
		// It would call itself finished at the end, and show nothing of what follows it.
		if s.total < 0 || s.done < s.total {
			_ = s.bar.Add(n) // a screen that cannot be written is no reason to stop
		}
	case !s.silent && !s.terminal && now.Sub(s.last) >= plainEvery:
		s.last = now
		s.Numbers.Fprintf(s.out, "%s\n", s.line())
	}
}

// line says where a phase is.
func (s *Screen) line() string {
	text := s.phase + ": "
	if s.total > 0 {
		text += s.Numbers.Sprintf("%d %%, ", 100*s.done/s.total)
	}
	if s.unit == Bytes {
		text += humanBytes(s.done) + ", "
	}
	return text + s.Numbers.Sprintf("%d documents", s.documents)
}

// End ends a phase and leaves no trace of it.
func (s *Screen) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish()
}

func (s *Screen) finish() {
	if s.bar == nil {
		return
	}
	_ = s.bar.Exit()
	s.bar = nil
	fmt.Fprint(s.out, clearLine)
}

// wipe empties the line on which the bar is; it is drawn again with the next step.
func (s *Screen) wipe() {
	if s.bar != nil {
		fmt.Fprint(s.out, clearLine)
	}
}

func humanBytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d bytes", n)
}
