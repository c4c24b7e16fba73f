package batch

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/internal/retry"
	"github.com/intact-go/intact/rollback"
)

// complete reports whether every document is acknowledged. No insert is running.
func (r *run) complete() bool {
	for _, p := range r.parts {
		if p.track.verdicts[outcome.Applied] != p.size() || p.stream != nil && !p.ended {
			return false
		}
	}
	return true
}

// size is the number of documents, of a stream those that were read.
func (p *part) size() int {
	if p.stream != nil {
		return p.read
	}
	return len(p.documents)
}

// rollBack deletes what was stored and makes the batch's *Error. No insert is running.
func (r *run) rollBack(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	defer r.sessions.end(ctx)
	failed := &Error{BatchID: r.id, Total: r.total, Cause: r.failure, Documents: r.refusal, Sent: r.sent}
	slices.SortFunc(failed.Documents, func(a, b DocumentError) int {
		if a.Part != b.Part {
			return a.Part - b.Part
		}
		return a.Index - b.Index
	})
	failed.JournalID = r.journalID()
	if failed.Unresolved() {
		return failed
	}
	r.abortJournal(ctx)
	targets, maybe := r.undoTargets()
	if len(targets) == 0 {
		r.closeJournal(ctx, false, nil)
		return failed
	}
	r.tell(Event{Kind: RollbackStarted, Documents: maybe})
	r.progress(RollingBack, 0)
	policy := r.config.Rollback
	if r.ledger != nil && policy.Budget == 0 {
		policy.Budget = defaultJournaledBudget
	}
	policy.Observe = r.rollbackEvent
	failed.Rollback, failed.Incomplete = rollback.Undo(ctx, policy, targets...)
	r.closeJournal(ctx, slices.ContainsFunc(targets, func(t rollback.Target) bool { return t.Late }), failed.Incomplete)
	if failed.Incomplete != nil {
		r.tell(Event{Kind: Incomplete, Documents: len(failed.Leftovers()), Err: failed.Incomplete})
	} else {
		r.tell(Event{Kind: RolledBack, Documents: int(failed.Rollback.Deleted)})
	}
	return failed
}

func (r *run) rollbackEvent(event rollback.Event) {
	if event.Kind == rollback.Deleted {
		r.progress(RollingBack, int(event.Documents))
	}
	r.tell(Event{Kind: RollbackStep, Collection: event.Collection, Documents: int(event.Documents), Delay: event.Delay, Err: event.Err})
	if observe := r.config.Rollback.Observe; observe != nil {
		observe(event)
	}
}

// undoTargets says what has to be deleted, and how many documents may be stored.
//
// Of a part of which the server stored nothing for certain, nothing is deleted. Its sessions are fenced, because a late copy
// of an insert that the driver has repeated would find what stood in its way gone; on a sharded cluster, where a fence may
// not reach every shard, it counts as late. Of any other part, everything that was sent is deleted, also what the server
// refused, because the proof makes that harmless. The exception are claimed ids that turned out to be somebody else's: when
// a rollback has to give up, it must not name them as left. Where an _id alone is the proof, the verdict on the single
// document decides.
func (r *run) undoTargets() (targets []rollback.Target, maybe int) {
	single := r.total == 1 && r.ledger == nil // one command, atomic by itself and no safer than InsertOne
	for _, p := range r.parts {
		t := &p.track
		stored := t.verdicts[outcome.Applied] + t.verdicts[outcome.Unknown]
		fence := r.sessions.toFence(p.coll.Database().Client())
		if stored == 0 && !t.late && (single || len(fence) == 0) {
			continue
		}
		late := t.late || p.server.sharded && len(fence) > 0
		if stored == 0 && !late {
			targets = append(targets, rollback.Target{Collection: p.coll, Fence: fence})
			continue
		}
		maybe += stored
		targets = append(targets, rollback.Target{
			Collection: p.coll,
			Ranges:     t.ranges(),
			IDs:        r.stampedIDs(p),
			Stamp:      rollback.Stamp{Field: r.config.StampField, Value: r.id},
			Late:       late,
			Fence:      fence,
		})
		if t.acknowledged.count+t.unproven.count > 0 {
			targets = append(targets, rollback.Target{
				Collection: p.coll, IDs: t.acknowledged.ids(nil), Acknowledged: true, Unproven: t.unproven.ids(nil),
				ShardKeys: slices.Concat(t.acknowledged.shardKeys, t.unproven.shardKeys),
			})
		}
	}
	return targets, maybe
}

