package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core/parked"
)

// kept is a parked message and its number in the order of parking.
type kept struct {
	Parked
	number uint64
}

// park needs the lock.
func (q *queue) park(p Parked) {
	q.parked = append(q.parked, kept{p, q.t.nextPlace()})
}

// parkedQueue makes the operations on parked messages methods of a Transport.
type parkedQueue = admin.ParkedQueue

func (t *Transport) walks() parked.Walks {
	return parked.Walks{Adapter: "waybill/memory", Open: func(_ context.Context, _, queue string) (parked.Walk, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		q, err := t.parkedIn(queue)
		if err != nil {
			return nil, err
		}
		return &parkedWalk{q: q, total: len(q.parked), last: t.seq}, nil
	}}
}

// parkedWalk goes over the messages that were parked before it began, by their numbers.
type parkedWalk struct {
	q           *queue
	total       int
	position    int    // of the latest message
	after, last uint64 // the numbers of the latest message, and of the last one
}

// Total implements parked.Walk.
func (w *parkedWalk) Total(context.Context) (int, error) { return w.total, nil }

// Next implements parked.Walk.
func (w *parkedWalk) Next(context.Context, int) (*parked.Item, error) {
	w.q.t.mu.Lock()
	defer w.q.t.mu.Unlock()
	if w.q.t.closed {
		return nil, closed("parked")
	}
	i := w.q.parkedAt(w.after + 1)
	if i == len(w.q.parked) || w.q.parked[i].number > w.last {
		return nil, nil //nolint:nilnil // there is none
	}
	p := &w.q.parked[i]
	w.after = p.number
	w.position++
	return &parked.Item{Raw: p.number, Parked: admin.Parked{
		Envelope: p.Envelope.Clone(), Position: w.position, Queue: p.Queue, Reason: p.Reason, Error: p.Err, Attempts: p.Attempt, At: p.At,
	}}, nil
}

// parkedAt returns the index of the first message whose number is at least n. It needs the lock.
func (q *queue) parkedAt(n uint64) int {
	i, _ := slices.BinarySearchFunc(q.parked, n, func(p kept, n uint64) int { return int(int64(p.number) - int64(n)) })
	return i
}

// Replay implements parked.Walk.
func (w *parkedWalk) Replay(_ context.Context, items []*parked.Item) error {
	return w.take(items, func(m *parked.Item) error {
		q := w.q
		if q.t.maxMessages > 0 && q.size() >= q.t.maxMessages {
			return &waybill.Error{
				Op: "waybill/memory: replay parked", Class: waybill.ClassOutage,
				Err: fmt.Errorf("queue %q is full with %d messages: consume them, or raise Options.MaxMessages", q.name, q.size()),
			}
		}
		env := m.Envelope.Clone()
		q.promote(time.Now())
		q.ready.push(&item{env: &env, place: q.t.nextPlace(), attempt: 1})
		q.wakeAll()
		return nil
	})
}

// Remove implements parked.Walk.
func (w *parkedWalk) Remove(_ context.Context, items []*parked.Item) error {
	return w.take(items, func(*parked.Item) error { return nil })
}

// take removes what is still parked, if do returns no error.
func (w *parkedWalk) take(items []*parked.Item, do func(*parked.Item) error) error {
	w.q.t.mu.Lock()
	defer w.q.t.mu.Unlock()
	if w.q.t.closed {
		return closed("parked")
	}
	return parked.Each(items, func(m *parked.Item) (bool, error) {
		i := w.q.parkedAt(m.Raw.(uint64))
		if i == len(w.q.parked) || w.q.parked[i].number != m.Raw {
			return false, nil
		}
		if err := do(m); err != nil {
			return false, err
		}
		w.q.parked = slices.Delete(w.q.parked, i, i+1)
		return true, nil
	})
}

// Close implements parked.Walk.
func (w *parkedWalk) Close(context.Context) {}

// parkedIn returns the queue. It needs the lock.
func (t *Transport) parkedIn(name string) (*queue, error) {
	if t.closed {
		return nil, closed("parked")
	}
	q := t.queues[name]
	if q == nil {
		return nil, &waybill.Error{
			Op: "waybill/memory: parked", Class: waybill.ClassPermanent, Err: fmt.Errorf("%w: there is no queue %q: check the name, or declare it", waybill.ErrNotFound, name),
		}
	}
	return q, nil
}
