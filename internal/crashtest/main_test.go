// Package crashtest tests what a journal promises: processes that are killed or stopped at every point of a batch and of
// a recovery, and random histories of owners and recoveries that run on a simulated server.
package crashtest_test

import (
	"testing"

	"github.com/intact-go/intact/internal/servertest"
)

func TestMain(m *testing.M) {
	servertest.Main(m)
}
