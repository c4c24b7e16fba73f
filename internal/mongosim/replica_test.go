package mongosim_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/intact-go/intact/internal/mongosim"
)

// journal collects the writes that a server reports.
type journal struct {
	mu     sync.Mutex
	writes []mongosim.Write
}

func (j *journal) observe(w mongosim.Write) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes = append(j.writes, w)
}

func (j *journal) all() []mongosim.Write {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.writes)
}

// member is a raw connection to one member of the set.
func member(t testing.TB, s *mongosim.Server, i int) rawConn {
	t.Helper()
	hosts := strings.Split(strings.TrimPrefix(strings.SplitN(s.URI(), "/?", 2)[0], "mongodb://"), ",")
	return dialRaw(t, s.Dialer().DialContext, strings.TrimSuffix(hosts[i], "/"))
}

// retryable is an insert with a transaction number.
func retryable(session byte, number int64, docs ...any) bson.D {
	return d("insert", "c", "ordered", false, "documents", bson.A(docs), "lsid", d("id", bson.Binary{Subtype: 4, Data: append(make([]byte, 15), session)}),
		"txnNumber", number)
}

func fence(session byte, number int64) bson.D {
	return d("delete", "c", "deletes", bson.A{d("q", d("_id", "never"), "limit", 1)},
		"lsid", d("id", bson.Binary{Subtype: 4, Data: append(make([]byte, 15), session)}), "txnNumber", number)
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// inDB runs a command in the database db and fails the test if the server refuses it.
func (c rawConn) ok(t testing.TB, command bson.D) bson.Raw {
	t.Helper()
	reply, err := c.command("db", command)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// code is the error with which the server refuses a command, 0 for none.
func (c rawConn) code(t testing.TB, command bson.D) int32 {
	t.Helper()
	_, err := c.command("db", command)
	var refused mongo.CommandError
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	return refused.Code
}

func (c rawConn) ids(t testing.TB, find bson.D) []int {
	t.Helper()
	values, err := c.ok(t, find).Lookup("cursor", "firstBatch").Array().Values()
	must(t, err)
	ids := []int{}
	for _, v := range values {
		ids = append(ids, int(v.Document().Lookup("_id").AsInt64()))
	}
	return ids
}

func want[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	must(t, equal(what, got, want))
}

var (
	everything = d("find", "c", "sort", d("_id", 1))
	atMajority = d("find", "c", "sort", d("_id", 1), "readConcern", d("level", "majority"))
	onPrimary1 = d("w", 1)
)

func TestMajorityPointThatLags(t *testing.T) {
	clock := mongosim.NewClock(time.Unix(1_700_000_000, 0))
	s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true, Clock: clock})
	c := member(t, s, 0)
	c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1)}))
	must(t, s.HoldReplication())

	c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 2)}, "writeConcern", onPrimary1))
	want(t, "local", c.ids(t, everything), []int{1, 2})
	want(t, "majority", c.ids(t, atMajority), []int{1})

	// wtimeout passes on the server's clock: the write stands, the reply says that it was not waited for.
	must(t, c.send("db", d("insert", "c", "documents", bson.A{d("_id", 3)}, "writeConcern", d("w", "majority", "wtimeout", 500))))
	clock.BlockUntil(1, t.Context().Done())
	clock.Advance(time.Second)
	reply, err := c.receive()
	must(t, err, commandError(reply))
	want(t, "code", reply.Lookup("writeConcernError", "code").AsInt64(), 64)
	want(t, "wtimeout", reply.Lookup("writeConcernError", "errInfo", "wtimeout").Boolean(), true)
	want(t, "n", reply.Lookup("n").AsInt64(), 1)

	// A write at majority is answered when replication goes on.
	must(t, c.send("db", d("insert", "c", "documents", bson.A{d("_id", 4)}, "writeConcern", d("w", "majority"))))
	other := member(t, s, 0)
	for len(other.ids(t, everything)) < 4 {
	}
	want(t, "majority", other.ids(t, atMajority), []int{1})
	must(t, s.Replicate())
	reply, err = c.receive()
	must(t, err, commandError(reply))
	if _, err := reply.LookupErr("writeConcernError"); err == nil {
		t.Fatalf("%v", reply)
	}
	want(t, "majority", c.ids(t, atMajority), []int{1, 2, 3, 4})
	must(t, s.ReleaseReplication())

	// One lagging member of three is no majority.
	must(t, s.HoldReplication(1))
	c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 5)}, "writeConcern", d("w", "majority")))
	want(t, "majority", c.ids(t, atMajority), []int{1, 2, 3, 4, 5})
	must(t, c.send("db", d("insert", "c", "documents", bson.A{d("_id", 6)}, "writeConcern", d("w", 3, "wtimeout", 500))))
	clock.BlockUntil(1, t.Context().Done())
	clock.Advance(time.Second)
	reply, err = c.receive()
	must(t, err)
	want(t, "code", reply.Lookup("writeConcernError", "code").AsInt64(), 64)
}

