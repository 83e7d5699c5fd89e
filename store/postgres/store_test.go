package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// One constructor gives the outbox and the inbox of a database, over a pgx pool and over a *sql.DB.
func TestStoreIsOutboxAndInbox(t *testing.T) {
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	db, err := sql.Open("pgx", pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s, err := postgres.New(pool, postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || strings.Count(err.Error(), `schema "waybill" is missing`) != 1 {
		t.Errorf("Check of an empty database: %v", err)
	}
	if err := errors.Join(s.Migrate(t.Context()), s.Check(t.Context())); err != nil {
		t.Fatal(err)
	}
	over, err := postgres.NewSQL(db, postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := over.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for what, drift := range map[string]interface {
		Drift(ctx context.Context) ([]admin.Difference, error)
	}{"pgx": s, "sql": over} {
		if found, err := drift.Drift(t.Context()); len(found) > 0 || err != nil {
			t.Errorf("%s: drift %v, %v", what, found, err)
		}
	}
	key := core.InboxKey{Consumer: "c", Source: "/test", ID: "1"}
	exec(t, pool, "ALTER TABLE waybill.waybill_inbox_limits RENAME TO away")
	for what, checked := range map[string]core.Checker{"pgx": s, "sql": over} {
		if err := checked.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"waybill_inbox_limits" is missing`) {
			t.Errorf("%s: Check without a table of the inbox: %v", what, err)
		}
	}
	exec(t, pool, "ALTER TABLE waybill.away RENAME TO waybill_inbox_limits")
	if err := over.Check(t.Context()); err != nil {
		t.Errorf("sql: Check: %v", err)
	}
	handled := 0
	for range 2 {
		_, err1 := s.Do(t.Context(), key, func(context.Context, pgx.Tx) error { handled++; return nil })
		_, err2 := over.Do(t.Context(), key, func(context.Context, *sql.Tx) error { handled++; return nil })
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
	}
	if handled != 1 {
		t.Errorf("handled %d times", handled)
	}
	stage(t, pool, s.Outbox, message())
	if c := holdNext(t, over.Outbox, want(1)); len(c.Records) != 1 {
		t.Errorf("%d records", len(c.Records))
	}
}

// AutoMigrate of a store holds for its inbox, too, before anything was handled.
func TestStoreMigratesWhatIsChecked(t *testing.T) {
	t.Parallel()
	s, err := postgres.New(openPool(t, testenv.Postgres(t).DSN), postgres.Options{Source: "/test", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
