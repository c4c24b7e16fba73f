//go:build !race

package crashtest_test

const raceDetector = false
