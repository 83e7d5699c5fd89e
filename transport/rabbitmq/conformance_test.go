package rabbitmq_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// suiteLimit is above the suite's MaxDeliveries, and few enough to be reached.
const suiteLimit = 25

// TR-02, CO-14, CO-17, RM-04, OR-01.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		opts rabbitmq.Options
		new  func(*testing.T, *testenv.MQ, rabbitmq.Options) *rabbitmq.Transport
	}{
		{"quorum", rabbitmq.Options{DeliveryLimit: suiteLimit}, nil},
		{"classic, prefix", rabbitmq.Options{QueueType: topology.Classic, Prefix: "test.", Exchange: "shop"}, nil},
		{"bring your own connection, pipelined keys", rabbitmq.Options{PipelineKeys: true, DeliveryLimit: suiteLimit}, own},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.name != "quorum" {
				tier.Nightly(t, "the suite again, with other settings: 20 s of waiting")
			}
			var harnesses []func(*testing.T) transporttest.Harness
			for range 3 {
				mq := testenv.RabbitMQ(t)
				harnesses = append(harnesses, func(t *testing.T) transporttest.Harness {
					t.Helper()
					if c.new != nil {
						return harness(t, mq, c.new(t, mq, c.opts), c.opts)
					}
					opts := c.opts
					opts.ReconnectMax = 200 * time.Millisecond
					proxy := testenv.NewProxy(t, hostOf(t, mq.URL))
					h := harness(t, mq, dial(t, proxy.URL(mq.URL), opts), opts)
					h.Cut = func(context.Context) (func() error, error) {
						proxy.Blackhole(testenv.Up | testenv.Down)
						return func() error {
							proxy.Cut()
							proxy.Heal()
							return nil
						}, nil
					}
					// As an operator closes connections.
					h.Restart = func(ctx context.Context) error {
						if _, err := mq.CloseConnections(ctx, mq.VHost); err != nil && !strings.Contains(err.Error(), "no connection") {
							return err
						}
						return nil
					}
					return h
				})
			}
			transporttest.RunSpread(t, harnesses...)
		})
	}
}

func own(t *testing.T, mq *testenv.MQ, opts rabbitmq.Options) *rabbitmq.Transport {
	t.Helper()
	bus, err := rabbitmq.New(share(t, mq.URL), opts)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, bus)
	return bus
}

func harness(t *testing.T, mq *testenv.MQ, bus *rabbitmq.Transport, opts rabbitmq.Options) transporttest.Harness {
	t.Helper()
	h := transporttest.Of(bus)
	h.SettlesUnanswered = true // basic.ack has no answer
	h.ReleasesCountOnce = countsReleases(t, mq.URL)
	h.ReservedNames = []string{"CC", "BCC", "x-delay", "x-match", "x-stream-offset", "x-stream-filter-value", "x-opt-delivery-time", "expiration", "user_id"}
	h.Reopen = func(context.Context) (core.Subscriber, error) { return dial(t, mq.URL, opts), nil }
	h.Unreadable = func(ctx context.Context, queue string) error {
		ch := testenv.Channel(t, mq.URL)
		defer func() { _ = ch.Close() }()
		return ch.PublishWithContext(ctx, "", opts.Prefix+queue, false, false, amqp.Publishing{
			MessageId: "one", Headers: amqp.Table{"cloudEvents:specversion": "1.0", "cloudEvents:id": "two"},
		})
	}
	// Looks at the dead-letter queue and lets its messages go back.
	h.Parked = func(_ context.Context, queue string) ([]transporttest.Parked, error) {
		ch := testenv.Channel(t, mq.URL)
		defer func() { _ = ch.Close() }()
		var list []transporttest.Parked
		for {
			m, ok, err := ch.Get(opts.Prefix+queue+".dlq", false)
			if err != nil || !ok {
				return list, err
			}
			d := rabbitmq.Decode(&m, queue, m.Exchange, time.Now())
			reason, _ := m.Headers["waybill-reason"].(string)
			text, _ := m.Headers["waybill-error"].(string)
			list = append(list, transporttest.Parked{Envelope: d.Envelope, Reason: waybill.Reason(reason), Err: text})
		}
	}
	return h
}

// countsReleases reports whether the broker takes a requeue for a redelivery, as those before 4.3 do.
func countsReleases(t *testing.T, url string) bool {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	version, _ := conn.Properties["version"].(string)
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("version %q of the broker: %v", version, err)
	}
	return major < 4 || major == 4 && minor < 3
}
