package localmongo_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/servertest"
)

// difference is something that the embedded server does otherwise than MongoDB, and that a batch, a rollback, a journal or
// a sequence can notice.
type difference struct {
	what     string
	mongoDB  string // for the reader; MongoDB's manual
	embedded string // what measure returns

	// measure returns "ok", "code N", "connection closed", or what was found.
	measure func(ctx context.Context, c *mongo.Collection) string
}

// Not in the table, because they are a matter of time: a filter that is nothing but an ObjectID or text as _id uses an
// index once the collection has had an update, delete or findAndModify (the server adds the index then); every other filter
// reads the whole collection, at 4 µs a document and more, and compares each with every element of an $in. An updateMany
// writes its documents one by one, 0.2 ms each; it cannot be interrupted, and no other update, delete or findAndModify
// runs in the meantime.
var differences = []difference{
	// What it cannot do.
	{"a transaction", "ok on a replica set", "code 9", func(ctx context.Context, c *mongo.Collection) string {
		return outcome(c.Database().Client().UseSession(ctx, func(ctx context.Context) error {
			if err := mongo.SessionFromContext(ctx).StartTransaction(); err != nil {
				return err
			}
			_, err := c.InsertOne(ctx, bson.M{})
			return err
		}))
	}},
	{"sending transaction numbers, for retryable writes", "yes on a replica set", "no", func(ctx context.Context, c *mongo.Collection) string {
		var hello struct{ SetName string }
		if err := c.Database().RunCommand(ctx, bson.M{"hello": 1}).Decode(&hello); err != nil {
			return outcome(err)
		}
		if hello.SetName != "" {
			return "yes"
		}
		return "no"
	}},
	{"killSessions", "ok", "code 59", func(ctx context.Context, c *mongo.Collection) string {
		return outcome(c.Database().RunCommand(ctx, bson.M{"killSessions": bson.A{}}).Err())
	}},
	{"a validator", "ok", "code 238", func(ctx context.Context, c *mongo.Collection) string {
		return outcome(c.Database().CreateCollection(ctx, "other", options.CreateCollection().SetValidator(bson.M{"a": 1})))
	}},
	{"a view", "ok", "code 238", func(ctx context.Context, c *mongo.Collection) string {
		return outcome(c.Database().CreateView(ctx, "view", c.Name(), mongo.Pipeline{}))
	}},
	{"a partial index", "ok", "code 238", func(ctx context.Context, c *mongo.Collection) string {
		return index(ctx, c, options.Index().SetPartialFilterExpression(bson.M{"u": 1}))
	}},
	{"an index that expires documents", "ok", "code 238", func(ctx context.Context, c *mongo.Collection) string {
		return index(ctx, c, options.Index().SetExpireAfterSeconds(1))
	}},
	{"an update by a pipeline", "ok", "code 14", func(ctx context.Context, c *mongo.Collection) string {
		_, err := c.UpdateMany(ctx, bson.M{}, mongo.Pipeline{{{Key: "$set", Value: bson.M{"t": "$$NOW"}}}})
		return outcome(err)
	}},
	{"$expr that compares fields", "ok", "code 238", func(ctx context.Context, c *mongo.Collection) string {
		_, err := c.CountDocuments(ctx, bson.M{"$expr": bson.M{"$eq": bson.A{"$a", "$b"}}})
		return outcome(err)
	}},
	{"findAndModify with a projection", "ok", "code 238", func(ctx context.Context, c *mongo.Collection) string {
		return outcome(found(c.FindOneAndUpdate(ctx, bson.M{"_id": 1}, bson.M{"$inc": bson.M{"n": 1}}, options.FindOneAndUpdate().SetProjection(bson.M{"n": 1}))))
	}},
	{"a bulkWrite command", "ok from 8.0 on", "code 59", func(ctx context.Context, c *mongo.Collection) string {
		_, err := c.Database().Client().BulkWrite(ctx, []mongo.ClientBulkWrite{{
			Database: c.Database().Name(), Collection: c.Name(), Model: mongo.NewClientInsertOneModel().SetDocument(bson.M{}),
		}})
		return outcome(err)
	}},
	{"deleting 32,767 documents in one command", "32767 deleted", "code 1, 0 deleted", deleteAtOnce(32767)},
	{"deleting 32,766 documents in one command", "32766 deleted", "32766 deleted", deleteAtOnce(32766)},
	{"a write concern that cannot be satisfied", "code 100 on a replica set", "ok", func(ctx context.Context, c *mongo.Collection) string {
		_, err := c.Clone(options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 50})).InsertOne(ctx, bson.M{})
		return outcome(err)
	}},

	// Duplicates.
	{"fields of a duplicate-key error", "index, code, keyPattern (from 4.4 on), keyValue, errmsg", "index, code, errmsg", func(ctx context.Context, c *mongo.Collection) string {
		e := duplicate(ctx, c)
		elements, _ := e.Raw.Elements()
		var keys []string
		for _, element := range elements {
			keys = append(keys, element.Key())
		}
		return strings.Join(keys, ", ")
	}},
	{"text of a duplicate-key error names the index", "yes", "no", func(ctx context.Context, c *mongo.Collection) string {
		if strings.Contains(duplicate(ctx, c).Message, "_id_") {
			return "yes"
		}
		return "no"
	}},
	{"an update that breaks a unique index", "code 11000", "code 1", func(ctx context.Context, c *mongo.Collection) string {
		stored(ctx, c, bson.M{"number": 1}, bson.M{"number": 2})
		_, err := c.UpdateOne(ctx, bson.M{"number": 1}, bson.M{"$set": bson.M{"number": 2}})
		return outcome(err)
	}},
	{"a findAndModify that breaks a unique index", "code 11000", "code 1", func(ctx context.Context, c *mongo.Collection) string {
		stored(ctx, c, bson.M{"number": 1}, bson.M{"number": 2})
		return outcome(c.FindOneAndUpdate(ctx, bson.M{"number": 1}, bson.M{"$set": bson.M{"number": 2}}).Err())
	}},
	{"an upsert that breaks a unique index", "code 11000", "code 11000", func(ctx context.Context, c *mongo.Collection) string {
		stored(ctx, c, bson.M{"_id": 2, "number": 2})
		return outcome(found(c.FindOneAndUpdate(ctx, bson.M{"_id": 1}, bson.M{"$set": bson.M{"number": 2}}, upsertFAM)))
	}},
	{"a unique index over duplicates", "code 11000", "code 1", func(ctx context.Context, c *mongo.Collection) string {
		if _, err := c.InsertMany(ctx, []any{bson.M{"number": 1}, bson.M{"number": 1}}); err != nil {
			return outcome(err)
		}
		return outcome(uniqueIndex(ctx, c))
	}},
	{"two documents without the field of a unique index", "code 11000", "ok", func(ctx context.Context, c *mongo.Collection) string {
		return stored(ctx, c, bson.M{}, bson.M{})
	}},
	{"two documents with null in a unique index", "code 11000", "code 11000", func(ctx context.Context, c *mongo.Collection) string {
		return stored(ctx, c, bson.M{"number": nil}, bson.M{"number": nil})
	}},
	{"two arrays with a common element in a unique index", "code 11000", "ok", func(ctx context.Context, c *mongo.Collection) string {
		return stored(ctx, c, bson.M{"number": bson.A{1, 2}}, bson.M{"number": bson.A{2, 3}})
	}},
	{"int32, int64 and double of one value as _id", "code 11000", "code 11000", func(ctx context.Context, c *mongo.Collection) string {
		return stored(ctx, c, bson.M{"_id": int32(1)}, bson.M{"_id": int64(1)}, bson.M{"_id": 1.0})
	}},
	{"an ObjectID and its text as _id", "ok", "code 11000", func(ctx context.Context, c *mongo.Collection) string {
		id := bson.NewObjectID()
		return stored(ctx, c, bson.M{"_id": id}, bson.M{"_id": id.Hex()})
	}},
	{"a date and its number as _id", "ok", "code 11000", func(ctx context.Context, c *mongo.Collection) string {
		return stored(ctx, c, bson.M{"_id": time.UnixMilli(5)}, bson.M{"_id": int64(5)})
	}},
	{"an ordered insert of 250, where the 10th is a duplicate", "9 stored", "109 stored", func(ctx context.Context, c *mongo.Collection) string {
		documents := make([]any, 250)
		for i := range documents {
			documents[i] = bson.M{"_id": i}
		}
		documents[9] = documents[0]
		if _, err := c.InsertMany(ctx, documents); !mongo.IsDuplicateKeyError(err) {
			return outcome(err)
		}
		n, err := c.CountDocuments(ctx, bson.M{})
		if err != nil {
			return outcome(err)
		}
		return fmt.Sprint(n, " stored")
	}},

	// Documents.
	{"a document of more than 16 MiB", "code 2 or 10334", "ok", func(ctx context.Context, c *mongo.Collection) string {
		_, err := c.InsertOne(ctx, bson.M{"v": strings.Repeat("x", 16<<20)})
		return outcome(err)
	}},
	{"a key with a dot", "ok from 5.0 on", "code 2", value(bson.M{"a.b": 1})},
	{"a key with a dollar", "ok from 5.0 on", "code 2", value(bson.M{"$a": 1})},
	{"a key twice", "ok", "code 2", value(bson.D{{Key: "a", Value: 1}, {Key: "a", Value: 2}})},
	{"an array in an array", "ok", "code 2", value(bson.A{bson.A{1}})},
	{"infinity", "ok", "code 2", value(math.Inf(1))},
	{"minus zero", "ok", "changed", value(math.Copysign(0, -1))},
	{"text that is not UTF-8", "ok", "changed", value("a\xff")},
	{"not a number", "ok", "connection closed", value(math.NaN())},
	{"Decimal128", "ok", "connection closed", value(bson.NewDecimal128(1, 2))},
	{"MinKey", "ok", "connection closed", value(bson.MinKey{})},
	{"MaxKey", "ok", "connection closed", value(bson.MaxKey{})},
	{"JavaScript", "ok", "connection closed", value(bson.JavaScript("1"))},
	{"Symbol", "ok", "connection closed", value(bson.Symbol("s"))},
	{"Timestamp", "ok", "ok", value(bson.Timestamp{T: 1, I: 2})},
	{"UUID", "ok", "ok", value(bson.Binary{Subtype: 4, Data: make([]byte, 16)})},
	{"170 levels", "ok", "ok", value(nested(170))},
}

