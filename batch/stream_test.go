package batch_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/servertest"
)

func TestStreamSmoke(t *testing.T) {
	servertest.Each(t, func(t *testing.T, s *servertest.Server) {
		c := s.Client(t)
		db := s.Database(t, c)
		coll := db.Collection("a")
		for _, journaled := range []bool{false, true} {
			cfg := batch.Config{}
			if journaled {
				cfg.Journal = db.Collection("journal")
			}
			n := 0
			res, err := batch.New(cfg).Insert(context.Background(), batch.Stream(coll, batch.Each(func() (bson.D, error) {
				if n++; n > 25_500 {
					return nil, io.EOF
				}
				return bson.D{{Key: "i", Value: n}}, nil
			})).Number("no", idgen.NewCounter(db.Collection("counters"), "no")))
			if err != nil {
				t.Fatal(err)
			}
			t.Log(res.Inserted, res.Parts[0].Inserted)
			n = 0
			_, err = batch.New(cfg).Insert(context.Background(), batch.Stream(coll, batch.Each(func() (bson.D, error) {
				if n++; n > 5_500 {
					return nil, errors.New("no more")
				}
				return bson.D{{Key: "i", Value: n}}, nil
			})))
			var failed *batch.Error
			if !errors.As(err, &failed) || !failed.RolledBack() {
				t.Fatal(err)
			}
			t.Log(err, failed.Rollback)
			stored, err := coll.CountDocuments(context.Background(), bson.D{})
			t.Log(stored, err)
		}
	})
}
