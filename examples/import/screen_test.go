package main

import (
	"strings"
	"testing"
	"time"
)

// Without a terminal, a phase that takes long writes a line now and then, without control characters.
func TestPlainScreen(t *testing.T) {
	var out strings.Builder
	s := newScreen(&out, false)
	s.begin("reading", 2_000_000, bytesUnit)
	s.add(500_000, 1234)
	if out.Len() != 0 {
		t.Errorf("too early: %q", out.String())
	}
	s.last = time.Now().Add(-plainEvery)
	s.add(500_000, 2345)
	s.end()
	s.begin("reading", -1, bytesUnit)
	s.last = time.Now().Add(-plainEvery)
	s.add(700, 5)
	s.begin("storing", 4000, documentsUnit)
	s.last = time.Now().Add(-plainEvery)
	s.add(1000, 1000)
	s.say("done with %d", 1000000)
	s.note("a note")
	const want = "reading: 50 %, 1.0 MB, 2,345 documents\nreading: 700 bytes, 5 documents\nstoring: 25 %, 1,000 documents\ndone with 1,000,000\na note\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

// When nobody wants to see progress, only what is said is written.
func TestSilentScreen(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out strings.Builder
		s := newScreen(&out, true)
		s.terminal = terminal
		s.begin("reading", 100, bytesUnit)
		s.last = time.Now().Add(-plainEvery)
		s.add(50, 1)
		s.note("a note")
		s.say("trouble")
		s.end()
		if out.String() != "trouble\n" {
			t.Errorf("%q", out.String())
		}
	}
}

// On a terminal a bar is drawn over itself and gone at the end; what is said stands on a line of its own.
func TestBar(t *testing.T) {
	for _, width := range []int{20, 40, 80, 200} {
		var out strings.Builder
		s := newScreen(&out, false)
		s.terminal, s.width = true, func() int { return width }
		s.begin("storing", 100, documentsUnit)
		s.add(50, 50)
		s.say("a line")
		s.begin("storing more", -1, documentsUnit)
		s.add(50, 50)
		s.add(50, 50)
		s.end()
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
