package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

func newMigrations(tb testing.TB, opts postgres.MigrationOptions) *postgres.Migrations {
	tb.Helper()
	m, err := postgres.NewMigrations(opts)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// DB-06
func TestMigrateForwardAndBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	both := newMigrations(t, postgres.MigrationOptions{})
	inbox := newMigrations(t, postgres.MigrationOptions{Parts: []postgres.Part{postgres.PartInbox}})
	tables := func() int64 {
		return queryInt(t, pool, `SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('waybill') AND relkind IN ('r', 'S')`)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(inbox.Up(t.Context(), pool))
	if n := tables(); n != 3 { // meta, inbox and limits
		t.Fatalf("%d tables and sequences after the inbox, want 3", n)
	}
	var wg sync.WaitGroup // several processes at once
	for range 4 {
		wg.Go(func() {
			if err := both.Up(t.Context(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	applied, err := both.Applied(t.Context(), pool)
	must(err)
	if fmt.Sprint(applied) != "map[base:1 inbox:4 outbox:2]" {
		t.Fatalf("applied %v", applied)
	}
	must(inbox.Down(t.Context(), pool, 0))
	if n := tables(); n != 11 { // meta, six of the outbox, and four sequences
		t.Fatalf("%d tables and sequences without the inbox, want 11", n)
	}
	must(both.Up(t.Context(), pool))
	must(both.Down(t.Context(), pool, 0))
	if n := tables(); n != 0 {
		t.Fatalf("%d tables and sequences left", n)
	}
	must(both.Up(t.Context(), pool))
}

// DB-06
func TestMigrationsForOtherTools(t *testing.T) {
	t.Parallel()
	m := newMigrations(t, postgres.MigrationOptions{Schema: `odd "name"`})
	if err := fstest.TestFS(m.FS(), "0001_base_create.up.sql", "0002_outbox_create.down.sql", "0003_inbox_create.up.sql"); err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(m.GooseFS(), "0002_outbox_create.sql"); err != nil {
		t.Fatal(err)
	}
	pool := newPool(t)
	exec(t, pool, m.SQL()) // the printed script alone is enough
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test", Schema: `odd "name"`})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// DB-06
func TestEverythingIsDocumented(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	if err := newMigrations(t, postgres.MigrationOptions{}).Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), `
		SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'waybill'::regnamespace AND obj_description(c.oid) IS NULL
			AND c.relname NOT IN ('waybill_outbox_notices_seq', 'waybill_outbox_audit_number_seq', 'waybill_meta_pkey')
			AND c.relname !~ '_(members|routes|partitions|notices|audit)_pkey$'
		UNION ALL
		SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relnamespace = 'waybill'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND col_description(c.oid, a.attnum) IS NULL`)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(bare) > 0 {
		t.Fatalf("no comment on %v (%v)", bare, err)
	}
}

// A neighbour who may create tables makes one of Waybill's, with a trigger, before the first migration. The migration
// names the neighbour, and the trigger does not run with the rights of the one who migrates.
func TestMigrationOfAStranger(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	role := "neighbour_" + strings.ToLower(rand.Text())
	exec(t, pool, fmt.Sprintf(`CREATE ROLE %[1]s; CREATE TABLE loot (who text); GRANT INSERT ON loot TO PUBLIC; CREATE SCHEMA waybill;
		GRANT ALL ON SCHEMA waybill TO %[1]s; SET ROLE %[1]s;
		CREATE TABLE waybill.waybill_meta (name text NOT NULL PRIMARY KEY, value bigint NOT NULL, owner text NOT NULL DEFAULT '');
		CREATE FUNCTION waybill.trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.loot VALUES (current_user); RETURN new; END $$;
		CREATE TRIGGER trap BEFORE INSERT ON waybill.waybill_meta FOR EACH ROW EXECUTE FUNCTION waybill.trap();
		RESET ROLE`, role))
	t.Cleanup(func() {
		_, _ = pool.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role))
	})
	m := newMigrations(t, postgres.MigrationOptions{})
	if err := m.Up(t.Context(), pool); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), role+" owns table waybill_meta") {
		t.Errorf("%v", err)
	}
	if n := query[int](t, pool, "SELECT count(*)::int FROM loot"); n != 0 {
		t.Errorf("the trigger ran %d times", n)
	}
	exec(t, pool, fmt.Sprintf("REASSIGN OWNED BY %[1]s TO current_user; DROP TRIGGER trap ON waybill.waybill_meta", role))
	if err := m.Up(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

// DB-06: each role can do its work with the rights that Grants prints, and no more.
func TestGrants(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	m := newMigrations(t, postgres.MigrationOptions{})
	if err := m.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	suffix := pool.Config().ConnConfig.Database // roles are the server's, not the database's
	roles := postgres.Roles{Producer: "producer " + suffix, Canceller: "canceller " + suffix, Relay: "relay " + suffix, Consumer: "consumer " + suffix, Operator: "operator " + suffix}
	as := map[string]*pgxpool.Pool{}
	for _, role := range []string{roles.Producer, roles.Canceller, roles.Relay, roles.Consumer, roles.Operator, "nobody " + suffix} {
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
		as[role] = openPool(t, u.String())
	}
	exec(t, pool, m.Grants(roles))
	open := func(role string) (*postgres.Outbox, *pgxpool.Pool) {
		o, err := postgres.NewOutbox(as[role], postgres.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = o.Close(context.WithoutCancel(t.Context())) })
		return o, as[role]
	}
	producer, producerPool := open(roles.Producer)
	stage(t, producerPool, producer, message(waybill.Key("k")), message(waybill.Delay(time.Hour)))
	stage(t, producerPool, producer, message(waybill.Delay(time.Hour), waybill.DedupeKey("d")))
	canceller, cancellerPool := open(roles.Canceller)
	for _, keep := range []time.Duration{0, time.Hour} { // deleted at once, or kept
		if keep > 0 {
			o, err := postgres.NewOutbox(cancellerPool, postgres.Options{Source: "/test", Retention: waybill.Retention{Cancelled: keep}})
			if err != nil {
				t.Fatal(err)
			}
			canceller = o
		}
		if s := stage(t, cancellerPool, canceller, message(waybill.Delay(time.Hour), waybill.Replace("d"))); s[0].Replaced != waybill.CancelDone {
			t.Fatalf("a canceller's replacement: %+v", s)
		}
		id := stage(t, cancellerPool, canceller, message(waybill.Delay(time.Hour)))[0].ID
		if got := cancel(t, cancellerPool, canceller, waybill.CancelKey{ID: id}); got[0] != waybill.CancelDone {
			t.Fatalf("a canceller's cancel: %q", got)
		}
	}
	relay, _ := open(roles.Relay)
	if err := relay.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := holdNext(t, relay, want(10))
	if len(c.Records) != 1 {
		t.Fatalf("held %d records", len(c.Records))
	}
	settle(t, relay, core.Published(&c.Records[0]))
	holdNext(t, relay, want(10))
	if _, err := relay.Wait(t.Context(), []string{waybill.DefaultRoute}, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := relay.Counts(t.Context()); err != nil {
		t.Fatal(err)
	}
	operator, _ := open(roles.Operator)
	if _, err := operator.Redrive(t.Context(), admin.RedriveRequest{All: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Clean(t.Context(), "me", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := producerPool.Exec(t.Context(), "SELECT body FROM waybill.waybill_outbox"); err == nil {
		t.Fatal("a producer reads bodies")
	}
	// A call without its grant is refused, and the error names the cure.
	if _, err := producer.Read(t.Context(), 1, core.ReadRequest{}); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "grant") {
		t.Fatalf("a producer's read: %v", err)
	}
	if err := producer.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "GRANT SELECT, UPDATE, DELETE") {
		t.Fatalf("a producer's check: %v", err)
	}
	err := pgx.BeginFunc(t.Context(), producerPool, func(tx pgx.Tx) error {
		_, err := producer.Cancel(t.Context(), tx, waybill.CancelKey{ID: "x"})
		return err
	})
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "grant") {
		t.Fatalf("a producer's cancel: %v", err)
	}
	consumer, err := postgres.New(as[roles.Consumer], postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "take NewInbox") {
		t.Fatalf("a consumer's check of an outbox: %v", err)
	}
	nobody, _ := open("nobody " + suffix)
	if err := nobody.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "GRANT USAGE") {
		t.Fatalf("nobody's check: %v", err)
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before string // after the migration, or instead of it if it begins with CREATE
		want   string
	}{
		"no schema":        {"CREATE SCHEMA other", `schema "waybill" is missing: run the migrations`},
		"no table":         {"CREATE SCHEMA waybill", `"waybill_outbox" is missing: run the migrations`},
		"another shape":    {"CREATE SCHEMA waybill; CREATE TABLE waybill.waybill_outbox (id int)", "has no column seq bigint"},
		"a column less":    {"ALTER TABLE waybill.waybill_outbox DROP COLUMN ready_since", "has no column ready_since"},
		"another type":     {"ALTER TABLE waybill.waybill_outbox ALTER body TYPE text USING ''", "column body is text, not bytea"},
		"no sequence":      {"DROP SEQUENCE waybill.waybill_outbox_wake", `"waybill_outbox_wake" is missing`},
		"old version":      {"UPDATE waybill.waybill_meta SET value = 1 WHERE name = 'waybill_outbox.version'", "has schema version 1, this release needs 2"},
		"newer version":    {"UPDATE waybill.waybill_meta SET value = 99 WHERE name = 'waybill_outbox.version'", ""},
		"a column more":    {"ALTER TABLE waybill.waybill_outbox ADD COLUMN mine int", ""},
		"nothing at all":   {"SELECT 1", ""},
		"numbers are kept": {"ALTER SEQUENCE waybill.waybill_outbox_seq CACHE 20", "has CACHE 20"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test"})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(tc.before, "CREATE") {
				if err := o.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			exec(t, pool, tc.before)
			err = o.Check(t.Context())
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, waybill.ErrMisconfigured) || waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%v, want it to say %q", err, tc.want)
			}
		})
	}
}

