package main

// An old snapshot keeps the rows that a table queue has done with. A Hold must not go over them.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/table"
)

const queueRate = 100 // messages a second

// queueOldSnapshot compares the time from commit to handler of a table queue after many messages have passed, with and
// without a session that holds an older snapshot.
func queueOldSnapshot(ctx context.Context, env *servers, s scale) ([]row, error) {
	n := 3 * s.passed
	name := fmt.Sprintf("commit to handler at %d msg/s after %d messages passed a table queue under an old snapshot, ", queueRate, n)
	rows := []row{
		{name: name + "p50, against without", unit: "ms", target: "≤ 2"},
		{name: name + "p99, against without", unit: "ms", target: "reported"},
		{name: name + "the first one after a start", unit: "ms", target: "reported"},
	}
	for range s.pairs {
		for _, old := range []bool{false, true} {
			first, ds, err := queueAfter(ctx, env, s, n, old)
			if err != nil {
				return nil, err
			}
			for i, d := range []time.Duration{percentile(ds, 0.5), percentile(ds, 0.99), first} {
				if one := (sample{value: d.Seconds()}); old {
					rows[i].ours = append(rows[i].ours, one)
				} else {
					rows[i].raw = append(rows[i].raw, one)
				}
			}
		}
	}
	return rows, nil
}

// queueAfter returns how long the first message took, and then each one at a steady rate.
func queueAfter(ctx context.Context, env *servers, s scale, passed int, old bool) (first time.Duration, _ []time.Duration, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return 0, nil, err
	}
	defer db.close(ctx)
	if old {
		end, err := holdSnapshot(ctx, db)
		if err != nil {
			return 0, nil, err
		}
		defer end()
	}
	for left := passed; left > 0; left -= 50_000 {
		for _, sql := range []string{
			fmt.Sprintf("INSERT INTO waybill.waybill_outbox (route, topic, body) SELECT 'mails', 'bench.topic', '' FROM generate_series(1, %d)", min(left, 50_000)),
			"UPDATE waybill.waybill_outbox SET hold = 5, held_since = now()",
			"DELETE FROM waybill.waybill_outbox",
		} {
			if _, err := db.pool.Exec(ctx, sql); err != nil {
				return 0, nil, err
			}
		}
	}
	if _, err := db.pool.Exec(ctx, "VACUUM ANALYZE waybill.waybill_outbox"); err != nil {
		return 0, nil, err
	}
	n := int(s.paced.Seconds() * queueRate)
	ones, c := newClocks(1), newClocks(n)
	queue, err := table.New(db.outbox, table.Options{})
	if err != nil {
		return 0, nil, err
	}
	con, err := consumer.New(queue, consumer.Options{})
	if err != nil {
		return 0, nil, err
	}
	err = con.Handle(waybill.Subscription{Queue: "mails", Concurrency: 10}, waybill.Handler{Name: "bench.topic", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		if i := binary.BigEndian.Uint64(d.Envelope.Body); i == 0 {
			ones.note(ones.arrived, 0, time.Now())
		} else {
			c.note(c.arrived, i-1, time.Now())
		}
		return 0, nil
	}})
	if err != nil {
		return 0, nil, err
	}
	runCtx, stop := context.WithCancel(ctx)
	g, runCtx := errgroup.WithContext(runCtx)
	g.Go(func() error { return con.Run(runCtx) })
	defer func() { stop(); err = errors.Join(err, g.Wait(), queue.Close(ctx)) }()
	stage := func(to *clocks, at, number uint64) error {
		m := waybill.RawMessage("bench.topic", "application/octet-stream", binary.BigEndian.AppendUint64(nil, number), waybill.Routes("mails"))
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { _, err := db.outbox.Stage(ctx, tx, m); return err })
		to.note(to.sent, at, time.Now())
		return err
	}
	await := func(to *clocks) error {
		select {
		case <-to.all:
			return nil
		case <-time.After(5 * time.Minute):
			return errors.New("messages did not arrive within five minutes")
		case <-runCtx.Done():
			return context.Cause(runCtx)
		}
	}
	if err := stage(ones, 0, 0); err != nil {
		return 0, nil, err
	}
	if err := await(ones); err != nil {
		return 0, nil, err
	}
	pace := time.NewTicker(time.Second / queueRate)
	defer pace.Stop()
	for i := range n {
		<-pace.C
		if err := stage(c, uint64(i), uint64(i)+1); err != nil {
			return 0, nil, err
		}
	}
	if err := await(c); err != nil {
		return 0, nil, err
	}
	return percentile(ones.latencies(), 0.5), c.latencies(), nil
}
