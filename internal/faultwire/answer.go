package faultwire

import (
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Answer makes or changes a reply.
type Answer interface {
	// Apply returns the reply that the client is given. It gets the server's reply, or what an earlier Answer made of it;
	// nil if there is none. It must not write to the reply it gets.
	Apply(request *Request, reply bson.Raw) bson.Raw
	String() string
}

// CommandError is the reply of a command that failed as a whole: ok 0. It replaces whatever reply there is.
type CommandError struct {
	Code       int
	CodeName   string // Left out if empty.
	Message    string
	Labels     []string      // Defaults to no errorLabels field.
	RetryAfter time.Duration // Sent as the field RetryAfterMs, in milliseconds. Defaults to no such field.
	More       bson.D        // Further fields.
}

// Throttled is the refusal of a service that has spent its budget, in the form of Cosmos DB: code 16500 and a text that
// tells the milliseconds to wait. The hint stands in the field RetryAfterMs as well.
func Throttled(retryAfter time.Duration) CommandError {
	return CommandError{
		Code:       16500,
		Message:    fmt.Sprintf("Error=16500, RetryAfterMs=%d, Details='Request rate is large'", retryAfter.Milliseconds()),
		RetryAfter: retryAfter,
	}
}

// Overloaded is the refusal of a MongoDB server that sheds load: the labels SystemOverloadedError and RetryableError, on
// which the driver itself retries, and the field baseBackoffMS unless the backoff is 0. Labels, field and code are those that
// driver v2.10.0 knows and is tested with.
func Overloaded(baseBackoff time.Duration) CommandError {
	e := CommandError{
		Code:     462,
		CodeName: "IngressRequestRateLimitExceeded",
		Message:  "too many requests",
		Labels:   []string{"SystemOverloadedError", "RetryableError"},
	}
	if baseBackoff > 0 {
		e.More = bson.D{{Key: "baseBackoffMS", Value: baseBackoff.Milliseconds()}}
	}
	return e
}

// Apply is an Answer's.
func (e CommandError) Apply(*Request, bson.Raw) bson.Raw {
	d := bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: e.Message}, {Key: "code", Value: int32(e.Code)}}
	if e.CodeName != "" {
		d = append(d, bson.E{Key: "codeName", Value: e.CodeName})
	}
	if e.Labels != nil {
		d = append(d, bson.E{Key: "errorLabels", Value: e.Labels})
	}
	return encode(append(appendHint(d, e.RetryAfter), e.More...))
}

func (e CommandError) String() string { return fmt.Sprintf("command error %d", e.Code) }

// WriteError reports that one statement of a write failed. In a Lie or a Reply it adds itself to the reply and takes one
// off its n, or in an ordered write all from its index on; Set("n", …) after it says otherwise.
type WriteError struct {
	Index      int
	Code       int
	Message    string
	KeyPattern bson.D        // Left out if nil, like the next two. Servers send it with code 11000 from version 4.4 on.
	KeyValue   bson.D        //
	Info       bson.D        // errInfo
	RetryAfter time.Duration // Sent as the field RetryAfterMs, in milliseconds. Defaults to no such field.
	More       bson.D        // Further fields.
}

// Apply is an Answer's.
func (e WriteError) Apply(request *Request, reply bson.Raw) bson.Raw {
	return edit(request, reply, func(d bson.D) bson.D {
		n := number(d, "n") - 1
		if request.Ordered() {
			n = min(n, e.Index)
		}
		d = set(d, "n", int32(max(n, 0)))
		return set(d, "writeErrors", append(array(d, "writeErrors"), e.document()))
	})
}

func (e WriteError) document() bson.D {
	d := bson.D{{Key: "index", Value: int32(e.Index)}, {Key: "code", Value: int32(e.Code)}}
	for _, part := range []bson.E{
		{Key: "keyPattern", Value: e.KeyPattern}, {Key: "keyValue", Value: e.KeyValue}, {Key: "errInfo", Value: e.Info},
	} {
		if part.Value.(bson.D) != nil {
			d = append(d, part)
		}
	}
	d = append(appendHint(d, e.RetryAfter), e.More...)
	return append(d, bson.E{Key: "errmsg", Value: e.Message})
}

func (e WriteError) String() string { return fmt.Sprintf("write error %d", e.Code) }

