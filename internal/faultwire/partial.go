package faultwire

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// refusal is what becomes of a write some of whose statements are refused.
type refusal struct {
	request *message // what is left of the write; nil if nothing is
	kept    []int    // for each statement that is left, its index in the client's request
	errors  []WriteError
}

// refuse takes the refused statements out of a write. Of an ordered write, nothing is left from the first of them on.
func (r *Request) refuse(refused []WriteError) (refusal, error) {
	statements := r.Statements()
	var outcome refusal
	var outside []WriteError
	for _, e := range refused {
		if e.Index < 0 || e.Index >= len(statements) {
			outside = append(outside, e)
		} else {
			outcome.errors = append(outcome.errors, e)
		}
	}
	slices.SortStableFunc(outcome.errors, func(a, b WriteError) int { return a.Index - b.Index })
	if r.Ordered() && len(outcome.errors) > 0 {
		outcome.errors = outcome.errors[:1]
		statements = statements[:outcome.errors[0].Index]
	}
	var left []bson.Raw
	for i, s := range statements {
		if !slices.ContainsFunc(outcome.errors, func(e WriteError) bool { return e.Index == i }) {
			left = append(left, s)
			outcome.kept = append(outcome.kept, i)
		}
	}
	outcome.errors = append(outcome.errors, outside...)
	if len(left) == 0 {
		return outcome, nil
	}
	elements, err := r.Document().Elements()
	if err != nil {
		return refusal{}, err
	}
	var command bson.D
	for _, e := range elements {
		command = append(command, bson.E{Key: e.Key(), Value: e.Value()})
	}
	outcome.request, err = r.rewritten(encode(set(command, statementField(r.Name), left)))
	return outcome, err
}

// answer adds the refused statements to the server's reply to the others, and gives the indexes in it back the meaning
// that they have in the client's request.
func (o refusal) answer(request *Request, reply bson.Raw) bson.Raw {
	if reply == nil {
		reply = Set("n", int32(0)).Apply(request, nil)
	}
	return edit(request, reply, func(d bson.D) bson.D {
		if number(d, "ok") != 1 {
			return d // the command failed as a whole: the server looked at no statement
		}
		for _, key := range []string{"writeErrors", "upserted"} {
			for _, entry := range array(d, key) {
				sub, _ := entry.(bson.D)
				if i := number(sub, "index"); i >= 0 && i < len(o.kept) {
					set(sub, "index", int32(o.kept[i]))
				}
			}
		}
		errors := array(d, "writeErrors")
		if request.Ordered() && len(errors) > 0 {
			return d // it ended before it came to the refused one
		}
		for _, e := range o.errors {
			errors = append(errors, e.document())
		}
		slices.SortStableFunc(errors, func(a, b any) int {
			first, _ := a.(bson.D)
			second, _ := b.(bson.D)
			return number(first, "index") - number(second, "index")
		})
		return set(d, "writeErrors", errors)
	})
}
