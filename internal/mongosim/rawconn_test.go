package mongosim_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"
)

// rawConn speaks the protocol without the driver, which numbers its sessions itself and lets nobody else do it.
type rawConn struct{ net.Conn }

// send sends one command with $db.
func (c rawConn) send(db string, command bson.D) error {
	doc, err := bson.Marshal(append(command, bson.E{Key: "$db", Value: db}))
	if err != nil {
		return err
	}
	at, message := wiremessage.AppendHeaderStart(nil, 1, 0, wiremessage.OpMsg)
	message = wiremessage.AppendMsgFlags(message, 0)
	message = wiremessage.AppendMsgSectionType(message, wiremessage.SingleDocument)
	message = append(message, doc...)
	_, err = c.Write(bsoncore.UpdateLength(message, at, int32(len(message))))
	return err
}

// receive reads one reply, whether it says ok or not.
func (c rawConn) receive() (bson.Raw, error) {
	var header [16]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return nil, err
	}
	rest := make([]byte, binary.LittleEndian.Uint32(header[:])-16)
	if _, err := io.ReadFull(c, rest); err != nil {
		return nil, err
	}
	if len(rest) < 10 {
		return nil, errors.New("the reply is too short")
	}
	return rest[5:], nil
}

// command sends a command and turns a reply that says ok: 0 into a CommandError.
func (c rawConn) command(db string, command bson.D) (bson.Raw, error) {
	if err := c.send(db, command); err != nil {
		return nil, err
	}
	reply, err := c.receive()
	if err != nil {
		return nil, err
	}
	return reply, commandError(reply)
}

func commandError(reply bson.Raw) error {
	if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok == 1 {
		return nil
	}
	code, _ := reply.Lookup("code").AsInt64OK()
	text, _ := reply.Lookup("errmsg").StringValueOK()
	e := mongo.CommandError{Code: int32(code), Message: text, Raw: reply}
	if labels, ok := reply.Lookup("errorLabels").ArrayOK(); ok {
		values, err := labels.Values()
		if err != nil {
			return err
		}
		for _, v := range values {
			e.Labels = append(e.Labels, v.StringValue())
		}
	}
	return e
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialRaw opens a connection that is closed when the test ends.
func dialRaw(t testing.TB, dial dialFunc, address string) rawConn {
	t.Helper()
	conn, err := dial(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it already
	return rawConn{conn}
}
