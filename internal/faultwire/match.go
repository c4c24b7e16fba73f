package faultwire

import (
	"slices"
	"strings"
)

// Name is the name of a command. A Name is a Matcher: it matches the commands of that name.
type Name string

// The commands that tests speak of most. Any other name works as well.
const (
	// Any matches every command except those that keep a connection going: hello, ping, endSessions and the
	// authentication. These match only when they are named.
	Any Name = ""

	Insert            Name = "insert"
	Update            Name = "update"
	Delete            Name = "delete"
	BulkWrite         Name = "bulkWrite"
	Find              Name = "find"
	GetMore           Name = "getMore"
	FindAndModify     Name = "findAndModify"
	Aggregate         Name = "aggregate"
	CreateIndexes     Name = "createIndexes"
	ListIndexes       Name = "listIndexes"
	CommitTransaction Name = "commitTransaction"
	AbortTransaction  Name = "abortTransaction"
	Ping              Name = "ping"
	EndSessions       Name = "endSessions"
	// Hello matches the command's old spellings too.
	Hello Name = "hello"
)

// Matcher selects commands. Name and Match are Matchers.
type Matcher interface {
	match(*Request) bool
}

// Match selects commands by name, namespace and content; all conditions must hold. The zero Match is Any.
type Match struct {
	names      []Name
	namespaces []string
	where      []func(*Request) bool
}

// Command matches the commands of these names.
func Command(names ...Name) Match { return Match{names: names} }

// In narrows the match to the given namespaces: "shop.orders" is one collection, "shop" a database with all that is in it.
func (n Name) In(namespaces ...string) Match { return Command(n).In(namespaces...) }

// Where narrows the match to the commands for which the condition holds: see Match.Where.
func (n Name) Where(condition func(*Request) bool) Match { return Command(n).Where(condition) }

// In narrows the match to the given namespaces: "shop.orders" is one collection, "shop" a database with all that is in it.
func (m Match) In(namespaces ...string) Match {
	m.namespaces = slices.Concat(m.namespaces, namespaces)
	return m
}

// Where narrows the match to the commands for which the condition holds. The condition is called in the order in which
// the commands are seen, never twice at a time, and only when all other conditions of the match hold. It must not talk to
// a server through the same wire.
func (m Match) Where(condition func(*Request) bool) Match {
	m.where = append(slices.Clip(m.where), condition)
	return m
}

func (n Name) match(r *Request) bool { return n.covers(r.Name) }

func (n Name) covers(command Name) bool {
	switch n {
	case Any:
		return !command.quiet()
	case Hello:
		return command == Hello || command == "isMaster" || command == "ismaster"
	}
	return command == n
}

// quiet says whether the command belongs to the connection rather than to the application.
func (n Name) quiet() bool {
	switch n {
	case Hello, "isMaster", "ismaster", Ping, EndSessions,
		"saslStart", "saslContinue", "authenticate", "getnonce", "logout":
		return true
	}
	return false
}

func (m Match) match(r *Request) bool {
	if len(m.names) == 0 {
		if !Any.match(r) {
			return false
		}
	} else if !slices.ContainsFunc(m.names, func(n Name) bool { return n.match(r) }) {
		return false
	}
	if len(m.namespaces) > 0 && !slices.ContainsFunc(m.namespaces, func(ns string) bool { return within(r, ns) }) {
		return false
	}
	for _, condition := range m.where {
		if !condition(r) {
			return false
		}
	}
	return true
}

// within tells a database from a collection by the dot: a database's name has none.
func within(r *Request, namespace string) bool {
	if strings.Contains(namespace, ".") {
		return r.Namespace() == namespace
	}
	return r.DB == namespace
}

// matchesAny reports whether one of the matchers matches, or whether there are none and Any does.
func matchesAny(matchers []Matcher, r *Request) bool {
	if len(matchers) == 0 {
		return Any.match(r)
	}
	return slices.ContainsFunc(matchers, func(m Matcher) bool { return m.match(r) })
}

// When says on which commands a fault happens. Its methods narrow that down and return the same When; the methods named
// after a fault end the sentence, and from then on the rule is in force. Where several conditions are given, all must
// hold. A When is not for concurrent use.
type When struct {
	wire     *Wire
	matchers []Matcher
	turns    []func(nth, fired int) bool
}

// On begins a rule for the commands that one of the matchers selects, for Any command without matchers. Nothing happens
// before the sentence is ended by a fault.
func (w *Wire) On(matchers ...Matcher) *When { return &When{wire: w, matchers: matchers} }

// Nth lets the fault happen on the nth matching command only, counted from 1. A command that an earlier rule took is
// not counted.
func (w *When) Nth(n int) *When { return w.turn(func(nth, _ int) bool { return nth == n }) }

// First lets the fault happen on the first k matching commands only.
func (w *When) First(k int) *When { return w.turn(func(nth, _ int) bool { return nth <= k }) }

// Skip lets the first k matching commands pass.
func (w *When) Skip(k int) *When { return w.turn(func(nth, _ int) bool { return nth > k }) }

// EveryNth lets the fault happen on matching commands n, 2n, 3n and so on.
func (w *When) EveryNth(n int) *When { return w.turn(func(nth, _ int) bool { return nth%n == 0 }) }

// Times ends the rule when the fault has happened k times.
func (w *When) Times(k int) *When { return w.turn(func(_, fired int) bool { return fired < k }) }

// Once ends the rule when the fault has happened once.
func (w *When) Once() *When { return w.Times(1) }

// Sometimes lets the fault happen with probability p. The random numbers are drawn one for each command that gets as far
// as this condition, in the order in which the commands are seen, so that one seed gives one schedule. A *rand.Rand of
// math/rand or math/rand/v2 fits; it belongs to the wire from now on.
func (w *When) Sometimes(p float64, random interface{ Float64() float64 }) *When {
	return w.turn(func(int, int) bool { return random.Float64() < p })
}

func (w *When) turn(condition func(nth, fired int) bool) *When {
	w.turns = append(w.turns, condition)
	return w
}
