// Package crashtest tests what a journal promises: processes that are killed or stopped at every point of a batch and of
// a recovery, and random histories of owners and recoveries that run on a simulated server.
package crashtest_test

import (
	"os"
	"testing"

	"github.com/intact-go/intact/internal/servertest"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(childTask); task != "" {
		os.Exit(child(task)) // this process is one that a test kills
	}
	servertest.Main(m)
}

// childTask is the environment variable that makes a test process a child.
const childTask = "INTACT_CRASHTEST_CHILD"
