package mongosim_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/mongosim"
	"github.com/intact-go/intact/internal/servertest"
)

// behaviour is something that a server does and that the library relies on, directly or in its tests. Every behaviour runs
// on the simulator, standalone and as a set, new and old, and on a real server: FerretDB, or whatever MONGODB_URI names.
type behaviour struct {
	name string
	on   where
	run  func(*world) error // nil if the server behaves as MongoDB is known to
}

// where says on which servers a behaviour exists at all.
type where int

const (
	everywhere where = iota
	onSets           // needs sessions and retryable writes: a replica set or a mongos
	onSingles        // what a standalone server refuses
	withFaults       // needs configureFailPoint
	since50          // MongoDB 5.0 or newer, wire version 13
	before50
)

// world is one behaviour's own empty database.
type world struct {
	ctx    context.Context
	client *mongo.Client
	db     *mongo.Database
	coll   *mongo.Collection // db.c
	hello  bson.M
	faults bool
	raw    func() rawConn // nil if the server cannot be reached that way
}

func (w *world) has(on where) bool {
	_, set := w.hello["setName"]
	version, _ := w.hello["maxWireVersion"].(int32)
	switch on {
	case onSets:
		return (set || w.hello["msg"] == "isdbgrid") && w.raw != nil
	case onSingles:
		return !set && w.hello["msg"] == nil && w.raw != nil
	case withFaults:
		return w.faults && w.raw != nil
	case since50:
		return version >= 13
	case before50:
		return version < 13
	}
	return true
}

// difference is a behaviour in which FerretDB 1.24 departs from MongoDB. The test makes sure that it still does, and that
// what it does instead is what is written here.
type difference struct {
	does    string
	reason  string
	instead func(*world) error // nil if FerretDB does what does says
}

func TestConformance(t *testing.T) {
	names := map[string]bool{}
	var all []behaviour
	for _, list := range [][]behaviour{insertBehaviours, idBehaviours, deleteBehaviours, updateBehaviours, modifyBehaviours,
		queryBehaviours, orderBehaviours, catalogBehaviours, indexBehaviours, sessionBehaviours, concernBehaviours} {
		for _, b := range list {
			if names[b.name] {
				t.Fatalf("two behaviours are called %q", b.name)
			}
			names[b.name] = true
			all = append(all, b)
		}
	}
	for name := range ferretdb {
		if !names[name] {
			t.Errorf("the table of differences names %q, which is no behaviour", name)
		}
	}
	for name, config := range map[string]mongosim.Config{
		"standalone":     {},
		"standalone 4.4": {MaxWireVersion: 9},
		"set":            {ReplicaSet: "rs"},
		"set 4.4":        {ReplicaSet: "rs", MaxWireVersion: 9},
		"set of three":   {ReplicaSet: "rs", Members: 3},
		"mongos":         {ShardKeys: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			config.InProcess = true
			s := start(t, config)
			conform(t, connect(t, s), s.URI(), s.Dialer().DialContext, all, nil)
		})
	}
	real := servertest.Embedded(t)
	t.Run(real.Kind.String(), func(t *testing.T) {
		differences := ferretdb
		if real.Kind != servertest.KindEmbedded {
			differences = nil
		}
		var dial dialFunc // a server with TLS or passwords is out of reach for a client as simple as rawConn
		if uri, err := url.Parse(real.URI); err == nil && uri.User == nil && uri.Scheme == "mongodb" && !strings.Contains(uri.RawQuery, "tls=true") {
			dial = new(net.Dialer).DialContext
		}
		conform(t, real.Client(t), real.URI, dial, all, differences)
	})
}

func conform(t *testing.T, client *mongo.Client, uri string, dial dialFunc, all []behaviour, differences map[string]difference) {
	var hello bson.M
	if err := client.Database("admin").RunCommand(t.Context(), d("hello", 1)).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	address, _ := hello["primary"].(string)
	if address == "" {
		address, _, _ = strings.Cut(strings.TrimPrefix(uri, "mongodb://"), "/")
	}
	faults := client.Database("admin").RunCommand(t.Context(), d("configureFailPoint", "failCommand", "mode", "off")).Err() == nil
	for i, b := range all {
		t.Run(b.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			db := client.Database(fmt.Sprintf("intact_conformance_%d_%d", time.Now().UnixNano()%1e9, i))
			w := &world{ctx: ctx, client: client, db: db, coll: db.Collection("c"), hello: hello, faults: faults}
			if dial != nil {
				w.raw = func() rawConn { return dialRaw(t, dial, address) }
			}
			if !w.has(b.on) {
				t.Skip("not a behaviour of this kind of server")
			}
			defer func() {
				if err := db.Drop(context.WithoutCancel(ctx)); err != nil {
					t.Errorf("drop: %v", err)
				}
			}()
			err := b.run(w)
			diff, differs := differences[b.name]
			switch {
			case err != nil && !differs:
				t.Error(err)
			case err == nil && differs:
				t.Errorf("does what MongoDB does, contrary to the table of differences (%s)", diff.does)
			case differs:
				if err := db.Drop(ctx); err != nil {
					t.Fatal(err)
				}
				if err := diff.instead(w); err != nil {
					t.Errorf("differs in another way than the table says (%s): %v", diff.does, err)
				}
			}
		})
	}
}

