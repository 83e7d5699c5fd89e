package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/postgres"
)

const (
	batchSize    = 100
	batchWorkers = 2
	batchWait    = 5 * time.Millisecond
)

// consumeBatch compares a consumer in batch mode with a hand-written loop that does the same: 100 messages a
// transaction, one statement for the marks, one for the effects, one multiple ack; two at a time.
func consumeBatch(ctx context.Context, env *servers, s scale) ([]row, error) {
	n := 3 * s.consume
	r, err := pairs(ctx, s.pairs,
		func(ctx context.Context) (sample, error) { return consumed(ctx, env, n, handBatchLoop) },
		func(ctx context.Context) (sample, error) { return consumed(ctx, env, n, inboxBatchLoop) })
	r.name, r.unit, r.target = "consume through the inbox, 100 messages a transaction, against a hand-written loop", "msg/s", "≥ 0.90"
	return []row{r}, err
}

func inboxBatchLoop(ctx context.Context, env *servers, db *database, done func()) error {
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
	c, err := consumer.New(bus, consumer.Options{})
	if err != nil {
		return err
	}
	topic := waybill.NewTopic("bench.topic", waybill.Bytes(""))
	h := inbox.BatchHandler(box, topic, func(ctx context.Context, tx pgx.Tx, items []inbox.Item[[]byte]) error {
		ids := make([]string, len(items))
		for i := range items {
			ids[i] = "an effect"
		}
		_, err := tx.Exec(ctx, `INSERT INTO effects (id) SELECT unnest($1::text[])`, ids)
		return err
	}, inbox.BatchOptions{Size: batchSize, Wait: batchWait})
	batch := h.Batch
	h.Batch = func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
		statuses, err := batch(ctx, ds)
		for range statuses {
			done()
		}
		return statuses, err
	}
	single := h.Handle // for a message that comes alone
	h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		status, err := single(ctx, d)
		if err == nil {
			done()
		}
		return status, err
	}
	if err := c.Handle(waybill.Subscription{Queue: "bench.consume", Bindings: []string{"#"}, Concurrency: batchWorkers}, h); err != nil {
		return err
	}
	return c.Run(ctx)
}

// handBatchLoop is what a team writes by hand: two goroutines, each with a channel of its own, since one ack is for all
// deliveries before it.
func handBatchLoop(ctx context.Context, env *servers, db *database, done func()) error {
	conn, err := amqp.Dial(env.url)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, batchWorkers)
	for range batchWorkers {
		ch, err := conn.Channel()
		if err == nil {
			err = ch.Qos(2*batchSize, 0, false)
		}
		var in <-chan amqp.Delivery
		if err == nil {
			in, err = ch.ConsumeWithContext(ctx, "bench.consume", "", false, false, false, false, nil)
		}
		if err != nil {
			err = errors.Join(err, conn.Close())
			wg.Wait()
			return err
		}
		wg.Go(func() {
			for {
				ds := gather(in)
				if ds == nil {
					return
				}
				if err := handleBatchByHand(context.WithoutCancel(ctx), db, ds); err != nil {
					errs <- err
					return
				}
				for range ds {
					done()
				}
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

// gather waits for a message, then takes those that come within batchWait, up to a batch; nil at the end.
func gather(in <-chan amqp.Delivery) []amqp.Delivery {
	d, ok := <-in
	if !ok {
		return nil
	}
	ds := append(make([]amqp.Delivery, 0, batchSize), d)
	timer := time.NewTimer(batchWait)
	defer timer.Stop()
	for len(ds) < batchSize {
		select {
		case d, ok := <-in:
			if !ok {
				return ds
			}
			ds = append(ds, d)
		case <-timer.C:
			return ds
		}
	}
	return ds
}

func handleBatchByHand(ctx context.Context, db *database, ds []amqp.Delivery) error {
	sources, ids := make([]string, len(ds)), make([]string, len(ds))
	for i := range ds {
		sources[i], ids[i] = ds[i].AppId, ds[i].MessageId
	}
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO hand_marks (consumer, source, id) SELECT 'bench', * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING`, sources, ids)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		effects := make([]string, tag.RowsAffected())
		for i := range effects {
			effects[i] = "an effect"
		}
		_, err = tx.Exec(ctx, `INSERT INTO effects (id) SELECT unnest($1::text[])`, effects)
		return err
	})
	if err != nil {
		return err
	}
	return ds[len(ds)-1].Ack(true)
}
