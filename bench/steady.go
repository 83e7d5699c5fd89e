package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

const steadyRate = 300 // messages a second

// noting is a publisher that does nothing but note when a message arrived. A message without a number is ballast.
type noting struct {
	nowhere
	c *clocks
	n chan int // gets the size of each batch of ballast
}

func (p *noting) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	now, ballast := time.Now(), 0
	for i := range batch {
		if len(batch[i].Body) < 8 {
			ballast++
			continue
		}
		p.c.note(p.c.arrived, binary.BigEndian.Uint64(batch[i].Body), now)
	}
	if ballast > 0 {
		p.n <- ballast
	}
	return make(core.Results, len(batch))
}

// steadyCase has the load beside which messages are staged at a steady rate. There is no broker: so the cost of
// Postgres shows best.
type steadyCase struct {
	passed      int           // messages that pass before
	oldSnapshot bool          // and a session holds a snapshot that is older than they are
	timeout     time.Duration // statement_timeout of the role
	open        bool          // a transaction that staged messages of other keys stays open
}

// latencyOldSnapshot compares the time from commit to publisher after many messages have passed, with and without a
// session that holds an older snapshot, so that no vacuum removes what they left; and the same where the role's
// statements end after s.timeout.
func latencyOldSnapshot(ctx context.Context, env *servers, s scale) (rows []row, err error) {
	for _, timeout := range []time.Duration{0, s.timeout} {
		name := "after messages passed under an old snapshot"
		if timeout > 0 {
			name += fmt.Sprintf(", statement_timeout %s", timeout)
		}
		both, err := steadyRows(ctx, env, s, name, "≤ 1.5", "≤ 20 ms more",
			steadyCase{passed: s.passed, timeout: timeout}, steadyCase{passed: s.passed, timeout: timeout, oldSnapshot: true})
		if err != nil {
			return nil, err
		}
		rows = append(rows, both...)
	}
	return rows, nil
}

// latencyOpenTransaction compares the time from commit to publisher with and without a transaction that has staged, and
// stays open throughout.
func latencyOpenTransaction(ctx context.Context, env *servers, s scale) ([]row, error) {
	return steadyRows(ctx, env, s, "beside a transaction that staged and stays open", "≤ 1.2", "reported", steadyCase{}, steadyCase{open: true})
}

func steadyRows(ctx context.Context, env *servers, s scale, name, target50, target99 string, without, with steadyCase) ([]row, error) {
	p50 := row{name: fmt.Sprintf("commit to publisher at %d msg/s %s, p50, against without", steadyRate, name), unit: "ms", target: target50}
	p99 := row{name: fmt.Sprintf("commit to publisher at %d msg/s %s, p99, against without", steadyRate, name), unit: "ms", target: target99}
	for range s.pairs {
		for i, c := range []steadyCase{without, with} {
			ds, err := steady(ctx, env, s, c)
			if err != nil {
				return nil, err
			}
			for p, r := range map[float64]*row{0.5: &p50, 0.99: &p99} {
				if one := (sample{value: percentile(ds, p).Seconds()}); i == 0 {
					r.raw = append(r.raw, one)
				} else {
					r.ours = append(r.ours, one)
				}
			}
		}
	}
	return []row{p50, p99}, nil
}

// steady stages messages at a steady rate and returns how long each took from its commit to the publisher.
func steady(ctx context.Context, env *servers, s scale, c steadyCase) (_ []time.Duration, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	if c.timeout > 0 {
		sql := fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET statement_timeout = %d', current_database()); END $$", c.timeout.Milliseconds())
		if _, err := db.pool.Exec(ctx, sql); err != nil {
			return nil, err
		}
		db.pool.Reset() // for the connections of the pool, which are made anew
	}
	n := int(s.paced.Seconds() * steadyRate)
	to := &noting{c: newClocks(n), n: make(chan int, 1<<16)}
	r, err := relay.New(db.outbox, to, relay.Options{})
	if err != nil {
		return nil, err
	}
	runCtx, stop := context.WithCancel(ctx)
	g, runCtx := errgroup.WithContext(runCtx)
	g.Go(func() error { return r.Run(runCtx) })
	defer func() { stop(); err = errors.Join(err, g.Wait()) }()
	if c.oldSnapshot {
		end, err := holdSnapshot(ctx, db)
		if err != nil {
			return nil, err
		}
		defer end()
	}
	if err := pass(runCtx, db, to, c.passed); err != nil {
		return nil, err
	}
	if c.open {
		tx, err := db.pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		defer tx.Rollback(ctx) //nolint:errcheck // nothing of it is needed
		if err := stageKeyed(ctx, db, tx, "open", make([]byte, 1)); err != nil {
			return nil, err
		}
	}
	if err := stageSteadily(ctx, db, n, to.c); err != nil {
		return nil, err
	}
	select {
	case <-to.c.all:
		return to.c.latencies(), nil
	case <-time.After(time.Minute):
		return nil, errors.New("messages did not arrive within a minute")
	case <-runCtx.Done():
		return nil, context.Cause(runCtx)
	}
}

func holdSnapshot(ctx context.Context, db *database) (end func(), err error) {
	tx, err := db.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `SELECT count(*) FROM business`)
	return func() { _ = tx.Rollback(ctx) }, err
}

// pass stages ballast and waits until the relay has published it.
func pass(ctx context.Context, db *database, to *noting, n int) error {
	const batch = 500
	for done := 0; done < n; done += batch {
		msgs := make([]waybill.Message, min(batch, n-done))
		for i := range msgs {
			msgs[i] = waybill.RawMessage("bench.topic", "application/octet-stream", make([]byte, 1))
		}
		if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { _, err := db.outbox.Stage(ctx, tx, msgs...); return err }); err != nil {
			return err
		}
	}
	for left := n; left > 0; {
		select {
		case some := <-to.n:
			left -= some
		case <-time.After(time.Minute):
			return fmt.Errorf("%d of %d did not pass within a minute", left, n)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func stageKeyed(ctx context.Context, db *database, tx pgx.Tx, key string, body []byte) error {
	m := waybill.RawMessage("bench.topic", "application/octet-stream", body)
	m.Key = key
	_, err := db.outbox.Stage(ctx, tx, m)
	return err
}

// stageSteadily commits n messages of 1,000 keys, from four producers.
func stageSteadily(ctx context.Context, db *database, n int, c *clocks) error {
	pace := time.NewTicker(time.Second / steadyRate)
	defer pace.Stop()
	g, ctx := errgroup.WithContext(ctx)
	next := make(chan int)
	for range 4 {
		g.Go(func() error {
			for i := range next {
				body := binary.BigEndian.AppendUint64(make([]byte, 0, stageBody), uint64(i))
				err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
					if err := business(ctx, tx); err != nil {
						return err
					}
					return stageKeyed(ctx, db, tx, fmt.Sprintf("key-%d", i%1000), body[:stageBody])
				})
				c.note(c.sent, uint64(i), time.Now())
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(next)
		for i := range n {
			<-pace.C
			select {
			case next <- i:
			case <-ctx.Done():
				return nil
			}
		}
		return nil
	})
	return g.Wait()
}
