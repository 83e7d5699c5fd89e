package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// One goroutine asks the transport for messages. It asks only for as many as the subscription may hold, and for none
// while that would do harm: during a pause, while a suspect waits or runs, while verdicts cannot be stored. A Receive
// that is under way when a pause begins is ended, since the broker would go on sending. A loop that has nothing to ask
// for sleeps until the bell rings: a settle, an end of a pause, a probe.

// bell wakes the receive loop. The runner's mu guards waiting.
type bell struct {
	ch      chan struct{}
	waiting bool // the loop waits
}

// ring tells a waiting loop to look again.
func (b *bell) ring() {
	if b.waiting {
		b.waiting = false
		select {
		case b.ch <- struct{}{}:
		default:
		}
	}
}

// receive receives until ctx ends and returns the session that is open then, or nil. After an outage the receiver goes
// on. After any other error, and after its end, it is opened anew, and all messages that have not begun go back first:
// they belong to the old one.
func (r *runner) receive(ctx context.Context, s *session) *session {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.flow.end()
		r.flow.tell()
	}()
	failures := 0
	for {
		call, limit := r.awaitRoom(ctx, s)
		if limit == 0 {
			return s
		}
		ds, err := s.rcv.Receive(call, limit)
		r.accept(ctx, s, ds)
		if ctx.Err() != nil {
			return s
		}
		if err != nil && call.Err() != nil {
			continue // a pause began
		}
		if err == nil {
			if failures > 0 {
				failures = 0
				r.setDown(false, nil)
				r.sayReopened(ctx)
			}
			// settles fail: redeliveries must not spin
			if n := s.troubles(); n > 0 && sleep.For(ctx, r.pauseDelay(n)) != nil {
				return s
			}
			continue
		}
		failures++
		r.setDown(true, err)
		delay := r.pauseDelay(failures)
		r.log.Event(ctx, slog.LevelWarn, "consumer.receive", "cannot receive, will try again", slog.Duration("retry_in", round(delay)), errAttr(err))
		r.tel.failed(ctx, "receive", err)
		if sleep.For(ctx, delay) != nil {
			return s
		}
		// open it anew
		if errors.Is(err, waybill.ErrClosed) || errors.Is(err, waybill.ErrMisconfigured) || waybill.ClassOf(err) != waybill.ClassOutage {
			r.releaseAll()
			r.closeReceiver(ctx, s)
			if s, _ = r.open(ctx, nil); s == nil {
				return nil
			}
		}
	}
}

// awaitRoom waits until something may be received. It returns how much, and the context for it, which ends when a pause
// begins; 0 if ctx ended. During a pause the broker sends nothing ahead. In each round it reads, under the lock, how
// much may be received and sent ahead. Without the lock it tells the broker so, and then returns, sleeps for the rest
// of a pause, or waits for the bell.
func (r *runner) awaitRoom(ctx context.Context, s *session) (context.Context, int) {
	for {
		r.mu.Lock()
		limit, wait := r.room()
		r.bell.waiting = limit == 0
		call := r.flow.begin(ctx)
		send, back := r.ahead(s), r.load.goBack
		r.mu.Unlock()
		// The broker is told to send less before messages go back: else it would send them here again.
		if back && ctx.Err() == nil {
			r.setFlow(ctx, s, send)
			r.giveBackWaiting()
			continue
		}
		switch {
		case ctx.Err() != nil:
			return nil, 0
		case limit > 0:
			r.setFlow(ctx, s, send)
			r.toldFlow(send)
			return call, limit
		case wait > 0: // paused
			r.setFlow(ctx, s, flowNone)
			r.toldFlow(flowNone)
			if sleep.For(ctx, wait) != nil {
				return nil, 0
			}
			r.probeDependencies(ctx)
			continue
		}
		r.toldFlow(flowNone)
		select {
		case <-ctx.Done():
			return nil, 0
		case <-r.bell.ch:
		}
	}
}

