package cli_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// everyCommand are the commands that ask a store, with arguments that are right.
var everyCommand = []string{
	"status", "list", "show x", "show default x", "redrive --all --yes", "cancel x --route default", "cancel --tenant x", "purge --all", "keys list", "keys set-aside k x",
	"inbox purge --older 1h --yes", "bench", "dlq list q --store shop", "dlq show q x --store shop", "dlq replay q --all --store shop", "dlq purge q --all --yes --store shop",
	"migrate status", "migrate up", "migrate down --to 0 --yes",
}

// OP-01: every command works on Postgres, and says which command makes the tables while they are missing.
func TestPostgres(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	settings := []string{"stores.shop.kind=postgres", "stores.shop.url=" + pg.DSN, "stores.shop.retention.cancelled=1h"}
	run := func(args string) answer { t.Helper(); return command(t, settings, strings.Fields(args)...) }
	for _, args := range everyCommand {
		if !strings.HasPrefix(args, "migrate") {
			run(args).is(t, 1, "run waybill migrate up")
		}
	}
	run("migrate status").is(t, 5, "base", "inbox", "outbox  0")
	run("migrate print").is(t, 0, "CREATE TABLE")
	run("migrate grants --relay shop_relay --consumer odd\"name").is(t, 0, `GRANT SELECT, UPDATE, DELETE ON "waybill"."waybill_outbox" TO "shop_relay";`,
		`GRANT SELECT, INSERT, DELETE ON "waybill"."waybill_inbox" TO "odd""name";`).not(t, "INSERT, SELECT (seq")
	run("migrate grants --operator o --json").is(t, 0, `"sql":`)
	run("migrate grants").is(t, 2, "name at least one role", "--producer")
	run("migrate grants --relay r --route orders").is(t, 2, "name it with --producer")
	run("migrate grants --producer shop --route orders --source /shop").is(t, 0, "ROW LEVEL SECURITY", "'orders'", "'/shop'")
	run("migrate up").is(t, 0, "up to date")
	run("migrate status").is(t, 0)
	run("bench --messages 50 --paced 2").is(t, 0, "store shop (postgres)")
	stageTwo(t, pg.DSN)
	run("status").is(t, 0, "2 waiting")
	run("list --tenant x --json").is(t, 0, `"id": "a"`)
	run("show a").is(t, 0, "body of a")
	run("cancel b").is(t, 0, "cancelled")
	run("cancel --tenant x --yes").is(t, 0, "1 of 1 record cancelled")
	run("redrive --reason cancelled").is(t, 0, "1 of 1 record put back")
	run("dlq list default --store shop").is(t, 0, "0 messages parked")
	run("purge --all --yes").is(t, 4, "0 of 1 record deleted")
	run("inbox purge --older 1h --yes").is(t, 0, "0 marks")
	run("keys list").is(t, 0)
	run("migrate down --to 0 --yes").is(t, 4, "1 message in it", "nothing was changed", "--force")
	run("migrate down --to 0 --yes --force").is(t, 0, "outbox  0")
}

// OP-01: a store that is down, and one that does not answer, is one error with exit code 1, within the timeout.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	// its backlog accepts, and no process answers
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for _, address := range []string{"127.0.0.1:1", silent.Addr().String()} {
		settings := []string{"stores.shop.kind=postgres", "stores.shop.url=postgres://u:hunter2@" + address + "/db"}
		for _, args := range everyCommand {
			ctx, _ := patience.Context(t.Context(), patience.Limit)
			a := commandIn(ctx, settings, append(strings.Fields(args), "--timeout", "200ms")...)
			if ctx.Err() != nil {
				t.Errorf("%s on %s did not end by itself", args, address)
			}
			a.is(t, 1, "error: ")
			if n := strings.Count("\n"+a.err, "\nerror: "); n != 1 || strings.Contains(a.err, "hunter2") || a.out != "" {
				t.Errorf("%s on %s: %d errors\n%s%s", args, address, n, a.out, a.err)
			}
		}
	}
}

// OP-01: a broker that is down is one error with exit code 1, within the timeout.
func TestBrokerDown(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	settings := append(s.settings, "transports.mq.kind=rabbitmq", "transports.mq.url=amqp://u:hunter2@127.0.0.1:1/", "transports.mq.management_url=http://127.0.0.1:1")
	for _, args := range []string{
		"dlq list q", "dlq show q", "dlq replay q --all", "dlq purge q --all --yes", "topology declare", "topology verify", "topology gc --yes",
		"bench --transport mq --messages 1",
	} {
		ctx, _ := patience.Context(t.Context(), patience.Limit)
		a := commandIn(ctx, settings, append(strings.Fields(args), "--timeout", "200ms")...)
		if ctx.Err() != nil {
			t.Errorf("%s did not end by itself", args)
		}
		a.is(t, 1, "error: ")
		if n := strings.Count("\n"+a.err, "\nerror: "); n != 1 || strings.Contains(a.err, "hunter2") {
			t.Errorf("%s: %d errors\n%s%s", args, n, a.out, a.err)
		}
	}
	command(t, settings, "topology", "print").is(t, 0, "exchange waybill (topic, durable)")
}

// stageTwo stages a, which is due in an hour and has tenant x, and b, which can be cancelled.
func stageTwo(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Options{Source: "/shop"})
	if err != nil {
		t.Fatal(err)
	}
	err = store.UnitOfWork().Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := store.Stage(ctx, tx, message("fine", "a", waybill.Delay(time.Hour), waybill.Tenant("x")), message("fine", "b", waybill.Cancellable()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pool
}
