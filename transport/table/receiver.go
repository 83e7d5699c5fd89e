package table

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	defaultConcurrency = 10 // of a subscription that nobody completed
	maxHasty           = 8  // empty claims that may follow at once
	hastyPause         = 50 * time.Millisecond
)

// The states of a holding.
type holdState uint8

const (
	waits  holdState = iota // ready, or behind another one of its key
	handed                  // in the caller's hands
	settle                  // on its way to the store
	gone                    // not ours any more
)

// holding is a claimed record: a Delivery's Handle.
type holding struct {
	r        *receiver
	rec      core.Record // without what only the delivery needs
	state    holdState
	heads    bool      // first of its lane
	lost     bool      // another claim holds it
	claimed  time.Time // before the claim was sent
	deadline time.Time // end of the lease, by our clock
	renewAt  time.Time
	renewals int
	delivery *core.Delivery // until it is handed out
}

// receiver is guarded by its transport's lock.
type receiver struct {
	t        *Transport
	opts     QueueOptions
	route    core.RouteOrder
	prefetch int
	drop     bool
	lanesOff bool            // the order of a key is no matter, or the caller's
	base     context.Context //nolint:containedctx // of its claims: they outlive the Receive that asked
	cancel   context.CancelFunc
	changed  chan struct{} // closed and replaced when Receive should look again
	closed   bool

	held  map[*holding]struct{} // claimed and not settled
	ready []*holding
	lanes map[string][]*holding // what waits behind each key in progress
	out   int                   // handed out and not settled
	err   error                 // of the last claim, to be returned

	claiming    bool
	heldAtClaim bool      // keyed records were held, which may have hidden others
	alone       bool      // a suspect waits to be claimed alone
	solo        bool      // a suspect is held, alone
	asleep      bool      // the last claim brought nothing, and nobody said since that there is more
	wakeAt      time.Time // no claim before then
	wokenBy     time.Time // what came up while a claim was in progress
	empties     int       // claims in a row that brought nothing
	hasty       int       // of these, the ones that followed at once
	lastClaim   time.Time
}

func newReceiver(ctx context.Context, t *Transport, sub *core.Subscription, q QueueOptions) *receiver {
	r := &receiver{
		t: t, opts: q, route: core.RouteOrder{Route: sub.Queue, Order: q.Order, BlockAfterAbandon: q.BlockAfterAbandon},
		prefetch: sub.Prefetch, drop: sub.Unparked, lanesOff: sub.InOrder && !q.BlockAfterAbandon || q.Order != core.OrderPerKey, changed: make(chan struct{}), held: map[*holding]struct{}{}, lanes: map[string][]*holding{},
	}
	if r.prefetch == 0 {
		if r.prefetch = 2 * sub.Concurrency; r.prefetch == 0 {
			r.prefetch = 2 * defaultConcurrency
		}
	}
	r.base, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// Receive waits for deliveries; see core.Receiver.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*core.Delivery, error) {
	if limit < 1 {
		return nil, core.Invalid("waybill/table: receive", fmt.Sprintf("limit: %d is less than 1", limit))
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("waybill/table: receive: %w", err)
		}
		ds, changed, pause, err := r.look(limit)
		if err != nil || len(ds) > 0 {
			return ds, err
		}
		if err := await(ctx, changed, pause); err != nil {
			return nil, fmt.Errorf("waybill/table: receive: %w", err)
		}
	}
}

// look returns what is there, or else starts what is to be done and says when to look again: at a change, and after
// pause, if that is positive.
func (r *receiver) look(limit int) ([]*core.Delivery, <-chan struct{}, time.Duration, error) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.closed {
		return nil, nil, 0, errClosed("receive")
	}
	now := time.Now()
	if ds := r.take(limit, now); len(ds) > 0 {
		return ds, nil, 0, nil
	}
	if err := r.err; err != nil {
		r.err = nil
		return nil, nil, 0, err
	}
	room := min(limit, r.prefetch-r.out-len(r.ready), r.opts.BatchSize)
	switch pause := r.wakeAt.Sub(now); {
	case r.claiming, room < 1, r.solo, r.alone && len(r.held) > 0:
		return nil, r.changed, 0, nil
	case pause > 0:
		r.t.listen()
		return nil, r.changed, pause, nil
	}
	r.claim(room)
	return nil, r.changed, 0, nil
}

