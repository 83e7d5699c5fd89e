package postgres_test

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill/store/postgres"
)

// DB-11: a row that is inserted without a source gets the one of the store that migrated first, in every store that
// reads it. Where no source is known the database refuses the row.
func TestSourceOfRowsInsertedByHand(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	m, err := postgres.NewMigrations(postgres.MigrationOptions{Parts: []postgres.Part{postgres.PartOutbox}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	refused := func(values, why string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), "INSERT INTO waybill.waybill_outbox (topic, body"+values)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", values, err)
		}
	}
	refused(") VALUES ('t', '')", `null value in column "source"`)

	orders := outboxOn(t, pool, postgres.Options{Source: "/or'der"})
	exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, body) VALUES ('t', '')")
	bills := outboxOn(t, pool, postgres.Options{Source: "/bills"})
	exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, body) VALUES ('t', '')")
	refused(", source) VALUES ('t', '', '')", "waybill_outbox_source")
	records := holdNext(t, bills, want(2)).Records
	if len(records) != 2 {
		t.Fatalf("%d records, want 2", len(records))
	}
	for _, r := range records {
		if r.Envelope.Source != "/or'der" {
			t.Errorf("the source is %q", r.Envelope.Source)
		}
	}
	diffs, err := orders.Drift(t.Context())
	if err != nil || len(diffs) > 0 {
		t.Errorf("%v, %v", diffs, err)
	}
	m, err = postgres.NewMigrations(postgres.MigrationOptions{Source: "/o'rders"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(m.SQL(), "DEFAULT '/o''rders'") {
		t.Error("the script has no default")
	}
	if _, err = postgres.NewMigrations(postgres.MigrationOptions{Source: "or ders"}); err == nil || !strings.Contains(err.Error(), "Source: ") {
		t.Errorf("a source with a space: %v", err)
	}
}
