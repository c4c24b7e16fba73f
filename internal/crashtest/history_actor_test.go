package crashtest_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/faultwire"
)

// trouble is what happens to the connection of one actor.
type trouble struct {
	lost      float64       // share of requests, and of replies, that are lost
	crash     int           // the command at which the process dies; 0 for none
	after     bool          // it dies when the server has answered, not before it is asked
	partition int           // the command from which on nothing gets through for a while; 0 for none
	away      time.Duration // how long
	forbidden bool          // to delete documents
}

func someTrouble(random *rand.Rand) trouble {
	switch random.IntN(6) {
	case 0:
		return trouble{}
	case 1:
		return trouble{lost: []float64{0.02, 0.1, 0.3}[random.IntN(3)]}
	case 2:
		return trouble{partition: 1 + random.IntN(20), away: time.Duration(random.Int64N(int64(8 * lease)))}
	case 3:
		return trouble{forbidden: true}
	}
	return trouble{crash: 1 + random.IntN(25), after: random.IntN(2) == 0}
}

// actor is a process with its own connections.
type actor struct {
	wire   *faultwire.Wire
	client *mongo.Client
	db     *mongo.Database
	dead   chan struct{} // closed when the process dies
}

// join connects a process. Driver v2.10.0 sends nothing that has less time than the shortest round trip that it measured,
// and can take a monitor's waiting for news for one, which is a second; commands have more.
func (h *history) join(random *rand.Rand, what trouble) *actor {
	a := &actor{dead: make(chan struct{}), wire: faultwire.New(faultwire.Over(h.sim.Dialer()), faultwire.KeepLast(0))}
	if what.crash > 0 {
		die := func(ctx context.Context, _ *faultwire.Request) {
			close(a.dead)
			a.wire.Down()
		}
		if what.after {
			a.wire.On().Nth(what.crash).After(die)
		} else {
			a.wire.On().Nth(what.crash).Before(die)
		}
	}
	if what.partition > 0 {
		var gone <-chan struct{}
		var once sync.Once
		a.wire.On().Skip(what.partition - 1).Before(func(ctx context.Context, _ *faultwire.Request) {
			once.Do(func() {
				over := make(chan struct{})
				time.AfterFunc(what.away, func() { close(over) })
				gone = over
			})
			select {
			case <-gone:
			case <-ctx.Done():
			}
		})
	}
	if what.lost > 0 {
		a.wire.On().Sometimes(what.lost, random).DropRequest()
		a.wire.On().Sometimes(what.lost, random).DropReply()
	}
	if what.forbidden {
		a.wire.On(faultwire.Delete.In(database+".minted", database+".claimed")).Reply(refuse)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(h.sim.URI()).SetDialer(a.wire).SetServerSelectionTimeout(3 * time.Second))
	if err != nil {
		h.t.Fatal(err)
	}
	a.client, a.db = client, client.Database(database)
	return a
}

func (a *actor) isDead() bool {
	select {
	case <-a.dead:
		return true
	default:
		return false
	}
}

func (a *actor) leave(t *testing.T) {
	// Without a deadline: driver v2.10.0 spins until one passes, or all connections are idle, and time would stand still.
	if err := a.client.Disconnect(context.Background()); err != nil {
		t.Errorf("disconnecting: %v", err)
	}
	if err := a.wire.Close(); err != nil {
		t.Errorf("closing the wire: %v", err)
	}
}

// plant stores somebody else's documents. One of them has an _id that half of the owners want too.
func (h *history) plant(a *actor) {
	for _, coll := range []string{"minted", "claimed"} {
		foreign := []bson.D{{{Key: "_id", Value: "foreign"}}, {{Key: "_id", Value: "wanted"}}, {{Key: "_id", Value: bson.NewObjectID()}}}
		if _, err := a.db.Collection(coll).InsertMany(h.t.Context(), foreign); err != nil {
			h.t.Fatal(err)
		}
	}
}
