package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/postgres"
)

const (
	handlers = 10
	prefetch = 2 * handlers
)

// consume compares a consumer with inbox, one transaction a message, with a hand-written loop that does the same: mark,
// effect, commit, ack, ten at a time.
func consume(ctx context.Context, env *servers, s scale) ([]row, error) {
	r, err := pairs(ctx, s.pairs,
		func(ctx context.Context) (sample, error) { return consumed(ctx, env, s.consume, handLoop) },
		func(ctx context.Context) (sample, error) { return consumed(ctx, env, s.consume, inboxLoop) })
	r.name, r.unit, r.target = "consume through the inbox, one transaction a message, against a hand-written loop", "msg/s", "≥ 0.90"
	return []row{r}, err
}

// consumed fills the queue, then measures loop until it has handled n messages, and checks their effects.
func consumed(ctx context.Context, env *servers, n int, loop func(context.Context, *servers, *database, func()) error) (s sample, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return s, err
	}
	defer db.close(ctx)
	const queue = "bench.consume"
	bus, err := env.bus(ctx)
	if err != nil {
		return s, err
	}
	defer bus.Close(ctx) //nolint:errcheck // done with it
	in, err := bus.Subscribe(ctx, core.Subscription{Queue: queue, Bindings: []string{"#"}, Prefetch: 1})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, env.drop(queue)) }() // else it takes a copy of what others publish later
	if err := in.Close(ctx); err != nil {
		return s, err
	}
	stamper, err := core.NewStamper(core.StamperOptions{Source: "/bench"})
	if err != nil {
		return s, err
	}
	for left := n; left > 0; left -= 1000 {
		rows, err := stamper.Stamp(ctx, messages(min(left, 1000)))
		if err != nil {
			return s, err
		}
		batch := make([]waybill.Envelope, len(rows))
		for i := range rows {
			batch[i] = rows[i].Envelope
		}
		if err := bus.Publish(ctx, batch).FirstErr(); err != nil {
			return s, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	runCtx, stop := context.WithCancel(ctx)
	defer stop()
	var handled atomic.Int64
	all := make(chan struct{})
	before, started := readCPU(), time.Now()
	g, runCtx := errgroup.WithContext(runCtx)
	g.Go(func() error {
		return loop(runCtx, env, db, func() {
			if handled.Add(1) == int64(n) {
				close(all)
			}
		})
	})
	select {
	case <-all:
	case <-runCtx.Done():
		return s, errors.Join(g.Wait(), ctx.Err())
	}
	s = sample{value: float64(n) / time.Since(started).Seconds(), msgs: n, cpu: readCPU().since(before)}
	stop()
	if err := g.Wait(); err != nil {
		return s, err
	}
	var effects int
	if err := db.pool.QueryRow(ctx, `SELECT count(*) FROM effects`).Scan(&effects); err != nil {
		return s, err
	}
	if effects != n {
		return s, errors.New("effects are missing or doubled")
	}
	return s, nil
}

func inboxLoop(ctx context.Context, env *servers, db *database, done func()) error {
	marks, err := postgres.NewInbox(db.pool, postgres.InboxOptions{})
	if err != nil {
		return err
	}
	box, err := inbox.New(marks, "bench", inbox.Options{})
	if err != nil {
		return err
	}
	bus, err := env.bus(ctx)
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // done with it
	count := func(next waybill.HandleFunc) waybill.HandleFunc {
		return func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			status, err := next(ctx, d)
			if err == nil {
				done()
			}
			return status, err
		}
	}
	c, err := consumer.New(bus, consumer.Options{Middleware: []waybill.Middleware{count}})
	if err != nil {
		return err
	}
	topic := waybill.NewTopic("bench.topic", waybill.Bytes(""))
	err = c.Handle(waybill.Subscription{Queue: "bench.consume", Bindings: []string{"#"}, Concurrency: handlers, Prefetch: prefetch},
		inbox.Handler(box, topic, func(ctx context.Context, tx pgx.Tx, _ []byte) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects (id) VALUES ($1)`, "an effect")
			return err
		}))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// handLoop is what a team writes by hand: ten goroutines, each mark, effect, commit, ack.
func handLoop(ctx context.Context, env *servers, db *database, done func()) error {
	conn, err := amqp.Dial(env.url)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return errors.Join(err, conn.Close())
	}
	in, err := ch.ConsumeWithContext(ctx, "bench.consume", "", false, false, false, false, nil)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	var wg sync.WaitGroup
	errs := make(chan error, handlers)
	for range handlers {
		wg.Go(func() {
			for d := range in {
				if err := handleByHand(context.WithoutCancel(ctx), db, &d); err != nil {
					errs <- err
					return
				}
				done()
			}
		})
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-errs:
	}
	err = errors.Join(err, conn.Close())
	wg.Wait()
	return err
}

func handleByHand(ctx context.Context, db *database, d *amqp.Delivery) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO hand_marks (consumer, source, id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, "bench", d.AppId, d.MessageId)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO effects (id) VALUES ($1)`, "an effect")
		return err
	})
	if err != nil {
		return err
	}
	return d.Ack(false)
}
