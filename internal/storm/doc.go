// Package storm searches for a schedule of faults that breaks a promise of the library. It has no code but tests.
//
// A seed stands for a plan: a world (a simulated server, collections, indexes, documents of others, batches of several
// inserters, recoveries) and a schedule of what goes wrong on the wire and in the server. A run carries a plan out, waits
// until everything has come to rest, and compares what is stored with what the library said.
//
// A run has a clock of its own (testing/synctest), which goes on when nothing else does, and a network whose delays the
// seed draws. So a run waits for nothing, a slow machine breaks no promise, and the seed decides nearly everything: what
// is left to chance is the order of what happens at the same instant, and the library's random delays. A seed that breaks
// a promise may do so only most of the time, and is tried several times.
//
//	go test ./internal/storm -run Search -storm.for 10m -timeout 0 -v    search for ten minutes
//	go test ./internal/storm -run Search -storm.seed 4711 -v             run one seed, and tell its story
//
// A run of the tests carries out 20,000 plans, or 2,000 with the race detector.
//
// A plan that breaks a promise is shrunk to one that still does and cannot be made smaller by leaving something out.
package storm
