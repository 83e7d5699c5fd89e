package mongo

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
)

// DB-15: a server that accepts transactions and commits each command at once is refused at the start.
func TestServerWithoutTransactions(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	if m.NoTransactions == "" {
		t.Skip("the server is a replica set")
	}
	s, err := New(connect(t, m.NoTransactions).Database(m.Database), Options{Source: "/test", AutoMigrate: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Check(t.Context())
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "replica set") {
		t.Errorf("Check says %v", err)
	}
	if n, err := s.tickets.CountDocuments(t.Context(), bson.M{}); err != nil || n != 0 {
		t.Errorf("Check left %d documents: %v", n, err)
	}
}

// DB-15 DB-07: Check names what is missing, and Migrate mends it.
func TestCheckAndDrift(t *testing.T) {
	t.Parallel()
	db := database(t)
	s, err := New(db, Options{Source: "/test", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	refused := func(when, names string) {
		t.Helper()
		if err := s.Check(ctx); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: Check says %v, want ErrMisconfigured and %s", when, err, names)
		}
	}
	refused("nothing is there", "waybill_meta")
	in := func(ctx context.Context) error {
		sess, err := begin(s)
		if err != nil {
			return err
		}
		defer sess.EndSession(ctx)
		_, err = s.Stage(ctx, sess, waybill.RawMessage("t.x", "", nil))
		return err
	}
	for range 2 { // the second time it changes nothing
		if err := s.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.outbox.Indexes().CreateOne(ctx, driver.IndexModel{Keys: bson.D{{Key: "of_the_owner", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	if diffs, err := s.Drift(ctx); err != nil || len(diffs) > 0 {
		t.Errorf("after Migrate, with another index: %v %v", diffs, err)
	}
	for i := range needed {
		ix := &needed[i]
		coll := *s.collections()[ix.collection]
		name := "waybill_" + ix.name
		if err := coll.Indexes().DropOne(ctx, name); err != nil {
			t.Fatal(err)
		}
		diffs, err := s.Drift(ctx)
		if err != nil || len(diffs) != 1 || diffs[0].Have != "missing" || !strings.Contains(diffs[0].Object, name) {
			t.Errorf("without index %s: %v %v", name, diffs, err)
		}
		refused("without index "+name, name)
		other := options.Index().SetName(name)
		if _, err := coll.Indexes().CreateOne(ctx, driver.IndexModel{Keys: bson.D{{Key: "other", Value: 1}}, Options: other}); err != nil {
			t.Fatal(err)
		}
		if diffs, err := s.Drift(ctx); err != nil || len(diffs) != 1 || diffs[0].Have != "index (other 1)" {
			t.Errorf("with another index %s: %v %v", name, diffs, err)
		}
		if err := coll.Indexes().DropOne(ctx, name); err != nil {
			t.Fatal(err)
		}
		if err := s.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.meta.DeleteOne(ctx, sequenceID); err != nil {
		t.Fatal(err)
	}
	refused("without the document of the sequence", "sequence")
	if err := in(ctx); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("Stage without the document of the sequence says %v", err)
	}
	if err := s.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
}

// DB-15: a server that cannot be reached is an outage, and the call ends with its context.
func TestCheckWithoutServer(t *testing.T) {
	t.Parallel()
	c, err := driver.Connect(options.Client().ApplyURI("mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=50"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	s, err := New(c.Database("x"), Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("Check says %v (%s)", err, waybill.ClassOf(err))
	}
}

// Bad options are refused with all their problems.
func TestOptions(t *testing.T) {
	t.Parallel()
	_, err := New(&driver.Database{}, Options{Prefix: "a b", PollInterval: -1})
	for _, want := range []string{"Source", "Prefix", "PollInterval"} {
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if _, err := New(nil, Options{Source: "/x"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without a database: %v", err)
	}
}
