package table

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/core"
)

// longHeld is the number of renewals in a row after which a log says that a handler is slow, or never returns.
const longHeld = 10

// renewBy makes leases be renewed at at, if that was planned for later. mu is held.
func (t *Transport) renewBy(at time.Time) {
	if t.extender == nil || !t.renewAt.IsZero() && !at.Before(t.renewAt) {
		return
	}
	t.renewAt = at
	if d := max(time.Until(at), 0); t.renewal == nil {
		t.renewal = time.AfterFunc(d, t.renew)
	} else {
		t.renewal.Reset(d)
	}
}

// renew prolongs the leases that are due for it, in one call a lease time, and plans the next time.
func (t *Transport) renew() {
	t.mu.Lock()
	now := time.Now()
	due := map[time.Duration][]*holding{}
	for _, r := range t.receivers {
		for h := range r.held {
			if h.lost || h.renewAt.Sub(now) > r.opts.Lease/10 {
				continue
			}
			h.renewAt = now.Add(r.opts.Lease / 10) // again, if this fails
			if h.state != settle {
				due[r.opts.Lease] = append(due[r.opts.Lease], h)
			}
		}
	}
	base := t.base
	t.mu.Unlock()
	for lease, hs := range due {
		t.extend(base, hs, lease, lease/4)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewAt = time.Time{}
	for _, r := range t.receivers {
		for h := range r.held {
			if !h.lost {
				t.renewBy(h.renewAt)
			}
		}
	}
}

// extend prolongs leases and takes in the results, which it also returns.
func (t *Transport) extend(ctx context.Context, hs []*holding, lease, timeout time.Duration) core.Results {
	records := make([]core.Record, len(hs))
	t.mu.Lock()
	for i, h := range hs {
		records[i] = h.rec
	}
	t.mu.Unlock()
	t.writeSlot <- struct{}{}
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	res := t.extender.ExtendLeases(ctx, records, lease)
	cancel()
	<-t.writeSlot
	if len(res) != len(hs) {
		return core.AllFailed(len(hs), fmt.Errorf("waybill/table: renew: the store returned %d results for %d records", len(res), len(hs)))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, h := range hs {
		switch err := res[i]; {
		case h.state == settle || h.state == gone: // its settle was faster
		case err == nil:
			h.deadline, h.renewAt = sent.Add(lease), sent.Add(lease/2)
			t.renewBy(h.renewAt)
			if h.renewals++; h.renewals == longHeld {
				t.log.LogAttrs(ctx, slog.LevelWarn, "a message is held for long: its handler is slow, or never returns", slog.String("event", "held_long"),
					slog.String("id", h.rec.Envelope.ID), slog.String("queue", h.r.route.Route), slog.Int("attempt", h.rec.Attempts+1),
					slog.Duration("held", time.Since(h.claimed)))
			}
		case errors.Is(err, core.ErrLeaseLost):
			h.lost = true
			t.leaseLost(h, "renew")
			h.r.notify() // a Receive that waits must not hand it out
		}
	}
	return res
}

// ExtendDeliveries makes deliveries stay the receiver's for d from now, and renews them from there on.
func (r *receiver) ExtendDeliveries(ctx context.Context, deliveries []*core.Delivery, d time.Duration) core.Results {
	if r.t.extender == nil {
		return core.AllFailed(len(deliveries), fmt.Errorf("waybill/table: extend: leases of this store: %w", core.ErrUnsupported))
	}
	if d < time.Millisecond {
		return core.AllFailed(len(deliveries), core.Invalid("waybill/table: extend", fmt.Sprintf("d: %s; at least a millisecond", d)))
	}
	results := make(core.Results, len(deliveries))
	var hs []*holding
	var slots []int
	r.t.mu.Lock()
	for i, dl := range deliveries {
		h, ok := dl.Handle.(*holding)
		switch {
		case !ok || h.r != r:
			results[i] = fmt.Errorf("waybill/table: extend: %w: the delivery is not of this receiver", core.ErrInvalid)
		case h.state != handed || h.lost:
			results[i] = fmt.Errorf("waybill/table: extend: %w", core.ErrLeaseLost)
		default:
			hs, slots = append(hs, h), append(slots, i)
		}
	}
	r.t.mu.Unlock()
	if len(hs) > 0 {
		for j, err := range r.t.extend(ctx, hs, d, r.opts.Lease/2) {
			results[slots[j]] = err
		}
	}
	return results
}
