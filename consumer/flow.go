package consumer

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A broker that pushes sends messages ahead of Receive. So a pause has an order: the Receive in progress ends, the
// receive loop tells the broker to send nothing more (setFlow), and only then the releases of the waiting messages go
// out (awaitFlow). In another order the broker would send a released message here again at once.

// flowNone: the broker may send nothing ahead, and the messages that it had sent were released.
const flowNone = 0

// flowPatience is how long releases wait for the broker to be told that a pause began.
const flowPatience = time.Second

// flow is the Receive in progress, which a pause ends. The runner's mu guards it.
type flow struct {
	call context.Context //nolint:containedctx // of Receive calls, until one is ended
	cut  context.CancelFunc
	told chan struct{} // of a pause that the broker is not told of yet
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

// hold has releases wait until the broker is told of a pause. Without that the broker can send a released message here
// again at once, and count a delivery that no handler sees.
func (f *flow) hold(s *session) {
	if _, ok := core.As[core.Pauser](s.rcv); ok && f.told == nil {
		f.told = make(chan struct{})
	}
}

// tell ends hold.
func (f *flow) tell() {
	if f.told != nil {
		close(f.told)
		f.told = nil
	}
}

// toldFlow ends hold when the broker was told something. If that was to send, and a pause has begun meanwhile, hold
// goes on.
func (r *runner) toldFlow(told int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if told == flowNone || r.pause.state != paused {
		r.flow.tell()
	}
}

// awaitFlow waits before the releases of a batch are sent; see hold. The quick worker has none.
func (r *runner) awaitFlow(l *settleWorker, batch *acks) {
	if l == &l.session.quick {
		return
	}
	r.mu.Lock()
	told := r.flow.told
	r.mu.Unlock()
	if told == nil || !slices.ContainsFunc(batch.list, func(a core.Ack) bool { return a.Verdict == core.VerdictRelease }) {
		return
	}
	limit := time.NewTimer(flowPatience)
	defer limit.Stop()
	select {
	case <-told:
	case <-limit.C:
	case <-r.settleCtx.Done():
	}
}

// setFlow changes what the broker may send ahead, if the transport can. With the order kept everything stays where it
// is: another replica would handle what is behind.
func (r *runner) setFlow(ctx context.Context, s *session, want int) {
	p, ok := core.As[core.Pauser](s.rcv)
	if !ok || r.sub.InOrder || s.flow == want {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleGrace)
	defer cancel()
	var err error
	if want == flowNone {
		err = p.Pause(ctx)
	} else {
		err = p.Resume(ctx, want)
	}
	if err != nil {
		r.log.Event(ctx, slog.LevelWarn, "consumer.flow", "cannot tell the broker how much to send", errAttr(err))
		return
	}
	s.flow, s.flowSince = want, time.Now()
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
