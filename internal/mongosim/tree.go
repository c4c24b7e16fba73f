package mongosim

import (
	"cmp"
	"slices"
)

// maxNode is the number of keys a node holds before it is split.
const maxNode = 96

// tree is an ordered map kept as a B+ tree whose nodes are copied when they are shared: clone costs nothing, and the
// copies then diverge node by node. Snapshots (a majority point that lags, a stale secondary) are therefore free until
// somebody writes. Nodes that become empty are cut off; half-empty ones are not merged, because a simulated database
// does not live long enough to profit.
type tree[K cmp.Ordered, V any] struct {
	root  *node[K, V]
	owner *owner
	size  int
}

// owner marks the tree that may change a node in place. It has a size so that every new owner has its own address.
type owner struct{ _ byte }

// node is a leaf (kids is nil, vals is parallel to keys) or an inner node (keys[i] is the lowest key below kids[i]).
type node[K cmp.Ordered, V any] struct {
	owner *owner
	keys  []K
	vals  []V
	kids  []*node[K, V]
}

// bound is one end of a range; the zero value is no bound.
type bound[K cmp.Ordered] struct {
	key  K
	set  bool
	open bool // the key itself is outside
}

func (t *tree[K, V]) clone() tree[K, V] {
	t.owner = &owner{}
	return tree[K, V]{root: t.root, owner: &owner{}, size: t.size}
}

// mutable returns n itself if this tree owns it, else a copy that it owns.
func (t *tree[K, V]) mutable(n *node[K, V]) *node[K, V] {
	if t.owner == nil {
		t.owner = &owner{}
	}
	if n.owner == t.owner {
		return n
	}
	c := &node[K, V]{owner: t.owner, keys: slices.Clone(n.keys)}
	if n.kids != nil {
		c.kids = slices.Clone(n.kids)
	} else {
		c.vals = slices.Clone(n.vals)
	}
	return c
}

// child is the index of the kid that holds k, if any does.
func (n *node[K, V]) child(k K) int {
	i, found := slices.BinarySearch(n.keys, k)
	if !found && i > 0 {
		i--
	}
	return i
}

func (t *tree[K, V]) get(k K) (v V, ok bool) {
	n := t.root
	if n == nil {
		return v, false
	}
	for n.kids != nil {
		n = n.kids[n.child(k)]
	}
	i, found := slices.BinarySearch(n.keys, k)
	if !found {
		return v, false
	}
	return n.vals[i], true
}

func (t *tree[K, V]) set(k K, v V) {
	if t.root == nil {
		t.root = &node[K, V]{owner: t.owner}
	}
	t.root = t.mutable(t.root)
	if right := t.insert(t.root, k, v); right != nil {
		left := t.root
		t.root = &node[K, V]{owner: t.owner, keys: []K{left.keys[0], right.keys[0]}, kids: []*node[K, V]{left, right}}
	}
}

// insert puts k below n, which t owns, and returns the new right neighbour of n if n had to be split.
func (t *tree[K, V]) insert(n *node[K, V], k K, v V) *node[K, V] {
	if n.kids == nil {
		i, found := slices.BinarySearch(n.keys, k)
		if found {
			n.vals[i] = v
			return nil
		}
		t.size++
		n.keys = slices.Insert(n.keys, i, k)
		n.vals = slices.Insert(n.vals, i, v)
	} else {
		i := n.child(k)
		kid := t.mutable(n.kids[i])
		n.kids[i] = kid
		right := t.insert(kid, k, v)
		n.keys[i] = kid.keys[0]
		if right != nil {
			n.keys = slices.Insert(n.keys, i+1, right.keys[0])
			n.kids = slices.Insert(n.kids, i+1, right)
		}
	}
	if len(n.keys) <= maxNode {
		return nil
	}
	at := len(n.keys) / 2
	if n.keys[len(n.keys)-1] == k {
		// Ascending keys (ids, record numbers) leave full nodes behind them instead of halves.
		at = len(n.keys) - 1
	}
	right := &node[K, V]{owner: t.owner, keys: append(make([]K, 0, maxNode+1), n.keys[at:]...)}
	if n.kids == nil {
		right.vals = append(make([]V, 0, maxNode+1), n.vals[at:]...)
		clear(n.vals[at:])
		n.vals = n.vals[:at]
	} else {
		right.kids = append(make([]*node[K, V], 0, maxNode+1), n.kids[at:]...)
		clear(n.kids[at:])
		n.kids = n.kids[:at]
	}
	clear(n.keys[at:])
	n.keys = n.keys[:at]
	return right
}

func (t *tree[K, V]) delete(k K) bool {
	if _, ok := t.get(k); !ok {
		return false
	}
	t.root = t.mutable(t.root)
	t.remove(t.root, k)
	t.size--
	for t.root != nil {
		switch {
		case len(t.root.keys) == 0:
			t.root = nil
		case len(t.root.kids) == 1:
			t.root = t.root.kids[0]
		default:
			return true
		}
	}
	return true
}

func (t *tree[K, V]) remove(n *node[K, V], k K) {
	if n.kids == nil {
		i, _ := slices.BinarySearch(n.keys, k)
		n.keys = slices.Delete(n.keys, i, i+1)
		n.vals = slices.Delete(n.vals, i, i+1)
		return
	}
	i := n.child(k)
	kid := t.mutable(n.kids[i])
	n.kids[i] = kid
	t.remove(kid, k)
	if len(kid.keys) == 0 {
		n.keys = slices.Delete(n.keys, i, i+1)
		n.kids = slices.Delete(n.kids, i, i+1)
		return
	}
	n.keys[i] = kid.keys[0]
}

// ascend calls f for the entries between lo and hi in order until f returns false. f must not change the tree.
func (t *tree[K, V]) ascend(lo, hi bound[K], f func(K, V) bool) {
	if t.root != nil {
		t.root.ascend(lo, hi, f)
	}
}

func (n *node[K, V]) ascend(lo, hi bound[K], f func(K, V) bool) bool {
	i := 0
	if lo.set {
		if n.kids != nil {
			i = n.child(lo.key)
		} else {
			var found bool
			if i, found = slices.BinarySearch(n.keys, lo.key); found && lo.open {
				i++
			}
		}
	}
	for ; i < len(n.keys); i++ {
		if hi.set && (n.keys[i] > hi.key || hi.open && n.keys[i] == hi.key) {
			return false
		}
		if n.kids == nil {
			if !f(n.keys[i], n.vals[i]) {
				return false
			}
		} else if !n.kids[i].ascend(lo, hi, f) {
			return false
		}
	}
	return true
}

// descend is ascend from the other end.
func (t *tree[K, V]) descend(lo, hi bound[K], f func(K, V) bool) {
	if t.root != nil {
		t.root.descend(lo, hi, f)
	}
}

func (n *node[K, V]) descend(lo, hi bound[K], f func(K, V) bool) bool {
	i := len(n.keys) - 1
	if hi.set {
		j, found := slices.BinarySearch(n.keys, hi.key)
		switch {
		case found && (n.kids != nil || !hi.open):
			i = j
		default:
			i = j - 1
		}
	}
	for ; i >= 0; i-- {
		if n.kids != nil {
			if !n.kids[i].descend(lo, hi, f) {
				return false
			}
			continue
		}
		if lo.set && (n.keys[i] < lo.key || lo.open && n.keys[i] == lo.key) {
			return false
		}
		if !f(n.keys[i], n.vals[i]) {
			return false
		}
	}
	return true
}
