package docs_test

// The move runs beside the old relay, on the same rows, and its process is killed in the middle. The old relay is a
// loop that does what the relays of these systems do: it locks rows and skips locked ones, sends, marks, and commits;
// now and then it dies after it has sent, so that what it sent is sent again, by itself or by Waybill.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/consumer/foreign"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/memory"
)

// childImport is the variable that makes the test binary run waybill import.
const childImport = "WAYBILL_DOCS_IMPORT"

func TestMain(m *testing.M) {
	if args := os.Getenv(childImport); args != "" {
		app := cli.App{Version: "test", Stores: adapters.Stores(), Transports: adapters.Transports()}
		os.Exit(app.Run(context.Background(), strings.Split(args, "\n"), cli.IO{In: strings.NewReader(""), Out: os.Stdout, Err: os.Stderr}))
	}
	os.Exit(m.Run())
}

// drainCase is a system whose old relay still runs.
type drainCase struct {
	name, where string
	// lock takes at most five rows that are due, and mark says that rows are sent, with their numbers as $1.
	lock, mark string
	// back is set if the old relay commits what it took before it sends it: it gives back what a dead relay took.
	back string
	// identity is the id of a row.
	identity string
	reads    foreign.Reader
	// as is the message as the old relay sends it.
	as      func(id string, e *waybill.Envelope)
	columns []string
}

func drainCases() []drainCase {
	header := func(name string, value func(id string) string) func(string, *waybill.Envelope) {
		return func(id string, e *waybill.Envelope) { e.Headers = map[string]string{name: value(id)} }
	}
	same := func(id string) string { return id }
	return []drainCase{
		{
			name: "sqlalchemy", where: "sent_at IS NULL AND send_after <= now() AND expiration IS NULL AND length(routing_key) < 256", identity: "tracking_ids->>-1",
			lock: `SELECT id::text, tracking_ids->>-1, routing_key, body FROM outbox_table WHERE sent_at IS NULL AND send_after <= now()
				AND expiration IS NULL AND length(routing_key) < 256 ORDER BY created_at, id LIMIT 5 FOR UPDATE SKIP LOCKED`,
			mark:  `UPDATE outbox_table SET sent_at = now() WHERE id::text = ANY ($1)`,
			reads: foreign.TrackingIDs("/orders"), as: header("x-outbox-tracking-ids", func(id string) string { return `["` + id + `"]` }),
		},
		{
			name: "watermill-queue", where: "NOT acked AND metadata->>'_watermill_delayed_until' IS NULL", identity: "convert_from(payload, 'UTF8')::json->>'uuid'",
			lock: `SELECT "offset"::text, m->>'uuid', m->>'destination_topic', decode(m->>'payload', 'base64')
				FROM watermill_forwarder_topic, LATERAL (SELECT convert_from(payload, 'UTF8')::json) x(m)
				WHERE NOT acked AND metadata->>'_watermill_delayed_until' IS NULL ORDER BY "offset" LIMIT 5
				FOR UPDATE OF watermill_forwarder_topic SKIP LOCKED`,
			mark:  `DELETE FROM watermill_forwarder_topic WHERE "offset"::text = ANY ($1)`,
			reads: foreign.Watermill("/orders"), as: header("_watermill_message_uuid", same),
		},
		{
			name: "river", where: "state = 'available'", identity: "id::text",
			back: `UPDATE river_job SET state = 'available' WHERE id::text = ANY ($1)`,
			lock: `UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now() WHERE id IN (SELECT id FROM river_job
				WHERE state = 'available' ORDER BY priority, scheduled_at, id LIMIT 5 FOR UPDATE SKIP LOCKED)
				RETURNING id::text, id::text, kind, convert_to(args::text, 'UTF8')`,
			mark:  `UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id::text = ANY ($1) AND state = 'running'`,
			reads: foreign.IDFromHeader("job", "/orders"), as: header("job", same), columns: []string{"route='default'"},
		},
		{
			name: "go-outbox", where: "status = 0 AND available_at <= now() AND target->>'version' IS NULL AND target->>'routing_key' IS NULL",
			identity: "id::text",
			back:     `UPDATE outbox.messages SET status = 0, lease_token = NULL, lease_until = NULL WHERE id::text = ANY ($1)`,
			lock: `UPDATE outbox.messages SET status = 1, lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour'
				WHERE id IN (SELECT id FROM outbox.messages WHERE status = 0 AND available_at <= now() AND target->>'version' IS NULL
				AND target->>'routing_key' IS NULL ORDER BY available_at, id LIMIT 5 FOR UPDATE SKIP LOCKED)
				RETURNING id::text, id::text, topic, payload`,
			mark:  `UPDATE outbox.messages SET status = 2, lease_token = NULL, lease_until = NULL WHERE id::text = ANY ($1)`,
			reads: foreign.MessageID("/orders"), as: func(id string, e *waybill.Envelope) { e.ID = id }, columns: []string{"route='default'", "key=''"},
		},
	}
}

// errDied ends a batch of the old relay after it was sent.
var errDied = errors.New("the old relay died")

