// Package intact is the front page of a library that stores a group of MongoDB documents all or not at all, on any
// server that speaks MongoDB's wire protocol, with or without server transactions. It has no code; the packages are:
//
//   - [github.com/intact-go/intact/batch]: Inserter.Insert stores the documents of one call, in one collection or
//     several, or deletes what it stored. With a journal, also after a crash.
//   - [github.com/intact-go/intact/rollback]: Undo deletes documents, with a proof of whose they are, until nothing is
//     left; Recover finishes the batches of processes that died.
//   - [github.com/intact-go/intact/idgen]: sequences that give out every number once.
//
// # The promise
//
//   - All: a batch counts as stored only when the server acknowledged every document at the write concern, which is
//     majority and journaled by default.
//   - Nothing: when an error says that the batch was rolled back, no document of it is left and none will appear later.
//     Where a late write cannot be fenced off, this holds provided that no request travels longer than the settle time.
//   - Bystanders: a document that the batch did not store is never deleted or changed.
//   - Honesty: if neither can be had, the error says that the batch is incomplete and lists what may be left.
//   - Crash: with a journal, after a crash at any instant, recovery leaves the whole batch or none of it.
//   - Numbers: a sequence never gives out the same value twice. Gaps are allowed; a rollback gives no numbers back.
//   - Cancelling the caller's context stops the inserting, never the rollback.
//
// # What it is not
//
// There is no isolation. Other clients and change streams can see documents of a batch before its verdict, and see them
// go when it fails. Where that matters, store every document with the stamp (batch.StampAll) and have readers look only at
// batches that they know to be stored; or use a server transaction, which is the better tool wherever the server has
// them, the batch is small (MongoDB limits a transaction's time and, in older versions, its size), and reads must not
// see half of it.
package intact
