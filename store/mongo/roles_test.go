package mongo

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/memory"
)

// as returns the database as a program with a role of Store.Roles has it. Where FerretDB stands in for the server,
// which knows no such roles, a proxy refuses what needs more than the role grants.
func as(t *testing.T, m *testenv.Mongo, role bson.D) *driver.Database {
	t.Helper()
	if m.Emulated {
		granted := rightsOf(role)
		uri, end, err := m.Restricted(t.Context(), func(command bson.Raw) bool {
			return !slices.ContainsFunc(needsOf(command), func(r right) bool { return !granted[r] && !granted[right{"", r.action}] })
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
		return connect(t, uri).Database(m.Database)
	}
	if options.Client().ApplyURI(m.URI).Auth == nil {
		tier.Missing(t, "no MongoDB with users: the server of WAYBILL_TEST_MONGODB enforces no role: start it with a key file, and put a user who may create users into the URI")
	}
	admin := connect(t, m.URI)
	name, _ := role[0].Value.(string)
	if err := admin.Database(m.Database).RunCommand(t.Context(), role).Err(); err != nil {
		t.Fatal(err)
	}
	user := bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: name}, {Key: "roles", Value: bson.A{name}}}
	if err := admin.Database(m.Database).RunCommand(t.Context(), user).Err(); err != nil {
		t.Fatal(err)
	}
	client, err := driver.Connect(options.Client().ApplyURI(m.URI).SetAuth(options.Credential{Username: name, Password: name, AuthSource: m.Database}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return client.Database(m.Database)
}

// SE-01: with the role of Store.Roles each program does its work, and none does another one's.
func TestRoles(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	bus, err := memory.New(memory.Options{Queues: []memory.Queue{{Name: "q", Bindings: []string{"t.*"}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close(context.Background()) })
	stores := map[string]*Store{}
	for _, p := range programsOver(bus) {
		plain, err := New(connect(t, m.URI).Database(m.Database), Options{Source: "/test", Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(as(t, m, plain.Roles()[DefaultPrefix+p.program]), Options{Source: "/test", Logger: quiet})
		if err == nil {
			err = p.run(t.Context(), s)
		}
		if err != nil {
			t.Fatalf("%s cannot do its work: %v", p.program, err)
		}
		stores[p.program] = s
	}
	type attack struct {
		what string
		on   []string // collections; none = the database
		run  func(ctx context.Context, c *driver.Collection) error
	}
	everything := []string{"outbox", "members", "fences", "routes", "notices", "tickets", "inbox", "audit", "meta"}
	read := func(on ...string) attack {
		return attack{"read", on, func(ctx context.Context, c *driver.Collection) error { return c.FindOne(ctx, bson.M{}).Err() }}
	}
	change := func(on ...string) attack {
		return attack{"change", on, func(ctx context.Context, c *driver.Collection) error {
			_, err := c.UpdateMany(ctx, bson.M{}, bson.M{"$set": bson.M{"phase": int32(phasePublished)}})
			return err
		}}
	}
	remove := func(on ...string) attack {
		return attack{"delete", on, func(ctx context.Context, c *driver.Collection) error {
			_, err := c.DeleteMany(ctx, bson.M{})
			return err
		}}
	}
	insert := func(on ...string) attack {
		return attack{"insert", on, func(ctx context.Context, c *driver.Collection) error {
			_, err := c.InsertOne(ctx, bson.M{"_id": bson.NewObjectID()})
			return err
		}}
	}
	common := []attack{
		{"drop", everything, func(ctx context.Context, c *driver.Collection) error { return c.Drop(ctx) }},
		{"drop the indexes of", everything, func(ctx context.Context, c *driver.Collection) error { return c.Indexes().DropAll(ctx) }},
		change("audit", "inbox"), remove("audit"),
	}
	others := func(ctx context.Context, c *driver.Collection) error {
		return c.Database().Collection("other_"+strings.TrimPrefix(c.Name(), DefaultPrefix)).FindOneAndUpdate(ctx, bson.M{"key": "hunter2"}, bson.M{"$unset": bson.M{"x": 1}}).Err()
	}
	common = append(common, attack{"read and change another service's", everything, others})
	for program, attacks := range map[string][]attack{
		"migration": {change("outbox", "members", "meta"), remove("outbox", "inbox", "members", "meta")},
		"producer":  {read("inbox", "members", "audit"), change("members", "routes", "inbox"), remove("members", "inbox", "meta"), insert("members", "inbox", "audit", "routes")},
		"relay":     {remove("inbox"), insert("inbox")}, // its change stream reads the database
		"operator":  {read("inbox"), remove("inbox"), insert("inbox")},
		"consumer":  {read("outbox", "members", "audit"), change("outbox", "members", "meta"), remove("outbox", "members", "meta"), insert("outbox", "audit", "members")},
	} {
		for _, a := range append(slices.Clone(common), attacks...) {
			for _, name := range a.on {
				err := a.run(t.Context(), *stores[program].collections()[name])
				if !hasCode(err, unauthorized) {
					t.Errorf("%s may %s %s: %v", program, a.what, name, err)
				}
				if text := classify("x", err).Error(); !strings.Contains(text, name+": ") || strings.Contains(text, "hunter2") {
					t.Errorf("%s, %s %s: %s", program, a.what, name, text)
				}
			}
		}
	}
}

// SE-01: the calls of a program that has another one's role are refused. The error names the privilege and the role.
func TestCallsOfAnotherProgramAreRefused(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	plain, err := New(connect(t, m.URI).Database(m.Database), Options{Source: "/test", Logger: quiet})
	if err == nil {
		err = plain.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	stores := map[string]*Store{}
	for _, program := range []string{"producer", "relay", "operator", "consumer"} {
		s, err := New(as(t, m, plain.Roles()[DefaultPrefix+program]), Options{Source: "/test", Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		stores[program] = s
	}
	beat := func(s *Store) error {
		_, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 7, Name: "hunter2"}, Join: true})
		return err
	}
	stage := func(s *Store) error {
		return s.once(t.Context(), func(ctx context.Context) error {
			_, err := s.Stage(ctx, driver.SessionFromContext(ctx), waybill.RawMessage("t.x", "", []byte("hunter2")))
			return err
		})
	}
	mark := func(s *Store) error {
		_, err := s.Do(t.Context(), core.InboxKey{Consumer: "hunter2", Source: "hunter2", ID: "i"}, func(context.Context, Tx) error { return nil })
		return err
	}
	list := func(s *Store) error {
		_, err := s.List(t.Context(), admin.Filter{}, admin.PageRequest{})
		return err
	}
	for _, tc := range []struct {
		program, what string
		call          func(*Store) error
		privilege     string
		roles         string
	}{
		{"producer", "owning partitions, as it must before it settles", beat, "waybill_members", "waybill_relay"},
		{"producer", "marking in the inbox", mark, "waybill_inbox", "waybill_consumer"},
		{"consumer", "listing the outbox", list, "find on " + m.Database + ".waybill_members", "waybill_operator"},
		{"consumer", "owning partitions", beat, "waybill_members", "waybill_relay"},
		{"consumer", "staging", stage, "waybill_", "waybill_producer"},
		{"relay", "marking in the inbox", mark, "waybill_inbox", "waybill_consumer"},
		{"operator", "marking in the inbox", mark, "waybill_inbox", "waybill_consumer"},
	} {
		err := tc.call(stores[tc.program])
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), tc.privilege) || !strings.Contains(err.Error(), tc.roles) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s, %s: %v", tc.program, tc.what, err)
		}
	}
}
