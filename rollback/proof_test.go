package rollback_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// kind is an id, with others that look like it and are not it.
type kind struct {
	id      any
	similar []any
}

// manyIDs are ids of all kinds that the server takes.
func manyIDs(s *site) []kind {
	at := time.Date(2024, 2, 29, 23, 59, 59, 123_456_789, time.FixedZone("", 3600))
	sixteen := [16]byte{0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	id := bson.NewObjectID()
	kinds := []kind{
		{int32(7), []any{"7", int32(8), int32(6), 7.5, true}},
		{int64(1) << 40, []any{int64(1)<<40 + 1}},
		{"a", []any{"A", "a ", "", "b", "aa"}},
		{id, []any{id.Hex(), after(id, 1), after(id, -1), bson.Binary{Data: id[:]}}},
		{sixteen, []any{bson.Binary{Subtype: 3, Data: sixteen[:]}, bson.Binary{Subtype: 4, Data: sixteen[:]}, bson.Binary{Subtype: 0x80, Data: sixteen[:]}, bson.Binary{Data: sixteen[:15]}}},
		{bson.Binary{Subtype: 4, Data: append([]byte{9}, sixteen[1:]...)}, []any{bson.Binary{Data: append([]byte{9}, sixteen[1:]...)}}},
		{at, []any{at.Add(time.Millisecond), at.Add(-time.Millisecond), at.String()}},
		{bson.D{{Key: "a", Value: 1}, {Key: "b", Value: at}}, []any{
			bson.D{{Key: "b", Value: at}, {Key: "a", Value: 1}}, bson.D{{Key: "a", Value: 1}},
			bson.D{{Key: "a", Value: 1}, {Key: "b", Value: at.Add(time.Millisecond)}},
		}},
		{1.5, []any{1.25, "1.5"}},
		{false, []any{"false"}},
	}
	if s.server.Kind != servertest.KindEmbedded { // which takes no $ in a key, however deep
		kinds = append(kinds, kind{bson.D{{Key: "d", Value: bson.D{{Key: "$gt", Value: ""}}}}, []any{bson.D{{Key: "d", Value: "x"}}}})
	}
	return kinds
}

// storeBeside stores documents one by one. FerretDB on SQLite takes ids of different types for the same if their texts
// are (an ObjectID and its hex digits, binaries of different subtypes): there, such a document is left out.
func (s *site) storeBeside(t testing.TB, documents ...any) (stored []bson.Raw) {
	t.Helper()
	for _, d := range documents {
		_, err := s.past.InsertOne(ending(t), d)
		if s.server.Kind == servertest.KindEmbedded && mongo.IsDuplicateKeyError(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, raw(t, d))
	}
	return stored
}

// ours is the stamp of the job that is undone.
var ours = rollback.Stamp{Field: "_batch", Value: bson.ObjectID{11: 1}}

func stamped(id any, fields ...bson.E) bson.D {
	return doc(id, append(fields, bson.E{Key: "_batch", Value: ours.Value})...)
}

func TestRangesLeaveOthersAlone(t *testing.T) {
	for _, at := range []struct {
		name    string
		counter uint32
	}{{"low", 1}, {"middle", 0x00ffc0}, {"end of the counter", 0xffffff - 119}} {
		t.Run(at.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				from := first(at.counter)
				const n = 120
				except := []bson.ObjectID{after(from, 0), after(from, 17), after(from, 49), after(from, 50), after(from, 119)}
				others := []any{
					doc(after(from, -1)), doc(after(from, n)), doc(after(from, 1<<24)), doc(after(from, -1<<24)),
					doc(after(from, 3).Hex()), doc(bson.D{{Key: "oid", Value: after(from, 3)}}), doc("x", bson.E{Key: "ref", Value: after(from, 3)}),
				}
				machine := after(from, 3)
				machine[4]++ // another process's id of the same second
				others = append(others, doc(machine))
				var mine []any
				for i, d := range run(from, n) {
					switch i {
					case 0, 17, 49, 50, 119:
						others = append(others, d)
					case 20, 21, 22: // never stored
					default:
						mine = append(mine, d)
					}
				}
				s.store(t, mine...)
				foreign := s.storeBeside(t, others...)
				// Exceptions may be told twice, in any order, and those outside the range do not matter.
				except = append(except, except[3], except[1], after(from, 1<<24), after(from, -2))
				policy := quick()
				policy.ChunkRange = 50
				report := s.undo(t, policy, rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: n, Except: except}}})
				s.has(t, foreign...)
				if report.Deleted != int64(len(mine)) || report.Excess != 0 {
					t.Errorf("report %+v, want %d deleted", report, len(mine))
				}
			})
		})
	}
}

