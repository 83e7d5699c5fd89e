package sharedtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// SmallEnvelope returns a complete small message.
func SmallEnvelope(id, topic string) waybill.Envelope {
	return waybill.Envelope{
		ID: id, Topic: topic, Type: topic, Source: "/test", ContentType: "application/json",
		Time: time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC),
		Body: []byte(`{"id":"` + id + `"}`),
	}
}

// SmallEnvelopes returns n of them: m00000, m00001, ...
func SmallEnvelopes(n int, topic string) []waybill.Envelope {
	list := make([]waybill.Envelope, n)
	for i := range list {
		list[i] = SmallEnvelope(fmt.Sprintf("m%05d", i), topic)
	}
	return list
}

// Publish publishes what must succeed.
func Publish(tb testing.TB, bus core.Publisher, batch ...waybill.Envelope) {
	tb.Helper()
	if err := bus.Publish(tb.Context(), batch).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

// Receive returns the next n deliveries, and waits out outages.
func Receive(tb testing.TB, r core.Receiver, n int) []*waybill.Delivery {
	tb.Helper()
	ctx, moved := patience.Context(tb.Context(), patience.Limit)
	var all []*waybill.Delivery
	for len(all) < n {
		got, err := r.Receive(ctx, n-len(all))
		if err != nil && (ctx.Err() != nil || waybill.ClassOf(err) != waybill.ClassOutage) {
			tb.Fatalf("after %d of %d deliveries: %v", len(all), n, err)
		}
		if all = append(all, got...); len(got) > 0 {
			moved()
		}
	}
	return all
}

// Settle settles what must succeed.
func Settle(tb testing.TB, r core.Receiver, acks ...core.Ack) {
	tb.Helper()
	if err := r.Settle(tb.Context(), acks).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

// IDs returns the ids of the messages, with spaces between them.
func IDs(list []*waybill.Delivery) string {
	var s []string
	for _, d := range list {
		s = append(s, d.Envelope.ID)
	}
	return strings.Join(s, " ")
}

// CloseLater closes a transport or a receiver at the end of the test. An error only gets into its log.
func CloseLater(tb testing.TB, c interface{ Close(context.Context) error }) {
	tb.Helper()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience.For(10*time.Second))
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Logf("close: %v", err)
		}
	})
}
