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

const (
	// maxListed bounds the messages that one listing looks at.
	maxListed = 100_000
	// replayChunk is how many messages are replayed before they are removed.
	replayChunk = 64
	// refreshCount is after how many looks a parked message is replaced by a fresh copy. A quorum queue counts what is
	// put back (up to RabbitMQ 4.2), and drops what was put back deliveryLimit times; so no number of looks pushes a
	// parked message out.
	refreshCount = 1000
	// seenAgain is how long to wait until what was put back is counted again. It is not if others take it.
	seenAgain = 500 * time.Millisecond
	// putBackTime bounds the end of a listing or a replay, whose own context may be over.
	putBackTime = 5 * time.Second
)

// ParkedDepth implements admin.ParkedQueue. What somebody looks at in this moment is not counted. A queue that does not
// exist is waybill.ErrNotFound.
func (t *Transport) ParkedDepth(ctx context.Context, queue string) (int, error) {
	w, err := t.walkParked(ctx, queue)
	if err != nil {
		return 0, err
	}
	w.close(ctx)
	return w.total, nil
}

// ListParked implements admin.ParkedQueue. It takes messages out without acknowledging them, and puts them back in
// their order when it is done; in the meantime nobody else sees them. It looks at the 100,000 oldest at most. Should it
// die, the broker puts them back.
func (t *Transport) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	if limit < 1 {
		return nil, waybill.Invalid("waybill/rabbitmq: list parked", fmt.Sprintf("limit: %d is less than 1", limit))
	}
	w, err := t.walkParked(ctx, queue)
	if err != nil {
		return nil, err
	}
	defer w.close(ctx)
	w.total = min(w.total, maxListed)
	var out []admin.Parked
	for len(out) < limit {
		_, p, err := w.next(ctx)
		if err != nil {
			return nil, err
		}
		if p == nil {
			break
		}
		if f.Matches(p) {
			p.Envelope.Body = nil
			out = append(out, *p)
		}
	}
	return out, nil
}

// ReplayParked implements admin.ParkedQueue. The messages go to the queue through the dead-letter exchange, without the
// headers that they were parked with, and each is removed after the broker confirmed and routed it. It ends with the
// first error. Messages that do not match, or are expired, are held until the end and put back; with more than 30
// minutes of that the broker may close the channel (consumer_timeout), which puts them back too.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	done := 0
	matches := func(p *admin.Parked) bool {
		return p.Reason != waybill.ReasonExpired && !p.Envelope.Expired(time.Now()) && req.Filter.Matches(p)
	}
	err := t.changeParked(ctx, "replay parked", &req, matches, func(w *parkedWalk, batch []parkedMessage) error {
		send := copies{list: make([]copyToSend, len(batch))}
		now := time.Now()
		for i, m := range batch {
			send.list[i] = copyToSend{slot: i, exchange: t.names.DeadLetterExchange(), key: t.names.ReturnKey(w.name), p: replayCopy(m, now)}
		}
		results := make(core.Results, len(batch))
		t.publish(ctx, len(batch), &send, results)
		var first error
		for i, err := range results {
			if err == nil {
				err = w.remove(ctx, batch[i].raw.DeliveryTag)
				done++ // it is in its queue, in any case
			}
			if first == nil {
				first = err
			}
		}
		return first
	})
	return done, err
}

// PurgeParked implements admin.ParkedQueue.
func (t *Transport) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	done := 0
	err := t.changeParked(ctx, "purge parked", &req, req.Filter.Matches, func(w *parkedWalk, batch []parkedMessage) error {
		for _, m := range batch {
			if err := w.remove(ctx, m.raw.DeliveryTag); err != nil {
				return err
			}
			done++
		}
		return nil
	})
	return done, err
}

// parkedMessage is a parked message that was taken out.
type parkedMessage struct {
	raw *amqp.Delivery
	*admin.Parked
}

