package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
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

func (*copies) failed(int) {} // copies have no order

// Settle implements core.Receiver. A retry or a rejection publishes a copy and acknowledges the original after the copy
// was confirmed and routed. If the copy fails, the original stays unsettled, and Receive returns it again after
// failedCopyPause.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	results := make(core.Results, len(acks))
	var send copies
	var done doneBatch
	var back []*handle
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
			done.add(i, h)
		case core.VerdictReject:
			if r.sub.DropFailed {
				done.add(i, h)
				continue
			}
			send.list = append(send.list, r.parked(i, a, h, now))
		case core.VerdictRetry:
			send.list = append(send.list, r.retried(i, a, h, now))
		case core.VerdictRelease:
			if r.sub.InOrder {
				back = append(back, h)
				continue
			}
			gaveBack = true
			if c, ok := r.givenBack(i, h, now); ok {
				send.list = append(send.list, c)
				continue
			}
			results[i] = settled(h.sess.acks.requeue(h.raw.DeliveryTag))
		case core.VerdictNone:
		}
	}
	done.settle(results)
	r.putBack(back)
	if len(send.list) == 0 {
		return results
	}
	published := make(core.Results, len(send.list))
	r.t.publish(ctx, len(send.list), &send, published)
	for k, err := range published {
		i := send.list[k].slot
		h, _ := acks[i].Delivery.Handle.(*handle)
		if err == nil {
			results[i] = settled(h.sess.acks.ack(h.raw.DeliveryTag))
			continue
		}
		if acks[i].Verdict == core.VerdictRelease {
			_ = h.sess.acks.requeue(h.raw.DeliveryTag) // on a closed channel the broker did so itself
			continue
		}
		results[i] = err
		time.AfterFunc(failedCopyPause, func() { r.putBack([]*handle{h}) })
	}
	return results
}

// failedCopyPause is how long a delivery whose copy failed waits before Receive returns it again. A requeue would come
// back at once and count as a redelivery each time, while the broker blocks publishers or a queue is full.
const failedCopyPause = time.Second

// putBack makes deliveries ready again that stay unsettled, so that the broker counts nothing: in queue order, before
// what was pushed after them, and all of them at once, so that Receive finds none without those before it. What its
// session loses the broker delivers again.
func (r *receiver) putBack(handles []*handle) {
	for len(handles) > 0 {
		s := handles[0].sess
		var rest []*handle
		lost := s.ch.IsClosed()
		s.mu.Lock()
		for _, h := range handles {
			if h.sess != s {
				rest = append(rest, h)
				continue
			}
			if lost {
				continue
			}
			again := &item{handle: handle{
				raw: h.raw, topic: h.topic, expires: h.expires, attempt: h.attempt, redeliveries: h.redeliveries, from: r, sess: s,
			}}
			again.delivery = decode(&again.handle.raw, r.sub.Queue, r.dlx, time.Now())
			again.delivery.Envelope.Expires, again.delivery.Redeliveries, again.delivery.Handle = h.expires, h.redeliveries, &again.handle
			at, _ := slices.BinarySearchFunc(s.ready, h.raw.DeliveryTag, func(d *waybill.Delivery, tag uint64) int {
				return cmp.Compare(d.Handle.(*handle).raw.DeliveryTag, tag)
			})
			s.ready = slices.Insert(s.ready, at, &again.delivery)
		}
		s.mu.Unlock()
		s.signal()
		handles = rest
	}
}

// doneBatch gathers what is done, by channel: all of it is of one, unless the channel was replaced a moment ago.
type doneBatch struct {
	sess  *session
	slots []int
	tags  []uint64
	rest  []*handle
	late  []int
}

func (b *doneBatch) add(slot int, h *handle) {
	if b.sess == nil {
		b.sess = h.sess
	}
	if h.sess != b.sess {
		b.rest, b.late = append(b.rest, h), append(b.late, slot)
		return
	}
	b.slots, b.tags = append(b.slots, slot), append(b.tags, h.raw.DeliveryTag)
}

func (b *doneBatch) settle(results core.Results) {
	if b.sess == nil {
		return
	}
	err := settled(b.sess.acks.ackAll(b.tags))
	for _, i := range b.slots {
		results[i] = err
	}
	for k, h := range b.rest {
		results[b.late[k]] = settled(h.sess.acks.ack(h.raw.DeliveryTag))
	}
}

// claim checks that a can be settled now, by this call alone: a second acknowledgement would close the channel.
func (r *receiver) claim(a *core.Ack) (*handle, error) {
	var h *handle
	if a.Delivery != nil {
		h, _ = a.Delivery.Handle.(*handle)
	}
	switch {
	case h == nil || h.from != r:
		return nil, waybill.Invalid("waybill/rabbitmq: settle", "Delivery: did not come from this receiver")
	case a.Verdict == core.VerdictNone || a.Verdict > core.VerdictRelease:
		return nil, waybill.Invalid("waybill/rabbitmq: settle", "Verdict: is none of done, retry, reject and give back")
	case h.sess.ch.IsClosed():
		return nil, outage("settle", errStale)
	case !h.settled.CompareAndSwap(false, true):
		return nil, waybill.Invalid("waybill/rabbitmq: settle", errSettled.Error())
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
	p.Headers[headerAttempt] = int64(max(h.attempt, a.Delivery.Attempt)) // retries in place count, too
	p.Headers[headerReason] = string(a.Reason)
	p.Headers[headerError] = a.Err
	p.Headers[headerQueue] = r.queue
	p.Headers[headerParkedAt] = now.UTC().Format(time.RFC3339Nano)
	return copyToSend{slot: slot, exchange: r.dlx, key: r.queue, p: p}
}

// retried makes the copy for a delay queue, or for the queue itself if there is no delay. If its time ends before that
// of the delay queue, it comes back then at the earliest: the broker looks at the head of a delay queue only, so that
// it may come with the one before it. It is found to be expired.
func (r *receiver) retried(slot int, a *core.Ack, h *handle, now time.Time) copyToSend {
	p := copyOf(&h.raw, h.topic, h.expires)
	setAttempt(p.Headers, h.attempt+1)
	if a.Err != "" {
		p.Headers[headerError] = a.Err
	}
	p.Expiration = remaining(h.expires, now)
	if d := r.delays.For(a.Delay); d > 0 {
		return copyToSend{slot: slot, exchange: r.t.names.DelayExchange(d), key: r.queue, p: p}
	}
	return copyToSend{slot: slot, exchange: r.dlx, key: r.t.names.ReturnKey(r.sub.Queue), p: p}
}

// givenBack makes a copy to give back instead of a requeue, if one is needed: up to RabbitMQ 4.2 a requeue adds to the
// count that a crash adds to, so that a message that is given back again and again (each stop, each pause) would look
// like one that kills its consumers. The first requeue is free; one with a count is replaced by a fresh copy, which
// takes the count along less the one that may stand for that requeue. With Subscription.InOrder either would come
// behind what the broker has pushed already: there putBack is used.
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
	return copyToSend{slot: slot, exchange: r.dlx, key: r.t.names.ReturnKey(r.sub.Queue), p: p}, true
}

// remaining is what remains of a copy's time: at least a millisecond, since the consumer decides about what is expired.
func remaining(expires, now time.Time) string {
	s, err := expiration(expires, now)
	if err != nil {
		return "1"
	}
	return s
}
