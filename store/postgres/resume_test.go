package postgres

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// IN-05: a purge goes on where the latest one ended, begins anew now and then, and leaves nothing out.
func TestPurgeGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(30*time.Second, "each of its steps takes a second")
		var r resumes
		at := func(second int) *time.Time { x := time.Unix(int64(second), 0); return &x }
		type call struct {
			from  *time.Time
			limit int
		}
		type result struct {
			n      int
			newest *time.Time
			end    *time.Time
			err    error
		}
		step := func(want int, wantErr bool, results []result, calls ...call) {
			t.Helper()
			var got []call
			n, err := r.purge("c", 10, func(limit int, from *time.Time) (int, *time.Time, *time.Time, error) {
				<-time.After(time.Second) // it takes a second
				got = append(got, call{from, limit})
				res := results[len(got)-1]
				return res.n, res.newest, res.end, res.err
			})
			same := slices.EqualFunc(got, calls, func(a, b call) bool {
				return a.limit == b.limit && (a.from == nil) == (b.from == nil) && (a.from == nil || a.from.Equal(*b.from))
			})
			if n != want || err != nil != wantErr || !same {
				t.Fatalf("%d, %v, calls %+v, want %d and %+v", n, err, got, want, calls)
			}
		}
		step(10, false, []result{{10, at(10), nil, nil}}, call{nil, 10})
		step(10, false, []result{{10, at(20), nil, nil}}, call{at(10), 10})
		step(0, true, []result{{0, nil, nil, errors.New("no")}}, call{at(20), 10})
		step(4, false, []result{{4, at(24), nil, nil}}, call{at(20), 10})
		step(0, false, []result{{0, nil, nil, nil}}, call{at(24), 10})
		<-time.After(scratchShare * time.Second)
		step(3, false, []result{{3, at(5), nil, nil}}, call{nil, 10}) // three came late
		if n, err := r.purge("", 10, func(int, *time.Time) (int, *time.Time, *time.Time, error) { return 3, at(99), at(100), nil }); n != 3 || err != nil {
			t.Error(n, err)
		}
		step(0, false, []result{{0, nil, at(40), nil}}, call{at(24), 10}) // others have deleted the rest
		step(10, false, []result{{10, at(50), nil, nil}}, call{at(40), 10})
		step(0, false, []result{{0, nil, nil, nil}}, call{at(50), 10})
	})
}

// IN-05: after a short look from the beginning that left nothing behind it, the next one begins there, too. One that
// took long, or went on from a place, goes on where it ended.
func TestPurgeGoesOnAtItsEnd(t *testing.T) {
	t.Parallel()
	began, end := time.Unix(1000, 0), time.Unix(900, 0)
	for _, tc := range []struct {
		from *time.Time
		took time.Duration
		on   bool
	}{{nil, lookCheap - 1, false}, {nil, lookCheap, true}, {&time.Time{}, 1, true}} {
		r := resume{anew: began.Add(time.Hour)}
		r.done(tc.from, began, began.Add(tc.took), nil, &end)
		if from := r.start(began.Add(tc.took)); (from != nil) != tc.on || tc.on && !from.Equal(end) {
			t.Errorf("from %v, %s: goes on at %v", tc.from, tc.took, from)
		}
	}
}

// DB-09 DB-20: the reads of a purge do not grow with its deletions, although an older transaction is open, so that no
// vacuum can take the deleted rows from the index.
func TestPurgeBehindAnOldSnapshot(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	o.opts.Retention = waybill.Retention{Published: time.Minute}
	exec, insert := filler(t, pool)
	insert(30_000, "state, settled_at", "3, now() - interval '1 day' + i * interval '1 ms'")
	exec("ANALYZE waybill.waybill_outbox")
	old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Rollback(t.Context())
	if _, err := old.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	looked := func(from *time.Time) (buffers int64) { // to find the rows, without their deletion
		p := explain(t, pool, o.names, purgeSQL(core.RetentionPublished), time.Minute.Microseconds(), from)
		p.walk(func(n *plan) {
			if n.NodeType == "LockRows" {
				n.walk(func(n *plan) {
					if strings.HasPrefix(n.NodeType, "Index Scan") {
						buffers += n.SharedHit + n.SharedRead
					}
				})
			}
		})
		return buffers
	}
	published := &o.cleaned[core.RetentionPublished]
	var buffers []int64
	for range 25 {
		if done, err := o.Clean(t.Context(), "me", time.Minute); err != nil || done.Deleted[core.CleanedKind{State: core.StatePublished}] != cleanBatch {
			t.Fatalf("%+v, %v", done, err)
		}
		buffers = append(buffers, looked(&published.from))
	}
	anew := looked(nil)
	t.Logf("buffers: %v; from the beginning %d", buffers, anew)
	if first, last := buffers[0], buffers[len(buffers)-1]; last > first+first/2 {
		t.Errorf("the 25th batch read %d buffers, the first one %d", last, first)
	}
	if n := anew; n < 4*buffers[0] || buffers[0] == 0 {
		t.Errorf("from the beginning it reads %d buffers, no more than the first one: this test proves nothing", n)
	}
}
