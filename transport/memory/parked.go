package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

var _ admin.ParkedQueue = (*Transport)(nil)

// parked is a parked message and its number in the order of parking.
type parked struct {
	Parked
	number uint64
}

// park needs the lock.
func (q *queue) park(p Parked) {
	q.parked = append(q.parked, parked{p, q.t.nextPlace()})
}

// ParkedDepth implements admin.ParkedQueue. A queue that was never declared is waybill.ErrNotFound.
func (t *Transport) ParkedDepth(_ context.Context, queue string) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q, err := t.parkedIn(queue)
	if err != nil {
		return 0, err
	}
	return len(q.parked), nil
}

// ListParked implements admin.ParkedQueue; oldest first.
func (t *Transport) ListParked(_ context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	if limit < 1 {
		return nil, waybill.Invalid("waybill/memory: list parked", fmt.Sprintf("limit: %d is less than 1", limit))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q, err := t.parkedIn(queue)
	if err != nil {
		return nil, err
	}
	var out []admin.Parked
	for i := range q.parked {
		p := q.parked[i].forOperators()
		if len(out) == limit {
			break
		}
		if f.Matches(&p) {
			p.Envelope.Body = nil
			p.Envelope = p.Envelope.Clone()
			out = append(out, p)
		}
	}
	return out, nil
}

// ReplayParked implements admin.ParkedQueue. A message that finds its queue full stays parked and ends the replay with
// an outage.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	matches := func(p *admin.Parked) bool { return !p.Envelope.Expired(time.Now()) && req.Filter.Matches(p) }
	return t.changeParked(ctx, "replay parked", &req, matches, func(q *queue, p *parked) error {
		if t.maxMessages > 0 && q.size() >= t.maxMessages {
			return &waybill.Error{
				Op: "waybill/memory: replay parked", Class: waybill.ClassOutage,
				Err: fmt.Errorf("queue %q is full with %d messages: consume them, or raise Options.MaxMessages", q.name, q.size()),
			}
		}
		env := p.Envelope.Clone()
		q.promote(time.Now())
		q.ready.push(&item{env: &env, place: t.nextPlace(), attempt: 1})
		q.wakeAll()
		return nil
	})
}

// PurgeParked implements admin.ParkedQueue.
func (t *Transport) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	return t.changeParked(ctx, "purge parked", &req, req.Filter.Matches, func(*queue, *parked) error { return nil })
}

// changeParked does do with every message that matches and was parked before the call, one after the other, and removes
// it.
func (t *Transport) changeParked(ctx context.Context, op string, req *admin.ParkedRequest, matches func(*admin.Parked) bool, do func(*queue, *parked) error) (int, error) {
	if err := waybill.Invalid("waybill/memory: "+op, req.Problems()...); err != nil {
		return 0, err
	}
	t.mu.Lock()
	q, err := t.parkedIn(req.Queue)
	if err != nil {
		t.mu.Unlock()
		return 0, err
	}
	total, last := len(q.parked), t.seq
	t.mu.Unlock()
	started, done, looked := time.Now(), 0, 0
	for after := uint64(0); req.Limit == 0 || done < req.Limit; {
		if err := ctx.Err(); err != nil {
			return done, fmt.Errorf("waybill/memory: %s: %w", op, err)
		}
		next, changed, err := t.changeNext(q, after, last, matches, do)
		if err != nil {
			return done, err
		}
		if next == 0 {
			break
		}
		after = next
		looked++
		if changed {
			done++
		}
		if req.Progress != nil {
			req.Progress(min(looked, total), total)
		}
		if d := req.Pace(done, started, time.Now()); changed && d > 0 && done != req.Limit && looked < total {
			if err := wait(ctx, nil, d); err != nil {
				return done, fmt.Errorf("waybill/memory: %s: %w", op, err)
			}
		}
	}
	return done, nil
}

// changeNext looks at the first message that was parked after number after and not after last, and returns its number;
// 0 if there is none.
func (t *Transport) changeNext(q *queue, after, last uint64, matches func(*admin.Parked) bool, do func(*queue, *parked) error) (number uint64, changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, false, closed("parked")
	}
	i, _ := slices.BinarySearchFunc(q.parked, after+1, func(p parked, n uint64) int { return int(int64(p.number) - int64(n)) })
	if i == len(q.parked) || q.parked[i].number > last {
		return 0, false, nil
	}
	p := q.parked[i]
	if op := p.forOperators(); !matches(&op) {
		return p.number, false, nil
	}
	if err := do(q, &p); err != nil {
		return 0, false, err
	}
	q.parked = slices.Delete(q.parked, i, i+1)
	return p.number, true, nil
}

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

// forOperators shares the envelope.
func (p *parked) forOperators() admin.Parked {
	return admin.Parked{Envelope: p.Envelope, Queue: p.Queue, Reason: p.Reason, Error: p.Err, Attempts: p.Attempt, At: p.At}
}
