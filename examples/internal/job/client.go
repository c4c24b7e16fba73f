// Package job holds what the example programs that store a batch have in common: connections, signals, numbers, the
// recovery of what was killed.
package job

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/examples/internal/screen"
)

// DefaultURI is where a server is looked for if nothing else is said.
const DefaultURI = "mongodb://localhost:27017"

const (
	// connectTime is how long to wait for the server before anything is sent.
	connectTime = 15 * time.Second
	// disconnectTime is how long closing the connections may take.
	disconnectTime = 5 * time.Second
)

// DeleteTime is how long one delete of a rollback may take. Servers without an index on _id (FerretDB) read the whole
// collection for each, one delete after the other; given up too early, each would be done twice.
const DeleteTime = 2 * time.Minute

// Connect returns a client of a server that answers. The dialer is nil for the network.
func Connect(ctx context.Context, program, uri string, dialer driver.ContextDialer) (*mongo.Client, error) {
	settings := driver.Client().SetAppName("intact " + program).SetServerSelectionTimeout(connectTime).ApplyURI(uri) // which can say otherwise
	if dialer != nil {
		settings.SetDialer(dialer)
	}
	client, err := mongo.Connect(settings)
	if err != nil {
		return nil, fmt.Errorf("no connection: %w", screen.HideCredentials(err, uri))
	}
	if err := client.Ping(ctx, nil); err != nil {
		Disconnect(client)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("no connection to the server: %w", screen.HideCredentials(err, uri))
	}
	return client, nil
}

// Disconnect closes the connections. Everything was acknowledged by then, so that an error says nothing.
func Disconnect(client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), disconnectTime)
	defer cancel()
	_ = client.Disconnect(ctx)
}

// CheckURI refuses what is not a connection string. The driver's own words can quote the password.
func CheckURI(flag, uri string) error {
	if strings.HasPrefix(uri, "mongodb+srv://") || driver.Client().ApplyURI(uri).Validate() == nil { // a name behind +srv is looked up later
		return nil
	}
	return Misused("%s: not a valid connection string; expected mongodb://[user:password@]host[:port][,…]/[database][?options], with special characters of the password percent-encoded", flag)
}

// DatabaseOf returns the database that a connection string names, or "".
func DatabaseOf(uri string) string {
	_, rest, _ := strings.Cut(uri, "://")
	rest, _, _ = strings.Cut(rest, "?")
	_, name, _ := strings.Cut(rest[strings.LastIndexByte(rest, '@')+1:], "/")
	if unescaped, err := url.PathUnescape(name); err == nil {
		return unescaped
	}
	return name
}

// UsageError is a command line that makes no sense.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

// Misused makes a UsageError.
func Misused(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }
