package faultwire_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/internal/faultwire"
)

// Ten inserts, of which some are refused: which, depends on the turns.
func TestTurns(t *testing.T) {
	for _, row := range []struct {
		name    string
		turns   func(*faultwire.When) *faultwire.When
		refused string // x for a refused insert
	}{
		{"every", func(w *faultwire.When) *faultwire.When { return w }, "xxxxxxxxxx"},
		{"second", func(w *faultwire.When) *faultwire.When { return w.Nth(2) }, ".x........"},
		{"first three", func(w *faultwire.When) *faultwire.When { return w.First(3) }, "xxx......."},
		{"once", func(w *faultwire.When) *faultwire.When { return w.Once() }, "x........."},
		{"all but four", func(w *faultwire.When) *faultwire.When { return w.Skip(4) }, "....xxxxxx"},
		{"third, sixth, ninth", func(w *faultwire.When) *faultwire.When { return w.EveryNth(3) }, "..x..x..x."},
		{"twice, after five", func(w *faultwire.When) *faultwire.When { return w.Skip(5).Times(2) }, ".....xx..."},
		{"third to fifth", func(w *faultwire.When) *faultwire.When { return w.Skip(2).First(5) }, "..xxx....."},
		{"always", func(w *faultwire.When) *faultwire.When { return w.Sometimes(1, random()) }, "xxxxxxxxxx"},
		{"never", func(w *faultwire.When) *faultwire.When { return w.Sometimes(0, random()) }, ".........."},
		{"by chance", func(w *faultwire.When) *faultwire.When { return w.Sometimes(0.5, random()) }, chance(10)},
		{"by chance, behind two", func(w *faultwire.When) *faultwire.When { return w.Skip(2).Sometimes(0.5, random()) }, ".." + chance(8)},
	} {
		t.Run(row.name, func(t *testing.T) {
			wire := faultwire.ForTest(t)
			s := start(t)
			orders := s.connect(t, wire)
			rule := row.turns(wire.On(faultwire.Insert)).Reply(faultwire.CommandError{Code: 13})
			refused := ""
			for i := range 10 {
				if _, err := orders.InsertMany(t.Context(), docs(i)); err != nil {
					refused += "x"
				} else {
					refused += "."
				}
			}
			same(t, "refused", refused, row.refused)
			same(t, "Fired", rule.Fired(), strings.Count(refused, "x"))
			same(t, "Matched", rule.Matched(), 10)
			same(t, "stored", len(s.ids()), strings.Count(refused, "."))
		})
	}
}

func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// chance is what the seed of random gives.
func chance(n int) string {
	r, s := random(), ""
	for range n {
		if r.Float64() < 0.5 {
			s += "x"
		} else {
			s += "."
		}
	}
	return s
}

func TestMatch(t *testing.T) {
	three := func(r *faultwire.Request) bool { return len(r.Documents()) == 3 }
	for _, row := range []struct {
		name     string
		matchers []faultwire.Matcher
		takes    string // of: insert of 3 into shop.orders, of 1 into shop.lines, of 3 into store.orders, delete, find, ping
	}{
		{"nothing said", nil, "iIJdf."},
		{"any", []faultwire.Matcher{faultwire.Any}, "iIJdf."},
		{"zero match", []faultwire.Matcher{faultwire.Match{}}, "iIJdf."},
		{"name", []faultwire.Matcher{faultwire.Insert}, "iIJ..."},
		{"names", []faultwire.Matcher{faultwire.Command("delete", faultwire.Find)}, "...df."},
		{"one of two", []faultwire.Matcher{faultwire.Delete, faultwire.Find}, "...df."},
		{"collection", []faultwire.Matcher{faultwire.Insert.In("shop.orders")}, "i....."},
		{"collections", []faultwire.Matcher{faultwire.Insert.In("shop.orders", "store.orders")}, "i.J..."},
		{"database", []faultwire.Matcher{faultwire.Any.In("shop")}, "iI.df."},
		{"content", []faultwire.Matcher{faultwire.Insert.Where(three)}, "i.J..."},
		{"content of any", []faultwire.Matcher{faultwire.Match{}.Where(three).In("store")}, "..J..."},
		{"contents", []faultwire.Matcher{faultwire.Insert.Where(three).Where(func(r *faultwire.Request) bool { return r.DB == "shop" })}, "i....."},
		{"named ping", []faultwire.Matcher{faultwire.Ping}, ".....p"},
		{"ping among others", []faultwire.Matcher{faultwire.Command(faultwire.Ping, faultwire.Find)}, "....fp"},
		{"unknown", []faultwire.Matcher{faultwire.Name("explode")}, "......"},
	} {
		t.Run(row.name, func(t *testing.T) {
			wire := faultwire.ForTest(t)
			orders := start(t).connect(t, wire)
			client := orders.Database().Client()
			rule := wire.On(row.matchers...).Reply(faultwire.CommandError{Code: 13})
			steps := []struct {
				letter string
				run    func() error
			}{
				{"i", func() error { _, err := orders.InsertMany(t.Context(), docs(1, 2, 3)); return err }},
				{"I", func() error {
					_, err := client.Database("shop").Collection("lines").InsertOne(t.Context(), bson.D{})
					return err
				}},
				{"J", func() error {
					_, err := client.Database("store").Collection("orders").InsertMany(t.Context(), docs(4, 5, 6))
					return err
				}},
				{"d", func() error { _, err := orders.DeleteMany(t.Context(), bson.D{}); return err }},
				{"f", func() error {
					err := orders.Database().RunCommand(t.Context(), bson.D{{Key: "find", Value: "orders"}}).Err()
					return err
				}},
				{"p", func() error { return client.Ping(t.Context(), nil) }},
			}
			taken := ""
			for _, step := range steps {
				before := rule.Fired()
				err := step.run()
				if rule.Fired() > before {
					taken += step.letter
				} else {
					taken += "."
				}
				if (err != nil) != (rule.Fired() > before) {
					t.Errorf("%s: %v", step.letter, err)
				}
			}
			same(t, "taken", taken, row.takes)
		})
	}
}