// TestDifferences keeps the table true. With another server it only shows what that one does.
func TestDifferences(t *testing.T) {
	s := servertest.Embedded(t)
	db := s.Database(t, s.Client(t))
	for i, d := range differences {
		t.Run(d.what, func(t *testing.T) {
			got := d.measure(t.Context(), db.Collection(fmt.Sprint("c", i)))
			if s.Kind != servertest.KindEmbedded {
				t.Logf("%s (MongoDB: %s)", got, d.mongoDB)
			} else if got != d.embedded {
				t.Errorf("%s, want %s", got, d.embedded)
			}
		})
	}
}

// outcome reduces an error to what a program can go by.
func outcome(err error) string {
	var server mongo.ServerError
	switch {
	case err == nil:
		return "ok"
	case mongo.IsNetworkError(err):
		return "connection closed"
	case errors.As(err, &server):
		return fmt.Sprint("code ", server.ErrorCodes()[0])
	}
	return err.Error()
}

func index(ctx context.Context, c *mongo.Collection, o *options.IndexOptionsBuilder) string {
	_, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: o})
	return outcome(err)
}

// stored inserts documents one by one under a unique index on number.
func stored(ctx context.Context, c *mongo.Collection, documents ...any) string {
	if err := uniqueIndex(ctx, c); err != nil {
		return outcome(err)
	}
	for _, d := range documents {
		if _, err := c.InsertOne(ctx, d); err != nil {
			return outcome(err)
		}
	}
	return "ok"
}

