package mongosim_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// session is a session that the test numbers itself, unlike the driver's.
type session struct {
	w    *world
	conn rawConn
	lsid bson.D
}

func (w *world) session() session {
	id := make([]byte, 16)
	rand.Read(id) // never fails
	return session{w, w.raw(), d("id", bson.Binary{Subtype: 4, Data: id})}
}

func (s session) run(number int64, command ...any) (bson.M, error) {
	raw, err := s.conn.command(s.w.db.Name(), d(append(command, "lsid", s.lsid, "txnNumber", number)...))
	if err != nil {
		return nil, err
	}
	var reply bson.M
	return reply, bson.Unmarshal(raw, &reply)
}

func (s session) insert(number int64, docs ...any) (bson.M, error) {
	return s.run(number, "insert", "c", "ordered", false, "documents", bson.A(docs))
}

// fence deletes a document that never existed.
func (s session) fence(number int64) error {
	reply, err := s.run(number, "delete", "c", "deletes", bson.A{d("q", d("_id", "never"), "limit", 1)})
	return lines(err, equal("n", reply["n"], 0))
}

// clusterTime inserts in a session of the driver's, and expects it to know the cluster time afterwards, or not.
func (w *world) clusterTime(want bool) error {
	session, err := w.client.StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return err
	}
	defer session.EndSession(w.ctx)
	_, err = w.coll.InsertOne(mongo.NewSessionContext(w.ctx, session), d("_id", 1))
	return lines(err, equal("a cluster time", session.ClusterTime() != nil, want))
}

var sessionBehaviours = []behaviour{
	{name: "a repeated insert is answered from history", on: onSets, run: func(w *world) error {
		s := w.session()
		first, err := s.insert(1, d("_id", 1), d("_id", 2))
		second, again := s.insert(1, d("_id", 1), d("_id", 2))
		return lines(err, again, equal("n", first["n"], 2), equal("n of the second", second["n"], 2), codes(second, nil), w.found(d(), 1, 2))
	}},
	{name: "a repeated insert is answered even when its document is gone", on: onSets, run: func(w *world) error {
		s := w.session()
		_, err := s.insert(1, d("_id", 1))
		_, deleteErr := w.coll.DeleteOne(w.ctx, d("_id", 1))
		reply, again := s.insert(1, d("_id", 1))
		return lines(err, deleteErr, again, equal("n", reply["n"], 1), w.found(d()))
	}},
	{name: "statements of a repeated insert that failed are tried again", on: onSets, run: func(w *world) error {
		s := w.session()
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		first, err := s.insert(1, d("_id", 1), d("_id", 2))
		if _, err := w.coll.DeleteOne(w.ctx, d("_id", 1)); err != nil {
			return err
		}
		second, again := s.insert(1, d("_id", 1), d("_id", 2))
		return lines(err, again, codes(first, map[int32]int32{0: 11000}), codes(second, nil), equal("n", second["n"], 2), w.found(d(), 1, 2))
	}},
	{name: "an older number is refused", on: onSets, run: func(w *world) error {
		s := w.session()
		_, err := s.insert(5, d("_id", 5))
		_, older := s.insert(4, d("_id", 4))
		return lines(err, refused(older, 225), w.found(d(), 5))
	}},
	{name: "an operation that changes nothing fences off older ones", on: onSets, run: func(w *world) error {
		s := w.session()
		_, err := s.insert(1, d("_id", 1))
		fenceErr := s.fence(3)
		_, late := s.insert(2, d("_id", 2))
		_, next := s.insert(4, d("_id", 4))
		return lines(err, fenceErr, refused(late, 225), next, w.found(d(), 1, 4))
	}},
	{name: "a fence in a session that was never used fences too", on: onSets, run: func(w *world) error {
		s := w.session()
		fenceErr := s.fence(2)
		_, late := s.insert(1, d("_id", 1))
		return lines(fenceErr, refused(late, 225), w.found(d()))
	}},
	{name: "sessions do not fence each other", on: onSets, run: func(w *world) error {
		_, err := w.session().insert(1, d("_id", 1))
		return lines(w.session().fence(9), err, w.found(d(), 1))
	}},
	{name: "ending a session does not lift its fence", on: onSets, run: func(w *world) error {
		s := w.session()
		fenceErr := s.fence(3)
		_, end := w.command("endSessions", bson.A{s.lsid})
		_, late := s.insert(2, d("_id", 2))
		return lines(fenceErr, end, refused(late, 225), w.found(d()))
	}},
	{name: "killing a session stops nothing that arrives later", on: onSets, run: func(w *world) error {
		s := w.session()
		_, err := s.insert(1, d("_id", 1))
		_, kill := w.command("killSessions", bson.A{s.lsid})
		_, late := s.insert(2, d("_id", 2))
		return lines(err, kill, late, w.found(d(), 1, 2))
	}},
	{name: "a server with a history tells sessions the cluster time", on: onSets, run: func(w *world) error {
		return w.clusterTime(true)
	}},
	{name: "a standalone server tells no cluster time", on: onSingles, run: func(w *world) error {
		return w.clusterTime(false)
	}},
	{name: "a repeated findAndModify returns the same value", on: onSets, run: func(w *world) error {
		s := w.session()
		next := func(number int64) (bson.M, error) {
			return s.run(number, "findAndModify", "c", "query", d("_id", "n"), "update", d("$inc", d("seq", int64(10))), "upsert", true, "new", true)
		}
		first, err := next(1)
		again, againErr := next(1)
		other, otherErr := next(2)
		value := func(m bson.M) any { doc, _ := m["value"].(bson.D); return fmt.Sprint(doc) }
		return lines(err, againErr, otherErr, equal("value", value(again), value(first)),
			equal("next value", value(other), fmt.Sprint(d("_id", "n", "seq", int64(20)))))
	}},
	{name: "a repeated update is not applied twice", on: onSets, run: func(w *world) error {
		s := w.session()
		if err := w.seed(d("_id", 1, "n", 0)); err != nil {
			return err
		}
		inc := func() (bson.M, error) {
			return s.run(1, "update", "c", "updates", bson.A{d("q", d("_id", 1), "u", d("$inc", d("n", 1)))})
		}
		_, err := inc()
		reply, again := inc()
		return lines(err, again, equal("nModified", reply["nModified"], 1), w.found(d("n", 1), 1))
	}},
	{name: "a delete of many takes no transaction number", on: onSets, run: func(w *world) error {
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		reply, err := w.session().run(1, "delete", "c", "deletes", bson.A{d("q", d(), "limit", 0)})
		return lines(err, codes(reply, map[int32]int32{0: 72}), w.found(d(), 1))
	}},
	{name: "an update of many takes no transaction number", on: onSets, run: func(w *world) error {
		if err := w.seed(d("_id", 1)); err != nil {
			return err
		}
		reply, err := w.session().run(1, "update", "c", "updates", bson.A{d("q", d(), "u", d("$set", d("a", 1)), "multi", true)})
		return lines(err, codes(reply, map[int32]int32{0: 72}))
	}},
	{name: "a standalone server takes no transaction numbers", on: onSingles, run: func(w *world) error {
		_, err := w.session().insert(1, d("_id", 1))
		return lines(refused(err, 20), w.found(d()))
	}},
	{name: "the driver's retryable writes work or are not sent", run: func(w *world) error {
		session, err := w.client.StartSession()
		if err != nil {
			return err
		}
		defer session.EndSession(w.ctx)
		ctx := mongo.NewSessionContext(w.ctx, session)
		_, err = w.coll.InsertMany(ctx, []any{d("_id", 1), d("_id", 2)})
		return lines(err, w.found(d(), 1, 2))
	}},
	{name: "a transaction number needs a session", on: onSets, run: func(w *world) error {
		_, err := w.raw().command(w.db.Name(), d("insert", "c", "documents", bson.A{d("_id", 1)}, "txnNumber", int64(1)))
		var refusedErr mongo.CommandError
		if !errors.As(err, &refusedErr) {
			return fmt.Errorf("not refused: %v", err)
		}
		return w.found(d())
	}},
}

