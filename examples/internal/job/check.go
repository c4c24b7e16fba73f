package main

import (
	"context"
	"errors"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/batch"
)

// checker asks package batch whether documents are fit to be stored, without a server.
type checker struct {
	client *mongo.Client
	coll   *mongo.Collection
	o      *options
}

func newChecker(o *options) (*checker, error) {
	client, err := mongo.Connect(driver.Client().SetDialer(nowhere{}))
	if err != nil {
		return nil, err
	}
	return &checker{client: client, coll: client.Database(o.database).Collection(o.collection), o: o}, nil
}

func (c *checker) close() { disconnect(c.client) }

// unfit returns the documents that are not fit. An error is one of the whole: a name that makes no sense, for instance.
//
// Insert says when it has checked everything and nothing was sent yet; the context that ends then keeps it from sending.
func (c *checker) unfit(documents []bson.Raw) ([]batch.DocumentError, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fit := false
	inserter := batch.New(batch.Config{
		StampField: c.o.stampField,
		Observe: func(event batch.Event) {
			if event.Kind == batch.Prepared {
				fit = true
				cancel()
			}
		},
	})
	part := batch.Into(c.coll, documents)
	for _, q := range c.o.sequences {
		part = part.Number(q.field, neverAsked{})
	}
	_, err := inserter.Insert(ctx, part)
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
