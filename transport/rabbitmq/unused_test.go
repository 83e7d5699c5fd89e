package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// RM-09: delay queues that a subscription does not need any more are found, and deleted once their messages have come
// back. Those in use, and foreign ones, are left alone.
func TestUnusedDelayQueues(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus, live := dial(t, mq.URL, rabbitmq.Options{}), broker(t, mq)
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{2 * time.Second, time.Minute}}
	other := core.Subscription{Queue: "q.delay", RetryDelays: []time.Duration{3 * time.Second}}
	r := subscribe(t, bus, sub)
	subscribe(t, bus, other)
	ch := testenv.Channel(t, mq.URL)
	for _, name := range []string{"q.delay_soon", "q.delay_1s0ms"} { // not ours
		if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := bus.Publish(t.Context(), envelopes(1, "a.b")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	// it waits in a queue that is deleted
	settle(t, r, core.AckRetry(receive(t, r, 1)[0], 2*time.Second, errors.New("later")))
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sub.RetryDelays = []time.Duration{time.Minute, time.Hour}
	r = subscribe(t, bus, sub)
	want := topology.Of(topology.Options{}, sub)
	unused, err := live.UnusedDelays(t.Context(), want)
	if err != nil || len(unused) != 1 || unused[0].Queue != "q.delay_2s" {
		t.Fatal(unused, err)
	}
	all := topology.Of(topology.Options{SharedDelays: true}, sub, other)
	if unused, err := live.UnusedDelays(t.Context(), all); err != nil || fmt.Sprint(names(unused)) != "[q.delay.delay_3s q.delay_1h q.delay_1m q.delay_2s]" {
		t.Error(unused, err)
	}
	for _, name := range []string{"q", "q.dlq", "q.delay_1m", "q.delay_soon", "nobody"} {
		if err := live.DeleteUnusedDelay(t.Context(), want, name); !errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("delete %s: %v", name, err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := live.DeleteUnusedDelay(short, want, "q.delay_2s"); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Error("cut short:", err)
	}
	if err := live.DeleteUnusedDelay(t.Context(), want, "q.delay_2s"); err != nil {
		t.Error(err)
	}
	if unused, err := live.UnusedDelays(t.Context(), want); err != nil || len(unused) != 0 {
		t.Error(unused, err)
	}
	if d := receive(t, r, 1)[0]; d.Attempt != 2 {
		t.Errorf("attempt %d", d.Attempt)
	}
}

func names(unused []topology.UnusedDelay) (all []string) {
	for _, u := range unused {
		all = append(all, u.Queue)
	}
	return all
}
