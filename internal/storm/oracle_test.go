package storm

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/rollback"
)

// judge brings everything that recovery owns to its end, and returns what contradicts the promises.
func (w *world) judge(ctx context.Context) (problems []string) {
	leftovers := w.leftoverIDs()
	problems = append(problems, w.checkLeftovers(ctx, leftovers)...)
	if err := w.recoverAll(ctx); err != nil {
		problems = append(problems, "crash: recovery does not end: "+err.Error())
	}
	documents, byPlace, err := w.readAll(ctx)
	if err != nil {
		return append(problems, "the store cannot be read: "+err.Error())
	}
	problems = append(problems, w.bystanders.check(byPlace)...)
	for _, o := range w.outcomes {
		problems = append(problems, w.checkBatch(ctx, o, documents, leftovers[o.batch.id])...)
	}
	return append(problems, w.checkNumbers()...)
}

// document is a batch's document that is stored.
type document struct {
	collection int
	raw        bson.Raw
}

// readAll reads every collection: the batches' documents by batch and marker, and everything with a small integer as _id.
func (w *world) readAll(ctx context.Context) (map[int]map[string]document, map[place]bson.Raw, error) {
	batches, places := make(map[int]map[string]document), make(map[place]bson.Raw)
	for i := range w.plan.collections {
		cursor, err := w.collection(w.calm, i).Find(ctx, bson.D{})
		if err != nil {
			return nil, nil, err
		}
		var all []bson.Raw
		if err := cursor.All(ctx, &all); err != nil {
			return nil, nil, err
		}
		for _, raw := range all {
			if id, ok := raw.Lookup("_id").Int32OK(); ok {
				tenant, _ := raw.Lookup("tenant").Int32OK()
				places[place{i, int(id), int(tenant)}] = raw
			}
			m, err := raw.LookupErr("m")
			if err != nil {
				continue
			}
			id := int(m.Document().Lookup("b").Int32())
			if batches[id] == nil {
				batches[id] = make(map[string]document)
			}
			batches[id][m.String()] = document{i, raw}
		}
	}
	return batches, places, nil
}

// leftoverIDs lists, by batch, what incomplete rollbacks said may be left.
func (w *world) leftoverIDs() map[int]map[string]bool {
	left := make(map[int]map[string]bool)
	for _, o := range w.outcomes {
		var failed *batch.Error
		if !errors.As(o.err, &failed) {
			continue
		}
		for _, l := range failed.Leftovers() {
			if left[o.batch.id] == nil {
				left[o.batch.id] = make(map[string]bool)
			}
			left[o.batch.id][l.Collection+" "+l.ID.String()] = true
		}
	}
	return left
}

// checkLeftovers: before any recovery, what is there of an incomplete batch was reported.
func (w *world) checkLeftovers(ctx context.Context, leftovers map[int]map[string]bool) (problems []string) {
	documents, _, err := w.readAll(ctx)
	if err != nil {
		return []string{"the store cannot be read: " + err.Error()}
	}
	for _, o := range w.outcomes {
		var failed *batch.Error
		if !errors.As(o.err, &failed) || failed.RolledBack() || failed.Unresolved() || errors.Is(o.err, batch.ErrFenced) {
			continue
		}
		for m, d := range documents[o.batch.id] {
			if id := fmt.Sprintf("w.c%d %s", d.collection, d.raw.Lookup("_id")); !leftovers[o.batch.id][id] {
				problems = append(problems, fmt.Sprintf("honesty: batch %d left %s (%s) and did not say so: %v", o.batch.id, id, m, o.err))
			}
		}
	}
	return problems
}

// recoverAll runs recoveries until no record is unfinished.
func (w *world) recoverAll(ctx context.Context) error {
	var last error
	for ctx.Err() == nil {
		records, err := rollback.List(ctx, w.journal(w.calm))
		if err != nil {
			return err
		}
		unfinished := 0
		for _, record := range records {
			if record.Unfinished() {
				unfinished++
			}
		}
		if unfinished == 0 {
			return nil
		}
		_, last = rollback.Recover(ctx, w.journal(w.calm), w.recovery())
	}
	return fmt.Errorf("%w: records stay unfinished; the last pass said: %w", ctx.Err(), last)
}

