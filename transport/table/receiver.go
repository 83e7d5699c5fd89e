package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/upkeep"
)

const defaultConcurrency = 10 // of a subscription that nobody completed

// holding is a record that was handed out: a Delivery's Handle.
type holding struct {
	r       *receiver
	item    *dispatch.Item
	state   holdState
	lost    bool      // another process has it
	onLoss  func()    // called when that is known
	since   time.Time // when it was handed out
	logged  bool      // that it is held for long
	pending *settling // its settle, once it was asked for, until a caller has its result
}

// The states of a holding. A handed one is settled by its caller. A settling one is gone when its outcome has a result.
// A receiver that closes makes all of them gone.
type holdState uint8

const (
	handed holdState = iota // in the caller's hands
	settle                  // on its way to the store
	gone                    // not ours any more
)

// What Receive has said of an outage.
type outageState uint8

const (
	outageNone outageState = iota
	outageTold             // it has returned the error
	outageOver             // it has still to return nil
)

// bounds are how many deliveries a receiver hands out.
type bounds struct {
	handlers int // may be in the caller's hands,
	prefetch int // and so many may not be settled
	limit    int // of the Receive in progress; 0 = none
	bytes    int // of the bodies that one Receive returns; 0 = any number
}

// receiver is a member of the outbox from its first Receive until it is closed. It is guarded by its transport's lock.
type receiver struct {
	t       *Transport
	opts    QueueOptions
	queue   string
	bounds  bounds
	drop    bool            // rejected messages are not parked; Subscription.DropFailed
	base    context.Context //nolint:containedctx // of its calls: they outlive the Receive that asked
	cancel  context.CancelFunc
	closing closing
	changed chan struct{} // closed and replaced when Receive or Close should look again

	d       *dispatch.Dispatcher
	started bool // there was a Receive: the receiver is a member of the outbox
	closed  bool
	out     map[*dispatch.Item]*holding // what was handed out and is not gone, by item
	busy    int                         // of out, those in the caller's hands
	err     error                       // of a call, to be returned by Receive
	outage  outageState
	calls   calls
	wakeups wakeups
}

// closing is about the end of a receiver.
type closing struct {
	unwatch func() bool   // ends the wait for the end of the subscription's context
	hurry   func()        // ends the context of the Close in progress
	ended   chan struct{} // closed when Close has returned
}

// calls are the calls to the store in progress.
type calls struct {
	running int
	reading int // those of them that may bring something
	// seen is what the log says, at level debug, that their answers have changed.
	seen upkeep.Watch
}

// closeLimit bounds the Close of a receiver whose context has ended.
const closeLimit = 10 * time.Second

// closeGrace is how long Close waits for calls to the store that it cancelled.
const closeGrace = time.Second

// wakeups say when a receiver looks again.
type wakeups struct {
	hasty  int         // how many in a row led to nothing
	stirAt time.Time   // when to look again although nothing is known; zero = not
	timer  *time.Timer // runs pump
}

func newReceiver(ctx context.Context, t *Transport, sub *core.Subscription, q QueueOptions) *receiver {
	b := bounds{handlers: sub.Concurrency, prefetch: sub.Prefetch, bytes: sub.ReceiveBytes}
	b.handlers = cmp.Or(b.handlers, defaultConcurrency)
	switch {
	case sub.MaxPrefetch > 0: // the consumer asks for what it wants to hold
		b.prefetch, b.handlers = sub.MaxPrefetch, sub.MaxPrefetch
	case b.prefetch == 0:
		b.prefetch = 2 * b.handlers
	case b.prefetch > 2*b.handlers: // somebody wants messages to wait in the process: for batches, say
		b.handlers = b.prefetch
	default:
		b.handlers = min(b.handlers, b.prefetch)
	}
	r := &receiver{
		t: t, opts: q, queue: sub.Queue, bounds: b, drop: sub.DropFailed,
		changed: make(chan struct{}), closing: closing{ended: make(chan struct{})}, out: map[*dispatch.Item]*holding{},
	}
	r.base, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	route := dispatch.Route{Name: r.queue, Order: q.Order, Blocks: q.BlockAfterAbandon, Queue: true}
	if sub.InOrder && !q.BlockAfterAbandon {
		route.Pipelined = b.prefetch
	}
	o := dispatch.Options{
		Name: t.opts.Owner, NewSession: newSession, Routes: []dispatch.Route{route}, Lease: q.Lease, Gather: -1,
		PollMin: q.PollMin, PollMax: q.PollMax, Handlers: b.handlers, Settled: r.settled,
	}
	if t.waiter != nil {
		o.PollMin = o.PollMax
	}
	r.d = dispatch.New(o)
	return r
}

func newSession() core.Session { return core.Session(chance.N(int64(math.MaxInt64-1)) + 1) }

// Receive waits for deliveries; see core.Receiver.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	if limit < 1 {
		return nil, waybill.Invalid("waybill/table: receive", fmt.Sprintf("limit: %d is less than 1", limit))
	}
	defer r.rest()
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("waybill/table: receive: %w", err)
		}
		ds, changed, err := r.look(limit)
		if changed == nil {
			return ds, err
		}
		if err := await(ctx, changed); err != nil {
			return nil, fmt.Errorf("waybill/table: receive: %w", err)
		}
	}
}

