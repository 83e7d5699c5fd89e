package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/errtext"
)

// runner runs one subscription during one Run. Its goroutines: the one of run, which receives; up to sub.Concurrency
// workers, which are begun when there is something to handle; one that settles, begun when there is something to
// settle.
type runner struct {
	c        *Consumer
	sub      *waybill.Subscription
	asked    *core.Subscription
	log      *logs
	tel      *queueTelemetry
	handlers map[string]*entry
	any      *entry          // for what no other is for; nil if there is none
	trouble  func(error)     // an outage has begun; nil if nobody wants to know
	stopCtx  context.Context //nolint:containedctx // ends when the run is to stop: nothing is begun any more
	counts   counts

	handlerCtx   context.Context //nolint:containedctx // the parent of handlers' contexts; lives as long as the run
	cutHandlers  context.CancelFunc
	settleCtx    context.Context //nolint:containedctx // outlives the handlers, so that what they did is settled
	abortSettles context.CancelFunc

	checks []func(context.Context) error // still to be asked before the first subscription

	mu        sync.Mutex
	schedule                // what waits and what runs
	pause     pause         // the state of an outage
	held      int           // received and not settled
	unsettled int           // decided and not settled
	stopping  bool          // nothing new is started
	down      bool          // the broker cannot be reached
	condition               // for Health
	active    time.Time     // when something was received or settled last
	idle      signal        // stopping, and nothing runs
	settled   signal        // stopping, nothing runs, and nothing is to be settled
	jobs      chan *item    // for workers that have nothing to handle; it has room for one each
	spare     int           // how many of these there are
	settles   chan *session // for the goroutine that waits for something to settle
	settler   bool          // there is one
	ended     chan struct{} // closed when the run is over
	wake      chan any      // tells a waiting receive loop that something changed
	waiting   bool          // the receive loop waits on wake
	kicker    *time.Timer
	kicksAt   time.Time // zero: the timer does not run
}

// signal is a channel that is closed once.
type signal struct {
	ch   chan struct{}
	done bool
}

func (s *signal) set() {
	if !s.done {
		s.done = true
		close(s.ch)
	}
}

func newRunner(ctx context.Context, c *Consumer, reg *registration) *runner {
	r := &runner{
		c: c, sub: &reg.sub, asked: &reg.asked, tel: c.tel.forQueue(&reg.asked), handlers: make(map[string]*entry, len(reg.handlers)), stopCtx: ctx, active: time.Now(),
		log:  &logs{Logger: c.opts.Logger.With(slog.String("queue", reg.sub.Queue))},
		wake: make(chan any, 1), jobs: make(chan *item, reg.sub.Concurrency), settles: make(chan *session, 1), ended: make(chan struct{}), idle: signal{ch: make(chan struct{})}, settled: signal{ch: make(chan struct{})},
		checks:   reg.checks,
		schedule: schedule{limit: reg.sub.Concurrency, lanes: map[string][]*item{}, keepBusy: reg.sub.InOrder},
	}
	for name, h := range reg.handlers {
		r.handlers[name] = &entry{handle: h.Handle, batch: h.Batch, wait: h.BatchWait, size: orElse(h.BatchSize, min(DefaultBatchSize, r.sub.Prefetch))}
		if r.handlers[name].batch == nil {
			r.handlers[name].wait = 0
		}
	}
	r.any = r.handlers[waybill.AnyMessage]
	r.quiet = func() bool { return r.unsettled == 0 }
	r.full = func() bool { return r.held >= r.sub.Prefetch }
	r.again = r.kickAt
	r.giveBack = func(it *item) {
		if r.pause.probe == it {
			r.pause.probe = nil
		}
		r.settle(it, core.AckRelease(it.d))
	}
	detached := context.WithoutCancel(ctx)
	r.handlerCtx, r.cutHandlers = context.WithCancel(detached)
	r.settleCtx, r.abortSettles = context.WithCancel(detached)
	return r
}

// run opens the subscription, receives until ctx ends, and drains. The result of the first attempt to open goes to
// first; nothing is received before begin is closed.
func (r *runner) run(ctx context.Context, first chan<- error, begin <-chan struct{}) error {
	defer r.abortSettles()
	defer r.cutHandlers()
	defer close(r.ended)
	s, err := r.open(ctx, first)
	if s == nil {
		return err
	}
	select {
	case <-begin:
		r.log.LogAttrs(ctx, slog.LevelInfo, "subscription started", slog.String("event", "consumer.start"),
			slog.Int("concurrency", r.sub.Concurrency), slog.Int("prefetch", r.sub.Prefetch))
		s = r.receive(ctx, s)
	case <-ctx.Done():
	}
	r.drain(ctx, s)
	return nil
}