// oldBatch sends one batch as the old relay does, and says how many rows it took. A batch that dies has been sent.
func (d *drainCase) oldBatch(ctx context.Context, pool *pgxpool.Pool, bus *memory.Transport, dies bool) (int, error) {
	var rows []string
	send := func(tx pgx.Tx) error {
		found, err := tx.Query(ctx, d.lock)
		if err != nil {
			return err
		}
		taken, err := pgx.CollectRows(found, pgx.RowToStructByPos[struct {
			Row, ID, Topic string
			Body           []byte
		}])
		if err != nil {
			return err
		}
		batch := make([]waybill.Envelope, len(taken))
		for i, r := range taken {
			rows = append(rows, r.Row)
			batch[i] = waybill.Envelope{ID: fmt.Sprintf("sent-%s-%t", r.Row, dies), Topic: r.Topic, Body: r.Body}
			d.as(r.ID, &batch[i])
		}
		for i, err := range bus.Publish(ctx, batch) {
			if err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}
		return nil
	}
	mark := func(tx pgx.Tx) error {
		if dies && d.back == "" {
			return errDied
		}
		sql := d.mark
		if dies {
			sql = d.back
		}
		_, err := tx.Exec(ctx, sql, rows)
		return err
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := send(tx); err != nil || d.back != "" {
			return err
		}
		return mark(tx)
	})
	if err == nil && d.back != "" {
		err = pgx.BeginFunc(ctx, pool, mark)
	}
	return len(rows), err
}

// TestDrainingBesideTheOldRelay: each message has one effect, also if both relays send it, or send it twice; no row is
// left.
func TestDrainingBesideTheOldRelay(t *testing.T) {
	t.Parallel()
	for _, d := range drainCases() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			testDraining(t, &d)
		})
	}
}

func testDraining(t *testing.T, d *drainCase) {
	t.Helper()
	ctx := t.Context()
	dsn := testenv.Postgres(t).DSN
	pool, store := openMoved(t, dsn)
	marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := marks.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	table := map[string]string{"sqlalchemy": "outbox_table", "river": "river_job", "go-outbox": "outbox.messages"}[d.name]
	if table == "" {
		table = "watermill_forwarder_topic"
	}
	// The move waits in the third batch until the test lets it go on.
	const gate = `
CREATE TABLE effects (id text);
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT count(*) FROM waybill.waybill_outbox) > 7 THEN PERFORM pg_advisory_xact_lock_shared(4711); END IF; RETURN NEW; END $$;
CREATE TRIGGER gate BEFORE INSERT ON waybill.waybill_outbox FOR EACH ROW EXECUTE FUNCTION gate();
SELECT pg_advisory_lock(4711)`
	for _, sql := range []string{read(t, filepath.Join("testdata", "moving", d.name+".sql")), gate} {
		if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	type effect struct {
		ID string
		N  int
	}
	want := queryRows[effect](t, c, `SELECT `+d.identity+` AS id, 1 AS n FROM `+table+` WHERE `+d.where+` ORDER BY 1`)

	quiet := slog.New(slog.DiscardHandler)
	bus, err := memory.New(memory.Options{Queues: []memory.Queue{{Name: "billing", Bindings: []string{"#"}}}})
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(marks, "billing", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := inbox.Handler(box, waybill.NewTopic("any", waybill.Bytes("")), func(ctx context.Context, tx pgx.Tx, _ []byte) error {
		m, _ := waybill.DeliveryFrom(ctx)
		_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, m.Envelope.ID)
		return err
	})
	h.Name, h.NameIsTopic = waybill.AnyMessage, false
	con, err := consumer.New(bus, consumer.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	sub := waybill.Subscription{Queue: "billing", Bindings: []string{"#"}, Concurrency: 2, Foreign: d.reads}
	if err := con.Handle(sub, h); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	consumed := make(chan error, 1)
	go func() { consumed <- con.Run(running) }()
	defer func() {
		stop()
		if err := <-consumed; err != nil {
			t.Error(err)
		}
	}()
	batch := func(dies bool) int {
		n, err := d.oldBatch(ctx, pool, bus, dies)
		if err != nil && !errors.Is(err, errDied) {
			t.Error(err)
		}
		return n
	}
	batch(true)
	batch(false)
	args := []string{
		"import", "--from", d.name, "--source", "/orders", "--where", d.where, "--batch", "3", "--set", "stores.db.kind=postgres", "--set", "stores.db.url=" + dsn,
	}
	for _, column := range d.columns {
		args = append(args, "--column", column)
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childImport+"="+strings.Join(args, "\n"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	oldRelay := func() <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			batch(false)
			batch(true)
		}()
		return done
	}
	beside := oldRelay()
	patience.Until(t, "the move is in the middle of a batch", func() (held bool) {
		if err := c.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&held); err != nil {
			t.Fatal(err)
		}
		return held
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if _, err := c.Exec(ctx, `SELECT pg_advisory_unlock(4711)`); err != nil {
		t.Fatal(err)
	}
	<-beside
	if moved := count(t, c, "waybill.waybill_outbox"); moved < 6 {
		t.Errorf("the killed move had moved %d rows, want 6 or more", moved)
	}
	beside = oldRelay()
	importCommand(t, dsn, cli.ExitOK, "moved", args[1:]...)
	<-beside
	for batch(false) > 0 {
	}
	importCommand(t, dsn, cli.ExitOK, "moved", args[1:]...)

	r, err := relay.New(store, nil, relay.Options{Logger: quiet, Routes: []relay.Route{{Name: "default", Publisher: bus}, {Name: "default/low", Publisher: bus}}})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := r.RunOnce(ctx); err != nil || done.Published < 6 {
		t.Fatalf("%+v, %v", done, err)
	}
	patience.Moving(t, "each message had an effect", func() (n int, done bool) {
		if err := c.QueryRow(ctx, `SELECT count(DISTINCT id) FROM effects`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		depth, err := bus.ParkedDepth(ctx, "billing")
		if err != nil || depth > 0 {
			t.Fatalf("%d messages are parked, %v", depth, err)
		}
		return n, n >= len(want)
	})
	got := queryRows[effect](t, c, `SELECT id, count(*) AS n FROM effects GROUP BY 1 ORDER BY 1`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
	if left := queryRows[effect](t, c, `SELECT `+d.identity+` AS id, 1 AS n FROM `+table+` WHERE `+d.where); len(left) > 0 {
		t.Errorf("%d rows are left", len(left))
	}
}