func TestFailoverLosesWhatTheMajorityLacks(t *testing.T) {
	for _, members := range []int{1, 3} {
		var seen journal
		s := start(t, mongosim.Config{ReplicaSet: "rs", Members: members, InProcess: true, Observe: seen.observe})
		c := member(t, s, 0)
		c.ok(t, retryable(1, 1, d("_id", 1)))
		must(t, s.HoldReplication())
		c.ok(t, append(retryable(1, 2, d("_id", 2), d("_id", 3)), bson.E{Key: "writeConcern", Value: onPrimary1}))
		c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d("_id", 1), "limit", 1)}, "writeConcern", onPrimary1))
		lost, err := s.Failover()
		must(t, err)
		want(t, "lost writes", len(lost), 3)
		if _, err := c.command("db", everything); err == nil {
			t.Fatal("the connection to the crashed primary is still open")
		}
		var reports []string
		for _, w := range seen.all() {
			if w.RolledBack {
				reports = append(reports, w.Kind.String()+w.ID.String())
			}
		}
		want(t, "reports", strings.Join(reports, " "), `delete{"$numberInt":"1"} insert{"$numberInt":"3"} insert{"$numberInt":"2"}`)

		next := members - 1 // the primary is now the same address, or another one
		if members == 3 {
			next = 1
		}
		c = member(t, s, next)
		want(t, "documents", c.ids(t, everything), []int{1})
		// The history of a retryable write dies with it: a repetition is executed, and an older number is not too old.
		want(t, "n", c.ok(t, retryable(1, 2, d("_id", 2))).Lookup("n").AsInt64(), 1)
		want(t, "documents", c.ids(t, everything), []int{1, 2})
		// What was on the majority is still answered from history.
		c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d("_id", 1), "limit", 1)}))
		want(t, "code", c.code(t, retryable(1, 1, d("_id", 1))), 225)
		if members == 3 {
			want(t, "the old primary", member(t, s, 0).code(t, retryable(2, 1, d("_id", 9))), 10107)
		}
	}
}

// TestHistoryIsCutWhereTheDataIs: of one insert, the statements before the majority point stay in the history, those after
// it are executed again.
func TestHistoryIsCutWhereTheDataIs(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true})
	c := member(t, s, 0)
	c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1, "in the way", true)}))
	insert := append(retryable(1, 1, d("_id", 1), d("_id", 2)), bson.E{Key: "writeConcern", Value: onPrimary1})
	want(t, "n", c.ok(t, insert).Lookup("n").AsInt64(), 1)
	c.ok(t, d("delete", "c", "deletes", bson.A{d("q", d("_id", 1), "limit", 1)}))
	must(t, s.HoldReplication())
	want(t, "n", c.ok(t, insert).Lookup("n").AsInt64(), 2)
	lost, err := s.Failover()
	must(t, err)
	want(t, "lost writes", len(lost), 1)
	c = member(t, s, 0)
	want(t, "documents", c.ids(t, everything), []int{2})
	want(t, "n", c.ok(t, insert).Lookup("n").AsInt64(), 2)
	want(t, "documents", c.ids(t, everything), []int{1, 2})
}