func TestRulesInOrder(t *testing.T) {
	wire := faultwire.ForTest(t)
	orders := start(t).connect(t, wire)
	reply := func(when *faultwire.When, code int) *faultwire.Rule {
		return when.Reply(faultwire.CommandError{Code: code})
	}
	first := reply(wire.On(faultwire.Insert).Nth(2), 1)
	shield := wire.On(faultwire.Insert).First(2).Pass()
	third := reply(wire.On(faultwire.Insert).Nth(1), 3)
	fourth := reply(wire.On(faultwire.Any), 4)
	insert := func(want string) {
		t.Helper()
		_, err := orders.InsertOne(t.Context(), bson.D{})
		same(t, "insert", outcome(err), want)
	}
	insert("ok")              // the shield's first
	insert("command error 1") // the first rule's second
	insert("ok")              // the shield's second, as it did not see the one before
	insert("command error 3") // the first that came so far
	insert("command error 4")
	fourth.Off()
	insert("ok")
	same(t, "fired", []int{first.Fired(), shield.Fired(), third.Fired(), fourth.Fired()}, []int{1, 2, 1, 1})
	same(t, "matched", []int{first.Matched(), shield.Matched(), third.Matched(), fourth.Matched()}, []int{6, 5, 3, 1})
}

func TestNoRuleBeforeTheSentenceEnds(t *testing.T) {
	wire := faultwire.ForTest(t)
	orders := start(t).connect(t, wire)
	when := wire.On(faultwire.Insert)
	if _, err := orders.InsertOne(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
	rule := when.Nth(1).Reply(faultwire.CommandError{Code: 13})
	when.Nth(7) // comes too late
	_, err := orders.InsertOne(t.Context(), bson.D{})
	same(t, "insert", outcome(err), "command error 13")
	same(t, "Matched", rule.Matched(), 1)
}

func TestCalm(t *testing.T) {
	wire := faultwire.ForTest(t)
	s := start(t)
	orders := s.connect(t, wire)
	held := wire.On(faultwire.Insert).Once().Hold()
	wire.On(faultwire.Insert).Reply(faultwire.CommandError{Code: 13})
	result := make(chan error, 1)
	go func() {
		_, err := orders.InsertMany(context.Background(), docs(1))
		result <- err
	}()
	within(t, "arriving", held.Arrived())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wire.Drain(ctx); err == nil {
		t.Error("drained with an insert that is held")
	}
	wire.Refuse()
	wire.Calm()
	if err := wire.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	same(t, "stored", s.ids(), []int{1})
	same(t, "the held insert", take(t, result), nil)
	if _, err := orders.InsertMany(t.Context(), docs(2)); err != nil {
		t.Errorf("an insert afterwards: %v", err)
	}
	s.dial(t, wire) // fails the test if the server is still down
}
