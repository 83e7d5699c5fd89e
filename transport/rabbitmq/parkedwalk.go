package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// parkedWalk gets the messages of a dead-letter queue, one after the other. It holds them unacknowledged on a channel
// of its own, so that the broker requeues them whatever happens.
type parkedWalk struct {
	t          *Transport
	ch         *amqp.Channel
	name       string // of the subscription
	queue, dlq string
	initial    int // at the beginning
	total      int // of them, to be looked at
	taken      int
	removed    int
	refreshed  int // of taken, those that come once more
}

func (t *Transport) walkParked(ctx context.Context, queue string) (*parkedWalk, error) {
	const op = "parked"
	if isClosed(t.closing) {
		return nil, outage(op, waybill.ErrClosed)
	}
	if p := subscriptionProblems(&core.Subscription{Queue: queue}, t.opts); len(p) > 0 {
		return nil, waybill.Invalid("waybill/rabbitmq: "+op, p...)
	}
	w := &parkedWalk{t: t, name: queue, queue: t.names.Queue(queue), dlq: t.names.DeadLetterQueue(queue)}
	connecting, cancel := context.WithTimeout(ctx, t.opts.openTimeout())
	defer cancel()
	c, err := t.in.get(connecting)
	if err != nil {
		return nil, err
	}
	if w.ch, err = c.channel(connecting); err != nil {
		return nil, err
	}
	err = await(connecting, func() error {
		q, err := w.ch.QueueDeclarePassive(w.dlq, true, false, false, false, nil)
		w.initial, w.total = q.Messages, q.Messages
		return err
	}, nil)
	switch {
	case err == nil:
		return w, nil
	case refused(err, amqp.NotFound):
		return nil, permanent(op, waybill.ReasonNone, fmt.Errorf("%w: queue %q does not exist: "+
			"check the subscription's name and Options.Prefix, or declare the subscription (%w)", waybill.ErrNotFound, w.dlq, err))
	case refused(err, amqp.AccessRefused):
		return nil, w.forbidden(err)
	}
	w.close(ctx)
	return nil, outage(op, fmt.Errorf("queue %q: %w", w.dlq, err))
}

func (w *parkedWalk) forbidden(err error) error {
	return misconfigured("parked", "the user may not read queue %q: "+
		"give it the operator's permissions of Topology.Permissions (%w)", w.dlq, err)
}

// next gets the next message; nil if there are no more of those that were there at the beginning.
func (w *parkedWalk) next(ctx context.Context) (*amqp.Delivery, *admin.Parked, error) {
	for w.taken < w.total {
		var raw amqp.Delivery
		var ok bool
		err := await(ctx, func() (err error) {
			raw, ok, err = w.ch.Get(w.dlq, false)
			return err
		}, nil)
		switch {
		case refused(err, amqp.AccessRefused):
			return nil, nil, w.forbidden(err)
		case err != nil:
			return nil, nil, outage("parked", fmt.Errorf("queue %q: %w", w.dlq, err))
		case !ok:
			return nil, nil, nil
		}
		w.taken++
		p := parkedOf(&raw, w.name, w.queue, w.t.names.DeadLetterExchange(w.name))
		p.Position = w.taken - w.refreshed
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
	return nil, nil, nil
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
	return results[0] == nil && w.remove(ctx, raw.DeliveryTag) == nil
}

func (w *parkedWalk) remove(ctx context.Context, tag uint64) error {
	if err := await(ctx, func() error { return w.ch.Ack(tag, false) }, nil); err != nil {
		return outage("parked", fmt.Errorf("queue %q: a message may be handled and still parked: %w", w.dlq, err))
	}
	w.removed++
	return nil
}

// close requeues what was not removed, in its order. On a closed channel the broker did so itself. A quorum queue
// counts late. So close waits a moment until the queue's number of messages is right again: the next walk begins with
// it.
func (w *parkedWalk) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requeueTimeout)
	defer cancel()
	_ = await(ctx, func() error {
		if w.taken == w.removed || w.ch.IsClosed() {
			return w.ch.Close()
		}
		err := w.takeRest(ctx)
		if err == nil {
			err = w.ch.Nack(0, true, true)
		}
		for giveUp := time.Now().Add(recountTime); err == nil && time.Now().Before(giveUp); err = wait(ctx, 5*time.Millisecond) {
			q, lost := w.ch.QueueDeclarePassive(w.dlq, true, false, false, false, nil)
			if lost != nil || q.Messages >= w.initial-w.removed {
				break
			}
		}
		return errors.Join(err, w.ch.Close())
	}, nil)
}

// takeRest takes the rest, if that is not too much: requeued messages come behind those that were never taken. A
// consumer gets all of it in a few round trips.
func (w *parkedWalk) takeRest(ctx context.Context) error {
	rest := w.initial - w.taken
	if w.initial > maxOrdered || rest <= 0 {
		return nil
	}
	if err := w.ch.Qos(rest, 0, false); err != nil {
		return err
	}
	const tag = "rest"
	got, err := w.ch.Consume(w.dlq, tag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	idle := time.NewTimer(restIdle)
	defer idle.Stop()
	for ; rest > 0; rest-- {
		idle.Reset(restIdle)
		select {
		case _, ok := <-got:
			if !ok {
				return w.ch.Cancel(tag, false) // the channel ended
			}
			w.taken++
		case <-idle.C: // other consumers have the others
			return w.ch.Cancel(tag, false)
		case <-ctx.Done():
			return nil // they are requeued as they are
		}
	}
	return w.ch.Cancel(tag, false)
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
		known := raw.Headers[prefixCE+core.AttrTopic] != nil || raw.Headers[prefixColon+core.AttrTopic] != nil
		if keys, _ := death["routing-keys"].([]any); len(keys) > 0 && !known {
			p.Envelope.Topic = text(keys[0])
		}
	}
	if unreadable(raw) != "" {
		p.Reason, p.Error = waybill.ReasonUndecodable, d.Err.Error()
	}
	return p
}

// replayCopy is a parked message as a first attempt, with the rest of its time.
func replayCopy(m parkedMessage, now time.Time) amqp.Publishing {
	c := copyOf(m.raw, m.Envelope.Topic, m.Envelope.Expires)
	for _, name := range []string{headerReason, headerQueue, headerParkedAt} {
		delete(c.Headers, name)
	}
	c.Expiration = remaining(m.Envelope.Expires, now)
	return c
}
