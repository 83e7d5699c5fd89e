package mongo

// docs/mongodb.md has the privileges that each program needs, and Store.Roles the commands that grant them. No server
// was there that knows roles, so each command that a program sends is compared with them here. In roles_test.go a proxy
// refuses the others.

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/transport/memory"
)

// right is an action on a collection, or on the whole database if that is "".
type right struct{ collection, action string }

// sent are the rights that a server would ask for. It is safe for concurrent use.
type sent struct {
	mu     sync.Mutex
	rights map[right]bool
}

// Started notes what a command needs.
func (u *sent) Started(_ context.Context, e *event.CommandStartedEvent) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range needsOf(e.Command) {
		u.rights[r] = true
	}
}

// needsOf returns the rights that a server asks for, with names of collections without the prefix, as the manual of
// MongoDB has them; none for a command that every user may send.
func needsOf(command bson.Raw) (list []right) {
	first, err := command.IndexErr(0)
	if err != nil {
		return nil
	}
	name, _ := first.Value().StringValueOK()
	name = strings.TrimPrefix(name, DefaultPrefix)
	needs := slices.Clone(actions[first.Key()])
	text := command.String()
	if strings.Contains(text, `"upsert": true`) || strings.Contains(text, `"upsert":true`) {
		needs = append(needs, "insert")
	}
	if strings.Contains(text, "$changeStream") {
		name, needs = "", []string{"changeStream", "find"}
	}
	for _, action := range needs {
		list = append(list, right{name, action})
	}
	return list
}

var quoted = regexp.MustCompile("`([^`]+)`")

// printed returns the rights that the page has for a program.
func printed(t *testing.T, s *Store, program string) map[right]bool {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "mongodb.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "## Privileges")
	text, _, _ = strings.Cut(text, "\n## ")
	out, mine := map[right]bool{}, false
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		if cell := strings.TrimSpace(cells[1]); cell != "" {
			mine = slices.Contains(strings.Split(cell, ", "), program)
		}
		if !mine {
			continue
		}
		var named, collections []string
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			named = append(named, m[1])
			if s.collections()[m[1]] == nil {
				t.Errorf("there is no collection %s", m[1])
			}
		}
		switch cell := strings.TrimSpace(cells[2]); {
		case cell == "the database":
			collections = []string{""}
		case strings.HasPrefix(cell, "all"):
			for name := range s.collections() {
				if !slices.Contains(named, name) {
					collections = append(collections, name)
				}
			}
		default:
			collections = named
		}
		for _, c := range collections {
			for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
				out[right{c, m[1]}] = true
			}
		}
	}
	return out
}

// rightsOf returns the rights that a command createRole grants, with names of collections without the prefix.
func rightsOf(role bson.D) map[right]bool {
	out := map[right]bool{}
	for _, e := range role {
		list, _ := e.Value.(bson.A)
		for _, p := range list {
			d, _ := p.(bson.D)
			resource, _ := d[0].Value.(bson.D)
			name, _ := resource[1].Value.(string)
			actions, _ := d[1].Value.([]string)
			for _, action := range actions {
				out[right{strings.TrimPrefix(name, DefaultPrefix), action}] = true
			}
		}
	}
	return out
}

// No program sends a command for which it would need more than the page says. So the audit record is only added to.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	bus, err := memory.New(memory.Options{Queues: []memory.Queue{{Name: "q", Bindings: []string{"t.*"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bus.Close(context.Background()) }()
	for _, c := range programsOver(bus) {
		used := &sent{rights: map[right]bool{}}
		client, err := driver.Connect(options.Client().ApplyURI(m.URI).SetMonitor(&event.CommandMonitor{Started: used.Started}))
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(client.Database(m.Database), Options{Source: "/test", Logger: quiet})
		if err == nil {
			err = c.run(t.Context(), s)
		}
		_ = client.Disconnect(context.Background())
		if err != nil {
			t.Fatalf("%s: %v", c.program, err)
		}
		allowed := printed(t, s, c.program)
		if roles := rightsOf(s.Roles()[DefaultPrefix+c.program]); !maps.Equal(roles, allowed) {
			t.Errorf("%s: the page grants %v, the role %v", c.program, allowed, roles)
		}
		if len(used.rights) < 3 {
			t.Errorf("%s needs %v", c.program, used.rights)
		}
		for r := range used.rights {
			if !allowed[r] {
				t.Errorf("%s needs %s on %q, which the page does not grant", c.program, r.action, r.collection)
			}
		}
	}
}

// program is one that works on a store.
type program struct {
	program string
	run     func(ctx context.Context, s *Store) error
}

// programsOver returns the work of each program; the migration comes first. A relay publishes to bus.
func programsOver(bus core.Transport) []program {
	return []program{
		{"migration", func(ctx context.Context, s *Store) error { return s.Migrate(ctx) }},
		{"producer", func(ctx context.Context, s *Store) error {
			u, err := s.NewUnitOfWork()
			if err != nil {
				return err
			}
			for range 2 {
				if err := u.Do(ctx, func(ctx context.Context, _ Tx) error {
					return u.Stage(ctx, waybill.RawMessage("t.x", "", nil, waybill.Key("k")), waybill.RawMessage("t.x", "", nil, waybill.Replace("d"), waybill.Delay(time.Hour)))
				}); err != nil {
					return err
				}
			}
			return s.once(ctx, func(ctx context.Context) error {
				_, err := s.Cancel(ctx, driver.SessionFromContext(ctx), waybill.CancelKey{Route: waybill.DefaultRoute, Topic: "t.x", DedupeKey: "d"})
				return err
			})
		}},
		{"relay", func(ctx context.Context, s *Store) error {
			r, err := relay.New(s, bus, relay.Options{Logger: quiet})
			if err != nil {
				return err
			}
			if _, err = r.RunOnce(ctx); err == nil {
				_, err = s.Wait(ctx, []string{waybill.DefaultRoute}, time.Millisecond)
			}
			return err
		}},
		{"operator", func(ctx context.Context, s *Store) error {
			if err := s.Check(ctx); err != nil {
				return err
			}
			for range 2 {
				if err := s.AppendAudit(ctx, audit.Entry{Act: "1", Phase: "begin", Action: "redrive"}); err != nil {
					return err
				}
			}
			if _, err := s.ListAudit(ctx, 0, 10); err != nil {
				return err
			}
			if _, err := s.Counts(ctx); err != nil {
				return err
			}
			if _, _, err := s.BlockedKeys(ctx, admin.BlockedKeysRequest{Route: waybill.DefaultRoute}); err != nil {
				return err
			}
			if _, err := s.Redrive(ctx, admin.RedriveRequest{All: true}); err != nil {
				return err
			}
			_, err := s.PurgeRecords(ctx, admin.PurgeRequest{All: true, Waiting: true})
			return err
		}},
		{"consumer", func(ctx context.Context, s *Store) error {
			key := core.InboxKey{Consumer: "c", Source: "s", ID: "i"}
			if _, err := s.Do(ctx, key, func(context.Context, Tx) error { return nil }); err != nil {
				return err
			}
			if _, err := s.PurgeInbox(ctx, "c", time.Hour, 10); err != nil {
				return err
			}
			return s.Check(ctx) // which a consumer asks before it starts
		}},
	}
}
