package mongosim

import (
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// parse reads what all commands have in common.
func (op *operation) parse() error {
	it := fieldsOf(op.req.body)
	if !it.next() {
		return errorf(codeFailedToParse, "the command is empty")
	}
	op.name = string(it.name)
	own := it.value
	if op.req.query {
		op.db = "admin"
		if op.name != "hello" && op.name != "isMaster" && op.name != "ismaster" {
			return errorf(352, "Unsupported OP_QUERY command: %s. The client driver may require an upgrade.", op.name)
		}
	} else {
		v, ok := op.argument("$db")
		if !ok || v.Type != bsoncore.TypeString {
			return errorf(40571, "OP_MSG requests require a $db argument")
		}
		op.db = v.StringValue()
	}
	op.command = commandFor(op.name)
	if op.command == nil {
		return errorf(codeCommandNotFound, "no such command: '%.100s'", op.name)
	}
	accepted := strings.Fields(op.command.fields)
	var seen [8]string
	names := append(seen[:0], op.name)
	for it.next() {
		if slices.Contains(names, string(it.name)) {
			return errorf(codeDuplicateField, "BSON field '%s.%.100s' is a duplicate field", op.name, it.name)
		}
		names = append(names, string(it.name))
		if err := op.parseField(string(it.name), it.value, accepted); err != nil {
			return err
		}
	}
	for name := range op.req.sequences {
		if !slices.Contains(accepted, name) {
			return errorf(codeUnknownField, "BSON field '%s.%.100s' is an unknown field.", op.name, name)
		}
	}
	if op.number >= 0 && op.lsid == "" {
		return errorf(codeInvalidOptions, "Transaction number requires a session ID to also be specified")
	}
	if op.command.named {
		if own.Type != bsoncore.TypeString {
			return errorf(codeInvalidNamespace, "collection name has invalid type %s", own.Type)
		}
		op.ns = op.db + "." + own.StringValue()
		return checkNamespace(op.db, own.StringValue(), op.command.write)
	}
	return nil
}

func (op *operation) parseField(name string, v bsoncore.Value, accepted []string) error {
	switch name {
	case "lsid":
		id, err := sessionID(v)
		if err != nil {
			return err
		}
		op.lsid = id
	case "txnNumber":
		n, ok := wholeNumber(v)
		if !ok || n < 0 {
			return errorf(codeInvalidOptions, "Transaction number cannot be negative")
		}
		if !op.command.write || !slices.Contains(accepted, name) {
			return errorf(codeOperationNotSupportedInTxn, "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and %s is not a retryable write command.", op.name)
		}
		if !op.server.config.NoHistory {
			op.number = n
		}
	case "startTransaction", "autocommit":
		return notSimulated("multi-document transactions")
	case "maxTimeMS":
		n, ok := wholeNumber(v)
		if !ok || n < 0 {
			return errorf(codeBadValue, "maxTimeMS has to be a non-negative whole number")
		}
		if n > 0 && op.name != "hello" && op.name != "isMaster" {
			op.deadline = op.server.now().Add(time.Duration(n) * time.Millisecond)
		}
	case "readConcern":
		return op.parseReadConcern(v)
	case "writeConcern":
		if !slices.Contains(accepted, name) {
			return errorf(codeInvalidOptions, "Command %s does not support writeConcern", op.name)
		}
		return op.concern.parse(v)
	case "$readPreference":
		if v.Type != bsoncore.TypeEmbeddedDocument {
			return wrongType(op.name, name, v, "object")
		}
		if mode, ok := lookup(v.Data, "mode"); ok && mode.Type == bsoncore.TypeString {
			op.readPref = mode.StringValue()
		}
	default:
		if !op.command.loose && !slices.Contains(accepted, name) && !slices.Contains(generic, name) {
			return errorf(codeUnknownField, "BSON field '%s.%.100s' is an unknown field.", op.name, name)
		}
	}
	return nil
}

// sessionID is the text form of an lsid document.
func sessionID(v bsoncore.Value) (string, error) {
	if v.Type == bsoncore.TypeEmbeddedDocument {
		if id, ok := lookup(v.Data, "id"); ok && id.Type == bsoncore.TypeBinary {
			_, data := id.Binary()
			return hex.EncodeToString(data), nil
		}
	}
	return "", errorf(codeFailedToParse, "a session's id must be {id: UUID}")
}

func (op *operation) parseReadConcern(v bsoncore.Value) error {
	if v.Type != bsoncore.TypeEmbeddedDocument {
		return wrongType(op.name, "readConcern", v, "object")
	}
	for it := fieldsOf(v.Data); it.next(); {
		switch string(it.name) {
		case "level":
			if it.value.Type != bsoncore.TypeString {
				return wrongType("readConcern", "level", it.value, "string")
			}
			op.read = it.value.StringValue()
			switch op.read {
			case "local", "available", "majority":
			default:
				return notSimulated("the read concern %q", op.read)
			}
		case "afterClusterTime":
			if it.value.Type != bsoncore.TypeTimestamp {
				return wrongType("readConcern", "afterClusterTime", it.value, "timestamp")
			}
			_, i := it.value.Timestamp()
			op.after = int64(i)
		default:
			return errorf(codeUnknownField, "BSON field 'readConcern.%s' is an unknown field.", it.name)
		}
	}
	return nil
}

// checkNamespace refuses names that MongoDB refuses (NamespaceString::isValid, userAllowedWriteNS).
func checkNamespace(db, coll string, write bool) error {
	switch {
	case db == "" || strings.ContainsAny(db, "/\\. \"$\x00") || len(db) > 63:
		return errorf(codeInvalidNamespace, "Invalid database name: '%.100s'", db)
	case coll == "" || strings.HasPrefix(coll, ".") || strings.ContainsAny(coll, "\x00"):
		return errorf(codeInvalidNamespace, "Invalid namespace specified '%.200s.%.100s'", db, coll)
	case len(db)+1+len(coll) > 255:
		return errorf(codeInvalidNamespace, "Fully qualified namespace is too long. Max: 255")
	case write && strings.Contains(coll, "$"):
		return errorf(codeInvalidNamespace, "Invalid collection name: %.100s", coll)
	case write && strings.HasPrefix(coll, "system."):
		return errorf(codeInvalidNamespace, "Invalid system namespace: %s.%s", db, coll)
	}
	return nil
}