// A server that answers a commit before it has it on disk forgets it in a crash, after its message was published or
// acknowledged. Check refuses that, and takes all other settings.
func TestCheckRefusesForgottenCommits(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, setting := range []string{"off", "local", "remote_write", "remote_apply", "on"} {
		cfg := pool.Config()
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = setting
		set, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(set.Close)
		o, err := postgres.NewOutbox(set, postgres.Options{Source: "/test", AutoMigrate: true})
		if err != nil {
			t.Fatal(err)
		}
		i, err := postgres.NewInbox(set, postgres.InboxOptions{AutoMigrate: true})
		if err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{"outbox": o.Check(t.Context()), "inbox": i.Check(t.Context())} {
			refused := errors.Is(err, waybill.ErrMisconfigured) && strings.Contains(err.Error(), "SET synchronous_commit")
			if refused != (setting == "off") || !refused && err != nil {
				t.Errorf("%s with %s: %v", name, setting, err)
			}
		}
	}
}

func TestMissingTableIsMisconfigured(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	_, readErr := o.Read(t.Context(), 1, core.ReadRequest{})
	stageErr := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := o.Stage(t.Context(), tx, message())
		return err
	})
	for _, err := range []error{readErr, stageErr} {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "run the migrations") {
			t.Errorf("%v", err)
		}
	}
}

