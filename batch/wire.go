package batch

import (
	"reflect"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// wireRegistry is for documents that are BSON already when the driver gets them. The driver (v2.10.0, mongo.ensureID)
// decodes the _id of each document that it inserts into a struct of this type, to report it; BulkWrite reports none, so
// that here nothing need be decoded. A driver that used another type would decode it as ever.
var wireRegistry = func() *bson.Registry {
	registry := bson.NewRegistry()
	registry.RegisterTypeDecoder(reflect.TypeFor[struct {
		ID any `bson:"_id"`
	}](), bson.ValueDecoderFunc(func(bson.DecodeContext, bson.ValueReader, reflect.Value) error { return nil }))
	return registry
}()
