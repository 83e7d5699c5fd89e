package nats

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/parked"
)

// parkedQueue makes the operations on parked messages methods of a Transport.
type parkedQueue = admin.ParkedQueue

// ReplayParked implements admin.ParkedQueue. Replays by one transport take turns.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	t.replaying.Lock()
	defer t.replaying.Unlock()
	return t.parkedQueue.ReplayParked(ctx, req)
}

func (t *Transport) walks() parked.Walks {
	return parked.Walks{Adapter: "waybill/nats", Open: func(ctx context.Context, _, queue string) (parked.Walk, error) {
		s, total, last, err := t.openParked(ctx, queue)
		return &parkedWalk{t: t, queue: queue, stream: s, total: total, last: last}, err
	}}
}

// parkedWalk asks for one message after the other.
type parkedWalk struct {
	t           *Transport
	queue       string
	stream      jetstream.Stream
	total       int
	after, last uint64 // the numbers of the latest message, and of the last one or a higher one
	position    int    // of the latest message
}

// Total implements parked.Walk.
func (w *parkedWalk) Total(context.Context) (int, error) { return w.total, nil }

// Next implements parked.Walk.
func (w *parkedWalk) Next(ctx context.Context, _ int) (*parked.Item, error) {
	raw, err := w.stream.GetMsg(ctx, w.after+1, jetstream.WithGetMsgSubject(w.t.parked+escapeQueue(w.queue)))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, classify("look at parked", err)
	case raw.Sequence > w.last:
		return nil, nil //nolint:nilnil // as above
	}
	w.after = raw.Sequence
	w.position++
	at, err := time.Parse(time.RFC3339Nano, raw.Header.Get(headerParkedAt))
	if err != nil {
		at = raw.Time
	}
	return &parked.Item{Raw: raw, Parked: admin.Parked{
		Envelope: decode("", raw.Header, slices.Clone(raw.Data)), Position: w.position, Queue: w.queue,
		Reason: waybill.Reason(raw.Header.Get(headerReason)), Error: unescape(raw.Header.Get(headerError)),
		Attempts: int(min(number(raw.Header, headerAttempt), math.MaxInt32)), At: at,
	}}, nil
}

// Replay implements parked.Walk.
func (w *parkedWalk) Replay(ctx context.Context, items []*parked.Item) error {
	t, name := w.t, escapeQueue(w.queue)
	return parked.Each(items, func(m *parked.Item) (bool, error) {
		// Without the consumer the stream would forget the copy.
		s := t.current.Load()
		if _, err := s.js.Consumer(ctx, t.opts.Bus, name); err != nil {
			return false, noQueue("replay parked", w.queue, err)
		}
		c := copyOf(t.queues+name, &m.Envelope, m.Raw.(*jetstream.RawStreamMsg).Header, m.Envelope.Body)
		for name, value := range m.Added {
			c.Header[name] = []string{value}
		}
		f, err := t.send(ctx, s, c)
		if err != nil {
			return false, err
		}
		res := make(core.Results, 1)
		if t.await(ctx, s, []jetstream.PubAckFuture{f}, res); res[0] != nil {
			return false, res[0]
		}
		return w.remove(ctx, m)
	})
}

// Remove implements parked.Walk.
func (w *parkedWalk) Remove(ctx context.Context, items []*parked.Item) error {
	return parked.Each(items, func(m *parked.Item) (bool, error) { return w.remove(ctx, m) })
}

func (w *parkedWalk) remove(ctx context.Context, m *parked.Item) (bool, error) {
	if err := w.stream.DeleteMsg(ctx, m.Raw.(*jetstream.RawStreamMsg).Sequence); err != nil {
		return false, classify("delete parked", err)
	}
	return true, nil
}

// Close implements parked.Walk.
func (w *parkedWalk) Close(context.Context) {}

// openParked returns the stream of parked messages, how many there are for queue, and the last one's number or a higher
// one. A queue without a consumer and without parked messages does not exist.
func (t *Transport) openParked(ctx context.Context, queue string) (s jetstream.Stream, total int, last uint64, err error) {
	if t.ended() {
		return nil, 0, 0, closed("parked")
	}
	if s, err = t.stream(ctx, t.opts.Bus+"-parked"); err != nil {
		return nil, 0, 0, err
	}
	subject := t.parked + escapeQueue(queue)
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return nil, 0, 0, classify("count parked", err)
	}
	if total = int(min(info.State.Subjects[subject], math.MaxInt32)); total == 0 {
		if _, err := t.current.Load().js.Consumer(ctx, t.opts.Bus, escapeQueue(queue)); err != nil {
			return nil, 0, 0, noQueue("parked", queue, err)
		}
	}
	return s, total, info.State.LastSeq, nil
}

// noQueue is the error of a queue whose consumer cannot be found.
func noQueue(op, queue string, err error) error {
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fail(op, waybill.ClassRejected, waybill.ReasonNone, fmt.Errorf(
			"queue %q does not exist: subscribe to it first (%w)", queue, waybill.ErrNotFound))
	}
	return classify(op, err)
}