// checkBatch compares a batch's verdict with what is stored of it after recovery.
func (w *world) checkBatch(ctx context.Context, o outcome, all map[int]map[string]document, leftovers map[string]bool) (problems []string) {
	stored := all[o.batch.id]
	problem := func(promise, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s: batch %d: %s (it said: %v)", promise, o.batch.id, fmt.Sprintf(format, args...), o.err))
	}
	missing := w.missing(o.batch, stored)
	var failed *batch.Error
	switch {
	case o.err == nil:
		if len(missing) > 0 {
			problem("all", "it counts as stored, but %s are missing", strings.Join(missing, ", "))
		}
		problems = append(problems, w.checkResult(o, stored)...)
	case !errors.As(o.err, &failed):
		problem("honesty", "the error is not an *Error")
	case failed.Unresolved():
		if len(stored) > 0 && len(missing) > 0 {
			problem("crash", "after recovery %d documents are there and %s are not", len(stored), strings.Join(missing, ", "))
		}
		if w.remains(o.batch) { // otherwise nothing shows whether it is stored
			w.checkResolution(ctx, o, failed, len(stored) > 0, &problems)
		}
	case !failed.RolledBack() && w.plan.kind() && !errors.Is(o.err, rollback.ErrUnproven):
		problem("cancelling", "nothing goes wrong, and still the rollback is incomplete")
	case failed.RolledBack() || o.batch.journal:
		// An incomplete one with a journal has been finished by recovery.
		if len(stored) > 0 {
			problem("nothing", "%d documents are there", len(stored))
		}
	default:
		for m, d := range stored {
			if id := fmt.Sprintf("w.c%d %s", d.collection, d.raw.Lookup("_id")); !leftovers[id] {
				problem("honesty", "%s (%s) is there and was not reported", id, m)
			}
		}
	}
	return problems
}

func (w *world) checkResolution(ctx context.Context, o outcome, failed *batch.Error, stored bool, problems *[]string) {
	in := batch.New(batch.Config{Journal: w.journal(w.calm)})
	resolution, _, err := in.Resolve(ctx, failed.JournalID)
	if want := map[bool]batch.Resolution{true: batch.Stored, false: batch.NotStored}[stored]; err != nil || resolution != want {
		*problems = append(*problems, fmt.Sprintf("crash: batch %d: Resolve says %s (%v), but stored is %v", o.batch.id, resolution, err, stored))
	}
}

// remains reports whether a batch has documents that nobody else has removed.
func (w *world) remains(b batchPlan) bool {
	for position, part := range b.parts {
		for i := range part.ids {
			if !w.bystanders.removed[markerText(b.id, position, i)] {
				return true
			}
		}
	}
	return false
}

// markerText is the marker as it is read back.
func markerText(batch, part, document int) string {
	raw, err := bson.Marshal(marker(batch, part, document))
	if err != nil {
		panic(err)
	}
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: raw}.String()
}

// missing lists the documents of a batch that are not there although nobody else removed them.
func (w *world) missing(b batchPlan, stored map[string]document) (missing []string) {
	for position, part := range b.parts {
		for i := range part.ids {
			m := markerText(b.id, position, i)
			if _, there := stored[m]; !there && !w.bystanders.removed[m] {
				missing = append(missing, m)
			}
		}
	}
	sort.Strings(missing)
	return missing
}

// checkResult: ids and numbers of the result are what is stored.
func (w *world) checkResult(o outcome, stored map[string]document) (problems []string) {
	for position, part := range o.result.Parts {
		if o.batch.stream {
			continue
		}
		for i, id := range part.IDs {
			d, there := stored[markerText(o.batch.id, position, i)]
			if !there {
				continue
			}
			var have struct {
				ID any `bson:"_id"`
			}
			if err := bson.Unmarshal(d.raw, &have); err != nil || have.ID != id {
				problems = append(problems, fmt.Sprintf("all: batch %d: the result says _id %v, stored is %v", o.batch.id, id, have.ID))
			}
			for field, numbers := range part.Numbers {
				if n, _ := d.raw.Lookup(field).Int64OK(); n != numbers[i] {
					problems = append(problems, fmt.Sprintf("numbers: batch %d: the result says %s %v, stored is %d", o.batch.id, field, numbers[i], n))
				}
			}
		}
	}
	return problems
}

// checkNumbers: no counter gave a number to two documents, stored for good or not.
func (w *world) checkNumbers() (problems []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	given := make(map[string]string)
	for _, s := range w.stored {
		key := fmt.Sprint(s.sequence, " ", s.number)
		if other, twice := given[key]; twice && other != s.marker {
			problems = append(problems, fmt.Sprintf("numbers: %s was given to %s and to %s", key, other, s.marker))
		}
		given[key] = s.marker
	}
	return problems
}