// duplicate returns the server's error for the second document with one _id.
func duplicate(ctx context.Context, c *mongo.Collection) mongo.WriteError {
	var failed mongo.WriteException
	for range 2 {
		_, err := c.InsertOne(ctx, bson.M{"_id": 1})
		errors.As(err, &failed)
	}
	if len(failed.WriteErrors) == 0 {
		return mongo.WriteError{Message: "no error"}
	}
	return failed.WriteErrors[0]
}

// value stores a document with a value, and compares what comes back.
func value(v any) func(context.Context, *mongo.Collection) string {
	return func(ctx context.Context, c *mongo.Collection) string {
		want, err := bson.Marshal(bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: v}})
		if err != nil {
			return outcome(err)
		}
		if _, err := c.InsertOne(ctx, bson.Raw(want)); err != nil {
			return outcome(err)
		}
		got, err := c.FindOne(ctx, bson.M{"_id": 1}).Raw()
		if err != nil {
			return outcome(err)
		}
		if string(got) != string(want) {
			return "changed"
		}
		return "ok"
	}
}

func nested(levels int) any {
	var v any = 1
	for range levels {
		v = bson.M{"a": v}
	}
	return v
}

func deleteAtOnce(n int) func(context.Context, *mongo.Collection) string {
	return func(ctx context.Context, c *mongo.Collection) string {
		documents := make([]any, n)
		for i := range documents {
			documents[i] = bson.M{}
		}
		if _, err := c.InsertMany(ctx, documents); err != nil {
			return outcome(err)
		}
		prefix := ""
		if _, err := c.DeleteMany(ctx, bson.M{}); err != nil {
			prefix = outcome(err) + ", "
		}
		left, err := c.CountDocuments(ctx, bson.M{})
		if err != nil {
			return outcome(err)
		}
		return fmt.Sprintf("%s%d deleted", prefix, int64(n)-left)
	}
}
