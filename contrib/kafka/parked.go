package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/parked"
)

// The parked messages of a queue are a compacted log. A record without a value deletes the one before it with its key.
// Each call reads the whole log.

// parkedQueue makes the operations on parked messages methods of a Transport.
type parkedQueue = admin.ParkedQueue

// ReplayParked implements admin.ParkedQueue. Replays by one transport take turns.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	t.replaying.Lock()
	defer t.replaying.Unlock()
	return t.parkedQueue.ReplayParked(ctx, req)
}

func (t *Transport) walks() parked.Walks {
	return parked.Walks{Adapter: "waybill/kafka", Open: func(ctx context.Context, op, queue string) (parked.Walk, error) {
		list, err := t.listParked(ctx, op, queue)
		return &parkedWalk{t: t, op: op, queue: queue, total: len(list), list: list}, err
	}}
}

// parkedWalk goes over the list of parked messages.
type parkedWalk struct {
	t         *Transport
	op, queue string
	total     int
	list      []*kgo.Record // those that Next has not returned
}

// Total implements parked.Walk.
func (w *parkedWalk) Total(context.Context) (int, error) { return w.total, nil }

// Next implements parked.Walk.
func (w *parkedWalk) Next(context.Context, int) (*parked.Item, error) {
	if len(w.list) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	rec := w.list[0]
	w.list = w.list[1:]
	at, err := time.Parse(time.RFC3339Nano, get(rec, headerParkedAt))
	if err != nil {
		at = rec.Timestamp
	}
	return &parked.Item{Raw: rec, Parked: admin.Parked{
		Envelope: parkedEnvelope(rec), Position: w.total - len(w.list), Queue: w.queue, Reason: waybill.Reason(get(rec, headerReason)),
		Error: get(rec, headerError), Attempts: int(number(rec, headerAttempt)), At: at,
	}}, nil
}

// Replay implements parked.Walk.
func (w *parkedWalk) Replay(ctx context.Context, items []*parked.Item) error {
	return parked.Each(items, func(m *parked.Item) (bool, error) {
		rec := copyOf(w.t.opts.retry(w.queue), m.Raw.(*kgo.Record))
		rec.Key = nil
		if key := m.Envelope.Key; key != "" {
			rec.Key = []byte(key)
		}
		if m.Edited {
			rec.Value = append([]byte{}, m.Envelope.Body...)
			for name, value := range m.Added {
				set(rec, name, value)
			}
		}
		if err := w.t.store(ctx, w.op, rec); err != nil {
			return false, err
		}
		return w.remove(ctx, m)
	})
}

// Remove implements parked.Walk.
func (w *parkedWalk) Remove(ctx context.Context, items []*parked.Item) error {
	return parked.Each(items, func(m *parked.Item) (bool, error) { return w.remove(ctx, m) })
}

func (w *parkedWalk) remove(ctx context.Context, m *parked.Item) (bool, error) {
	rec := m.Raw.(*kgo.Record)
	err := w.t.store(ctx, w.op, &kgo.Record{Topic: rec.Topic, Key: rec.Key})
	return err == nil, err
}

// Close implements parked.Walk.
func (w *parkedWalk) Close(context.Context) {}

// listParked returns the messages that are parked for queue, oldest first.
func (t *Transport) listParked(ctx context.Context, op, queue string) ([]*kgo.Record, error) {
	if t.life.Err() != nil {
		return nil, closed(op)
	}
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	topic := t.opts.parked(queue)
	topics, err := t.admin.ListTopics(ctx, topic)
	if err != nil {
		return nil, t.link.because(op, err)
	}
	switch err := topics[topic].Err; {
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InvalidTopicException):
		return nil, fail(op, waybill.ClassRejected, waybill.ReasonNone, fmt.Errorf(
			"queue %q does not exist on the bus %q: subscribe to it first (%w)", queue, t.opts.Bus, waybill.ErrNotFound))
	case err != nil:
		return nil, classify(op, err)
	}
	starts, err := t.admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, t.link.because(op, err)
	}
	ends, err := t.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = errors.Join(starts.Error(), ends.Error())
	}
	if err != nil {
		return nil, t.link.because(op, err)
	}
	start, _ := starts.Lookup(topic, 0)
	end, _ := ends.Lookup(topic, 0)
	var list []*kgo.Record
	places := map[string]int{}
	err = t.scan(ctx, op, topic, start.Offset, end.Offset, func(rec *kgo.Record) bool {
		key := string(rec.Key)
		if at, ok := places[key]; ok {
			list[at] = nil
			delete(places, key)
		}
		if rec.Value != nil {
			places[key] = len(list)
			list = append(list, rec)
		}
		return true
	})
	return slices.DeleteFunc(list, func(rec *kgo.Record) bool { return rec == nil }), err
}

// parkedEnvelope is decode for a record whose key is not the message's.
func parkedEnvelope(rec *kgo.Record) waybill.Envelope {
	bare := *rec
	bare.Key = nil
	return decode(&bare)
}

// store publishes one record, and waits.
func (t *Transport) store(ctx context.Context, op string, rec *kgo.Record) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	if err := t.open(ctx); err != nil {
		return err
	}
	c := newCall()
	res := make(core.Results, 1)
	f := t.send(ctx, "", &flight{call: c, record: rec})
	c.sent()
	t.await(ctx, c, []*flight{f}, res)
	if err := res[0]; err != nil {
		return classify(op, err)
	}
	return nil
}
