package journal

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// MaxLease is the longest lease. A pass of a recovery may have to wait for it.
const MaxLease = 24 * time.Hour

// Format is the version of the records that this package writes. Records of a newer format are left alone.
const Format = 1

// State is where a batch is in its life. The strings are stored; they never change their meaning.
//
//	open ── committed
//	  └──── aborting ── watching ── aborted
//
// Every arrow is one compare-and-set on the state and the version. watching is skipped when no insert of the batch can
// still be on its way. Each state but the final ones can also become forgotten.
type State string

const (
	// Open: the owner may be inserting. After a crash everything of the batch is deleted.
	Open State = "open"
	// Committed: every document is stored and stays. Final.
	Committed State = "committed"
	// Aborting: the documents are being deleted, by the owner or by a recovery.
	Aborting State = "aborting"
	// Watching: the documents are deleted, but an insert whose answer nobody saw may still arrive; they are deleted
	// once more before the record is closed.
	Watching State = "watching"
	// Aborted: nothing is left. Final.
	Aborted State = "aborted"
	// Forgotten: a person has taken the record out of recovery's hands; documents may be left. Final.
	Forgotten State = "forgotten"
)

// final lists the states that end a record's life. Recovery selects what is not in it, so that a state nobody knows is
// looked at rather than passed over.
var final = [...]State{Committed, Aborted, Forgotten}

// Final reports whether the state ends a record's life.
func (s State) Final() bool {
	for _, f := range final {
		if s == f {
			return true
		}
	}
	return false
}

// Known reports whether the state is one of this package's.
func (s State) Known() bool {
	switch s {
	case Open, Committed, Aborting, Watching, Aborted, Forgotten:
		return true
	}
	return false
}

// Record is the head record of one batch. Its size does not depend on the number of documents.
type Record struct {
	// ID is the caller's batch id, or the attempt's hex form if the caller gave none.
	ID     string `bson:"_id"`
	Format int32  `bson:"format"`
	State  State  `bson:"state"`
	// Version counts the record's state changes. Whoever changes the state or takes over raises it, so that everybody
	// else's next write finds nothing to change.
	Version int64 `bson:"version"`
	// Beat counts up while somebody works on the batch. It is compared with itself only.
	Beat int64 `bson:"beat"`
	// LeaseMS is how long, in milliseconds, the beat has to stand still before the owner counts as dead.
	LeaseMS int64 `bson:"leaseMS"`
	// Owner is who works on the batch; its last part is random.
	Owner string `bson:"owner"`
	// Attempt is the id of the attempt, and the value of its stamps.
	Attempt bson.ObjectID `bson:"attempt"`
	// Keyed says that ID was given by the caller.
	Keyed bool `bson:"keyed"`
	// Stamp is the field that holds Attempt in documents with claimed ids.
	Stamp string `bson:"stamp"`
	// Targets are the collections, one for each part of the call.
	Targets []Target `bson:"targets"`
	// Started and Finished are by the clocks of those who wrote them, for people to read and for the retention.
	// Unfinished records have no finished field.
	Started  time.Time  `bson:"started"`
	Finished *time.Time `bson:"finished,omitempty"`
	// Results tell what a keyed batch stored; set by the commit.
	Results []Result `bson:"results,omitempty"`
	// Attempts and Problem tell how often recovery tried and what kept it from finishing.
	Attempts int32  `bson:"attempts"`
	Problem  string `bson:"problem,omitempty"`
	// Reason is why a person had the record forgotten.
	Reason string `bson:"reason,omitempty"`
}

// Target is what a batch stores in one collection.
type Target struct {
	// Deployment is the name that the caller gave to the client; empty for the journal's own.
	Deployment string `bson:"deployment"`
	// Set is the replica set's name; empty if the server told none. It guards against the wrong client.
	Set        string `bson:"set"`
	Database   string `bson:"database"`
	Collection string `bson:"collection"`
	// Documents counts all of them, Claimed those whose ids are in pages.
	Documents int64 `bson:"documents"`
	Claimed   int64 `bson:"claimed"`
	// Minted are the ids that the batch made itself.
	Minted []Run `bson:"minted,omitempty"`
}

// Namespace returns database.collection.
func (t Target) Namespace() string { return t.Database + "." + t.Collection }

// Run is a run of ObjectIDs that differ in their counter only.
type Run struct {
	First bson.ObjectID `bson:"first"`
	Count int64         `bson:"count"`
}

// Lease returns how long the beat has to stand still.
func (r Record) Lease() time.Duration { return time.Duration(r.LeaseMS) * time.Millisecond }

// Check refuses records that cannot be acted on.
func (r Record) Check() error {
	switch {
	case r.Format > Format:
		return fmt.Errorf("record %q has format %d; this version knows formats up to %d, so it is left alone", r.ID, r.Format, Format)
	case r.Format < 1:
		return fmt.Errorf("record %q has no format; it is not a batch's record, or damaged", r.ID)
	case !r.State.Known():
		return fmt.Errorf("record %q is in the state %q, which this version does not know; it is left alone", r.ID, r.State)
	case r.Attempt.IsZero():
		return fmt.Errorf("record %q names no attempt; it is damaged", r.ID)
	case r.LeaseMS <= 0 || r.LeaseMS > MaxLease.Milliseconds():
		return fmt.Errorf("record %q has a lease of %d ms, which no batch has; it is damaged", r.ID, r.LeaseMS)
	}
	for _, target := range r.Targets {
		if target.Claimed > 0 && r.Stamp == "" {
			return fmt.Errorf("record %q has claimed ids but no stamp, so that nothing proves whose documents they are; it is damaged", r.ID)
		}
	}
	return nil
}
