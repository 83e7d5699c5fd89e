package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/sleep"
)

// A subscription is opened again whenever its receiver fails. The first attempt of a run differs: a misconfiguration
// ends the run then, so that a person notices. Later the same error is an outage, which heals. The handlers' checks
// come before the first subscription, so no message arrives before what its handler needs is there.

// checkTimeout bounds the checks of handlers.
const checkTimeout = 10 * time.Second

// source opens receivers.
type source struct {
	bus    core.Subscriber
	asked  *core.Subscription
	checks []func(context.Context) error // of handlers: whether what they need is there
	passed int                           // so many were, before the first subscription
}

// subscribe opens a receiver. The end of ctx ends only the attempt; the receiver lives as long as life.
func (s *source) subscribe(ctx, life context.Context) (core.Receiver, error) {
	attempt, cancel := context.WithCancel(life)
	defer context.AfterFunc(ctx, cancel)()
	if err := s.check(attempt); err != nil {
		cancel()
		return nil, err
	}
	rcv, err := s.bus.Subscribe(attempt, *s.asked)
	if err != nil {
		cancel()
		return nil, err
	}
	return rcv, nil // attempt goes on, since a receiver may keep it; it ends with life
}

// check asks, once, whether the dependencies of the handlers are there.
func (s *source) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for ; s.passed < len(s.checks); s.passed++ {
		if err := s.checks[s.passed](ctx); err != nil {
			return errtext.Within("waybill/consumer: queue "+s.asked.Queue, err)
		}
	}
	return nil
}

// open subscribes until that succeeds, or ctx ends (nil, nil). It returns an error if the subscription is misconfigured
// and has never worked: first is not nil then, and was not answered yet.
func (r *runner) open(ctx context.Context, first chan<- error) (*session, error) {
	tell := func(err error) {
		if first != nil {
			first <- err
			first = nil
		}
	}
	fatal := first != nil
	for n := 1; ; n++ {
		rcv, err := r.source.subscribe(ctx, r.settleCtx)
		switch {
		case err == nil:
			r.log.Event(ctx, slog.LevelDebug, "consumer.subscribed", "subscribed", slog.Any("bindings", r.source.asked.Bindings))
			tell(nil)
			r.watch(rcv)
			r.sendsAhead(rcv)
			r.setDown(false, nil)
			if n > 1 || !fatal {
				r.sayReopened(ctx)
			}
			return newSession(rcv, r.source.asked.Prefetch), nil
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
		r.log.Event(ctx, slog.LevelWarn, "consumer.subscribe", "cannot subscribe, will try again", slog.Duration("retry_in", round(delay)), errAttr(err))
		r.tel.failed(ctx, "subscribe", err)
		if sleep.For(ctx, delay) != nil {
			return nil, nil //nolint:nilerr // stopped before there was a session
		}
	}
}

// tellConnected records whether the subscription receives.
func (r *runner) tellConnected(connected bool) {
	n := int64(0)
	if connected {
		n = 1
	}
	r.tel.connected.Record(context.WithoutCancel(r.settleCtx), n, r.tel.gauge...)
}

func (r *runner) sayReopened(ctx context.Context) {
	r.log.LogAttrs(ctx, slog.LevelInfo, "subscription is open again", slog.String("event", "consumer.reconnect"))
}

// watch lets Health ask rcv, if rcv is a core.Checker.
func (r *runner) watch(rcv core.Receiver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checker, _ = core.As[core.Checker](rcv)
}

// closeReceiver closes the receiver of s. It does not wait for ever.
func (r *runner) closeReceiver(ctx context.Context, s *session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleGrace)
	defer cancel()
	if err := s.rcv.Close(ctx); err != nil {
		r.log.Event(ctx, slog.LevelWarn, "consumer.close", "cannot close the receiver", errAttr(err))
	}
}

// setDown notes whether the broker can be reached.
func (r *runner) setDown(down bool, err error) {
	r.mu.Lock()
	r.setCondition(down, err)
	r.mu.Unlock()
	r.tellConnected(!down)
	if down && r.trouble != nil {
		r.trouble(err)
	}
}
