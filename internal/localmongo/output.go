package localmongo

import (
	"io"
	"strings"
	"sync"
)

// writer lets one write through at a time.
type writer struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}

// tailSize is how much of another program's output an error quotes.
const tailSize = 2000

// tail keeps the end of what is written to it. The zero value is ready.
type tail struct {
	mu  sync.Mutex
	end []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	if over := len(t.end) - tailSize; over > 0 {
		t.end = append(t.end[:0], t.end[over:]...)
		t.cut = true
	}
	return len(p), nil
}

// quote returns the output for the end of an error's text, or "" if there is none.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.TrimSpace(string(t.end))
	if s == "" {
		return ""
	}
	if t.cut {
		s = "… " + s
	}
	return ":\n" + s
}
