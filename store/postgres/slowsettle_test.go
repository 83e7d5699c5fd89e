package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// A user's trigger that waits for long keeps its own record from being settled, and no other one, within the time that
// a relay gives to a call. As a relay does, the test gives more time to each call. A call whose time is up may have
// stored an outcome without an answer. The next call says ErrChanged of it then, and the table tells at the end.
func TestSlowTrigger(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]func(r *core.Record) core.Outcome{
		"published": core.Published,
		"others":    func(r *core.Record) core.Outcome { return core.Abandon(r, waybill.ReasonRejected, errNo) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, pool := newOutbox(t, postgres.Options{})
			self := join(t, s, "r", 1)
			exec(t, pool, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN IF OLD.id = 'slow' THEN PERFORM pg_sleep(3600); END IF; RETURN coalesce(NEW, OLD); END $$`)
			exec(t, pool, `CREATE TRIGGER slow BEFORE UPDATE OR DELETE ON waybill.waybill_outbox FOR EACH ROW EXECUTE FUNCTION slow()`)
			const n = 10
			for i := range n {
				id := strconv.Itoa(i)
				if i == 3 {
					id = "slow"
				}
				stageRows(t, pool, s, row("r", id, ""))
			}
			left := read(t, s, self, "r").Ranges[0].Records
			limit := 500 * time.Millisecond
			patience.Moving(t, "all but the slow one are settled", func() (int, bool) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				limit = min(2*limit, 8*time.Second)
				outcomes := make([]core.Outcome, len(left))
				for i := range left {
					outcomes[i] = outcome(&left[i])
				}
				var again []core.Record
				for i, err := range s.Settle(ctx, self, outcomes) {
					if err != nil && !errors.Is(err, core.ErrChanged) {
						again = append(again, left[i])
					}
				}
				left = again
				return len(left), len(left) == 1
			})
			rows, err := pool.Query(t.Context(), "SELECT id FROM waybill.waybill_outbox WHERE settled_at IS NULL")
			if err != nil {
				t.Fatal(err)
			}
			ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil || !slices.Equal(ids, []string{"slow"}) {
				t.Errorf("%q are left, %v", ids, err)
			}
		})
	}
}
