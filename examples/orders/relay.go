package main

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/relay"
)

// A relay that is killed is found by its connection, at once; one that hangs, or whose network is gone, is waited for
// until its lease is over. The defaults (10 s and 30 s) suit a service whose relays are not killed every few seconds.
const (
	lease          = 6 * time.Second
	publishTimeout = 3 * time.Second
	heartbeat      = 2 * time.Second
)

// runRelay moves messages from the outbox to the broker until ctx ends. Run as many of them as you like.
func runRelay(ctx context.Context, cfg config) error {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	outbox, err := cfg.outbox(pool)
	if err != nil {
		return err
	}
	bus, err := cfg.bus(ctx)
	if err != nil {
		return err
	}
	defer bus.Close(context.WithoutCancel(ctx)) //nolint:errcheck // stopping anyway
	r, err := relay.New(outbox, bus, relay.Options{
		Lease: lease, PublishTimeout: publishTimeout, PollMax: time.Second,
		Hooks: relay.Hooks{OnPublished: func(relay.Event) { saw(sawPublished) }},
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
