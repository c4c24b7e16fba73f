package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// lifetime returns a context that ends when the server has to stop.
//
// By hand that is a signal: Ctrl-C, SIGTERM, or the terminal going away.
//
// Under a launcher it is the end of standard input, a pipe whose other end only the launcher holds: the kernel closes
// it however the launcher dies, also by SIGKILL, on every operating system. (Linux's parent-death signal was
// rejected: it fires when the *thread* that started the process ends, which in a Go program happens at any time.)
// Ctrl-C is ignored then: the terminal sends it to the launcher too, which may want to undo its work first and needs
// the server for that.
func lifetime(parent bool, stdin io.Reader) (context.Context, context.CancelFunc) {
	if !parent {
		return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	}
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		io.Copy(io.Discard, stdin)
		stop()
	}()
	return ctx, stop
}

// address is what a launcher learns when the server is ready.
type address struct {
	URI string `json:"uri"`
	Dir string `json:"dir"`

	// Temporary: the server removes Dir at its end.
	Temporary bool `json:"temporary"`
}

// announce tells a launcher that the server is ready: one line.
func announce(w io.Writer, a address) error {
	return json.NewEncoder(w).Encode(a)
}

// explain tells a human that the server is ready.
func explain(w io.Writer, a address) error {
	data := a.Dir
	if a.Temporary {
		data += " (removed at the end; use -dir to keep it)"
	}
	_, err := fmt.Fprintf(w, `FerretDB on SQLite is ready.

  connection string  %[1]s
  shell              mongosh "%[1]s"
  tests              MONGODB_URI="%[1]s" go test ./...
  data               %[2]s

Press Ctrl-C to stop.
`, a.URI, data)
	return err
}
