package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/limitertest"
	"github.com/waybill-go/waybill/store/postgres"
)

// newLimiters returns two limiters of one database over pools of their own, the second over a *sql.DB, and one more
// pool.
func newLimiters(t *testing.T, opts postgres.InboxOptions, change func(cfg *pgxpool.Config)) (a *postgres.Inbox, b *postgres.SQLInbox, pool *pgxpool.Pool) {
	t.Helper()
	pool = newPool(t)
	dsn := pool.Config().ConnString()
	a, err := postgres.NewInbox(openPoolWith(t, dsn, change), opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(openPoolWith(t, dsn, change))
	t.Cleanup(func() { _ = db.Close() })
	if b, err = postgres.NewSQLInbox(db, opts); err != nil {
		t.Fatal(err)
	}
	return a, b, pool
}

// TE-01: two processes, through pgx and through database/sql, with names of their own, and where transactions are
// serializable by default.
func TestLimiterConformance(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		opts   postgres.InboxOptions
		change func(cfg *pgxpool.Config)
	}{
		"usual":       {postgres.InboxOptions{}, func(*pgxpool.Config) {}},
		"other names": {postgres.InboxOptions{Schema: `we"ird`, Table: "My Box"}, func(*pgxpool.Config) {}},
		"serializable": {postgres.InboxOptions{}, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		}},
		"no prepared statements": {postgres.InboxOptions{}, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, _ := newLimiters(t, tt.opts, tt.change)
			limitertest.Run(t, func(*testing.T) (core.Limiter, core.Limiter) { return a, b })
		})
	}
}

// An update takes two statements, one if nothing changes, and holds no lock in between. A row that was deleted
// and made again is another one.
func TestLimitStatements(t *testing.T) {
	t.Parallel()
	a, b, pool := newLimiters(t, postgres.InboxOptions{}, func(*pgxpool.Config) {})
	calls := 0
	set := func(l core.Limiter, to string, meanwhile func()) {
		t.Helper()
		calls = 0
		if err := l.UpdateLimit(t.Context(), "l", func(string, time.Time) string {
			if calls++; calls == 1 && meanwhile != nil {
				meanwhile()
			}
			return to
		}); err != nil {
			t.Fatal(err)
		}
	}
	set(a, "1", nil)
	set(a, "2", func() { set(b, "3", nil); calls = 1 })
	if calls != 2 {
		t.Errorf("beside another update change was called %d times, want 2", calls)
	}
	version := query[int64](t, pool, "SELECT version FROM waybill.waybill_inbox_limits")
	set(a, "2", nil)
	if v := query[int64](t, pool, "SELECT version FROM waybill.waybill_inbox_limits"); v != version {
		t.Error("an update that changes nothing was written")
	}
	exec(t, pool, "DELETE FROM waybill.waybill_inbox_limits")
	set(a, "1", nil)
	set(a, "4", func() {
		exec(t, pool, "DELETE FROM waybill.waybill_inbox_limits")
		set(b, "5", nil)
		calls = 1
	})
	if calls != 2 {
		t.Errorf("after the row was another one change was called %d times, want 2", calls)
	}
}

// A consumer keeps limits with the rights that Grants prints, and cannot delete them; others cannot touch them.
func TestLimitGrants(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	m := newMigrations(t, postgres.MigrationOptions{})
	if err := m.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	suffix := pool.Config().ConnConfig.Database
	roles := postgres.Roles{Consumer: "limited " + suffix, Producer: "other " + suffix}
	open := func(role string) (*postgres.Inbox, *pgxpool.Pool) {
		quoted := pgx.Identifier{role}.Sanitize()
		exec(t, pool, "CREATE ROLE "+quoted+" LOGIN PASSWORD 'secret'")
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			_, _ = pool.Exec(ctx, "DROP OWNED BY "+quoted)
			_, _ = pool.Exec(ctx, "DROP ROLE "+quoted)
		})
		u, err := url.Parse(pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(role, "secret")
		p := openPool(t, u.String())
		in, err := postgres.NewInbox(p, postgres.InboxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return in, p
	}
	consumer, consumerPool := open(roles.Consumer)
	other, _ := open(roles.Producer)
	exec(t, pool, m.Grants(roles))
	if err := consumer.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for _, to := range []string{"1", "2"} {
		if err := consumer.UpdateLimit(t.Context(), "l", func(string, time.Time) string { return to }); err != nil {
			t.Error(err)
		}
	}
	if _, err := consumerPool.Exec(t.Context(), "DELETE FROM waybill.waybill_inbox_limits"); err == nil {
		t.Error("a consumer deletes limits")
	}
	err := other.UpdateLimit(t.Context(), "l", func(string, time.Time) string { return "3" })
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "Grants") {
		t.Errorf("a producer: %v", err)
	}
	exec(t, pool, "REVOKE UPDATE ON waybill.waybill_inbox_limits FROM "+pgx.Identifier{roles.Consumer}.Sanitize())
	if err := consumer.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `GRANT UPDATE ON "waybill"."waybill_inbox_limits"`) {
		t.Errorf("the check: %v", err)
	}
	exec(t, pool, "DROP TABLE waybill.waybill_inbox_limits")
	if err := consumer.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "is missing: run the migrations") {
		t.Errorf("the check: %v", err)
	}
	if err := consumer.UpdateLimit(t.Context(), "l", func(string, time.Time) string { return "3" }); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("without the table: %v", err)
	}
	if diffs, err := m.Drift(t.Context(), pool); err != nil || len(diffs) != 1 || diffs[0].Object != "waybill_inbox_limits" {
		t.Errorf("the drift: %v %v", diffs, err)
	}
}

// A database that cannot be reached is an outage.
func TestLimitOutage(t *testing.T) {
	t.Parallel()
	a, b, _ := newLimiters(t, postgres.InboxOptions{}, func(*pgxpool.Config) {})
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	for _, l := range []core.Limiter{a, b} {
		if err := l.UpdateLimit(ctx, "l", func(string, time.Time) string { return "1" }); waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("%v", err)
		}
	}
}
