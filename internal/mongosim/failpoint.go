package mongosim

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// runConfigureFailPoint arms failCommand and maxTimeAlwaysTimeOut the way MongoDB's own tests do (manual for drivers:
// specifications, "transactions/tests", "Server Fail Point").
func runConfigureFailPoint(op *operation) ([]byte, error) {
	s := op.server
	v, _ := op.argument("configureFailPoint")
	if v.Type != bsoncore.TypeString {
		return nil, wrongType(op.name, op.name, v, "string")
	}
	name := v.StringValue()
	if name != "failCommand" && name != "maxTimeAlwaysTimeOut" {
		return nil, notSimulated("the fail point %.100q", name)
	}
	f := &Fault{}
	off, err := f.parseMode(op)
	if err != nil {
		return nil, err
	}
	data, err := op.subdocument("data")
	if err != nil {
		return nil, err
	}
	if name == "failCommand" && !off {
		if err := f.parseData(data); err != nil {
			return nil, err
		}
	}
	count := 0
	if old := s.failures[name]; old != nil {
		count = old.hits
	}
	delete(s.failures, name)
	if !off {
		s.failures[name] = f
	}
	return bsoncore.AppendInt32Element(nil, "count", int32(count)), nil
}

func (f *Fault) parseMode(op *operation) (off bool, err error) {
	mode, _ := op.argument("mode")
	switch mode.Type {
	case bsoncore.TypeString:
		switch mode.StringValue() {
		case "off":
			return true, nil
		case "alwaysOn":
			return false, nil
		}
	case bsoncore.TypeEmbeddedDocument:
		for it := fieldsOf(mode.Data); it.next(); {
			n, ok := wholeNumber(it.value)
			switch {
			case !ok || n < 0:
				return false, errorf(codeBadValue, "the mode's number is not a whole number")
			case string(it.name) == "times":
				if n == 0 {
					return true, nil
				}
				f.Times = int(n)
			case string(it.name) == "skip":
				f.Skip = int(n)
			default:
				return false, notSimulated("the fail point mode %q", it.name)
			}
		}
		return false, nil
	}
	return false, errorf(codeBadValue, "'mode' must be 'off', 'alwaysOn' or a document")
}

func (f *Fault) parseData(data bsoncore.Document) error {
	var code, block int64
	var blocks bool
	var labels []string
	for it := fieldsOf(data); it.next(); {
		v, ok := it.value, true
		switch name := string(it.name); name {
		case "failCommands", "errorLabels":
			var list []string
			ok = v.Type == bsoncore.TypeArray
			if ok {
				list = []string{}
				for e := fieldsOf(v.Data); e.next(); {
					if e.value.Type != bsoncore.TypeString {
						return errorf(codeTypeMismatch, "failCommand: '%s' must hold strings", name)
					}
					list = append(list, e.value.StringValue())
				}
			}
			if name == "failCommands" {
				f.Commands = list
			} else {
				labels = list
			}
		case "errorCode":
			code, ok = wholeNumber(v)
		case "closeConnection":
			f.CloseBefore = truthy(v)
		case "blockConnection":
			blocks = truthy(v)
		case "blockTimeMS":
			block, ok = wholeNumber(v)
		case "namespace":
			if ok = v.Type == bsoncore.TypeString; ok {
				f.Namespace = v.StringValue()
			}
		case "appName":
			if ok = v.Type == bsoncore.TypeString; ok {
				f.AppName = v.StringValue()
			}
		case "writeConcernError":
			if ok = v.Type == bsoncore.TypeEmbeddedDocument; ok {
				f.WriteConcernErr = concernErrorFrom(v.Data)
			}
		case "failInternalCommands":
		default:
			return notSimulated("failCommand's %q", name)
		}
		if !ok {
			return errorf(codeTypeMismatch, "failCommand: '%s' has the wrong type %s", it.name, v.Type)
		}
	}
	if len(f.Commands) == 0 {
		return errorf(codeBadValue, "failCommand needs failCommands")
	}
	if blocks && block <= 0 {
		return errorf(codeInvalidOptions, "must specify 'blockTimeMS' when 'blockConnection' is true")
	}
	if blocks {
		f.Block = time.Duration(block) * time.Millisecond
	}
	if code != 0 {
		f.Err = errorf(int32(code), "Failing command via 'failCommand' failpoint")
	}
	f.Labels = labels
	return nil
}

func concernErrorFrom(doc bsoncore.Document) *Error {
	e := &Error{}
	for it := fieldsOf(doc); it.next(); {
		switch string(it.name) {
		case "code":
			n, _ := wholeNumber(it.value)
			e.Code = int32(n)
		case "errmsg":
			if it.value.Type == bsoncore.TypeString {
				e.Message = it.value.StringValue()
			}
		case "codeName":
		default:
			e.fields = append(e.fields, it.raw...)
		}
	}
	return e
}
