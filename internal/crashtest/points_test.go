//go:build unix

package crashtest_test

import (
	"fmt"
	"strings"

	"github.com/intact-go/intact/internal/faultwire"
)

// job is what a child does until it is killed. Some begin where another child has left off.
type job string

const (
	storing   job = "storing"   // a batch that nothing is wrong with
	failing   job = "failing"   // a batch whose last chunk clashes with somebody else's document
	late      job = "late"      // a batch that loses the answer to its last chunk
	streaming job = "streaming" // a batch whose documents are not in memory, so that its ids are journaled as they come
	slow      job = "slow"      // a batch with a slow chunk, so that its owner beats
	undoing   job = "undoing"   // recovering a batch whose owner died before the commit
	tidying   job = "tidying"   // recovering, when the record of a stored batch is to be removed
	replaying job = "replaying" // storing a batch again under the key of one whose rollback waits for a last look
)

// before returns the job that a child has to have done before this one, and where that child is killed; "" if nowhere.
func (j job) before() (first job, at string) {
	switch j {
	case undoing:
		return storing, "commit/before"
	case tidying:
		return storing, ""
	case replaying:
		return late, ""
	}
	return "", ""
}

// The shape of the batches. Every part has several chunks, and every rollback several deletes.
const (
	mintedDocuments   = 12
	numberedDocuments = 8
	claimedDocuments  = 10
	allDocuments      = mintedDocuments + numberedDocuments + claimedDocuments
	chunkSize         = 4 // 3 chunks, 2 chunks, 3 chunks
	chunks            = 8
	pages             = 5 // of the claimed and the numbered ids
	deletes           = 8 // 3 ranges of 5, 2 and 3 lists of 4
	lateDeletes       = 3 // of the part whose answer was lost
)

// result is what has to be true of the batch in the end.
type result string

const (
	nothing result = "nothing"
	whole   result = "whole"
	either  result = "nothing or whole" // the command was on its way
)

// point is one place where a child is killed: a command on the wire, and one of the moments of its way.
type point struct {
	job    job
	name   string
	match  faultwire.Match
	nth    int
	moment string
	result result
}

func (p point) String() string { return fmt.Sprintf("%s: %s/%s", p.job, p.name, p.moment) }

// The moments of a command's way.
const (
	before = "before" // the process has sent it, and the network has not passed it on
	during = "during" // the server has got it, and the process waits for the answer
	after  = "after"  // the server has answered, and the process does not know yet
)

var moments = []string{before, during, after}

// points lists every point at which a process is killed. This is the list: a point that is not reached fails the test.
func points() []point {
	var all []point
	add := func(j job, then result, name string, match faultwire.Match, times int) {
		for nth := range times {
			numbered := name
			if times > 1 {
				numbered = fmt.Sprintf("%s %d", name, nth+1)
			}
			for _, moment := range moments {
				all = append(all, point{j, numbered, match, nth + 1, moment, then})
			}
		}
	}
	commits := func(j job) {
		for _, moment := range moments {
			then := map[string]result{before: nothing, during: either, after: whole}[moment]
			all = append(all, point{j, "commit", changeTo("committed"), 1, moment, then})
		}
	}
	add(storing, nothing, "number", countingUp, 2)
	add(storing, nothing, "record", recordWrite, 1)
	add(storing, nothing, "page", pageWrite, pages)
	add(storing, nothing, "chunk", chunkInsert, chunks)
	add(storing, nothing, "result", resultWrite, 2)
	commits(storing)
	add(streaming, nothing, "window", windowWrite, 1)
	add(streaming, nothing, "page", pageWrite, pages)
	add(streaming, nothing, "chunk", chunkInsert, chunks)
	commits(streaming)
	add(slow, nothing, "beat", beat, 2)

	add(failing, nothing, "abort", changeTo("aborting"), 1)
	add(failing, nothing, "delete", documentDelete, deletes)
	add(failing, nothing, "close", changeTo("aborted"), 1)

	add(late, nothing, "abort", changeTo("aborting"), 1)
	add(late, nothing, "delete", documentDelete, deletes+lateDeletes)
	add(late, nothing, "watch", changeTo("watching"), 1)

	add(undoing, nothing, "takeover", takeOver("aborting"), 1)
	add(undoing, nothing, "delete", documentDelete, 3*deletes) // then once more after the settle time, then by a later pass
	add(undoing, nothing, "watch", release("watching"), 1)
	add(undoing, nothing, "takeover to look once more", takeOver("watching"), 1)
	add(undoing, nothing, "close", release("aborted"), 1)
	add(undoing, nothing, "pages' removal", pagesDelete, 1)
	add(undoing, nothing, "record's removal", recordDelete, 1)

	add(tidying, whole, "pages' removal", pagesDelete, 1)
	add(tidying, whole, "record's removal", recordDelete, 1)

	add(replaying, nothing, "takeover", takeOver("watching"), 1)
	add(replaying, nothing, "delete", documentDelete, deletes)
	add(replaying, nothing, "close", release("aborted"), 1)
	add(replaying, nothing, "pages' removal", pagesDelete, 1)
	add(replaying, nothing, "record's removal", recordDelete, 1)
	add(replaying, nothing, "record", recordWrite, 1)
	add(replaying, nothing, "chunk", chunkInsert, chunks)
	commits(replaying)
	return all
}

