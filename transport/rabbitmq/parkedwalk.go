package rabbitmq

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// parkedWalk takes the messages of a dead-letter queue, in its order. It holds them unacknowledged on a channel of its
// own, so that the broker requeues them in every case. The steps:
//
//  1. walkParked asks how many messages there are (initial): the walk looks at no more.
//  2. take begins a consumer, whose prefetch is the number to take. collect ends it when they are here, so that
//     nothing else is on its way. next returns them one by one.
//  3. remove acknowledges a message that was replayed or purged.
//  4. Close requeues the others (giveBack), in the order of the queue.
type parkedWalk struct {
	t          *Transport
	ch         *amqp.Channel
	name       string // of the subscription
	queue, dlq string
	initial    int             // at the beginning
	total      int             // of them, to be looked at
	taken      int             // messages that were taken so far
	ahead      []amqp.Delivery // of taken, those that next has not returned yet
	sizes      sizes           // bounds the bytes of ahead
	removed    int             // of taken, those that were acknowledged
	refreshed  int             // of taken, those that come once more

	asking chan struct{}        // of capacity 1: one question at a time, also if its caller does not wait any more
	coming <-chan amqp.Delivery // of the current consumer
	begun  int                  // consumers
	due    int                  // of the current consumer's prefetch, those that have not come
	held   [][]uint64           // for each consumer, the delivery tags that were not removed
}

func (t *Transport) walkParked(ctx context.Context, queue string) (*parkedWalk, error) {
	const op = "parked"
	if isClosed(t.closing) {
		return nil, outage(op, waybill.ErrClosed)
	}
	if p := subscriptionProblems(&core.Subscription{Queue: queue}, t.opts); len(p) > 0 {
		return nil, waybill.Invalid("waybill/rabbitmq: "+op, p...)
	}
	if err := t.mayReceive(op); err != nil {
		return nil, err
	}
	w := &parkedWalk{
		t: t, name: queue, queue: t.names.Queue(queue), dlq: t.names.DeadLetterQueue(queue), asking: make(chan struct{}, 1),
	}
	w.sizes.bound = int64(max(t.opts.PrefetchBytes, 0))
	connecting, cancel := context.WithTimeout(ctx, t.opts.openTimeout())
	defer cancel()
	c, err := t.in.get(connecting)
	if err != nil {
		return nil, err
	}
	if w.ch, err = c.channel(connecting); err != nil {
		return nil, err
	}
	err = w.call(connecting, func() error {
		q, err := w.ch.QueueDeclarePassive(w.dlq, true, false, false, false, nil)
		w.initial, w.total = q.Messages, q.Messages
		return err
	})
	switch {
	case err == nil:
		return w, nil
	case refused(err, amqp.NotFound):
		return nil, permanent(op, waybill.ReasonNone, fmt.Errorf("%w: queue %q does not exist: "+
			"check the subscription's name and Options.Prefix, or declare the subscription (%w)", waybill.ErrNotFound, w.dlq, err))
	case refused(err, amqp.AccessRefused):
		return nil, w.forbidden(err)
	}
	w.Close(ctx)
	return nil, outage(op, fmt.Errorf("queue %q: %w", w.dlq, err))
}

func (w *parkedWalk) forbidden(err error) error {
	return misconfigured("parked", "the user may not read queue %q: "+
		"give it the operator's permissions of Topology.Permissions (%w)", w.dlq, err)
}

