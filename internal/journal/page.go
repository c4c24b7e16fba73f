package journal

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
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
		_, err := j.pages.InsertOne(ctx, page)
		_, err = duplicate(err)
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
