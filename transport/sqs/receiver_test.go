package sqs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
	"github.com/waybill-go/waybill/internal/tier"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// abandon calls Receive until it waits for SQS, and cancels it.
func abandon(t *testing.T, fake *fakesqs.Server, r core.Receiver, limit int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	before := fake.Calls("ReceiveMessage")
	done := make(chan error, 1)
	go func() {
		_, err := r.Receive(ctx, limit)
		done <- err
	}()
	patience.Until(t, "the receiver asks", func() bool { return fake.Calls("ReceiveMessage") > before })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

// countingClient counts the messages that arrived here.
type countingClient struct {
	sqstransport.Client
	got atomic.Int32
}

func (c *countingClient) ReceiveMessage(ctx context.Context, in *awssqs.ReceiveMessageInput, fns ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error) {
	out, err := c.Client.ReceiveMessage(ctx, in, fns...)
	if err == nil {
		c.got.Add(int32(len(out.Messages)))
	}
	return out, err
}

// CO-17: the messages of a cancelled Receive's request wait for the next one, and go back after a while, or at Close.
// With HoldFor alone it would be hidden for longer than the test waits.
func TestCancelledReceiveHidesNothing(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(t *testing.T, r core.Receiver){
		"next": func(t *testing.T, r core.Receiver) {
			t.Helper()
			settle(t, r, core.AckDone(receive(t, r)))
		},
		"close": func(t *testing.T, r core.Receiver) {
			t.Helper()
			_ = r.Close(t.Context())
		},
		"idle": func(*testing.T, core.Receiver) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, opts := startFake(t), quick(false)
			opts.Wait, opts.HoldFor = 20*time.Second, time.Hour
			if name == "idle" {
				opts.HoldFor = 3 * time.Second
			}
			client := &countingClient{Client: newClient(t, fake.URL())}
			bus := newBus(t, client, opts)
			r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
			abandon(t, fake, r, 1)
			publish(t, bus, batchOf("a", 1)...)
			patience.Until(t, "the request brings the message", func() bool { return client.got.Load() == 1 })
			then(t, r)
			if name == "next" {
				return
			}
			patience.Until(t, "the message goes back", func() bool { return fake.Calls("ChangeMessageVisibilityBatch") == 1 })
			other := subscribe(t, bus, core.Subscription{Queue: "q"})
			settle(t, other, core.AckDone(receive(t, other)))
		})
	}
}

// OR-09: FIFO: a message that was received ahead does not come before one of its key that goes back.
func TestReleasedComesBeforeReceivedAhead(t *testing.T) {
	t.Parallel()
	for name, ack := range map[string]func(d *waybill.Delivery) core.Ack{
		"release": core.AckRelease,
		"retry":   func(d *waybill.Delivery) core.Ack { return core.AckRetry(d, time.Second, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, opts := startFake(t), quick(true)
			opts.Wait, opts.HoldFor = 20*time.Second, time.Minute
			client := &countingClient{Client: newClient(t, fake.URL())}
			bus := newBus(t, client, opts)
			r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}, InOrder: true})
			abandon(t, fake, r, 3)
			batch := batchOf("a", 3)
			for i := range batch {
				batch[i].Key = "k"
			}
			publish(t, bus, batch...)
			patience.Until(t, "the request brings all three", func() bool { return client.got.Load() == 3 })
			settle(t, r, ack(receive(t, r)))
			for i := range batch {
				d := receive(t, r)
				if d.Envelope.ID != batch[i].ID {
					t.Fatalf("%s came at place %d", d.Envelope.ID, i+1)
				}
				settle(t, r, core.AckDone(d))
			}
		})
	}
}

// TR-05, CO-14: a delay beyond 15 minutes is made of several, as one attempt.
func TestLongDelays(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	bus := newBus(t, newClient(t, fake.URL()), quick(false))
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, batchOf("a", 1)...)
	d := receive(t, r)
	due := time.Now().Add(40 * time.Minute)
	settle(t, r, core.AckRetry(d, 40*time.Minute, errors.New("cause")))
	for range 2 {
		fake.Advance(14 * time.Minute)
		publish(t, bus, waybill.Envelope{ID: "behind", Topic: "a"})
		behind := receive(t, r)
		if behind.Envelope.ID != "behind" {
			t.Fatalf("%s came too early", behind.Envelope.ID)
		}
		settle(t, r, core.AckDone(behind))
		fake.Advance(time.Minute)
		d = receive(t, r)
		if d.Attempt != 2 || d.NotBefore.Before(due.Add(-time.Second)) || d.NotBefore.After(time.Now().Add(40*time.Minute+time.Second)) {
			t.Fatalf("attempt %d, not before %s, want 2 and %s", d.Attempt, d.NotBefore, due)
		}
		settle(t, r, core.AckRetry(d, time.Until(d.NotBefore), nil))
	}
	fake.Advance(15 * time.Minute)
	settle(t, r, core.AckRetry(receive(t, r), 0, nil)) // the last part, as far as this clock knows
	if d = receive(t, r); d.Attempt != 2 || !d.NotBefore.IsZero() {
		t.Errorf("attempt %d, not before %s", d.Attempt, d.NotBefore)
	}
}

// A message that came early and goes on waiting is the same attempt, although its time comes before the settle.
func TestEarlyUntilItIsSettled(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	bus := newBus(t, newClient(t, fake.URL()), quick(false))
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, batchOf("a", 1)...)
	settle(t, r, core.AckRetry(receive(t, r), 40*time.Minute, errors.New("cause")))
	fake.Advance(15 * time.Minute)
	d := receive(t, r)
	sqstransport.SetDue(d, time.Now().Add(-time.Second))
	settle(t, r, core.AckRetry(d, 0, nil))
	if d = receive(t, r); d.Attempt != 2 {
		t.Errorf("attempt %d, want 2: no handler ran", d.Attempt)
	}
	settle(t, r, core.AckRetry(d, 0, errors.New("once more")))
	if d = receive(t, r); d.Attempt != 3 {
		t.Errorf("attempt %d, want 3", d.Attempt)
	}
}

// CO-21: a handler that takes longer than HoldFor runs once.
func TestSlowHandler(t *testing.T) {
	tier.Nightly(t, "four leases in real time, by the clock of the consumer: 8 s")
	t.Parallel()
	for name, fifo := range map[string]bool{"standard": false, "fifo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, opts := startFake(t), quick(fifo)
			opts.HoldFor = patience.For(2 * time.Second).Round(time.Second)
			bus := newBus(t, newClient(t, fake.URL()), opts)
			slow := waybill.NewTopic("slow", waybill.JSON[int]())
			var runs atomic.Int32
			done := make(chan struct{})
			c, err := consumer.New(bus, consumer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"slow"}}, waybill.HandlerFor(slow, func(ctx context.Context, _ int) error {
				runs.Add(1)
				select { // four times HoldFor
				case <-time.After(4 * opts.HoldFor):
					close(done)
				case <-ctx.Done():
				}
				return ctx.Err()
			}))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			patience.Until(t, "the queue exists", func() bool { return fake.Attributes(opts.QueueName("q")) != nil })
			publish(t, newBus(t, newClient(t, fake.URL()), withBindings(opts, "q", "slow")), waybill.Envelope{ID: "1", Topic: "slow", ContentType: "application/json", Body: []byte("1")})
			<-done
			patience.Until(t, "the message is done", func() bool { return len(fake.Messages(opts.QueueName("q"))) == 0 })
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if n := runs.Load(); n != 1 {
				t.Errorf("the handler ran %d times", n)
			}
		})
	}
}
