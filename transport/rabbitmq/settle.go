package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

//   verdict            | to the broker
//   -------------------|--------------------------------------------------------------------------------------
//   done               | an ack; all of a call in one frame
//   retry              | a copy to a delay queue, and the ack when the copy is confirmed and routed
//   reject             | a copy to the dead-letter queue, and the ack in the same way; an ack with DropFailed
//   reject, unreadable | a reject: the broker moves it, since a copy would lack headers (brokerParks)
//   release            | a requeue, or a copy where a requeue would count as a failed delivery
//   release, in order  | nothing: it is ready again here, before its successors

var (
	errStale   = fmt.Errorf("%w: the channel it came on is closed; the message comes again", waybill.ErrLeaseLost)
	errSettled = errors.New("the delivery was settled before")
)

// Settle implements core.Receiver. A retry or a rejection publishes a copy and acknowledges the original after the copy
// was confirmed and routed. If the copy fails, the delivery stays with its receiver: it can be settled again. First
// each ack is checked and sorted by its verdict; requeues are sent at once. Then, in this order, done ones are
// acknowledged, released ones in order are made ready, messages that the broker parks are rejected, and copies are
// published.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	results := make(core.Results, len(acks))
	var send copies
	var done doneBatch
	var again []*handle // to make ready
	var parks []int     // the acks of messages that the broker parks
	now := time.Now()
	requeued := false
	defer func() {
		if requeued {
			r.mu.Lock()
			r.requeuedAt = time.Now()
			r.mu.Unlock()
		}
	}()
	for i := range acks {
		a := &acks[i]
		h, err := r.settleable(a)
		if err != nil {
			results[i] = err
			continue
		}
		copied := a.Verdict == core.VerdictRetry || a.Verdict == core.VerdictReject && !r.sub.DropFailed
		if copied && unreadable(&h.raw) != "" { // a copy would lack headers
			parks = append(parks, i)
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
			send.list = append(send.list, r.deadLetterCopy(ctx, i, a, h, now))
		case core.VerdictRetry:
			send.list = append(send.list, r.retryCopy(ctx, i, a, h, now))
		case core.VerdictRelease:
			if r.sub.InOrder {
				again = append(again, h)
				continue
			}
			requeued = true
			if c, ok := r.requeueCopy(i, h, now); ok {
				send.list = append(send.list, c)
				continue
			}
			results[i] = settled(h.sess.acks.requeue(h.raw.DeliveryTag))
		case core.VerdictNone:
		}
	}
	done.settle(results)
	r.makeReady(again)
	r.brokerParks(ctx, acks, parks, results)
	if len(send.list) > 0 {
		r.storeCopies(ctx, acks, send.list, results)
	}
	r.overdue.settled(acks, results)
	return results
}

// makeReady makes deliveries ready again without a requeue, so that the broker counts nothing. They come in queue
// order, before what was pushed after them, and all at once, so that Receive finds none without those before it. The
// broker delivers the messages of a lost session again.
func (r *receiver) makeReady(handles []*handle) {
	for len(handles) > 0 {
		s := handles[0].sess
		var rest []*handle
		var list []*waybill.Delivery
		lost := s.ch.IsClosed()
		for _, h := range handles {
			if h.sess != s {
				rest = append(rest, h)
				continue
			}
			if lost {
				continue
			}
			next := &item{handle: handle{
				raw: h.raw, topic: h.topic, expires: h.expires, notBefore: h.notBefore, early: h.early, attempt: h.attempt, redeliveries: h.redeliveries, from: r, sess: s,
			}}
			decode(&next.delivery, &next.handle.raw, r.sub.Queue, r.dlx, time.Now())
			next.delivery.Envelope.Expires, next.delivery.Redeliveries, next.delivery.Handle = h.expires, h.redeliveries, &next.handle
			list = append(list, &next.delivery)
		}
		s.again(list...)
		handles = rest
	}
}

// doneBatch gathers deliveries that are done. All are of one channel, unless it was replaced a moment ago.
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

// settleable checks that a can be settled now, by this call alone: a second acknowledgement would close the channel.
func (r *receiver) settleable(a *core.Ack) (*handle, error) {
	var h *handle
	if a.Delivery != nil {
		h, _ = a.Delivery.Handle.(*handle)
	}
	switch {
	case h == nil || h.from != r:
		return nil, waybill.Invalid("waybill/rabbitmq: settle", "Delivery: did not come from this receiver")
	case a.Verdict == core.VerdictNone || a.Verdict > core.VerdictRelease:
		return nil, waybill.Invalid("waybill/rabbitmq: settle", "Verdict: is none of done, retry, reject and release")
	case h.sess.ch.IsClosed():
		return nil, outage("settle", errStale)
	case !h.settled.CompareAndSwap(false, true):
		return nil, waybill.Invalid("waybill/rabbitmq: settle", errSettled.Error())
	}
	return h, nil
}

// settled returns the error of an acknowledgement. One fails only with its channel, and the message comes again then.
func settled(err error) error {
	if err == nil {
		return nil
	}
	return outage("settle", errors.Join(errStale, err))
}
