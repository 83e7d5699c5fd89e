package rabbitmq

import (
	"context"
	"errors"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/content"
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

// ParkedDepth implements admin.ParkedQueue. Messages that are listed or replayed at this moment are not counted. A
// queue that does not exist is waybill.ErrNotFound.
func (t *Transport) ParkedDepth(ctx context.Context, queue string) (int, error) {
	w, err := t.walkParked(ctx, queue)
	if err != nil {
		return 0, err
	}
	w.close(ctx)
	return w.total, nil
}

// CountParked implements admin.ParkedQueue. It looks at the messages as ListParked does.
func (t *Transport) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	return t.parked().Count(ctx, queue)
}

// InspectParked implements admin.ParkedQueue. It looks at the messages as ListParked does.
func (t *Transport) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	return t.parked().Inspect(ctx, queue, f)
}

// ListParked implements admin.ParkedQueue. It takes messages without acknowledging them, and requeues them when it is
// done; in the meantime no other program sees them. It looks at the 100,000 oldest at most. If the process dies, the
// broker requeues them. Of up to 10,000 parked messages the order stays as it is. Of more, those that it looked at come
// behind the others afterwards.
func (t *Transport) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	return t.parked().List(ctx, queue, f, limit)
}

func (t *Transport) parked() admin.ParkedReader {
	return admin.ParkedReader{Adapter: "waybill/rabbitmq", Walk: func(ctx context.Context, _, queue string, want int, fn func(*admin.Parked) int) error {
		w, err := t.walkParked(ctx, queue)
		if err != nil {
			return err
		}
		defer w.close(ctx)
		return w.look(ctx, want, fn)
	}}
}

// ReplayParked implements admin.ParkedQueue. The messages go to the queue through the dead-letter exchange, without the
// headers that they were parked with, and each is removed after the broker confirmed and routed it. It ends with the
// first error. Messages that do not match, or are expired, are held until the end and requeued. After 30 minutes the
// broker may close the channel (consumer_timeout), which requeues them too.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	done := 0
	matches := func(p *admin.Parked) bool {
		return p.Reason != waybill.ReasonExpired && !p.Envelope.Expired(time.Now()) && req.Filter.Matches(p)
	}
	err := t.changeParked(ctx, "replay parked", &req, matches, func(w *parkedWalk, batch []parkedMessage) error {
		batch = edited(&req, replayable(&req, batch))
		send := copies{list: make([]copyToSend, len(batch))}
		now := time.Now()
		for i, m := range batch {
			send.list[i] = copyToSend{
				slot: i, exchange: t.names.DeadLetterExchange(w.name), key: t.names.ReturnKey(w.name), p: replayCopy(m, now),
			}
		}
		results := make(core.Results, len(batch))
		t.publish(ctx, len(batch), &send, results)
		var first error
		for i, err := range results {
			if err == nil {
				err = w.remove(ctx, batch[i].raw.DeliveryTag)
				done++ // it is in its queue, in any case
			}
			req.Tell(batch[i].Parked, err)
			if first == nil {
				first = err
			}
		}
		return first
	})
	return done, err
}

// errNoReplay is why a message stays in its dead-letter queue.
var errNoReplay = permanent("replay parked", waybill.ReasonUndecodable, errors.New("the headers cannot be read, and a copy would lack them: "+
	"purge it, or move it with another client"))

// replayable returns the messages of a batch whose headers can be read.
func replayable(req *admin.ParkedRequest, batch []parkedMessage) []parkedMessage {
	var out []parkedMessage
	for _, m := range batch {
		if unreadable(m.raw) != "" {
			req.Tell(m.Parked, errNoReplay)
			continue
		}
		out = append(out, m)
	}
	return out
}

// edited passes the messages of a batch to req.Edit, and returns those that it did not refuse.
func edited(req *admin.ParkedRequest, batch []parkedMessage) []parkedMessage {
	if req.Edit == nil {
		return batch
	}
	var out []parkedMessage
	for _, m := range batch {
		body, err := req.Edit(*m.Parked)
		if err != nil {
			req.Tell(m.Parked, err)
			continue
		}
		raw := *m.raw
		raw.Body = body
		repaired := m.Envelope
		if content.Repair(&repaired, body); repaired.Headers[content.Header] != "" {
			if raw.Headers = maps.Clone(raw.Headers); raw.Headers == nil {
				raw.Headers = amqp.Table{}
			}
			raw.Headers[content.Header] = repaired.Headers[content.Header]
		}
		out = append(out, parkedMessage{&raw, m.Parked})
	}
	return out
}

// PurgeParked implements admin.ParkedQueue.
func (t *Transport) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if err := admin.CheckPurgeParked("waybill/rabbitmq: purge parked", &req); err != nil {
		return 0, err
	}
	done := 0
	err := t.changeParked(ctx, "purge parked", &req, req.Filter.Matches, func(w *parkedWalk, batch []parkedMessage) error {
		for _, m := range batch {
			err := w.remove(ctx, m.raw.DeliveryTag)
			req.Tell(m.Parked, err)
			if err != nil {
				return err
			}
			done++
		}
		return nil
	})
	return done, err
}

// parkedMessage is a parked message that a walk holds.
type parkedMessage struct {
	raw *amqp.Delivery
	*admin.Parked
}

// changeParked passes what matches to do, in batches and at the rate of req.
func (t *Transport) changeParked(
	ctx context.Context, op string, req *admin.ParkedRequest, matches func(*admin.Parked) bool,
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
		want := walkChunk
		if req.Limit > 0 {
			want = req.Limit - picked - len(batch)
		}
		raw, p, err := w.next(ctx, want)
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
