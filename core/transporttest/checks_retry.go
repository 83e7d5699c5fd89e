package transporttest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var retryChecks = []named{
	{"retry-keeps-properties", ofSubscriber, retryKeepsProperties},
	{"retry-counts-attempts", ofSubscriber, retryCounts},
	{"retry-free", ofSubscriber, retryFree},
	{"retry-waits", ofSubscriber, retryWaits},
	{"retry-rounds-up", ofSubscriber, retryRoundsUp},
	{"retry-of-any-length", ofSubscriber, retryOfAnyLength},
	{"retry-survives-receiver", ofSubscriber, retrySurvives},
	{"retry-survives-transport", ofSubscriber, retrySurvivesTransport},
	{"retry-waits-aside", ofSubscriber, retryWaitsAside},
	{"retry-delay-of-seconds", ofSubscriber, retryDelayOfSeconds},
	{"retry-failing-queue-only", ofSubscriber, retryFailingQueueOnly},
	{"retry-many", ofSubscriber, retryMany},
}

// A retry comes with every property, as the next attempt.
//
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
			k.failIf(d.Attempt != attempt || d.Queue != name || d.Err != nil, "%s: Attempt is %d, Queue %q, Err %v", where, d.Attempt, d.Queue, d.Err)
			if attempt < 3 {
				k.settle(r, core.AckRetry(d, tier1, errors.New("größer\nthan 日本 "+strings.Repeat("x", 2*core.MaxErrorBytes))))
				continue
			}
			k.settle(r, core.AckDone(d))
		}
	}
	k.nothing(r, "all messages were done")
}

