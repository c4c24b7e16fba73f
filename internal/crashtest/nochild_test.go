//go:build !unix

package crashtest_test

// child is never called: the tests that kill and stop processes need Unix signals.
func child(string) int { return 1 }