var concernBehaviours = []behaviour{
	{name: "a majority write on one member is acknowledged", run: func(w *world) error {
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)}, "writeConcern", d("w", "majority", "j", true, "wtimeout", 10000))
		return lines(err, equal("n", reply["n"], 1), equal("writeConcernError", reply["writeConcernError"], nil))
	}},
	{name: "more members than there are cannot be waited for, but the write stands", on: onSets, run: func(w *world) error {
		reply, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)}, "writeConcern", d("w", 40))
		failed, _ := reply["writeConcernError"].(bson.D)
		if len(failed) == 0 {
			return fmt.Errorf("no write concern error in %v (%v)", reply, err)
		}
		return lines(err, equal(failed[0].Key, failed[0].Value, 100), equal("n", reply["n"], 1), w.found(d(), 1))
	}},
	{name: "a standalone server refuses more than one member", on: onSingles, run: func(w *world) error {
		_, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)}, "writeConcern", d("w", 2))
		return lines(refused(err, 2), w.found(d()))
	}},
	{name: "a read at majority sees what was acknowledged at majority", run: func(w *world) error {
		if _, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)}, "writeConcern", d("w", "majority")); err != nil {
			return err
		}
		ids, err := idsOf(w, d("find", "c", "readConcern", d("level", "majority")))
		return lines(err, sequence(ids, 1))
	}},
	{name: "maxTimeMS ends a command that waits", on: withFaults, run: func(w *world) error {
		conn := w.raw() // the driver adds a maxTimeMS of its own where a context has a deadline
		if _, err := conn.command("admin", d("configureFailPoint", "maxTimeAlwaysTimeOut", "mode", "alwaysOn")); err != nil {
			return err
		}
		_, err := conn.command(w.db.Name(), d("insert", "c", "documents", bson.A{d("_id", 1)}, "maxTimeMS", 5000))
		_, off := conn.command("admin", d("configureFailPoint", "maxTimeAlwaysTimeOut", "mode", "off"))
		return lines(refused(err, 50), off, w.found(d()))
	}},
	{name: "failCommand refuses as often as it is told", on: withFaults, run: func(w *world) error {
		admin := w.client.Database("admin")
		if err := admin.RunCommand(w.ctx, d("configureFailPoint", "failCommand", "mode", d("times", 1),
			"data", d("failCommands", bson.A{"insert"}, "errorCode", 8000, "errorLabels", bson.A{"Own"}))).Err(); err != nil {
			return err
		}
		_, err := w.command("insert", "c", "documents", bson.A{d("_id", 1)})
		var failed mongo.CommandError
		labelled := errors.As(err, &failed) && failed.HasErrorLabel("Own")
		_, second := w.command("insert", "c", "documents", bson.A{d("_id", 2)})
		return lines(refused(err, 8000), equal("labelled", labelled, true), second, w.found(d(), 2))
	}},
	{name: "a number beyond int32 in a limit", run: func(w *world) error {
		ids, err := idsOf(w, d("find", "c", "limit", int64(math.MaxInt32)+1))
		return lines(err, equal("found", len(ids), 0))
	}},
}
