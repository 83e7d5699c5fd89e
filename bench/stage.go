package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

const stageBody = 256

// stageCost compares one transaction with a business insert three ways: bare, with a hand-written array insert into an
// outbox table of the simplest kind, and with Stage. The three take turns within one loop, so that noise meets all.
func stageCost(ctx context.Context, env *servers, s scale) ([]row, error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	var rows []row
	for _, n := range []int{1, 10, 100, 500} {
		txs := max(s.txs/max(n/10, 1), 10)
		var bare, hand, ours []sample
		for range s.pairs {
			b, h, o, err := stageTurns(ctx, db, n, txs)
			if err != nil {
				return nil, err
			}
			bare, hand, ours = append(bare, sample{value: b}), append(hand, sample{value: h}), append(ours, sample{value: o})
		}
		target := map[int]string{1: "≤ 1.15", 100: "≤ 1.50"}[n]
		if target == "" {
			target = "reported"
		}
		rows = append(rows,
			row{name: fmt.Sprintf("transaction that stages %d, against a hand-written array insert", n), ours: ours, raw: hand, unit: "µs", target: target},
			row{name: fmt.Sprintf("transaction that stages %d, against none staged", n), ours: ours, raw: bare, unit: "µs", target: "reported"})
	}
	return rows, nil
}

// stageTurns returns the median seconds of each kind of transaction.
func stageTurns(ctx context.Context, db *database, n, txs int) (bare, hand, ours float64, err error) {
	kinds := []func(pgx.Tx) error{
		func(pgx.Tx) error { return nil },
		func(tx pgx.Tx) error { return handStage(ctx, tx, n) },
		func(tx pgx.Tx) error {
			_, err := db.outbox.Stage(ctx, tx, messages(n)...)
			return err
		},
	}
	took := make([][]time.Duration, len(kinds))
	for range txs {
		for k, f := range kinds {
			started := time.Now()
			err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
				if err := business(ctx, tx); err != nil {
					return err
				}
				return f(tx)
			})
			if err != nil {
				return 0, 0, 0, err
			}
			took[k] = append(took[k], time.Since(started))
		}
	}
	_, err = db.pool.Exec(ctx, `TRUNCATE business, hand_outbox`)
	m := func(k int) float64 { return percentile(took[k], 0.5).Seconds() }
	return m(0), m(1), m(2), err
}

func business(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `INSERT INTO business (what) VALUES ($1)`, "an order")
	return err
}

func messages(n int) []waybill.Message {
	msgs := make([]waybill.Message, n)
	for i := range msgs {
		msgs[i] = waybill.RawMessage("bench.topic", "application/octet-stream", make([]byte, stageBody))
	}
	return msgs
}

// handStage is what a team writes by hand: id, topic, key, headers, body, and a partial index to poll by.
func handStage(ctx context.Context, tx pgx.Tx, n int) error {
	ids, topics, keys, headers, bodies := make([]uuid.UUID, n), make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	for i := range n {
		ids[i], topics[i], headers[i], bodies[i] = uuid.Must(uuid.NewV7()), "bench.topic", `{"source":"/bench","type":"bench.topic"}`, make([]byte, stageBody)
	}
	_, err := tx.Exec(ctx, `INSERT INTO hand_outbox (id, topic, key, headers, body)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[], $5::bytea[])`, ids, topics, keys, headers, bodies)
	return err
}