// A retry counts as an attempt; a release and a lost receiver do not.
//
// The check checks that retries count as attempts, and that neither a release nor a lost receiver does.
func retryCounts(k *kit) {
	k.twoCounts()
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	attempt := func(want int, after string) *waybill.Delivery {
		d := k.receive(r, 1)[0]
		k.failIf(d.Attempt != want, "%s: Attempt is %d, want %d", after, d.Attempt, want)
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

// A free retry waits as any retry, and is the same attempt with every property.
//
// The check checks the retries of a message whose handler meets an outage, before and after a failed attempt.
func retryFree(k *kit) {
	k.twoCounts()
	r, name := k.queue("a")
	want := full(name + ".a")
	k.publish(want)
	get := func(attempt int, after string) *waybill.Delivery {
		d := k.receive(r, 1)[0]
		k.same(want, d.Envelope, after)
		k.counts(d, attempt, 0, after)
		return d
	}
	for attempt := 1; attempt <= 3; attempt++ {
		for n := range 2 {
			k.settle(r, core.AckRetry(get(attempt, fmt.Sprintf("attempt %d, put off %d times", attempt, n)), 0, nil).WithoutAttempt())
		}
		d, start := get(attempt, "put off twice"), time.Now()
		k.settle(r, core.AckRetry(d, tier1, nil).WithoutAttempt())
		d = get(attempt, "put off for a time")
		took := time.Since(start) // the broker's clock may count whole milliseconds
		k.failIf(took < tier1-5*time.Millisecond, "a free retry with delay %s came after %s", tier1, took)
		k.settle(r, core.AckRetry(d, 0, errors.New("not now")))
	}
	k.settle(r, core.AckDone(get(4, "retried three times")))
	k.nothing(r, "the message was done")
}

// A retry does not come before its delay has passed.
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
	took := time.Since(start)
	k.failIf(took < delay-5*time.Millisecond, "a retry with delay %s came after %s", a.Delay, took)
	k.settle(r, core.AckRelease(d))
}

// A delay between two of RetryDelays is held longer, never shorter.
//
// The check asks for a delay between two declared ones: it may be held longer, never shorter.
func retryRoundsUp(k *kit) {
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	d := k.receive(r, 1)[0]
	k.notBefore(r, core.AckRetry(d, tier1+tier1/4, nil), tier1+tier1/4)
	d = k.receive(r, 1)[0]
	k.settle(r, core.AckRetry(d, 0, nil)) // less than the first
	k.consume(r, 1)
}

// A retry longer than the last of RetryDelays comes early with a NotBefore, and as one attempt.
//
// The check asks for a delay that is longer than any declared one. An early delivery is marked as early, and is the
// same attempt, also if it is that of a free retry.
func retryOfAnyLength(k *kit) {
	k.needs(k.sub.DelaysRetries, "SubscriberTraits.DelaysRetries")
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	delay := 2*tier2 + tier2/2
	comes := func(a core.Ack, attempt int) *waybill.Delivery {
		start := time.Now()
		k.settle(r, a)
		d := k.receive(r, 1)[0]
		for ; time.Now().Before(d.NotBefore); d = k.receive(r, 1)[0] {
			k.settle(r, core.AckRetry(d, time.Until(d.NotBefore), nil))
		}
		took := time.Since(start)
		k.failIf(took < delay-5*time.Millisecond || d.Attempt != attempt,
			"a retry with delay %s came after %s as attempt %d, want %d, without a NotBefore", delay, took, d.Attempt, attempt)
		return d
	}
	d := comes(core.AckRetry(k.receive(r, 1)[0], delay, errors.New("not now")), 2)
	same := 2
	if k.sub.AttemptsAreDeliveries {
		same = 3
	}
	k.settle(r, core.AckDone(comes(core.AckRetry(d, delay, nil).WithoutAttempt(), same)))
}

// A retry survives the receiver that asked for it.
func retrySurvives(k *kit) {
	k.needs(k.sub.DelaysRetries, "SubscriberTraits.DelaysRetries")
	r, name := k.queue("a")
	m := message(name+".a", 0)
	k.publish(m)
	k.settle(r, core.AckRetry(k.receive(r, 1)[0], tier2, nil))
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	d := k.consume(r, 1)[0]
	k.same(m, d.Envelope, "retry whose receiver was closed")
	k.failIf(d.Attempt != 2, "Attempt is %d, want 2", d.Attempt)
}

// A retry survives the transport that asked for it, as a process that ends.
//
// The check closes the whole transport while the retry waits.
func retrySurvivesTransport(k *kit) {
	k.needs(k.sub.DelaysRetries, "SubscriberTraits.DelaysRetries")
	k.needs(k.h.Close != nil && k.h.Reopen != nil, "Harness.Close and Harness.Reopen")
	r, name := k.queue("a")
	m := full(name + ".a")
	k.publish(m)
	k.settle(r, core.AckRetry(k.receive(r, 1)[0], tier2, errors.New("not now")))
	k.must("close transport", k.closeTransport(k.ctx))
	second, err := k.h.Reopen(k.ctx)
	k.must("open a second transport", err)
	k.subscriber = guardedSubscriber{second, k}
	d := k.consume(k.subscribe(name, name+".a"), 1)[0]
	k.same(m, d.Envelope, "retry whose transport was closed")
	k.failIf(d.Attempt != 2, "Attempt is %d, want 2", d.Attempt)
}

// Retries that wait do not stop new messages, however many.
//
// The check retries more than Prefetch with a delay that is longer than the check waits.
func retryWaitsAside(k *kit) {
	k.needs(k.sub.DelaysRetries, "SubscriberTraits.DelaysRetries")
	name := k.name()
	sub := subscription(name, name+".a")
	sub.Concurrency, sub.Prefetch, sub.RetryDelays = 4, 4, []time.Duration{10 * time.Minute}
	r := k.subscribeTo(sub)
	for i := range 3 * sub.Prefetch {
		k.publish(message(name+".a", i))
		k.settle(r, core.AckRetry(k.receive(r, 1)[0], k.delay(sub.RetryDelays[0]), errors.New("not now")))
	}
	want := messages(name+".a", 10)
	for i := range want {
		want[i].ID += "-new"
	}
	k.publish(want...)
	k.exactly(want, k.consume(r, len(want)))
}

// delay returns d, or the longest delay that the adapter takes.
func (k *kit) delay(d time.Duration) time.Duration {
	if k.sub.MaxRetryDelay > 0 {
		return min(d, k.sub.MaxRetryDelay)
	}
	return d
}

// A retry delay of more than a second is kept.
func retryDelayOfSeconds(k *kit) {
	k.needs(k.sub.DelaysRetries, "SubscriberTraits.DelaysRetries")
	name := k.name()
	sub := subscription(name, name+".a")
	delay := k.delay(2500 * time.Millisecond)
	sub.RetryDelays = []time.Duration{delay}
	r := k.subscribeTo(sub)
	k.publish(message(name+".a", 0))
	k.notBefore(r, core.AckRetry(k.receive(r, 1)[0], delay, errors.New("not now")), delay)
	k.consume(r, 1)
}

// A retry goes to the queue that failed, and to no other.
//
// CO-17.
func retryFailingQueueOnly(k *kit) {
	name := k.name()
	a, b := k.subscribe(name+"a", name+".x"), k.subscribe(name+"b", name+".x")
	k.publish(message(name+".x", 0))
	k.consume(b, 1)
	k.settle(a, core.AckRetry(k.receive(a, 1)[0], tier1, nil))
	d := k.consume(a, 1)[0]
	k.failIf(d.Attempt != 2, "Attempt is %d, want 2", d.Attempt)
	k.nothing(b, "a retry goes to the failing queue only")
	k.nothing(a, "the message was done")
}

// Many retries with different delays all come, each once.
//
// The check retries a mix of delays at once: a long one must not hold up a short one for ever, and none may be lost.
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
		k.failIf(d.Attempt != 2, "message %s: Attempt is %d, want 2", d.Envelope.ID, d.Attempt)
	}
	k.nothing(r, "all messages were done")
}
