package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/parked"
)

const (
	// maxListed bounds the messages that one listing looks at. Up to maxOrdered a look takes all of them, so that
	// they keep their order.
	maxListed  = 100_000
	maxOrdered = 10_000
	// replayChunk is how many messages are replayed before they are removed.
	replayChunk = 64
	// refreshCount is the number of requeues after which a fresh copy replaces a parked message. Up to RabbitMQ 4.2
	// a quorum queue counts requeues, and drops a message at its delivery limit. So no number of listings drops
	// one.
	refreshCount = 1000
	// recountTime is how long to wait until the queue counts requeued messages again. It does not if others get
	// them.
	recountTime = 500 * time.Millisecond
	// walkChunk bounds the messages that a walk takes at a time.
	walkChunk = 500
	// walkFirst bounds the first ones, whose sizes are not known.
	walkFirst = 8
	// requeueGroup is how many messages are requeued with one frame. A quorum queue requeues more than 32 in any
	// order. From 32 frames that the queue has not seen, the broker makes one.
	requeueGroup, requeueGroups = 32, 16
	// walkSilence is how long a walk waits for a message before it asks whether others have the rest.
	walkSilence = 200 * time.Millisecond
	// requeueTimeout bounds the requeue at the end of a listing or a replay, whose own context may be over.
	requeueTimeout = 5 * time.Second
)

// parkedQueue makes the operations on parked messages methods of a Transport.
type parkedQueue = admin.ParkedQueue

func (t *Transport) walks() parked.Walks {
	return parked.Walks{
		Adapter: "waybill/rabbitmq", Batch: replayChunk, MaxListed: maxListed,
		Open: func(ctx context.Context, _, queue string) (parked.Walk, error) { return t.walkParked(ctx, queue) },
	}
}

// errNoReplay is why a message stays in its dead-letter queue.
var errNoReplay = permanent("replay parked", waybill.ReasonUndecodable, errors.New("the headers cannot be read, and a copy would lack them: "+
	"purge it, or move it with another client"))

// Total implements parked.Walk.
func (w *parkedWalk) Total(context.Context) (int, error) { return w.initial, nil }

// Next implements parked.Walk.
func (w *parkedWalk) Next(ctx context.Context, want int) (*parked.Item, error) {
	raw, p, err := w.next(ctx, want)
	if err != nil || p == nil {
		return nil, err
	}
	m := &parked.Item{Parked: *p, Raw: raw}
	if unreadable(raw) != "" {
		m.Fixed = errNoReplay
	}
	return m, nil
}

// Replay implements parked.Walk.
func (w *parkedWalk) Replay(ctx context.Context, items []*parked.Item) error {
	send := copies{list: make([]copyToSend, len(items))}
	now := time.Now()
	for i, m := range items {
		send.list[i] = copyToSend{
			slot: i, exchange: w.t.names.DeadLetterExchange(w.name), key: w.t.names.ReturnKey(w.name), p: replayCopy(m, now),
		}
	}
	results := make(core.Results, len(items))
	w.t.publish(ctx, len(items), &send, results)
	var first error
	var sent []*parked.Item
	for i, m := range items {
		if m.Err = results[i]; m.Err == nil {
			m.Changed = true // it is in its queue, in any case
			sent = append(sent, m)
		}
		first = cmp.Or(first, m.Err)
	}
	return cmp.Or(first, w.removeAll(ctx, sent))
}

// Remove implements parked.Walk.
func (w *parkedWalk) Remove(ctx context.Context, items []*parked.Item) error {
	err := w.removeAll(ctx, items)
	for _, m := range items {
		m.Changed = m.Err == nil
	}
	return err
}

// removeAll removes items, and notes the error with each that it did not remove.
func (w *parkedWalk) removeAll(ctx context.Context, items []*parked.Item) error {
	tags := make([]uint64, len(items))
	for i, m := range items {
		tags[i] = m.Raw.(*amqp.Delivery).DeliveryTag
	}
	removed, err := w.remove(ctx, tags...)
	for i, m := range items {
		if m.Err = nil; i >= removed {
			m.Err = err
		}
	}
	return err
}

// replayCopy is a parked message as a first attempt, with the rest of its time.
func replayCopy(m *parked.Item, now time.Time) amqp.Publishing {
	c := copyOf(m.Raw.(*amqp.Delivery), m.Envelope.Topic, m.Envelope.Expires)
	for _, name := range []string{headerReason, headerQueue, headerParkedAt} {
		delete(c.Headers, name)
	}
	c.Expiration = remaining(m.Envelope.Expires, now)
	if m.Edited {
		c.Body = m.Envelope.Body
		for name, value := range m.Added {
			c.Headers[wireName(name)] = value
		}
	}
	return c
}
