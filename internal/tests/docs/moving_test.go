package docs_test

// The moves from other systems run on the tables that those systems made, with rows that they wrote: the tables in
// testdata/moving. The statements are those of docs/migrating.md. The expected rows are computed from the old ones
// here, in Go, so that a mistake in a statement cannot hide in the expectation.

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/importer"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// movedRow is a row of the outbox as a move made it. The time until it expires begins at the move.
type movedRow struct {
	Route, ID, Topic, Key, Source, Type, ContentType, CorrelationID, TraceParent string
	Body                                                                         string
	OccurredAt                                                                   time.Time
	DueAt, ReadySince                                                            *time.Time
	LastErrorAt                                                                  *time.Time
	ExpiresAt                                                                    *time.Time
	State, Attempts, Deliveries                                                  int
	Retry, MaybeSent, Cancellable, Settled                                       bool
	DedupeKey, Reason, LastError                                                 string
	HLC                                                                          int64
	Attrs                                                                        movedAttrs
}

type movedAttrs struct {
	Tenant, Causation, Run string
	Lineage                []string
	Headers                map[string]string
}

const movedSQL = `
SELECT route, id, topic, key, source, type, content_type, correlation_id, trace_parent, encode(body, 'hex') AS body,
    occurred_at, due_at, ready_since, last_error_at, expires_at, state, attempts, deliveries, retry, maybe_sent, cancellable,
    settled_at IS NOT NULL AS settled, dedupe_key, reason, last_error, hlc, coalesce(attrs, '{}') AS attrs
FROM waybill.waybill_outbox ORDER BY seq`

// moveCase is one move: a system, its table, and what becomes of the old rows.
type moveCase struct {
	name, table string
	// stays is the number of old rows that stay, and the statement that counts all of them.
	stays int
	want  func(t *testing.T, c *pgx.Conn, at time.Time) []movedRow
	// lasts is how long messages live from the later of their time and the move, by id.
	lasts map[string]time.Duration
}

func moveCases() []moveCase {
	return []moveCase{
		{
			name: "sqlalchemy", table: "outbox_table", stays: 2, want: wantSQLAlchemy,
			lasts: map[string]time.Duration{
				"e4ea363a-ee3f-4086-81ee-c07901ebb11c": time.Hour, "17c3c837-1a19-44af-b147-9c55a2e2e179": time.Millisecond,
				"6c10367e-f89d-4905-b12d-13cc41177023": time.Minute,
			},
		},
		{name: "faststream", table: "outbox", stays: 1, want: wantFastStream},
		{name: "forze", table: "app.outbox", stays: 2, want: wantForze},
		{name: "protean", table: "outbox", stays: 6, want: wantProtean},
		{name: "watermill", table: "watermill_forwarder_topic", stays: 6, want: wantWatermill},
		{name: "watermill-queue", table: "watermill_forwarder_topic", stays: 6, want: wantWatermillQueue},
		{name: "river", table: "river_job", stays: 6, want: wantRiver},
		{name: "go-outbox", table: "outbox.messages", stays: 3, want: wantGoOutbox},
		{name: "debezium", table: "outboxevent", want: wantDebezium},
	}
}

var limitOfMove = regexp.MustCompile(`LIMIT [0-9]+`)

// pageMove returns the statement of docs/migrating.md that moves the rows of a system.
func pageMove(t *testing.T, system string) string {
	t.Helper()
	page := read(t, filepath.Join(root, "docs", "migrating.md"))
	for _, m := range statementOfMove.FindAllStringSubmatch(page, -1) {
		if m[1] == system {
			return sqlBlock.FindStringSubmatch(m[0])[1]
		}
	}
	t.Fatalf("docs/migrating.md has no statement of %s", system)
	return ""
}

// TestMovingRealTables: nothing is lost, changed or out of order, in any time zone of the session, although the move is
// killed in the middle; and what had ended is not sent. The command begins with a dry run, which changes nothing, and
// goes on where an error ended it. The tables are those of eight systems.
//
// MV-01, MV-02, OP-22.
func TestMovingRealTables(t *testing.T) {
	t.Parallel()
	systems := map[string]bool{}
	for _, mc := range moveCases() {
		systems[strings.TrimSuffix(mc.name, "-queue")] = true // Watermill has two tables
	}
	if len(systems) < 8 {
		t.Errorf("%d systems are moved: %v", len(systems), systems)
	}
	for _, mc := range moveCases() {
		for i, way := range []func(*testing.T, moveCase, string){moveByPage, moveByCommand} {
			t.Run(fmt.Sprintf("%s/%s", mc.name, []string{"page", "command"}[i]), func(t *testing.T) {
				t.Parallel()
				testMove(t, mc, way)
			})
		}
	}
}

