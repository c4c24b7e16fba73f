package screen

import (
	"strings"
	"testing"
	"time"
)

// Without a terminal, a phase that takes long writes a line now and then, without control characters.
func TestPlainScreen(t *testing.T) {
	var out strings.Builder
	s := New("import", &out)
	s.Begin("reading", 2_000_000, Bytes)
	s.Add(500_000, 1234)
	if out.Len() != 0 {
		t.Errorf("too early: %q", out.String())
	}
	s.last = time.Now().Add(-plainEvery)
	s.Add(500_000, 2345)
	s.End()
	s.Begin("reading", -1, Bytes)
	s.last = time.Now().Add(-plainEvery)
	s.Add(700, 5)
	s.Begin("storing", 4000, Documents)
	s.last = time.Now().Add(-plainEvery)
	s.Add(1000, 1000)
	s.Say("done with %d", 1000000)
	s.Note("a note")
	const want = "reading: 50 %, 1.0 MB, 2,345 documents\nreading: 700 bytes, 5 documents\nstoring: 25 %, 1,000 documents\ndone with 1,000,000\na note\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

// When nobody wants to see progress, only what is said is written.
func TestSilentScreen(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out strings.Builder
		s := New("import", &out)
		s.Silence()
		s.terminal = terminal
		s.Begin("reading", 100, Bytes)
		s.last = time.Now().Add(-plainEvery)
		s.Add(50, 1)
		s.Note("a note")
		s.Say("trouble")
		s.End()
		if out.String() != "trouble\n" {
			t.Errorf("%q", out.String())
		}
	}
}

// On a terminal a bar is drawn over itself and gone at the end; what is said stands on a line of its own.
func TestBar(t *testing.T) {
	for _, width := range []int{20, 40, 80, 200} {
		var out strings.Builder
		s := New("import", &out)
		s.terminal, s.width = true, func() int { return width }
		s.Begin("storing", 100, Documents)
		s.Add(50, 50)
		s.Say("a line")
		s.Begin("storing more", -1, Documents)
		s.Add(50, 50)
		s.Add(50, 50)
		s.End()
		text := out.String()
		if !strings.Contains(text, clearLine+"a line\n") || !strings.Contains(text, "storing more") || !strings.HasSuffix(text, clearLine) {
			t.Errorf("%q", text)
		}
		if strings.Count(text, "\n") != 1 {
			t.Errorf("a bar has line breaks: %q", text)
		}
	}
}

func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 999: "999 bytes", 1000: "1.0 kB", 17_142_885: "17.1 MB", 2_500_000_000: "2.5 GB"} {
		if got := humanBytes(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
