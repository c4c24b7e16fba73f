package main

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/internal/localmongo"
	"github.com/intact-go/intact/internal/mongosim"
)

// The servers' names in the table.
const (
	embedded   = "embedded"
	simulated  = "simulator"
	discarding = "simulator that keeps nothing"
)

// server is one that is measured.
type server struct {
	name   string
	client *mongo.Client
	db     *mongo.Database
	close  func() error
}

type servers struct{ embedded, simulated, discarding *server }

func startServers(ctx context.Context) (all servers, err error) {
	defer func() {
		if err != nil {
			all.close()
		}
	}()
	local, err := localmongo.Start(ctx, localmongo.Options{})
	if err != nil {
		return all, err
	}
	if all.embedded, err = connect(embedded, local.URI(), local.Close); err != nil {
		return all, err
	}
	for _, sim := range []struct {
		name   string
		config mongosim.Config
		to     **server
	}{
		{simulated, mongosim.Config{ReplicaSet: "rs"}, &all.simulated},
		{discarding, mongosim.Config{ReplicaSet: "rs", Discard: true}, &all.discarding},
	} {
		started, err := mongosim.Start(sim.config)
		if err != nil {
			return all, err
		}
		if *sim.to, err = connect(sim.name, started.URI(), started.Close); err != nil {
			return all, err
		}
	}
	return all, nil
}

func connect(name, uri string, end func() error) (*server, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetWriteConcern(journaled()))
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &server{name: name, client: client, db: client.Database("report"), close: end}, nil
}

// journaled is the library's default, at which its rivals write as well.
func journaled() *writeconcern.WriteConcern {
	yes := true
	return &writeconcern.WriteConcern{W: "majority", Journal: &yes}
}

func (s servers) close() {
	for _, one := range []*server{s.embedded, s.simulated, s.discarding} {
		if one == nil {
			continue
		}
		if err := errors.Join(one.db.Drop(context.Background()), one.client.Disconnect(context.Background()), one.close()); err != nil {
			fmt.Println("stopping the server:", err)
		}
	}
}
