package mistakes_test

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/sqlite"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

func memoryBus(tb testing.TB) *memtransport.Transport {
	tb.Helper()
	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "q", Bindings: []string{"#"}}}})
	if err != nil {
		tb.Fatal(err)
	}
	return bus
}

// changed returns dsn after change.
func changed(tb testing.TB, dsn string, change func(u *url.URL)) string {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	change(u)
	return u.String()
}

func TestWrongDatabaseAddress(t *testing.T) { // RL-07 TR-08
	t.Parallel()
	dsn := testenv.Postgres(t).DSN
	secret := url.UserPassword("postgres", secretPassword)
	for _, tc := range []struct {
		name   string
		change func(u *url.URL)
		want   want
	}{
		{
			"no such host", func(u *url.URL) { u.Host, u.User = "no-such-host.invalid:5432", secret },
			want{class: waybill.ClassOutage, says: []string{"no-such-host.invalid", "check the address"}},
		},
		{
			"nobody listens", func(u *url.URL) { u.Host, u.User = "127.0.0.1:1", secret },
			want{class: waybill.ClassOutage, says: []string{"127.0.0.1:1", "refused", "check the address"}},
		},
		{
			"bad password", func(u *url.URL) { u.User = secret },
			want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"wrong user or password: correct the connection string", `"postgres"`}},
		},
		{
			"bad user", func(u *url.URL) { u.User = url.UserPassword("nobody", secretPassword) },
			want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"wrong user or password: correct the connection string", `"nobody"`}},
		},
		{
			"bad database", func(u *url.URL) { u.Path = "/no_such_db" },
			want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"the database is missing: create it", `"no_such_db"`}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, openPool(t, changed(t, dsn, tc.change)), postgres.Options{})
			err := ends(t, func() error { return o.Check(t.Context()) })
			tc.want.says = append(tc.want.says, "waybill/postgres: check")
			check(t, err, tc.want)
			log, book := newLog(t)
			r := newRelay(t, o, memoryBus(t), relay.Options{Logger: log})
			run := start(t, r)
			if tc.want.is != nil {
				check(t, run.end(), want{is: tc.want.is, class: tc.want.class, says: []string{"waybill/relay: store: "}})
				return
			}
			// It may come up: Run goes on, says so, and stops when asked.
			patience.Until(t, "a warning", func() bool { return strings.Contains(book.String(), "check_failed") })
			run.stop()
			_, err = r.RunOnce(t.Context())
			check(t, err, want{class: tc.want.class, says: tc.want.says[:1]})
		})
	}
	// The driver reads the string before Waybill sees it.
	_, err := pgxpool.New(t.Context(), "postgres://postgres:"+secretPassword+"@127.0.0.1:port/x")
	if err == nil {
		t.Error("no error")
	} else {
		clean(t, err.Error())
	}
}

// role makes a role that may connect and nothing else, and returns a pool that uses it.
func role(tb testing.TB, pg *testenv.PG, admin *pgxpool.Pool, name string) (*pgxpool.Pool, string) {
	tb.Helper()
	name += strings.TrimPrefix(pg.Database, "waybill_test") // roles belong to the whole server
	quoted := pgx.Identifier{name}.Sanitize()
	exec(tb, admin, "CREATE ROLE "+quoted+" LOGIN PASSWORD '"+secretPassword+"'")
	tb.Cleanup(func() {
		ctx := context.WithoutCancel(tb.Context())
		for _, s := range []string{"DROP OWNED BY ", "DROP ROLE "} {
			if _, err := admin.Exec(ctx, s+quoted); err != nil {
				tb.Log(err)
			}
		}
	})
	return openPool(tb, changed(tb, pg.DSN, func(u *url.URL) { u.User = url.UserPassword(name, secretPassword) })), name
}

