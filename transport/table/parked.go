package table

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/errtext"
)

var _ admin.ParkedQueue = (*Transport)(nil)

const (
	// parkedPage is how many parked messages are in memory at a time, without their bodies.
	parkedPage = 20_000
	// parkedChunk is how many of them are changed in one transaction.
	parkedChunk = 64
)

// A parked message is an abandoned record of its queue that the application did not take back itself.

// ParkedDepth implements admin.ParkedQueue. It needs a store that is an admin.Counter, and is as exact as that: a
// number beyond 10,000 may be an estimate.
func (t *Transport) ParkedDepth(ctx context.Context, queue string) (int, error) {
	counts, err := t.CountParked(ctx, queue)
	n := 0
	for _, c := range counts {
		n += c
	}
	return n, err
}

// CountParked implements admin.ParkedQueue. It needs what ParkedDepth needs.
func (t *Transport) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	const op = "count parked"
	counter, err := capability[admin.Counter](t, op, queue, "admin.Counter")
	if err != nil {
		return nil, err
	}
	counts, err := counter.Counts(ctx)
	if err != nil {
		return nil, within(op, queue, err)
	}
	out := map[waybill.Reason]int{}
	for i := range counts {
		if c := &counts[i]; c.Route == queue && c.State == core.StateAbandoned && !c.Reason.Cancelled() {
			out[c.Reason] += int(c.N)
		}
	}
	if len(out) == 0 {
		return out, t.exists(ctx, op, queue)
	}
	return out, nil
}

// InspectParked implements admin.ParkedQueue. It needs a store that is an admin.Inspector, and looks at the messages as
// ListParked does.
func (t *Transport) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	found, err := t.parked().Inspect(ctx, queue, f)
	if err != nil {
		return admin.Parked{}, err
	}
	const op = "inspect parked"
	inspector, err := capability[admin.Inspector](t, op, queue, "admin.Inspector")
	if err != nil {
		return admin.Parked{}, err
	}
	s, err := inspector.Inspect(ctx, queue, found.Envelope.ID)
	if err != nil {
		return admin.Parked{}, within(op, queue, err)
	}
	found.Envelope = s.Envelope
	return found, nil
}

// ListParked implements admin.ParkedQueue. It needs a store that is an admin.Inspector. Up to 20,000 messages are in
// the order in which they were parked. Of more, the 20,000 that were staged first come first, and so on.
func (t *Transport) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	return t.parked().List(ctx, queue, f, limit)
}

func (t *Transport) parked() admin.ParkedReader {
	return admin.ParkedReader{Adapter: "waybill/table", Walk: func(ctx context.Context, op, queue string, _ int, fn func(*admin.Parked) int) error {
		inspector, err := capability[admin.Inspector](t, op, queue, "admin.Inspector")
		if err != nil {
			return err
		}
		w := parkedWalk{inspector: inspector, queue: queue}
		for !w.end {
			page, err := w.next(ctx)
			if err != nil {
				return within(op, queue, err)
			}
			for i := range page {
				if fn(&page[i]) <= 0 {
					return nil
				}
			}
		}
		if w.position > 0 {
			return nil
		}
		return t.exists(ctx, op, queue)
	}}
}

// parkedWalk reads the parked messages of a queue.
type parkedWalk struct {
	inspector admin.Inspector
	queue     string
	after     int64
	position  int // of the last one
	end       bool
}

// next returns the next page.
func (w *parkedWalk) next(ctx context.Context) ([]admin.Parked, error) {
	abandoned := admin.Filter{Routes: []string{w.queue}, States: []core.State{core.StateAbandoned}}
	var page []admin.Parked
	for len(page) < parkedPage && !w.end {
		list, err := w.inspector.List(ctx, abandoned, admin.PageRequest{After: w.after, Limit: admin.MaxPageLimit, Budget: admin.MaxPageBudget})
		if err != nil {
			return nil, err
		}
		for i := range list.Records {
			if s := &list.Records[i]; !s.Reason.Cancelled() {
				page = append(page, admin.Parked{
					Envelope: s.Envelope, Queue: w.queue, Reason: s.Reason, Error: s.LastError, Attempts: s.Attempts, At: s.SettledAt,
				})
			}
		}
		w.after = list.Next
		w.end = list.Next == 0
	}
	slices.SortStableFunc(page, func(a, b admin.Parked) int { return a.At.Compare(b.At) })
	for i := range page {
		w.position++
		page[i].Position = w.position
	}
	return page, nil
}

