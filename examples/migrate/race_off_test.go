//go:build !race

package main

// raceDetector tells whether the test was built with it.
const raceDetector = false
