package outcome_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/outcome"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sent is how many documents the tests' inserts have.
const sent = 6

// rig is a real driver on a wire to a server in memory.
type rig struct {
	wire   *faultwire.Wire
	client *mongo.Client
	coll   *mongo.Collection
}

// newRig makes a rig with a replica set if set is not empty, otherwise with a standalone server. The driver does not
// repeat writes by itself unless the options say so.
func newRig(t testing.TB, set string, opts ...*options.ClientOptions) *rig {
	t.Helper()
	sim, err := mongosim.Start(mongosim.Config{ReplicaSet: set, InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, sim, faultwire.ForTest(t, faultwire.Over(sim.Dialer())), opts...)
}

// connect makes a rig of its parts, and closes the server at the end.
func connect(t testing.TB, sim *mongosim.Server, wire *faultwire.Wire, opts ...*options.ClientOptions) *rig {
	t.Helper()
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	base := options.Client().ApplyURI(sim.URI()).SetDialer(wire).SetRetryWrites(false).SetServerSelectionTimeout(10 * time.Second)
	client, err := mongo.Connect(append([]*options.ClientOptions{base}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) }) // the test may have disconnected it
	return &rig{wire: wire, client: client, coll: client.Database("shop").Collection("orders")}
}

// insert sends one unordered insert command of six documents, as package batch does.
func (r *rig) insert(ctx context.Context) (inserted int64, err error) {
	models := make([]mongo.WriteModel, sent)
	for i := range models {
		models[i] = mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: i}})
	}
	return outcome.Send(ctx, r.coll, models)
}

// verdicts writes one letter for each document: U, R or A.
func verdicts(report outcome.Insert) string {
	var letters strings.Builder
	for _, v := range report.Verdicts {
		letters.WriteString(strings.ToUpper(v.String()[:1]))
	}
	return letters.String()
}

// within bounds a test that would otherwise wait for ever.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
