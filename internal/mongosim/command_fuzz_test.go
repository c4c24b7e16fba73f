package mongosim

import (
	"maps"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// words are the names that random commands are made of: whatever the parsers here know, and some that they do not.
var words = map[string][]string{
	"command": {"insert", "update", "delete", "find", "findAndModify", "getMore", "killCursors", "count", "distinct", "aggregate", "create",
		"drop", "createIndexes", "dropIndexes", "listCollections", "listIndexes", "killSessions", "hello", "nonsense", "buildInfo"},
	"argument": {"documents", "ordered", "updates", "deletes", "filter", "query", "sort", "projection", "limit", "skip", "batchSize", "update",
		"remove", "new", "upsert", "fields", "pipeline", "cursor", "cursors", "collection", "indexes", "index", "key", "capped", "size", "max",
		"validator", "viewOn", "collation", "lsid", "txnNumber", "stmtIds", "maxTimeMS", "writeConcern", "readConcern", "nameOnly", "nonsense"},
	"field": {"_id", "a", "b", "a.b", "a.0", "a.b.c", "", ".", "a.", "$set", "$unset", "$inc", "$max", "$min", "$setOnInsert", "$eq", "$in", "$nin",
		"$gt", "$gte", "$lt", "$lte", "$ne", "$not", "$or", "$and", "$nor", "$exists", "$type", "$size", "$regex", "$options", "$jsonSchema",
		"$match", "$group", "$sum", "$sort", "$limit", "$project", "$count", "q", "u", "limit", "multi", "upsert", "key", "name", "unique",
		"sparse", "partialFilterExpression", "bsonType", "required", "properties", "additionalProperties", "id", "w", "j", "wtimeout", "level",
		"locale", "strength", "batchSize", "$nonsense"},
}

func randomValue(t *rapid.T, depth int) any {
	kinds := 14
	if depth > 0 {
		kinds = 18
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "type") {
	case 0:
		return rapid.Int32Range(-2, 3).Draw(t, "int32")
	case 1:
		return rapid.Int64().Draw(t, "int64")
	case 2:
		return rapid.Float64().Draw(t, "double")
	case 3:
		return rapid.SampledFrom([]string{"", "a", "c", "x", "majority", "local", "number", "int", "$a", "_id_", "*"}).Draw(t, "text")
	case 4:
		return rapid.Bool().Draw(t, "bool")
	case 5:
		return nil
	case 6:
		return bson.ObjectID{1}
	case 7:
		return bson.Binary{Subtype: byte(rapid.IntRange(0, 5).Draw(t, "subtype")), Data: make([]byte, 16)}
	case 8:
		return bson.Regex{Pattern: rapid.SampledFrom([]string{"a", "(", "[a-z]+"}).Draw(t, "pattern"), Options: "i"}
	case 9:
		return bson.MinKey{}
	case 10:
		return bson.MaxKey{}
	case 11:
		return bson.Timestamp{T: rapid.Uint32Range(0, 1).Draw(t, "t")}
	case 12:
		d, _ := bson.ParseDecimal128(rapid.SampledFrom([]string{"1.0", "NaN", "Infinity", "1E6000", "0.1"}).Draw(t, "decimal"))
		return d
	case 13:
		return bson.Undefined{}
	case 14, 15:
		return randomFields(t, "field", depth-1)
	default:
		list := bson.A{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, randomValue(t, depth-1))
		}
		return list
	}
}

func randomFields(t *rapid.T, kind string, depth int) bson.D {
	doc := bson.D{}
	for range rapid.IntRange(0, 4).Draw(t, "fields") {
		doc = append(doc, bson.E{Key: rapid.SampledFrom(words[kind]).Draw(t, "name"), Value: randomValue(t, depth)})
	}
	return doc
}

var paths = []string{"_id", "_id", "a", "b", "a.b", "a.0", "c"}

// junk says now and then that something else shall stand in a place than what belongs there.
func junk(t *rapid.T) bool { return rapid.IntRange(0, 11).Draw(t, "junk") == 0 }

func randomDocument(t *rapid.T) bson.D {
	if junk(t) {
		return randomFields(t, "field", 3)
	}
	doc := bson.D{}
	for _, name := range []string{"_id", "a", "b", "c"} {
		if rapid.Bool().Draw(t, name) {
			doc = append(doc, bson.E{Key: name, Value: randomValue(t, 2)})
		}
	}
	return doc
}