func TestNoPermissionInDatabase(t *testing.T) { //nolint:tparallel // the roles share a database // RL-07
	t.Parallel()
	pg := testenv.Postgres(t)
	admin := openPool(t, pg.DSN)
	m := migrate(t, admin)
	exec(t, admin, "CREATE TABLE orders (id text)")

	t.Run("relay", func(t *testing.T) {
		pool, name := role(t, pg, admin, "relay")
		run := func() error {
			o := newOutbox(t, pool, postgres.Options{})
			return start(t, newRelay(t, o, memoryBus(t), relay.Options{})).end()
		}
		check(t, run(), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{`role "relay_`, `GRANT USAGE ON SCHEMA "waybill" TO "relay_`}})
		exec(t, admin, m.Grants(postgres.Roles{Producer: name}))
		check(t, run(), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{
			`GRANT SELECT, UPDATE, DELETE ON "waybill"."waybill_outbox" TO "relay_`, `GRANT UPDATE ON "waybill"."waybill_outbox_wake"`,
			`GRANT UPDATE ON "waybill"."waybill_meta"`, `GRANT SELECT, INSERT, UPDATE, DELETE ON "waybill"."waybill_outbox_members"`,
		}})
		exec(t, admin, m.Grants(postgres.Roles{Relay: name}))
		o := newOutbox(t, pool, postgres.Options{})
		if err := o.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("producer", func(t *testing.T) {
		pool, name := role(t, pg, admin, "producer")
		o := newOutbox(t, pool, postgres.Options{})
		_, err := stageOn(t, pool, o, raw("a.b"))
		check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"schema waybill", "Migrations.Grants"}})
		exec(t, admin, "GRANT USAGE ON SCHEMA waybill TO "+pgx.Identifier{name}.Sanitize())
		_, err = stageOn(t, pool, o, raw("a.b"))
		check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"permission denied for table waybill_", "Migrations.Grants"}})
		db := stdlib.OpenDBFromPool(pool)
		defer func() { _ = db.Close() }()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = o.SQL().Stage(t.Context(), tx, raw("a.b"))
		check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"permission denied for table waybill_", "Migrations.Grants"}})
		_ = tx.Rollback()
		exec(t, admin, m.Grants(postgres.Roles{Producer: name}))
		if _, err := stageOn(t, pool, o, raw("a.b")); err != nil {
			t.Error(err)
		}
	})
	t.Run("consumer", func(t *testing.T) {
		pool, name := role(t, pg, admin, "consumer")
		box, err := postgres.NewInbox(pool, postgres.InboxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		key := core.InboxKey{Consumer: "c", Source: "/s", ID: "1"}
		nothing := func(context.Context, pgx.Tx) error { return nil }
		check(t, box.Check(t.Context()), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{`role "consumer_`, `GRANT USAGE ON SCHEMA "waybill" TO "consumer_`}})
		exec(t, admin, m.Grants(postgres.Roles{Producer: name}))
		check(t, box.Check(t.Context()), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{
			`GRANT SELECT, INSERT ON "waybill"."waybill_inbox" TO "consumer_`,
		}})
		_, err = box.Do(t.Context(), key, nothing)
		check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"permission denied for table waybill_inbox", "Migrations.Grants"}})
		exec(t, admin, m.Grants(postgres.Roles{Consumer: name}))
		if err := box.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if st, err := box.Do(t.Context(), key, nothing); err != nil || st != core.InboxNew {
			t.Errorf("%v %v", st, err)
		}
	})
	t.Run("migrator", func(t *testing.T) {
		pool, _ := role(t, pg, admin, "migrator")
		own, err := postgres.NewMigrations(postgres.MigrationOptions{Schema: "another"})
		if err != nil {
			t.Fatal(err)
		}
		check(t, own.Up(t.Context(), pool), want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"migrate up", "permission denied for database", "grant the role CREATE"}})
	})
}

func TestWrongTables(t *testing.T) { // RL-07
	t.Parallel()
	const table = `"waybill"."waybill_outbox"`
	for _, tc := range []struct {
		name, prepare string
		check, stage  []string // stage nil: it works
	}{
		{
			"no schema", "DROP SCHEMA waybill CASCADE",
			[]string{`schema "waybill" is missing: run the migrations`},
			[]string{"waybill.waybill_", "run the migrations"},
		},
		{
			"no table", "DROP TABLE waybill.waybill_outbox CASCADE",
			[]string{table + " is missing: run the migrations"},
			[]string{"waybill.waybill_outbox", "a table is missing: run the migrations"},
		},
		{
			"no versions", "DROP TABLE waybill.waybill_meta",
			[]string{`"waybill"."waybill_meta" is missing: run the migrations`},
			[]string{"waybill.waybill_meta", "a table is missing: run the migrations"},
		},
		{
			"old version", "UPDATE waybill.waybill_meta SET value = value - 1 WHERE name = 'waybill_outbox.version'",
			[]string{table + " has schema version ", "this release needs ", "run the migrations"},
			nil,
		},
		{
			"old table", "ALTER TABLE waybill.waybill_outbox DROP COLUMN trace_parent, DROP COLUMN attrs",
			[]string{table + " has another shape: it has no column trace_parent text, it has no column attrs json", "run the migrations"},
			[]string{"trace_parent", "run the migrations"},
		},
		{
			"another table", `DROP TABLE waybill.waybill_outbox CASCADE; CREATE TABLE waybill.waybill_outbox (seq int, route text, body text)`,
			[]string{table, "its column seq is integer, not bigint", "it has no column hlc bigint", "and 29 more", "run the migrations", "correct the name"},
			[]string{"waybill_outbox", "run the migrations"},
		},
		{
			"a view", `ALTER TABLE waybill.waybill_outbox RENAME TO o; CREATE VIEW waybill.waybill_outbox AS SELECT 1 AS seq`,
			[]string{table, "it has no column hlc bigint", "correct the name"},
			[]string{"waybill_outbox", "run the migrations"},
		},
		{"no unique index", "DROP INDEX waybill.waybill_outbox_id", nil, []string{"the unique index on (route, id) is missing: run the migrations"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pool := openPool(t, testenv.Postgres(t).DSN)
			migrate(t, pool)
			exec(t, pool, tc.prepare)
			o := newOutbox(t, pool, postgres.Options{})
			if tc.check != nil {
				err := start(t, newRelay(t, o, memoryBus(t), relay.Options{})).end()
				check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: append(tc.check, "waybill/relay: store: postgres: check")})
			}
			_, err := stageOn(t, pool, o, raw("a.b"))
			if tc.stage == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: append(tc.stage, "waybill/postgres: stage")})
		})
	}
}

