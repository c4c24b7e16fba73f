package job

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/intact-go/intact/internal/localmongo"
)

// Stage is an empty database to show something with, on an embedded server or the one that MONGODB_URI names.
type Stage struct {
	URI      string
	Database *mongo.Database
	About    string // tells people which server it is, in lines of 80 columns
	server   *localmongo.Server
}

// NewStage starts the server. The stage has to be closed.
func NewStage(ctx context.Context, program string, log io.Writer) (*Stage, error) {
	server, err := localmongo.Start(ctx, localmongo.Options{Log: log})
	if err != nil {
		return nil, err
	}
	client, err := Connect(ctx, program, server.URI(), nil)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	random := make([]byte, 3)
	rand.Read(random) // never fails
	s := &Stage{URI: server.URI(), Database: client.Database("demo_" + hex.EncodeToString(random)), server: server}
	s.About = "The server is an embedded one, FerretDB on SQLite; it goes away at the end."
	if os.Getenv(localmongo.EnvURI) != "" {
		s.About = fmt.Sprintf("The server is the one that %s names; the database %s\nis dropped at the end.", localmongo.EnvURI, s.Database.Name())
	}
	return s, nil
}

// Close drops the database, since it may be on somebody's server, and stops the server if it is the embedded one.
func (s *Stage) Close(ctx context.Context) error {
	err := s.Database.Drop(context.WithoutCancel(ctx))
	Disconnect(s.Database.Client())
	return errors.Join(err, s.server.Close())
}
