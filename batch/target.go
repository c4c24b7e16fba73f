package batch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// checkNamespace refuses names that no collection of documents can have, before a server has to.
func checkNamespace(coll *mongo.Collection) error {
	database, name := coll.Database().Name(), coll.Name()
	switch {
	case database == "" || strings.ContainsAny(database, "/\\. \"$\x00"):
		return fmt.Errorf("%q is not the name of a database", database)
	case name == "" || strings.ContainsAny(name, "$\x00") || strings.HasPrefix(name, ".") || strings.HasSuffix(name, "."):
		return fmt.Errorf("%q is not the name of a collection", name)
	case strings.HasPrefix(name, "system."):
		return fmt.Errorf("%q is a system collection, which belongs to the server", name)
	}
	return nil
}

// checkedTargets remembers which collections are known to be fit for a batch.
type checkedTargets struct {
	mu   sync.Mutex // protects the rest
	fit  map[*mongo.Client]map[string]bool
	info map[*mongo.Client]serverInfo
}

// check refuses collections on which all-or-nothing cannot be kept: views cannot be written to, a capped collection
// evicts other documents for each one stored and may not allow deletes, and a time-series collection deletes by its
// own rules. A collection is looked at once; one that does not exist yet will be an ordinary one. If the account may not
// list collections, the check is left to the server.
func (c *checkedTargets) check(ctx context.Context, coll *mongo.Collection) error {
	client, name := coll.Database().Client(), namespace(coll)
	c.mu.Lock()
	known := c.fit[client][name]
	c.mu.Unlock()
	if known {
		return nil
	}
	specs, err := coll.Database().ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: coll.Name()}})
	if err != nil || len(specs) == 0 {
		return ctx.Err()
	}
	if err := fitFor(specs[0]); err != nil {
		return fmt.Errorf("%s %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fit == nil {
		c.fit = make(map[*mongo.Client]map[string]bool)
	}
	if c.fit[client] == nil {
		c.fit[client] = make(map[string]bool)
	}
	c.fit[client][name] = true
	return nil
}

func fitFor(spec mongo.CollectionSpecification) error {
	switch spec.Type {
	case "view":
		return errors.New("is a view, which documents cannot be stored in")
	case "timeseries":
		return errors.New("is a time-series collection, from which documents cannot be deleted one by one")
	}
	if capped, err := spec.Options.LookupErr("capped"); err == nil {
		if on, ok := capped.BooleanOK(); ok && on {
			return errors.New("is a capped collection: each document stored may evict another one, which no rollback can bring back")
		}
	}
	return nil
}

// serverInfo is what a batch has to know of the servers behind a client.
type serverInfo struct {
	sharded bool
	set     string // name of the replica set, if it is one
}

// server asks once for each client.
func (c *checkedTargets) server(ctx context.Context, client *mongo.Client) (serverInfo, error) {
	c.mu.Lock()
	info, known := c.info[client]
	c.mu.Unlock()
	if known {
		return info, nil
	}
	hello, err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
	if err != nil {
		return serverInfo{}, err
	}
	msg, _ := hello.Lookup("msg").StringValueOK()
	info.sharded = msg == "isdbgrid"
	info.set, _ = hello.Lookup("setName").StringValueOK()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.info == nil {
		c.info = make(map[*mongo.Client]serverInfo)
	}
	c.info[client] = info
	return info, nil
}

// checkTargets makes the checks that need the server, still before anything is written.
func (r *run) checkTargets(ctx context.Context) error {
	for _, p := range r.parts {
		if len(p.documents) == 0 && p.stream == nil {
			continue
		}
		if err := r.targets.check(ctx, p.coll); err != nil {
			return err
		}
		if r.config.Stamp != StampNone || p.shardKey != nil || !p.claims() && p.stream == nil {
			continue
		}
		server, err := r.targets.server(ctx, p.coll.Database().Client())
		if err != nil {
			return fmt.Errorf("cannot tell whether %s is sharded, which matters for StampNone: %w", p.namespace, err)
		}
		if server.sharded {
			return fmt.Errorf("%s is on a sharded cluster, where an _id is unique per shard only: name its shard key with Part.ShardKey, or let the documents be stamped", p.namespace)
		}
	}
	return nil
}

// claims reports whether a document of the part has an _id that the batch did not make.
func (p *part) claims() bool {
	for i := range p.documents {
		if !p.documents[i].minted {
			return true
		}
	}
	return false
}