// stageConcurrent measures commits a second of 16 producers: without staging; staging with a relay asleep (the messages
// are due tomorrow, so it stays asleep), with Stage and through the unit of work; staging what is due now while no
// relay runs, so that each looks in vain whether one sleeps; with a hand-written insert instead; and staging with a
// relay that drains to nowhere, wake-up on against off.
func stageConcurrent(ctx context.Context, env *servers, s scale) ([]row, error) {
	none := func(ctx context.Context) (sample, error) { return produce(ctx, env, s, load{}) }
	asleep, err := pairs(ctx, s.pairs, none, func(ctx context.Context) (sample, error) {
		return produce(ctx, env, s, load{stage: true, delay: 24 * time.Hour, relay: true})
	})
	if err != nil {
		return nil, err
	}
	asleep.name, asleep.unit, asleep.target = "commits of 16 producers that stage, relay asleep, against without staging", "commits/s", "≥ 0.65"
	work, err := pairs(ctx, s.pairs, none, func(ctx context.Context) (sample, error) {
		return produce(ctx, env, s, load{unit: true, delay: 24 * time.Hour, relay: true})
	})
	if err != nil {
		return nil, err
	}
	work.name, work.unit, work.target = "commits of 16 producers through the unit of work, relay asleep, against without staging", "commits/s", "≥ 0.75"
	down, err := pairs(ctx, s.pairs, none, func(ctx context.Context) (sample, error) { return produce(ctx, env, s, load{stage: true}) })
	if err != nil {
		return nil, err
	}
	down.name, down.unit, down.target = "commits of 16 producers that stage what is due now, no relay, against without staging", "commits/s", "reported"
	hand, err := pairs(ctx, s.pairs, none, func(ctx context.Context) (sample, error) { return produce(ctx, env, s, load{hand: true}) })
	if err != nil {
		return nil, err
	}
	hand.name, hand.unit, hand.target = "commits of 16 producers with a hand-written insert, against without", "commits/s", "reported"
	draining, err := pairs(ctx, s.pairs,
		func(ctx context.Context) (sample, error) {
			return produce(ctx, env, s, load{stage: true, relay: true, notifyOff: true})
		},
		func(ctx context.Context) (sample, error) { return produce(ctx, env, s, load{stage: true, relay: true}) })
	draining.name, draining.unit, draining.target = "commits of 16 producers, relay draining, wake-up on against off", "commits/s", "≥ 0.95"
	return []row{asleep, work, down, hand, draining}, err
}

// load is what producers and the relay do.
type load struct {
	stage, unit, hand, relay, notifyOff bool
	delay                               time.Duration
}

// transaction runs one transaction of a producer.
func (l *load) transaction(ctx context.Context, db *database) error {
	if l.unit {
		unit := db.outbox.UnitOfWork()
		return unit.Do(ctx, func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(business(ctx, tx), unit.Stage(ctx, l.message()))
		})
	}
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if err := business(ctx, tx); err != nil || !l.stage && !l.hand {
			return err
		}
		if l.hand {
			return handStage(ctx, tx, 1)
		}
		_, err := db.outbox.Stage(ctx, tx, l.message())
		return err
	})
}

func (l *load) message() waybill.Message {
	m := messages(1)[0]
	m.Delay = l.delay
	return m
}

func produce(ctx context.Context, env *servers, s scale, l load) (_ sample, err error) {
	opts := postgres.Options{DisableNotify: l.notifyOff}
	db, err := env.database(ctx, opts)
	if err != nil {
		return sample{}, err
	}
	defer db.close(ctx)
	relayCtx, stop := context.WithCancel(ctx)
	defer stop()
	relays, relayCtx := errgroup.WithContext(relayCtx)
	if l.relay {
		outbox, err := db.open(opts)
		if err != nil {
			return sample{}, err
		}
		r, err := relay.New(outbox, nowhere{}, relay.Options{})
		if err != nil {
			return sample{}, err
		}
		relays.Go(func() error { return r.Run(relayCtx) })
	}
	timed, cancel := context.WithTimeout(ctx, s.load)
	defer cancel()
	var commits atomic.Int64
	before, started := readCPU(), time.Now()
	g, gctx := errgroup.WithContext(timed)
	for range 16 {
		g.Go(func() error {
			for gctx.Err() == nil {
				if err := l.transaction(ctx, db); err != nil {
					return err
				}
				commits.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	took := time.Since(started)
	cpu := readCPU().since(before)
	stop()
	n := int(commits.Load())
	return sample{value: float64(n) / took.Seconds(), msgs: n, cpu: cpu}, errors.Join(err, relays.Wait())
}

// nowhere confirms everything at once.
type nowhere struct{}

func (nowhere) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	return make(core.Results, len(batch))
}

func (nowhere) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true}
}