func TestWrongDSN(t *testing.T) {
	t.Parallel()
	good := testenv.Postgres(t).DSN
	for name, tc := range map[string]struct {
		change        func(*url.URL)
		misconfigured bool
	}{
		"password": {func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "wrong-secret") }, true},
		"database": {func(u *url.URL) { u.Path = "/absent" }, true},
		"port":     {func(u *url.URL) { u.Host = "127.0.0.1:1" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(good)
			if err != nil {
				t.Fatal(err)
			}
			secret, _ := u.User.Password()
			tc.change(u)
			o, err := postgres.NewOutbox(openPool(t, u.String()), postgres.Options{Source: "/test"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = o.Read(t.Context(), 1, core.ReadRequest{})
			if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) != tc.misconfigured {
				t.Errorf("class %s: %v", waybill.ClassOf(err), err)
			}
			if strings.Contains(err.Error(), "wrong-secret") || strings.Contains(err.Error(), secret) {
				t.Errorf("a password in %v", err)
			}
		})
	}
}

// DB-08: the names take effect everywhere, and two outboxes in one database do not meet.
func TestNames(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	opts := []postgres.Options{
		{}, {Schema: `Odd "schema" \ 'x'`, Table: `Odd "table" \ 'x'`}, {Table: "second"}, {Schema: "public"},
	}
	var outboxes []*postgres.Outbox
	for _, opt := range opts {
		o := outboxOn(t, pool, opt)
		if err := o.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		outboxes = append(outboxes, o)
	}
	for i, o := range outboxes {
		stage(t, pool, o, message(waybill.ID("same"), waybill.Key("k")), message(waybill.ID(fmt.Sprint("own-", i)), waybill.Delay(time.Millisecond)))
	}
	for i, o := range outboxes {
		var got []string
		patience.Until(t, "both records", func() bool {
			c := holdNext(t, o, want(10))
			for j := range c.Records {
				got = append(got, c.Records[j].Envelope.ID)
				settle(t, o, core.Published(&c.Records[j]))
			}
			return len(got) == 2
		})
		if !strings.Contains(strings.Join(got, " "), fmt.Sprint("own-", i)) {
			t.Errorf("outbox %d gave %v", i, got)
		}
		if _, err := o.Counts(t.Context()); err != nil {
			t.Error(err)
		}
		if mark, err := o.HighWater(t.Context()); err != nil || mark == 0 {
			t.Errorf("mark %v: %v", mark, err)
		}
	}
	long := strings.Repeat("x", 49)
	err := postgres.Options{Schema: strings.Repeat("s", 64), Table: long, TTL: -1}.Validate()
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatal(err)
	}
	for _, field := range []string{"Source", "Schema", "Table", "TTL"} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	const brace = "a{schema}b" // statements have such places for names
	_, err = postgres.NewMigrations(postgres.MigrationOptions{Outbox: brace, Inbox: brace})
	for _, field := range []string{"Outbox", "Inbox"} {
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), field+": holds a NUL or {") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for name, err := range map[string]error{
		"outbox": postgres.Options{Source: "/s", Schema: brace, Table: brace}.Validate(),
	} {
		for _, field := range []string{"Schema", "Table"} {
			if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), field+": holds a NUL or {") {
				t.Errorf("%s, %s: %v", name, field, err)
			}
		}
	}
}

