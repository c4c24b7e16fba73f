package idgen

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// highestIn returns the highest number in field. It reads from the primary what the primary has, acknowledged by a
// majority or not: the unique index sees that, too.
//
// The sort is over all types on purpose: whatever sorts above numbers, such as text, is found and refused. A filter for
// numbers would overlook it.
func highestIn(ctx context.Context, limits Retry, coll *mongo.Collection, field string, where bson.D) (highest int64, found bool, err error) {
	if coll == nil {
		return 0, false, misused("", "the collection is nil")
	}
	name := namespace(coll) + " " + field
	if err := checkField(field); err != nil {
		return 0, false, misused(name, "%v", err)
	}
	coll = own(coll, readconcern.Local())
	if where == nil {
		where = bson.D{}
	}
	err = limits.withDefaults().do(ctx, name, func(ctx context.Context) error {
		highest, found = 0, false
		document, err := coll.FindOne(ctx, where, options.FindOne().
			SetSort(bson.D{{Key: field, Value: -1}}).
			SetProjection(bson.D{{Key: field, Value: 1}})).Raw()
		if errors.Is(err, mongo.ErrNoDocuments) {
			return nil
		}
		if err != nil {
			return err
		}
		value, blocked := lookup(document, field)
		if value.IsZero() || value.Type == bson.TypeNull || blocked && value.Type != bson.TypeArray {
			return nil // the server, too, sorts these below numbers
		}
		n, what, ok := whole(value)
		if !ok {
			return &Error{
				Reason: Unreadable, Sequence: name,
				Problem: "the highest value is " + what + ", not a whole number",
				Repair:  "store numbers there, and form text from them with Format",
			}
		}
		highest, found = n, true
		return nil
	})
	return highest, found, err
}