func TestExceptionsCanCoverARange(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		from := first(5)
		foreign := s.store(t, run(from, 4)[:3]...)
		mine := s.store(t, run(from, 4)[3])
		except := []bson.ObjectID{from, after(from, 1), after(from, 2)}
		whole := rollback.Range{First: from, Count: 3, Except: except}
		s.undo(t, quick(), rollback.Target{Collection: s.coll, Ranges: []rollback.Range{whole}})
		if n := len(s.wire.Events()); n != 0 {
			t.Errorf("%d commands for a range without a document of ours:\n%v", n, s.wire)
		}
		s.has(t, append(foreign, mine...)...)

		// As many exceptions as ids, but one of them twice: the last id is ours.
		whole.Count, whole.Except = 4, append(except, from)
		s.undo(t, quick(), rollback.Target{Collection: s.coll, Ranges: []rollback.Range{whole}})
		s.has(t, foreign...)
	})
}

func TestStampedIDsLeaveOthersAlone(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		var ids []any
		var mine, others []any
		for i, kind := range manyIDs(s) {
			ids = append(ids, kind.id)
			for _, similar := range kind.similar {
				others = append(others, stamped(similar)) // ours perhaps, but not named
			}
			// The same id in somebody else's document: ours was not stored then.
			switch i % 5 {
			case 0:
				others = append(others, doc(kind.id, bson.E{Key: "x", Value: i}))
			case 1:
				others = append(others, doc(kind.id, bson.E{Key: "_batch", Value: bson.ObjectID{11: 2}}))
			case 2:
				others = append(others, doc(kind.id, bson.E{Key: "_batch", Value: ours.Value.(bson.ObjectID).Hex()}))
			case 3:
				others = append(others, doc(kind.id, bson.E{Key: "_batch", Value: bson.D{{Key: "_batch", Value: ours.Value}}}))
			case 4:
				others = append(others, doc(kind.id, bson.E{Key: "_batch", Value: nil}))
			}
			mine = append(mine, stamped(fmt.Sprint("mine ", i), bson.E{Key: "edited", Value: "by somebody since then"}))
			ids = append(ids, fmt.Sprint("mine ", i), fmt.Sprint("never stored ", i))
		}
		s.store(t, mine...)
		foreign := s.storeBeside(t, others...)
		report := s.undo(t, quick(), rollback.Target{Collection: s.coll, IDs: ids, Stamp: ours})
		s.has(t, foreign...)
		if report.Deleted != int64(len(mine)) {
			t.Errorf("report %+v, want %d deleted", report, len(mine))
		}
	})
}

// proofs are the two ways of proving ids.
var proofs = []struct {
	name   string
	target rollback.Target
}{{"stamped", rollback.Target{Stamp: ours}}, {"acknowledged", rollback.Target{Acknowledged: true}}}

// Every kind of id is found again, with and without a stamp, whatever is similar to it.
func TestEveryKindOfID(t *testing.T) {
	for _, by := range proofs {
		t.Run(by.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, s *site) {
				var mine, others []any
				target := by.target
				target.Collection = s.coll
				for _, kind := range manyIDs(s) {
					mine = append(mine, stamped(kind.id))
					target.IDs = append(target.IDs, kind.id)
					for _, similar := range kind.similar {
						others = append(others, stamped(similar))
					}
				}
				stored := s.store(t, mine...)
				foreign := s.storeBeside(t, others...)
				target.IDs[0] = stored[0].Lookup("_id") // a RawValue is as good
				report := s.undo(t, quick(), target)
				s.has(t, foreign...)
				if report.Deleted != int64(len(mine)) {
					t.Errorf("report %+v, want %d deleted", report, len(mine))
				}
			})
		})
	}
}

