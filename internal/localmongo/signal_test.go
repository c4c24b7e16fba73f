//go:build unix

package localmongo

import (
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestSignals: a Ctrl-C reaches the server too, and is none of its business: the program that started it may want to
// roll back first. SIGTERM stops it properly.
func TestSignals(t *testing.T) {
	t.Setenv(EnvURI, "")
	s, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	u, err := url.Parse(s.URI())
	if err != nil {
		t.Fatal(err)
	}
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if err := s.command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.exited:
			t.Fatalf("%v stops the server", signal)
		case <-time.After(200 * time.Millisecond): // it takes a few to stop
		}
		c, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatalf("after %v: %v", signal, err)
		}
		c.Close()
	}
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.exited:
	case <-time.After(time.Minute):
		t.Fatal("SIGTERM does not stop the server")
	}
	if err := s.Close(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestKilled: a server that was killed is an error of Close, which removes the directory that the server could not
// remove.
func TestKilled(t *testing.T) {
	t.Setenv(EnvURI, "")
	s, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.temporary); err != nil {
		t.Error(err)
	}
	s.command.Process.Kill()
	<-s.exited
	for range 2 {
		if err := s.Close(); err == nil {
			t.Error("no error")
		}
	}
	if _, err := os.Stat(s.temporary); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}