// open subscribes until it succeeds, ctx ends (nil, nil), or the subscription is misconfigured and has never worked:
// then first is not nil or was not answered yet, and the error is returned.
func (r *runner) open(ctx context.Context, first chan<- error) (*session, error) {
	tell := func(err error) {
		if first != nil {
			first <- err
			first = nil
		}
	}
	fatal := first != nil
	for n := 1; ; n++ {
		rcv, err := r.subscribe(ctx)
		switch {
		case err == nil:
			tell(nil)
			r.setDown(false, nil)
			if n > 1 || !fatal {
				r.log.LogAttrs(ctx, slog.LevelInfo, "subscription is open again", slog.String("event", "consumer.reconnect"))
			}
			return &session{rcv: rcv}, nil
		case ctx.Err() != nil:
			tell(nil)
			return nil, nil //nolint:nilerr // stopped before there was a session
		case fatal && (errors.Is(err, waybill.ErrMisconfigured) || errors.Is(err, waybill.ErrInvalid) || errors.Is(err, waybill.ErrUnsupported)):
			tell(err)
			return nil, err
		}
		tell(nil)
		r.setDown(true, err)
		delay := r.pauseDelay(n)
		r.log.warn(ctx, "consumer.subscribe", "cannot subscribe, will try again", slog.Duration("retry_in", delay), errAttr(err))
		r.tel.failed(ctx, "subscribe", err)
		if !sleep(ctx, delay) {
			return nil, nil
		}
	}
}

// check asks, once, whether what the handlers need is there.
func (r *runner) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for len(r.checks) > 0 {
		if err := r.checks[0](ctx); err != nil {
			return errtext.Within("waybill/consumer: queue "+r.sub.Queue, err)
		}
		r.checks = r.checks[1:]
	}
	return nil
}

// subscribe opens a receiver that outlives ctx: ctx ends only the attempt.
func (r *runner) subscribe(ctx context.Context) (core.Receiver, error) {
	attempt, cancel := context.WithCancel(r.settleCtx)
	defer context.AfterFunc(ctx, cancel)()
	if err := r.check(attempt); err != nil {
		cancel()
		return nil, err
	}
	rcv, err := r.c.bus.Subscribe(attempt, *r.asked)
	if err != nil {
		cancel()
		return nil, err
	}
	return rcv, nil // attempt goes on, as a receiver may hold on to it; it ends with settleCtx
}

// receive receives until ctx ends and returns the session that is open then, or nil.
func (r *runner) receive(ctx context.Context, s *session) *session {
	failures := 0
	for {
		limit, ok := r.room(ctx)
		if !ok {
			return s
		}
		ds, err := s.rcv.Receive(ctx, limit)
		r.accept(ctx, s, ds)
		if ctx.Err() != nil {
			return s
		}
		if err == nil {
			if failures > 0 {
				failures = 0
				r.setDown(false, nil)
			}
			if n := s.troubles(); n > 0 && !sleep(ctx, r.pauseDelay(n)) { // settles fail: do not spin on redeliveries
				return s
			}
			continue
		}
		failures++
		r.setDown(true, err)
		delay := r.pauseDelay(failures)
		r.log.warn(ctx, "consumer.receive", "cannot receive, will try again", slog.Duration("retry_in", delay), errAttr(err))
		r.tel.failed(ctx, "receive", err)
		if !sleep(ctx, delay) {
			return s
		}
		if errors.Is(err, waybill.ErrClosed) || errors.Is(err, waybill.ErrMisconfigured) || waybill.ClassOf(err) != waybill.ClassOutage { // open it anew
			r.giveBackAll()
			r.closeReceiver(ctx, s)
			if s, _ = r.open(ctx, nil); s == nil {
				return nil
			}
		}
	}
}

// room waits until something may be received and returns how much; false if ctx ended.
func (r *runner) room(ctx context.Context) (int, bool) {
	for {
		r.mu.Lock()
		limit, wait := r.roomLocked()
		r.waiting = limit == 0
		r.mu.Unlock()
		if ctx.Err() != nil {
			return 0, false
		}
		if limit > 0 {
			return limit, true
		}
		if wait > 0 { // paused
			if !sleep(ctx, wait) {
				return 0, false
			}
			continue
		}
		select {
		case <-ctx.Done():
			return 0, false
		case <-r.wake:
		}
	}
}