func await(ctx context.Context, changed <-chan struct{}, pause time.Duration) error {
	var timer <-chan time.Time
	if pause > 0 {
		t := time.NewTimer(pause)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-changed:
	case <-timer:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take hands out what is ready. What waited for longer than its lease is let go. mu is held.
func (r *receiver) take(limit int, now time.Time) []*core.Delivery {
	var ds []*core.Delivery
	for len(r.ready) > 0 && len(ds) < limit && r.out < r.prefetch {
		h := r.ready[0]
		r.ready[0] = nil
		r.ready = r.ready[1:]
		if h.lost || now.After(h.deadline) {
			r.abort(h)
			continue
		}
		h.state = handed
		r.out++
		ds = append(ds, h.delivery)
		h.delivery = nil
	}
	return ds
}

// claim starts a claim. It outlives the Receive that asked for it. mu is held.
func (r *receiver) claim(room int) {
	req := core.ClaimRequest{Owner: r.t.opts.Owner, Routes: []core.RouteOrder{r.route}, MaxRecords: room, Lease: r.opts.Lease, Alone: r.alone}
	r.claiming, r.asleep, r.heldAtClaim, r.wokenBy = true, false, len(r.held) > 0, time.Time{}
	go func() {
		var claim core.Claim
		var err error
		var sent time.Time
		select {
		case r.t.claimSlot <- struct{}{}:
			sent = time.Now()
			ctx, cancel := context.WithTimeout(r.base, r.opts.Lease/2)
			claim, err = r.t.store.Claim(ctx, req)
			if err != nil && ctx.Err() != nil { // whatever the driver made of it
				err = &core.Error{Class: core.ClassOutage, Err: err}
			}
			cancel()
			<-r.t.claimSlot
		case <-r.base.Done():
			err = errClosed("claim")
		}
		r.t.mu.Lock()
		defer r.t.mu.Unlock()
		r.claimed(&req, &claim, err, sent)
	}()
}

// claimed takes in the answer to a claim. mu is held.
func (r *receiver) claimed(req *core.ClaimRequest, claim *core.Claim, err error, sent time.Time) {
	defer r.notify()
	r.claiming = false
	if err != nil {
		if !r.closed {
			r.err = core.Within("waybill/table: receive: queue "+r.route.Route, err)
		}
		r.wakeAt = time.Time{}
		return
	}
	n := len(claim.Records)
	r.t.stats.Claims++
	r.t.stats.Claimed += int64(n)
	r.alone = claim.Suspects && !req.Alone
	r.solo = req.Alone && n > 0
	r.rest(req, claim, sent)
	for i := range claim.Records {
		r.accept(&claim.Records[i], sent)
	}
	if r.closed {
		r.giveUp()
	}
}

// accept takes in a claimed record.
func (r *receiver) accept(rec *core.Record, sent time.Time) {
	d := &core.Delivery{Envelope: rec.Envelope, Queue: r.route.Route, Attempt: rec.Attempts + 1, Redeliveries: rec.Crashes, Err: rec.Err}
	h := &holding{r: r, rec: *rec, claimed: sent, deadline: sent.Add(r.opts.Lease), renewAt: sent.Add(r.opts.Lease / 2), delivery: d}
	h.rec.Envelope = core.Envelope{ID: rec.Envelope.ID, Key: rec.Envelope.Key, HLC: rec.Envelope.HLC}
	d.Handle = h
	r.held[h] = struct{}{}
	r.t.renewBy(h.renewAt)
	if key := r.laneOf(h); key != "" {
		behind, busy := r.lanes[key]
		if busy {
			r.lanes[key] = append(behind, h)
			return
		}
		r.lanes[key], h.heads = nil, true
	}
	r.ready = append(r.ready, h)
}

// laneOf returns the key in whose order h goes; empty if it has none.
func (r *receiver) laneOf(h *holding) string {
	if r.lanesOff {
		return ""
	}
	return h.rec.Envelope.Key
}

// rest decides when to claim next after claim.
func (r *receiver) rest(req *core.ClaimRequest, claim *core.Claim, sent time.Time) {
	now := time.Now()
	if len(claim.Records) > 0 {
		r.empties, r.hasty = 0, 0
	} else {
		r.empties++
		switch gap := sent.Sub(r.lastClaim); {
		case gap < hastyPause:
			r.hasty++
		case gap > 4*hastyPause:
			r.hasty = 0
		}
	}
	r.lastClaim = sent
	r.wakeAt = r.floor(now)
	if len(claim.Records) == 0 && !claim.More && !claim.Suspects && !req.Alone { // nothing is due
		r.asleep = true
		pause := r.opts.PollMax
		if r.t.waiter == nil || r.t.waitFails > 0 {
			pause = (&core.Backoff{Base: r.opts.PollMin, Cap: r.opts.PollMax}).Delay(r.empties)
		}
		pause -= rand.N(pause/4 + 1) // so that replicas do not poll in step
		if claim.NextIn >= 0 {
			pause = min(pause, max(claim.NextIn, time.Millisecond))
		}
		if t := now.Add(pause); t.After(r.wakeAt) {
			r.wakeAt = t
		}
	}
	if !r.wokenBy.IsZero() && r.wokenBy.Before(r.wakeAt) {
		r.wakeAt, r.asleep = r.wokenBy, false
	}
}

// floor returns the earliest time of the next claim: now, unless too many brought nothing.
func (r *receiver) floor(now time.Time) time.Time {
	if r.hasty > maxHasty {
		return now.Add(hastyPause)
	}
	return now
}

// wakeBy makes the next claim happen at t, if it was planned for later. mu is held.
func (r *receiver) wakeBy(t time.Time) {
	if t.Before(r.wakeAt) {
		r.wakeAt = t
		r.notify()
	}
	if r.claiming && (r.wokenBy.IsZero() || t.Before(r.wokenBy)) { // its answer must not put this off
		r.wokenBy = t
	}
}

// notify makes Receive look again. mu is held.
func (r *receiver) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// forget ends the receiver's hold on h. mu is held.
func (r *receiver) forget(h *holding) {
	if h.state == handed || h.state == settle {
		r.out--
	}
	h.state = gone
	delete(r.held, h)
	r.solo = r.solo && len(r.held) > 0
	r.notify()
}

// advance lets the one behind h in its lane come up, after h was settled. mu is held.
func (r *receiver) advance(h *holding) {
	key := h.rec.Envelope.Key
	if h.heads && len(r.lanes[key]) > 0 {
		next := r.lanes[key][0]
		r.lanes[key] = r.lanes[key][1:]
		h.heads, next.heads = false, true
		r.ready = append(r.ready, next)
		r.notify()
		return
	}
	if h.heads {
		h.heads = false
		delete(r.lanes, key)
	}
	if r.heldAtClaim && key != "" && r.route.Order == core.OrderPerKey { // what the last claim could not see behind h can be claimed
		r.wakeBy(r.floor(time.Now()))
	}
}

// cut ends h's lane and returns what waited in it. mu is held.
func (r *receiver) cut(h *holding) []*holding {
	if !h.heads {
		return nil
	}
	h.heads = false
	behind := r.lanes[h.rec.Envelope.Key]
	delete(r.lanes, h.rec.Envelope.Key)
	return behind
}

// abort lets go of h, which waited for too long or is lost, and of what waits behind it. mu is held.
func (r *receiver) abort(h *holding) {
	for _, f := range append(r.cut(h), h) {
		if f.lost {
			r.forget(f)
			continue
		}
		r.t.release(f)
	}
}

// giveUp releases everything that was not handed out. mu is held.
func (r *receiver) giveUp() {
	for h := range r.held {
		h.heads = false
		if h.state == waits {
			r.t.release(h)
		}
	}
	r.ready = nil
	clear(r.lanes)
}

// Close gives back what was not handed out, at no cost, and lets the leases of what was run out at once: that counts as a
// redelivery. If the store cannot be reached they run out by themselves, which the error says.
func (r *receiver) Close(ctx context.Context) error {
	t := r.t
	t.mu.Lock()
	if r.closed {
		t.mu.Unlock()
		return nil
	}
	r.closed = true
	r.notify()
	r.giveUp()
	t.unstick()
	for (r.claiming || r.settling() > 0) && ctx.Err() == nil {
		changed := r.changed
		t.mu.Unlock()
		_ = await(ctx, changed, 0)
		t.mu.Lock()
	}
	r.cancel()
	var records []core.Record
	for h := range r.held {
		if h.state == handed && !h.lost {
			records = append(records, h.rec)
		}
		r.forget(h)
	}
	t.receivers = slices.DeleteFunc(t.receivers, func(other *receiver) bool { return other == r })
	var ended <-chan struct{}
	if ended = t.listening; ended != nil && len(t.receivers) == 0 {
		t.hangUp()
	} else {
		ended = nil
	}
	t.mu.Unlock()
	if ended != nil {
		_ = await(ctx, ended, 0)
	}
	return t.expire(ctx, records)
}

// settling returns how many of its holdings are on their way to the store.
func (r *receiver) settling() int {
	n := 0
	for h := range r.held {
		if h.state == settle {
			n++
		}
	}
	return n
}

// expire ends the leases of records.
func (t *Transport) expire(ctx context.Context, records []core.Record) error {
	if len(records) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.callLimit)
	defer cancel()
	t.writeSlot <- struct{}{}
	defer func() { <-t.writeSlot }()
	var res core.Results
	if t.extender != nil {
		res = t.extender.ExtendLeases(ctx, records, time.Millisecond)
	} else {
		outcomes := make([]core.Outcome, len(records))
		for i := range records {
			outcomes[i] = core.Release(&records[i], 0)
		}
		res = t.store.Settle(ctx, outcomes)
	}
	for _, err := range res {
		if err != nil && !errors.Is(err, core.ErrLeaseLost) {
			return core.Within("waybill/table: close: messages come again when their leases end", err)
		}
	}
	return nil
}
