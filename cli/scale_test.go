package cli_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/testenv"
)

// OP-01: commands answer on a store in which WAYBILL_SCALE records wait, such as 2000000. The log has the times; how
// much they may look at is checked by TestScanIsBounded.
func TestManyRecords(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("WAYBILL_SCALE"))
	if os.Getenv("WAYBILL_SCALE") == "" {
		n = 20_000
	} else if err != nil {
		t.Fatal(err)
	}
	pg := testenv.Postgres(t)
	settings := []string{"stores.shop.kind=postgres", "stores.shop.url=" + pg.DSN}
	command(t, settings, "migrate", "up").is(t, 0)
	conn, err := pgx.Connect(t.Context(), pg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{
		`INSERT INTO waybill.waybill_outbox (topic, key, body, source, own_id)
			SELECT 'orders.placed', 'k' || i % 1000, 'body', '/shop', false FROM generate_series(1, ` + strconv.Itoa(n) + `) i`,
		`INSERT INTO waybill.waybill_outbox (topic, key, body, source, own_id, id, due_at)
			SELECT 'orders.later', 'l' || i, 'body', '/shop', true, 'later-' || i, now() + interval '1 day' FROM generate_series(1, 100) i`,
		`VACUUM ANALYZE waybill.waybill_outbox`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var last string
	if err := conn.QueryRow(t.Context(), `SELECT id FROM waybill.waybill_outbox WHERE seq > 0 ORDER BY seq DESC OFFSET 200 LIMIT 1`).Scan(&last); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
	}{
		{"status", 0},
		{"status --json", 0},
		{"list", 0},
		{"list --limit 1000", 0},
		{"list --key nobody", 0},
		{"list --tenant nobody --state failed", 0},
		{"list --state abandoned", 0},
		{"list --id nobody", 0},
		{"list --topic orders.later", 0},
		{"show later-7", 0},
		{"show default later-7", 0},
		{"show default " + last, 0},
		{"show " + last, 0},
		{"show nobody", 3},
		{"show default nobody", 3},
		{"redrive --all --dry-run", 0},
		{"redrive --id nobody", 3},
		{"cancel later-7", 0},
		{"cancel " + last, 4},
		{"cancel nobody", 3},
		{"cancel --key l9 --dry-run", 0},
		{"purge --tenant nobody --dry-run", 0},
		{"purge --state abandoned --dry-run", 0},
		{"keys list", 0},
		{"keys set-aside k1 nobody", 3},
		{"migrate status", 0},
		{"inbox purge --older 1h --yes", 0},
		{"dlq list default --store shop", 0},
		{"dlq replay default --all --store shop", 0},
		{"bench --messages 10", 4},
	} {
		began := time.Now()
		a := command(t, settings, strings.Fields(c.args)...).is(t, c.code)
		t.Logf("%7d ms  waybill %s  %.60q", time.Since(began).Milliseconds(), c.args, a.out+a.err)
	}
}