func TestHistorySurvivesFailover(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", Members: 3, InProcess: true})
	member(t, s, 0).ok(t, retryable(1, 7, d("_id", 1)))
	lost, err := s.Failover()
	must(t, err)
	want(t, "lost writes", len(lost), 0)
	c := member(t, s, 1)
	want(t, "n", c.ok(t, retryable(1, 7, d("_id", 1))).Lookup("n").AsInt64(), 1)
	want(t, "documents", c.ids(t, everything), []int{1})
	want(t, "code", c.code(t, retryable(1, 6, d("_id", 2))), 225)
}

// TestStepDownForgetsFences: an operation that wrote nothing is in no history, so a new primary does not know its number
// (MongoDSessionCatalog::onStepUp reads the sessions anew from what is stored).
func TestStepDownForgetsFences(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true})
	c := member(t, s, 0)
	c.ok(t, fence(1, 5))
	want(t, "before", c.code(t, retryable(1, 4, d("_id", 4))), 225)
	must(t, s.StepDown())
	_, err := s.StepUp(0)
	must(t, err)
	want(t, "after", c.code(t, retryable(1, 4, d("_id", 4))), 0)
}

func TestElectionNeedsTheMajoritysWrites(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", Members: 3, InProcess: true})
	must(t, s.HoldReplication(1))
	member(t, s, 0).ok(t, d("insert", "c", "documents", bson.A{d("_id", 1)}, "writeConcern", d("w", "majority")))
	if _, err := s.StepUp(1); err == nil {
		t.Fatal("a member that lacks a majority's write was elected")
	}
	_, err := s.StepUp(2)
	must(t, err)
	want(t, "documents", member(t, s, 2).ids(t, everything), []int{1})
}

func TestStepDownInterruptsWrites(t *testing.T) {
	for _, version := range []int{9, 21} {
		reached, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true, MaxWireVersion: version, Step: func(step mongosim.Step) {
			if step.Point == mongosim.PointYield && step.Command == "insert" {
				once.Do(func() { close(reached); <-release })
			}
		}})
		c := member(t, s, 0)
		docs := bson.A{}
		for i := range 200 {
			docs = append(docs, d("_id", i))
		}
		must(t, c.send("db", retryable(1, 1, docs...)))
		<-reached
		must(t, s.StepDown())
		close(release)
		reply, err := c.receive()
		must(t, err)
		var failed mongo.CommandError
		if !errors.As(commandError(reply), &failed) || failed.Code != 11602 {
			t.Fatalf("%v", reply)
		}
		want(t, "RetryableWriteError", failed.HasErrorLabel("RetryableWriteError"), true)
		want(t, "NoWritesPerformed", failed.HasErrorLabel("NoWritesPerformed"), false)

		// Now it is a secondary: nothing is written, and new versions say so.
		_, err = c.command("db", retryable(1, 1, docs...))
		if !errors.As(err, &failed) || failed.Code != 10107 {
			t.Fatalf("%v", err)
		}
		want(t, "RetryableWriteError", failed.HasErrorLabel("RetryableWriteError"), true)
		want(t, "NoWritesPerformed", failed.HasErrorLabel("NoWritesPerformed"), version >= 17)
		want(t, "plain read", c.code(t, d("find", "c")), 13435)

		_, err = s.StepUp(0)
		must(t, err)
		// The interrupted insert is in the history as far as it came; the repetition does the rest.
		want(t, "before", len(c.ids(t, d("find", "c", "batchSize", 500))), 64)
		want(t, "n", c.ok(t, retryable(1, 1, docs...)).Lookup("n").AsInt64(), 200)
		want(t, "after", len(c.ids(t, d("find", "c", "batchSize", 500))), 200)
	}
}

