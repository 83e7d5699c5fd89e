package mongo

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
)

// SE-01: a refused command names the privilege and the roles that have it, and shows no value of the command.
func TestRefusalNamesThePrivilege(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`not authorized on shop to execute command { find: "waybill_outbox", filter: { key: "hunter2" }, $db: "shop" }`: {
			"find on shop.waybill_outbox:", "one of waybill_migration, waybill_operator, waybill_producer, waybill_relay,",
		},
		`not authorized on shop to execute command { update: "my_outbox", updates: [ { q: {}, u: "hunter2" } ] }`: {
			"update on shop.my_outbox:", "one of my_operator, my_producer, my_relay,",
		},
		`not authorized on shop to execute command { findAndModify: "waybill_meta", query: "hunter2" }`: {
			"find and update on shop.waybill_meta:", "one of waybill_operator, waybill_producer, waybill_relay,",
		},
		`not authorized on shop to execute command { delete: "waybill_audit", deletes: [ { q: "hunter2" } ] }`: {
			"remove on shop.waybill_audit:", "no role of Store.Roles has it",
		},
		`not authorized on shop to execute command { aggregate: 1, pipeline: [ { $changeStream: { a: "hunter2" } } ] }`: {
			"changeStream and find on shop.:", "one of waybill_relay,",
		},
		`not authorized on shop to execute command { find: "orders", filter: { a: "hunter2" } }`: {"find on shop.orders:", "no role of Store.Roles has it"},
		`not authorized on shop to execute command { collMod: "hunter", a: "hunter2" }`:          {"the command collMod on shop.hunter:"},
		"Command find requires authentication":                                                   {"the client has no user", "authSource"},
		"user is not allowed to do action hunter2":                                               {"a privilege that the server does not name"},
	} {
		server := driver.CommandError{Code: 13, Name: "Unauthorized", Message: text}
		err := classify("test", server)
		if !errors.Is(err, waybill.ErrMisconfigured) || !hasCode(err, 13) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %q", err, w)
			}
		}
	}
}

// SE-01: a server that lets in only users says so to a client without one, or with a wrong password: the store refuses
// to start with the cure, and the error has no password. With the password it works. FerretDB has no other rights.
func TestUsers(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	if !m.Emulated {
		t.Skip("TestRoles makes users on a real server")
	}
	uri, end, err := m.WithUsers(t.Context(), "shop", "hunter2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	for _, tc := range []struct{ user, password, want string }{
		{"shop", "hunter3", "check the user, the password and authSource"},
		{"nobody", "hunter3", "check the user, the password and authSource"},
		{"", "", "the client has no user"},
		{"shop", "hunter2", ""},
	} {
		opts := options.Client().ApplyURI(uri)
		if tc.user != "" {
			opts.SetAuth(options.Credential{Username: tc.user, Password: tc.password, AuthSource: "admin"})
		}
		client, err := driver.Connect(opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Disconnect(t.Context()) })
		s, err := New(client.Database(m.Database), Options{Source: "/test", Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if tc.want == "" { // its role is to read
			if err := client.Database(m.Database).Collection("c").FindOneAndUpdate(t.Context(), bson.M{}, bson.M{"$set": bson.M{"a": 1}}).Err(); !errors.Is(err, driver.ErrNoDocuments) {
				t.Errorf("FerretDB knows roles: grant those of Store.Roles in TestRoles (%v)", err)
			}
			if err := s.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		for what, err := range map[string]error{"check": s.Check(t.Context()), "migrate": s.Migrate(t.Context())} {
			if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("%s as %q: %v", what, tc.user, err)
			}
		}
	}
}
