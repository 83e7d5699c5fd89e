package cli_test

// The way back to an older schema drops tables. It is the one command that can lose every message at once.

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/testenv"
)

// OP-01: migrate down names what it drops, and drops no message and no mark unless it is forced.
func TestMigrateDownKeepsMessages(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	settings := []string{"stores.shop.kind=postgres", "stores.shop.url=" + pg.DSN}
	run := func(args string) answer { t.Helper(); return command(t, settings, strings.Fields(args)...) }
	run("migrate up").is(t, cli.ExitOK, "migrate down undoes each migration above --to")
	conn, err := pgx.Connect(t.Context(), pg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO waybill.waybill_outbox (id, source, topic, content_type, body) VALUES ('a', '/shop', 'x', 'text/plain', '')`)
	exec(`INSERT INTO waybill.waybill_inbox (consumer, source, id) SELECT 'c', '/shop', i::text FROM generate_series(1, 10001) i`)

	run("migrate down --to 99 --yes --force").is(t, cli.ExitUsage, "--to: there is no version 99: the newest is 4")
	run("migrate down --to 4 --yes --force").is(t, cli.ExitUsage, "nothing to undo")
	inbox, outbox := `drop table "waybill"."waybill_inbox" with more than 10,000 marks in it`, `drop table "waybill"."waybill_outbox" with 1 message in it`
	run("migrate down --to 1 --yes").is(t, cli.ExitRefused, "from version 4 to 1", inbox, outbox, "nothing was changed", "--force")
	run("migrate down --to 0 --yes").is(t, cli.ExitRefused, inbox, outbox)
	run("migrate down --to 2 --yes").is(t, cli.ExitRefused, inbox).not(t, "message in it")
	// --force is no yes
	run("migrate down --to 1 --force").is(t, cli.ExitRefused, inbox, outbox, "nobody can be asked")
	run("migrate status").is(t, cli.ExitOK)
	exec("DELETE FROM waybill.waybill_inbox")
	run("migrate down --to 2 --yes").is(t, cli.ExitOK, "inbox   0", "outbox  2") // nothing is lost
	run("migrate down --to 1 --yes").is(t, cli.ExitRefused, outbox)
	run("migrate down --to 1 --yes --force").is(t, cli.ExitOK, "outbox  0")
}

// OP-01, DB-06: the outbox or the inbox comes and goes alone.
func TestMigrateOnly(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	settings := []string{"stores.shop.kind=postgres", "stores.shop.url=" + pg.DSN}
	run := func(args string) answer { t.Helper(); return command(t, settings, strings.Fields(args)...) }
	run("migrate up --only outbox").is(t, cli.ExitOK, "outbox").not(t, "inbox")
	run("migrate status --only outbox").is(t, cli.ExitOK)
	run("migrate status --only inbox").is(t, cli.ExitFindings)
	run("migrate grants --only outbox --consumer c --relay r").is(t, cli.ExitOK, "waybill_outbox").not(t, "waybill_inbox")
	run("migrate up --only inbox").is(t, cli.ExitOK, "inbox")
	run("migrate status").is(t, cli.ExitOK, "inbox", "outbox")
	run("migrate down --to 0 --yes --only outbox").is(t, cli.ExitOK)
	run("migrate status --only inbox").is(t, cli.ExitOK)
	run("migrate up --only in").is(t, cli.ExitUsage, `--only: there is no part "in"`, "outbox or inbox")
	s := newShop(t)
	s.run("migrate", "up", "--only", "inbox").is(t, cli.ExitUsage, "leave it out")
}

// OP-01: the same on SQLite.
func TestMigrateDownKeepsMessagesOfAFile(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stage(message("x", "a"))
	s.run("migrate", "down", "--to", "9", "--yes", "--force").is(t, cli.ExitUsage, "the newest is 2")
	s.run("migrate", "down", "--to", "0", "--yes").is(t, cli.ExitRefused, "drop table waybill_outbox with 1 message in it", "waybill_inbox with 0 marks", "--force")
	s.run("status").is(t, cli.ExitOK, "1 waiting")
	s.run("migrate", "down", "--to", "1", "--yes").is(t, cli.ExitOK)
	s.transact(func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM waybill_outbox")
		return err
	})
	s.run("migrate", "down", "--to", "0", "--yes").is(t, cli.ExitOK)
}
