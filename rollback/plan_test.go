package rollback_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
	"github.com/intact-go/intact/rollback"
)

// onSim makes a site on a simulated server of its own.
func onSim(t testing.TB, config mongosim.Config, opts ...*options.ClientOptions) *site {
	t.Helper()
	sim, err := mongosim.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	return newSite(t, &servertest.Server{Kind: servertest.KindSim, URI: sim.URI(), Sim: sim}, opts...)
}

// Targets and policies that make no sense are refused before anything is sent.
func TestRefused(t *testing.T) {
	s := onSim(t, mongosim.Config{})
	ids := func(values ...any) rollback.Target { return rollback.Target{IDs: values, Stamp: ours} }
	stamp := func(field string, value any) rollback.Target {
		return rollback.Target{IDs: []any{1}, Stamp: rollback.Stamp{Field: field, Value: value}}
	}
	span := func(counter uint32, n int) rollback.Target {
		return rollback.Target{Ranges: []rollback.Range{{First: first(counter), Count: n}}}
	}
	keys := func(keys ...bson.D) rollback.Target {
		return rollback.Target{IDs: []any{1, 2}, Acknowledged: true, ShardKeys: keys}
	}
	eu := bson.D{{Key: "region", Value: "eu"}}
	tests := []struct {
		name   string
		target rollback.Target
		says   string
	}{
		{"ids without a proof", rollback.Target{IDs: []any{1}}, "proof"},
		{"an operator for an id", ids("a", bson.D{{Key: "$gt", Value: ""}}), `id 1: a document with the key "$gt"`},
		{"an operator in a map", ids(bson.M{"$gt": ""}), `"$gt"`},
		{"an operator behind a field", ids(bson.D{{Key: "a", Value: 1}, {Key: "$gt", Value: ""}}), `"$gt"`},
		{"a reference", ids(bson.D{{Key: "$ref", Value: "a"}, {Key: "$id", Value: 1}}), `"$ref"`},
		{"a regular expression", ids(bson.Regex{Pattern: "."}), "regex"},
		{"an array", ids(bson.A{1, 2}), "array"},
		{"a slice", ids([]string{"a"}), "array"},
		{"undefined", ids(bson.Undefined{}), "undefined"},
		{"no value", ids(bson.RawValue{}), "cannot be an _id"},
		{"not BSON", ids(make(chan int)), "id 0"},
		{"a broken string", ids(bson.RawValue{Type: bson.TypeString, Value: []byte{9, 0, 0, 0, 'a'}}), "id 0"},
		{"a broken document", ids(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: []byte{9, 0, 0, 0, 'a'}}), "id 0"},
		{"more than one value", ids(bson.RawValue{Type: bson.TypeInt32, Value: append([]byte{1, 0, 0, 0}, "\x0b1\x00.\x00\x00"...)}), "id 0"},
		{"a broken document within", ids(bson.D{{Key: "a", Value: bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: []byte{6, 0, 0, 0, 'a', 0}}}}), "id 0"},
		{"an unproven operator", rollback.Target{Unproven: []any{1, bson.M{"$gt": ""}}}, `unproven id 1: a document with the key "$gt"`},
		{"an unproven expression", rollback.Target{Unproven: []any{bson.Regex{Pattern: "."}}}, "regex"},
		{"a stamp without a value", stamp("_batch", nil), "without a value"},
		{"a stamp of null", stamp("_batch", bson.Null{}), "null"},
		{"a stamp without a field", stamp("", 1), "stamp field"},
		{"the _id as a stamp", stamp("_id", 1), "stamp field"},
		{"an operator as a stamp", stamp("$where", "true"), "stamp field"},
		{"a path as a stamp", stamp("a.b", 1), "stamp field"},
		{"a NUL in the stamp", stamp("a\x00b", 1), "stamp field"},
		{"an operator as the stamp's value", stamp("_batch", bson.M{"$exists": true}), "stamp value"},
		{"an array as the stamp's value", stamp("_batch", bson.A{1}), "stamp value"},
		{"an expression as the stamp's value", stamp("_batch", bson.Regex{Pattern: "."}), "stamp value"},
		{"a stamp that is not BSON", stamp("_batch", func() {}), "stamp value"},
		{"a stamp that makes no sense, acknowledged", rollback.Target{IDs: []any{1}, Acknowledged: true, Stamp: rollback.Stamp{Field: "_id", Value: 1}}, "stamp field"},
		{"a range of nothing", span(1, 0), "range of 0 ids"},
		{"a range of less than nothing", span(1, -1), "range of -1 ids"},
		{"a range past the counter's end", span(0xffffff, 2), "range of 2 ids"},
		{"a range around the counter", span(1, 1<<24), "range of 16777216 ids"},
		{"the largest range", span(2, math.MaxInt), "does not fit"},
		{"the second range", rollback.Target{Ranges: []rollback.Range{{First: first(0), Count: 1}, {First: first(0), Count: 0}}}, "range 1"},
		{"too few shard keys", keys(eu), "1 shard keys for 2 ids"},
		{"too many shard keys", keys(eu, eu, eu), "3 shard keys for 2 ids"},
		{"no shard key for an unproven id", rollback.Target{IDs: []any{1}, Acknowledged: true, Unproven: []any{2}, ShardKeys: []bson.D{{}}}, "1 shard keys for 2 ids"},
		{"an empty list of shard keys", rollback.Target{IDs: []any{1}, Acknowledged: true, ShardKeys: []bson.D{}}, "0 shard keys for 1 ids"},
		{"an operator as a shard key", keys(eu, bson.D{{Key: "$or", Value: bson.A{}}}), `shard key 1: "$or"`},
		{"a shard key without a name", keys(bson.D{{Key: "", Value: 1}}, eu), `shard key 0: ""`},
		{"a shard key that is not BSON", keys(eu, bson.D{{Key: "region", Value: func() {}}}), "shard key 1"},
		{"no session", rollback.Target{Fence: []*mongo.Session{nil}}, "session 0"},
	}
	good := rollback.Target{Collection: s.coll, IDs: []any{1}, Acknowledged: true}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			target := test.target
			target.Collection = s.coll
			report, err := rollback.Undo(ending(t), quick(), good, target)
			refused(t, err, "target 1", test.says, "nothing was deleted")
			if report != (rollback.Report{}) {
				t.Errorf("report %+v", report)
			}
		})
	}
	t.Run("no collection", func(t *testing.T) {
		_, err := rollback.Undo(ending(t), quick(), rollback.Target{IDs: []any{1}, Acknowledged: true})
		refused(t, err, "target 0", "no collection")
	})
	t.Run("unacknowledged deletes", func(t *testing.T) {
		policy := quick()
		policy.WriteConcern = writeconcern.Unacknowledged()
		_, err := rollback.Undo(ending(t), policy, good)
		refused(t, err, "w:0")
	})
	if n := len(s.wire.Events()); n != 0 {
		t.Errorf("%d commands were sent:\n%v", n, s.wire)
	}
}

