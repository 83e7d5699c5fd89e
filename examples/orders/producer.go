package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres"
)

const producers = 4

var errChangedMyMind = errors.New("the customer changed their mind")

// runProducer places orders until ctx ends. It needs the database alone: a broker that is down does not concern it.
func runProducer(ctx context.Context, cfg config) error {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	outbox, err := cfg.outbox(pool)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for range producers {
		g.Go(func() error {
			pace := time.NewTicker(time.Second * producers / time.Duration(cfg.rate))
			defer pace.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-pace.C:
				}
				if err := placeOrder(ctx, outbox); err != nil && !errors.Is(err, errChangedMyMind) && ctx.Err() == nil {
					// the customer sees an error; no row, no message
					slog.Warn("order not placed", "error", err)
				}
			}
		})
	}
	return g.Wait()
}

// placeOrder writes an order and stages its message in one transaction: both exist, or neither. The update of the
// customer's row makes the orders of one customer meet, which is what gives them an order.
func placeOrder(ctx context.Context, outbox *postgres.Outbox) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	unit := outbox.UnitOfWork()
	return unit.Do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		o := Order{ID: waybill.NewID(), Customer: fmt.Sprintf("customer-%d", rand.N(customers)), Cents: 100 + rand.N(10_000)}
		err := tx.QueryRow(ctx, `UPDATE customers SET orders = orders + 1 WHERE id = $1 RETURNING orders`, o.Customer).Scan(&o.N)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id, customer, n, cents) VALUES ($1, $2, $3, $4)`, o.ID, o.Customer, o.N, o.Cents); err != nil {
			return err
		}
		if err := unit.Stage(ctx, OrderPlaced.Message(o, waybill.Key(o.Customer))); err != nil {
			return err
		}
		if rand.N(10) == 0 {
			return errChangedMyMind // rolled back, and the message with it
		}
		return nil
	})
}
