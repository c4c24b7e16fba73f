package journal

import "context"

// Beat is one beat, for tests that need one by itself.
func (j *Journal) Beat(ctx context.Context, from Record) error { return j.beat(ctx, from) }