func refused(t *testing.T, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("it was not refused")
	}
	var failed *rollback.Error
	if errors.As(err, &failed) {
		t.Errorf("a *rollback.Error for something that was never begun: %v", err)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("message %q does not contain %q", err, text)
		}
	}
}

// What can be an _id is not refused.
func TestNotRefused(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		ids := []any{bson.Null{}, "", "$gt", bson.D{}, bson.MinKey{}, bson.MaxKey{}, bson.Timestamp{T: 1}, bson.Symbol("a"), bson.D{{Key: "a$", Value: 1}}}
		if s.server.Kind == servertest.KindEmbedded { // knows neither MinKey nor symbols
			ids = []any{bson.Null{}, "", "$gt", bson.D{}, bson.Timestamp{T: 1}, bson.D{{Key: "a$", Value: 1}}}
		}
		foreign := s.store(t, doc("bystander"), doc(0), doc(bson.D{{Key: "a", Value: 1}}))
		s.undo(t, quick(), rollback.Target{Collection: s.coll, IDs: ids, Acknowledged: true, Unproven: ids})
		s.has(t, foreign...)
	})
}

// deletes returns the filters of the deletes on the wire.
func (s *site) deletes() []bson.Raw {
	var filters []bson.Raw
	for _, e := range s.wire.Events(faultwire.Delete) {
		filters = append(filters, e.Filters()...)
	}
	return filters
}

