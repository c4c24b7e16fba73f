package job

import (
	"context"
	"errors"
	"net"

	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
)

// Checker asks package batch whether documents are fit to be stored, without a server.
type Checker struct {
	client   *mongo.Client
	coll     *mongo.Collection
	config   batch.Config
	numbered []string
}

// NewChecker returns the checker of documents that a batch with this configuration would store in a collection and give
// numbers in these fields. It has to be closed.
func NewChecker(database, collection string, config batch.Config, numbered ...string) (*Checker, error) {
	client, err := mongo.Connect(driver.Client().SetDialer(nowhere{}))
	if err != nil {
		return nil, err
	}
	coll := client.Database(database).Collection(collection)
	return &Checker{client: client, coll: coll, config: config, numbered: numbered}, nil
}

// Close frees what the checker holds.
func (c *Checker) Close() { Disconnect(c.client) }

// Unfit returns the documents that are not fit. An error is one of the whole: a name that makes no sense, for instance.
//
// Insert says when it has checked everything and nothing was sent yet; the context that ends then keeps it from sending.
func Unfit[T any](c *Checker, documents []T) ([]batch.DocumentError, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fit := false
	config := c.config
	config.Observe = func(event batch.Event) {
		if event.Kind == batch.Prepared {
			fit = true
			cancel()
		}
	}
	part := batch.Into(c.coll, documents)
	for _, field := range c.numbered {
		part = part.Number(field, neverAsked{})
	}
	_, err := batch.New(config).Insert(ctx, part)
	var failed *batch.Error
	switch {
	case fit:
		return nil, nil
	case errors.As(err, &failed) && len(failed.Documents) > 0:
		return failed.Documents, nil
	}
	return nil, err
}

// neverAsked stands for the sequences of a batch that is only checked.
type neverAsked struct{}

func (neverAsked) Reserve(context.Context, int) ([]any, error) { return nil, errNoServer }

// nowhere connects to nothing.
type nowhere struct{}

var errNoServer = errors.New("nothing is sent while documents are checked")

func (nowhere) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errNoServer
}