func (r *runner) roomLocked() (limit int, wait time.Duration) {
	limit = r.sub.Prefetch - r.held
	if r.sub.InOrder && r.pause.state != open && r.held > 0 {
		return 0, 0 // what is held probes
	}
	switch r.pause.state {
	case paused:
		if wait = time.Until(r.pause.until); wait > 0 {
			return 0, wait
		}
		r.pause.state = probing
		return 1, 0
	case probing:
		if r.pause.probe != nil {
			return 0, 0
		}
		return min(max(limit, 0), 1), 0
	case open:
	}
	if len(r.suspects) > 0 || r.alone {
		return 0, 0 // what is received now would be counted against if a suspect ends the process
	}
	if limit < r.sub.Prefetch/4 && r.running == r.sub.Concurrency {
		return 0, 0 // nobody is free to handle it: wait for a worthwhile number
	}
	return max(limit, 0), 0
}

// wakeReceiver tells a waiting receive loop to look again. mu is held.
func (r *runner) wakeReceiver() {
	if r.waiting {
		r.waiting = false
		select {
		case r.wake <- nil:
		default:
		}
	}
}

// accept takes what was received: parks what must not reach a handler, and schedules the rest.
func (r *runner) accept(ctx context.Context, s *session, ds []*waybill.Delivery) {
	if len(ds) == 0 {
		return
	}
	r.tel.count(ctx, r.tel.received, len(ds))
	r.counts.received.Add(int64(len(ds)))
	now := time.Now()
	items := make([]item, len(ds))
	parked := make([]*item, 0, 4)
	for i, d := range ds {
		items[i] = item{d: d, session: s, since: now}
		it := &items[i]
		if it.refused = r.refuse(d); it.refused != nil {
			parked = append(parked, it)
			continue
		}
		it.h = r.find(&d.Envelope)
		it.suspect = d.Redeliveries > 0 && r.sub.MaxDeliveries > 0 && 2*d.Redeliveries >= r.sub.MaxDeliveries
	}
	for _, it := range parked {
		r.report(ctx, it.d, it.refused)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held += len(ds)
	r.active = now
	if r.pause.state == paused && !time.Now().Before(r.pause.until) {
		r.pause.state = probing // it was in Receive all the time
	}
	inOrder := r.sub.InOrder // then what is held probes, and what comes waits for it
	back := r.stopping || ctx.Err() != nil || r.pause.state == paused && !inOrder
	for i := range items {
		it := &items[i]
		switch {
		case it.refused != nil:
			r.settle(it, it.refused.ack)
		case back, r.pause.state == probing && r.pause.probe != nil && !inOrder:
			r.settle(it, core.AckRelease(it.d))
		default:
			if r.pause.state == probing && !inOrder {
				r.pause.probe = it
			}
			r.add(it)
		}
	}
	r.kick()
}

// find returns the handler for e: by type, or else by topic, or else the one for any; nil if there is none.
func (r *runner) find(e *waybill.Envelope) *entry {
	if h, ok := r.handlers[e.Type]; ok {
		return h
	}
	if h, ok := r.handlers[e.Topic]; ok {
		return h
	}
	return r.any
}

// setDown notes whether the broker can be reached.
func (r *runner) setDown(down bool, err error) { //nolint:revive // a fact, not a mode
	r.mu.Lock()
	r.setCondition(down, err)
	r.active = time.Now()
	r.mu.Unlock()
	if down && r.trouble != nil {
		r.trouble(err)
	}
}

// kick starts workers while there is something to handle and somebody may. mu is held.
func (r *runner) kick() {
	for it := r.next(); it != nil; it = r.next() {
		r.start(it)
	}
}

// kickAt looks again at the time at, if nobody does before. mu is held.
func (r *runner) kickAt(at time.Time) {
	if !r.kicksAt.IsZero() && !at.Before(r.kicksAt) {
		return
	}
	r.kicksAt = at
	if r.kicker != nil {
		r.kicker.Stop()
	}
	r.kicker = time.AfterFunc(time.Until(at), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.kicksAt = (time.Time{}); !r.stopping {
			r.kick()
		}
	})
}

// next is schedule.next for subscriptions whose order is kept: while they are paused one message at a time probes, and
// the others wait where they are.
func (r *runner) next() *item {
	p := &r.pause
	if !r.sub.InOrder || p.state == open {
		return r.schedule.next()
	}
	if p.state == paused && time.Now().Before(p.until) {
		r.kickAt(p.until)
		return nil
	}
	p.state = probing
	if p.probe != nil {
		return nil
	}
	p.probe = r.schedule.next()
	return p.probe
}
