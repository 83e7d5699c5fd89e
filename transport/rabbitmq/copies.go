package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// AMQP has no retry after a delay, and basic.reject carries no reason. So a retry, a parked message, and a release that
// must not count are copies, published to the subscription's dead-letter exchange; storecopies.go acknowledges each
// original after its copy was confirmed. The routing key says where a copy goes:
//
//   copy of        | routing key                                | what is added
//   ---------------|--------------------------------------------|----------------------------------------------
//   a retry        | that of a delay queue, or of the way back  | the number of the attempt, the error, when due
//   a parked one   | the queue: it leads to {queue}.dlq         | reason, error, queue, time; no expiry
//   a released one | that of the way back                       | the redeliveries before; see requeueCopy

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

// deadLetterCopy makes the copy for the dead-letter queue. It never expires.
func (r *receiver) deadLetterCopy(ctx context.Context, slot int, a *core.Ack, h *handle, now time.Time) copyToSend {
	p := copyOf(&h.raw, h.topic, h.expires)
	p.Headers[headerAttempt] = int64(max(h.attempt, a.Delivery.Attempt)) // retries in place count, too
	p.Headers[headerReason] = string(a.Reason)
	p.Headers[headerError] = a.Err
	p.Headers[headerQueue] = r.queue
	p.Headers[headerParkedAt] = now.UTC().Format(time.RFC3339Nano)
	if leftOut := fitHeaders(&p, h.sess.frameMax); len(leftOut) > 0 {
		r.log.Event(ctx, slog.LevelWarn, "rabbitmq.headers_left_out",
			"a parked message has lost its largest headers: with the reason they do not fit into a frame (frame_max)",
			slog.String("queue", r.queue), slog.String("id", clip(h.raw.MessageId)), slog.Any("headers", leftOut))
	}
	return copyToSend{slot: slot, exchange: r.dlx, key: r.queue, p: p}
}

// errNoRetry is why a message is parked instead of retried.
var errNoRetry = errors.New("it cannot be retried: with the number of its attempt its headers do not fit into a frame (frame_max)")

// retryCopy makes the copy for a delay queue, or for the queue itself if there is no delay. If the headers leave no
// room for those of a retry, it makes one for the dead-letter queue. A copy that expires before the delay is over comes
// back then at the earliest. The broker looks at the head of a delay queue only, so the copy may come with the one
// before it. The consumer finds that it is expired. A copy that is to wait longer than the longest delay comes after
// that with the time when it is due.
func (r *receiver) retryCopy(ctx context.Context, slot int, a *core.Ack, h *handle, now time.Time) copyToSend {
	p := copyOf(&h.raw, h.topic, h.expires)
	// A message that came early goes on waiting as the same attempt. Its time may have come since.
	if a.SameAttempt || h.notBefore.After(now) || h.early && a.Err == "" {
		setAttempt(p.Headers, h.attempt)
		if e, ok := h.raw.Headers[headerError]; ok {
			p.Headers[headerError] = e
		}
	} else {
		setAttempt(p.Headers, h.attempt+1)
	}
	if a.Err != "" {
		p.Headers[headerError] = a.Err
	}
	delay := r.delays.For(a.Delay)
	if a.Delay > delay && delay > 0 {
		p.Headers[headerDue] = now.Add(a.Delay).UnixMilli()
	}
	p.Expiration = remaining(h.expires, now)
	if checkHeaderFrame(&p, h.sess.frameMax) != nil {
		delete(p.Headers, headerError)
		if checkHeaderFrame(&p, h.sess.frameMax) != nil {
			park := core.AckReject(a.Delivery, waybill.ReasonTooLarge, fmt.Errorf("%w; the handler had failed: %s", errNoRetry, a.Err))
			return r.deadLetterCopy(ctx, slot, &park, h, now)
		}
	}
	switch {
	case delay > 0 && r.t.opts.SharedDelays:
		return copyToSend{slot: slot, exchange: r.t.names.SharedDelay(delay), key: r.queue, p: p}
	case delay > 0:
		return copyToSend{slot: slot, exchange: r.dlx, key: r.t.names.DelayQueue(r.sub.Queue, delay), p: p}
	}
	return copyToSend{slot: slot, exchange: r.dlx, key: r.t.names.ReturnKey(r.sub.Queue), p: p}
}

// requeueCopy makes a copy to publish instead of a requeue, if one is needed. Up to RabbitMQ 4.2 a requeue counts like
// a crash. So a message that is requeued at each stop and each pause would look like one that kills its consumers. The
// first requeue is free. A message with a count is replaced by a fresh copy, which carries the count less the one that
// may be that requeue's. With Subscription.InOrder a requeue or a copy would come behind messages that the broker has
// pushed already: there makeReady is used.
func (r *receiver) requeueCopy(slot int, h *handle, now time.Time) (copyToSend, bool) {
	count := number(h.raw.Headers[headerDeliveryCount])
	if _, apart := h.raw.Headers[headerAcquiredCount]; apart || count <= 0 || unreadable(&h.raw) != "" || !h.expires.IsZero() && !now.Before(h.expires) {
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

// remaining is the rest of a copy's time: at least a millisecond, since the consumer decides what is expired.
func remaining(expires, now time.Time) string {
	s, err := expiration(expires, now)
	if err != nil {
		return "1"
	}
	return s
}

// brokersOwn reports whether a header was put there by the broker on this message's way, so that a copy must not carry
// it.
func brokersOwn(name string) bool {
	return name == headerDeliveryCount || name == headerAcquiredCount || historyHeader(name)
}

// copyOf returns a copy of d to publish again: every property and header, without the broker's own headers and
// Waybill's counters. It adds the real routing key and the absolute expiry, so that the copy's time goes on instead of
// starting again.
func copyOf(d *amqp.Delivery, topic string, expires time.Time) amqp.Publishing {
	table := make(amqp.Table, len(d.Headers)+8)
	for k, v := range d.Headers {
		switch {
		case brokersOwn(k), k == headerTag, k == headerAttempt, k == headerRedeliveries, k == headerError, k == headerDue, k == headerUnreadable:
		default:
			table[wireName(k)] = v
		}
	}
	table[prefixCE+core.AttrTopic] = topic
	if !expires.IsZero() && table[prefixCE+core.AttrExpires] == nil && table[prefixColon+core.AttrExpires] == nil {
		table[prefixCE+core.AttrExpires] = expires.UTC().Format(time.RFC3339Nano)
	}
	if d.UserId != "" {
		table[headerUserID] = d.UserId
	}
	return amqp.Publishing{
		Headers: table, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type,
		AppId: d.AppId, Body: d.Body,
	}
}

// setAttempt writes the number of the attempt, unless it is the first.
func setAttempt(table amqp.Table, attempt int) {
	if attempt > 1 {
		table[headerAttempt] = int64(attempt)
	}
}
