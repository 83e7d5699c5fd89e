package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/sleep"
)

// Numbers that are not small, contexts that have ended, and a broker that refuses writes.
var edgeChecks = []named{
	{"settle-cancelled", ofSubscriber, settleCancelled},
	{"largest-message", ofEither, largestMessage},
	{"reject-with-the-longest-error", ofSubscriber, rejectLongestError},
	{"retry-of-milliseconds", ofSubscriber, retryOfMilliseconds},
	{"key-order-prefix-too-large", ofPublisher, keyOrderPrefixTooLarge},
	{"bindings-of-another-process", ofSubscriber, bindingsOfAnother},
	{"publish-refused", ofPublisher, publishRefused},
	{"refused-alone", ofPublisher, refusedAlone},
	{"copy-refused", ofSubscriber, copyRefused},
	{"settle-refused", ofSubscriber, settleRefused},
	{"expires-in-centuries", ofEither, expiresInYear9999},
}

// verdicts is one ack of each kind.
func verdicts(ds []*waybill.Delivery) []core.Ack {
	return []core.Ack{
		core.AckDone(ds[0]), core.AckRetry(ds[1], tier1, errors.New("not now")), core.AckReject(ds[2], waybill.ReasonRejected, errors.New("no good")),
		core.AckRelease(ds[3]),
	}
}

// comesAgain says whether a delivery that is settled in this way comes again.
func comesAgain(a core.Ack) bool {
	return a.Verdict == core.VerdictRetry || a.Verdict == core.VerdictRelease
}

// A settle under an ended context says what became of each delivery: a success holds, and after an error it is settled
// again, or comes again if its lease was lost.
//
// The check settles as a consumer does at the end of a drain, or of a handler's time.
func settleCancelled(k *kit) {
	r, name := k.queue("a")
	k.publish(messages(name+".a", 4)...)
	batch := verdicts(k.receive(r, 4))
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	k.told(r, name, batch, r.Settle(ctx, batch))
}

// told checks the answers about the verdicts in batch: at first on r, which still lives, and then on another receiver.
func (k *kit) told(r core.Receiver, name string, batch []core.Ack, res core.Results) {
	left, gone := map[string]bool{}, map[string]bool{}
	for i, err := range res {
		id, lost := batch[i].Delivery.Envelope.ID, errors.Is(err, waybill.ErrLeaseLost) || isClosed(err)
		if err != nil && !lost {
			k.must("settle again what could not be settled", settle(k.ctx, r, batch[i]))
		}
		if lost || comesAgain(batch[i]) {
			left[id] = true
		} else {
			gone[id] = true
		}
	}
	ctx, moved, cancel := k.patient(k.sub.HoldFor)
	defer cancel()
	all := k.await(ctx, moved, r, left)
	k.closeReceiver(r)
	for _, d := range append(all, k.drain(k.subscribe(name, name+".a"))...) {
		k.failIf(gone[d.Envelope.ID], "message %s came again, though its settle was a success", d.Envelope.ID)
	}
}

// sized returns a message of n bytes, as Envelope.Size counts.
func sized(topic string, n int) waybill.Envelope {
	m := full(topic)
	m.Body = nil
	m.Body = bytes.Repeat([]byte("0123456789abcde\x00"), n/16+1)[:n-m.Size()]
	return m
}

// A message of MaxMessageBytes arrives, is retried, and is parked, whole; without that bound one of 4 MiB.
func largestMessage(k *kit) {
	n := 4 << 20
	if k.pub.MaxMessageBytes > 0 {
		n = k.pub.MaxMessageBytes
	}
	r, name := k.queue("a")
	m := sized(name+".a", n)
	k.publish(m)
	again := false
	settle := func(a core.Ack) { again = k.settleThrough(r, a) || again }
	for attempt := 1; attempt <= 2; attempt++ {
		d := k.receive(r, 1)[0]
		k.same(m, d.Envelope, "the largest message")
		if attempt == 1 {
			settle(core.AckRetry(d, tier1, errors.New("not now")))
			continue
		}
		settle(core.AckReject(d, waybill.ReasonRejected, errors.New("no good")))
	}
	if again { // there can be more copies than one
		k.needs(k.sub.Parks && k.h.Parked != nil, "SubscriberTraits.Parks and Harness.Parked")
		if got := k.awaitParked(name); len(got) == 0 {
			k.fail("the largest message is not parked")
		} else {
			k.same(m, got[0].Envelope, "parked")
		}
		return
	}
	k.parked(name, m, waybill.ReasonRejected, "no good")
}