func randomFilter(t *rapid.T, depth int) bson.D {
	if junk(t) {
		return randomFields(t, "field", 3)
	}
	doc := bson.D{}
	for range rapid.IntRange(0, 2).Draw(t, "conditions") {
		if depth > 0 && rapid.IntRange(0, 3).Draw(t, "branch") == 0 {
			list := bson.A{}
			for range rapid.IntRange(1, 3).Draw(t, "branches") {
				list = append(list, randomFilter(t, depth-1))
			}
			doc = append(doc, bson.E{Key: rapid.SampledFrom([]string{"$and", "$or", "$nor"}).Draw(t, "branch operator"), Value: list})
			continue
		}
		doc = append(doc, bson.E{Key: rapid.SampledFrom(paths).Draw(t, "path"), Value: randomCondition(t)})
	}
	return doc
}

func randomCondition(t *rapid.T) any {
	if rapid.Bool().Draw(t, "equality") {
		return randomValue(t, 2)
	}
	doc := bson.D{}
	for range rapid.IntRange(1, 3).Draw(t, "operators") {
		op := rapid.SampledFrom([]string{"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$type", "$not", "$size"}).Draw(t, "operator")
		var v any
		switch {
		case op == "$in" || op == "$nin":
			v = bson.A{randomValue(t, 2), randomValue(t, 2)}
		case op == "$type":
			v = rapid.SampledFrom([]any{"number", "int", "array", 2, "null"}).Draw(t, "type name")
		case op == "$not":
			v = bson.D{{Key: "$gt", Value: randomValue(t, 1)}}
		default:
			v = randomValue(t, 2)
		}
		doc = append(doc, bson.E{Key: op, Value: v})
	}
	return doc
}

func randomUpdate(t *rapid.T) bson.D {
	if junk(t) {
		return randomFields(t, "field", 3)
	}
	doc := bson.D{}
	for _, op := range []string{"$set", "$unset", "$inc", "$max", "$min", "$setOnInsert"} {
		if !rapid.Bool().Draw(t, op) {
			continue
		}
		var v any = rapid.SampledFrom([]any{int32(1), int64(1) << 62, 0.5, int32(1 << 30)}).Draw(t, "number")
		if op != "$inc" {
			v = randomValue(t, 2)
		}
		doc = append(doc, bson.E{Key: op, Value: bson.D{{Key: rapid.SampledFrom(paths).Draw(t, "path"), Value: v}}})
	}
	return doc
}

