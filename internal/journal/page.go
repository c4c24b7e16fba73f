package journal

import (
	"context"
	"fmt"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/outcome"
)

// Page holds values of a batch that would not fit its head. Its id begins with the attempt, so that the _id index finds
// the pages of a batch; it never changes.
type Page struct {
	ID     string          `bson:"_id"`
	Target int32           `bson:"target"` // position in Record.Targets
	Values []bson.RawValue `bson:"values"`
}

// The kinds of pages.
const (
	Claimed = "ids"    // claimed ids, written before the chunk that inserts them
	Stored  = "result" // a column of the result of a keyed batch, written before the commit
)

// A page stays far below the 16 MiB of a document: its values may be as long as an _id can be.
const (
	maxPageValues = 10_000
	maxPageBytes  = 4 << 20
)

// Paged cuts values into pages' worths.
func Paged(values []bson.RawValue) iter.Seq[[]bson.RawValue] {
	return func(yield func([]bson.RawValue) bool) {
		for len(values) > 0 {
			n, bytes := 0, 0
			for n < len(values) && n < maxPageValues && (n == 0 || bytes+len(values[n].Value) <= maxPageBytes) {
				bytes += len(values[n].Value)
				n++
			}
			if !yield(values[:n]) {
				return
			}
			values = values[n:]
		}
	}
}

// PageID names a page: of an attempt, of a kind, the number-th.
func PageID(attempt bson.ObjectID, kind string, number int) string {
	return fmt.Sprintf("%s/%s/%09d", attempt.Hex(), kind, number)
}

// pagesOf selects the pages of an attempt, of one kind or of all.
func pagesOf(attempt bson.ObjectID, kind string) bson.D {
	prefix := attempt.Hex() + "/"
	if kind != "" {
		prefix += kind + "/"
	}
	// '0' is the character after '/'.
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: prefix}, {Key: "$lt", Value: prefix[:len(prefix)-1] + "0"}}}}
}

// AddPage writes a page. A page that is there already is this one, from a sending whose answer was lost.
func (j *Journal) AddPage(ctx context.Context, page Page) error {
	return j.repeat(ctx, func(ctx context.Context) error {
		_, err := duplicate(outcome.SendOne(ctx, j.pages, page))
		return err
	})
}

// Claims reads the pages of claimed ids, in the order of their numbers. An error of each ends the reading.
func (j *Journal) Claims(ctx context.Context, attempt bson.ObjectID, each func(Page) error) error {
	if j.limits.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, j.limits.Patience)
		defer cancel()
	}
	return eachPage(mongo.NewSessionContext(ctx, nil), j.pages, pagesOf(attempt, Claimed), each)
}
