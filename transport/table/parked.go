package table

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/parked"
	"github.com/waybill-go/waybill/internal/errtext"
)

const (
	// parkedPage is how many parked messages are in memory at a time, without their bodies.
	parkedPage = 20_000
	// parkedChunk is how many of them are changed in one transaction.
	parkedChunk = 64
)

// parkedQueue makes the operations on parked messages methods of a Transport.
type parkedQueue = admin.ParkedQueue

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

func (t *Transport) walks() parked.Walks {
	return parked.Walks{Adapter: "waybill/table", Batch: parkedChunk, Open: func(_ context.Context, op, queue string) (parked.Walk, error) {
		inspector, err := capability[admin.Inspector](t, op, queue, "admin.Inspector")
		switch {
		case err != nil:
		case op == parked.OpReplay:
			_, err = capability[admin.Redriver](t, op, queue, "admin.Redriver")
		case op == parked.OpPurge:
			_, err = capability[admin.Purger](t, op, queue, "admin.Purger")
		}
		return &parkedWalk{t: t, inspector: inspector, op: op, queue: queue}, err
	}}
}

// parkedWalk reads the parked messages of a queue, without their bodies.
type parkedWalk struct {
	t         *Transport
	inspector admin.Inspector
	op, queue string
	page      []admin.Parked
	after     int64 // of the latest page
	end       bool
	position  int // of the latest message
	exists    bool
}

// Total implements parked.Walk.
func (w *parkedWalk) Total(ctx context.Context) (int, error) {
	n, err := w.t.ParkedDepth(ctx, w.queue)
	if errors.Is(err, waybill.ErrUnsupported) {
		return 0, nil
	}
	w.exists = err == nil
	return n, err
}

// Next implements parked.Walk.
func (w *parkedWalk) Next(ctx context.Context, _ int) (*parked.Item, error) {
	if len(w.page) == 0 && !w.end {
		if err := w.read(ctx); err != nil {
			return nil, within(w.op, w.queue, err)
		}
	}
	switch {
	case len(w.page) > 0:
		w.position++
		p := w.page[0]
		w.page = w.page[1:]
		p.Position = w.position
		return &parked.Item{Parked: p}, nil
	case w.position == 0 && !w.exists:
		return nil, w.t.exists(ctx, w.op, w.queue)
	}
	return nil, nil //nolint:nilnil // there is none
}

// read reads the next page.
func (w *parkedWalk) read(ctx context.Context) error {
	abandoned := w.filter()
	for len(w.page) < parkedPage && !w.end {
		list, err := w.inspector.List(ctx, abandoned, admin.PageRequest{After: w.after, Limit: admin.MaxPageLimit, Budget: admin.MaxPageBudget})
		if err != nil {
			return err
		}
		for i := range list.Records {
			if s := &list.Records[i]; !s.Reason.Cancelled() {
				w.page = append(w.page, admin.Parked{
					Envelope: s.Envelope, Queue: w.queue, Reason: s.Reason, Error: s.LastError, Attempts: s.Attempts, At: s.SettledAt,
				})
			}
		}
		w.after = list.Next
		w.end = list.Next == 0
	}
	slices.SortStableFunc(w.page, func(a, b admin.Parked) int { return a.At.Compare(b.At) })
	return nil
}

func (w *parkedWalk) filter() admin.Filter {
	return admin.Filter{Routes: []string{w.queue}, States: []core.State{core.StateAbandoned}}
}

// Load implements parked.Loader.
func (w *parkedWalk) Load(ctx context.Context, m *parked.Item) error {
	s, err := w.inspector.Inspect(ctx, w.queue, m.Envelope.ID)
	if err != nil {
		return within(w.op, w.queue, err)
	}
	m.Envelope = s.Envelope
	return nil
}

// Replay implements parked.Walk. A message with another body is changed alone.
func (w *parkedWalk) Replay(ctx context.Context, items []*parked.Item) error {
	redriver, _ := core.As[admin.Redriver](w.t.store)
	redrive := func(items []*parked.Item, body []byte) error {
		return w.change(ctx, items, "a message that waits has its dedupe key: cancel that one first", func(f admin.Filter) (int, error) {
			done, err := redriver.Redrive(ctx, admin.RedriveRequest{Filter: f, Body: body, Force: true})
			return done.Changed, err
		})
	}
	if !items[0].Edited {
		return redrive(items, nil)
	}
	for i, m := range items {
		if err := redrive(items[i:i+1], append([]byte{}, m.Envelope.Body...)); err != nil {
			return err
		}
	}
	return nil
}

// Remove implements parked.Walk.
func (w *parkedWalk) Remove(ctx context.Context, items []*parked.Item) error {
	purger, _ := core.As[admin.Purger](w.t.store)
	return w.change(ctx, items, "another transaction has locked it: call again", func(f admin.Filter) (int, error) {
		done, err := purger.PurgeRecords(ctx, admin.PurgeRequest{Filter: f})
		return done.Deleted, err
	})
}

// Close implements parked.Walk.
func (w *parkedWalk) Close(context.Context) {}

// change changes messages by do, which returns how many it changed. stays is why one stays parked.
func (w *parkedWalk) change(ctx context.Context, items []*parked.Item, stays string, do func(admin.Filter) (int, error)) error {
	f := w.filter()
	for _, m := range items {
		f.IDs = append(f.IDs, m.Envelope.ID)
	}
	done, err := do(f)
	left := done
	for _, m := range items {
		if err == nil && done < len(items) { // another call was faster, or it stays
			switch s, lost := w.inspector.Inspect(ctx, w.queue, m.Envelope.ID); {
			case lost != nil && !errors.Is(lost, waybill.ErrNotFound):
				return within(w.op, w.queue, lost)
			case lost == nil && s.State == core.StateAbandoned:
				m.Err = &waybill.Error{Op: "waybill/table: " + w.op, Class: waybill.ClassRejected, Err: errors.New(stays)}
				continue
			}
		}
		m.Changed, m.Err = left > 0, err
		left--
	}
	if err != nil {
		return within(w.op, w.queue, err)
	}
	return nil
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