// stampedIDs returns the claimed ids of a part's stamped documents: of a stream all that were read.
func (r *run) stampedIDs(p *part) []any {
	if p.stream != nil && r.config.Stamp != StampNone {
		return p.claimed.ids(r.leaveOut(p))
	}
	return p.track.stamped.ids(r.leaveOut(p))
}

// leaveOut returns the claimed ids that somebody else has, unless another document of the batch has the same.
func (r *run) leaveOut(p *part) map[string]bool {
	if len(p.track.taken) == 0 {
		return nil
	}
	twins := r.twins(p, slices.Collect(maps.Values(p.track.taken)))
	leaveOut := make(map[string]bool, len(p.track.taken))
	for id := range p.track.taken {
		leaveOut[id] = !twins[id]
	}
	return leaveOut
}

// shardKeyOf takes the shard key's values out of a document. A missing field counts as null, as for the server.
func (p *part) shardKeyOf(d *document) bson.D {
	key := make(bson.D, len(p.shardKey))
	for i, field := range p.shardKey {
		key[i] = bson.E{Key: field}
		if value, ok := lookup(d.raw, strings.Split(field, ".")); ok {
			key[i].Value = bson.RawValue{Type: value.kind, Value: d.raw[value.value:value.end]}
		}
	}
	return key
}

// commit ends a batch that is stored: it removes the stamps if so configured. That they could not be removed is a
// warning, not an error: the batch is stored, and an error would have the caller store it again.
func (r *run) commit(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	defer r.sessions.end(ctx)
	if r.config.RemoveStamp {
		for _, p := range r.parts {
			if err := r.removeStamps(ctx, p); err != nil {
				r.warnings = append(r.warnings, err)
				r.config.Logger.Warn("batch: stamps could not be removed", "batch", r.id.Hex(), "collection", p.namespace, "error", describe(err))
			}
		}
	}
	r.tell(Event{Kind: Committed, Documents: r.total})
}

// removeStamps sends one update per chunk.
func (r *run) removeStamps(ctx context.Context, p *part) error {
	var stamped []*document
	for i := range p.documents {
		if p.documents[i].stamped {
			stamped = append(stamped, &p.documents[i])
		}
	}
	for _, c := range r.cut(p, stamped) {
		ids := make([]bson.RawValue, len(c.documents))
		for i, d := range c.documents {
			ids[i] = d.id()
		}
		filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}, {Key: r.config.StampField, Value: r.id}}
		if err := r.removeStamp(ctx, p.inserts, filter); err != nil {
			return err
		}
		r.progress(Committing, len(c.documents))
	}
	return nil
}

func (r *run) removeStamp(ctx context.Context, coll *mongo.Collection, filter bson.D) error {
	ctx, cancel := context.WithTimeout(ctx, max(r.config.RetryTime, r.config.CommandTimeout))
	defer cancel()
	delays := retry.Backoff{Initial: r.config.InitialDelay, Max: r.config.MaxDelay}.Start()
	for {
		_, err := coll.UpdateMany(ctx, filter, bson.D{{Key: "$unset", Value: bson.D{{Key: r.config.StampField, Value: ""}}}})
		class := outcome.Command(err)
		if err == nil || class.Kind != outcome.Transient || retry.Sleep(ctx, delays.Next(class.After)) != nil {
			return err
		}
	}
}
