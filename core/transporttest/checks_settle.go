package transporttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var settleChecks = []named{
	{
		"settle-done", ofSubscriber,
		"What is done does not come again, and what is not done does.", settleDone,
	},
	{
		"retry-keeps-properties", ofSubscriber,
		"A retry comes with every property, as the next attempt.", retryKeepsProperties,
	},
	{
		"retry-counts-attempts", ofSubscriber,
		"A retry counts as an attempt; a release and a lost receiver do not.", retryCounts,
	},
	{
		"retry-waits", ofSubscriber,
		"A retry does not come before its delay has passed.", retryWaits,
	},
	{
		"retry-rounds-up", ofSubscriber,
		"A delay between two of RetryDelays is held longer, never shorter.", retryRoundsUp,
	},
	{
		"retry-of-any-length", ofSubscriber,
		"A retry longer than the last of RetryDelays comes early with a NotBefore, and as one attempt.", retryOfAnyLength,
	},
	{
		"retry-survives-receiver", ofSubscriber,
		"A retry survives the receiver that asked for it.", retrySurvives,
	},
	{
		"retry-failing-queue-only", ofSubscriber,
		"A retry goes to the queue that failed, and to no other.", retryFailingQueueOnly,
	},
	{
		"retry-many", ofSubscriber,
		"Many retries with different delays all come, each once.", retryMany,
	},
	{
		"release", ofSubscriber,
		"A released delivery comes again at once, to anyone, as it was.", release,
	},
	{
		"settle-mixed", ofSubscriber,
		"Acks of one call are settled each by its own verdict, and one that fails costs the others nothing.", settleMixed,
	},
	{
		"settle-empty", ofSubscriber,
		"A settle of nothing has no results.", settleEmpty,
	},
	{
		"settle-twice", ofSubscriber,
		"A delivery is settled once; a second settle is an error and changes nothing.", settleTwice,
	},
	{
		"settle-foreign", ofSubscriber,
		"A delivery is settled by the receiver that holds it, and by no other.", settleForeign,
	},
	{
		"settle-nonsense", ofSubscriber,
		"A wrong ack is an error, and its delivery can still be settled by a right one.", settleNonsense,
	},
	{
		"settle-concurrently", ofSubscriber,
		"Settles at the same time, beside a Receive, all count.", settleConcurrently,
	},
}

// settleDone settles some and looks at what another receiver finds.
func settleDone(k *kit) {
	r, name := k.queue("a")
	want := messages(name+".a", 5)
	k.publish(want...)
	ds := k.receive(r, 5)
	var left []waybill.Envelope
	for i, d := range ds {
		if i == 1 || i == 3 {
			left = append(left, d.Envelope)
			continue
		}
		k.settle(r, core.AckDone(d))
	}
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	k.exactly(left, k.consume(r, len(left)))
	k.nothing(r, "all messages were done")
}

// CO-14.
func retryKeepsProperties(k *kit) {
	r, name := k.queue("placed", "bare")
	for _, want := range []waybill.Envelope{
		full(name + ".placed"),
		{ID: "bare-" + name, Topic: name + ".bare", Headers: map[string]string{"größe": "日本"}},
	} {
		k.publish(want)
		for attempt := 1; attempt <= 3; attempt++ {
			d := k.receive(r, 1)[0]
			where := fmt.Sprintf("attempt %d", attempt)
			k.same(want, d.Envelope, where)
			if d.Attempt != attempt || d.Queue != name || d.Err != nil {
				k.fail("%s: Attempt is %d, Queue %q, Err %v", where, d.Attempt, d.Queue, d.Err)
			}
			if attempt < 3 {
				k.settle(r, core.AckRetry(d, tier1, errors.New("größer\nthan 日本 "+strings.Repeat("x", 2*core.MaxErrorBytes))))
				continue
			}
			k.settle(r, core.AckDone(d))
		}
	}
	k.nothing(r, "all messages were done")
}