// openMoved returns a pool on a new database, and an outbox with its tables in it. The end of the test closes both.
func openMoved(t *testing.T, dsn string) (*pgxpool.Pool, *postgres.Outbox) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := postgres.NewOutbox(pool, postgres.Options{Source: "/orders"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.WithoutCancel(t.Context())) })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return pool, store
}

func testMove(t *testing.T, mc moveCase, move func(*testing.T, moveCase, string)) {
	t.Helper()
	ctx := t.Context()
	dsn := testenv.Postgres(t).DSN
	pool, store := openMoved(t, dsn)
	c, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if _, err := c.Exec(ctx, read(t, filepath.Join("testdata", "moving", mc.name+".sql")), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	var from, to time.Time
	now := func(at *time.Time) {
		if err := c.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(at); err != nil {
			t.Fatal(err)
		}
	}
	now(&from)
	want := mc.want(t, c.Conn(), from)
	move(t, mc, dsn)
	now(&to)

	got := queryRows[movedRow](t, c.Conn(), movedSQL)
	for i := range got {
		r := &got[i]
		if lasts, ok := mc.lasts[r.ID]; ok != (r.ExpiresAt != nil) {
			t.Errorf("%s expires at %v", r.ID, r.ExpiresAt)
		} else if ok {
			least, most := from, to
			if r.DueAt != nil {
				least, most = *r.DueAt, *r.DueAt
			}
			if at := r.ExpiresAt.Add(-lasts); at.Before(least) || at.After(most) {
				t.Errorf("%s expires at %s, %s after %s; want after %s to %s", r.ID, r.ExpiresAt, lasts, at, least, most)
			}
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(movedRow{}, "ExpiresAt")); diff != "" {
		t.Errorf("rows of the outbox (-want +got):\n%s", diff)
	}
	if old := count(t, c.Conn(), mc.table); old != mc.stays {
		t.Errorf("%d old rows stay, want %d", old, mc.stays)
	}
	publishMoved(t, store, want)

	ended := 0
	for _, r := range want {
		if r.Settled {
			ended++
		}
	}
	done, err := store.Redrive(ctx, admin.RedriveRequest{Filter: admin.Filter{Reasons: []waybill.Reason{waybill.ReasonAttempts}}, DryRun: true})
	if err != nil || done.Matched != ended {
		t.Errorf("%d messages had ended; of them can be redriven: %+v, %v", ended, done, err)
	}
	if mc.name != "faststream" {
		return
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		status, err := store.Cancel(ctx, tx, waybill.CancelKey{Route: "orders", Topic: "orders", DedupeKey: "order-confirm-7"})
		if err == nil && status[0] != waybill.CancelDone {
			t.Errorf("cancelling a timer by its id: %s", status[0])
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// publishMoved runs a relay, and checks what it sends: all that is due, unchanged, in the order of each key.
func publishMoved(t *testing.T, store *postgres.Outbox, want []movedRow) {
	t.Helper()
	routes := map[string]bool{}
	keys, due := map[string][]string{}, map[string]string{}
	for _, r := range want {
		routes[r.Route] = true
		if r.DueAt == nil && !r.Settled && r.ID != "17c3c837-1a19-44af-b147-9c55a2e2e179" { // that has expired
			due[r.Route+" "+r.ID] = r.Body
			if r.Key != "" {
				keys[r.Route+" "+r.Key] = append(keys[r.Route+" "+r.Key], r.ID)
			}
		}
	}
	sent := sentTo{}
	opts := relay.Options{Logger: slog.New(slog.DiscardHandler)}
	for route := range routes {
		opts.Routes = append(opts.Routes, relay.Route{Name: route, Publisher: sent.of(route)})
	}
	r, err := relay.New(store, nil, opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	gotKeys, got := map[string][]string{}, map[string]string{}
	for route, p := range sent {
		for _, e := range p.Sent() {
			got[route+" "+e.ID] = hex.EncodeToString(e.Body)
			if e.Key != "" {
				gotKeys[route+" "+e.Key] = append(gotKeys[route+" "+e.Key], e.ID)
			}
		}
	}
	if diff := cmp.Diff(due, got); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(keys, gotKeys, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("order of keys (-want +got):\n%s", diff)
	}
}

// TestMovingStatements: the statements of docs/migrating.md are those of waybill import. Rewrite them with -update.
func TestMovingStatements(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/never")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	store, err := postgres.NewOutbox(pool, postgres.Options{Source: "/orders"})
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(root, "docs", "migrating.md")
	old := read(t, page)
	text := statementOfMove.ReplaceAllStringFunc(old, func(block string) string {
		from := statementOfMove.FindStringSubmatch(block)[1]
		sql, err := store.ImportSQL(importer.Request{From: from, Source: "/orders"})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("<!-- import: %s -->\n```sql\n%s;\n```", from, strings.ReplaceAll(sql, `"waybill"."waybill_outbox"`, "waybill.waybill_outbox"))
	})
	for _, s := range store.ImportSystems() {
		if !strings.Contains(text, "<!-- import: "+s.Name+" -->") {
			t.Errorf("docs/migrating.md has no statement of %s", s.Name)
		}
		moved := slices.ContainsFunc(moveCases(), func(mc moveCase) bool { return mc.name == s.Name })
		if !moved && s.Name != "faststream-dlq" { // TestMovingVariants moves that
			t.Errorf("no test moves the rows of %s", s.Name)
		}
	}
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != old {
		t.Errorf("docs/migrating.md (-page +import):\n%s", cmp.Diff(old, text))
	}
}

var statementOfMove = regexp.MustCompile("(?s)<!-- import: ([a-z-]+) -->\n```sql\n.*?```")

// moveByPage runs the statement of the page in batches of seven, each of them first on a connection that is cut before
// the commit, until nothing moves.
func moveByPage(t *testing.T, mc moveCase, dsn string) {
	t.Helper()
	ctx := t.Context()
	sql := limitOfMove.ReplaceAllString(pageMove(t, mc.name), "LIMIT 7")
	run := func(commit bool) (moved int64) {
		c, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(ctx) }()
		if _, err := c.Exec(ctx, `SET TIME ZONE 'America/St_Johns'`); err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(sql), "BEGIN; -- the old relay is stopped"), "COMMIT;")
		tx, err := c.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		tag, err := tx.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatalf("%v, in:\n%s", err, text)
		}
		if commit {
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
		return tag.RowsAffected()
	}
	for run(false) > 0 {
		run(true)
	}
}

// moveByCommand runs waybill import in batches of seven. A row in the third batch is refused, and the command runs
// again when the cause is gone.
func moveByCommand(t *testing.T, mc moveCase, dsn string) {
	t.Helper()
	ctx := t.Context()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	before := count(t, c, mc.table)
	const full = `
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT count(*) FROM waybill.waybill_outbox) > 16 THEN RAISE 'no room'; END IF; RETURN NEW; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON waybill.waybill_outbox FOR EACH ROW EXECUTE FUNCTION full_disk()`
	if _, err := c.Exec(ctx, full, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	run := func(code int, text string, more ...string) {
		t.Helper()
		importCommand(t, dsn, code, text, append([]string{"--from", mc.name, "--batch", "7"}, more...)...)
	}
	there := func(text string, rows int) {
		t.Helper()
		left, moved := count(t, c, mc.table), count(t, c, "waybill.waybill_outbox")
		if moved != rows || left != before-rows {
			t.Errorf("%s %d rows are in the outbox and %d in the old table, want %d of %d", text, moved, left, rows, before)
		}
	}
	found := fmt.Sprintf("%d rows", before-mc.stays)
	run(cli.ExitOK, found+" would be moved; the first 7 fit", "--dry-run")
	there("after a dry run", 0)
	run(cli.ExitFailed, "14 rows were moved before the error")
	there("after the error", 14)
	if _, err := c.Exec(ctx, `DROP TRIGGER full_disk ON waybill.waybill_outbox`); err != nil {
		t.Fatal(err)
	}
	run(cli.ExitOK, fmt.Sprintf("%d rows moved", before-mc.stays-14))
	run(cli.ExitOK, "0 rows moved")
}

// importCommand runs waybill import, and checks its exit code and a text that it shows.
func importCommand(t *testing.T, dsn string, code int, text string, args ...string) {
	t.Helper()
	var out strings.Builder
	args = append([]string{"import", "--source", "/orders", "--set", "stores.db.kind=postgres", "--set", "stores.db.url=" + dsn}, args...)
	app := cli.App{Version: "test", Stores: adapters.Stores(), Transports: adapters.Transports()}
	got := app.Run(t.Context(), args, cli.IO{In: strings.NewReader(""), Out: &out, Err: &out})
	if got != code || !strings.Contains(out.String(), text) {
		t.Fatalf("exit code %d, want %d and %q in:\n%s", got, code, text, out.String())
	}
}

// TestMovingVariants: dead letters become parked messages, a table without the optional columns moves in the order that
// is left, an expression of the operator's replaces a column, and a mistake changes nothing.
func TestMovingVariants(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		system, change string
		args           []string
		code           int
		says, ask      string
		want           []string
	}{
		{
			system: "faststream", args: []string{"--from", "faststream-dlq"}, says: "2 rows moved",
			ask:  `SELECT concat_ws('|', route, id, state, reason, deliveries, last_error, encode(body, 'escape'), attrs->'headers'->>'tenant') FROM waybill.waybill_outbox ORDER BY seq`,
			want: []string{`reject|3|5|rejected|1|RejectMessage()|{"q":"reject"}|t1`, `dead|2|5|attempts|1|RuntimeError('dead at once, secret=42')|{"q":"dead"}|t1`},
		},
		{
			system: "forze", change: `ALTER TABLE app.outbox DROP COLUMN hlc, DROP COLUMN traceparent; ALTER TABLE app.outbox RENAME TO "Old events"`,
			args: []string{"--from", "forze", "--table", "app.Old events", "--where", "event_type = 'order.shipped'", "--column", "key='all'"}, says: "2 rows moved",
			ask:  `SELECT concat_ws('|', key, topic, hlc, convert_from(body, 'UTF8')::json->>'order_id') FROM waybill.waybill_outbox ORDER BY seq`,
			want: []string{"all|order.shipped|0|keyed", "all|order.shipped|0|keyed2"},
		},
		{
			// The payload is no JSON, and no envelope.
			system: "watermill-queue", change: `INSERT INTO watermill_forwarder_topic VALUES (2000, 'u-1', '\x00ff', '{"name": "Paid"}', false, now())`,
			args: []string{
				"--from", "watermill-queue", "--where", `"offset" = 2000`, "--column", "id=old.uuid", "--column", "topic='orders.placed'",
				"--column", "body=old.payload", "--column", "correlation_id=''", "--column", "attrs=json_build_object('headers', old.metadata)",
			},
			says: "1 row moved",
			ask:  `SELECT concat_ws('|', id, topic, encode(body, 'hex'), attrs->'headers'->>'name') FROM waybill.waybill_outbox`,
			want: []string{"u-1|orders.placed|00ff|Paid"},
		},
		{
			// Another topic of the forwarder, with its own table of offsets.
			system: "watermill", change: `ALTER TABLE watermill_forwarder_topic RENAME TO watermill_events;
				ALTER TABLE watermill_offsets_forwarder_topic RENAME TO watermill_offsets_events`,
			args: []string{"--from", "watermill", "--table", "watermill_events"}, says: "39 rows moved",
			ask: `SELECT count(*)::text FROM watermill_events`, want: []string{"6"},
		},
		{
			// The table that the router's documentation has, and binary payloads.
			system: "debezium", change: `ALTER TABLE outboxevent DROP COLUMN "timestamp", DROP COLUMN tracingspancontext,
				ALTER COLUMN payload TYPE bytea USING '\x00ff'`,
			args: []string{"--from", "debezium"}, says: "33 rows moved",
			ask:  `SELECT DISTINCT encode(body, 'hex') || content_type FROM waybill.waybill_outbox`,
			want: []string{"00ff"},
		},
		{
			// The expressions of the page, with other names.
			system: "sqlalchemy", args: []string{
				"--from", "sqlalchemy", "--column", "expires_at=greatest(old.send_after, now()) + coalesce(old.expiration, interval '1 hour')",
				"--column", "key=CASE WHEN old.routing_key = 'mail.send' THEN convert_from(old.body, 'UTF8')::json->>'id' ELSE '' END",
			},
			says: "56 rows moved",
			ask: `SELECT concat_ws('|', topic = 'mail.send', count(*) FILTER (WHERE expires_at > now()), count(*), count(DISTINCT key), min(key))
				FROM waybill.waybill_outbox GROUP BY topic = 'mail.send' ORDER BY 1`,
			want: []string{"f|51|51|1|", "t|4|5|5|5"}, // one expires after a millisecond, as it says itself
		},
		{
			system: "sqlalchemy", change: `DROP TABLE waybill.waybill_outbox CASCADE`, args: []string{"--from", "sqlalchemy"}, code: cli.ExitFailed, says: "migrate up",
			ask: `SELECT count(*)::text FROM outbox_table WHERE sent_at IS NULL`, want: []string{"56"},
		},
		{
			system: "sqlalchemy", args: []string{"--from", "sqlalchemy", "--column", "id='one'"}, code: cli.ExitFailed, says: "waybill_outbox_id",
			ask: `SELECT count(*)::text FROM outbox_table WHERE sent_at IS NULL`, want: []string{"56"},
		},
		{
			system: "sqlalchemy", args: []string{"--from", "sqlalchemy", "--column", "key=old.custmer"}, code: cli.ExitFailed, says: "does not fit outbox_table: print it",
			ask: `SELECT count(*)::text FROM outbox_table WHERE sent_at IS NULL`, want: []string{"56"},
		},
		{
			system: "sqlalchemy", args: []string{"--from", "sqlalchemy", "--table", "nowhere"}, code: cli.ExitUsage, says: `there is no table "nowhere"`,
			ask: `SELECT count(*)::text FROM waybill.waybill_outbox`, want: []string{"0"},
		},
		{
			system: "sqlalchemy", args: []string{"--from", "sql", "--table", "a.b.c", "--batch", "-1", "--column", "key="}, code: cli.ExitUsage, says: `choose of sqlalchemy, faststream`,
			ask: `SELECT count(*)::text FROM waybill.waybill_outbox`, want: []string{"0"},
		},
	} {
		t.Run(v.system+" "+v.says, func(t *testing.T) {
			t.Parallel()
			dsn := testenv.Postgres(t).DSN
			c, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close(t.Context()) }()
			m, err := postgres.NewMigrations(postgres.MigrationOptions{Source: "/orders"})
			if err != nil {
				t.Fatal(err)
			}
			for _, sql := range []string{m.SQL(), read(t, filepath.Join("testdata", "moving", v.system+".sql")), v.change} {
				if _, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatal(err)
				}
			}
			importCommand(t, dsn, v.code, v.says, v.args...)
			rows, err := c.Query(t.Context(), v.ask)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if diff := cmp.Diff(v.want, got); diff != "" || err != nil {
				t.Errorf("(-want +got): %v\n%s", err, diff)
			}
		})
	}
}

// TestMovingRole: a role that owns Waybill's tables needs the rights on the old table that the error names, no more.
func TestMovingRole(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t).DSN
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	role := "mover_" + strings.ReplaceAll(waybill.NewID(), "-", "")
	exec := func(sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	m, err := postgres.NewMigrations(postgres.MigrationOptions{Source: "/orders"})
	if err != nil {
		t.Fatal(err)
	}
	exec(read(t, filepath.Join("testdata", "moving", "sqlalchemy.sql")))
	exec(`CREATE ROLE ` + role + `; DO $$ BEGIN EXECUTE 'GRANT CREATE ON DATABASE ' || quote_ident(current_database()) || ' TO ` + role + `'; END $$`)
	exec(`SET ROLE ` + role + `;` + m.SQL())
	exec(`RESET ROLE; GRANT SELECT, DELETE ON outbox_table TO ` + role)
	importCommand(t, dsn+"&role="+role, cli.ExitFailed, "SELECT, UPDATE and DELETE on outbox_table", "--from", "sqlalchemy")
	exec(`GRANT UPDATE ON outbox_table TO ` + role)
	importCommand(t, dsn+"&role="+role, cli.ExitOK, "56 rows moved", "--from", "sqlalchemy")
	exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role)
}

