package mongosim

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTree drives trees and their clones against plain maps: whatever happens to one copy, the others do not see it.
func TestTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type pair struct {
			tree  tree[int, int]
			model map[int]int
		}
		pairs := []*pair{{model: map[int]int{}}}
		key := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 3000))
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			p := pairs[rapid.IntRange(0, len(pairs)-1).Draw(t, "which")]
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				k := key.Draw(t, "key")
				p.tree.set(k, -k)
				p.model[k] = -k
			case 1: // a run of ascending keys, long enough to split nodes
				k := key.Draw(t, "from")
				for i := range rapid.IntRange(1, 600).Draw(t, "run") {
					p.tree.set(k+i, i)
					p.model[k+i] = i
				}
			case 2:
				k := key.Draw(t, "key")
				_, there := p.model[k]
				if p.tree.delete(k) != there {
					t.Fatalf("delete of %d says %v", k, !there)
				}
				delete(p.model, k)
			case 3: // whole ranges, so that nodes become empty
				k := key.Draw(t, "from")
				for i := range rapid.IntRange(1, 600).Draw(t, "run") {
					p.tree.delete(k + i)
					delete(p.model, k+i)
				}
			case 4:
				pairs = append(pairs, &pair{p.tree.clone(), maps.Clone(p.model)})
			}
		}
		for _, p := range pairs {
			if p.tree.size != len(p.model) {
				t.Fatalf("size %d, want %d", p.tree.size, len(p.model))
			}
			for k, v := range p.model {
				if got, ok := p.tree.get(k); !ok || got != v {
					t.Fatalf("get %d: %d %v, want %d", k, got, ok, v)
				}
			}
			lo := bound[int]{key: key.Draw(t, "lo"), set: rapid.Bool().Draw(t, "bounded below"), open: rapid.Bool().Draw(t, "open below")}
			hi := bound[int]{key: key.Draw(t, "hi"), set: rapid.Bool().Draw(t, "bounded above"), open: rapid.Bool().Draw(t, "open above")}
			var want, up, down []int
			for _, k := range slices.Sorted(maps.Keys(p.model)) {
				if lo.set && (k < lo.key || k == lo.key && lo.open) || hi.set && (k > hi.key || k == hi.key && hi.open) {
					continue
				}
				want = append(want, k)
			}
			p.tree.ascend(lo, hi, func(k, _ int) bool { up = append(up, k); return true })
			p.tree.descend(lo, hi, func(k, _ int) bool { down = append(down, k); return true })
			slices.Reverse(down)
			if !slices.Equal(up, want) || !slices.Equal(down, want) {
				t.Fatalf("range %v to %v: up %v, down %v, want %v", lo, hi, up, down, want)
			}
		}
	})
}