// look returns the deliveries that are there, an outage, or that one is over. Else it returns a channel to wait for.
func (r *receiver) look(limit int) ([]*waybill.Delivery, <-chan struct{}, error) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.closed {
		return nil, nil, errClosed("receive")
	}
	r.started, r.bounds.limit = true, limit
	if ds := r.take(time.Now()); len(ds) > 0 || r.outage == outageOver {
		r.outage = outageNone
		return ds, nil, nil
	}
	if err := r.err; err != nil {
		r.err, r.outage = nil, outageTold
		return nil, nil, err
	}
	r.pump()
	return nil, r.changed, nil
}

// rest ends a Receive: until the next one there is no caller to hand out to.
func (r *receiver) rest() {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.bounds.limit = 0
	r.pump()
}

func await(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// free returns how many deliveries could be handed out now.
func (r *receiver) free() int {
	if r.closed {
		return 0
	}
	return max(min(r.bounds.limit, r.bounds.handlers-r.busy, r.bounds.prefetch-len(r.out)), 0)
}

// take hands out what is ready. mu is held.
func (r *receiver) take(now time.Time) []*waybill.Delivery {
	var ds []*waybill.Delivery
	free, bytes := r.free(), 0
	for len(ds) < free && (r.bounds.bytes <= 0 || bytes < r.bounds.bytes) {
		items := r.d.HandOut(now, r.queue, 1)
		if len(items) == 0 {
			break
		}
		item := items[0]
		rec := &item.Record
		bytes += len(rec.Envelope.Body)
		h := &holding{r: r, item: item, since: now}
		ds = append(ds, &waybill.Delivery{Envelope: rec.Envelope, Queue: r.queue, Attempt: rec.Attempts + 1, Redeliveries: rec.Crashes, Err: rec.Err, Handle: h})
		r.out[item] = h
		r.busy++
	}
	if len(ds) > 0 {
		r.err, r.wakeups.hasty = nil, 0
		r.t.stats.HandedOut += int64(len(ds))
	}
	return ds
}

// forget ends the receiver's hold on h. mu is held.
func (r *receiver) forget(h *holding) {
	if h.state == gone {
		return
	}
	if h.state == handed {
		r.busy--
	}
	h.state = gone
	delete(r.out, h.item)
	r.notify()
}

// notify makes Receive and Close look again. mu is held.
func (r *receiver) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// OnLost has fn called when another process has d; see core.LeaseWatcher. That is known at the next call to the store.
func (r *receiver) OnLost(d *waybill.Delivery, fn func()) {
	h, _ := d.Handle.(*holding)
	if h == nil || h.r != r {
		return
	}
	r.t.mu.Lock()
	h.onLoss = fn
	lost := h.lost || h.state == gone
	r.t.mu.Unlock()
	if lost {
		fn()
	}
}

// Close releases what was not handed out, at no cost, and lets others have what was at once: that counts as a
// redelivery. If the store cannot be reached they get it after the lease, which the error says. When ctx ends, calls to
// the store are cancelled. Close then returns within a second, also if one of them goes on. The steps:
//
//  1. The dispatcher quits (Quit), and the pump makes the calls for that until the member has left.
//  2. The contexts of all calls end, and Close waits for them a moment.
//  3. Settles without a result are answered, and all deliveries are gone.
//  4. Other receivers of the queue look for the released ones. The last receiver ends the wait and the upkeep.
func (r *receiver) Close(ctx context.Context) error {
	t := r.t
	t.mu.Lock()
	if r.closed { // the first caller is at it, or was
		hurry := r.closing.hurry
		t.mu.Unlock()
		if await(ctx, r.closing.ended) != nil {
			hurry()
			<-r.closing.ended
		}
		return nil
	}
	defer close(r.closing.ended)
	ctx, r.closing.hurry = context.WithCancel(ctx)
	defer r.closing.hurry()
	r.closed = true
	r.closing.unwatch()
	r.notify()
	r.d.Quit()
	r.pump()
	for r.started && !r.d.Left() && ctx.Err() == nil {
		changed := r.changed
		t.mu.Unlock()
		_ = await(ctx, changed)
		t.mu.Lock()
	}
	left := !r.started || r.d.Left()
	r.cancel()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	for r.calls.running > 0 && grace.Err() == nil { // they end now
		changed := r.changed
		t.mu.Unlock()
		_ = await(grace, changed)
		t.mu.Lock()
	}
	if r.wakeups.timer != nil {
		r.wakeups.timer.Stop()
	}
	for _, h := range r.out {
		if h.pending != nil {
			h.pending.answer(errClosed("settle"))
		}
		r.forget(h)
	}
	t.receivers = slices.DeleteFunc(t.receivers, func(other *receiver) bool { return other == r })
	t.stir(r, 0)
	all := []<-chan struct{}{t.hang(), t.endUpkeep()}
	t.mu.Unlock()
	for _, ended := range all {
		if ended != nil {
			_ = await(grace, ended) // at once
		}
	}
	if !left {
		return errtext.Within("waybill/table: close: messages come again after the lease", &waybill.Error{Class: waybill.ClassOutage, Err: errors.Join(ctx.Err(), r.d.Err())})
	}
	return nil
}
