package mongosim

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// shardCount is how many shards a sharded collection is spread over. Values of the shard key are dealt out to them in the
// order in which they are first seen, so that two values are on two shards.
const shardCount = 2

// shardBy makes a new, empty collection a sharded one. Its _id index is no longer unique: idOnShard takes its place.
func (c *collection) shardBy(field string) {
	c.shardKey = strings.Split(field, ".")
	c.shards = map[string]int{}
	c.indexes[0].unique = false
}

// shard is where a document belongs; one without the shard key counts as null (since 4.4).
func (c *collection) shard(doc []byte) int {
	v, ok := at(doc, c.shardKey)
	if !ok {
		v = bsoncore.Value{Type: bsoncore.TypeNull}
	}
	key := string(collation{}.order(nil, v))
	n, ok := c.shards[key]
	if !ok {
		n = len(c.shards) % shardCount
		c.shards[key] = n
	}
	return n
}

// idOnShard says whether another record than old has this _id on this shard.
func (c *collection) idOnShard(key string, shard int, old int64) bool {
	return slices.ContainsFunc(c.indexes[0].lookup(key), func(id int64) bool {
		doc, _ := c.records.get(id)
		return id != old && c.shard(doc) == shard
	})
}

// targets says whether a filter names one value of the shard key.
func (c *collection) targets(f *filter) bool {
	return slices.ContainsFunc(conjuncts(f), func(p *filter) bool { return p.op == "$eq" && slices.Equal(p.path, c.shardKey) })
}

// covers says whether an index begins with the shard key, as a unique one must.
func (x *index) covers(shardKey []string) bool { return slices.Equal(x.fields[0].path, shardKey) }

// onShards runs a write of one document as a mongos does: on one shard if the filter names the shard key; on every shard if
// it names an _id, which can reach one document on each of them (before 8.0); otherwise not at all before 7.0, and on the
// first shard that has a match since (manual, "Sharded Cluster Query Routing", "deleteOne: Sharded Collections").
func (op *operation) onShards(c *collection, f *filter, run func(*filter) (int32, error)) (int32, error) {
	if c.targets(f) {
		return run(f)
	}
	byID := slices.ContainsFunc(conjuncts(f), func(p *filter) bool { return p.op == "$eq" && p.field == "_id" })
	if !byID && op.server.config.MaxWireVersion < 21 {
		return 0, errorf(codeShardKeyNotFound, "A single update/delete on a sharded collection must contain an exact match on _id or contain the shard key.")
	}
	total := int32(0)
	for shard := range shardCount {
		n, err := run(&filter{op: "$and", kids: []*filter{f, {op: "shard", on: func(doc []byte) bool { return c.shard(doc) == shard }}}})
		total += n
		if err != nil || n > 0 && !byID {
			return total, err
		}
	}
	return total, nil
}
