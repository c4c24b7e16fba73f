// Command report measures what the library costs beside the plain driver, all in one run on one machine, and prints it as a
// table of ratios.
//
//	go run ./internal/report           print the table
//	go run ./internal/report -write    and put it into README.md, docs/measured.md and docs/throughput.svg
//
// What is compared takes turns, round by round, so that the machine's moods meet both alike; of the rounds' ratios the
// median counts. The embedded server and, in this process, the simulator are measured; both share the machine with their
// client. Absolute times mean nothing elsewhere.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

// settings are what the flags say.
type settings struct {
	documents int
	rounds    int
	stream    int // documents of the long stream
	root      string
}

func main() {
	var s settings
	var write bool
	flag.IntVar(&s.documents, "documents", 100_000, "documents of a batch")
	flag.IntVar(&s.rounds, "rounds", 5, "how often each comparison is made")
	flag.IntVar(&s.stream, "stream", 5_000_000, "documents of the long stream")
	flag.StringVar(&s.root, "root", ".", "the repository's directory")
	flag.BoolVar(&write, "write", false, "write README.md, docs/measured.md and docs/throughput.svg")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s, write); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings, write bool) error {
	servers, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer servers.close()
	costs, err := measureCosts(ctx, s, servers)
	if err != nil {
		return err
	}
	curves, err := measureThroughput(ctx, servers.embedded)
	if err != nil {
		return err
	}
	counters, err := measureCounters(ctx)
	if err != nil {
		return err
	}
	if !write {
		return nil
	}
	if err := replace(filepath.Join(s.root, "README.md"), costTable(costs, true)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.root, "docs", "measured.md"), []byte(document(s, costs, curves, counters)), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.root, "docs", "throughput.svg"), []byte(picture(curves)), 0o644)
}