func queryRows[T any](t *testing.T, c *pgx.Conn, sql string, args ...any) []T {
	t.Helper()
	rows, err := c.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		t.Fatalf("%v, in:\n%s", err, sql)
	}
	return out
}

func count(t *testing.T, c *pgx.Conn, table string) (n int) {
	t.Helper()
	if err := c.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// later returns at if it is after now, else nil.
func later(at *time.Time, now time.Time) *time.Time {
	if at != nil && at.After(now) {
		return at
	}
	return nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func wantSQLAlchemy(t *testing.T, c *pgx.Conn, at time.Time) (want []movedRow) {
	t.Helper()
	for _, r := range queryRows[struct {
		RoutingKey           string
		Body                 []byte
		TrackingIDs          []string `db:"tracking_ids"`
		CreatedAt, SendAfter time.Time
	}](t, c, `SELECT routing_key, body, tracking_ids, created_at, send_after FROM outbox_table WHERE sent_at IS NULL ORDER BY created_at, id`) {
		last := len(r.TrackingIDs) - 1
		want = append(want, movedRow{
			Route: "default", ID: r.TrackingIDs[last], Topic: r.RoutingKey, Source: "/orders", ContentType: "application/json", Body: hex.EncodeToString(r.Body),
			OccurredAt: r.CreatedAt, DueAt: later(&r.SendAfter, at), ReadySince: &r.SendAfter, State: int(core.StatePending),
			Attrs: movedAttrs{Lineage: r.TrackingIDs[:last]},
		})
	}
	return want
}

func wantFastStream(t *testing.T, c *pgx.Conn, at time.Time) (want []movedRow) {
	t.Helper()
	for _, r := range queryRows[struct {
		ID                       int64
		Queue                    string
		Payload                  []byte
		Headers                  map[string]any
		AttemptsCount            int
		DeliveriesCount          int
		CreatedAt, NextAttemptAt time.Time
		LastAttemptAt            *time.Time
		AcquiredAt               *time.Time
		TimerID                  *string `db:"timer_id"`
	}](t, c, `SELECT id, queue, payload, coalesce(headers, '{}') AS headers, attempts_count, deliveries_count, created_at, next_attempt_at,
		last_attempt_at, acquired_at, timer_id FROM outbox ORDER BY next_attempt_at, id`) {
		if r.AcquiredAt != nil && r.AcquiredAt.After(at.Add(-time.Minute)) { // a worker that lives
			continue
		}
		w := movedRow{
			Route: r.Queue, ID: strconv.FormatInt(r.ID, 10), Topic: r.Queue, Source: "/orders", ContentType: "application/octet-stream",
			Body: hex.EncodeToString(r.Payload), OccurredAt: r.CreatedAt, DueAt: later(&r.NextAttemptAt, at), ReadySince: &r.NextAttemptAt,
			State: int(core.StatePending), Attempts: r.AttemptsCount, Deliveries: r.DeliveriesCount, MaybeSent: r.AcquiredAt != nil,
			DedupeKey: deref(r.TimerID), Cancellable: r.TimerID != nil, LastErrorAt: r.LastAttemptAt,
			Attrs: movedAttrs{Headers: map[string]string{}},
		}
		if w.DueAt != nil && r.AttemptsCount > 0 {
			w.State, w.Retry = int(core.StateFailed), true
		}
		for name, v := range r.Headers {
			switch name {
			case "content-type":
				w.ContentType = v.(string)
			case "correlation_id":
				w.CorrelationID = v.(string)
			default:
				w.Attrs.Headers[name] = fmt.Sprint(v)
			}
		}
		want = append(want, w)
	}
	return want
}

func wantForze(t *testing.T, c *pgx.Conn, at time.Time) (want []movedRow) {
	t.Helper()
	for _, r := range queryRows[struct {
		OutboxRoute, EventID, EventType                                         string
		TenantID, ExecutionID, CorrelationID, CausationID, OrderingKey, Payload *string
		LastError, Traceparent                                                  *string
		Status                                                                  string
		Attempts                                                                int
		HLC                                                                     *int64
		OccurredAt, CreatedAt                                                   time.Time
		AvailableAt                                                             *time.Time
	}](t, c, `SELECT outbox_route, event_id::text, event_type, tenant_id::text, execution_id::text, correlation_id::text, causation_id::text,
		ordering_key, payload::text, last_error, traceparent, status, attempts, hlc, occurred_at, created_at, available_at
		FROM app.outbox WHERE status <> 'published' AND left(payload::text, 13) <> '{"__fz_enc__"' ORDER BY hlc, created_at, id`) {
		w := movedRow{
			Route: r.OutboxRoute, ID: r.EventID, Topic: r.EventType, Key: deref(r.OrderingKey), Source: "/orders", ContentType: "application/json",
			CorrelationID: deref(r.CorrelationID), TraceParent: deref(r.Traceparent), Body: hex.EncodeToString([]byte(*r.Payload)), OccurredAt: r.OccurredAt,
			DueAt: later(r.AvailableAt, at), ReadySince: &r.CreatedAt, State: int(core.StatePending), Attempts: r.Attempts,
			MaybeSent: r.Status == "processing", LastError: deref(r.LastError), HLC: deref(r.HLC),
			Attrs: movedAttrs{Tenant: deref(r.TenantID), Causation: deref(r.CausationID), Run: deref(r.ExecutionID)},
		}
		switch {
		case r.Status == "failed":
			w.State, w.Settled, w.Reason = int(core.StateAbandoned), true, string(waybill.ReasonAttempts)
		case w.DueAt != nil && r.Attempts > 0:
			w.State, w.Retry = int(core.StateFailed), true
		}
		want = append(want, w)
	}
	return want
}

func wantProtean(t *testing.T, c *pgx.Conn, at time.Time) (want []movedRow) {
	t.Helper()
	type row struct {
		MessageID, StreamName, Type, TargetBroker, Status string
		Data                                              []byte
		CorrelationID, CausationID                        *string
		LastError                                         json.RawMessage
		CreatedAt                                         time.Time
		NextRetryAt, LastProcessedAt                      *time.Time
		RetryCount, Priority                              int
	}
	rows := queryRows[row](t, c, `SELECT message_id, stream_name, type, target_broker, status, convert_to(data::text, 'UTF8') AS data,
		correlation_id, causation_id, last_error, created_at, next_retry_at, last_processed_at, retry_count, priority
		FROM outbox WHERE status <> 'published'`)
	number := func(r row) (n int) {
		_, _ = fmt.Sscan(r.MessageID[strings.LastIndexByte(r.MessageID, '.')+1:], &n)
		return n
	}
	slices.SortFunc(rows, func(a, b row) int {
		if order := a.CreatedAt.Compare(b.CreatedAt); order != 0 {
			return order
		}
		return number(a) - number(b)
	})
	for _, r := range rows {
		w := movedRow{
			Route: r.TargetBroker, ID: r.MessageID, Topic: r.Type, Key: r.StreamName, Source: "/orders", ContentType: "application/json",
			CorrelationID: deref(r.CorrelationID), Body: hex.EncodeToString(r.Data), OccurredAt: r.CreatedAt, DueAt: later(r.NextRetryAt, at),
			ReadySince: &r.CreatedAt, State: int(core.StatePending), Attempts: r.RetryCount, MaybeSent: r.Status == "processing",
			Attrs: movedAttrs{Causation: deref(r.CausationID)},
		}
		var failure *struct{ Message string }
		if err := json.Unmarshal(r.LastError, &failure); err != nil {
			t.Fatal(err)
		}
		if failure != nil {
			w.LastError, w.LastErrorAt = failure.Message, r.LastProcessedAt
		}
		switch {
		case r.Priority > 0:
			w.Route += "/" + string(waybill.LaneHigh)
		case r.Priority < 0:
			w.Route += "/" + string(waybill.LaneLow)
		}
		switch {
		case r.Status == "abandoned":
			w.State, w.Settled, w.Reason = int(core.StateAbandoned), true, string(waybill.ReasonAttempts)
		case w.DueAt != nil:
			w.State, w.Retry = int(core.StateFailed), true
		}
		want = append(want, w)
	}
	return want
}
