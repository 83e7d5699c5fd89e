package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// Databases and brokers are rarely on the machine of the program: 0.3 to 2 ms of round trip is usual, 5 ms common. So
// the main benchmarks run again through proxies that delay what flows, and do not bound its rate.
var distances = []time.Duration{time.Millisecond, 5 * time.Millisecond}

// away returns the servers as a program sees them whose round trips take d longer.
func (s *servers) away(d time.Duration) (far *servers, end func(), err error) {
	pg, err := testenv.StartProxy(s.pg.Addr())
	if err != nil {
		return nil, nil, err
	}
	mq, err := testenv.StartProxy(s.mq.Addr())
	if err != nil {
		pg.Close()
		return nil, nil, err
	}
	pg.Latency(d / 2)
	mq.Latency(d / 2)
	return &servers{pg: s.pg, mq: s.mq, url: mq.URL(s.url), proxy: pg}, func() { pg.Close(); mq.Close() }, nil
}

// from measures at each distance. Near are the servers themselves.
func from(measure func(ctx context.Context, near, far *servers, s scale) ([]row, error)) func(context.Context, *servers, scale) ([]row, error) {
	return func(ctx context.Context, env *servers, s scale) (rows []row, err error) {
		for _, d := range distances {
			far, end, err := env.away(d)
			if err != nil {
				return nil, err
			}
			some, err := measure(ctx, env, far, s)
			end()
			if err != nil {
				return nil, err
			}
			for i := range some {
				some[i].name = fmt.Sprintf("%s away: %s", d, some[i].name)
			}
			rows = append(rows, some...)
		}
		return rows, nil
	}
}

func farDrain(ctx context.Context, _, far *servers, s scale) ([]row, error) {
	return drainRow(ctx, far, s, drainCase{name: "drain, 256-byte bodies", target: "≥ 0.9", backlog: s.backlog, body: 256, relays: 1})
}

// farLatency compares a relay with a loop by hand, both far from database and broker. Producer and consumer are near.
func farLatency(ctx context.Context, near, far *servers, s scale) (rows []row, err error) {
	for _, rate := range []int{200, 400} {
		r := row{name: fmt.Sprintf("commit to arrival at %d msg/s, p50, against LISTEN, SELECT and publish by hand", rate), unit: "ms", target: "≤ 1.15"}
		for range s.pairs {
			hand, err := farPaced(ctx, near, far, s, rate, runByHand, func(ctx context.Context, _ *database, tx pgx.Tx, body []byte) error {
				_, err := tx.Exec(ctx, `INSERT INTO hand_outbox (id, topic, body) VALUES ($1, 'bench.topic', $2)`, uuid.Must(uuid.NewV7()), body)
				if err == nil {
					_, err = tx.Exec(ctx, `NOTIFY hand_outbox`)
				}
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("by hand: %w", err)
			}
			ours, err := farPaced(ctx, near, far, s, rate, runRelay, func(ctx context.Context, db *database, tx pgx.Tx, body []byte) error {
				_, err := db.outbox.Stage(ctx, tx, waybill.RawMessage("bench.topic", "application/octet-stream", body))
				return err
			})
			if err != nil {
				return nil, err
			}
			r.raw = append(r.raw, sample{value: percentile(hand, 0.5).Seconds()})
			r.ours = append(r.ours, sample{value: percentile(ours, 0.5).Seconds()})
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// farPaced commits messages beside database and broker, and has run carry them from afar.
func farPaced(ctx context.Context, near, far *servers, s scale, rate int, run func(context.Context, *servers, *pgxpool.Pool) error,
	stage func(ctx context.Context, db *database, tx pgx.Tx, body []byte) error,
) (_ []time.Duration, err error) {
	db, err := near.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	pool, err := pgxpool.New(ctx, far.proxy.URL(db.pg.DSN))
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	runCtx, stop := context.WithCancel(ctx)
	g, runCtx := errgroup.WithContext(runCtx)
	g.Go(func() error { return run(runCtx, far, pool) })
	defer func() { stop(); err = errors.Join(err, g.Wait()) }()
	return paced(ctx, near, s, rate, func(i uint64, body []byte, c *clocks) error {
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
			if err := business(ctx, tx); err != nil {
				return err
			}
			return stage(ctx, db, tx, body)
		})
		c.note(c.sent, i, time.Now())
		return err
	})
}

func runRelay(ctx context.Context, far *servers, pool *pgxpool.Pool) error {
	outbox, err := postgres.NewOutbox(pool, postgres.Options{Source: "/bench"})
	if err != nil {
		return err
	}
	bus, err := far.bus(ctx)
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything has arrived
	r, err := relay.New(outbox, bus, relay.Options{})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// runByHand is what a team writes by hand, at its best: it waits for a notification, selects the new rows, publishes,
// and deletes the confirmed ones on another connection.
func runByHand(ctx context.Context, far *servers, pool *pgxpool.Pool) (err error) {
	listener, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig.Copy())
	if err != nil {
		return err
	}
	defer listener.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it only listened
	if _, err := listener.Exec(ctx, `LISTEN hand_outbox`); err != nil {
		return err
	}
	conn, err := amqp.Dial(far.url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return err
	}
	type sent struct {
		seqs     []int64
		confirms []*amqp.DeferredConfirmation
	}
	batches := make(chan sent, 1000)
	var g errgroup.Group
	g.Go(func() error { // the settles, beside
		for b := range batches {
			for _, c := range b.confirms {
				if ok, err := c.WaitContext(ctx); err != nil || !ok {
					return nil //nolint:nilerr // it ends
				}
			}
			if _, err := pool.Exec(ctx, `DELETE FROM hand_outbox WHERE seq = ANY($1)`, b.seqs); err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
	defer func() { close(batches); err = errors.Join(err, g.Wait()) }()
	last := int64(0)
	for ctx.Err() == nil {
		var b sent
		rows, err := pool.Query(ctx, `SELECT seq, body FROM hand_outbox WHERE seq > $1 ORDER BY seq LIMIT 500`, last)
		for err == nil && rows.Next() {
			var body []byte
			if err = rows.Scan(&last, &body); err != nil {
				break
			}
			var c *amqp.DeferredConfirmation
			c, err = ch.PublishWithDeferredConfirm("bench", "bench.topic", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
			b.seqs, b.confirms = append(b.seqs, last), append(b.confirms, c)
		}
		if err == nil {
			err = rows.Err()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case len(b.seqs) > 0:
			batches <- b
			continue
		}
		if _, err := listener.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// farStage compares a transaction with a business insert and one message: a hand-written insert, Stage, and the
// partition of work.
func farStage(ctx context.Context, _, far *servers, s scale) ([]row, error) {
	db, err := far.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	stage := row{name: "transaction that stages 1, against a hand-written insert", unit: "µs", target: "≤ 1.15"}
	unit := row{name: "transaction of the unit of work that stages 1, against a hand-written insert", unit: "µs", target: "≤ 0.7"}
	for range s.pairs {
		_, hand, ours, err := stageTurns(ctx, db, 1, s.txs)
		if err != nil {
			return nil, err
		}
		var took []time.Duration
		for range s.txs {
			started := time.Now()
			if err := (&load{unit: true}).transaction(ctx, db); err != nil {
				return nil, err
			}
			took = append(took, time.Since(started))
		}
		stage.raw, stage.ours = append(stage.raw, sample{value: hand}), append(stage.ours, sample{value: ours})
		unit.raw, unit.ours = append(unit.raw, sample{value: hand}), append(unit.ours, sample{value: percentile(took, 0.5).Seconds()})
	}
	return []row{stage, unit}, nil
}
