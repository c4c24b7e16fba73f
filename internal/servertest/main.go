package servertest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main is what a TestMain calls: it runs the tests, stops the shared server, checks that no goroutine is left, and exits.
func Main(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a test that failed half-way leaves goroutines, which would only hide the reason
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
