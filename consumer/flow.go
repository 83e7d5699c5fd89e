package consumer

import (
	"context"
	"log/slog"

	"github.com/waybill-go/waybill/core"
)

// What the broker may send ahead.
type flowState uint8

const (
	flowAll  flowState = iota // what Prefetch allows
	flowOne                   // one message, to probe
	flowNone                  // nothing: what it had sent was released
)

// flow is the Receive in progress, which a pause ends. The runner's mu guards it.
type flow struct {
	call context.Context //nolint:containedctx // of Receive calls, until one is ended
	cut  context.CancelFunc
}

// begin returns the context of the next Receive.
func (f *flow) begin(ctx context.Context) context.Context {
	if f.call == nil || f.call.Err() != nil {
		f.call, f.cut = context.WithCancel(ctx)
	}
	return f.call
}

// end ends the Receive in progress.
func (f *flow) end() {
	if f.cut != nil {
		f.cut()
	}
}

// setFlow changes what the broker may send ahead, if the transport can. With the order kept everything stays where it
// is: another replica would handle what is behind.
func (r *runner) setFlow(ctx context.Context, s *session, want flowState) {
	p, ok := core.As[core.Pauser](s.rcv)
	if !ok || r.sub.InOrder || s.flow == want {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleGrace)
	defer cancel()
	var err error
	switch want {
	case flowAll:
		err = p.Resume(ctx, 0)
	case flowOne:
		err = p.Resume(ctx, 1)
	case flowNone:
		err = p.Pause(ctx)
	}
	if err != nil {
		r.log.Event(ctx, slog.LevelWarn, "consumer.flow", "cannot tell the broker how much to send", errAttr(err))
		return
	}
	s.flow = want
}

// probeDependencies asks whether what handlers need is there, before a message probes. If not, the pause goes on.
func (r *runner) probeDependencies(ctx context.Context) {
	for _, check := range r.source.checks {
		attempt, cancel := context.WithTimeout(ctx, checkTimeout)
		err := check(attempt)
		cancel()
		if err == nil {
			continue
		}
		r.mu.Lock()
		p := &r.pause
		still := p.state == paused && !p.waits() && p.handlers
		if still {
			p.begin(r.pauseDelay(p.n+1), err)
		}
		t := turn{changed: still, state: p.state, delay: p.delay, err: err}
		r.mu.Unlock()
		r.announce(t)
		return
	}
}
