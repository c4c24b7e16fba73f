// Package storm searches for a schedule of faults that breaks a promise of the library. It has no code but tests.
//
// A seed stands for a plan: a world (a simulated server, collections, indexes, documents of others, batches of several
// inserters, recoveries) and a schedule of what goes wrong on the wire and in the server. A run carries a plan out, waits
// until everything has come to rest, and compares what is stored with what the library said. What goroutines do at the
// same time is not part of a plan, so that a seed that breaks a promise may do so only sometimes.
//
//	go test ./internal/storm -run Search -storm.for 10m -timeout 0 -v    search for ten minutes
//	go test ./internal/storm -run Search -storm.seed 4711 -v             run one seed, and tell its story
//
// A run of the tests carries out 20,000 plans, or 2,000 with the race detector.
//
// A plan that breaks a promise is shrunk to one that still does and cannot be made smaller by leaving something out.
package storm