// retryCounts looks at what counts as an attempt: retries, and neither giving back nor a lost receiver.
func retryCounts(k *kit) {
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	attempt := func(want int, after string) *waybill.Delivery {
		d := k.receive(r, 1)[0]
		if d.Attempt != want {
			k.fail("%s: Attempt is %d, want %d", after, d.Attempt, want)
		}
		return d
	}
	k.settle(r, core.AckRelease(attempt(1, "at first")))
	k.settle(r, core.AckRelease(attempt(1, "given back")))
	attempt(1, "given back twice")
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	k.settle(r, core.AckRetry(attempt(1, "after its receiver was closed"), tier1, nil))
	k.settle(r, core.AckRelease(attempt(2, "retried")))
	k.settle(r, core.AckRetry(attempt(2, "retried and given back"), tier1, nil))
	attempt(3, "retried twice")
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	k.settle(r, core.AckDone(attempt(3, "retried twice, after its receiver was closed")))
}

func retryWaits(k *kit) {
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	for _, delay := range []time.Duration{tier1, tier2, tier1} {
		d := k.receive(r, 1)[0]
		k.notBefore(r, core.AckRetry(d, delay, errors.New("not now")), delay)
	}
	k.consume(r, 1)
}

// notBefore settles a and checks that the message comes again, but not before delay has passed. It gives it back.
func (k *kit) notBefore(r core.Receiver, a core.Ack, delay time.Duration) {
	start := time.Now()
	k.settle(r, a)
	d := k.receive(r, 1)[0]
	// the broker's clock may count whole milliseconds
	if took := time.Since(start); took < delay-5*time.Millisecond {
		k.fail("a retry with delay %s came after %s", a.Delay, took)
	}
	k.settle(r, core.AckRelease(d))
}

// retryRoundsUp asks for a delay between two declared ones: it may be held longer, never shorter.
func retryRoundsUp(k *kit) {
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	d := k.receive(r, 1)[0]
	k.notBefore(r, core.AckRetry(d, tier1+tier1/4, nil), tier1+tier1/4)
	d = k.receive(r, 1)[0]
	k.settle(r, core.AckRetry(d, 0, nil)) // less than the first
	k.consume(r, 1)
}

// retryOfAnyLength asks for a delay that is longer than any declared one. What comes early says so, and is the same
// attempt.
func retryOfAnyLength(k *kit) {
	k.needs(k.sub.RetryLater, "SubscriberTraits.RetryLater")
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	start, delay := time.Now(), 2*tier2+tier2/2
	k.settle(r, core.AckRetry(k.receive(r, 1)[0], delay, errors.New("not now")))
	d := k.receive(r, 1)[0]
	for ; time.Now().Before(d.NotBefore); d = k.receive(r, 1)[0] {
		k.settle(r, core.AckRetry(d, time.Until(d.NotBefore), nil))
	}
	if took := time.Since(start); took < delay-5*time.Millisecond || d.Attempt != 2 {
		k.fail("a retry with delay %s came after %s as attempt %d, want 2, without a NotBefore", delay, took, d.Attempt)
	}
	k.settle(r, core.AckDone(d))
}

func retrySurvives(k *kit) {
	k.needs(k.sub.RetryLater, "SubscriberTraits.RetryLater")
	r, name := k.queue("a")
	m := message(name+".a", 0)
	k.publish(m)
	k.settle(r, core.AckRetry(k.receive(r, 1)[0], tier2, nil))
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	d := k.consume(r, 1)[0]
	k.same(m, d.Envelope, "retry whose receiver was closed")
	if d.Attempt != 2 {
		k.fail("Attempt is %d, want 2", d.Attempt)
	}
}

