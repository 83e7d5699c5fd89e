package kafka_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
)

// TR-14: the bus is deleted under a publisher and a receiver, and made anew. Both name the topic. The publisher goes on
// with the new one, and another receiver reads it from its beginning.
func TestBusIsDeleted(t *testing.T) {
	t.Parallel()
	address, opts := node(t), options()
	bus := dial(t, address, opts)
	r := subscribe(t, bus, "q", "#")
	if err := bus.Publish(t.Context(), batchOf(40)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for left := 40; left > 0; {
		ds := receive(t, r, 1)
		done(t, r, ds...)
		left -= len(ds)
	}
	admin := ask(t, address)
	if _, err := admin.DeleteTopic(t.Context(), opts.Bus); err != nil {
		t.Fatal(err)
	}
	named := func(err error) bool {
		return errors.Is(err, waybill.ErrMisconfigured) && strings.Contains(err.Error(), opts.Bus)
	}
	patience.Until(t, "the publisher names the topic", func() bool { return named(bus.Publish(t.Context(), batchOf(1)).FirstErr()) })
	if err := bus.Declare(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := batchOf(40)
	patience.Until(t, "the publisher goes on", func() bool { return bus.Publish(t.Context(), again).FirstErr() == nil })
	patience.Until(t, "the receiver names the topic", func() bool {
		_, err := r.Receive(t.Context(), 10)
		return named(err)
	})
	if err := r.Close(t.Context()); err != nil && waybill.ClassOf(err) != waybill.ClassOutage {
		t.Error(err)
	}
	r = subscribe(t, bus, "q", "#")
	got := map[string]bool{}
	for len(got) < len(again) {
		ds := receive(t, r, 1)
		done(t, r, ds...)
		for _, d := range ds {
			got[d.Envelope.ID] = true
		}
	}
}
