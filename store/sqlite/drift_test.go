package sqlite

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// DB-07
func TestDrift(t *testing.T) {
	t.Parallel()
	const inbox = "DROP TABLE o_inbox; CREATE TABLE o_inbox "
	for name, tc := range map[string]struct {
		change string
		want   []admin.Difference
	}{
		"nothing":           {"SELECT 1", nil},
		"the owner's own":   {"ALTER TABLE o_outbox ADD mine TEXT; CREATE INDEX mine ON o_outbox (topic); CREATE TABLE other (a)", nil},
		"written otherwise": {"DROP INDEX o_outbox_id; CREATE UNIQUE INDEX IF NOT EXISTS o_outbox_id on o_outbox(route,\n id )", nil},
		"a column that staging cannot fill": {"ALTER TABLE o_outbox ADD mine TEXT NOT NULL DEFAULT 'x'; " + inbox +
			"(consumer TEXT NOT NULL, source TEXT NOT NULL, id TEXT NOT NULL, handled_at INTEGER NOT NULL, content_hash BLOB, mine TEXT NOT NULL, PRIMARY KEY (consumer, source, id)) STRICT, WITHOUT ROWID;" +
			"CREATE INDEX o_inbox_handled ON o_inbox (consumer, handled_at)", []admin.Difference{
			{Object: "o_inbox.mine", Want: "a default, or nullable: Waybill does not fill it", Have: "TEXT not null"},
		}},
		"type, nullability, key, options": {inbox + "(consumer TEXT NOT NULL, source TEXT, id INTEGER NOT NULL, PRIMARY KEY (source, consumer))", []admin.Difference{
			{Object: "o_inbox", Want: "table, strict, without rowid", Have: "table"},
			{Object: "o_inbox.consumer", Want: "TEXT primary key 1 not null", Have: "TEXT primary key 2 not null"},
			{Object: "o_inbox.content_hash", Want: "BLOB", Have: "missing"},
			{Object: "o_inbox.handled_at", Want: "INTEGER not null", Have: "missing"},
			{Object: "o_inbox.id", Want: "TEXT primary key 3 not null", Have: "INTEGER not null"},
			{Object: "o_inbox.source", Want: "TEXT primary key 2 not null", Have: "TEXT primary key 1"},
			{Object: "o_inbox_handled", Want: "index (consumer, handled_at)", Have: "missing"},
		}},
		"a table is gone": {"DROP TABLE o_inbox", []admin.Difference{{
			Object: "o_inbox", Want: "table, strict, without rowid",
			Have: "missing",
		}}},
		"uniqueness": {"DROP INDEX o_outbox_id; CREATE INDEX o_outbox_id ON o_outbox (route, id)", []admin.Difference{
			{Object: "o_outbox_id", Want: "unique index (route, id)", Have: "index (route, id)"},
		}},
		"predicate": {"DROP INDEX o_outbox_hold; CREATE INDEX o_outbox_hold ON o_outbox (hold)", []admin.Difference{
			{Object: "o_outbox_hold", Want: "index (hold) WHERE hold <> 0", Have: "index (hold)"},
		}},
		"a row": {
			"DELETE FROM o_meta WHERE name = 'epoch'",
			[]admin.Difference{{Object: "o_meta row epoch", Want: "a row", Have: "missing"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, fresh(t, ""), Options{Prefix: "o_"})
			if err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, s.DB(), tc.change)
			got, err := s.Drift(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("differences (-want +got)\n%s", d)
			}
		})
	}
}

// DB-07
func TestDriftOfAnEmptyFile(t *testing.T) {
	t.Parallel()
	s := newStore(t, fresh(t, ""), Options{})
	got, err := s.Drift(t.Context())
	if err != nil || len(got) != len(needed) {
		t.Errorf("%v %v, want the tables", got, err)
	}
	run(t, s.DB(), "CREATE TABLE waybill_outbox (id INTEGER PRIMARY KEY)")
	if got, err = s.Drift(t.Context()); err != nil || len(got) < 20 || !slices.ContainsFunc(got, func(d admin.Difference) bool {
		return d.Want == "table, strict, autoincrement" && d.Object == "waybill_outbox"
	}) {
		t.Errorf("%v %v, want the columns of the records", got, err)
	}
}

// DB-21: a newer schema is fine, unless it says otherwise; then every way in says what to do.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	db := fresh(t, "")
	if err := newStore(t, db, Options{}).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, db, `ALTER TABLE waybill_outbox ADD later TEXT; CREATE TABLE waybill_later (a); UPDATE waybill_meta SET value = 90 WHERE name = 'version'`)
	work := func() (*Store, map[string]error) {
		s := newStore(t, db, Options{})
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		_, stageErr := s.Stage(t.Context(), tx, raw("a", "k"))
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		_, heartbeatErr := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1}, Join: true})
		_, readErr := s.Read(t.Context(), 1, core.ReadRequest{})
		_, cleanErr := s.Clean(t.Context(), "test", time.Minute)
		return s, map[string]error{"check": s.Check(t.Context()), "stage": stageErr, "heartbeat": heartbeatErr, "read": readErr, "clean": cleanErr}
	}
	s, errs := work()
	for name, err := range errs {
		if err != nil {
			t.Errorf("%s beside a newer schema: %v", name, err)
		}
	}
	if diffs, err := s.Drift(t.Context()); err != nil || diffs != nil {
		t.Errorf("drift of a newer schema: %v %v", diffs, err)
	}
	run(t, db, "INSERT INTO waybill_meta (name, value) VALUES ('compatible', 90)")
	_, errs = work()
	for name, err := range errs {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "know version 90") ||
			!strings.Contains(err.Error(), "use a newer release") {
			t.Errorf("%s beside an incompatible schema: %v", name, err)
		}
	}
	run(t, db, "DELETE FROM waybill_meta WHERE name = 'compatible'; UPDATE waybill_meta SET value = 2 WHERE name = 'version'")
	if _, errs = work(); errs["check"] != nil || errs["stage"] != nil {
		t.Errorf("after going back: %v", errs)
	}
}
