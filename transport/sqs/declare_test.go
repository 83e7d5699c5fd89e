package sqs_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
)

// A missing object, or one of another shape, is named, with its cure.
func TestDeclare(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	opts.HoldFor = 5 * time.Second
	bus := newBus(t, newClient(t, fake.URL()), opts)
	subscribe(t, bus, core.Subscription{Queue: "q", MaxDeliveries: 20})
	a := fake.Attributes("q")
	if a["VisibilityTimeout"] != "5" || a["MessageRetentionPeriod"] != "1209600" || a["MaximumMessageSize"] != "1048576" ||
		!strings.Contains(a["RedrivePolicy"], `"maxReceiveCount":25`) || !strings.Contains(a["RedrivePolicy"], ":q-dlq") {
		t.Errorf("made with %v", a)
	}
	wrong := func(want string, change func(sub *core.Subscription)) {
		t.Helper()
		sub := core.Subscription{Queue: "q", MaxDeliveries: 20}
		change(&sub)
		_, err := bus.Subscribe(t.Context(), sub)
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"q"`) {
			t.Errorf("want an error about %s, got %v", want, err)
		}
	}
	for _, c := range []struct{ name, value string }{
		{"DelaySeconds", "5"},
		{"MessageRetentionPeriod", "345600"}, // SQS's default, and Options.Retention is 14 days
		{"MaximumMessageSize", "262144"},
		{"RedrivePolicy", ""},
		{"RedrivePolicy", "{"},
		{"RedrivePolicy", `{"deadLetterTargetArn":"arn:other","maxReceiveCount":"25"}`},
		{"RedrivePolicy", strings.Replace(a["RedrivePolicy"], "25", `"20"`, 1)},
		{"FifoQueue", "true"},
	} {
		good := a[c.name]
		fake.SetAttribute("q", c.name, c.value)
		wrong(c.name, func(*core.Subscription) {})
		fake.SetAttribute("q", c.name, good)
	}
	parked := fake.Attributes("q-dlq")["MessageRetentionPeriod"]
	fake.SetAttribute("q-dlq", "MessageRetentionPeriod", "60")
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q", MaxDeliveries: 20}); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"q-dlq"`) {
		t.Errorf("a dead-letter queue that drops what is parked: %v", err)
	}
	fake.SetAttribute("q-dlq", "MessageRetentionPeriod", parked)
	subscribe(t, bus, core.Subscription{Queue: "q", MaxDeliveries: 20}) // as it was
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q", MaxDeliveries: 25}); !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "DeliveryLimit") {
		t.Errorf("got %v", err)
	}
	subscribe(t, bus, core.Subscription{Queue: "drop", DropFailed: true})
	if fake.Attributes("drop-dlq") != nil || fake.Attributes("drop")["RedrivePolicy"] != "" {
		t.Error("a subscription that parks nothing has a dead-letter queue")
	}
}

// With Passive nothing is made; without the right to make queues the error says so.
func TestPassive(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	opts.Passive = true
	_, err := newBus(t, newClient(t, fake.URL()), opts).Subscribe(t.Context(), core.Subscription{Queue: "q"})
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"q-dlq" does not exist`) || fake.Calls("CreateQueue") != 0 {
		t.Errorf("got %v", err)
	}
	opts.Passive = false
	fake.Fail(func(q fakesqs.Request) *fakesqs.Error {
		if q.Action == "CreateQueue" {
			return &fakesqs.Error{Code: "AccessDenied", Status: 403}
		}
		return nil
	})
	_, err = newBus(t, newClient(t, fake.URL()), opts).Subscribe(t.Context(), core.Subscription{Queue: "q"})
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "IAM policy") {
		t.Errorf("got %v", err)
	}
}

// A queue that was just made, and is not there yet for the next question, is an outage: an operator has nothing to fix.
func TestJustMade(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	bus := newBus(t, newClient(t, fake.URL()), quick(false))
	fake.Fail(func(q fakesqs.Request) *fakesqs.Error {
		if q.Action == "GetQueueAttributes" && q.Queue == "q" {
			return &fakesqs.Error{Code: "QueueDoesNotExist"}
		}
		return nil
	})
	sub := core.Subscription{Queue: "q"}
	if _, err := bus.Subscribe(t.Context(), sub); waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("got %v", err)
	}
	fake.Fail(nil)
	subscribe(t, bus, sub)
}

// A queue that was deleted while a receiver waits is made again when the consumer opens it again.
func TestDeletedQueue(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	bus := newBus(t, newClient(t, fake.URL()), quick(false))
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}}
	r := subscribe(t, bus, sub)
	producer := newBus(t, newClient(t, fake.URL()), withBindings(quick(false), "q", "a"))
	publish(t, producer, batchOf("a", 1)...)
	fake.Delete("q")
	if _, err := r.Receive(t.Context(), 1); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("receive: %v", err)
	}
	if err := producer.Publish(t.Context(), batchOf("a", 1))[0]; !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("publish: %v", err)
	}
	if _, err := bus.Subscribe(t.Context(), sub); err != nil { // the URL that it knew is forgotten
		t.Error(err)
	}
	publish(t, producer, batchOf("a", 1)...)
}

// TR-08: Close leaves the client to its owner.
func TestClientStaysOpen(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	client := newClient(t, fake.URL())
	bus := newBus(t, client, opts)
	subscribe(t, bus, core.Subscription{Queue: "q"})
	if err := bus.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sendRaw(t.Context(), client, opts, "q", nil); err != nil {
		t.Error(err)
	}
}

// Readiness sees a queue that cannot be reached before the first publish fails: wrong names, a missing right, a server
// that is away. One missing queue beside others stops nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := startFake(t)
	opts := quick(false)
	opts.Bindings = map[string][]string{"here": {"a"}, "away": {"b"}}
	bus := newBus(t, newClient(t, s.URL()), opts)
	err := bus.Check(t.Context())
	if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "no queue of Options.Bindings exists") {
		t.Errorf("without any queue: %v", err)
	}
	subscribe(t, newBus(t, newClient(t, s.URL()), quick(false)), core.Subscription{Queue: "here", MaxDeliveries: 5})
	if err := bus.Check(t.Context()); err != nil {
		t.Errorf("with one of two queues: %v", err)
	}
	s.Fail(func(r fakesqs.Request) *fakesqs.Error {
		return &fakesqs.Error{Status: 403, Code: "AccessDenied", Message: "not you"}
	})
	if err := bus.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "IAM") {
		t.Errorf("without the right: %v", err)
	}
	if err := newBus(t, newClient(t, s.URL()), quick(false)).Check(t.Context()); err != nil {
		t.Errorf("without bindings: %v", err)
	}
	s.Close()
	if err := bus.Check(t.Context()); waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("without a server: %v", err)
	}
	if err := bus.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := bus.Check(t.Context()); !errors.Is(err, waybill.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