// settleThrough settles, and settles again after an outage, as a consumer does: a large message can take longer than
// the adapter waits. It says whether there was one.
func (k *kit) settleThrough(r core.Receiver, a core.Ack) (again bool) {
	for w := (suitetest.Wait{Limit: stands}); ; again = true {
		err := settle(k.ctx, r, a)
		if err == nil {
			return again
		}
		k.failIf(waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrLeaseLost) || !w.Again(k.ctx),
			"settle: %w", err)
	}
}

// A message is parked however long the text of its error is.
func rejectLongestError(k *kit) {
	r, name := k.queue("a")
	m := full(name + ".a")
	k.publish(m)
	err := errors.New(strings.Repeat("größer ", core.MaxErrorBytes))
	k.settle(r, core.AckReject(k.receive(r, 1)[0], waybill.ReasonRejected, err))
	k.nothing(r, "a rejected message does not come again")
	k.parked(name, m, waybill.ReasonRejected, core.ErrorText(err))
}

// A retry delay below all of RetryDelays is held longer, never shorter.
func retryOfMilliseconds(k *kit) {
	r, name := k.queue("a")
	k.publish(message(name+".a", 0))
	for _, delay := range []time.Duration{80 * time.Millisecond, 30 * time.Millisecond, 10 * time.Millisecond} {
		k.notBefore(r, core.AckRetry(k.receive(r, 1)[0], delay, nil), delay)
	}
	k.consume(r, 1)
}

// A message that is refused as too large also fails what is behind it with its key in the same call, with
// ErrPredecessorFailed.
//
// The check is that of keyOrderPrefix, for brokers for which nothing is unroutable.
func keyOrderPrefixTooLarge(k *kit) {
	k.needs(k.pub.KeyOrder == core.KeyOrderPipelinedPrefix, "PublisherTraits.KeyOrder = KeyOrderPipelinedPrefix")
	k.needs(k.pub.MaxMessageBytes > 0, "PublisherTraits.MaxMessageBytes")
	_, name := k.queue("t0", "t1")
	batch := keyed(name, 3)
	batch = batch[:k.batch(len(batch))]
	const bad = 3
	k.needs(len(batch) > bad, "PublisherTraits.MaxBatch of more than three")
	batch[bad].Body = make([]byte, k.pub.MaxMessageBytes+1)
	k.prefix(batch, bad)
}

// A receiver gets what another process has bound its queue for since.
//
// The check subscribes elsewhere, as a new release of a program does beside the old one.
func bindingsOfAnother(k *kit) {
	k.needs(k.h.Reopen != nil, "Harness.Reopen")
	r, name := k.queue("a")
	first := message(name+".a", 1)
	k.publish(first)
	k.exactly([]waybill.Envelope{first}, k.consume(r, 1)) // it runs
	second, err := k.h.Reopen(k.ctx)
	k.must("open a second transport", err)
	other, err := guardedSubscriber{second, k}.Subscribe(k.ctx, subscription(name, name+".b"))
	k.must("subscribe through the second transport", err)
	k.closeReceiver(other)
	want := []waybill.Envelope{message(name+".a", 2), message(name+".b", 3)}
	for w := (suitetest.Wait{Limit: 3 * time.Second}); ; { // a publisher may learn of a binding a moment later
		err := k.send(want[1:])[0]
		if err == nil {
			break
		}
		k.failIf(!errors.Is(err, waybill.ErrUnroutable), "publish to what another process has bound: %w", err)
		k.needs(w.Again(k.ctx), "a publisher that knows what other processes bind")
	}
	k.publish(want[0])
	k.exactly(want, k.consume(r, len(want)))
}