// room returns how much may be received now. If that is nothing because of a pause, it returns the rest of the pause. A
// pause that is over becomes a probe: the next message alone is received. mu is held.
func (r *runner) room() (limit int, wait time.Duration) {
	p := &r.pause
	limit = r.free()
	if r.endYields() || r.unstored.any() {
		return 0, 0 // verdicts are stored first
	}
	if r.sub.InOrder && p.state != open && r.load.held > 0 {
		return 0, 0 // held messages probe
	}
	switch p.state {
	case paused:
		if wait = time.Until(p.until); wait > 0 {
			return 0, wait
		}
		p.state = probing
		return 1, 0
	case probing:
		if p.probe != nil {
			return 0, 0
		}
		return min(limit, 1), 0
	case open:
	}
	if len(r.suspects) > 0 || r.alone {
		return 0, 0 // if a suspect ends the process, this would count against everything received
	}
	if limit < r.load.bound(0)/4 && (r.running == r.limit || r.running == 0 && r.load.unsettled > 0) {
		return 0, 0 // nobody is free to handle it, or there is soon room for more: wait for a worthwhile number
	}
	return limit, 0
}

// accept takes in deliveries: it settles those that must not reach a handler, and schedules the others. Decoding, and
// all that can take long or calls functions of the application, comes before the lock is taken.
func (r *runner) accept(ctx context.Context, s *session, ds []*waybill.Delivery) {
	if len(ds) == 0 {
		return
	}
	r.tel.count(ctx, r.tel.received, len(ds))
	r.counts.received.Add(int64(len(ds)))
	now, debug := time.Now(), r.log.Enabled(ctx, slog.LevelDebug)
	messages := make([]message, len(ds))
	for n, d := range ds {
		m := &messages[n]
		unwrap(d)
		complete(d, r.sub.Foreign)
		if debug {
			r.log.Event(r.tel.under(ctx, d), slog.LevelDebug, "consumer.received", "message received", ofMessage(d)...)
		}
		m.d, m.session, m.since = d, s, now
		if m.refused = r.judge.refuse(d); m.refused == nil {
			m.h = r.judge.handlers.find(&d.Envelope)
			m.suspect = r.judge.suspects(d)
			r.assign(m)
		}
	}
	for n := range messages {
		if v := messages[n].refused; v != nil && !v.quiet {
			r.report(r.tel.under(ctx, messages[n].d), messages[n].d, v)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load.came(messages)
	r.tel.held.Record(ctx, int64(r.load.held), r.tel.gauge...)
	r.load.kept.add(messages)
	r.active = now
	r.place(ctx, messages)
	r.kick()
}

// place settles, releases or schedules deliveries. A paused subscription releases them all, except one that probes. If
// the order is kept, held messages probe, and new ones wait for them. mu is held. Each message goes the first of these
// ways that is for it:
//
//  1. It was refused: its verdict is stored.
//  2. The run stops, or the subscription is paused: it goes back.
//  3. Its key yields: it goes back, and the key waits until it has (yield.go).
//  4. Another message probes: it goes back.
//  5. It lets others probe first, or its own pause is not over: it goes away.
//  6. It is scheduled.
func (r *runner) place(ctx context.Context, messages []message) {
	p := &r.pause
	unstored := r.unstored.any()
	if p.state == paused && !p.waits() {
		p.state = probing // the loop was in Receive during the whole pause
	}
	probes := p.state == probing && !r.sub.InOrder
	back := r.stopping || ctx.Err() != nil || (p.state == paused || unstored) && !r.sub.InOrder
	for n := range messages {
		m := &messages[n]
		if m.h != nil && r.load.blames.find(m) != nil {
			m.h = m.h.one // its batch would share its outage
		}
		switch {
		case m.refused == nil && !back && r.yields[m.key()] != nil:
			r.sendBack(r.yields[m.key()], m)
		case m.refused != nil:
			r.settle(m, m.refused.ack)
		case back, probes && p.probe != nil:
			r.settle(m, core.AckRelease(m.d))
		default:
			if delay := r.passes(m); delay > 0 {
				r.settleLater(m, delay)
				continue
			}
			if probes {
				r.try(m)
			}
			r.add(m)
		}
	}
}
