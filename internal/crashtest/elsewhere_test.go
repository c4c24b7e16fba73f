package crashtest_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/rollback"
)

// cluster is one of several deployments in a bubble.
type cluster struct {
	*testing.T
	wire   *faultwire.Wire
	client *mongo.Client
}

// startCluster starts a deployment; leave ends it.
func startCluster(t *testing.T, set string) (c cluster, leave func()) {
	sim, err := mongosim.Start(mongosim.Config{ReplicaSet: set, InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	c = cluster{T: t, wire: faultwire.New(faultwire.Over(sim.Dialer()))}
	if c.client, err = mongo.Connect(options.Client().ApplyURI(sim.URI()).SetDialer(c.wire)); err != nil {
		t.Fatal(err)
	}
	return c, func() {
		if err := errors.Join(c.client.Disconnect(context.Background()), c.wire.Close(), sim.Close()); err != nil {
			t.Error(err)
		}
	}
}

// plant stores documents of somebody else, with the ids that the batch claims.
func (c cluster) plant(database string) []bson.Raw {
	var documents []bson.D
	for _, d := range claimed("mine", 5) {
		documents = append(documents, append(d, bson.E{Key: "of", Value: "somebody else"}))
	}
	if _, err := c.client.Database(database).Collection("b").InsertMany(context.Background(), documents); err != nil {
		c.Fatal(err)
	}
	return c.read(database)
}

func (c cluster) read(database string) (all []bson.Raw) {
	cursor, err := c.client.Database(database).Collection("b").Find(context.Background(), bson.D{})
	if err == nil {
		err = cursor.All(context.Background(), &all)
	}
	if err != nil {
		c.Fatal(err)
	}
	return all
}

// TestDocumentsElsewhere: a batch may have its journal in one place and its documents in another. A recovery deletes on the
// deployment that the batch was stored on, and on no other, even if the same ids are there.
func TestDocumentsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, leave := startCluster(t, "home")
		defer leave()
		away, leave := startCluster(t, "away")
		defer leave()
		wrong, leave := startCluster(t, "wrong")
		defer leave()
		namesake, leave := startCluster(t, "away")
		defer leave()
		planted := map[*cluster][]bson.Raw{&home: home.plant("data"), &wrong: wrong.plant("data"), &namesake: namesake.plant("data")}

		journal := home.client.Database("journals").Collection("journal")
		config := batch.Config{
			Journal: journal, Lease: time.Second, CommandTimeout: time.Second, RetryTime: time.Second,
			Deployments: map[string]*mongo.Client{"shop": away.client}, Rollback: rollback.Policy{Settle: time.Second},
		}
		silent := home.wire.On(faultwire.Update).DropRequest() // the owner dies before the commit
		_, err := batch.New(config).Insert(context.Background(),
			batch.Into(away.client.Database("data").Collection("b"), claimed("mine", 5)),
			batch.Into(home.client.Database("other").Collection("b"), minted(3)))
		var failed *batch.Error
		if !errors.As(err, &failed) || !failed.Unresolved() {
			t.Fatalf("the batch: %v", err)
		}
		silent.Off()

		recover := func(deployments map[string]*mongo.Client) (rollback.RecoveryReport, error) {
			return rollback.Recover(context.Background(), journal, rollback.Recovery{Policy: rollback.Policy{Settle: time.Second}, Deployments: deployments})
		}
		for name, deployments := range map[string]map[string]*mongo.Client{
			"no client": nil, "a client of another name": {"store": away.client}, "a client of another deployment": {"shop": wrong.client},
			"the journal's own client": {"shop": home.client},
		} {
			report, err := recover(deployments)
			if !errors.Is(err, rollback.ErrElsewhere) || report.Deleted > 0 || len(report.Failed) != 1 {
				t.Errorf("%s: %+v, %v", name, report, err)
			}
			if findings, err := rollback.Check(context.Background(), journal, rollback.Recovery{Deployments: deployments}); err != nil || !errors.Is(findings[0].Err, rollback.ErrElsewhere) {
				t.Errorf("Check, %s: %+v, %v", name, findings, err)
			}
		}
		for _, c := range []cluster{home, away, wrong} {
			if n := len(c.wire.Events(faultwire.Delete)); n > 0 {
				t.Errorf("%d deletes were sent", n)
			}
		}

		// A deployment whose set has the same name cannot be told apart; the stamp protects what is there.
		if report, err := recover(map[string]*mongo.Client{"shop": namesake.client}); err != nil || report.Deleted != 3 {
			t.Errorf("a namesake: %+v, %v", report, err)
		}
		report, err := recover(map[string]*mongo.Client{"shop": away.client})
		if err != nil || report.Deleted != 5 {
			t.Errorf("the right client: %+v, %v", report, err)
		}
		if report, err := recover(map[string]*mongo.Client{"shop": away.client}); err != nil || len(report.Closed) != 1 {
			t.Errorf("the right client, again: %+v, %v", report, err)
		}
		if left := away.read("data"); len(left) > 0 {
			t.Errorf("%d documents are left", len(left))
		}
		for c, before := range planted {
			now := c.read("data")
			for i, raw := range before {
				if len(now) != len(before) || !bytes.Equal(now[i], raw) {
					t.Errorf("somebody else's documents were %v and are %v", before, now)
					break
				}
			}
		}
	})
}

// TestJournalThatMoved: a journal that was copied to another deployment does not have that one's documents deleted.
func TestJournalThatMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home, leave := startCluster(t, "production")
		defer leave()
		copied, leave := startCluster(t, "staging")
		defer leave()
		config := batch.Config{Journal: home.client.Database("data").Collection("journal"), Lease: time.Second, CommandTimeout: time.Second, RetryTime: time.Second}
		silent := home.wire.On(faultwire.Update).DropRequest()
		_, err := batch.New(config).Insert(context.Background(), batch.Into(home.client.Database("data").Collection("b"), minted(3)))
		if err == nil {
			t.Fatal("the batch was committed")
		}
		silent.Off()
		for _, name := range []string{"journal", "b"} {
			cursor, err := home.client.Database("data").Collection(name).Find(context.Background(), bson.D{})
			var all []bson.Raw
			if err == nil {
				err = cursor.All(context.Background(), &all)
			}
			if err == nil {
				_, err = copied.client.Database("data").Collection(name).InsertMany(context.Background(), all)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		report, err := rollback.Recover(context.Background(), copied.client.Database("data").Collection("journal"), rollback.Recovery{})
		if !errors.Is(err, rollback.ErrElsewhere) || report.Deleted > 0 || len(copied.read("data")) != 3 {
			t.Errorf("a recovery of the copy: %+v, %v; %d documents are left", report, err, len(copied.read("data")))
		}
	})
}
