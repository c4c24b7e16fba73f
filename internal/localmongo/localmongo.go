// Package localmongo runs a real MongoDB-compatible server for tests and examples: FerretDB on SQLite, in a process
// of its own. It needs the go command, a checkout of this repository and, for the first build, a way to
// download Go modules; no container, no database installation.
//
// The server is a nested module (directory server), so that the library's go.sum never hears of it. The first
// start on a machine compiles it, which takes minutes; the binary is kept in the user's cache directory.
//
// The server ends when [Server.Close] is called, and also when this process ends in any other way.
//
// What the server does otherwise than MongoDB, as far as it concerns this library, stands in the table of
// differences_test.go, which measures it.
package localmongo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// EnvURI is the environment variable that names a server to use instead of an embedded one.
const EnvURI = "MONGODB_URI"

// stopTime is how long the server may take to stop before it is killed. It gives itself 20 s for what is running.
const stopTime = 25 * time.Second

// Options are the settings of one server. The zero value is an empty server on a free port of the loopback
// interface, whose data is removed at the end.
type Options struct {
	// Dir is the directory that keeps the data over a restart; it is made if missing. Only one server at a time can use
	// it. Defaults to a temporary directory that is removed at the end.
	Dir string

	// Listen is the TCP address to listen on. Defaults to "127.0.0.1:0", any free port.
	Listen string

	// Log receives the progress of a long build, and what the server complains about. Writes to it do not overlap.
	// Defaults to os.Stderr.
	Log io.Writer
}

// Server is a running server, or the one that MONGODB_URI names. Its methods may be called from several goroutines.
type Server struct {
	uri string

	// The rest is unset for a server that is not ours.
	command  *exec.Cmd
	lifeline io.Closer     // the server stops when this end of its standard input is closed
	exited   chan struct{} // closed after err is set
	err      error         // how the server ended

	complaints *tail // its standard error

	// temporary is the data directory to remove if the server could not do it itself, or "".
	temporary string

	closeOnce sync.Once
	closeErr  error
}

// Start starts a server and waits until clients can connect. If MONGODB_URI is set, it starts nothing and returns that
// server, whatever the options say.
//
// Ending ctx gives up building and starting; it does not touch a server that Start has returned. After an
// error nothing is left running.
func Start(ctx context.Context, o Options) (*Server, error) {
	if uri := os.Getenv(EnvURI); uri != "" {
		return &Server{uri: uri}, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("localmongo: %w", err)
	}
	if o.Log == nil {
		o.Log = os.Stderr
	}
	log := &writer{w: o.Log}
	binary, err := build(ctx, log)
	if err != nil {
		return nil, fmt.Errorf("localmongo: %w", err)
	}
	s, err := start(ctx, binary, o, log)
	if err != nil {
		return nil, fmt.Errorf("localmongo: %w", err)
	}
	return s, nil
}

// start runs the built server and waits for the line by which it says that it is ready.
func start(ctx context.Context, binary string, o Options, log io.Writer) (*Server, error) {
	args := []string{"-parent"}
	if o.Dir != "" {
		args = append(args, "-dir", o.Dir)
	}
	if o.Listen != "" {
		args = append(args, "-listen", o.Listen)
	}
	complaints := &tail{}
	// Not CommandContext: ctx bounds the start, not the life of the server.
	command := exec.Command(binary, args...)
	command.Stderr = io.MultiWriter(complaints, log)
	lifeline, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("cannot run the server: %w", err)
	}

	s := &Server{command: command, lifeline: lifeline, exited: make(chan struct{}), complaints: complaints}
	type ready struct {
		URI       string `json:"uri"`
		Dir       string `json:"dir"`
		Temporary bool   `json:"temporary"`
	}
	lines := make(chan ready, 1)
	go func() {
		var r ready
		reader := bufio.NewReader(stdout)
		if json.NewDecoder(reader).Decode(&r) == nil && r.URI != "" {
			lines <- r
		}
		io.Copy(io.Discard, reader)
		s.err = command.Wait() // only after the last read from stdout
		close(s.exited)
	}()

	select {
	case r := <-lines:
		s.uri = r.URI
		if r.Temporary {
			s.temporary = r.Dir
		}
		return s, nil
	case <-s.exited:
		lifeline.Close()
		return nil, fmt.Errorf("the server ended before it was ready (%w)%s", ended(s.err), complaints.quote())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("the server was not ready in time: %w%s", ctx.Err(), complaints.quote()), s.Close())
	}
}

// URI returns the connection string.
func (s *Server) URI() string { return s.uri }

// Close stops the server, waits until it is gone, and removes its temporary directory. Commands in flight are
// finished first. It does nothing to a server that MONGODB_URI names. An error says that the server did not stop
// properly; it is gone nevertheless. Calling Close again returns the same error.
func (s *Server) Close() error {
	if s.command == nil {
		return nil
	}
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	s.lifeline.Close()
	timeout := time.NewTimer(stopTime)
	defer timeout.Stop()
	select {
	case <-s.exited:
	case <-timeout.C:
		s.command.Process.Kill()
		<-s.exited
	}
	err := s.err
	if err != nil {
		err = fmt.Errorf("localmongo: the server did not stop properly: %w%s", err, s.complaints.quote())
	}
	if s.temporary != "" {
		err = errors.Join(err, os.RemoveAll(s.temporary))
	}
	return err
}

// ended names the end of a process that should not have ended, even if it claims success.
func ended(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}
