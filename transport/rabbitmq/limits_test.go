package rabbitmq_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// policiesKnown waits until the broker tells the policies of all queues that messages to the exchange of opts may
// reach: RabbitMQ 3.10 does so some seconds after a queue was made.
func policiesKnown(t *testing.T, mq *testenv.MQ, opts rabbitmq.Options) {
	t.Helper()
	patience.Until(t, "the policies of new queues are known", func() bool {
		_, err := broker(t, mq).Limits(t.Context(), topology.Of(opts.TopologyOptions()))
		return !errors.Is(err, topology.ErrPolicyUnknown)
	})
}

// RM-06: with PipelineKeys and a management address a queue that messages may reach and that has a length limit is an
// error at the start of a publisher.
func TestPipelineKeysRefusesLimits(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	dial(t, mq.URL, rabbitmq.Options{})
	ch := testenv.Channel(t, mq.URL)
	queue := func(name string, args amqp.Table) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	}
	for _, err := range []error{
		ch.ExchangeDeclare("copies", "fanout", true, false, false, false, amqp.Table{"alternate-exchange": "rest"}),
		ch.ExchangeDeclare("rest", "fanout", true, false, false, false, nil),
		ch.ExchangeBind("copies", "#", "waybill", false, nil),
		ch.ExchangeBind("waybill", "", "copies", false, nil), // a circle
		queue("near", amqp.Table{"x-queue-type": "quorum", "x-max-length": 10, "x-overflow": "reject-publish"}),
		queue("far", amqp.Table{"x-max-length-bytes": 1000}),
		queue("fine", nil),
		queue("stream", amqp.Table{"x-queue-type": "stream", "x-max-length-bytes": 1_000_000}),
		queue("elsewhere", amqp.Table{"x-max-length": 10}),
		ch.QueueBind("near", "a", "waybill", false, nil),
		ch.QueueBind("near", "b", "waybill", false, nil),
		ch.QueueBind("far", "", "rest", false, nil),
		ch.QueueBind("fine", "", "copies", false, nil),
		ch.QueueBind("stream", "", "copies", false, nil),
		ch.QueueBind("elsewhere", "", "amq.fanout", false, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	policiesKnown(t, mq, rabbitmq.Options{})
	dial(t, mq.URL, rabbitmq.Options{PipelineKeys: true})
	dial(t, mq.URL, rabbitmq.Options{ManagementURL: mq.ManagementURL})
	opts := rabbitmq.Options{PipelineKeys: true, ManagementURL: mq.ManagementURL, Logger: quiet()}
	_, err := rabbitmq.Dial(t.Context(), mq.URL, opts)
	t.Log(err)
	if !errors.Is(err, waybill.ErrMisconfigured) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		`queue "near" argument x-max-length is 10, want none: with Options.PipelineKeys`,
		`queue "far" argument x-max-length-bytes is 1000, want none`, "remove the limit, or leave PipelineKeys off",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %s", err, want)
		}
	}
	if n := strings.Count(err.Error(), "want none"); n != 2 {
		t.Errorf("%d problems, want 2: %v", n, err)
	}
	opts.Lazy = true
	bus := dial(t, mq.URL, opts)
	if err := bus.Publish(t.Context(), envelopes(1, "c")).FirstErr(); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("publish: %v", err)
	}
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"c"}}) // to empty a queue is no harm
	want := topology.Of(topology.Options{}, core.Subscription{
		Queue: "near", Bindings: []string{"a"},
		RetryDelays: []time.Duration{time.Second},
	})
	policiesKnown(t, mq, opts)
	found, err := broker(t, mq).Compare(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	found, err = rabbitmq.AddLimits(t.Context(), broker(t, mq), want, found)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(found); strings.Count(text, `"near" argument x-max-length `) != 1 ||
		!strings.Contains(text, `"far"`) { // near is in the topology, too
		t.Errorf("drift: %s", text)
	}
	if err := errors.Join(deleteQueue(ch, "near"), deleteQueue(ch, "far")); err != nil {
		t.Fatal(err)
	}
	if err := bus.Publish(t.Context(), envelopes(1, "c")).FirstErr(); err != nil {
		t.Errorf("publish without limits: %v", err)
	}
}

// RM-07: a limit that a policy sets is a difference, and an error at the next start; running receivers go on.
func TestPipelineKeysRefusesLimitsByPolicy(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	opts := rabbitmq.Options{PipelineKeys: true, ManagementURL: mq.ManagementURL, PublishConnections: 2, Logger: quiet()}
	bus := dial(t, mq.URL, opts)
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	policiesKnown(t, mq, opts)
	if found, err := bus.Drift(t.Context()); err != nil || len(found) != 0 {
		t.Fatalf("drift: %v, %v", found, err)
	}
	if err := mq.SetPolicy(t.Context(), mq.VHost, "cap", "^q$", "queues", map[string]any{"max-length": 1000}); err != nil {
		t.Fatal(err)
	}
	want := []admin.Difference{{Object: `queue "q" max-length by policy "cap"`, Want: "none", Have: "1000"}}
	var found []admin.Difference
	// the management API knows it about ten seconds later
	patience.Until(t, "the drift is found", func() bool {
		var err error
		if found, err = bus.Drift(t.Context()); err != nil {
			t.Fatal(err)
		}
		return slices.Equal(found, want)
	})
	_, err := rabbitmq.Dial(t.Context(), mq.URL, opts)
	if !errors.Is(err, waybill.ErrMisconfigured) ||
		!strings.Contains(err.Error(), `queue "q" max-length by policy "cap" is 1000, want none: with Options.PipelineKeys`) {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 8)
	for range cap(done) { // over a second connection, too
		go func() { done <- bus.Publish(t.Context(), envelopes(50, "a")).FirstErr() }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Errorf("publish: %v", err)
		}
	}
}