// CO-17.
func retryFailingQueueOnly(k *kit) {
	name := k.name()
	a, b := k.subscribe(name+"a", name+".x"), k.subscribe(name+"b", name+".x")
	k.publish(message(name+".x", 0))
	k.consume(b, 1)
	k.settle(a, core.AckRetry(k.receive(a, 1)[0], tier1, nil))
	if d := k.consume(a, 1)[0]; d.Attempt != 2 {
		k.fail("Attempt is %d, want 2", d.Attempt)
	}
	k.nothing(b, "a retry goes to the failing queue only")
	k.nothing(a, "the message was done")
}

// retryMany retries a mix of delays at once: a long one must not hold up a short one for ever, and none may be lost.
func retryMany(k *kit) {
	r, name := k.queue("a")
	want := messages(name+".a", 40)
	k.publish(want...)
	var retries []core.Ack
	for i, d := range k.receive(r, len(want)) {
		retries = append(retries, core.AckRetry(d, []time.Duration{tier2, tier1, 0}[i%3], nil))
	}
	k.settle(r, retries...)
	ds := k.consume(r, len(want))
	k.exactly(want, ds)
	for _, d := range ds {
		if d.Attempt != 2 {
			k.fail("message %s: Attempt is %d, want 2", d.Envelope.ID, d.Attempt)
		}
	}
	k.nothing(r, "all messages were done")
}

// release gives back to a queue that two receivers share; whoever gets it, it comes at once and once.
func release(k *kit) {
	name := k.name()
	a, b := k.subscribe(name, name+".a"), k.subscribe(name, name+".a")
	m := message(name+".a", 0)
	k.publish(m)
	for range 3 {
		r, d := k.either(a, b)
		k.same(m, d.Envelope, "given back")
		k.settle(r, core.AckRelease(d))
	}
	r, d := k.either(a, b)
	k.settle(r, core.AckDone(d))
	k.nothing(a, "the message was done")
	k.nothing(b, "the message was done")
}

// either returns the next delivery of two receivers.
func (k *kit) either(rs ...core.Receiver) (core.Receiver, *waybill.Delivery) {
	ctx, cancel := context.WithTimeout(k.ctx, patience)
	defer cancel()
	for i := 0; ctx.Err() == nil; i++ {
		r := rs[i%len(rs)]
		ds, err := receiveBriefly(ctx, r, 20*time.Millisecond)
		k.must("receive", err)
		if len(ds) > 0 {
			return r, ds[0]
		}
	}
	k.fail("the message did not come to any receiver within %s", patience)
	return nil, nil
}

// settleMixed settles with every verdict in one call, with a bad slot in the middle.
func settleMixed(k *kit) {
	r, name := k.queue("a")
	k.publish(messages(name+".a", 6)...)
	ds := k.receive(r, 6)
	k.settle(r, core.AckDone(ds[5]))
	batch := []core.Ack{
		core.AckRelease(ds[0]), core.AckDone(ds[1]), core.AckDone(ds[5]), core.AckRetry(ds[2], tier1, nil),
		core.AckReject(ds[3], waybill.ReasonRejected, nil), core.AckDone(ds[4]),
	}
	for i, err := range r.Settle(k.ctx, batch) {
		if i == 2 && err == nil {
			k.fail("settling a delivery a second time was a success")
		}
		if i != 2 {
			k.must(fmt.Sprintf("settle, slot %d", i), err)
		}
	}
	again := k.receive(r, 2)
	k.exactly([]waybill.Envelope{ds[0].Envelope, ds[2].Envelope}, again)
	for _, d := range again {
		if want := map[string]int{ds[0].Envelope.ID: 1, ds[2].Envelope.ID: 2}[d.Envelope.ID]; d.Attempt != want {
			k.fail("message %s: Attempt is %d, want %d", d.Envelope.ID, d.Attempt, want)
		}
	}
	k.settle(r, acks(core.AckDone, again...)...)
	k.nothing(r, "all messages were settled")
}

func settleEmpty(k *kit) {
	r, _ := k.queue("a")
	r.Settle(k.ctx, nil) // the guard looks at the number of results
}

