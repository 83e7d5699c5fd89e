package mistakes_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

const gone = testenv.Up | testenv.Down

// CO-20: a broker that is silent, or refuses connections, shows in Health, and so does its return, although no message
// comes.
func TestHealthSeesTheBroker(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault func(*testenv.Proxy)
		end   func(*testenv.Proxy) error
	}{
		{"silent", func(p *testenv.Proxy) { p.Blackhole(gone) }, func(p *testenv.Proxy) error { p.Heal(); return nil }},
		{"refuses", func(p *testenv.Proxy) { p.Refuse(); p.Cut() }, (*testenv.Proxy).Accept},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, _ := rejecting()
			proxy, k := behindProxy(t, testenv.RabbitMQ(t), consumer.Options{}, waybill.Subscription{Queue: "q", Bindings: []string{"a"}}, h)
			run := start(t, k)
			ready := func() bool { return k.Health(t.Context()).Ready }
			patience.Until(t, "ready", ready)
			began := time.Now()
			c.fault(proxy)
			patience.Until(t, "not ready", func() bool { return !ready() })
			t.Logf("seen after %s, with heartbeats of 1 s", time.Since(began).Round(time.Millisecond))
			if check, _ := k.Health(t.Context()).Check("queue q"); !strings.HasPrefix(check.Text, "the broker cannot be reached") {
				t.Error(check)
			}
			if err := c.end(proxy); err != nil {
				t.Fatal(err)
			}
			patience.Until(t, "ready again", ready)
			run.stop()
		})
	}
}

// CO-20: a broker that is gone shows in Health although the only handler is busy, so that no call receives.
func TestHealthSeesTheBrokerWhileBusy(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}, 10), make(chan struct{})
	mq := testenv.RabbitMQ(t)
	busy := waybill.Handler{Name: waybill.AnyMessage, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
		begun <- struct{}{}
		<-end
		return waybill.HandlerProcessed, nil
	}}
	sub := waybill.Subscription{Queue: "q", Bindings: []string{"a"}, Concurrency: 1, Prefetch: 1}
	proxy, k := behindProxy(t, mq, consumer.Options{}, sub, busy)
	run := start(t, k)
	ready := func() bool { return k.Health(t.Context()).Ready }
	patience.Until(t, "ready", ready)
	publish(t, dial(t, mq.URL, rabbitmq.Options{}), "", "m")
	<-begun
	if !ready() {
		t.Error("a busy consumer is not ready:", k.Health(t.Context()))
	}
	proxy.Blackhole(gone)
	patience.Until(t, "not ready", func() bool { return !ready() })
	if check, _ := k.Health(t.Context()).Check("queue q"); !strings.Contains(check.Text, "the connection is lost") {
		t.Error(check)
	}
	proxy.Heal()
	close(end)
	patience.Until(t, "ready again", ready)
	run.stop()
}

// CO-20: a batch job whose broker falls silent ends with an error, and not as one that had nothing to do.
func TestRunOnceSeesTheBroker(t *testing.T) {
	t.Parallel()
	h, _ := rejecting()
	proxy, c := behindProxy(t, testenv.RabbitMQ(t), consumer.Options{IdleTimeout: 10 * time.Second}, waybill.Subscription{Queue: "q", Bindings: []string{"a"}}, h)
	ended := make(chan error, 1)
	go func() {
		_, err := c.RunOnce(t.Context())
		ended <- err
	}()
	patience.Until(t, "ready", func() bool { return c.Health(t.Context()).Ready })
	proxy.Blackhole(gone)
	if err := <-ended; waybill.ClassOf(err) != waybill.ClassOutage || err == nil {
		t.Errorf("RunOnce ended with %v", err)
	}
	proxy.Heal()
}

// behindProxy returns a consumer, and the proxy between it and the broker.
func behindProxy(t *testing.T, mq *testenv.MQ, opts consumer.Options, sub waybill.Subscription, h waybill.Handler) (*testenv.Proxy, *consumer.Consumer) {
	t.Helper()
	u, err := url.Parse(mq.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testenv.NewProxy(t, u.Host)
	bus := dial(t, proxy.URL(mq.URL), rabbitmq.Options{Connection: rabbitmq.ConnectionOptions{Heartbeat: time.Second}})
	c := newConsumer(t, bus, opts)
	if err := c.Handle(sub, h); err != nil {
		t.Fatal(err)
	}
	return proxy, c
}

// CO-19: while a database is down nothing is held: the queue and its delay queues show every message, another replica
// handles them, and nothing looks as if it had crashed its consumer, however often was probed.
func TestPausedConsumerHoldsNothing(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := waybill.Subscription{Queue: "q", Bindings: []string{"a"}, MaxDeliveries: 3, Prefetch: 20}
	declare(t, bus, sub)
	var probes, most atomic.Int32
	down := newConsumer(t, bus, consumer.Options{Pause: waybill.Backoff{Base: 50 * time.Millisecond, Cap: 50 * time.Millisecond}})
	if err := down.Handle(sub, waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		probes.Add(1)
		for now := int32(d.Redeliveries); ; {
			if was := most.Load(); now <= was || most.CompareAndSwap(was, now) {
				break
			}
		}
		return waybill.HandlerProcessed, waybill.Outage(errors.New("the database is down"))
	}}); err != nil {
		t.Fatal(err)
	}
	const n = 30
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	publish(t, bus, "", ids...)
	run := start(t, down)
	ch := testenv.Channel(t, mq.URL)
	shown := 0
	patience.Until(t, "the queue and its delay queues show all of them, after each of many probes", func() bool {
		ready := 0
		for _, name := range []string{"q", "q.delay_1s", "q.delay_10s", "q.delay_1m", "q.delay_5m"} {
			ready += depth(t, ch, name)
		}
		if ready == n {
			shown++
		}
		return shown > 30 && probes.Load() >= 10
	})
	h, saw := rejecting()
	up := newConsumer(t, bus, consumer.Options{})
	if err := up.Handle(sub, h); err != nil {
		t.Fatal(err)
	}
	other := start(t, up)
	patience.Until(t, "the other replica handles them", func() bool { return saw.len() >= n })
	run.stop()
	other.stop()
	if parked := depth(t, ch, "q.dlq"); parked != 0 || probes.Load() < 10 {
		t.Errorf("%d were parked after %d probes", parked, probes.Load())
	}
	if n := most.Load(); n > 1 { // the first requeue counts up to RabbitMQ 4.2
		t.Errorf("a message that was only released counts %d deliveries without an outcome", n)
	}
}