// Nothing that is similar to a named id goes in its place when that was never stored.
func TestSimilarIDs(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		for _, kind := range manyIDs(s) {
			for _, similar := range kind.similar {
				foreign := s.store(t, stamped(similar))
				for _, by := range proofs {
					target := by.target
					target.Collection, target.IDs = s.coll, []any{kind.id}
					s.undo(t, quick(), target)
					s.has(t, foreign...)
				}
				if t.Failed() {
					t.Fatalf("%T %v was deleted, or %v looked for in vain", similar, similar, kind.id)
				}
				if _, err := s.past.DeleteMany(ending(t), bson.D{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// A Go map has no order; what was stored is what the raw bytes say.
func TestIDsOfRawBytes(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		var mine []any
		for i := range 200 {
			mine = append(mine, bson.M{"_id": bson.M{"a": i, "b": i, "c": i, "d": i, "e": i}})
		}
		stored := s.store(t, mine...)
		s.undo(t, quick(), rollback.Target{Collection: s.coll, IDs: idsOf(stored), Acknowledged: true})
		s.has(t)
	})
}

// An _id is unique per shard only: the shard key's fields are part of what says which document is ours.
func TestShardKeys(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		tenant := func(v any) bson.E { return bson.E{Key: "tenant", Value: v} }
		region := func(v any) bson.E { return bson.E{Key: "at", Value: bson.D{{Key: "region", Value: v}}} }
		foreign := s.store(t,
			doc(1, tenant("x"), region("eu")), // ours was {_id: 1, tenant: y}, on another shard
			doc(2, tenant("y"), region("us")),
			doc(3, tenant(nil), region("eu")),
			doc(4, region("eu")),
		)
		s.store(t, doc(5, tenant("y"), region("eu")), doc(6, region("eu")), doc(7, tenant("$ne"), region(nil)))
		key := func(tenant, region any) bson.D {
			return bson.D{{Key: "tenant", Value: tenant}, {Key: "at.region", Value: region}}
		}
		policy := quick()
		policy.ChunkIDs = 2 // ids and keys are cut at the same places
		report := s.undo(t, policy, rollback.Target{
			Collection: s.coll, Acknowledged: true,
			IDs: []any{1, 2, 3, 4, 5, 6, 7},
			ShardKeys: []bson.D{
				key("y", "eu"), key("y", "eu"), key("y", "eu"), key("y", "eu"), key("y", "eu"), key(nil, "eu"), key("$ne", nil),
			},
		})
		s.has(t, foreign...)
		if report.Deleted != 3 {
			t.Errorf("report %+v, want 3 deleted", report)
		}
	})
}

// What nothing proves is read and reported, and never touched.
func TestUnproven(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		foreign := s.store(t, doc("there"), doc(int32(7)), doc("bystander"))
		s.store(t, stamped("proven"))
		target := rollback.Target{Collection: s.coll, IDs: []any{"proven"}, Stamp: ours, Unproven: []any{"absent", "there", 7, "absent too"}}
		report, err := rollback.Undo(ending(t), quick(), target)
		s.has(t, foreign...)
		failed := failure(t, err, rollback.ErrUnproven)
		left(t, failed, seen(s.name(), value(t, "there")), seen(s.name(), value(t, int32(7))))
		if report.Deleted != 1 || len(failed.Reasons) != 1 {
			t.Errorf("report %+v, reasons %v", report, failed.Reasons)
		}
		target.Unproven = []any{"absent", "absent too"}
		s.undo(t, quick(), target)
		s.has(t, foreign...)
	})
}

// With shard keys, somebody else's document with the same _id on another shard is not taken for the unproven one; without,
// whatever has the _id is reported, and nothing is kept back.
func TestUnprovenWithShardKeys(t *testing.T) {
	sim, err := mongosim.Start(mongosim.Config{ShardKeys: map[string]string{"d.c": "tenant"}, InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := &servertest.Server{URI: sim.URI()}
	coll := s.Client(t, options.Client().SetDialer(sim.Dialer())).Database("d").Collection("c")
	tenant := func(v string) bson.D { return bson.D{{Key: "tenant", Value: v}} }
	if _, err := coll.InsertMany(t.Context(), []any{
		doc(1, tenant("x")...), doc(2, tenant("x")...), doc(1, tenant("y")...), doc(3, tenant("y")...),
	}); err != nil {
		t.Fatal(err)
	}
	target := rollback.Target{Collection: coll, IDs: []any{"none"}, Acknowledged: true, Unproven: []any{1, 2, 3}}
	target.ShardKeys = []bson.D{tenant("y"), tenant("y"), tenant("y"), tenant("y")}
	_, err = rollback.Undo(ending(t), quick(), target)
	one, two, three := seen("d.c", value(t, int32(1))), seen("d.c", value(t, int32(2))), seen("d.c", value(t, int32(3)))
	left(t, failure(t, err, rollback.ErrUnproven), one, three)
	target.ShardKeys = nil
	_, err = rollback.Undo(ending(t), quick(), target)
	left(t, failure(t, err, rollback.ErrUnproven), one, one, two, three)
}

func seen(collection string, id bson.RawValue) rollback.Leftover {
	return rollback.Leftover{Collection: collection, ID: id, Seen: true}
}

// failure fails the test unless err is an *Error for the reason.
func failure(t testing.TB, err, reason error) *rollback.Error {
	t.Helper()
	var failed *rollback.Error
	if !errors.As(err, &failed) {
		t.Fatalf("got error %v, want a *rollback.Error", err)
	}
	if reason != nil && !errors.Is(err, reason) {
		t.Errorf("error %v, want one for the reason %v", err, reason)
	}
	return failed
}

// left fails the test unless these are the leftovers, in any order.
func left(t testing.TB, failed *rollback.Error, want ...rollback.Leftover) {
	t.Helper()
	missing := map[string]int{}
	key := func(l rollback.Leftover) string { return fmt.Sprint(l.Collection, l.ID.Type, l.ID.Value, l.Seen) }
	for _, l := range want {
		missing[key(l)]++
	}
	for _, l := range failed.Leftovers {
		if missing[key(l)]--; missing[key(l)] < 0 {
			t.Errorf("leftover %v (seen: %v) was not expected", l, l.Seen)
		}
	}
	for _, l := range want {
		if missing[key(l)] > 0 {
			t.Errorf("leftover %v (seen: %v) is missing", l, l.Seen)
		}
	}
}