// changeParked passes what matches to do, in batches and at the rate of req.
func (t *Transport) changeParked(ctx context.Context, op string, req *admin.ParkedRequest, matches func(*admin.Parked) bool,
	do func(*parkedWalk, []parkedMessage) error,
) error {
	if err := waybill.Invalid("waybill/rabbitmq: "+op, req.Problems()...); err != nil {
		return err
	}
	w, err := t.walkParked(ctx, req.Queue)
	if err != nil {
		return err
	}
	defer w.close(ctx)
	total, looked, picked := w.total, 0, 0
	started := time.Now()
	var batch []parkedMessage
	flush := func() error {
		if len(batch) > 0 {
			picked += len(batch)
			if err := do(w, batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
		if req.Progress != nil {
			req.Progress(looked, total)
		}
		return nil
	}
	size := replayChunk
	if req.PerSecond > 0 {
		size = max(1, min(size, int(req.PerSecond/10)))
	}
	for req.Limit == 0 || picked+len(batch) < req.Limit {
		raw, p, err := w.next(ctx)
		if err != nil {
			return err
		}
		if p == nil {
			break
		}
		looked++
		if matches(p) {
			batch = append(batch, parkedMessage{raw, p})
		} else {
			raw.Body, p.Envelope.Body = nil, nil
		}
		if len(batch) >= size || len(batch) == 0 && looked%replayChunk == 0 {
			if err := flush(); err != nil {
				return err
			}
			if err := wait(ctx, req.Pace(picked, started, time.Now())); err != nil {
				return err
			}
		}
	}
	return flush()
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// parkedWalk takes the messages of a dead-letter queue out, one after the other. It holds them unacknowledged on a
// channel of its own, so that they go back whatever happens.
type parkedWalk struct {
	t          *Transport
	ch         *amqp.Channel
	name       string // of the subscription
	queue, dlq string
	there      int // at the beginning
	total      int // of them, to be looked at
	taken      int
	removed    int
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
	connecting, cancel := context.WithTimeout(ctx, t.opts.ConnectTimeout+t.opts.ReconnectMax)
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
		w.there, w.total = q.Messages, q.Messages
		return err
	}, nil)
	switch {
	case err == nil:
		return w, nil
	case refused(err, amqp.NotFound):
		return nil, permanent(op, waybill.ReasonNone, fmt.Errorf("%w: queue %q does not exist: check the subscription's name and Options.Prefix, or declare the subscription (%w)", waybill.ErrNotFound, w.dlq, err))
	case refused(err, amqp.AccessRefused):
		return nil, w.forbidden(err)
	}
	w.close(ctx)
	return nil, outage(op, fmt.Errorf("queue %q: %w", w.dlq, err))
}

func (w *parkedWalk) forbidden(err error) error {
	return misconfigured("parked", "the user may not read queue %q: give it the operator's permissions of Topology.Permissions (%w)", w.dlq, err)
}

// next takes the next message out; nil if there are no more of those that were there at the beginning.
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
		p := parkedOf(&raw, w.name, w.queue, w.t.names.DeadLetterExchange())
		if number(raw.Headers[headerDeliveryCount]) >= w.t.refreshAt {
			if fresh := w.refresh(ctx, &raw, &p); fresh {
				w.total++ // it comes once more, at the end
				w.there++
				continue
			}
		}
		return &raw, &p, nil
	}
	return nil, nil, nil
}

// refresh puts a copy of a parked message at the end of its queue, where nobody has looked at it yet, and reports
// whether it replaced the message.
func (w *parkedWalk) refresh(ctx context.Context, raw *amqp.Delivery, p *admin.Parked) bool {
	c := copyOf(raw, p.Envelope.Topic, p.Envelope.Expires)
	maps.Copy(c.Headers, amqp.Table{headerAttempt: int64(p.Attempts), headerReason: string(p.Reason), headerError: p.Error, headerQueue: w.queue})
	if !p.At.IsZero() {
		c.Headers[headerParkedAt] = p.At.UTC().Format(time.RFC3339Nano)
	}
	send := copies{list: []copyToSend{{exchange: w.t.names.DeadLetterExchange(), key: w.queue, p: c}}}
	results := make(core.Results, 1)
	w.t.publish(ctx, 1, &send, results)
	return results[0] == nil && w.remove(ctx, raw.DeliveryTag) == nil
}

func (w *parkedWalk) remove(ctx context.Context, tag uint64) error {
	if err := await(ctx, func() error { return w.ch.Ack(tag, false) }, nil); err != nil {
		return outage("parked", fmt.Errorf("queue %q: a message may be handled and parked still: %w", w.dlq, err))
	}
	w.removed++
	return nil
}

// close puts back what was not removed, in its order. On a channel that is closed the broker did so itself. A quorum
// queue counts late, so close waits a moment until the messages are seen to be there: whoever looks next begins with
// their number.
func (w *parkedWalk) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackTime)
	defer cancel()
	_ = await(ctx, func() error {
		if w.taken == w.removed || w.ch.IsClosed() {
			return w.ch.Close()
		}
		err := w.ch.Nack(0, true, true)
		for giveUp := time.Now().Add(seenAgain); err == nil && time.Now().Before(giveUp); err = wait(ctx, 5*time.Millisecond) {
			q, lost := w.ch.QueueDeclarePassive(w.dlq, true, false, false, false, nil)
			if lost != nil || q.Messages >= w.there-w.removed {
				break
			}
		}
		return errors.Join(err, w.ch.Close())
	}, nil)
}

// parkedOf reads a parked message. One that the broker dead-lettered itself (its time was over in the queue) has the
// broker's words for why.
func parkedOf(raw *amqp.Delivery, name, queue, dlx string) admin.Parked {
	d := decode(raw, name, dlx, time.Now())
	p := admin.Parked{
		Envelope: d.Envelope, Queue: name, Reason: waybill.Reason(text(raw.Headers[headerReason])), Error: text(raw.Headers[headerError]), Attempts: d.Attempt,
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
		if keys, _ := death["routing-keys"].([]any); len(keys) > 0 && raw.Headers[prefixCE+core.AttrTopic] == nil && raw.Headers[prefixColon+core.AttrTopic] == nil {
			p.Envelope.Topic = text(keys[0])
		}
	}
	return p
}

// replayCopy is a parked message as a first attempt, with what remains of its time.
func replayCopy(m parkedMessage, now time.Time) amqp.Publishing {
	c := copyOf(m.raw, m.Envelope.Topic, m.Envelope.Expires)
	for _, name := range []string{headerReason, headerQueue, headerParkedAt} {
		delete(c.Headers, name)
	}
	c.Expiration = remaining(m.Envelope.Expires, now)
	return c
}