func TestWrongFile(t *testing.T) { //nolint:tparallel // quick // RL-07
	t.Parallel()
	dir := t.TempDir()
	open := func(path string, o sqlite.Options) (*sqlite.Store, error) {
		o.Source = "/x"
		s, err := sqlite.Open(t.Context(), path, o)
		if err == nil {
			t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
		}
		return s, err
	}
	_, err := open(filepath.Join(dir, "none", "app.db"), sqlite.Options{})
	check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"waybill/sqlite: open", "none/app.db", "does not exist: create it"}})
	_, err = open(dir, sqlite.Options{})
	check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"is a directory: name a file in it"}})

	for _, tc := range []struct {
		name, prepare string
		auto          bool
		says          []string
	}{
		{"no table", "", false, []string{"waybill_outbox", "run Migrate", "Options.AutoMigrate"}},
		{"another table", "CREATE TABLE waybill_outbox (id int)", false, []string{"waybill_outbox"}},
		{"column dropped", "ALTER TABLE waybill_outbox DROP COLUMN attrs", true, []string{"waybill_outbox", "attrs", "restore it"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "app.db")
			if tc.auto {
				s, err := open(path, sqlite.Options{AutoMigrate: true})
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Close(t.Context())
			}
			if tc.prepare != "" {
				db, err := sql.Open("sqlite", path)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := db.ExecContext(t.Context(), tc.prepare); err != nil {
					t.Fatal(err)
				}
				_ = db.Close()
			}
			s, err := open(path, sqlite.Options{})
			if err == nil {
				err = start(t, newRelay(t, s, memoryBus(t), relay.Options{})).end()
			}
			check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: tc.says})
			if s == nil {
				return
			}
			tx, err := s.DB().BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err = s.Stage(t.Context(), tx, raw("a.b")); err != nil {
				check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: tc.says[:1]})
			}
		})
	}
}

func TestUnreadableRows(t *testing.T) { // RL-04 DB-18
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	migrate(t, pool)
	o := newOutbox(t, pool, postgres.Options{})
	var msgs []waybill.Message
	for range 9 {
		msgs = append(msgs, raw("a.b", waybill.Key("k"), waybill.Header("h", "v")))
	}
	if _, err := stageOn(t, pool, o, msgs...); err != nil {
		t.Fatal(err)
	}
	for i, garbage := range []string{`[1,2]`, `{"lineage":"` + secretPayload + `"}`, `{"headers":{"a":{"b":["` + secretPayload + `"]}}}`, `"` + secretPayload + `"`} {
		exec(t, pool, "UPDATE waybill.waybill_outbox SET attrs = $1::text::json WHERE seq = $2", garbage, 2*i+2)
	}
	bus := memoryBus(t)
	r := newRelay(t, o, bus, relay.Options{})
	counts := ends(t, func() relay.Counts {
		c, err := r.RunOnce(t.Context())
		if err != nil {
			t.Error(err)
		}
		return c
	})
	if counts.Published != 5 || counts.Abandoned != 4 {
		t.Errorf("%+v", counts)
	}
	if n := number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE state = $1 AND reason = 'undecodable'", core.StateAbandoned); n != 4 {
		t.Errorf("%d abandoned", n)
	}
	rows, err := pool.Query(t.Context(), "SELECT last_error FROM waybill.waybill_outbox ORDER BY seq")
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		t.Log(text)
		clean(t, text)
		if !strings.Contains(text, "column attrs") {
			t.Errorf("does not name the column: %s", text)
		}
	}
}
