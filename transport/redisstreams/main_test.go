package redisstreams_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

var (
	envelope   = sharedtest.SmallEnvelope
	envelopes  = sharedtest.SmallEnvelopes
	publish    = sharedtest.Publish
	receive    = sharedtest.Receive
	settle     = sharedtest.Settle
	ids        = sharedtest.IDs
	closeLater = sharedtest.CloseLater
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