// refuse has the broker refuse while fn runs.
func (k *kit) refuse(what Refused, fn func()) {
	k.needs(k.h.Refuse != nil, "Harness.Refuse")
	undo, err := k.h.Refuse(k.ctx, what)
	if errors.Is(err, ErrNotDeclared) {
		k.needs(false, "a Harness.Refuse of this kind")
	}
	k.must("have the broker refuse", err)
	defer func() { k.must("have the broker accept again", undo()) }()
	fn()
}

// A message that the broker refuses is an error.
func publishRefused(k *kit) {
	k.needs(k.h.Refuse != nil, "Harness.Refuse")
	k.needs(k.pub.Confirmed, "PublisherTraits.Confirmed")
	r, name := k.queue("a")
	batch := messages(name+".a", k.batch(5))
	k.refuse(RefuseMessages, func() {
		for i, err := range k.send(batch) {
			k.failIf(err == nil, "the broker refused message %d, and it was a success", i)
		}
	})
	last := message(name+".a", 100)
	ctx, moved, cancel := k.patient(0)
	defer cancel()
	k.publishThrough(ctx, last)
	k.await(ctx, moved, r, map[string]bool{last.ID: true})
}

// A message that a limit of the broker is too low for fails for good, and names the limit; it costs its neighbours
// nothing.
//
// The check publishes large messages between small ones until each has its last result, as a relay does. A broker may
// close the connection at a large one, so that the results of a call are unknown.
func refusedAlone(k *kit) {
	k.needs(k.h.SizeLimit != "", "Harness.SizeLimit")
	r, name := k.queue("a")
	batch, small := messages(name+".a", k.batch(9)), map[string]bool{}
	k.needs(len(batch) > 1 && k.pub.MaxBatchBytes == 0, "a publish of several messages of any size")
	for i := range batch {
		if i%3 == 1 {
			grow(&batch[i], k.pub.MaxMessageBytes)
		} else {
			small[batch[i].ID] = true
		}
	}
	k.refuse(RefuseLarge, func() {
		left := batch
		for round := 1; len(left) > 0; round++ {
			left = k.publishMixed(left, small, round)
			if len(left) > 0 {
				k.must("wait for the broker", sleep.For(k.ctx, quiet))
			}
		}
		ctx, moved, cancel := k.patient(0)
		defer cancel()
		k.await(ctx, moved, r, small)
	})
	ctx, moved, cancel := k.patient(0)
	defer cancel()
	k.publishThrough(ctx, batch[1]) // nothing is remembered
	k.await(ctx, moved, r, map[string]bool{batch[1].ID: true})
}

// grow makes m as large as RefuseLarge has it refused. Its body cannot be compressed.
func grow(m *waybill.Envelope, most int) {
	size := LargeBytes
	if most > 0 {
		size = min(size, most)
	}
	m.Body = nil
	m.Body = make([]byte, size-m.Size())
	_, _ = rand.NewChaCha8([32]byte{}).Read(m.Body) // never fails
}

// publishMixed publishes messages, of which all but the small ones are refused. It returns those without a last result:
// an adapter may learn of the limit by outages, but soon.
func (k *kit) publishMixed(batch []waybill.Envelope, small map[string]bool, round int) (again []waybill.Envelope) {
	for i, err := range k.send(batch) {
		switch class := waybill.ClassOf(err); {
		case err == nil && small[batch[i].ID]:
		case err == nil:
			k.fail("a message of %d bytes was a success, though the broker refuses it", batch[i].Size())
		case class == waybill.ClassOutage:
			k.failIf(round > 3, "a batch with a message that is too large for the broker is tried for ever: %w", err)
			again = append(again, batch[i])
		case small[batch[i].ID]:
			k.fail("a neighbour of a message that is too large for the broker is of class %s: %w", class, err)
		case class != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonTooLarge:
			k.fail("a message that is too large for the broker is of class %s and reason %q: %w", class, waybill.ReasonOf(err), err)
		case !strings.Contains(err.Error(), k.h.SizeLimit) || !strings.Contains(err.Error(), batch[i].Topic):
			k.fail("the error of a message that is too large for the broker does not name its topic, and the limit %s: %w", k.h.SizeLimit, err)
		}
	}
	return again
}