// settleTwice settles again with each verdict, and looks whether the receiver still works and the message stays done.
func settleTwice(k *kit) {
	r, name := k.queue("a")
	k.publish(messages(name+".a", 2)...)
	ds := k.receive(r, 2)
	k.settle(r, core.AckDone(ds[0]))
	for _, a := range []core.Ack{
		core.AckDone(ds[0]), core.AckRetry(ds[0], 0, nil), core.AckReject(ds[0], waybill.ReasonRejected, nil), core.AckRelease(ds[0]),
	} {
		if settle(k.ctx, r, a) == nil {
			k.fail("settling a delivery a second time was a success (verdict %d)", a.Verdict)
		}
	}
	k.settle(r, core.AckRetry(ds[1], tier1, nil))
	k.exactly([]waybill.Envelope{ds[1].Envelope}, k.consume(r, 1))
	k.nothing(r, "both messages were done")
}

// settleForeign settles a delivery through another receiver, of its own queue and of another.
func settleForeign(k *kit) {
	r, name := k.queue("a")
	others := []core.Receiver{k.subscribe(name, name+".a"), k.subscribe(k.name(), name+".a")}
	k.publish(message(name+".a", 0))
	if r2, d := k.either(r, others[0]); r2 != r {
		r, others[0] = r2, r
		k.foreign(r, d, others)
	} else {
		k.foreign(r, d, others)
	}
}

func (k *kit) foreign(r core.Receiver, d *waybill.Delivery, others []core.Receiver) {
	for _, other := range others {
		for _, a := range []core.Ack{
			core.AckDone(d), core.AckRetry(d, 0, nil), core.AckReject(d, waybill.ReasonRejected, nil),
			core.AckRelease(d),
		} {
			if settle(k.ctx, other, a) == nil {
				k.fail("settling another receiver's delivery was a success (verdict %d)", a.Verdict)
			}
		}
	}
	k.consume(others[1], 1) // its own copy
	k.settle(r, core.AckDone(d))
	k.nothing(r, "the message was done")
	k.nothing(others[0], "the message was done")
}

// settleNonsense settles what no caller should, and looks whether the receiver still works.
func settleNonsense(k *kit) {
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	d := k.receive(r, 1)[0]
	for what, a := range map[string]core.Ack{
		"no delivery":              {Verdict: core.VerdictDone},
		"a delivery of nobody":     core.AckDone(&waybill.Delivery{}),
		"a delivery of a stranger": core.AckDone(&waybill.Delivery{Handle: "stranger"}),
		"no verdict":               {Delivery: d},
		"an unknown verdict":       {Delivery: d, Verdict: 200},
	} {
		if settle(k.ctx, r, a) == nil {
			k.fail("settling with %s was a success", what)
		}
	}
	k.settle(r, core.AckDone(d))
	k.publish(message(name+".a", 1))
	k.consume(r, 1)
}

// settleConcurrently settles from several goroutines while another receives.
func settleConcurrently(k *kit) {
	const n = 200
	r, name := k.queue("a")
	want := messages(name+".a", n)
	k.publish(want...)
	ch := make(chan *waybill.Delivery, n)
	var got []*waybill.Delivery
	k.each(5, func(i int) error {
		if i == 0 {
			defer close(ch)
			ctx, cancel := context.WithTimeout(k.ctx, patience)
			defer cancel()
			var err error
			got, err = collect(ctx, r, n, func(ds []*waybill.Delivery) error {
				for _, d := range ds {
					ch <- d
				}
				return nil
			})
			return err
		}
		for d := range ch {
			if err := settle(k.ctx, r, core.AckDone(d)); err != nil {
				return fmt.Errorf("settle: %w", err)
			}
		}
		return nil
	})
	k.exactly(want, got)
	k.nothing(r, "all messages were done")
	k.closeReceiver(r)
	k.nothing(k.subscribe(name, name+".a"), "all messages were done")
}
