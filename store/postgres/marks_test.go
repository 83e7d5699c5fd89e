package postgres_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// A page tells what it cannot show yet: each record that a later page shows with a number up to Last is of a
// transaction that RunningTxs names, or that has a mark from SnapshotXmax to LastSeqXmax. Transactions commit, roll
// back, use savepoints, are slow, are prepared, and insert by hand.
func TestMarksNeverLie(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "20", "fsync": "off"}})
	db, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool := openPool(t, db.DSN)
	s := outboxOn(t, pool, postgres.Options{})
	self := join(t, s, "r", 64)

	type seen struct {
		result core.ReadResult
		seqs   map[int64]bool
	}
	var pages []seen
	var mu sync.Mutex
	staging := make(chan struct{})
	each := 60 // transactions of a writer
	if tier.IsNightly() {
		each = 600
	}
	var writers sync.WaitGroup
	marks := map[int64]int64{} // by sequence, of what was committed
	for w := range 6 {
		writers.Go(func() {
			for i := range each {
				got, err := randomTransaction(t, pool, s, fmt.Sprintf("w%d-%d", w, i))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				maps.Copy(marks, got)
				mu.Unlock()
			}
		})
	}
	go func() { writers.Wait(); close(staging) }()
	var last int64
	for running := true; running; {
		select {
		case <-staging:
			running = false
		default:
		}
		p, err := s.Read(t.Context(), self, core.ReadRequest{
			KnownLastSeq: last, Slots: []core.RouteSlots{all("r")}, Ranges: []core.Range{{RouteSlots: all("r"), AfterSeq: max(last-2000, 0), UpToSeq: 1 << 62, Limit: 10_000}},
		})
		if err != nil {
			t.Fatal(err)
		}
		one := seen{p, map[int64]bool{}}
		for _, r := range p.Ranges[0].Records {
			one.seqs[r.Seq] = true
			if r.Seq > p.LastSeq {
				t.Fatalf("record %d is above the last number %d", r.Seq, p.LastSeq)
			}
			if r.Slot != core.SlotOf("r", r.Envelope.Key, r.ID) {
				t.Fatalf("record %s has slot %d", r.ID, r.Slot)
			}
		}
		if p.LastSeqXmax == 0 && p.LastSeq > last {
			t.Fatalf("numbers up to %d were drawn after %d, and there is no Upper", p.LastSeq, last)
		}
		p.Ranges = nil
		pages, last = append(pages, one), p.LastSeq
	}
	checked := 0
	for i, p := range pages {
		from := int64(0)
		upper := p.result.LastSeqXmax
		if i > 0 {
			from = max(pages[i-1].result.LastSeq-2000, 0)
		}
		for seq, mark := range marks {
			if seq <= from || seq > p.result.LastSeq || p.seqs[seq] {
				continue
			}
			checked++
			if open := slices.Contains(p.result.RunningTxs, mark) || mark >= p.result.SnapshotXmax; !open {
				t.Fatalf("page %d does not show %d of transaction %d, which it says has ended (Next %d, Running %v)", i, seq, mark, p.result.SnapshotXmax, p.result.RunningTxs)
			}
			if upper != 0 && mark >= upper {
				t.Fatalf("page %d has Upper %d and Last %d, and %d is of transaction %d", i, upper, p.result.LastSeq, seq, mark)
			}
		}
	}
	t.Logf("%d pages, %d records, %d times a record was not shown yet", len(pages), len(marks), checked)
	if len(marks) == 0 || checked == 0 {
		t.Error("nothing was tried")
	}
}

// randomTransaction returns the marks of the messages that it committed, by sequence.
func randomTransaction(t *testing.T, pool *pgxpool.Pool, s *postgres.Outbox, name string) (map[int64]int64, error) {
	t.Helper()
	ctx := t.Context()
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Release()
	tx, err := c.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for range rand.IntN(4) + 1 {
		sub := tx
		if rand.IntN(3) == 0 {
			if sub, err = tx.Begin(ctx); err != nil {
				return nil, err
			}
		}
		switch rand.IntN(3) {
		case 0:
			_, err = sub.Exec(ctx, "INSERT INTO waybill.waybill_outbox (route, topic, body) SELECT 'r', $2, '' FROM generate_series(1, $1)", rand.IntN(5)+1, name)
		default:
			r := row("r", waybill.NewID(), []string{"", "k"}[rand.IntN(2)])
			r.GeneratedID, r.Envelope.Topic = true, name
			err = s.StageRows(ctx, sub, r)
		}
		if err == nil && sub != tx {
			if rand.IntN(3) == 0 {
				err = sub.Rollback(ctx)
			} else {
				err = sub.Commit(ctx)
			}
		}
		if err != nil {
			return nil, err
		}
		if rand.IntN(8) == 0 {
			_, err = tx.Exec(ctx, "SELECT pg_sleep($1)", rand.Float64()/5)
		}
		if err != nil {
			return nil, err
		}
	}
	got, err := own(t, tx, name)
	if err != nil || rand.IntN(6) == 0 {
		return nil, err
	}
	if rand.IntN(6) != 0 {
		return got, tx.Commit(ctx)
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("PREPARE TRANSACTION '%s'", name)); err != nil {
		return nil, err
	}
	_, err = c.Exec(ctx, fmt.Sprintf("SELECT pg_sleep(%f)", rand.Float64()/5))
	if err == nil {
		_, err = c.Exec(ctx, fmt.Sprintf("COMMIT PREPARED '%s'", name))
	}
	return got, err
}

// own returns the numbers that tx wrote, with its name as topic, each with the transaction's mark.
func own(t *testing.T, tx pgx.Tx, name string) (map[int64]int64, error) {
	t.Helper()
	var seqs []int64
	var mark int64
	err := tx.QueryRow(t.Context(), `
SELECT coalesce(array_agg(seq), '{}'), pg_current_xact_id()::text::bigint FROM waybill.waybill_outbox WHERE route = 'r' AND topic = $1`, name).Scan(&seqs, &mark)
	got := map[int64]int64{}
	for _, seq := range seqs {
		got[seq] = mark
	}
	return got, err
}
