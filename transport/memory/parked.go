package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/content"
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

// CountParked implements admin.ParkedQueue.
func (t *Transport) CountParked(_ context.Context, queue string) (map[waybill.Reason]int, error) {
	counts := map[waybill.Reason]int{}
	return counts, t.lookParked("count parked", queue, &admin.ParkedFilter{}, func(p *admin.Parked) bool {
		counts[p.Reason]++
		return true
	})
}

// InspectParked implements admin.ParkedQueue.
func (t *Transport) InspectParked(_ context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	var found *admin.Parked
	err := t.lookParked("inspect parked", queue, &f, func(p *admin.Parked) bool {
		found = p
		return false
	})
	switch {
	case err != nil:
		return admin.Parked{}, err
	case found == nil:
		return admin.Parked{}, admin.NoParked("waybill/memory: inspect parked", queue)
	}
	found.Envelope = found.Envelope.Clone()
	return *found, nil
}

// ListParked implements admin.ParkedQueue; oldest first.
func (t *Transport) ListParked(_ context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	if limit < 1 {
		return nil, waybill.Invalid("waybill/memory: list parked", fmt.Sprintf("limit: %d is less than 1", limit))
	}
	var out []admin.Parked
	err := t.lookParked("list parked", queue, &f, func(p *admin.Parked) bool {
		p.Envelope.Body = nil
		p.Envelope = p.Envelope.Clone()
		out = append(out, *p)
		return len(out) < limit
	})
	return out, err
}

// lookParked calls fn with each message that matches, until that returns false.
func (t *Transport) lookParked(op, queue string, f *admin.ParkedFilter, fn func(*admin.Parked) bool) error {
	if err := waybill.Invalid("waybill/memory: "+op, f.Problems()...); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q, err := t.parkedIn(queue)
	if err != nil {
		return err
	}
	for i := range q.parked {
		if p := q.parked[i].forOperators(i + 1); f.Matches(&p) && !fn(&p) {
			break
		}
	}
	return nil
}

// ReplayParked implements admin.ParkedQueue. A message that finds its queue full stays parked and ends the replay with
// an outage.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	matches := func(p *admin.Parked) bool { return !p.Envelope.Expired(time.Now()) && req.Filter.Matches(p) }
	return t.changeParked(ctx, "replay parked", &req, matches, func(q *queue, p *admin.Parked) error {
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
	if err := admin.CheckPurgeParked("waybill/memory: purge parked", &req); err != nil {
		return 0, err
	}
	return t.changeParked(ctx, "purge parked", &req, req.Filter.Matches, func(*queue, *admin.Parked) error { return nil })
}

// changeParked does do, under the lock, with every message that matches and was parked before the call, one after the
// other, and removes it.
func (t *Transport) changeParked(
	ctx context.Context, op string, req *admin.ParkedRequest, matches func(*admin.Parked) bool, do func(*queue, *admin.Parked) error,
) (int, error) {
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
		found, err := t.nextParked(q, after, last)
		if err != nil {
			return done, err
		}
		if found == nil {
			break
		}
		after = found.number
		looked++
		changed := false
		if p := found.forOperators(looked); matches(&p) {
			if changed, err = t.changeOne(q, found.number, req, &p, do); err != nil {
				return done, err
			}
		}
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

// nextParked returns the first message that was parked after number after and not after last; nil if there is none.
func (t *Transport) nextParked(q *queue, after, last uint64) (*parked, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, closed("parked")
	}
	i := q.parkedAt(after + 1)
	if i == len(q.parked) || q.parked[i].number > last {
		return nil, nil //nolint:nilnil // there is none
	}
	p := q.parked[i]
	p.Envelope = p.Envelope.Clone()
	return &p, nil
}

// parkedAt returns the index of the first message whose number is at least n. It needs the lock.
func (q *queue) parkedAt(n uint64) int {
	i, _ := slices.BinarySearchFunc(q.parked, n, func(p parked, n uint64) int { return int(int64(p.number) - int64(n)) })
	return i
}

// changeOne edits p, does do with it, and removes it; unless it was refused, or another call was faster.
func (t *Transport) changeOne(
	q *queue, number uint64, req *admin.ParkedRequest, p *admin.Parked, do func(*queue, *admin.Parked) error,
) (changed bool, err error) {
	if req.Edit != nil {
		body, err := req.Edit(*p)
		if err != nil {
			req.Tell(p, err)
			return false, nil
		}
		content.Repair(&p.Envelope, body)
	}
	changed, err = func() (bool, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.closed {
			return false, closed("parked")
		}
		i := q.parkedAt(number)
		if i == len(q.parked) || q.parked[i].number != number {
			return false, nil
		}
		if err := do(q, p); err != nil {
			return false, err
		}
		q.parked = slices.Delete(q.parked, i, i+1)
		return true, nil
	}()
	if changed || err != nil {
		req.Tell(p, err)
	}
	return changed, err
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
func (p *parked) forOperators(position int) admin.Parked {
	return admin.Parked{
		Envelope: p.Envelope, Position: position, Queue: p.Queue, Reason: p.Reason, Error: p.Err, Attempts: p.Attempt, At: p.At,
	}
}