// The commands of the points.
var (
	countingUp     = faultwire.FindAndModify.Where(inColl("counters"))
	recordWrite    = faultwire.Insert.Where(inColl(journalName))
	pageWrite      = faultwire.Insert.Where(inColl(pagesName)).Where(idContains("/ids/"))
	resultWrite    = faultwire.Insert.Where(inColl(pagesName)).Where(idContains("/result/"))
	chunkInsert    = faultwire.Insert.Where(inColl("minted", "numbered", "claimed"))
	documentDelete = faultwire.Delete.Where(inColl("minted", "numbered", "claimed")).Where(many)
	pagesDelete    = faultwire.Delete.Where(inColl(pagesName))
	recordDelete   = faultwire.Delete.Where(inColl(journalName))
	windowWrite    = faultwire.Update.Where(inColl(journalName)).Where(func(r *faultwire.Request) bool {
		return has(r, "u", "$set", "targets") && !has(r, "u", "$set", "state")
	})
	beat = faultwire.Update.Where(inColl(journalName)).Where(func(r *faultwire.Request) bool {
		return has(r, "u", "$inc", "beat")
	})
)

// changeTo is a change of state, whoever makes it.
func changeTo(state string) faultwire.Match {
	return faultwire.Update.Where(inColl(journalName)).Where(func(r *faultwire.Request) bool {
		to, _ := r.Statements()[0].Lookup("u", "$set", "state").StringValueOK()
		return to == state
	})
}

// takeOver is a change of state by a recovery that takes the record over, release one by a recovery that has it.
func takeOver(state string) faultwire.Match {
	return changeTo(state).Where(func(r *faultwire.Request) bool { return has(r, "u", "$set", "attempts") })
}

func release(state string) faultwire.Match {
	return changeTo(state).Where(func(r *faultwire.Request) bool { return !has(r, "u", "$set", "attempts") })
}

func has(r *faultwire.Request, path ...string) bool {
	_, err := r.Statements()[0].LookupErr(path...)
	return err == nil
}

func inColl(names ...string) func(*faultwire.Request) bool {
	return func(r *faultwire.Request) bool {
		for _, name := range names {
			if r.Collection == name {
				return true
			}
		}
		return false
	}
}

func idContains(part string) func(*faultwire.Request) bool {
	return func(r *faultwire.Request) bool {
		id, _ := r.IDs()[0].StringValueOK()
		return strings.Contains(id, part)
	}
}

// many tells a deleteMany from a fence, which is a deleteOne.
func many(r *faultwire.Request) bool {
	limit, _ := r.Statements()[0].Lookup("limit").AsInt64OK()
	return limit == 0
}
