package rollback

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// maxFilterBytes bounds the ids and shard keys in one command, so that long ids do not make a filter that no server takes.
const maxFilterBytes = 1 << 20

// step is one delete command's worth of documents, or, if unproven, one read's.
type step struct {
	coll     *mongo.Collection
	filter   bson.D
	ids      []bson.RawValue // what the filter names; nil for a range
	span     Range           // what the filter spans; Count is 0 for ids
	size     int             // how many documents the filter can match
	late     bool
	bare     bool // the ids alone are the proof, for one delete: whoever has one later is somebody else
	sharded  bool // the filter names shard keys
	unproven bool

	err  error // why this step was given up; nil while it is not
	left []Leftover
}

func (s *step) namespace() string {
	return s.coll.Database().Name() + "." + s.coll.Name()
}

// leftovers lists everything that the step is about.
func (s *step) leftovers() []Leftover {
	all := make([]Leftover, 0, s.size)
	for _, id := range s.ids {
		all = append(all, Leftover{Collection: s.namespace(), ID: id})
	}
	except := make(map[bson.ObjectID]bool, len(s.span.Except))
	for _, id := range s.span.Except {
		except[id] = true
	}
	for i := range s.span.Count {
		if id := s.span.at(i); !except[id] {
			all = append(all, Leftover{Collection: s.namespace(), ID: bson.RawValue{Type: bson.TypeObjectID, Value: id[:]}})
		}
	}
	return all
}

// at returns the i-th id of the range, which must not pass the end of the counter.
func (r Range) at(i int) bson.ObjectID {
	id := r.First
	counter := uint32(id[9])<<16 | uint32(id[10])<<8 | uint32(id[11])
	var next [4]byte
	binary.BigEndian.PutUint32(next[:], counter+uint32(i))
	copy(id[9:], next[1:])
	return id
}

func (r Range) check() error {
	counter := int(r.First[9])<<16 | int(r.First[10])<<8 | int(r.First[11])
	if r.Count < 1 || r.Count > 1<<24-counter {
		return fmt.Errorf("a range of %d ids from %s does not fit the three bytes of an ObjectID's counter", r.Count, r.First.Hex())
	}
	return nil
}

// split cuts the range into parts of at most n ids and gives each the exceptions that lie in it, once each: they are
// counted.
func (r Range) split(n int) []Range {
	var parts []Range
	except := slices.Clone(r.Except)
	slices.SortFunc(except, func(a, b bson.ObjectID) int { return bytes.Compare(a[:], b[:]) })
	except = slices.Compact(except)
	for from := 0; from < r.Count; from += n {
		part := Range{First: r.at(from), Count: min(n, r.Count-from)}
		last := part.at(part.Count - 1)
		for _, id := range except {
			if string(id[:]) >= string(part.First[:]) && string(id[:]) <= string(last[:]) {
				part.Except = append(part.Except, id)
			}
		}
		if len(part.Except) < part.Count {
			parts = append(parts, part)
		}
	}
	return parts
}

func (r Range) filter() bson.D {
	between := bson.D{{Key: "$gte", Value: r.First}, {Key: "$lte", Value: r.at(r.Count - 1)}}
	if len(r.Except) > 0 {
		between = append(between, bson.E{Key: "$nin", Value: r.Except})
	}
	return bson.D{{Key: "_id", Value: between}}
}

// plan turns a target into steps. It is the only place where delete filters are made.
func plan(target Target, policy Policy) ([]*step, error) {
	if target.Collection == nil {
		return nil, errors.New("no collection")
	}
	if ids := len(target.IDs) + len(target.Unproven); target.ShardKeys != nil && len(target.ShardKeys) != ids {
		return nil, fmt.Errorf("%d shard keys for %d ids; give one for each id or none", len(target.ShardKeys), ids)
	}
	if i := slices.Index(target.Fence, nil); i >= 0 {
		return nil, fmt.Errorf("session %d is nil", i)
	}
	proof, err := target.proof()
	if err != nil {
		return nil, err
	}
	coll := target.Collection.Clone(options.Collection().
		SetWriteConcern(policy.WriteConcern).
		SetReadConcern(readconcern.Local()).
		SetReadPreference(readpref.Primary()).
		SetRegistry(bson.NewRegistry()).
		SetBSONOptions(&options.BSONOptions{}))

	var steps []*step
	for i, whole := range target.Ranges {
		if err := whole.check(); err != nil {
			return nil, fmt.Errorf("range %d: %w", i, err)
		}
		for _, part := range whole.split(policy.ChunkRange) {
			steps = append(steps, &step{coll: coll, filter: part.filter(), span: part, size: part.Count - len(part.Except), late: target.Late})
		}
	}
	ids, err := rawIDs("id", target.IDs)
	if err != nil {
		return nil, err
	}
	keys, err := rawShardKeys(target.ShardKeys)
	if err != nil {
		return nil, err
	}
	var unprovenKeys []shardKey
	if keys != nil {
		keys, unprovenKeys = keys[:len(ids)], keys[len(ids):]
	}
	for from, to := range chunks(ids, keys, policy.ChunkIDs) {
		steps = append(steps, &step{coll: coll, filter: append(byIDs(ids, keys, from, to), proof...), ids: ids[from:to], size: to - from, late: target.Late, bare: proof == nil, sharded: keys != nil})
	}
	unproven, err := rawIDs("unproven id", target.Unproven)
	if err != nil {
		return nil, err
	}
	for from, to := range chunks(unproven, unprovenKeys, policy.ChunkIDs) {
		steps = append(steps, &step{coll: coll, filter: byIDs(unproven, unprovenKeys, from, to), ids: unproven[from:to], size: to - from, unproven: true})
	}
	return steps, nil
}

