package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
	"github.com/waybill-go/waybill/transport/memory"
)

// workerEnv holds the database's path in the worker's environment.
const workerEnv = "WAYBILL_QUICKSTART_WORKER"

// The worker prints one letter a happening, for the parent to count: a letter that it printed before it was killed
// stays true.
const (
	sawPublished = 'P'
	sawDelivered = 'D'
	sawDuplicate = 'd'
)

// runWorker is the other half of a service: a relay that publishes what the outbox holds, and a consumer that bills.
func runWorker(ctx context.Context, path string) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	store, err := sqlite.Open(ctx, path, sqlite.Options{Source: "/orders", BusyTimeout: busyTimeout})
	if err != nil {
		return err
	}
	defer store.Close(context.WithoutCancel(ctx)) //nolint:errcheck // ending anyway

	// ConfirmHandled: a message leaves the outbox when it was handled. Memory dies with the process, the outbox
	// does not.
	bus, err := memory.New(memory.Options{ConfirmHandled: true})
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // in memory, nothing can fail
	r, err := relay.New(store, bus, relay.Options{
		BatchSize: 50, Lease: 2 * time.Second, PublishTimeout: time.Second, PollMax: time.Second, Logger: logger,
		Hooks: relay.Hooks{OnPublished: func(relay.Event) { saw(sawPublished) }},
	})
	if err != nil {
		return err
	}

	billing, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		return err
	}
	c, err := consumer.New(bus, consumer.Options{Logger: logger, Middleware: []waybill.Middleware{countDeliveries}})
	if err != nil {
		return err
	}
	err = c.Handle(waybill.Subscription{Queue: "billing.orders", Bindings: []string{"orders.*"}}, inbox.Handler(billing, OrderPlaced, bill))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return c.Run(ctx) })
	return g.Wait()
}

// bill is the effect: it writes in the transaction that also marks the message as handled.
func bill(ctx context.Context, tx *sql.Tx, o Order) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO bills (order_id, cents) VALUES (?, ?)`, o.ID, o.Cents); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	return nil
}

func countDeliveries(next waybill.HandleFunc) waybill.HandleFunc {
	return func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		saw(sawDelivered)
		status, err := next(ctx, d)
		if err == nil && status == waybill.HandlerDuplicate {
			saw(sawDuplicate)
		}
		return status, err
	}
}

func saw(what byte) {
	if _, err := os.Stdout.Write([]byte{what}); err != nil && !errors.Is(err, os.ErrClosed) {
		os.Exit(1) // the parent is gone
	}
}