// call asks the broker something. It returns when ctx ends; the channel's next question waits for the answer.
func (w *parkedWalk) call(ctx context.Context, ask func() error) error {
	select {
	case w.asking <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return await(ctx, func() error {
		defer func() { <-w.asking }()
		return ask()
	}, nil)
}

// next returns the next message; nil if there are no more of those that were there at the beginning. The caller wants
// so many more at least. Up to that it takes, or as many again as it took before, so that a search grows fast, and a
// short look leaves the rest of the queue alone.
func (w *parkedWalk) next(ctx context.Context, want int) (*amqp.Delivery, *admin.Parked, error) {
	for {
		if len(w.ahead) == 0 && w.taken < w.total {
			err := w.take(ctx, max(want, w.taken))
			switch {
			case refused(err, amqp.AccessRefused):
				return nil, nil, w.forbidden(err)
			case err != nil:
				return nil, nil, outage("parked", fmt.Errorf("queue %q: %w", w.dlq, err))
			}
		}
		if len(w.ahead) == 0 {
			return nil, nil, nil
		}
		raw := w.ahead[0]
		w.ahead[0] = amqp.Delivery{}
		w.ahead = w.ahead[1:]
		p := parkedOf(&raw, w.name, w.queue, w.t.names.DeadLetterExchange(w.name))
		p.Position = w.taken - len(w.ahead) - w.refreshed
		if number(raw.Headers[headerDeliveryCount]) >= w.t.refreshAt && unreadable(&raw) == "" {
			if fresh := w.refresh(ctx, &raw, &p); fresh {
				w.total++ // it comes once more, at the end
				w.initial++
				w.refreshed++
				continue
			}
		}
		return &raw, &p, nil
	}
}

// take takes up to n messages more: fewer if they are large, or if others took the rest.
func (w *parkedWalk) take(ctx context.Context, n int) error {
	n = min(n, walkChunk, w.total-w.taken)
	if w.taken == 0 {
		n = min(n, walkFirst) // nothing is known of their sizes
	}
	n = w.sizes.fit(w.sizes.bound, n)
	w.held = append(w.held, nil)
	err := w.call(ctx, func() (err error) {
		if err := w.ch.Qos(n, 0, false); err != nil {
			return err
		}
		w.begun, w.due = w.begun+1, n
		w.coming, err = w.ch.Consume(w.dlq, w.tag(), false, false, false, false, nil)
		return err
	})
	if err != nil {
		return err
	}
	return w.collect(ctx)
}

// tag is the tag of the latest consumer. Each has its own: a quorum queue counts the messages that a tag holds against
// its prefetch, also when its consumer has ended.
func (w *parkedWalk) tag() string { return fmt.Sprint("walk", w.begun) }

// collect takes the messages that the consumer, if there is one, brings, and ends it. It waits for as many as the
// prefetch. When none came for walkSilence, it asks how many are ready in the queue: if none is, others have the rest,
// and the walk ends there. Messages that came before the consumer was cancelled count, too.
func (w *parkedWalk) collect(ctx context.Context) error {
	var coming <-chan amqp.Delivery
	if err := w.call(ctx, func() error { coming = w.coming; return nil }); err != nil || coming == nil {
		return err
	}
	silent := time.NewTimer(walkSilence)
	defer silent.Stop()
	others := false
	for w.due > 0 && !others {
		silent.Reset(walkSilence)
		select {
		case raw, ok := <-coming:
			if !ok {
				_, err := w.ready(ctx)
				return cmp.Or(err, errCancelled)
			}
			w.took(&raw)
		case <-silent.C:
			n, err := w.ready(ctx)
			if err != nil {
				return err
			}
			others = n == 0
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := w.call(ctx, func() error {
		w.coming = nil
		return w.ch.Cancel(w.tag(), false)
	})
	if err != nil {
		return err
	}
	for raw := range coming {
		w.took(&raw)
	}
	if others {
		w.total = w.taken
	}
	return nil
}

func (w *parkedWalk) took(raw *amqp.Delivery) {
	w.sizes.saw(int64(len(raw.Body)))
	w.ahead = append(w.ahead, *raw)
	last := &w.held[len(w.held)-1]
	*last = append(*last, raw.DeliveryTag)
	w.taken++
	w.due--
}

// ready returns how many messages wait in the queue. If none does, those that the broker has pushed before are here
// when it returns: the broker answers the second question behind them.
func (w *parkedWalk) ready(ctx context.Context) (n int, err error) {
	err = w.call(ctx, func() error {
		for range 2 {
			q, err := w.ch.QueueDeclarePassive(w.dlq, true, false, false, false, nil)
			if n = q.Messages; err != nil || n > 0 {
				return err
			}
		}
		return nil
	})
	return n, err
}

// refresh replaces a parked message by a copy at the end of its queue, which has no deliveries yet. It reports whether
// it did.
func (w *parkedWalk) refresh(ctx context.Context, raw *amqp.Delivery, p *admin.Parked) bool {
	c := copyOf(raw, p.Envelope.Topic, p.Envelope.Expires)
	maps.Copy(c.Headers, amqp.Table{
		headerAttempt: int64(p.Attempts), headerReason: string(p.Reason), headerError: p.Error, headerQueue: w.queue,
	})
	if !p.At.IsZero() {
		c.Headers[headerParkedAt] = p.At.UTC().Format(time.RFC3339Nano)
	}
	send := copies{list: []copyToSend{{exchange: w.t.names.DeadLetterExchange(w.name), key: w.queue, p: c}}}
	results := make(core.Results, 1)
	w.t.publish(ctx, 1, &send, results)
	if results[0] != nil {
		return false
	}
	_, err := w.remove(ctx, raw.DeliveryTag)
	return err == nil
}

// remove acknowledges the messages with these tags, which ascend, and returns how many. One frame takes those that are
// the oldest held: the broker tells a quorum queue of 32 frames that the queue has not seen, keeps the next ones to
// itself, and forgets them if the channel ends. The consumer of the next take, and the requeue of held messages, wait
// until they are seen.
func (w *parkedWalk) remove(ctx context.Context, tags ...uint64) (removed int, err error) {
	for len(tags) > 0 {
		n := w.oldest(tags)
		last := max(n, 1) - 1
		if err := w.call(ctx, func() error { return w.ch.Ack(tags[last], n > 0) }); err != nil {
			return removed, outage("parked", fmt.Errorf("queue %q: a message may be handled and still parked: %w", w.dlq, err))
		}
		for _, tag := range tags[:last+1] {
			w.forget(tag)
		}
		removed, tags = removed+last+1, tags[last+1:]
	}
	return removed, nil
}

// oldest returns how many of tags no held message is in front of.
func (w *parkedWalk) oldest(tags []uint64) (n int) {
	for _, held := range w.held {
		for _, tag := range held {
			if n == len(tags) || tag != tags[n] {
				return n
			}
			n++
		}
	}
	return n
}

// forget counts a message as removed.
func (w *parkedWalk) forget(tag uint64) {
	w.removed++
	for i, held := range slices.Backward(w.held) {
		if at, ok := slices.BinarySearch(held, tag); ok {
			w.held[i] = slices.Delete(held, at, at+1)
			return
		}
	}
}

// Close implements parked.Walk. It requeues what was not removed, in its order. On a closed channel the broker did so
// itself.
func (w *parkedWalk) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requeueTimeout)
	defer cancel()
	_ = w.giveBack(ctx)
	_ = await(ctx, w.ch.Close, nil)
}

// giveBack requeues. Requeued messages come behind those that were never taken, so it takes these first, if they are
// not too many. A quorum queue counts late. So giveBack waits a moment until the queue's number of messages is right
// again, since the next walk begins with it. It waits after some groups, too, so that the broker makes no larger ones.
func (w *parkedWalk) giveBack(ctx context.Context) error {
	if err := w.collect(ctx); err != nil || w.taken == w.removed {
		return err
	}
	for w.total = w.initial; w.initial <= maxOrdered && w.taken < w.total; {
		w.ahead = nil
		if err := w.take(ctx, walkChunk); err != nil {
			break // they are requeued as they are
		}
	}
	before, err := w.ready(ctx)
	if err != nil {
		return err
	}
	unseen, back, counts := 0, 0, true
	for _, held := range w.held {
		for group := range slices.Chunk(held, requeueGroup) {
			if err := w.call(ctx, func() error { return w.ch.Nack(group[len(group)-1], true, true) }); err != nil {
				return err
			}
			back += len(group)
			if unseen++; unseen == requeueGroups {
				unseen, counts = 0, counts && w.counted(ctx, before+back)
			}
		}
	}
	if counts {
		w.counted(ctx, before+back)
	}
	return nil
}

// counted waits until n messages or more are ready, and reports whether they are.
func (w *parkedWalk) counted(ctx context.Context, n int) bool {
	for giveUp := time.Now().Add(recountTime); time.Now().Before(giveUp); {
		ready, err := w.ready(ctx)
		switch {
		case err != nil:
			return false
		case ready >= n:
			return true
		}
		if sleep.For(ctx, 5*time.Millisecond) != nil {
			return false
		}
	}
	return false
}

// parkedOf reads a parked message. If the broker dead-lettered it itself (it expired in the queue), the reason is the
// broker's.
func parkedOf(raw *amqp.Delivery, name, queue, dlx string) admin.Parked {
	var d waybill.Delivery
	decode(&d, raw, name, dlx, time.Now())
	p := admin.Parked{
		Envelope: d.Envelope, Queue: name, Attempts: d.Attempt,
		Reason: waybill.Reason(text(raw.Headers[headerReason])), Error: text(raw.Headers[headerError]),
	}
	if at, err := time.Parse(time.RFC3339Nano, text(raw.Headers[headerParkedAt])); err == nil {
		p.At = at
	}
	deaths, _ := raw.Headers["x-death"].([]any)
	for _, x := range deaths {
		death, _ := x.(amqp.Table)
		if p.Reason != "" || text(death["queue"]) != queue {
			continue
		}
		switch why := text(death["reason"]); why {
		case "expired":
			p.Reason, p.Error = waybill.ReasonExpired, "its time was over in the queue"
		case "delivery_limit":
			p.Reason, p.Error = waybill.ReasonDeliveries, "the broker's delivery limit"
		default:
			p.Reason, p.Error = waybill.ReasonRejected, "dead-lettered by the broker: "+why
		}
		p.At, _ = death["time"].(time.Time)
	}
	if unreadable(raw) != "" {
		p.Reason, p.Error = waybill.ReasonUndecodable, d.Err.Error()
	}
	return p
}