// DB-29: a server that syncs nothing, or writes no full pages, forgets what it has answered when its machine stops.
// Check refuses it, unless the server's operator says that this may be.
func TestCheckRefusesUnsafeServers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		settings map[string]string
		refused  string
	}{
		"fsync":            {map[string]string{"fsync": "off"}, "fsync = off"},
		"full_page_writes": {map[string]string{"full_page_writes": "off"}, "full_page_writes = off"},
		"both":             {map[string]string{"fsync": "off", "full_page_writes": "off"}, "fsync, full_page_writes = off"},
		"allowed":          {map[string]string{"fsync": "off", "full_page_writes": "off", "waybill.allow_unsafe_settings": "on"}, ""},
		"safe":             {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: tt.settings})
			pool := openPool(t, server.DSN("postgres"))
			if err := outboxOn(t, pool, postgres.Options{}).Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
			if err == nil {
				err = marks.Migrate(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			exec(t, pool, `CREATE ROLE app; GRANT USAGE ON SCHEMA waybill TO app;
				GRANT ALL ON ALL TABLES IN SCHEMA waybill TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA waybill TO app`)
			normal := openPoolWith(t, server.DSN("postgres"), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = "app" })
			o, err := postgres.NewOutbox(normal, postgres.Options{Source: "/test"})
			if err != nil {
				t.Fatal(err)
			}
			i, err := postgres.NewInbox(normal, postgres.InboxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{"outbox": o.Check(t.Context()), "inbox": i.Check(t.Context())} {
				refused := errors.Is(err, waybill.ErrMisconfigured) && tt.refused != "" && strings.Contains(err.Error(), tt.refused)
				if refused != (tt.refused != "") || !refused && err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

// RL-07: Check tells of a session that cannot write, as on a standby, before anything fails for it. That is an outage.
func TestCheckOfReadOnlySession(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	if err := o.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(openPool(t, withParam(pool.Config().ConnString(), "default_transaction_read_only=on")), postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Check(t.Context()); waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), "check: the server or the transaction is read only: connect to the primary") {
		t.Errorf("got %v", err)
	}
}
