package journal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/intact-go/intact/internal/journal"
)

// TestModelIsTrue does the same random things to the model's record and to real ones: senders that know the record as it
// is, or as it was long ago, change its state or beat. The records must stay the same.
func TestModelIsTrue(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	onEach(t, func(f *fixture) {
		t := f.T
		random := rand.New(rand.NewPCG(seed, 0))
		heard := make(map[string]int)
		for i := range 40 {
			pairOf(f, fmt.Sprint("record ", i)).run(random, heard)
		}
		for _, what := range []string{"made", "missed", "beat", "beat missed"} {
			if heard[what] < 10 {
				t.Errorf("%q happened %d times, which is not enough to compare", what, heard[what])
			}
		}
	})
}

// pair is a model's record and a real one.
type pair struct {
	f     *fixture
	id    string
	model rec
	// pasts are the records as they were, for senders to know.
	models []rec
	reals  []journal.Record
}

func pairOf(f *fixture, id string) *pair {
	p := &pair{f: f, id: id, model: rec{state: open, version: 1, by: owner}}
	r := record(id)
	r.Owner = name(owner)
	if err := f.Create(f.Context(), r); err != nil {
		f.Fatal(err)
	}
	p.models, p.reals = []rec{p.model}, []journal.Record{r}
	return p
}

func name(by who) string { return fmt.Sprint("host/1/", by) }

func (p *pair) run(random *rand.Rand, heard map[string]int) {
	for range 12 {
		known := max(0, len(p.models)-1-random.IntN(3))
		by := who(1 + random.IntN(3))
		what, told := "", ""
		var err error
		if random.IntN(3) == 0 {
			from := p.models[known]
			told = "beat missed"
			if p.model.count(from) {
				told = "beat"
			}
			what = fmt.Sprintf("a beat from %+v", from)
			err = p.f.Beat(p.f.Context(), p.reals[known])
		} else {
			to, beat := state(1+random.IntN(len(states)-1)), random.IntN(2) == 0
			told = "missed"
			if p.model.swap(p.models[known], to, by, beat) || p.model.made(p.models[known], to, by) {
				told = "made"
			}
			what = fmt.Sprintf("a change from %+v to %s by %d, beat %t", p.models[known], to, by, beat)
			_, err = p.f.Swap(p.f.Context(), p.reals[known], journal.Change{To: states[to], Owner: name(by), Beat: beat})
		}
		heard[told]++
		if missed := told == "missed" || told == "beat missed"; missed != errors.Is(err, journal.ErrLost) || !missed && err != nil {
			p.f.Fatalf("%s: the model says %s, the journal %v", what, told, err)
		}
		real := p.f.stored(p.id)
		if real.State != states[p.model.state] || real.Version != int64(p.model.version) || real.Beat != int64(p.model.beat) || real.Owner != name(p.model.by) {
			p.f.Fatalf("after %s the model's record is %+v, the real one %+v", what, p.model, real)
		}
		p.models, p.reals = append(p.models, p.model), append(p.reals, real)
	}
}