func TestStepDownWhileWaitingForTheMajority(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true})
	c, other := member(t, s, 0), member(t, s, 0)
	must(t, s.HoldReplication())
	must(t, c.send("db", append(retryable(1, 1, d("_id", 1)), bson.E{Key: "writeConcern", Value: d("w", "majority")})))
	for len(other.ids(t, everything)) == 0 {
	}
	must(t, s.StepDown())
	reply, err := c.receive()
	must(t, err, commandError(reply))
	want(t, "code", reply.Lookup("writeConcernError", "code").AsInt64(), 189)
	labels, err := reply.Lookup("errorLabels").Array().Values()
	must(t, err)
	want(t, "labels", len(labels), 1)
}

func TestDriverFollowsThePrimary(t *testing.T) {
	for failovers, streaming := range map[int]bool{10: true, 2: false} {
		s := start(t, mongosim.Config{ReplicaSet: "rs", Members: 3, InProcess: true, NoStreaming: !streaming})
		coll := connect(t, s, options.Client().SetHeartbeatInterval(500*time.Millisecond)).Database("db").Collection("c")
		for i := range failovers {
			must(t, eventually(t.Context(), func() error { // the driver's one retry can meet a pool that is being cleared
				if _, err := coll.InsertOne(t.Context(), d("_id", i)); err != nil && !mongo.IsDuplicateKeyError(err) {
					return err
				}
				return nil
			}))
			if _, err := s.Failover(); err != nil {
				t.Fatal(err)
			}
		}
		must(t, eventually(t.Context(), func() error {
			n, err := coll.CountDocuments(t.Context(), d())
			return lines(err, equal("documents", n, int64(failovers)))
		}))
	}
}

func TestStaleSecondary(t *testing.T) {
	s := start(t, mongosim.Config{ReplicaSet: "rs", Members: 2, InProcess: true})
	client := connect(t, s)
	coll := client.Database("db").Collection("c")
	stale := client.Database("db").Collection("c", options.Collection().SetReadPreference(readpref.Secondary()).SetReadConcern(readconcern.Local()))
	_, err := coll.InsertOne(t.Context(), d("_id", 1))
	must(t, err)
	must(t, s.HoldReplication())
	member(t, s, 0).ok(t, d("insert", "c", "documents", bson.A{d("_id", 2)}, "writeConcern", onPrimary1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n, err := stale.CountDocuments(ctx, d())
	must(t, err)
	want(t, "documents on the secondary", n, 1)
	must(t, s.ReleaseReplication())
	n, err = stale.CountDocuments(ctx, d())
	must(t, err)
	want(t, "documents on the secondary", n, 2)
}

func TestRestart(t *testing.T) {
	for _, set := range []string{"", "rs"} {
		s := start(t, mongosim.Config{ReplicaSet: set, InProcess: true})
		c := member(t, s, 0)
		c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 1), d("_id", 2)}))
		cursor := c.ok(t, d("find", "c", "batchSize", 1)).Lookup("cursor", "id").AsInt64()
		s.Restart()
		if _, err := c.command("db", everything); err == nil {
			t.Fatal("the connection survived the restart")
		}
		c = member(t, s, 0)
		want(t, "documents", c.ids(t, everything), []int{1, 2})
		want(t, "cursor", c.code(t, d("getMore", cursor, "collection", "c")), 43)
		c.ok(t, d("insert", "c", "documents", bson.A{d("_id", 3)}))
	}
}

// TestCrashTakesWaitingRequests: a request that has arrived and not begun when its server crashes is never executed.
func TestCrashTakesWaitingRequests(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s := start(t, mongosim.Config{ReplicaSet: "rs", InProcess: true, Step: func(step mongosim.Step) {
		if step.Point == mongosim.PointArrived && step.Command == "insert" {
			once.Do(func() { close(arrived); <-release })
		}
	}})
	c := member(t, s, 0)
	must(t, c.send("db", retryable(1, 1, d("_id", 1))))
	<-arrived
	_, err := s.Failover()
	must(t, err)
	close(release)
	if reply, err := c.receive(); err == nil {
		t.Fatalf("answered with %v", reply)
	}
	c = member(t, s, 0)
	c.ok(t, fence(1, 2)) // in the same session: whatever ran would be over by now
	want(t, "documents", c.ids(t, everything), []int{})
}
