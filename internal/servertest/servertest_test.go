package servertest

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestMain(m *testing.M) { Main(m) }

func TestEach(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		c := s.Client(t)
		db := s.Database(t, c)
		if _, err := db.Collection("c").InsertOne(t.Context(), bson.M{"a": 1}); err != nil {
			t.Fatal(err)
		}
	})
}
