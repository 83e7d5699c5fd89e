package demo_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/demo"
)

// OP-07: a relay that is faster than the consumer gives no order up: the queue is bound before both.
func TestRelayBeforeConsumer(t *testing.T) {
	t.Parallel()
	d, err := demo.New(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Stage(t.Context(), demo.Troubles()...); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Relay.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); d.Bus.Depth(demo.Queue).Ready == 0; <-tick.C {
		if time.Now().After(end) {
			t.Fatal("not within 30 s: the order that its handler will give up is in its queue")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := d.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}
