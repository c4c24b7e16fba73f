//go:build race

package storm

// ownRuns is how many plans a run of the tests carries out: the race detector makes each several times as long.
const ownRuns = 2_000