func TestRangeIsSplit(t *testing.T) {
	for _, test := range []struct{ chunk, n, want int }{
		{0, 1, 1}, {0, 10_000, 1}, {50_000, 10_001, 2}, {7, 50, 8}, {50, 50, 1}, {1, 3, 3},
	} {
		t.Run(fmt.Sprintf("%d by %d", test.n, test.chunk), func(t *testing.T) {
			s := onSim(t, mongosim.Config{})
			from := first(uint32(0x1000000 - test.n)) // up to the very end of the counter
			foreign := s.store(t, doc(after(from, -1)), doc(after(from, test.n)))
			mine := s.store(t, run(from, test.n)...)
			policy := quick()
			policy.ChunkRange = test.chunk
			report := s.undo(t, policy, rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: test.n}}})
			s.has(t, foreign...)
			if report.Deleted != int64(len(mine)) || report.Commands != test.want || len(s.deletes()) != test.want {
				t.Errorf("report %+v and %d deletes on the wire, want %d deletes", report, len(s.deletes()), test.want)
			}
			if n := s.wire.Count(); n != test.want {
				t.Errorf("%d commands, want nothing but the deletes:\n%v", n, s.wire)
			}
		})
	}
}

// However many documents there are, a rollback of minted ids costs one delete for each 10,000.
func TestCountOfCommands(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		n, want := 100_000, 10
		if s.server.Kind == servertest.KindEmbedded { // which is slow
			n, want = 20_001, 3
		}
		from := first(0x123456)
		s.store(t, run(from, n)...)
		report := s.undo(t, rollback.Policy{}, rollback.Target{Collection: s.coll, Ranges: []rollback.Range{{First: from, Count: n}}})
		if deletes, all := s.wire.Count(faultwire.Delete), s.wire.Count(); deletes != want || all != want {
			t.Errorf("%d deletes and %d commands in all, want %d deletes only", deletes, all, want)
		}
		if report.Deleted != int64(n) || report.Commands != want || report.Passes != 1 {
			t.Errorf("report %+v", report)
		}
		if left := s.count(t); left != 0 {
			t.Errorf("%d documents left", left)
		}
	})
}

func TestIDsAreChunked(t *testing.T) {
	onEach(t, func(t *testing.T, s *site) {
		long := func(i int) string { return fmt.Sprintf("%05d", i) + strings.Repeat("x", 1_000) }
		tests := []struct {
			name  string
			n     int
			chunk int
			id    func(int) any
			keys  bool
			want  int // deletes
		}{
			{"by number", 2_500, 0, func(i int) any { return i }, false, 3},
			{"by number, a multiple", 2_000, 0, func(i int) any { return i }, false, 2},
			{"by a number of one's own", 10, 3, func(i int) any { return i }, false, 4},
			{"by at most 10,000", 15_000, 100_000, func(i int) any { return i }, false, 2},
			// 1,038 ids of 1,010 bytes are the most that fit into 2^20.
			{"by size", 5_000, 10_000, func(i int) any { return long(i) }, false, 5},
			// With a shard key of the same size, half as many.
			{"by size, with shard keys", 2_000, 0, func(i int) any { return long(i) }, true, 4},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				before := len(s.deletes())
				target := rollback.Target{Collection: s.coll, Acknowledged: true}
				for i := range test.n {
					target.IDs = append(target.IDs, test.id(i))
					if test.keys {
						target.ShardKeys = append(target.ShardKeys, bson.D{{Key: "region", Value: long(i)}})
					}
				}
				policy := quick()
				policy.ChunkIDs = test.chunk
				s.undo(t, policy, target)
				filters := s.deletes()[before:]
				if len(filters) != test.want {
					t.Errorf("%d deletes, want %d", len(filters), test.want)
				}
				for _, filter := range filters {
					// 20 bytes at most for an array's key and type, and for operators.
					if limit := 1<<20 + 100*2_000; len(filter) > limit {
						t.Errorf("a filter of %d bytes, want at most %d", len(filter), limit)
					}
				}
			})
		}
	})
}
