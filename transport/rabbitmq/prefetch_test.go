package rabbitmq_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// sized returns n messages with bodies of size bytes.
func sized(prefix string, n, size int) []waybill.Envelope {
	batch := envelopes(n, "a")
	for i := range batch {
		batch[i].ID, batch[i].Body = fmt.Sprintf("%s-%d", prefix, i), make([]byte, size)
	}
	return batch
}

// once receives n deliveries and settles each, and calls look before that. It fails if one comes twice, or with a
// count.
func once(t *testing.T, r core.Receiver, n int, look func(i int)) {
	t.Helper()
	seen := map[string]bool{}
	for i := range n {
		d := receive(t, r, 1)[0]
		if seen[d.Envelope.ID] || d.Redeliveries != 0 || d.Attempt != 1 {
			t.Fatalf("%s: seen before %t, %d redeliveries, attempt %d", d.Envelope.ID, seen[d.Envelope.ID], d.Redeliveries, d.Attempt)
		}
		seen[d.Envelope.ID] = true
		look(i)
		settle(t, r, core.AckDone(d))
	}
}

// RM-10: the number of unsettled messages follows the size of their bodies: large ones lower the prefetch, small ones
// raise it again. No message is lost, comes twice or gets a count.
func TestPrefetchBytes(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{PrefetchBytes: 256 << 10})
	const prefetch, large, small, fits = 20, 80, 300, 4
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: prefetch})
	if err := bus.Publish(t.Context(), sized("large", large, 64<<10)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	once(t, r, large, func(i int) {
		switch n := rabbitmq.UnackedOf(r); {
		case i == 0:
			patience.Until(t, "all that may be sent is here", func() bool { return rabbitmq.UnackedOf(r) == prefetch })
		case i < prefetch: // what the first consumer got is not settled
		case n > fits:
			t.Errorf("%d messages of 64 KiB are held, want %d", n, fits)
		case i == 2*prefetch:
			patience.Until(t, "what fits is held", func() bool { return rabbitmq.UnackedOf(r) == fits })
		}
	})
	if err := bus.Publish(t.Context(), sized("small", small, 100)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	once(t, r, small, func(int) {})
	if err := bus.Publish(t.Context(), sized("last", prefetch+5, 100)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	held := receive(t, r, prefetch)
	patience.Until(t, "as many small messages are held as without a bound", func() bool { return rabbitmq.UnackedOf(r) >= prefetch })
	for _, d := range held {
		settle(t, r, core.AckDone(d))
	}
}

// RM-10: while too much is held, Receive waits and reports no outage; it goes on when there is room. A pause
// releases what Receive has not returned, at no cost, and Close ends it.
func TestPrefetchBytesWaitsAndPauses(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{PrefetchBytes: 256 << 10})
	const prefetch, n = 10, 30
	done := 0
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: prefetch})
	if err := bus.Publish(t.Context(), sized("large", n, 64<<10)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var first []*waybill.Delivery
	wait := func(limit time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		got, err := r.Receive(ctx, 1)
		if err != nil && ctx.Err() == nil {
			t.Fatalf("after %d deliveries: %v", len(first), err)
		}
		first = append(first, got...)
	}
	ch := testenv.Channel(t, mq.URL)
	patience.Until(t, "the broker may send no more, and Receive has returned all", func() bool {
		wait(20 * time.Millisecond)
		q, err := ch.QueueDeclarePassive("q", true, false, false, false, nil)
		return err == nil && (q.Consumers == 0 || len(first) == prefetch) && rabbitmq.UnackedOf(r) == len(first)
	})
	wait(time.Second) // longer than Receive hides that there is no session
	if len(first) < 5 || len(first) > prefetch || rabbitmq.UnackedOf(r) != len(first) {
		t.Errorf("%d deliveries, %d held", len(first), rabbitmq.UnackedOf(r))
	}
	for len(first) > 3 { // more than a half
		settle(t, r, core.AckDone(first[0]))
		first = first[1:]
		done++
	}
	next := receive(t, r, 4)
	p, ok := r.(core.Pauser)
	if !ok {
		t.Fatal("it is no core.Pauser")
	}
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Resume(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, d := range append(first, next...) {
		settle(t, r, core.AckDone(d))
		done++
	}
	once(t, r, n-done, func(int) {})
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// RM-10: a receiver that adapts holds no more bytes than the bound when bodies become large at once: it sends back what
// the broker has sent too much. No message is lost, and none comes with a count above one.
func TestBodiesBecomeLarge(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	const bound, size, small, large = 1 << 20, 64 << 10, 4000, 300
	bus := dial(t, mq.URL, rabbitmq.Options{PrefetchBytes: bound})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Concurrency: 10, Prefetch: 10, MaxPrefetch: 1000})
	p, ok := core.As[core.Pauser](r)
	if !ok {
		t.Fatal("it is no Pauser")
	}
	if err := bus.Publish(t.Context(), sized("small", small, 10)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := p.Resume(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	once(t, r, small, func(int) {})
	if got := rabbitmq.PrefetchOf(r); got != 1000 {
		t.Fatalf("the broker sends %d ahead, want 1,000", got)
	}
	if err := bus.Publish(t.Context(), sized("large", large, size)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	most := int64(0)
	patience.Until(t, "the bound is reached", func() bool {
		most = rabbitmq.BytesOf(r)
		return most > bound-size
	})
	seen := map[string]bool{}
	var kept []core.Ack // by slow handlers
	for range large {
		d := receive(t, r, 1)[0]
		if seen[d.Envelope.ID] || d.Redeliveries > 1 || d.Attempt != 1 || len(d.Envelope.Body) != size {
			t.Fatalf("%s: seen before %t, %d redeliveries, attempt %d, %d bytes", d.Envelope.ID, seen[d.Envelope.ID], d.Redeliveries, d.Attempt, len(d.Envelope.Body))
		}
		seen[d.Envelope.ID] = true
		most = max(most, rabbitmq.BytesOf(r))
		if len(kept) < 7 {
			kept = append(kept, core.AckDone(d))
			continue
		}
		settle(t, r, core.AckDone(d))
	}
	settle(t, r, kept...)
	t.Logf("%d KiB were held at most", most>>10)
	if most > bound {
		t.Errorf("%d KiB were held, want at most %d", most>>10, bound>>10)
	}
}

// RM-10: with InOrder the bound has no effect, nor if it is negative.
func TestPrefetchBytesOff(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	for i, bytes := range []int{1, -1} {
		bus := dial(t, mq.URL, rabbitmq.Options{PrefetchBytes: bytes})
		queue := fmt.Sprintf("q%d", i)
		r := subscribe(t, bus, core.Subscription{Queue: queue, Bindings: []string{queue}, Prefetch: 10, InOrder: bytes > 0})
		batch := sized("m", 10, 1000)
		for i := range batch {
			batch[i].Topic = queue
		}
		if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
			t.Fatal(err)
		}
		receive(t, r, 10)
	}
}

// CO-03: a larger prefetch comes while acknowledgements go out all the time. No message goes back for it, so all come
// in order, once and without a count. A smaller one comes at once.
func TestPrefetchIsChanged(t *testing.T) {
	t.Parallel()
	for _, bytes := range []int{-1, 1 << 20} {
		t.Run(fmt.Sprint(bytes, " bytes"), func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			bus := dial(t, mq.URL, rabbitmq.Options{PrefetchBytes: bytes})
			r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Concurrency: 10, Prefetch: 10, MaxPrefetch: 1000})
			const n = 12_000
			if err := bus.Publish(t.Context(), sized("m", n, 100)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			p, ok := core.As[core.Pauser](r)
			if !ok {
				t.Fatal("it is no Pauser")
			}
			seen := 0
			stages := []int{10, 80, 1000}
			for seen < n {
				if len(stages) > 1 && seen > 100 && rabbitmq.PrefetchOf(r) == stages[0] {
					stages = stages[1:]
					if err := p.Resume(t.Context(), stages[0]); err != nil {
						t.Fatal(err)
					}
				}
				ds, err := r.Receive(t.Context(), 50)
				if err != nil {
					t.Fatal(err)
				}
				acks := make([]core.Ack, len(ds))
				for i, d := range ds {
					if want := fmt.Sprintf("m-%d", seen); d.Envelope.ID != want || d.Redeliveries != 0 {
						t.Fatalf("%s comes with %d redeliveries, want %s", d.Envelope.ID, d.Redeliveries, want)
					}
					seen++
					acks[i] = core.AckDone(d)
				}
				settle(t, r, acks...)
			}
			if got := rabbitmq.PrefetchOf(r); got != 1000 {
				t.Errorf("the broker sends %d ahead, want 1,000; next of %v", got, stages)
			}
			if err := p.Resume(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
			if err := bus.Publish(t.Context(), sized("last", 30, 100)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			receive(t, r, 10)
			if got := rabbitmq.PrefetchOf(r); got != 10 {
				t.Errorf("the broker sends %d ahead, want 10", got)
			}
		})
	}
}
