package rollback

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/internal/retry"
)

// fenceAttempts bounds the tries of a fence: it only makes the settle time unnecessary on servers that know it.
const fenceAttempts = 5

// fence makes the server refuse what may still arrive in the sessions of Target.Fence.
func (u *undo) fence(ctx context.Context) {
	for _, target := range u.targets {
		waits := !target.Late && len(target.Ranges)+len(target.IDs) > 0 // if the fence does not last
		var group errgroup.Group
		group.SetLimit(u.policy.Concurrency)
		sessions := make(map[*mongo.Session]bool, len(target.Fence)) // a session is for one command at a time
		for _, session := range target.Fence {
			if sessions[session] {
				continue
			}
			sessions[session] = true
			group.Go(func() error {
				if lasts := u.fenceSession(ctx, target, session); !lasts && waits {
					u.unfenced.Store(true)
				}
				return nil
			})
		}
		_ = group.Wait() // a fence that fails leaves the settle time
	}
}

// fenceSession deletes one document in a session. If there was one, that goes into the session's history, and the fence
// outlives a change of primary. It need not where the settle time is waited for: then no document is looked for.
func (u *undo) fenceSession(ctx context.Context, target Target, session *mongo.Session) (lasts bool) {
	coll := target.Collection.Clone(options.Collection().SetWriteConcern(u.policy.WriteConcern))
	filter, named := bson.D{{Key: "_id", Value: bson.NewObjectID()}}, 0 // an _id that never was
	failed := func() {}
	if !target.Late {
		if c, one, putBack := u.one(target); one != nil {
			coll, filter, named, failed = c, one, 1, putBack
		}
	}
	namespace := coll.Database().Name() + "." + coll.Name()
	delays := retry.Backoff{Initial: u.policy.InitialDelay, Max: u.policy.MaxDelay}.Start()
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(mongo.NewSessionContext(ctx, session), u.policy.CommandTimeout)
		result, err := coll.DeleteOne(limited, filter)
		cancel()
		if err == nil {
			u.count(func(r *Report) { r.Fenced++ })
			u.tell(Event{Kind: Fenced, Collection: namespace})
			if result.DeletedCount > 0 {
				u.removed(namespace, result.DeletedCount, named)
			} else {
				failed()
			}
			return named == 1 && result.DeletedCount == 1
		}
		class := outcome.Command(err)
		if class.Kind == outcome.Permanent || attempt == fenceAttempts || retry.Sleep(ctx, delays.Next(class.After)) != nil {
			failed()
			u.policy.Logger.Info("rollback: no fence, relying on the settle time", "collection", namespace, "attempts", attempt, "error", describe(err))
			return class.Kind == outcome.Permanent // who may not delete is not helped by waiting
		}
	}
}

// one finds a document to delete by way of a target's client; the filter is nil if there is none. An id that alone is the
// proof is taken out of its step, so that it is not deleted a second time, when it may be somebody else's; failed puts it
// back.
func (u *undo) one(target Target) (coll *mongo.Collection, filter bson.D, failed func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.steps {
		if s.unproven || s.sharded || s.size == 0 || s.coll.Database().Client() != target.Collection.Database().Client() {
			continue
		}
		if !s.bare {
			return s.coll, s.filter, func() {}
		}
		set := func(ids []bson.RawValue) {
			s.ids, s.size, s.filter = ids, len(ids), byIDs(ids, nil, 0, len(ids))
		}
		id := s.ids[:1]
		set(s.ids[1:])
		return s.coll, byIDs(id, nil, 0, 1), func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			set(slices.Concat(id, s.ids))
		}
	}
	return nil, nil, nil
}
