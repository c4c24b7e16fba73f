package main

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

// unit is what a phase counts.
type unit int

const (
	bytesUnit unit = iota + 1
	documentsUnit
	deletionsUnit // documents in so large steps that a rate would only jump
)

// screen shows how far the program is: a bar on a terminal, a line now and then elsewhere. It may be used by several
// goroutines.
type screen struct {
	numbers *message.Printer // writes numbers with separators

	mu       sync.Mutex // protects the rest, and makes writes one at a time
	out      io.Writer
	terminal bool
	silent   bool // no progress; say still works
	width    func() int

	bar         *progressbar.ProgressBar
	phase       string
	unit        unit
	total, done int64
	documents   int
	start, last time.Time
}

func newScreen(out io.Writer, silent bool) *screen {
	s := &screen{out: out, silent: silent, numbers: message.NewPrinter(language.English), width: func() int { return 80 }}
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

// say writes a line, above the bar if there is one.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	s.numbers.Fprintf(s.out, format+"\n", args...)
}

// interrupt is say for a signal, which may have put a ^C behind the bar: the bar stays as it is.
func (s *screen) interrupt(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		fmt.Fprintln(s.out)
	}
	s.numbers.Fprintf(s.out, format+"\n", args...)
}

// note is say for what is left out when nobody wants to see progress.
func (s *screen) note(format string, args ...any) {
	if !s.silent {
		s.say(format, args...)
	}
}

// begin begins a phase. A negative total is one that nobody knows.
func (s *screen) begin(phase string, total int64, unit unit) {
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
		case bytesUnit:
			options = append(options, progressbar.OptionShowBytes(true))
		case documentsUnit:
			options = append(options, progressbar.OptionShowIts(), progressbar.OptionSetItsString("docs"))
		}
	}
	s.bar = progressbar.NewOptions64(total, options...)
}

// add goes on by n, with so many documents so far.
func (s *screen) add(n, documents int) {
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
		s.numbers.Fprintf(s.out, "%s\n", s.line())
	}
}

// line says where a phase is.
func (s *screen) line() string {
	text := s.phase + ": "
	if s.total > 0 {
		text += s.numbers.Sprintf("%d %%, ", 100*s.done/s.total)
	}
	if s.unit == bytesUnit {
		text += humanBytes(s.done) + ", "
	}
	return text + s.numbers.Sprintf("%d documents", s.documents)
}

// end ends a phase and leaves no trace of it.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish()
}

func (s *screen) finish() {
	if s.bar == nil {
		return
	}
	_ = s.bar.Exit()
	s.bar = nil
	fmt.Fprint(s.out, clearLine)
}

// wipe empties the line on which the bar is; it is drawn again with the next step.
func (s *screen) wipe() {
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
