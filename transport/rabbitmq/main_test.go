package rabbitmq_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

var (
	envelope   = sharedtest.SmallEnvelope
	envelopes  = sharedtest.SmallEnvelopes
	receive    = sharedtest.Receive
	settle     = sharedtest.Settle
	ids        = sharedtest.IDs
	closeLater = sharedtest.CloseLater
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they wait for the broker; a flag of the command line wins
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// quiet drops the log.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func dial(tb testing.TB, url string, opts rabbitmq.Options) *rabbitmq.Transport {
	tb.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet()
	}
	if opts.ConnectTimeout == 0 {
		opts.ConnectTimeout = patience.For(rabbitmq.DefaultConnectTimeout)
	}
	bus, err := rabbitmq.Dial(tb.Context(), url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, bus)
	return bus
}

// subscribe opens a receiver. A busy broker can take longer for a new quorum queue than it gives itself. Then it
// answers with an internal error: an outage, which a consumer tries again.
func subscribe(tb testing.TB, bus *rabbitmq.Transport, sub core.Subscription) core.Receiver {
	tb.Helper()
	var r core.Receiver
	var err error
	patience.Until(tb, "the broker makes the queues", func() bool {
		r, err = bus.Subscribe(tb.Context(), sub)
		e, answered := errors.AsType[*amqp.Error](err)
		return !answered || e.Code != amqp.InternalError || waybill.ClassOf(err) != waybill.ClassOutage
	})
	if err != nil {
		tb.Fatal(err)
	}
	closeLater(tb, r)
	return r
}

// nothing fails the test if the queue of r holds a message. It sends another one behind it, with a topic that is bound
// to the queue.
func nothing(tb testing.TB, bus *rabbitmq.Transport, r core.Receiver, topic string) {
	tb.Helper()
	last := envelope("last-"+waybill.NewID(), topic)
	patience.Until(tb, last.ID+" is published", func() bool { // the connection may have been cut
		return bus.Publish(tb.Context(), []waybill.Envelope{last}).FirstErr() == nil
	})
	d := receive(tb, r, 1)[0]
	if d.Envelope.ID != last.ID {
		tb.Fatalf("received %s, attempt %d", d.Envelope.ID, d.Attempt)
	}
	settle(tb, r, core.AckDone(d))
}

// comesBack receives while it publishes, until a message comes: the queue of r was deleted, and Receive makes it again.
func comesBack(tb testing.TB, bus *rabbitmq.Transport, r core.Receiver, topic string) *waybill.Delivery {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	came := make(chan *waybill.Delivery, 1)
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer cancel()
	receiving.Go(func() {
		for ctx.Err() == nil {
			if got, _ := r.Receive(ctx, 1); len(got) > 0 {
				came <- got[0]
				return
			}
		}
	})
	patience.Until(tb, "a message comes", func() bool {
		// until then it is unroutable
		_ = bus.Publish(tb.Context(), []waybill.Envelope{envelope("back", topic)})
		return len(came) > 0
	})
	return <-came
}

// publishExpiring publishes e with so short a life that it ends in its queue, but not before the broker has it.
func publishExpiring(tb testing.TB, bus *rabbitmq.Transport, e waybill.Envelope) {
	tb.Helper()
	for life := 50 * time.Millisecond; ; life *= 2 {
		e.Expires = time.Now().Add(life)
		err := bus.Publish(tb.Context(), []waybill.Envelope{e}).FirstErr()
		if err == nil {
			return
		}
		if waybill.ReasonOf(err) != waybill.ReasonExpired {
			tb.Fatal(err)
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