// exists returns an error for a queue that no process has served.
func (t *Transport) exists(ctx context.Context, op, queue string) error {
	t.mu.Lock()
	known := slices.ContainsFunc(t.receivers, func(r *receiver) bool { return r.queue == queue })
	t.mu.Unlock()
	counter, ok := core.As[admin.Counter](t.store)
	if known || !ok {
		return nil
	}
	counts, err := counter.Counts(ctx)
	switch {
	case err != nil:
		return within(op, queue, err)
	case slices.ContainsFunc(counts, func(c admin.Count) bool { return c.Route == queue }):
		return nil
	}
	return &waybill.Error{Op: "waybill/table: " + op, Class: waybill.ClassPermanent, Err: fmt.Errorf(
		"%w: queue %q has no message at all, and this process does not receive from it: check its name", waybill.ErrNotFound, queue)}
}

// ReplayParked implements admin.ParkedQueue. It needs a store that is an admin.Inspector and an admin.Redriver. A
// message whose dedupe key a waiting message has stays parked: cancel that one first. Messages of its key that came
// after a parked one may have been handled before it. If there are more than 20,000, some that are parked while the
// call runs can be among those that it replays.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	const op = "replay parked"
	if err := waybill.Invalid("waybill/table: "+op, req.Problems()...); err != nil {
		return 0, err
	}
	redriver, err := capability[admin.Redriver](t, op, req.Queue, "admin.Redriver")
	if err != nil {
		return 0, err
	}
	matches := func(p *admin.Parked) bool {
		return p.Reason != waybill.ReasonExpired && !p.Envelope.Expired(time.Now())
	}
	return t.changeParked(ctx, op, &req, matches, change{
		stays: "a message that waits has its dedupe key: cancel that one first",
		do: func(ctx context.Context, f admin.Filter, body []byte) (int, error) {
			done, err := redriver.Redrive(ctx, admin.RedriveRequest{Filter: f, Body: body, Force: true})
			return done.Changed, err
		},
	})
}

// PurgeParked implements admin.ParkedQueue. It needs a store that is an admin.Inspector and an admin.Purger.
func (t *Transport) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	const op = "purge parked"
	if err := admin.CheckPurgeParked("waybill/table: "+op, &req); err != nil {
		return 0, err
	}
	purger, err := capability[admin.Purger](t, op, req.Queue, "admin.Purger")
	if err != nil {
		return 0, err
	}
	return t.changeParked(ctx, op, &req, func(*admin.Parked) bool { return true }, change{
		stays: "another transaction has locked it: call again",
		do: func(ctx context.Context, f admin.Filter, _ []byte) (int, error) {
			done, err := purger.PurgeRecords(ctx, admin.PurgeRequest{Filter: f})
			return done.Deleted, err
		},
	})
}

// change is what becomes of parked messages.
type change struct {
	// do changes what f selects; with a body that is one message, which gets it. It returns how many it changed.
	do    func(ctx context.Context, f admin.Filter, body []byte) (int, error)
	stays string // why one stays as it is

	inspector admin.Inspector
	op        string
	req       *admin.ParkedRequest
}

