//go:build unix && !race

package faults_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/testenv"
)

// DB-22: the database fails over to a replica that lacks the last commits, and draws the same numbers again. A pooler
// keeps the relays' connections, so that nothing tells them. Nothing that is committed afterwards is settled by the
// number of a lost record.
func TestFailOver(t *testing.T) {
	nightly(t)
	w, pg, db := onOwnServer(t, testenv.PostgresOptions{})
	for range times(1) {
		pooled := testenv.NewPooler(t, pg, 8).DSN(db.Database)
		all := w.startAll(member{DSN: pooled, Slow: 200 * time.Millisecond, Batch: 100, Lease: 2 * time.Second}, "a", "b", "c")
		stop := w.produce(keys("k", 200), 0)
		w.pause(time.Second)
		if err := pg.Replicate(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.pause(1500 * time.Millisecond)
		before := w.number(w.pool, "SELECT last_value FROM waybill.waybill_outbox_seq")
		if err := pg.FailOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.forget()
		w.pool.Reset()
		after := w.number(w.pool, "SELECT last_value FROM waybill.waybill_outbox_seq")
		if t.Logf("numbers went back from %d to %d", before, after); before-after < 40 {
			t.Error("too few numbers are drawn again to prove anything")
		}
		// before the pooler is back
		for w.number(w.pool, "SELECT last_value FROM waybill.waybill_outbox_seq") <= before {
			w.stage(keys("new", 100))
		}
		stop()
		w.allArrive(15 * time.Second)
		for _, p := range all {
			p.Kill()
		}
	}
}
