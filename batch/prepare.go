package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"golang.org/x/sync/errgroup"

	"github.com/intact-go/intact/internal/outcome"
)

// maxDocument is MongoDB's limit for one document, in bytes ("BSON Document Size" in its manual's limits).
const maxDocument = 16 << 20

// document is one document of a batch, from encoding to verdict.
type document struct {
	raw     bson.Raw // as it will be stored
	numbers []any    // its value for each of the part's numberings
	index   int      // in the caller's slice, or in the stream

	minted  bool // the batch made its _id
	stamped bool // it carries the stamp

	// The rest is written by the one worker that has the document's chunk.
	verdict outcome.Verdict
	sent    bool // an insert command with it has left
	unsure  bool // the answer to a sending was lost: another copy may still arrive
	foreign bool // its minted _id belongs to somebody else after all
	taken   bool // the server refused it because of its _id: somebody else has it

	entry entry // what the part's track has about it; protected by run.state
}

func (d *document) id() bson.RawValue { return d.raw.Lookup("_id") }

// provable reports whether the document can be told from somebody else's with the same _id.
func (d *document) provable() bool { return d.minted || d.stamped }

// part is a Part in the course of being inserted.
type part struct {
	Part
	position  int
	namespace string
	documents []document        // of a slice; a stream's are in its chunks
	inserts   *mongo.Collection // with the batch's write concern, and encoding nothing anew
	server    serverInfo

	chunkSize, chunkBytes int // the Config's, or less if the server takes less

	read    int    // documents of a stream so far
	ended   bool   // the stream was read to its end
	claimed idList // ids that a stream's documents claim, as they are read; protected by run.state
	track   track
}

// prepare declares the parts, and encodes and checks all documents that are in memory. It sends nothing. The error is an
// *Error that names every bad document, or says what is wrong with a part.
func (r *run) prepare(parts []Part) error {
	for position, declared := range parts {
		if declared.err == nil {
			declared.err = checkNamespace(declared.coll)
		}
		if declared.err != nil {
			return fmt.Errorf("part %d: %w", position, declared.err)
		}
		r.addPart(position, declared)
	}
	var bad []DocumentError
	twins := make(map[*mongo.Client]map[string]map[string]int) // claimed ids, by client and collection: first index
	for _, p := range r.parts {
		errs := r.encodeAll(p)
		client := p.coll.Database().Client()
		if twins[client] == nil {
			twins[client] = make(map[string]map[string]int)
		}
		if twins[client][p.namespace] == nil {
			twins[client][p.namespace] = make(map[string]int)
		}
		for i := range p.documents {
			d := &p.documents[i]
			err := errs[i]
			switch {
			case err != nil:
			case d.minted:
				d.setMinted(r.mint.id())
			case !p.numbersID():
				err = noTwin(twins[client][p.namespace], d)
			}
			if err != nil {
				bad = append(bad, p.refuse(d, err))
			}
		}
	}
	return r.refused(bad)
}

func (r *run) addPart(position int, declared Part) {
	p := &part{
		Part:      declared,
		position:  position,
		namespace: namespace(declared.coll),
		documents: make([]document, declared.count),
		chunkSize: r.config.ChunkSize, chunkBytes: r.config.ChunkBytes,
		inserts: declared.coll.Clone(options.Collection().
			SetWriteConcern(r.config.WriteConcern).
			SetReadConcern(readconcern.Local()).
			SetReadPreference(readpref.Primary()).
			SetRegistry(wireRegistry).
			SetBSONOptions(&options.BSONOptions{})),
	}
	r.parts = append(r.parts, p)
	r.total += declared.count
	r.streams = r.streams || p.stream != nil
	r.open = r.streams
}

// refused makes the error of documents that were refused before anything was sent; nil if there are none.
func (r *run) refused(bad []DocumentError) error {
	if len(bad) == 0 {
		return nil
	}
	return &Error{BatchID: r.id, Total: r.total, Documents: bad, Cause: ErrInvalidDocuments}
}

func (p *part) refuse(d *document, err error) DocumentError {
	refusal := DocumentError{Part: p.position, Index: d.index, Collection: p.namespace, Message: err.Error(), Err: err}
	if id, lookupErr := d.raw.LookupErr("_id"); lookupErr == nil {
		refusal.ID = id
	}
	return refusal
}

// numbersID reports whether the part's _id, or a field of it, comes from a sequence.
func (p *part) numbersID() bool {
	for _, n := range p.numbers {
		if n.path[0] == "_id" {
			return true
		}
	}
	return false
}