func randomIndex(t *rapid.T) bson.D {
	keys := bson.D{}
	for _, p := range paths[2:] {
		if rapid.IntRange(0, 2).Draw(t, p) == 0 {
			keys = append(keys, bson.E{Key: p, Value: rapid.SampledFrom([]int{1, -1}).Draw(t, "direction")})
		}
	}
	x := bson.D{{Key: "name", Value: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")}, {Key: "key", Value: keys}}
	for _, option := range []string{"unique", "sparse"} {
		if rapid.Bool().Draw(t, option) {
			x = append(x, bson.E{Key: option, Value: true})
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "partial") == 0 {
		x = append(x, bson.E{Key: "partialFilterExpression", Value: randomFilter(t, 1)})
	}
	return x
}

// randomCommand is a command with its usual arguments, or with anything.
func randomCommand(t *rapid.T) bson.D {
	name := rapid.SampledFrom(words["command"]).Draw(t, "command")
	command := bson.D{{Key: name, Value: rapid.SampledFrom([]any{"c", "c", "c", "d", 1, int64(0)}).Draw(t, "target")}}
	if junk(t) {
		return append(command, randomFields(t, "argument", 3)...)
	}
	add := func(key string, v any) { command = append(command, bson.E{Key: key, Value: v}) }
	switch name {
	case "insert":
		add("documents", bson.A{randomDocument(t), randomDocument(t), randomDocument(t)})
		add("ordered", rapid.Bool().Draw(t, "ordered"))
	case "update":
		add("updates", bson.A{bson.D{{Key: "q", Value: randomFilter(t, 1)}, {Key: "u", Value: randomUpdate(t)},
			{Key: "upsert", Value: rapid.Bool().Draw(t, "upsert")}, {Key: "multi", Value: rapid.Bool().Draw(t, "multi")}}})
	case "delete":
		add("deletes", bson.A{bson.D{{Key: "q", Value: randomFilter(t, 1)}, {Key: "limit", Value: rapid.IntRange(0, 1).Draw(t, "limit")}}})
	case "find":
		add("filter", randomFilter(t, 2))
		add("batchSize", rapid.IntRange(0, 2).Draw(t, "batchSize"))
		add("sort", bson.D{{Key: rapid.SampledFrom(paths).Draw(t, "sort"), Value: 1}})
		add("projection", bson.D{{Key: rapid.SampledFrom(paths).Draw(t, "projection"), Value: rapid.IntRange(0, 1).Draw(t, "keep")}})
	case "findAndModify":
		add("query", randomFilter(t, 1))
		add("sort", bson.D{{Key: rapid.SampledFrom(paths).Draw(t, "sort"), Value: -1}})
		if rapid.Bool().Draw(t, "remove") {
			add("remove", true)
		} else {
			add("update", randomUpdate(t))
			add("upsert", rapid.Bool().Draw(t, "upsert"))
			add("new", rapid.Bool().Draw(t, "new"))
		}
	case "count":
		add("query", randomFilter(t, 2))
	case "distinct":
		add("key", rapid.SampledFrom(paths).Draw(t, "key"))
	case "create":
		command[0].Value = rapid.SampledFrom([]string{"c", "d", "e"}).Draw(t, "name")
		if rapid.Bool().Draw(t, "capped") {
			add("capped", true)
			add("size", 4096)
			add("max", 3)
		}
		if rapid.Bool().Draw(t, "validated") {
			add("validator", randomFilter(t, 2))
		}
	case "createIndexes":
		add("indexes", bson.A{randomIndex(t)})
	case "dropIndexes":
		add("index", rapid.SampledFrom([]any{"x", "*", bson.D{{Key: "a", Value: 1}}}).Draw(t, "index"))
	case "aggregate":
		add("pipeline", bson.A{bson.D{{Key: "$match", Value: randomFilter(t, 1)}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$a"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}}})
		add("cursor", bson.D{})
	}
	return command
}

func commandProperty(t *rapid.T) {
	config := Config{InProcess: true, Clock: NewClock(time.Unix(1_700_000_000, 0)), MaxMessageBytes: 1 << 20}
	if rapid.Bool().Draw(t, "set") {
		config.ReplicaSet = "rs"
	}
	s, err := Start(config)
	if err != nil {
		t.Fatal(err)
	}
	stream := seeds(t)[1]
	n := rapid.IntRange(1, 12).Draw(t, "commands")
	for range n {
		stream = append(stream, opMsg(t, randomCommand(t), "")...)
	}
	replies := play(t, s, stream)
	for _, reply := range replies {
		if err := checkFields(reply[headerLength+5:], -1000); err != nil {
			t.Fatalf("a reply is no document: %v", err)
		}
	}
	if !s.closed && len(replies) != n+1 {
		t.Fatalf("%d replies to %d commands", len(replies), n+1)
	}
	for ns, c := range s.data.collections {
		if err := c.sound(); err != nil {
			t.Fatalf("%s: %v", ns, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// FuzzCommand sends well-formed messages with nonsense in them: every one gets a reply, and the collections stay sound.
func FuzzCommand(f *testing.F) { f.Fuzz(rapid.MakeFuzz(commandProperty)) }

// TestCommands is the same as a property test.
func TestCommands(t *testing.T) { rapid.Check(t, commandProperty) }

// TestScan: whatever way a search takes, it finds what looking at every document finds, each once.
func TestScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCollection("db.c", 1, collation{fold: rapid.IntRange(0, 9).Draw(t, "fold") == 0})
		s, err := Start(Config{InProcess: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		op := &operation{server: s}
		var docs [][]byte
		for range rapid.IntRange(0, 20).Draw(t, "documents") {
			raw, err := bson.Marshal(randomDocument(t))
			if err != nil {
				t.Fatal(err)
			}
			doc, err := op.prepare(raw)
			if err != nil {
				continue
			}
			docs = append(docs, doc)
		}
		for range rapid.IntRange(0, 2).Draw(t, "indexes") {
			spec, err := bson.Marshal(randomIndex(t))
			if err != nil {
				t.Fatal(err)
			}
			if x, err := parseIndex(spec, c.coll); err == nil && x.name != "" && c.indexNamed(x.name) == nil {
				c.indexes = append(c.indexes, x)
			}
		}
		for _, doc := range docs {
			_, _ = c.insert(doc) // a duplicate is not stored, which is fine
		}
		if err := c.sound(); err != nil {
			t.Fatal(err)
		}
		raw, err := bson.Marshal(randomFilter(t, 2))
		if err != nil {
			t.Fatal(err)
		}
		f, err := compileFilter(raw, c.coll)
		if err != nil {
			return
		}
		want := map[int64]bool{}
		c.records.ascend(bound[int64]{}, bound[int64]{}, func(id int64, doc []byte) bool {
			if f.match(doc) {
				want[id] = true
			}
			return true
		})
		got := map[int64]bool{}
		scan := newScan(c, f)
		piece := rapid.IntRange(1, 4).Draw(t, "piece")
		for !scan.done {
			n := 0
			scan.run(c, func(id int64, _ []byte) bool {
				if got[id] {
					t.Fatalf("record %d is found twice", id)
				}
				got[id] = true
				n++
				return n < piece
			})
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%v finds %v, want %v", bson.Raw(raw), got, want)
		}
	})
}