// WriteConcernError reports that a write was applied but not as durably as was asked for. It is added to the reply.
type WriteConcernError struct {
	Code     int
	CodeName string // Left out if empty.
	Message  string
	Info     bson.D   // errInfo. Left out if nil.
	Labels   []string // errorLabels of the whole reply. Defaults to none.
}

// Apply is an Answer's.
func (e WriteConcernError) Apply(request *Request, reply bson.Raw) bson.Raw {
	d := bson.D{{Key: "code", Value: int32(e.Code)}}
	if e.CodeName != "" {
		d = append(d, bson.E{Key: "codeName", Value: e.CodeName})
	}
	d = append(d, bson.E{Key: "errmsg", Value: e.Message})
	if e.Info != nil {
		d = append(d, bson.E{Key: "errInfo", Value: e.Info})
	}
	reply = Set("writeConcernError", d).Apply(request, reply)
	if e.Labels != nil {
		reply = Labels(e.Labels).Apply(request, reply)
	}
	return reply
}

func (e WriteConcernError) String() string { return fmt.Sprintf("write concern error %d", e.Code) }

// Labels adds error labels to the reply.
type Labels []string

// Apply is an Answer's.
func (l Labels) Apply(request *Request, reply bson.Raw) bson.Raw {
	return edit(request, reply, func(d bson.D) bson.D {
		labels := array(d, "errorLabels")
		for _, label := range l {
			labels = append(labels, label)
		}
		return set(d, "errorLabels", labels)
	})
}

func (l Labels) String() string { return "labels" }

// Edit is an Answer that is made by a function.
type Edit func(request *Request, reply bson.Raw) bson.Raw

// Apply is an Answer's.
func (e Edit) Apply(request *Request, reply bson.Raw) bson.Raw {
	return e(request, slices.Clone(reply))
}

func (e Edit) String() string { return "an edited reply" }

// Document is an Answer that consists of these fields, whatever the server said.
type Document bson.D

// Apply is an Answer's.
func (d Document) Apply(*Request, bson.Raw) bson.Raw { return encode(bson.D(d)) }

func (d Document) String() string { return "a made-up reply" }

// Set is an Answer that sets one field of the reply.
func Set(key string, value any) Answer { return field{key, value} }

type field bson.E

func (f field) Apply(request *Request, reply bson.Raw) bson.Raw {
	return edit(request, reply, func(d bson.D) bson.D { return set(d, f.Key, f.Value) })
}

func (f field) String() string { return "another " + f.Key }

// success is the reply of a server to which everything went well, as far as drivers look at it.
func success(request *Request) bson.Raw {
	switch request.Name {
	case Insert, Update, Delete:
		return encode(bson.D{{Key: "n", Value: int32(len(request.Statements()))}, {Key: "ok", Value: 1.0}})
	case Find, Aggregate:
		return encode(bson.D{{Key: "cursor", Value: bson.D{
			{Key: "firstBatch", Value: bson.A{}}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: request.Namespace()},
		}}, {Key: "ok", Value: 1.0}})
	}
	return encode(bson.D{{Key: "ok", Value: 1.0}})
}

func edit(request *Request, reply bson.Raw, change func(bson.D) bson.D) bson.Raw {
	if reply == nil {
		reply = success(request)
	}
	var d bson.D
	if err := bson.Unmarshal(reply, &d); err != nil {
		panic(fmt.Sprintf("faultwire: a reply that cannot be decoded: %v", err))
	}
	return encode(change(d))
}

// encode panics on values that are no BSON: they stand in the test's own source.
func encode(d bson.D) bson.Raw {
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("faultwire: an answer that cannot be encoded: %v", err))
	}
	return raw
}

func appendHint(d bson.D, after time.Duration) bson.D {
	if after > 0 {
		d = append(d, bson.E{Key: "RetryAfterMs", Value: int32(after.Milliseconds())})
	}
	return d
}

func set(d bson.D, key string, value any) bson.D {
	for i := range d {
		if d[i].Key == key {
			d[i].Value = value
			return d
		}
	}
	return append(d, bson.E{Key: key, Value: value})
}

func value(d bson.D, key string) any {
	for _, e := range d {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}

// number reads a count, which servers send as any of the numeric types; 0 if it is none.
func number(d bson.D, key string) int {
	switch v := value(d, key).(type) {
	case int32:
		return int(v)
	case int64:
		return int(v)
	case float64:
		return int(v)
	}
	return 0
}

func array(d bson.D, key string) bson.A {
	a, _ := value(d, key).(bson.A)
	return a
}
