package batch_test

import (
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/intact-go/intact/batch"
	"github.com/intact-go/intact/idgen"
	"github.com/intact-go/intact/internal/faultwire"
	"github.com/intact-go/intact/internal/servertest"
)

// The result's ids and numbers are those of the documents in the order of the caller's slices, of every part, whatever the
// documents are made of and however the inserts overtake each other.
func TestResultIsInOrderOfTheDocuments(t *testing.T) {
	type line struct {
		ID  string `bson:"_id"`
		Was int
	}
	eachServer(t, func(w *world) {
		w.wire.On(faultwire.Insert).EveryNth(2).Delay(3 * time.Millisecond)
		mixed := make([]any, 60)
		for i := range mixed {
			switch i % 5 {
			case 0:
				mixed[i] = line{ID: fmt.Sprint("s", i), Was: i}
			case 1:
				mixed[i] = &line{ID: fmt.Sprint("p", i), Was: i}
			case 2:
				mixed[i] = bson.M{"was": i, "_id": int64(i)}
			case 3:
				mixed[i] = bson.D{{Key: "was", Value: i}} // its _id is minted
			case 4:
				mixed[i] = bson.Raw(raw(w.T, bson.D{{Key: "was", Value: i}, {Key: "_id", Value: fmt.Sprint("r", i)}}))
			}
		}
		lines := make([]line, 40)
		for i := range lines {
			lines[i] = line{ID: fmt.Sprint(99 - i), Was: i}
		}
		number := idgen.NewCounter(w.db.Collection(counters), "n", idgen.CounterConfig{Start: 1_000})
		result := w.mustStore(batch.Config{ChunkSize: 3, Concurrency: 8},
			batch.Into(w.coll("mixed"), mixed).Number("no", number), batch.Into(w.coll("lines"), lines).Number("no", number))
		next := int64(1_000)
		for _, part := range result.Parts {
			stored := make(map[string]bson.Raw)
			for _, raw := range w.readAll() {
				stored[raw.Lookup("_id").String()] = raw
			}
			for i, id := range part.IDs {
				document := stored[marshal(w.T, id).String()]
				was, _ := document.Lookup("was").AsInt64OK()
				no, _ := document.Lookup("no").Int64OK()
				if was != int64(i) || no != next || part.Numbers["no"][i] != next {
					w.Errorf("%s, document %d: the result has %v and %v, stored is %v", part.Collection, i, id, part.Numbers["no"][i], document)
				}
				next++
			}
		}
	})
}

// An encoder that stores money as a decimal is the client's; a clone of the collection for another write concern changes
// nothing about what is stored.
func TestBytesWithDecimals(t *testing.T) {
	registry := bson.NewRegistry()
	registry.RegisterTypeEncoder(reflect.TypeFor[amount](), bson.ValueEncoderFunc(func(_ bson.EncodeContext, w bson.ValueWriter, v reflect.Value) error {
		d, ok := bson.ParseDecimal128FromBigInt(v.Interface().(amount).cents, -2)
		if !ok {
			return errors.New("this is no decimal")
		}
		return w.WriteDecimal128(d)
	}))
	eachServer(t, func(w *world) {
		if w.server.Kind == servertest.KindEmbedded {
			w.Skip("FerretDB 1.24 cannot store a decimal")
		}
		price := amount{big.NewInt(1999)}
		w.twin(batch.Config{Registry: registry}, []any{bson.D{{Key: "price", Value: price}}, bson.M{"prices": []amount{price}}, struct{ Price amount }{price}})
		clone := w.coll("clone").Clone(options.Collection().SetWriteConcern(writeconcern.W1()))
		w.mustStore(batch.Config{Registry: registry}, batch.Into(clone, []bson.D{{{Key: "_id", Value: 1}, {Key: "price", Value: price}}}))
		for _, raw := range w.read("clone") {
			if v := raw.Lookup("price"); v.Type != bson.TypeDecimal128 || v.Decimal128().String() != "19.99" {
				w.Errorf("the price is %v", v)
			}
		}
	})
}
