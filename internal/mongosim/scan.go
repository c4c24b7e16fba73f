package mongosim

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// scan finds the records that match a filter, piece by piece: between two pieces the collection may change, as it does
// in MongoDB when an operation yields. A record deleted meanwhile is skipped, one added behind the position is not seen.
type scan struct {
	filter *filter

	points  []string // order bytes of single _ids
	same    []int64  // records under the point that is being looked at
	byPoint bool

	index    string // name of the index that is walked, "" for the records in their order of insertion
	lo, hi   bound[string]
	backward bool
	seen     map[int64]bool // an index with several keys for one record must yield it once

	last int64
	done bool
}

// newScan chooses how to look: by single _ids, by a range of _ids, by an equality on another index, or by looking at
// everything. The filter decides in any case; the choice only has to reach every record that can match.
func newScan(c *collection, f *filter) *scan {
	s := &scan{filter: f}
	for _, p := range conjuncts(f) {
		if p.field != "_id" || len(p.regex) > 0 {
			continue
		}
		switch p.op {
		case "$eq":
			s.byPoint, s.points = true, []string{string(p.key)}
			return s
		case "$in":
			s.byPoint, s.points = true, make([]string, 0, len(p.set))
			for k := range p.set {
				s.points = append(s.points, k)
			}
			slices.Sort(s.points)
			return s
		case "$gt", "$gte", "$lt", "$lte":
			s.narrow(p)
		}
	}
	if s.index != "" {
		return s
	}
	for _, p := range conjuncts(f) {
		if p.op != "$eq" || p.value.Type == bsoncore.TypeNull || p.value.Type == bsoncore.TypeArray {
			continue
		}
		// A sparse index will do: what it leaves out has no such field and equals nothing but null.
		for _, x := range c.indexes {
			if x.fields[0].name == p.field && x.fields[0].direction > 0 && x.partial == nil {
				s.index, s.lo, s.hi = x.name, bound[string]{key: string(p.key), set: true}, after(p.key)
				s.seen = map[int64]bool{}
				return s
			}
		}
	}
	return s
}

// conjuncts are the predicates that every match must satisfy.
func conjuncts(f *filter) []*filter {
	switch {
	case f == nil:
		return nil
	case f.op == "$and":
		var out []*filter
		for _, k := range f.kids {
			out = append(out, conjuncts(k)...)
		}
		return out
	case f.kids == nil:
		return []*filter{f}
	}
	return nil
}

// after is the bound just above every key that begins with prefix.
func after(prefix []byte) bound[string] {
	end := slices.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return bound[string]{key: string(end[:i+1]), set: true, open: true}
		}
	}
	return bound[string]{}
}

func (s *scan) narrow(p *filter) {
	if p.key[0] == classMin || p.key[0] == classMax {
		return
	}
	s.index = "_id_"
	class := p.key[:1]
	lo, hi := bound[string]{key: string(class), set: true}, after(class)
	if p.op == "$gt" || p.op == "$gte" {
		lo = bound[string]{key: string(p.key), set: true, open: p.op == "$gt"}
	} else {
		hi = bound[string]{key: string(p.key), set: true, open: true}
		if p.op == "$lte" {
			hi = after(p.key) // whether or not the record's number follows the value in the index
		}
	}
	if !s.lo.set || lo.key > s.lo.key || lo.key == s.lo.key && lo.open {
		s.lo = lo
	}
	if !s.hi.set || hi.set && (hi.key < s.hi.key || hi.key == s.hi.key && hi.open) {
		s.hi = hi
	}
}

// run calls f with matching records until it returns false or there are none left; a later run goes on from there.
// f must not change the collection.
func (s *scan) run(c *collection, f func(id int64, doc []byte) bool) {
	if s.done {
		return
	}
	switch {
	case s.byPoint:
		for len(s.points) > 0 || len(s.same) > 0 {
			if len(s.same) == 0 {
				s.same = c.indexes[0].lookup(s.points[0])
				s.points = s.points[1:]
				continue
			}
			id := s.same[0]
			s.same = s.same[1:]
			if !s.offer(c, id, f) {
				return
			}
		}
	case s.index != "":
		x := c.indexNamed(s.index)
		if x == nil {
			break
		}
		stopped := false
		visit := func(k string, id int64) bool {
			if s.backward {
				s.hi = bound[string]{key: k, set: true, open: true}
			} else {
				s.lo = bound[string]{key: k, set: true, open: true}
			}
			if s.seen != nil {
				if s.seen[id] {
					return true
				}
				s.seen[id] = true
			}
			stopped = !s.offer(c, id, f)
			return !stopped
		}
		if s.backward {
			x.entries.descend(s.lo, s.hi, visit)
		} else {
			x.entries.ascend(s.lo, s.hi, visit)
		}
		if stopped {
			return
		}
	default:
		stopped := false
		c.records.ascend(bound[int64]{key: s.last, set: true, open: true}, bound[int64]{}, func(id int64, doc []byte) bool {
			s.last = id
			stopped = s.filter.match(doc) && !f(id, doc)
			return !stopped
		})
		if stopped {
			return
		}
	}
	s.done = true
}

func (s *scan) offer(c *collection, id int64, f func(int64, []byte) bool) bool {
	doc, ok := c.records.get(id)
	if !ok || !s.filter.match(doc) {
		return true
	}
	return f(id, doc)
}

func (c *collection) indexNamed(name string) *index {
	for _, x := range c.indexes {
		if x.name == name {
			return x
		}
	}
	return nil
}
