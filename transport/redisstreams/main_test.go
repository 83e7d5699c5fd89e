package redisstreams_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

func TestMain(m *testing.M) {
	redis.SetLogger(&logging.VoidLogger{}) // it tells of every connection that a test cuts
	killtest.Main(holdRole)
	if role := os.Getenv(processRole); role != "" {
		runRole(role)
		return
	}
	if tier.NoServers() {
		_ = flag.Set("test.skip", "^Example$") // an example cannot skip itself, and this one starts a server
	}
	_ = flag.Set("test.parallel", "8") // they wait for the server; a flag of the command line wins
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

var busCount atomic.Int64

// newBus returns a name that the server has not seen.
func newBus() string { return fmt.Sprintf("t%dx%d", time.Now().UnixNano(), busCount.Add(1)) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// dial connects to a bus of its own, unless opts name one.
func dial(tb testing.TB, url string, opts redisstreams.Options) *redisstreams.Transport {
	tb.Helper()
	bus, err := redisstreams.Dial(tb.Context(), url, prepared(opts))
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, bus)
	return bus
}

func prepared(opts redisstreams.Options) redisstreams.Options {
	if opts.Bus == "" {
		opts.Bus = newBus()
	}
	if opts.Logger == nil {
		opts.Logger = quiet()
	}
	return opts
}

func closeLater(tb testing.TB, c interface{ Close(context.Context) error }) {
	tb.Helper()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience.For(10*time.Second))
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Logf("close: %v", err)
		}
	})
}

// raw is a client of the driver.
func raw(tb testing.TB, url string) *redis.Client {
	tb.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		tb.Fatal(err)
	}
	o.MaxRetries = -1
	c := redis.NewClient(o)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func subscribe(tb testing.TB, bus *redisstreams.Transport, sub core.Subscription) core.Receiver {
	tb.Helper()
	r, err := bus.Subscribe(context.WithoutCancel(tb.Context()), sub)
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, r)
	return r
}

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

// publish publishes what must succeed.
func publish(tb testing.TB, bus core.Publisher, batch ...waybill.Envelope) {
	tb.Helper()
	if err := bus.Publish(tb.Context(), batch).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

// receive returns the next n deliveries.
func receive(tb testing.TB, r core.Receiver, n int) []*waybill.Delivery {
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
