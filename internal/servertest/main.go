package servertest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// leakTries is how often the check for goroutines is repeated. goleak itself waits about a second, which a busy machine
// can need for the driver's connections alone.
const leakTries = 10

// Main is what a TestMain calls: it runs the tests, stops the shared server, checks that no goroutine is left, and exits.
//
// The check has no exceptions. The driver (v2.10.0) needs none: what a client leaves behind at Disconnect ends by itself
// soon, and a client that was not disconnected is a mistake of the test.
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
	var err error
	for range leakTries {
		if err = goleak.Find(); err == nil {
			return 0
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
