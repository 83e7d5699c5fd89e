package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
)

// One goroutine of each limited subscription asks the limiter: awaitQuestion waits until gate.plan wants something, and
// putQuestion asks and starts what the answer lets begin. A question is a function that the limiter runs on the state
// it stores. Nothing begins without an answer: if a message waits for it, that is an outage, and the subscription
// pauses.

// limitTimeout bounds one question to the limiter.
const limitTimeout = 5 * time.Second

// keepPermits asks the limiter for permits while the subscription runs. The function that it returns ends that and
// gives the slots back.
func (r *runner) keepPermits() (end func()) {
	if r.gate == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(r.settleCtx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r.awaitQuestion(ctx) {
			r.putQuestion(ctx)
		}
	}()
	return func() {
		cancel()
		if await(done, settleGrace) { // else the limiter ignores its context
			r.giveBack()
		}
	}
}

// awaitQuestion waits until there is something to ask, and reports whether ctx did not end before.
func (r *runner) awaitQuestion(ctx context.Context) bool {
	for {
		now := time.Now()
		_, at := r.question(now, false)
		wait := at.Sub(now)
		if !at.IsZero() && wait <= 0 {
			return ctx.Err() == nil
		}
		var due <-chan time.Time
		timer := time.NewTimer(max(wait, 0))
		if !at.IsZero() {
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-r.gate.bell:
		case <-due:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
}

// question returns what to ask, and when; zero = not before something changes. With ask it is asked now.
func (r *runner) question(now time.Time, ask bool) (limitAsk, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, at := r.gate.plan(now, r.running, r.couldBegin(), r.limit)
	if ask {
		r.gate.ask(&a)
	}
	if r.gate.waited > 0 {
		r.tel.limited.Add(r.settleCtx, r.gate.waited.Seconds(), r.tel.plain...)
		r.gate.waited = 0
	}
	return a, at
}

// couldBegin returns how many messages could begin if the limit let them. mu is held.
func (r *runner) couldBegin() int {
	p := &r.pause
	switch {
	case r.stopping, r.alone, p.waits():
		return 0
	case r.sub.InOrder && p.state != open:
		if p.probe != nil || r.unstored.any() {
			return 0
		}
		return min(r.ready.len(), 1)
	}
	return r.ready.len()
}

// putQuestion asks the limiter, and starts what the answer lets begin.
func (r *runner) putQuestion(ctx context.Context) {
	sent := time.Now()
	a, _ := r.question(sent, true)
	got, err := r.askLimiter(ctx, &a)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	waits := r.gate.blocked
	if err == nil && r.gate.answer(sent, &a, &got) {
		err = errTooLate
	}
	var t turn
	if err != nil {
		err = fmt.Errorf("limit %q: %w", r.sub.Limit.Name, err)
		t = r.limiterFailed(waits, err)
	}
	r.kick()
	r.mu.Unlock()
	if err != nil {
		r.log.Event(ctx, slog.LevelWarn, "consumer.limit", "cannot get permits of the shared limit, will try again; nothing begins without",
			slog.String("limit", r.sub.Limit.Name), errAttr(err))
	}
	r.announce(t)
}

// errTooLate says that permits had lapsed when they came.
var errTooLate = &waybill.Error{Op: "waybill/consumer", Class: waybill.ClassOutage, Err: errors.New("the limiter answers so late that its permits have lapsed")}

// askLimiter is one question.
func (r *runner) askLimiter(ctx context.Context, a *limitAsk) (got limitGrant, err error) {
	ctx, cancel := context.WithTimeout(ctx, limitTimeout)
	defer cancel()
	var unread error
	err = r.opts.Limiter.UpdateLimit(ctx, r.sub.Limit.Name, func(text string, now time.Time) string {
		var state limitState
		if unread = state.decode(text); unread != nil {
			return text
		}
		got = state.ask(&r.sub.Limit, a, now)
		return state.encode()
	})
	return got, errors.Join(err, unread)
}

// limiterFailed notes that the limiter did not answer. If a message waits for it, that is an outage like one of what
// handlers need. mu is held.
func (r *runner) limiterFailed(waits bool, err error) turn {
	g, p := r.gate, &r.pause
	now := time.Now()
	g.fail(now)
	g.blocked = false
	if !waits || r.stopping || p.waits() {
		g.earliest = now.Add(r.pauseDelay(g.failures))
		return turn{}
	}
	g.earliest = now
	g.unblock(now)
	p.begin(r.pauseDelay(p.n+1), err)
	p.handlers = true // a message probes
	if r.sub.InOrder {
		r.kickAt(p.until)
	} else {
		r.releaseWaiting()
		r.flow.end()
	}
	r.bell.ring()
	return turn{changed: true, state: paused, delay: p.delay, err: err}
}

// giveBack gives the slots back at the end of a run. Those of handlers that were left behind stay taken until the lease
// ends.
func (r *runner) giveBack() {
	r.mu.Lock()
	a := limitAsk{id: r.gate.id, busy: r.running}
	needed := r.gate.listed && r.running == 0
	r.mu.Unlock()
	if !needed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.settleCtx), settleGrace)
	defer cancel()
	if _, err := r.askLimiter(ctx, &a); err != nil {
		r.log.Event(ctx, slog.LevelWarn, "consumer.limit", "cannot give back the slots of the shared limit; others wait until their lease ends",
			slog.String("limit", r.sub.Limit.Name), errAttr(err))
	}
}