// encodeAll gives a slice's documents their final bytes but for minted ids and numbers, on all processors. It returns
// one error, or nil, for each.
func (r *run) encodeAll(p *part) []error {
	const segment = 1_000
	errs := make([]error, len(p.documents))
	encodeSegment := func(from int, encode *encoder) {
		to := min(from+segment, len(p.documents))
		for i := from; i < to; i++ {
			p.documents[i].index = i
			errs[i] = r.encode(p, &p.documents[i], p.at(i), encode)
		}
		r.progress(Preparing, to-from)
	}
	if len(p.documents) <= segment {
		if len(p.documents) > 0 {
			encodeSegment(0, newEncoder(r.config.Registry, r.config.BSONOptions))
		}
		return errs
	}
	var group errgroup.Group
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		group.Go(func() error {
			encode := newEncoder(r.config.Registry, r.config.BSONOptions)
			for from := w * segment; from < len(p.documents); from += workers * segment {
				encodeSegment(from, encode)
			}
			return nil
		})
	}
	_ = group.Wait() // encodeSegment reports through errs
	return errs
}

// encode gives a document its final bytes, with zeros in the place of a minted _id and of numbers.
func (r *run) encode(p *part, d *document, value any, encode *encoder) error {
	raw, err := encode.encode(value)
	if err != nil {
		return err
	}
	for _, n := range p.numbers {
		if raw, err = setField(raw, n.path, zero, false); err != nil {
			return fmt.Errorf("number for field %q: %w", n.field, err)
		}
	}
	hasID, err := r.checkFields(raw)
	if err != nil {
		return err
	}
	d.minted = !hasID
	d.stamped = r.config.Stamp == StampAll || r.config.Stamp == StampClaimed && hasID
	d.raw = r.assemble(raw, d)
	return checkSize(d.raw)
}

var zero = bson.RawValue{Type: bson.TypeInt64, Value: make([]byte, 8)} // never written to

// checkFields checks what would make the document unfit, and reports whether it has an _id.
func (r *run) checkFields(raw bson.Raw) (hasID bool, err error) {
	for key, e := range elements(raw) {
		switch key {
		case "_id":
			if hasID {
				return true, errors.New("it has two _id fields")
			}
			hasID = true
			if err := errBadID(bson.RawValue{Type: e.kind, Value: raw[e.value:e.end]}); err != nil {
				return true, err
			}
		case r.config.StampField:
			if r.config.Stamp != StampNone {
				return hasID, fmt.Errorf("it already has a field %q, the batch's stamp; name another with Config.StampField", key)
			}
		}
	}
	return hasID, nil
}

const idElement = 1 + len("_id") + 1 + 12 // bytes of an _id that is an ObjectID

// assemble puts room for a minted _id in front and the stamp at the end.
func (r *run) assemble(raw bson.Raw, d *document) bson.Raw {
	size := len(raw)
	if d.minted {
		size += idElement
	}
	if d.stamped {
		size += 1 + len(r.config.StampField) + 1 + 12
	}
	out := make([]byte, 4, size)
	binary.LittleEndian.PutUint32(out, uint32(size))
	if d.minted {
		out = append(out, byte(bson.TypeObjectID))
		out = append(out, "_id\x00"...)
		out = append(out, bson.NilObjectID[:]...)
	}
	out = append(out, raw[4:len(raw)-1]...)
	if d.stamped {
		out = append(out, byte(bson.TypeObjectID))
		out = append(out, r.config.StampField...)
		out = append(out, 0)
		out = append(out, r.id[:]...)
	}
	return append(out, 0)
}

// setMinted fills in the _id that assemble left room for.
func (d *document) setMinted(id bson.ObjectID) {
	copy(d.raw[4+idElement-12:4+idElement], id[:])
}

func checkSize(raw bson.Raw) error {
	if len(raw) > maxDocument {
		return fmt.Errorf("it has %d bytes as it would be stored; %d is the most", len(raw), maxDocument)
	}
	return nil
}

// noTwin refuses a claimed id that an earlier document of the batch claims.
func noTwin(seen map[string]int, d *document) error {
	e, ok := lookup(d.raw, []string{"_id"})
	if !ok {
		return nil
	}
	key := appendIdentity(nil, e.kind, d.raw[e.value:e.end])
	if first, twice := seen[string(key)]; twice {
		return &DuplicateIDError{First: first}
	}
	seen[string(key)] = d.index
	return nil
}
