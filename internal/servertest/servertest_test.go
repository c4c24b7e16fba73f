package servertest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/intact-go/intact/internal/localmongo"
)

func TestMain(m *testing.M) { Main(m) }

// leakEnv makes TestLeak leak.
const leakEnv = "INTACT_TEST_LEAK"

func TestEach(t *testing.T) {
	var names []string
	Each(t, func(t *testing.T, s *Server) {
		_, name, _ := strings.Cut(t.Name(), "/")
		names = append(names, name)
		if name != s.Kind.String() {
			t.Errorf("subtest %s has a server of kind %v", name, s.Kind)
		}
		c := s.Database(t, s.Client(t)).Collection("c")
		if _, err := c.InsertOne(t.Context(), bson.M{"_id": 1}); err != nil {
			t.Fatal(err)
		}
		if n, err := c.CountDocuments(t.Context(), bson.M{}); err != nil || n != 1 {
			t.Errorf("%d documents, %v", n, err)
		}
	})
	if want := []string{realKind().String(), "mongosim"}; !slices.Equal(names, want) {
		t.Errorf("subtests %v, want %v", names, want)
	}
}

func TestEmbeddedIsShared(t *testing.T) {
	if a, b := Embedded(t), Embedded(t); a.URI != b.URI || a.URI == "" {
		t.Errorf("two servers: %q, %q", a.URI, b.URI)
	}
}

func TestCleanup(t *testing.T) {
	s := Embedded(t)
	observer := s.Client(t)
	var names []string
	var clients []*mongo.Client
	for name, during := range map[string]func(c *mongo.Client){
		"the client still works":     func(*mongo.Client) {},
		"the client is disconnected": func(c *mongo.Client) { c.Disconnect(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			c := s.Client(t, options.Client().SetAppName("cleanup"))
			for range 2 {
				db := s.Database(t, c)
				if _, err := db.Collection("c").InsertOne(t.Context(), bson.M{}); err != nil {
					t.Fatal(err)
				}
				names = append(names, db.Name())
			}
			clients = append(clients, c)
			during(c)
		})
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != 4 {
		t.Errorf("names that are not unique: %v", names)
	}
	left, err := observer.ListDatabaseNames(t.Context(), bson.M{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "intact_") || slices.Contains(left, name) {
			t.Errorf("database %s is still there or has the wrong name; all: %v", name, left)
		}
	}
	for _, c := range clients {
		if err := c.Ping(t.Context(), nil); !errors.Is(err, mongo.ErrClientDisconnected) {
			t.Errorf("a client after its test: %v", err)
		}
	}
}

func TestLeak(t *testing.T) {
	if os.Getenv(leakEnv) != "" {
		go func() { select {} }()
	}
}

// TestMainReports runs this test binary again with something wrong.
func TestMainReports(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	uri := Embedded(t).URI
	for name, test := range map[string]struct {
		run, env string
		ok       bool
		want     string // a part of the output
	}{
		"nothing":        {run: "^TestLeak$", env: "X=", ok: true},
		"a leak":         {run: "^TestLeak$", env: leakEnv + "=1", want: "TestLeak.func1"},
		"no go command":  {run: "^TestEach$", env: "PATH=" + t.TempDir(), want: "no go command in PATH"},
		"a given server": {run: "^TestEach$", env: localmongo.EnvURI + "=" + uri, ok: true, want: "TestEach/uri"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no go command" && realKind() == KindExternal {
				t.Skip("with a given server, the go command is not needed")
			}
			c := exec.Command(program, "-test.v", "-test.run="+test.run)
			c.Env = append(os.Environ(), test.env)
			out, err := c.CombinedOutput()
			if (err == nil) != test.ok || !strings.Contains(string(out), test.want) {
				t.Errorf("%v, says:\n%s", err, out)
			}
		})
	}
}
