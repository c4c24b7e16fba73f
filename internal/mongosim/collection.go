package mongosim

import (
	"encoding/binary"
	"maps"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// dataset is what one member of the set has stored, and everything that a failover can roll back: collections and the
// history of retryable writes (MongoDB keeps it in config.transactions, as data).
type dataset struct {
	collections map[string]*collection // by namespace
	sessions    map[string]*history    // by lsid
	position    int64                  // number of writes applied, the optime
}

func newDataset() *dataset {
	return &dataset{collections: map[string]*collection{}, sessions: map[string]*history{}}
}

// clone is a snapshot that later writes to d do not touch, and the other way round.
func (d *dataset) clone() *dataset {
	c := &dataset{collections: make(map[string]*collection, len(d.collections)),
		sessions: make(map[string]*history, len(d.sessions)), position: d.position}
	for ns, coll := range d.collections {
		c.collections[ns] = coll.clone()
	}
	for id, h := range d.sessions {
		h.shared = true
		c.sessions[id] = h
	}
	return c
}

// collection is a collection or a view.
type collection struct {
	ns      string
	uuid    [16]byte
	options []byte // the elements given to create, as listCollections returns them
	viewOn  string
	series  bool

	records tree[int64, []byte] // documents in the order of their insertion
	next    int64               // the last record's number
	bytes   int64
	indexes []*index // the first is on _id
	coll    collation

	capped     bool
	maxBytes   int64
	maxRecords int64

	validator       *filter
	validateWarn    bool // validationAction: warn
	validateNothing bool // validationLevel: off

	shardKey []string       // nil for a collection that is not sharded
	shards   map[string]int // the shard of every value of the shard key

	discard   bool  // documents are counted and checked, not kept
	discarded int64 // how many
}

func newCollection(ns string, serial uint64, c collation) *collection {
	coll := &collection{ns: ns, coll: c}
	binary.BigEndian.PutUint64(coll.uuid[8:], serial)
	coll.indexes = []*index{{name: "_id_", fields: []indexField{{path: []string{"_id"}, name: "_id", direction: 1}}, unique: true, coll: c}}
	return coll
}

func (c *collection) clone() *collection {
	d := *c
	d.records = c.records.clone()
	d.shards = maps.Clone(c.shards)
	d.indexes = make([]*index, len(c.indexes))
	for i, x := range c.indexes {
		y := *x
		y.entries = x.entries.clone()
		d.indexes[i] = &y
	}
	return &d
}

func (c *collection) count() int64 {
	return int64(c.records.size) + c.discarded
}

// insert checks the unique indexes and stores doc, which must have its _id first. It returns the record's number.
func (c *collection) insert(doc []byte) (int64, error) {
	if c.discard {
		c.discarded++
		return 0, nil
	}
	id := c.next + 1
	if err := c.index(doc, id, 0); err != nil {
		return 0, err
	}
	c.next = id
	c.records.set(id, doc)
	c.bytes += int64(len(doc))
	return id, nil
}

// index adds doc's entries to every index, or to none if one of them refuses. Entries of the record old do not count as
// duplicates; they are the caller's to remove.
func (c *collection) index(doc []byte, id, old int64) error {
	var buf [4]indexKeys
	all := buf[:0]
	for _, x := range c.indexes {
		keys, err := x.keys(doc)
		if err != nil {
			return err
		}
		if x.unique {
			for _, k := range keys {
				if other, ok := x.entries.get(k); ok && other != old {
					return &duplicate{index: x, doc: doc, key: k}
				}
			}
		} else if x.name == "_id_" {
			if c.idOnShard(keys[0], c.shard(doc), old) {
				return &duplicate{index: x, doc: doc, key: keys[0]}
			}
		}
		all = append(all, keys)
	}
	if old != 0 {
		c.unindex(old)
	}
	for i, x := range c.indexes {
		for _, k := range all[i] {
			x.put(k, id)
		}
	}
	return nil
}

func (c *collection) unindex(id int64) {
	doc, _ := c.records.get(id)
	for _, x := range c.indexes {
		keys, err := x.keys(doc)
		if err != nil {
			continue // cannot be: it was indexed
		}
		for _, k := range keys {
			x.remove(k, id)
		}
	}
}

func (c *collection) delete(id int64) {
	doc, ok := c.records.get(id)
	if !ok {
		return
	}
	c.unindex(id)
	c.records.delete(id)
	c.bytes -= int64(len(doc))
}

func (c *collection) replace(id int64, doc []byte) error {
	old, _ := c.records.get(id)
	if err := c.index(doc, id, id); err != nil {
		return err
	}
	c.records.set(id, doc)
	c.bytes += int64(len(doc) - len(old))
	return nil
}

// evictee is the record that a capped collection gives up next, if it is too full.
func (c *collection) evictee() (int64, bool) {
	if !c.capped || c.records.size < 2 || !(c.bytes > c.maxBytes || c.maxRecords > 0 && int64(c.records.size) > c.maxRecords) {
		return 0, false
	}
	oldest := int64(0)
	c.records.ascend(bound[int64]{}, bound[int64]{}, func(id int64, _ []byte) bool { oldest = id; return false })
	return oldest, true
}

// idOf is the _id of a stored document.
func idOf(doc []byte) bsoncore.Value {
	v, _ := lookup(doc, "_id")
	return v
}

func splitNamespace(ns string) (db, coll string) {
	db, coll, _ = strings.Cut(ns, ".")
	return db, coll
}