// changeParked does c with the messages that match and are parked when it begins, in steps and at the rate of req.
func (t *Transport) changeParked(ctx context.Context, op string, req *admin.ParkedRequest, matches func(*admin.Parked) bool, c change) (int, error) {
	inspector, err := capability[admin.Inspector](t, op, req.Queue, "admin.Inspector")
	if err != nil {
		return 0, err
	}
	total, err := t.ParkedDepth(ctx, req.Queue)
	if err != nil && !errors.Is(err, waybill.ErrUnsupported) {
		return 0, err
	}
	size := parkedChunk
	switch {
	case req.Edit != nil:
		size = 1
	case req.PerSecond > 0:
		size = max(1, min(size, int(req.PerSecond/10)))
	}
	c.inspector, c.op, c.req = inspector, op, req
	walk := parkedWalk{inspector: inspector, queue: req.Queue}
	done, picked, started := 0, 0, time.Now()
	for !walk.end && (req.Limit == 0 || picked < req.Limit) {
		page, err := walk.next(ctx)
		if err != nil {
			return done, within(op, req.Queue, err)
		}
		found := slices.DeleteFunc(page, func(p admin.Parked) bool { return !req.Filter.Matches(&p) || !matches(&p) })
		if req.Limit > 0 {
			found = found[:min(len(found), req.Limit-picked)]
		}
		for step := range slices.Chunk(found, size) {
			if err := pause(ctx, req.Pace(picked, started, time.Now())); err != nil {
				return done, within(op, req.Queue, err)
			}
			n, err := c.step(ctx, step)
			done, picked = done+n, picked+len(step)
			if err != nil {
				return done, within(op, req.Queue, err)
			}
			c.progress(step[len(step)-1].Position, total)
		}
		c.progress(walk.position, total)
	}
	return done, nil
}

func (c *change) progress(looked, total int) {
	if c.req.Progress != nil {
		c.req.Progress(looked, max(looked, total))
	}
}

// step changes some messages and tells the caller about each.
func (c *change) step(ctx context.Context, ps []admin.Parked) (done int, err error) {
	f := admin.Filter{Routes: []string{c.req.Queue}, States: []core.State{core.StateAbandoned}}
	for i := range ps {
		f.IDs = append(f.IDs, ps[i].Envelope.ID)
	}
	var body []byte
	if c.req.Edit != nil {
		var edited bool
		if body, edited, err = c.edit(ctx, ps[0]); err != nil || !edited {
			return 0, err
		}
	}
	done, err = c.do(ctx, f, body)
	for i := range ps {
		outcome := err
		if err == nil && done < len(ps) { // somebody was faster, or it stays
			switch s, lost := c.inspector.Inspect(ctx, c.req.Queue, ps[i].Envelope.ID); {
			case errors.Is(lost, waybill.ErrNotFound):
				continue
			case lost != nil:
				return done, lost
			case s.State == core.StateAbandoned:
				outcome = &waybill.Error{Op: "waybill/table: " + c.op, Class: waybill.ClassRejected, Err: errors.New(c.stays)}
			}
		}
		c.req.Tell(&ps[i], outcome)
	}
	return done, err
}

// edit returns the new body of a message, not nil; false if the message is gone, or stays as it is.
func (c *change) edit(ctx context.Context, p admin.Parked) (body []byte, edited bool, err error) {
	s, err := c.inspector.Inspect(ctx, c.req.Queue, p.Envelope.ID)
	switch {
	case errors.Is(err, waybill.ErrNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	p.Envelope = s.Envelope
	body, refused := c.req.Edit(p)
	if refused != nil {
		c.req.Tell(&p, refused)
		return nil, false, nil
	}
	return append([]byte{}, body...), true, nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
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

func within(op, queue string, err error) error {
	return errtext.Within("waybill/table: "+op+": queue "+queue, err)
}

// capability returns the store's capability that a call of an operator needs.
func capability[T any](t *Transport, op, queue, name string) (T, error) {
	c, ok := core.As[T](t.store)
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	switch {
	case closed:
		return c, errClosed(op)
	case queue == "":
		return c, waybill.Invalid("waybill/table: "+op, "queue: is empty; name the subscription's queue")
	case !ok:
		return c, &waybill.Error{Op: "waybill/table: " + op, Class: waybill.ClassPermanent, Err: fmt.Errorf(
			"%w: the store is no %s; use one that is, such as store/postgres", waybill.ErrUnsupported, name)}
	}
	return c, nil
}
