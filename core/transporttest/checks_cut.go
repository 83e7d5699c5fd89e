package transporttest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// The effects of a cut link on calls in progress.
var cutChecks = []named{
	{"publish-over-cut", ofPublisher, publishOverCut},
	{"publish-again-unanswered", ofPublisher, publishAgainUnanswered},
	{"settle-over-cut", ofSubscriber, settleOverCut},
	{"in-order-over-cut", ofSubscriber, inOrderOverCut},
	{"restart", ofEither, restart},
}

// cutFor is how long calls wait for an answer over the cut link.
const cutFor = 2 * time.Second

// cut cuts the link while fn runs.
func (k *kit) cut(fn func(ctx context.Context)) {
	heal, err := k.h.Cut(k.ctx)
	k.must("cut the link", err)
	defer func() { k.must("heal the link", heal()) }()
	k.briefly(cutFor, fn)
}

// briefly runs fn under a context that ends after d.
func (k *kit) briefly(d time.Duration, fn func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(k.ctx, d)
	defer cancel()
	fn(ctx)
}

// publishThrough publishes m until that succeeds. Until then everything must be an outage.
func (k *kit) publishThrough(ctx context.Context, m waybill.Envelope) {
	for {
		err := k.publisher.Publish(ctx, []waybill.Envelope{m}).FirstErr()
		if err == nil {
			return
		}
		k.failIf(waybill.ClassOf(err) != waybill.ClassOutage || ctx.Err() != nil,
			"publish while the broker is away: class %s, want outage: %w", waybill.ClassOf(err), err)
		k.must("wait for the broker", sleep.For(ctx, quiet))
	}
}

// await receives until the messages of left have come, and settles them: some may come twice. It returns all.
func (k *kit) await(ctx context.Context, moved func(), r core.Receiver, left map[string]bool) (all []*waybill.Delivery) {
	n := len(left)
	for len(left) > 0 {
		_, err := collect(ctx, r, 1, func(ds []*waybill.Delivery) error {
			moved()
			for _, d := range ds {
				delete(left, d.Envelope.ID)
			}
			all = append(all, ds...)
			r.Settle(ctx, acks(core.AckDone, ds...))
			return nil
		})
		k.failIf(err != nil, "%d of %d messages did not come after the broker was back: %w", len(left), n, err)
	}
	return all
}

// subscribeThrough subscribes until that succeeds.
func (k *kit) subscribeThrough(ctx context.Context, sub core.Subscription) core.Receiver {
	for {
		r, err := k.subscriber.Subscribe(k.ctx, sub)
		if err == nil {
			return r
		}
		k.failIf(waybill.ClassOf(err) != waybill.ClassOutage || ctx.Err() != nil,
			"subscribe while the broker is away: class %s, want outage: %w", waybill.ClassOf(err), err)
		k.must("wait for the broker", sleep.For(ctx, quiet))
	}
}

// A publish while the link is cut is an outage, or it has arrived.
func publishOverCut(k *kit) {
	k.needs(k.h.Cut != nil, "Harness.Cut")
	k.needs(k.pub.Confirmed, "PublisherTraits.Confirmed")
	r, name := k.queue("a")
	k.publish(message(name+".a", 100))
	k.consume(r, 1) // the link is up
	batch := messages(name+".a", k.batch(5))
	left := map[string]bool{}
	k.cut(func(ctx context.Context) {
		for i, err := range k.publisher.Publish(ctx, batch) {
			switch {
			case err == nil:
				left[batch[i].ID] = true
			case waybill.ClassOf(err) != waybill.ClassOutage:
				k.fail("publish while the link is cut: class %s, want outage: %w", waybill.ClassOf(err), err)
			}
		}
	})
	ctx, moved, cancel := k.patient(2 * stands)
	defer cancel()
	last := message(name+".a", 101)
	k.publishThrough(ctx, last)
	left[last.ID] = true
	k.await(ctx, moved, r, left)
}

// With TwoCopiesAtMost, a message that is published again and again while no answer comes has two copies at most.
//
// The check publishes a message eight times while the answers are lost, and then until that succeeds. A message of its
// key comes behind all copies. TR-17.
func publishAgainUnanswered(k *kit) {
	k.needs(k.h.Deafen != nil, "Harness.Deafen")
	k.needs(k.pub.TwoCopiesAtMost, "PublisherTraits.TwoCopiesAtMost")
	r, name := k.queue("a")
	k.publish(message(name+".a", 100))
	k.consume(r, 1) // the link is up
	k.closeReceiver(r)
	m, last := message(name+".a", 1), message(name+".a", 2)
	m.Key, last.Key = "one", "one"
	heal, err := k.h.Deafen(k.ctx)
	k.must("lose the answers", err)
	tried := make([]error, 8)
	for i := range tried {
		k.briefly(cutFor/4, func(ctx context.Context) {
			tried[i] = k.publisher.Publish(ctx, []waybill.Envelope{m}).FirstErr()
		})
	}
	k.must("heal the link", heal())
	for _, err := range tried {
		k.failIf(waybill.ClassOf(err) != waybill.ClassOutage, "publish while the answers are lost: class %s, want outage: %w", waybill.ClassOf(err), err)
	}
	ctx, moved, cancel := k.patient(2 * stands)
	defer cancel()
	k.publishThrough(ctx, m)
	k.publishThrough(ctx, last)
	r = k.subscribeThrough(ctx, subscription(name, name+".a"))
	copies := 0
	for _, d := range append(k.await(ctx, moved, r, map[string]bool{m.ID: true, last.ID: true}), k.drain(r)...) {
		if d.Envelope.ID == m.ID && d.Redeliveries == 0 {
			copies++
		}
	}
	k.failIf(copies < 1 || copies > 2, "a message that was published again eight times without an answer has %d copies, want one or two", copies)
}

