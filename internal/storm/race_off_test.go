//go:build !race

package storm

// ownRuns is how many plans a run of the tests carries out.
const ownRuns = 20_000
