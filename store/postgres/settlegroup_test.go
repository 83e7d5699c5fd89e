package postgres_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// TestSettleGroup: settles of several members are one round trip and one transaction. A locked record and a removed
// session refuse it. Then each member settles alone, and its own records are all that the refusal concerns.
func TestSettleGroup(t *testing.T) {
	t.Parallel()
	pool, sent := newSinglePool(t, "")
	o := outboxOn(t, pool, postgres.Options{})
	sessions := []core.Session{join(t, o, "mails", 1), join(t, o, "notes", 2), join(t, o, "files", 3)}
	routes := []string{"mails", "notes", "files"}
	number := 0
	filled := func() (outcomes [][]core.Outcome) {
		t.Helper()
		for i, route := range routes {
			for range 5 {
				number++
				stageRows(t, pool, o, row(route, strconv.Itoa(number), ""))
			}
			var list []core.Outcome
			for _, r := range read(t, o, sessions[i], route).Ranges[0].Records {
				list = append(list, core.Published(&r))
			}
			outcomes = append(outcomes, list)
		}
		return outcomes
	}
	left := func() int64 { return queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") }
	if !o.SettleGroup(t.Context(), sessions, filled()) { // prepares the statements
		t.Error("the first settles were refused")
	}
	settles := filled()
	before := sent.Load()
	if !o.SettleGroup(t.Context(), sessions, settles) {
		t.Error("the settles were refused")
	}
	if n := sent.Load() - before; n != 1 {
		t.Errorf("%d round trips, want 1", n)
	}
	if n := left(); n != 0 {
		t.Errorf("%d records are left", n)
	}

	settles = filled()
	other, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.WithoutCancel(t.Context()))
	if _, err := other.Exec(t.Context(), "BEGIN; SELECT FROM waybill.waybill_outbox WHERE route = 'notes' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if o.SettleGroup(t.Context(), sessions, settles) {
		t.Error("locked records are settled")
	}
	for i, list := range settles {
		if failed := o.Settle(t.Context(), sessions[i], list).FirstErr() != nil; failed != (i == 1) {
			t.Errorf("%s: failed %t", routes[i], failed)
		}
	}
	if n := left(); n != 5 {
		t.Errorf("%d records are left, want the locked ones", n)
	}
	if _, err := other.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}

	settles = filled()
	exec(t, pool, "DELETE FROM waybill.waybill_outbox_members WHERE session = "+strconv.FormatInt(int64(sessions[2]), 10))
	if o.SettleGroup(t.Context(), sessions, settles) {
		t.Error("a removed session settles")
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE route = 'files'"); n != 5 {
		t.Errorf("%d records of the removed session are left, want 5", n)
	}
}