// A retry or a rejection whose copy the broker refuses loses nothing.
//
// The check loses the receiver right after a retry and a rejection, as a process that is killed, before it can settle
// again.
func copyRefused(k *kit) {
	k.needs(k.h.Refuse != nil, "Harness.Refuse")
	r, name := k.queue("a")
	k.publish(full(name+".a"), full(name+".a"))
	ds := k.receive(r, 2)
	batch := []core.Ack{core.AckRetry(ds[0], tier1, errors.New("not now")), core.AckReject(ds[1], waybill.ReasonRejected, errors.New("no good"))}
	left := map[string]bool{}
	k.refuse(RefuseMessages, func() {
		k.briefly(cutFor, func(ctx context.Context) {
			for i, err := range r.Settle(ctx, batch) {
				if err != nil || comesAgain(batch[i]) {
					left[ds[i].Envelope.ID] = true
				}
			}
			_ = r.Close(ctx)
		})
	})
	parked := !left[ds[1].Envelope.ID]
	ctx, moved, cancel := k.patient(k.sub.HoldFor)
	defer cancel()
	r = k.subscribeThrough(ctx, subscription(name, name+".a"))
	k.await(ctx, moved, r, left)
	if parked && k.sub.Parks && k.h.Parked != nil {
		k.parked(name, ds[1].Envelope, waybill.ReasonRejected, "no good")
	}
}

// A settle that the broker refuses is an error, and can be made again.
func settleRefused(k *kit) {
	k.needs(!k.h.SettlesUnanswered, "an answer to a settle, by Harness.SettlesUnanswered,")
	r, name := k.queue("a")
	var res core.Results
	k.needs(k.h.Refuse != nil, "Harness.Refuse")
	k.publish(messages(name+".a", 4)...)
	batch := verdicts(k.receive(r, 4))
	k.refuse(RefuseAll, func() {
		k.briefly(cutFor, func(ctx context.Context) { res = r.Settle(ctx, batch) })
	})
	for i, err := range res {
		if err == nil && batch[i].Verdict != core.VerdictRelease { // a release may need no write
			k.fail("the broker refused a settle (verdict %d), and it was a success", batch[i].Verdict)
		}
	}
	k.told(r, name, batch, res)
}

// A difference of two times saturates in Go at 292 years, and a number of microseconds overflows as a duration at the
// same bound. The usual "never" of other languages is the year 9999.

// never is the usual expiry of systems that know no other "never".
var never = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_000, time.UTC)

// A message that expires in centuries is sent, retried, given back and parked with its expiry.
func expiresInYear9999(k *kit) {
	r, name := k.queue("a")
	for i, at := range []time.Time{time.Date(2400, time.January, 1, 0, 0, 0, 0, time.UTC), never} {
		want := message(name+".a", i)
		want.Expires, want.Time, want.HLC = at, at, hlc.Timestamp(1_700_000_000_123<<16|uint64(i))
		k.publish(want)
		d := k.receive(r, 1)[0]
		k.same(want, d.Envelope, fmt.Sprintf("a message of %d that expires then", at.Year()))
		if k.sub.DelaysRetries {
			k.settle(r, core.AckRetry(d, tier1, errors.New("not now")))
			d = k.receive(r, 1)[0]
			k.same(want, d.Envelope, fmt.Sprintf("the retry of a message that expires in %d", at.Year()))
		}
		for n := range 3 { // a broker may make a copy of a message that comes back often
			k.settle(r, core.AckRelease(d))
			d = k.receive(r, 1)[0]
			k.same(want, d.Envelope, fmt.Sprintf("release %d of a message that expires in %d", n+1, at.Year()))
		}
		if i > 0 && k.h.Parked != nil && k.sub.Parks {
			k.settle(r, core.AckReject(d, waybill.ReasonRejected, errors.New("no")))
			k.parked(name, want, waybill.ReasonRejected, "no")
			continue
		}
		k.settle(r, core.AckDone(d))
	}
	k.nothing(r, "all messages were done or parked")
}
