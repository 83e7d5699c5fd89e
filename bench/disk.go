package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// disk fills and drains an outbox five times, with a VACUUM after each drain, and compares its size after the fifth
// fill with its size after the first.
func disk(ctx context.Context, env *servers, s scale) ([]row, error) {
	r := row{name: fmt.Sprintf("table and indexes when %d messages wait, fifth time against the first", 2*s.backlog), unit: "MB", target: "≤ 1.2"}
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	c := drainCase{backlog: 2 * s.backlog, body: 256, keys: 1000, relays: 1, nowhere: true}
	var sizes []float64
	for range 5 {
		if err := stageBacklog(ctx, db, c); err != nil {
			return nil, err
		}
		size, err := outboxSize(ctx, db)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, size)
		if _, err := runRelays(ctx, env, db, c); err != nil {
			return nil, err
		}
		if _, err := db.pool.Exec(ctx, "VACUUM waybill.waybill_outbox"); err != nil {
			return nil, err
		}
	}
	r.raw, r.ours = []sample{{value: sizes[0]}}, []sample{{value: sizes[4]}}
	return []row{r}, nil
}

func outboxSize(ctx context.Context, db *database) (bytes float64, err error) {
	err = db.pool.QueryRow(ctx, "SELECT pg_total_relation_size('waybill.waybill_outbox')::float8").Scan(&bytes)
	return bytes, err
}

// diskSteady stages 2,000 messages a second, which a relay takes at once, with autovacuum as Postgres sets it, and
// compares the largest size in the last seven tenths of the run with the largest in the three before.
func diskSteady(ctx context.Context, env *servers, s scale) (_ []row, err error) {
	r := row{name: "table and indexes at 2,000 msg/s, largest after three tenths of the run against until then", unit: "MB", target: "≤ 1"}
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	rel, err := relay.New(db.outbox, nowhere{}, relay.Options{})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return rel.Run(ctx) })
	defer func() { stop(); err = errors.Join(err, g.Wait()) }()
	started, sizes := time.Now(), [10]float64{}
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for i := 0; time.Since(started) < s.disk; i++ {
		<-pace.C
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { _, err := db.outbox.Stage(ctx, tx, messages(20)...); return err })
		if err != nil {
			return nil, err
		}
		if i%10 > 0 {
			continue
		}
		size, err := outboxSize(ctx, db)
		if err != nil {
			return nil, err
		}
		tenth := min(int(10*time.Since(started)/s.disk), 9)
		sizes[tenth] = max(sizes[tenth], size)
	}
	r.raw = []sample{{value: max(sizes[0], sizes[1], sizes[2])}}
	r.ours = []sample{{value: max(sizes[3], sizes[4], sizes[5], sizes[6], sizes[7], sizes[8], sizes[9])}}
	for i := range sizes {
		sizes[i] /= 1e6
	}
	r.note = fmt.Sprintf("MB in each tenth of %s: %.1f", s.disk, sizes)
	return []row{r}, nil
}
