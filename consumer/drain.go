package consumer

import (
	"context"
	"log/slog"
	"time"
)

// The end of a run has steps, and each step has a limit: a handler that ignores its context, or a broker that hangs,
// delays the stop by no more than DrainTimeout and the graces below. Messages that were not started go back, so that
// another consumer has them. Verdicts of handled ones are stored first.

// How long the end of a subscription may take beyond the drain timeout: for handlers that ignore their cancelled
// context, and for settles and closes that hang.
const (
	handlerGrace = 5 * time.Second
	settleGrace  = 5 * time.Second
)

// releaseAll releases everything that was not started.
func (r *runner) releaseAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releaseWaiting()
}

// releaseWaiting releases everything that was not started. mu is held.
func (r *runner) releaseWaiting() {
	r.release(r.takeAll())
	if r.gate != nil {
		r.gate.ring() // nothing waits any more
	}
	r.alarm.stop()
	r.storeAgain() // or look at them again later
}

// drain ends a subscription in steps, each with a limit, so that nothing can hold it up:
//
//  1. Messages that have not begun go back (beginStop).
//  2. Running handlers end by themselves, for DrainTimeout.
//  3. Their contexts are cancelled, and they end for handlerGrace. Those that do not are left behind.
//  4. Verdicts are stored, for settleGrace.
//  5. The receiver of s, if there is one, is closed. It releases what is left.
func (r *runner) drain(ctx context.Context, s *session) {
	begin := time.Now()
	running := r.beginStop()
	detached := r.settleCtx
	r.log.LogAttrs(detached, slog.LevelInfo, "subscription stops", slog.String("event", "consumer.stop"), slog.Int("running", running))
	if !await(r.idle.ch, max(r.opts.DrainTimeout, 0)) {
		r.cutHandlers()
		if !await(r.idle.ch, handlerGrace) {
			r.mu.Lock()
			running = r.running
			r.mu.Unlock()
			r.log.LogAttrs(detached, slog.LevelError, "handlers ignore their cancelled context and are left behind; their messages go back",
				slog.String("event", "consumer.left_behind"), slog.Int("running", running))
		}
	}
	await(r.settled.ch, settleGrace)
	if s != nil {
		r.closeReceiver(ctx, s)
	}
	r.log.LogAttrs(detached, slog.LevelInfo, "subscription stopped", slog.String("event", "consumer.stopped"), slog.Duration("took", time.Since(begin)))
}

// beginStop starts the stop: no job begins any more. It returns how many jobs run.
func (r *runner) beginStop() (running int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
	r.load.endLooks()
	r.releaseWaiting()
	if r.running == 0 {
		r.idle.set()
		if r.load.unsettled == 0 {
			r.settled.set()
		}
	}
	return r.running
}

// await waits for ch, for d at most, and reports whether it was closed.
func await(ch <-chan struct{}, d time.Duration) bool {
	select {
	case <-ch:
		return true
	default:
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ch:
		return true
	case <-timer.C:
		return false
	}
}
