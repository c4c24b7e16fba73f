package batch

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/journal"
)

// Resolution is what became of a batch.
type Resolution uint8

const (
	_ Resolution = iota
	// Stored: every document is in the database, for good.
	Stored
	// NotStored: nothing of the batch is in the database, or only what a recovery is about to remove; it can not become
	// stored any more. If a person had its record forgotten (rollback.Forget), documents may be left.
	NotStored
	// InProgress: there is no verdict yet. If the batch's process has died, a recovery will bring it about.
	InProgress
	// NotKnown: the journal has no record of this id: it never began, or it ended longer ago than the retention.
	NotKnown
)

func (r Resolution) String() string {
	switch r {
	case Stored:
		return "stored"
	case NotStored:
		return "not stored"
	case InProgress:
		return "in progress"
	case NotKnown:
		return "not known"
	}
	return fmt.Sprintf("Resolution(%d)", uint8(r))
}

// Resolve asks the journal what became of a batch: the key given to InsertOnce, or the hex form of the BatchID of a batch
// without one. The Result is that of a stored batch with a key; else nil. Nothing is written.
func (in *Inserter) Resolve(ctx context.Context, id string) (Resolution, *Result, error) {
	if in.err != nil {
		return 0, nil, fmt.Errorf("batch.Config: %w", in.err)
	}
	if in.config.Journal == nil {
		return 0, nil, errors.New("Resolve needs Config.Journal")
	}
	j := journalOf(&in.config)
	record, found, err := j.Get(ctx, id)
	if err == nil && found {
		err = record.Check()
	}
	switch {
	case err != nil:
		return 0, nil, err
	case !found:
		return NotKnown, nil, nil
	case record.State == journal.Committed && record.Keyed:
		result, err := loadResult(ctx, j, record)
		return Stored, result, err
	case record.State == journal.Committed:
		return Stored, nil, nil
	case record.State == journal.Open:
		return InProgress, nil, nil
	}
	return NotStored, nil, nil
}

func loadResult(ctx context.Context, j *journal.Journal, record journal.Record) (*Result, error) {
	if len(record.Results) != len(record.Targets) {
		return nil, fmt.Errorf("%w: it has %d results for %d parts", journal.ErrDamaged, len(record.Results), len(record.Targets))
	}
	result := &Result{BatchID: record.Attempt, JournalID: record.ID, Parts: make([]PartResult, len(record.Targets)), Replayed: true}
	for i, target := range record.Targets {
		part := PartResult{Collection: target.Namespace(), Inserted: int(target.Documents)}
		result.Inserted += part.Inserted
		if record.Results[i].Streamed {
			result.Parts[i] = part
			continue
		}
		ids, err := j.LoadColumn(ctx, record, i, record.Results[i].IDs)
		if err != nil {
			return nil, err
		}
		part.IDs = decodeAll(ids)
		for _, number := range record.Results[i].Numbers {
			values, err := j.LoadColumn(ctx, record, i, number.Values)
			if err != nil {
				return nil, err
			}
			if part.Numbers == nil {
				part.Numbers = make(map[string][]any)
			}
			part.Numbers[number.Field] = decodeAll(values)
		}
		result.Parts[i] = part
	}
	return result, nil
}

func decodeAll(values []bson.RawValue) []any {
	decoded := make([]any, len(values))
	for i, v := range values {
		decoded[i] = decode(v)
	}
	return decoded
}
