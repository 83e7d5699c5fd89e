package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// runAudit is the single reader of its queue. It writes down every arrival, duplicates too, before it takes the next:
// the table then holds the order in which messages reached the queue. It uses the transport without the consumer
// runner, whose retries would change that order.
func runAudit(ctx context.Context, cfg config) error {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	bus, err := cfg.bus(ctx)
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // stopping anyway
	in, err := bus.Subscribe(ctx, core.SubscriptionOf(&auditQueue))
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		ds, err := in.Receive(ctx, 1)
		if err != nil {
			if errors.Is(err, waybill.ErrClosed) {
				return err
			}
			pause(ctx)
			continue
		}
		for _, d := range ds {
			if err := writeDown(ctx, pool, d); err != nil {
				return err
			}
			if err := in.Settle(ctx, []core.Ack{core.AckDone(d)}).FirstErr(); err != nil {
				slog.Warn("arrival not acknowledged; it will come again", "error", err)
			}
		}
	}
	return nil
}

// writeDown insists: going on to the next message without it would make a gap.
func writeDown(ctx context.Context, pool *pgxpool.Pool, d *waybill.Delivery) error {
	o, err := OrderPlaced.Decode(&d.Envelope)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err = insertArrival(ctx, pool, o, d.Redeliveries != 0); err == nil {
			return nil
		}
		slog.Warn("arrival not written; trying again", "error", err)
		pause(ctx)
	}
	return err
}

func insertArrival(ctx context.Context, pool *pgxpool.Pool, o Order, again bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := pool.Exec(ctx, `INSERT INTO arrivals (customer, n, again) VALUES ($1, $2, $3)`, o.Customer, o.N, again)
	return err
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(200 * time.Millisecond):
	}
}
