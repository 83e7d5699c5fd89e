package rabbitmq_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// quiet drops the log.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func dial(tb testing.TB, url string, opts rabbitmq.Options) *rabbitmq.Transport {
	tb.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet()
	}
	bus, err := rabbitmq.Dial(tb.Context(), url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, bus)
	return bus
}

func closeLater(tb testing.TB, c interface{ Close(context.Context) error }) {
	tb.Helper()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Logf("close: %v", err)
		}
	})
}

func subscribe(tb testing.TB, bus *rabbitmq.Transport, sub core.Subscription) core.Receiver {
	tb.Helper()
	r, err := bus.Subscribe(tb.Context(), sub)
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, r)
	return r
}

// envelope returns a complete small message.
func envelope(id, topic string) waybill.Envelope {
	return waybill.Envelope{
		ID: id, Topic: topic, Type: topic, Source: "/test", ContentType: "application/json",
		Time: time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC),
		Body: []byte(`{"id":"` + id + `"}`),
	}
}

func envelopes(n int, topic string) []waybill.Envelope {
	list := make([]waybill.Envelope, n)
	for i := range list {
		list[i] = envelope(fmt.Sprintf("m%05d", i), topic)
	}
	return list
}

// receive returns the next n deliveries, or fails after a while.
func receive(tb testing.TB, r core.Receiver, n int) []*waybill.Delivery {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	var all []*waybill.Delivery
	for len(all) < n {
		got, err := r.Receive(ctx, n-len(all))
		if err != nil && (ctx.Err() != nil || waybill.ClassOf(err) != waybill.ClassOutage) {
			tb.Fatalf("after %d of %d deliveries: %v", len(all), n, err)
		}
		all = append(all, got...)
	}
	return all
}

// nothing fails the test if r delivers something within d.
func nothing(tb testing.TB, r core.Receiver, d time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	defer cancel()
	for ctx.Err() == nil {
		if got, _ := r.Receive(ctx, 1); len(got) > 0 {
			tb.Fatalf("received %s, attempt %d", got[0].Envelope.ID, got[0].Attempt)
		}
	}
}

func settle(tb testing.TB, r core.Receiver, acks ...core.Ack) {
	tb.Helper()
	if err := r.Settle(tb.Context(), acks).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

func ids(list []*waybill.Delivery) string {
	var s []string
	for _, d := range list {
		s = append(s, d.Envelope.ID)
	}
	return strings.Join(s, " ")
}

// eventually polls until ok, or fails after a while.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	within(tb, 10*time.Second, what, ok)
}

// within polls until ok, or fails after limit.
func within(tb testing.TB, limit time.Duration, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %s: %s", limit, what)
		}
		select {
		case <-tb.Context().Done():
			tb.Fatal(tb.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func hostOf(tb testing.TB, raw string) string {
	tb.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		tb.Fatal(err)
	}
	return u.Host
}