// d builds a document from names and values.
func d(pairs ...any) bson.D {
	doc := bson.D{}
	for i := 0; i < len(pairs); i += 2 {
		doc = append(doc, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return doc
}

// command runs a command that the driver would not build, or whose reply it would not show.
func (w *world) command(pairs ...any) (bson.M, error) {
	var reply bson.M
	err := w.db.RunCommand(w.ctx, d(pairs...)).Decode(&reply)
	var failed mongo.WriteException
	if errors.As(err, &failed) && failed.Raw != nil {
		reply = nil // write errors are part of what is looked at
		err = bson.Unmarshal(failed.Raw, &reply)
	}
	return reply, err
}

// seed stores documents.
func (w *world) seed(docs ...any) error {
	_, err := w.coll.InsertMany(w.ctx, docs)
	return err
}

// ids are the _ids of the documents that match, in the order of the sort, if one is given.
func (w *world) ids(filter any, sort bson.D) ([]any, error) {
	return idsOf(w, d("find", "c", "filter", filter, "sort", sort))
}

func idsOf(w *world, find bson.D) ([]any, error) {
	cur, err := w.db.RunCommandCursor(w.ctx, find)
	if err != nil {
		return nil, err
	}
	var docs []bson.M
	if err := cur.All(w.ctx, &docs); err != nil {
		return nil, err
	}
	ids := []any{}
	for _, doc := range docs {
		ids = append(ids, doc["_id"])
	}
	return ids, nil
}

// found checks which documents match a filter, in the order of their _ids.
func (w *world) found(filter any, want ...any) error {
	got, err := w.ids(filter, d("_id", 1))
	if err != nil {
		return err
	}
	if !slices.EqualFunc(got, want, same) {
		return fmt.Errorf("%v finds %v, want %v", filter, got, want)
	}
	return nil
}

// same compares decoded values; Go's int stands for any integer.
func same(a, b any) bool {
	whole := func(v any) any {
		switch n := v.(type) {
		case int:
			return int64(n)
		case int32:
			return int64(n)
		}
		return v
	}
	return reflect.DeepEqual(whole(a), whole(b))
}

func equal(what string, got, want any) error {
	if !same(got, want) {
		return fmt.Errorf("%s is %T %v, want %v", what, got, got, want)
	}
	return nil
}

// refused checks that err is a server's error with this code, as a command error or as the only write error.
func refused(err error, code int) error {
	var server mongo.ServerError
	if !errors.As(err, &server) {
		return fmt.Errorf("not refused by the server: %v", err)
	}
	if !server.HasErrorCode(code) {
		return fmt.Errorf("refused with %v, want code %d", server.ErrorCodes(), code)
	}
	return nil
}

// writeErrors are the errors of single documents in a reply, by index.
func writeErrors(reply bson.M) map[int32]bson.M {
	out := map[int32]bson.M{}
	list, _ := reply["writeErrors"].(bson.A)
	for _, e := range list {
		var doc bson.M
		raw, err := bson.Marshal(e)
		if err != nil || bson.Unmarshal(raw, &doc) != nil {
			continue
		}
		index, _ := doc["index"].(int32)
		out[index] = doc
	}
	return out
}

// codes checks which documents were refused, and with what.
func codes(reply bson.M, want map[int32]int32) error {
	got := map[int32]int32{}
	for i, e := range writeErrors(reply) {
		got[i], _ = e["code"].(int32)
	}
	if len(got) == 0 && len(want) == 0 || reflect.DeepEqual(got, want) {
		return nil
	}
	return fmt.Errorf("write errors by index are %v, want %v", got, want)
}

func lines(errs ...error) error { return errors.Join(errs...) }

func contains(s, part string) error {
	if !strings.Contains(s, part) {
		return fmt.Errorf("%q does not contain %q", s, part)
	}
	return nil
}
