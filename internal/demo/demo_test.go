package demo_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/waybill-go/waybill/internal/demo"
	"github.com/waybill-go/waybill/internal/patience"
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
	patience.Until(t, "the order that its handler will give up is in its queue", func() bool { return d.Bus.Depth(demo.Queue).Ready > 0 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := d.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}
