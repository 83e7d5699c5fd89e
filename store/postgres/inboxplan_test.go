package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/testenv"
)

// IN-05: a purge finds old marks by the index, and ends where the young ones begin.
func TestPurgeInboxPlan(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	m, err := NewMigrations(MigrationOptions{Parts: []Part{PartInbox}})
	if err != nil {
		t.Fatal(err)
	}
	n := newNames("", "", "")
	if err := m.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO {inbox} (consumer, source, id) SELECT 'c' || i % 3, '/s', i::text FROM generate_series(1, 10000) i`, `ANALYZE {inbox}`,
	} {
		if _, err := conn.Exec(t.Context(), n.SQL(sql)); err != nil {
			t.Fatal(err)
		}
	}
	for text, args := range map[string][]any{purgeInboxSQL: {"c1", int64(1e12), 1000, time.Now().Add(-time.Hour)}, purgeInboxAllSQL: {int64(1e12), 1000}} {
		rows, err := conn.Query(t.Context(), "EXPLAIN "+n.SQL(text), args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if !strings.Contains(plan, "waybill_inbox_handled") || !strings.Contains(plan, "AND (") || strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Filter: (handled_at") {
			t.Error(plan)
		}
	}
}
