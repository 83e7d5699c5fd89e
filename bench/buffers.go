package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// buffers compares how many blocks Postgres touches for each 1,000 messages of a drain: with ten busy routes among a
// thousand against ten alone, and at the front of a large outbox, half of it scheduled, against a small one.
func buffers(ctx context.Context, env *servers, s scale) ([]row, error) {
	per := func(name, target string, small, large bufferCase) (row, error) {
		r, err := pairs(ctx, 1,
			func(ctx context.Context) (sample, error) { return touched(ctx, env, small) },
			func(ctx context.Context) (sample, error) { return touched(ctx, env, large) })
		r.name, r.unit, r.target = "blocks touched for 1,000 messages, "+name, "blocks", target
		return r, err
	}
	few := bufferCase{routes: 10, busy: 10, backlog: s.backlog}
	many := bufferCase{routes: 1000, busy: 10, backlog: s.backlog}
	routes, err := per("10 busy routes among 1,000, against 10 alone", "≤ 1.5", few, many)
	if err != nil {
		return nil, err
	}
	small := bufferCase{routes: 1, busy: 1, backlog: 10_000, drain: min(s.many/2, 10_000)}
	large := bufferCase{routes: 1, busy: 1, backlog: s.many / 2, scheduled: s.many / 2, drain: small.drain}
	size, err := per(fmt.Sprintf("%d waiting and as many scheduled, against 10,000", s.many/2), "≤ 1.3", small, large)
	return []row{routes, size}, err
}

// bufferCase is an outbox and how much of it is drained; 0 = all.
type bufferCase struct{ routes, busy, backlog, scheduled, drain int }

func touched(ctx context.Context, env *servers, c bufferCase) (_ sample, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return sample{}, err
	}
	defer db.close(ctx)
	for _, fill := range []struct {
		n   int
		due string
	}{{c.backlog, "NULL"}, {c.scheduled, "now() + interval '1 day'"}} {
		_, err := db.pool.Exec(ctx, fmt.Sprintf(`INSERT INTO waybill.waybill_outbox (route, key, topic, body, own_id, due_at)
SELECT 'r' || i %% %d, 'key-' || i %% 1000, 'bench.topic', $1, false, %s FROM generate_series(1, %d) AS i`, c.busy, fill.due, fill.n), make([]byte, stageBody))
		if err != nil {
			return sample{}, err
		}
	}
	for _, sql := range []string{"ALTER TABLE waybill.waybill_outbox SET (autovacuum_enabled = false)", "VACUUM ANALYZE waybill.waybill_outbox"} {
		if _, err := db.pool.Exec(ctx, sql); err != nil {
			return sample{}, err
		}
	}
	opts := relay.Options{CleanInterval: -1, BatchSize: 100}
	for i := range c.routes {
		opts.Routes = append(opts.Routes, relay.Route{Name: fmt.Sprintf("r%d", i)})
	}
	count := &counter{backlog: c.backlog, each: c.backlog, all: make(chan struct{})}
	if c.drain > 0 {
		count.backlog = c.drain
	}
	r, err := relay.New(db.outbox, &counted{nowhere{}, count}, opts)
	if err != nil {
		return sample{}, err
	}
	before, err := blocks(ctx, db)
	if err != nil {
		return sample{}, err
	}
	runCtx, stop := context.WithCancel(ctx)
	g, runCtx := errgroup.WithContext(runCtx)
	g.Go(func() error { return r.Run(runCtx) })
	select {
	case <-count.all:
	case <-runCtx.Done():
	}
	stop()
	if err := g.Wait(); err != nil {
		return sample{}, err
	}
	after, err := blocks(ctx, db)
	return sample{value: (after - before) * 1000 / float64(count.total())}, err
}

// blocks returns how many blocks the backends of the database have touched. They report when they end.
func blocks(ctx context.Context, db *database) (n float64, err error) {
	db.pool.Reset()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		var others int
		if err := db.pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&others); err != nil {
			return 0, err
		}
		if others == 0 {
			err := db.pool.QueryRow(ctx, "SELECT (blks_hit + blks_read)::float8 FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
			return n, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return 0, errors.New("backends did not end within a minute")
}
