package batch_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// countCommands inserts through a wire that counts and keeps nothing, and returns the outcome and what was counted.
func countCommands(t *testing.T, s *servertest.Server, insert func(w *world) (*batch.Result, error)) (*batch.Result, map[faultwire.Name]int, error) {
	t.Helper()
	w := &world{T: t, server: s, wire: faultwire.ForTest(t, faultwire.KeepLast(0))}
	w.around = s.Database(t, s.Client(t))
	w.db = s.Client(t, options.Client().SetDialer(w.wire)).Database(w.around.Name())
	number := idgen.NewCounter(w.db.Collection(counters), "n")
	if _, err := number.Next(t.Context()); err != nil { // the first use may take two commands
		t.Fatal(err)
	}
	before := make(map[faultwire.Name]int)
	names := []faultwire.Name{faultwire.Insert, faultwire.Delete, faultwire.Find, faultwire.GetMore, faultwire.Update, "findAndModify", "findandmodify", listCollections}
	for _, name := range names {
		before[name] = w.wire.Count(name)
	}
	all := w.wire.Count()
	result, err := insert(w)
	counted := map[faultwire.Name]int{"all": w.wire.Count() - all}
	for _, name := range names {
		counted[name] = w.wire.Count(name) - before[name]
	}
	counted["findAndModify"] += counted["findandmodify"]
	return result, counted, err
}

// A hundred thousand documents with one sequence, in chunks of a thousand, cost one command for each chunk and one for
// the numbers. The collection's kind is asked for once.
func TestCommandsOfBatch(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		const size = 100_000
		result, counted, err := countCommands(t, s, func(w *world) (*batch.Result, error) {
			documents := make([]bson.D, size)
			for i := range documents {
				documents[i] = bson.D{{Key: "i", Value: i}}
			}
			result, err := batch.New(batch.Config{}).Insert(t.Context(), batch.Into(w.coll("c"), documents).Number("no", idgen.NewCounter(w.db.Collection(counters), "n")))
			if n, countErr := w.around.Collection("c").EstimatedDocumentCount(t.Context()); n != size || countErr != nil {
				t.Errorf("%d documents are stored, %v", n, countErr)
			}
			return result, err
		})
		if err != nil {
			t.Fatal(err)
		}
		if counted[faultwire.Insert] != 100 || counted["findAndModify"] != 1 || counted[listCollections] > 1 || counted["all"] > 102 {
			t.Errorf("commands: %v, want 100 inserts, 1 findAndModify and 1 listCollections", counted)
		}
		for i, n := range result.Parts[0].Numbers["no"] {
			if n != int64(i+2) { // 1 was taken beforehand
				t.Fatalf("document %d has the number %v", i, n)
			}
		}
	})
}

// More documents than MongoDB takes in one command go in two.
func TestMoreThanOneCommandTakes(t *testing.T) {
	_, counted, err := countCommands(t, servertest.Embedded(t), func(w *world) (*batch.Result, error) {
		documents := make([]bson.D, 100_001)
		for i := range documents {
			documents[i] = bson.D{}
		}
		return batch.New(batch.Config{ChunkSize: 1_000_000}).Insert(t.Context(), batch.Into(w.coll("c"), documents))
	})
	if err != nil || counted[faultwire.Insert] != 2 {
		t.Errorf("commands: %v, want 2 inserts; %v", counted, err)
	}
}

// A rollback of minted ids costs no more deletes than there are sub-ranges of ten thousand, and one that has to count on
// fewer documents than it names looks once at each; of claimed ids one for a thousand. One more fences the session of the
// insert that was refused in part, where the driver may have repeated it.
func TestCommandsOfRollback(t *testing.T) {
	const size, ranges, fences = 12_000, 2, 1
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		for _, claimed := range []bool{false, true} {
			t.Run(fmt.Sprintf("claimed=%t", claimed), func(t *testing.T) {
				_, counted, err := countCommands(t, s, func(w *world) (*batch.Result, error) {
					if _, err := w.around.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: size - 1}}); err != nil {
						t.Fatal(err)
					}
					documents := make([]bson.D, size)
					for i := range documents {
						documents[i] = bson.D{{Key: "i", Value: i}}
						if claimed || i == size-1 {
							documents[i] = bson.D{{Key: "_id", Value: i}}
						}
					}
					result, err := batch.New(batch.Config{Concurrency: 1}).Insert(t.Context(), batch.Into(w.coll("c"), documents))
					if n, countErr := w.around.Collection("c").EstimatedDocumentCount(t.Context()); n != 1 || countErr != nil {
						t.Errorf("%d documents are there, want the foreign one, %v", n, countErr)
					}
					return result, err
				})
				if err == nil {
					t.Fatal("the batch was stored")
				}
				want := ranges + fences
				if claimed {
					want = size/1_000 + fences
				}
				if counted[faultwire.Delete] > want || counted[faultwire.Insert] != size/1_000 {
					t.Errorf("commands: %v, want %d deletes at most", counted, want)
				}
				if counted[faultwire.Find] > 2 { // whose the refused one is, and what is left of its chunk
					t.Errorf("commands: %v, want 2 finds at most", counted)
				}
			})
		}
	})
}