// proof returns what is added to the filter of IDs.
func (target Target) proof() (bson.D, error) {
	if target.Stamp.Field == "" && target.Stamp.Value == nil {
		if len(target.IDs) > 0 && !target.Acknowledged {
			return nil, errors.New("ids without a proof that their documents are yours: set Stamp, or Acknowledged if the server acknowledged their inserts, or put them into Unproven")
		}
		return nil, nil
	}
	if target.Stamp.Field == "" || target.Stamp.Field == "_id" || strings.ContainsAny(target.Stamp.Field, "$.\x00") {
		return nil, fmt.Errorf("stamp field %q: it must be the name of a top-level field without $ or dots", target.Stamp.Field)
	}
	if target.Stamp.Value == nil {
		return nil, errors.New("a stamp without a value would match documents that have no such field")
	}
	kind, value, err := bson.MarshalValue(target.Stamp.Value)
	if err != nil {
		return nil, fmt.Errorf("stamp value: %w", err)
	}
	raw := bson.RawValue{Type: kind, Value: value}
	if err := checkID(raw); err != nil || kind == bson.TypeNull {
		return nil, fmt.Errorf("stamp value of type %s cannot be compared for equality", kind)
	}
	return bson.D{{Key: target.Stamp.Field, Value: bson.D{{Key: "$eq", Value: raw}}}}, nil
}

// byIDs selects the documents with the ids from one to before another, by their shard keys too if those are given.
func byIDs(ids []bson.RawValue, keys []shardKey, from, to int) bson.D {
	if keys == nil {
		return bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids[from:to]}}}}
	}
	either := make(bson.A, to-from)
	for i := range either {
		one := bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: ids[from+i]}}}}
		for _, field := range keys[from+i].fields {
			one = append(one, bson.E{Key: field.Key(), Value: bson.D{{Key: "$eq", Value: field.Value()}}})
		}
		either[i] = one
	}
	return bson.D{{Key: "$or", Value: either}}
}

// shardKey is the values of one document's shard key, encoded.
type shardKey struct {
	fields []bson.RawElement
	size   int
}

// rawShardKeys encodes the shard keys, so that none is found out to be impossible when deletes are under way.
func rawShardKeys(keys []bson.D) ([]shardKey, error) {
	if keys == nil {
		return nil, nil
	}
	encoded := make([]shardKey, len(keys))
	for i, key := range keys {
		raw, err := bson.Marshal(append(bson.D{}, key...))
		if err != nil {
			return nil, fmt.Errorf("shard key %d: %w", i, err)
		}
		fields, err := bson.Raw(raw).Elements()
		if err != nil {
			return nil, fmt.Errorf("shard key %d: %w", i, err)
		}
		for _, field := range fields {
			if name := field.Key(); name == "" || strings.HasPrefix(name, "$") {
				return nil, fmt.Errorf("shard key %d: %q is not the name of a field", i, name)
			}
		}
		encoded[i] = shardKey{fields: fields, size: len(raw)}
	}
	return encoded, nil
}

func rawIDs(what string, values []any) ([]bson.RawValue, error) {
	ids := make([]bson.RawValue, len(values))
	for i, value := range values {
		raw, ok := value.(bson.RawValue)
		if !ok {
			kind, encoded, err := bson.MarshalValue(value)
			if err != nil {
				return nil, fmt.Errorf("%s %d: %w", what, i, err)
			}
			raw = bson.RawValue{Type: kind, Value: encoded}
		}
		if err := checkID(raw); err != nil {
			return nil, fmt.Errorf("%s %d: %w", what, i, err)
		}
		ids[i] = raw
	}
	return ids, nil
}

// checkID refuses what is no _id and would match something else than itself in a filter.
func checkID(id bson.RawValue) error {
	switch id.Type {
	case bson.TypeArray, bson.TypeRegex, bson.TypeUndefined, 0:
		return fmt.Errorf("a value of type %s cannot be an _id", id.Type)
	}
	// Bytes behind the value would become further parts of the filter.
	value, rest, ok := bsoncore.ReadValue(id.Value, bsoncore.Type(id.Type))
	if !ok || len(rest) > 0 {
		return fmt.Errorf("%d bytes are no value of type %s", len(id.Value), id.Type)
	}
	if err := value.Validate(); err != nil {
		return err
	}
	if id.Type != bson.TypeEmbeddedDocument {
		return nil
	}
	var elements bson.D // decoded, because Validate does not look into documents within
	if err := bson.Unmarshal(id.Value, &elements); err != nil {
		return err
	}
	for _, element := range elements {
		if strings.HasPrefix(element.Key, "$") {
			return fmt.Errorf("a document with the key %q is a query operator, not an _id", element.Key)
		}
	}
	return nil
}

// chunks yields the bounds of runs of at most n ids and maxFilterBytes bytes, those of the shard keys included.
func chunks(ids []bson.RawValue, keys []shardKey, n int) func(yield func(from, to int) bool) {
	return func(yield func(from, to int) bool) {
		from, total := 0, 0
		for i, id := range ids {
			size := len(id.Value)
			if keys != nil {
				size += keys[i].size
			}
			if i > from && (i-from == n || total+size > maxFilterBytes) {
				if !yield(from, i) {
					return
				}
				from, total = i, 0
			}
			total += size
		}
		if from < len(ids) {
			yield(from, len(ids))
		}
	}
}
