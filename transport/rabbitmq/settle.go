package rabbitmq

import (
	"context"
	"errors"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/core"
)

var (
	errStale   = errors.New("the channel it came on is closed; the message comes again")
	errSettled = errors.New("the delivery was settled before")
)

// copies are messages to publish on behalf of deliveries.
type copies struct {
	list []copyToSend
}

type copyToSend struct {
	slot          int // in the acks
	exchange, key string
	p             amqp.Publishing
}

func (c *copies) fill(i int, _ time.Time, table amqp.Table) (exchange, key string, p amqp.Publishing, err error) {
	m := &c.list[i]
	p = m.p
	maps.Copy(table, m.p.Headers)
	p.Headers = table
	return m.exchange, m.key, p, nil
}

// Settle implements core.Receiver. A retry or a rejection publishes a copy and acknowledges the original after the copy was confirmed and
// routed. If the copy fails, the original goes back to the queue.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	results := make(core.Results, len(acks))
	var send copies
	now := time.Now()
	gaveBack := false
	defer func() {
		if gaveBack {
			r.mu.Lock()
			r.gaveBack = time.Now()
			r.mu.Unlock()
		}
	}()
	for i := range acks {
		a := &acks[i]
		h, err := r.claim(a)
		if err != nil {
			results[i] = err
			continue
		}
		switch a.Verdict {
		case core.VerdictDone:
			results[i] = settled(h.sess.ch.Ack(h.raw.DeliveryTag, false))
		case core.VerdictReject:
			if r.sub.Unparked {
				results[i] = settled(h.sess.ch.Ack(h.raw.DeliveryTag, false))
				continue
			}
			send.list = append(send.list, r.parked(i, a, h, now))
		case core.VerdictRetry:
			send.list = append(send.list, r.retried(i, a, h, now))
		case core.VerdictGiveBack:
			gaveBack = true
			if c, ok := r.givenBack(i, h, now); ok {
				send.list = append(send.list, c)
				continue
			}
			results[i] = settled(h.sess.ch.Nack(h.raw.DeliveryTag, false, true))
		case core.VerdictNone:
		}
	}
	if len(send.list) == 0 {
		return results
	}
	published := make(core.Results, len(send.list))
	r.t.publish(ctx, len(send.list), &send, published)
	for k, err := range published {
		i := send.list[k].slot
		h, _ := acks[i].Delivery.Handle.(*handle)
		if err == nil {
			results[i] = settled(h.sess.ch.Ack(h.raw.DeliveryTag, false))
			continue
		}
		_ = h.sess.ch.Nack(h.raw.DeliveryTag, false, true) // on a closed channel the broker did so itself
		if acks[i].Verdict != core.VerdictGiveBack {
			results[i] = err
		}
	}
	return results
}

// claim checks that a can be settled now, by this call alone: a second acknowledgement would close the channel.
func (r *receiver) claim(a *core.Ack) (*handle, error) {
	var h *handle
	if a.Delivery != nil {
		h, _ = a.Delivery.Handle.(*handle)
	}
	switch {
	case h == nil || h.from != r:
		return nil, core.Invalid("waybill/rabbitmq: settle", "Delivery: did not come from this receiver")
	case a.Verdict == core.VerdictNone || a.Verdict > core.VerdictGiveBack:
		return nil, core.Invalid("waybill/rabbitmq: settle", "Verdict: is none of done, retry, reject and give back")
	case h.sess.ch.IsClosed():
		return nil, outage("settle", errStale)
	case !h.settled.CompareAndSwap(false, true):
		return nil, core.Invalid("waybill/rabbitmq: settle", errSettled.Error())
	}
	return h, nil
}

func settled(err error) error {
	if err == nil {
		return nil
	}
	return outage("settle", errors.Join(errStale, err))
}

// parked makes the copy for the dead-letter queue. It never expires.
func (r *receiver) parked(slot int, a *core.Ack, h *handle, now time.Time) copyToSend {
	p := copyOf(&h.raw, h.topic, h.expires)
	p.Headers[headerAttempt] = int64(h.attempt)
	p.Headers[headerReason] = string(a.Reason)
	p.Headers[headerError] = a.Err
	p.Headers[headerQueue] = r.queue
	p.Headers[headerParkedAt] = now.UTC().Format(time.RFC3339Nano)
	return copyToSend{slot: slot, exchange: r.t.opts.names().dlx(), key: r.queue, p: p}
}

// retried makes the copy for a delay queue, or for the queue itself if there is no delay. If its time ends before that of the delay queue, it
// comes back then, and is found to be expired.
func (r *receiver) retried(slot int, a *core.Ack, h *handle, now time.Time) copyToSend {
	p := copyOf(&h.raw, h.topic, h.expires)
	setAttempt(p.Headers, h.attempt+1)
	if a.Err != "" {
		p.Headers[headerError] = a.Err
	}
	p.Expiration = remaining(h.expires, now)
	c := copyToSend{slot: slot, key: r.queue, p: p}
	if d := tierFor(r.tiers, a.Delay); d > 0 {
		c.exchange = r.t.opts.names().delay(d)
	}
	return c
}

// givenBack makes a copy to give back instead of a requeue, if one is needed: up to RabbitMQ 4.2 a requeue adds to the count that a crash adds
// to, so that a message that is given back again and again (each stop, each pause) would look like one that kills its consumers. The first
// requeue is free; one with a count is replaced by a fresh copy, which takes the count along less the one that may stand for that requeue.
func (r *receiver) givenBack(slot int, h *handle, now time.Time) (copyToSend, bool) {
	count := number(h.raw.Headers[headerDeliveryCount])
	if _, apart := h.raw.Headers[headerAcquiredCount]; apart || count <= 0 || !h.expires.IsZero() && !now.Before(h.expires) {
		return copyToSend{}, false
	}
	p := copyOf(&h.raw, h.topic, h.expires)
	setAttempt(p.Headers, h.attempt)
	if e, ok := h.raw.Headers[headerError]; ok {
		p.Headers[headerError] = e
	}
	if n := int64(h.redeliveries) - 1; n > 0 {
		p.Headers[headerRedeliveries] = n
	}
	p.Expiration = remaining(h.expires, now)
	return copyToSend{slot: slot, key: r.queue, p: p}, true
}

// remaining is what remains of a copy's time: at least a millisecond, since the consumer decides about what is expired.
func remaining(expires, now time.Time) string {
	s, err := expiration(expires, now)
	if err != nil {
		return "1"
	}
	return s
}
