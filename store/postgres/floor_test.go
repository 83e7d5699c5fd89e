package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// DB-28: looks for notices begin above those that are gone on all routes, and miss none: neither that of a transaction
// that ends late, nor those of another life of the database.
func TestNoticeFloor(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	self := join(t, o, "r", 1)
	beats := int64(1)
	renew := func() core.Membership {
		t.Helper()
		beats++
		m, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{
			Session: self, Name: "test", Heartbeats: beats, Lease: time.Hour, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	floor := func(want int64) {
		t.Helper()
		patience.Until(t, fmt.Sprint("the floor is ", want), func() bool { renew(); return postgres.NoticeFloor(o) >= want })
		if got := postgres.NoticeFloor(o); got != want {
			t.Errorf("the floor is %d, want %d", got, want)
		}
	}
	found := func(want ...int64) {
		t.Helper()
		page, err := o.Read(t.Context(), self, core.ReadRequest{Slots: []core.RouteSlots{all("r")}})
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, n := range page.Notices {
			got = append(got, n.Number)
		}
		if !slices.Equal(got, want) {
			t.Errorf("a read brings the notices %d, want %d", got, want)
		}
	}
	const columns = "INSERT INTO waybill.waybill_outbox_notices (number, kind, route, slot, slots, key, id, seq) OVERRIDING SYSTEM VALUE "
	draw := func(tx pgx.Tx) (number int64) {
		t.Helper()
		if err := tx.QueryRow(t.Context(), `INSERT INTO waybill.waybill_outbox_notices (kind, route, slot, slots, key, id, seq)
			SELECT 1, 'r', 0, -1, 'k', '', 0 WHERE pg_current_xact_id() IS NOT NULL RETURNING number`).Scan(&number); err != nil {
			t.Fatal(err)
		}
		return number
	}
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	commit := func(tx pgx.Tx) {
		t.Helper()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	late, other := begin(), begin()
	if n := draw(late); n != 1 {
		t.Fatal(n)
	}
	if n := draw(other); n != 2 {
		t.Fatal(n)
	}
	commit(other)
	exec(t, pool, "DELETE FROM waybill.waybill_outbox_notices")
	for range 10 {
		renew()
	}
	commit(late)
	if !renew().HasNotices {
		t.Error("a membership does not tell of a notice whose transaction ended late")
	}
	found(1)

	for range 10 { // a notice that stays keeps the floor below it
		renew()
	}
	found(1)
	exec(t, pool, "DELETE FROM waybill.waybill_outbox_notices")
	floor(2)

	// Another life of the database, in which a number comes again.
	restored := func() {
		t.Helper()
		exec(t, pool, "UPDATE waybill.waybill_meta SET value = value + 1 WHERE name = 'waybill_outbox.epoch'")
		exec(t, pool, columns+"VALUES (1, 1, 'r', 0, -1, 'k', '', 0)")
	}
	restored()
	found(1)
	exec(t, pool, "DELETE FROM waybill.waybill_outbox_notices")
	floor(2)
	restored()
	if !renew().HasNotices {
		t.Error("after a restore a membership does not tell of a notice")
	}
	found(1)
	exec(t, pool, "DELETE FROM waybill.waybill_outbox_notices")
	floor(2)
}

// DB-28: a decision that only tells an owner has its transaction's id before it numbers the notice, too.
func TestNoticeHasAnIDFirst(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, idFirst)
	exec(t, pool, "SELECT nextval('waybill.waybill_outbox_notices_seq')") // the first one is logged, under an id
	join(t, o, "r", 1)
	stageRows(t, pool, o, row("r", "a", "k"))
	got, err := o.DecideRecords(t.Context(), admin.DecideRequest{Reason: waybill.ReasonSkipped, Decisions: []admin.Decision{
		{Route: "r", Seq: query[int64](t, pool, "SELECT seq FROM waybill.waybill_outbox"), ID: "a"},
	}})
	if err != nil || len(got) != 1 || got[0].Result != admin.DecisionPending {
		t.Errorf("%+v, %v; want a decision that waits for its owner", got, err)
	}
}