// A settle while the link is cut is an error, and the message comes again; or it has happened, and it does not.
//
// The check settles each way, closes the receiver, and looks at what another one gets.
func settleOverCut(k *kit) {
	k.needs(k.h.Cut != nil, "Harness.Cut")
	k.needs(!k.h.SettlesUnanswered, "an answer to a settle, by Harness.SettlesUnanswered,")
	r, name := k.queue("a")
	k.publish(messages(name+".a", 4)...)
	ds := k.receive(r, 4)
	var res core.Results
	k.cut(func(ctx context.Context) {
		res = r.Settle(ctx, []core.Ack{core.AckDone(ds[0]), core.AckDone(ds[1]), core.AckRetry(ds[2], tier1, nil)})
	})
	ctx, moved, cancel := k.patient(2 * stands)
	defer cancel()
	_ = r.Close(ctx) // the link has just come back
	again := k.subscribeThrough(ctx, subscription(name, name+".a"))
	left := map[string]bool{ds[2].Envelope.ID: true, ds[3].Envelope.ID: true}
	for i := range 2 {
		if res[i] != nil {
			left[ds[i].Envelope.ID] = true
		}
	}
	for _, d := range append(k.await(ctx, moved, again, left), k.drain(again)...) {
		for i := range 2 {
			if res[i] == nil && d.Envelope.ID == ds[i].Envelope.ID {
				k.fail("message %s came again, though its settle while the link was cut was a success", d.Envelope.ID)
			}
		}
	}
}

// With InOrder no delivery of a key passes one that a cut link has lost: messages come again from the oldest one that
// is not done.
//
// The check holds the messages of a key over a cut, settles the first one, and gives the others back as a consumer
// does when that fails. Then it handles one at a time. The first settle may be unknown, so its message may never come.
// The last message of the key is published afterwards. CO-22.
func inOrderOverCut(k *kit) {
	k.needs(k.h.Cut != nil, "Harness.Cut")
	k.needs(k.sub.SingleActive, "SubscriberTraits.SingleActive")
	name := k.name()
	sub := subscription(name, name+".a")
	sub.InOrder = true
	r := k.subscribeTo(sub)
	batch := k.oneKey(name+".a", 4)
	held := k.receiveAll(len(batch), r)[0] // fewer, if it holds fewer
	k.cut(func(context.Context) {})
	ctx, moved, cancel := k.patient(2 * stands)
	defer cancel()
	last := message(name+".a", len(batch))
	last.Key = "one"
	batch = append(batch, last)
	place, done := map[string]int{}, make([]bool, len(batch))
	for i := range batch {
		place[batch[i].ID] = i
	}
	done[0] = k.settleOwed(ctx, r, core.AckDone(held[0])) == nil
	for _, d := range held[1:] {
		_ = k.settleOwed(ctx, r, core.AckRelease(d))
	}
	k.publishThrough(ctx, last)
	latest := 0
	for slices.Contains(done[1:], false) {
		_, err := collect(ctx, r, 1, func(ds []*waybill.Delivery) error {
			moved()
			for i, err := range r.Settle(ctx, acks(core.AckDone, ds...)) {
				at := place[ds[i].Envelope.ID]
				k.failIf(at < latest && !done[at], "message %d of a key was lost with its link, and came again behind message %d", at, latest)
				latest, done[at] = max(latest, at), done[at] || err == nil
			}
			return nil
		})
		k.failIf(err != nil, "the messages that a cut link had lost did not come again: %w", err)
	}
}

// settleOwed settles a, again and again until the broker answers.
func (k *kit) settleOwed(ctx context.Context, r core.Receiver, a core.Ack) error {
	for {
		err := r.Settle(ctx, []core.Ack{a})[0]
		if err == nil || errors.Is(err, waybill.ErrLeaseLost) || waybill.ClassOf(err) != waybill.ClassOutage {
			return err
		}
		k.must("wait for the broker", sleep.For(ctx, quiet))
	}
}

// Over a restart of the broker no confirmed message is lost, and both directions recover by themselves.
//
// The check restarts the broker under a receiver that holds deliveries. Confirmed messages must come, once or twice,
// and both ends must work again by themselves.
func restart(k *kit) {
	k.needs(k.h.Restart != nil, "Harness.Restart")
	k.needs(k.pub.Confirmed, "PublisherTraits.Confirmed")
	r, name := k.queue("a")
	want := messages(name+".a", 20)
	k.publish(want[:10]...)
	held := k.receive(r, 3)
	k.must("restart the broker", k.h.Restart(k.ctx))
	ctx, moved, cancel := k.patient(2 * stands)
	defer cancel()
	for _, m := range want[10:] {
		k.publishThrough(ctx, m)
	}
	left := map[string]bool{}
	for i := range want {
		left[want[i].ID] = true
	}
	for i, err := range r.Settle(ctx, acks(core.AckDone, held...)) {
		if err == nil { // else they come again
			delete(left, held[i].Envelope.ID)
		}
	}
	k.await(ctx, moved, r, left)
}
