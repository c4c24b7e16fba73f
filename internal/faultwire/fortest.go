package faultwire

import (
	"strings"
	"testing"
)

// ForTest makes a wire that lives as long as the test. At the end it is closed, which fails the test if the wire met
// something that it does not understand; a failed test's log gets the last part of the story. Clients that were made
// afterwards and are disconnected by a Cleanup have left by then.
func ForTest(t testing.TB, options ...Option) *Wire {
	t.Helper()
	w := New(options...)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("%v", err)
		}
		if t.Failed() {
			t.Logf("what went over the wire:\n%s", w.ending(100))
		}
	})
	return w
}

// ending is the story's last lines.
func (w *Wire) ending(most int) string {
	lines := strings.SplitAfter(w.String(), "\n")
	if hidden := len(lines) - 1 - most; hidden > 0 {
		return "…\n" + strings.Join(lines[hidden:], "")
	}
	return strings.Join(lines, "")
}
