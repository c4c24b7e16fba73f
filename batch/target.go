package batch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/outcome"
	"github.com/intact-go/intact/internal/retry"
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
// list collections, or the server does not know how to, the check is left to the server.
func (r *run) checkTarget(ctx context.Context, coll *mongo.Collection) error {
	client, name := coll.Database().Client(), namespace(coll)
	if r.targets.isFit(client, name) {
		return nil
	}
	var specs []mongo.CollectionSpecification
	err := r.ask(ctx, func(ctx context.Context) (err error) {
		specs, err = coll.Database().ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: coll.Name()}})
		return err
	})
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case outcome.Command(err).Kind == outcome.Transient:
		return fmt.Errorf("cannot tell what kind of collection %s is: %w", name, err)
	case err != nil || len(specs) == 0:
		return nil
	}
	if err := fitFor(specs[0]); err != nil {
		return fmt.Errorf("%s %w", name, err)
	}
	r.targets.setFit(client, name)
	return nil
}

// ask puts a question to the server, again and again as long as its error passes.
func (r *run) ask(ctx context.Context, question func(context.Context) error) error {
	delays := retry.Backoff{Initial: r.config.InitialDelay, Max: r.config.MaxDelay}.Start()
	until := time.Now().Add(r.config.RetryTime)
	for {
		limited, cancel := context.WithTimeout(ctx, r.config.CommandTimeout)
		err := question(limited)
		cancel()
		class := outcome.Command(err)
		delay := delays.Next(class.After)
		if class.Kind != outcome.Transient || time.Now().Add(delay).After(until) || retry.Sleep(ctx, delay) != nil {
			return err
		}
	}
}

func (c *checkedTargets) isFit(client *mongo.Client, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fit[client][name]
}

func (c *checkedTargets) setFit(client *mongo.Client, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fit == nil {
		c.fit = make(map[*mongo.Client]map[string]bool)
	}
	if c.fit[client] == nil {
		c.fit[client] = make(map[string]bool)
	}
	c.fit[client][name] = true
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
	history bool   // it recognises the driver's repetitions
	// The most documents and bytes of one message; zero if the server does not say.
	maxBatch, maxMessage int
}

// repeats says that the driver may repeat inserts by itself. It does unless the client is told otherwise, which nobody can
// see; nor can the repetitions. An insert that has been answered may then arrive once more, and the server tries again
// what it had refused of it.
func (s serverInfo) repeats() bool { return s.sharded || s.set != "" }

// forgetful says that the server moreover takes the repetitions for new inserts. So a document may be stored when an insert
// of it is refused, and any insert, whatever its answer, may be run once more.
func (s serverInfo) forgetful() bool { return s.repeats() && !s.history }

// server asks once for each client.
func (r *run) server(ctx context.Context, client *mongo.Client) (info serverInfo, err error) {
	r.targets.mu.Lock()
	info, known := r.targets.info[client]
	r.targets.mu.Unlock()
	if known {
		return info, nil
	}
	var hello bson.Raw
	err = r.ask(ctx, func(ctx context.Context) (err error) {
		hello, err = client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
		return err
	})
	if err != nil {
		return serverInfo{}, err
	}
	msg, _ := hello.Lookup("msg").StringValueOK()
	info.sharded = msg == "isdbgrid"
	info.set, _ = hello.Lookup("setName").StringValueOK()
	_, err = hello.LookupErr("$clusterTime") // comes from the oplog, as the history of retryable writes does
	info.history = err == nil
	for key, limit := range map[string]*int{"maxWriteBatchSize": &info.maxBatch, "maxMessageSizeBytes": &info.maxMessage} {
		n, _ := hello.Lookup(key).AsInt64OK()
		*limit = int(max(n, 0))
	}
	r.targets.mu.Lock()
	defer r.targets.mu.Unlock()
	if r.targets.info == nil {
		r.targets.info = make(map[*mongo.Client]serverInfo)
	}
	r.targets.info[client] = info
	return info, nil
}

// messageOverhead is more than an insert command needs beside its documents.
const messageOverhead = 16 << 10

// limitChunks keeps a chunk within what the server takes in one message: else the driver makes several commands of one
// call, and its answer does not tell what became of each.
func (p *part) limitChunks(info serverInfo) {
	if info.maxBatch > 0 {
		p.chunkSize = min(p.chunkSize, info.maxBatch)
	}
	if info.maxMessage > 0 {
		p.chunkBytes = min(p.chunkBytes, max(info.maxMessage-messageOverhead, info.maxMessage/2))
	}
}

// checkTargets makes the checks that need the server, still before anything is written.
func (r *run) checkTargets(ctx context.Context) error {
	for _, p := range r.parts {
		if len(p.documents) == 0 && p.stream == nil {
			continue
		}
		if err := r.checkTarget(ctx, p.coll); err != nil {
			return err
		}
		server, err := r.server(ctx, p.coll.Database().Client())
		if ctx.Err() != nil {
			return ended(ctx)
		}
		if err != nil {
			return fmt.Errorf("cannot tell what kind of server %s is on: %w", p.namespace, err)
		}
		p.limitChunks(server)
		p.server = server
		if r.config.Stamp != StampNone || p.shardKey != nil || !p.claims() && p.stream == nil {
			continue
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
