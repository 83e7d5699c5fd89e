package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Settles are joined: while one call of the transport is under way, the verdicts about other messages collect, and go
// with the next call. If no handler has anything left to do, the next call goes beside it, three at most; with InOrder
// it waits. A settle also waits up to a millisecond until the handlers have ended what is ready. A verdict that the
// transport could not store is stored again, and its handler does not run again. One about a message that another
// program has locked gets a settleWorker of its own, for which no other verdict waits. One goroutine stays until the
// run ends, and waits for the next verdict: otherwise each message of a quiet queue would start one.
//
// A verdict goes this way:
//
//  1. settle: it counts as unsettled. queueSettle: it joins those that its settleWorker collects.
//  2. startSettle: the goroutine that waits, or a new one, runs settleAll for the settleWorker.
//  3. settleAll: gather waits for more verdicts, takePending takes all of them, and awaitFlow lets the broker be told
//     of a pause first.
//  4. settleBatch: the transport is called once. Failures are logged and counted.
//  5. afterSettle: a stored verdict ends its message. One that failed goes to retrySettle (unstored.go), which drops
//     it, keeps it for later, or queues it again.

// session is one receiver, and the settles through it.
type session struct {
	rcv    core.Receiver
	losses core.LeaseWatcher // nil if the receiver is none
	// trouble is how many settles in a row failed altogether. A lost connection fails the settles of all messages
	// that were held then, and counts once. failedAt is when the latest that counts failed.
	trouble     atomic.Int32
	failedAt    atomic.Pointer[time.Time]
	troubleSeen int // the value of trouble that the receive loop has seen last, and paused for
	flow        int // how many messages the broker may send ahead; of the receive loop
	// flowSince is when it was told so.
	flowSince time.Time
	// quick settles done messages, slow all others. So a copy that no broker confirms delays no acknowledgement.
	quick, slow settleWorker
}

func newSession(rcv core.Receiver, ahead int) *session {
	s := &session{rcv: rcv, flow: ahead, flowSince: time.Now()}
	s.losses, _ = core.As[core.LeaseWatcher](rcv)
	s.quick.session, s.slow.session = s, s
	return s
}

// settleWorker returns the settleWorker for a verdict.
func (s *session) settleWorker(v core.Verdict) *settleWorker {
	if v == core.VerdictDone {
		return &s.quick
	}
	return &s.slow
}

// settleWorker collects verdicts while its latest batch is settled. It is data: goroutines that run settleAll work for
// it. It settles one batch at a time. If handlers have nothing left to do, the next batch goes beside the first one;
// see hurry. The runner's mu guards it.
type settleWorker struct {
	session *session
	pending acks // for the next settle, in the order of the verdicts
	spare   acks // the memory of one before
	busy    int  // how many goroutines work for it
}

const (
	// mostSettles bounds the settles of a worker that are in progress.
	mostSettles = 3
	// gatherTime is how long a settle waits for handlers that have more to do.
	gatherTime = time.Millisecond
)

// acks are acks and the messages that they are for.
type acks struct {
	list []core.Ack
	of   []*message
	more bool // when the first was done, others were ready
}

// troubles returns how many settles in a row failed altogether, if one did since the latest call, else 0.
func (s *session) troubles() (n int) {
	n = int(s.trouble.Load())
	fresh := n > s.troubleSeen || n > 0 && n < s.troubleSeen // a settle that worked began the count anew
	if s.troubleSeen = n; !fresh {
		return 0
	}
	return n
}

// failed notes that a settle of messages failed altogether.
func (s *session) failed(messages []*message) {
	before, now := s.failedAt.Load(), time.Now()
	fresh := func(m *message) bool { return before == nil || !m.since.Before(*before) }
	if slices.ContainsFunc(messages, fresh) && s.failedAt.CompareAndSwap(before, &now) {
		s.trouble.Add(1)
	}
}

// settling is the state of the goroutine that waits for work to settle. The runner's mu guards it.
type settling struct {
	workers chan *settleWorker // what the waiting goroutine is to work for
	waits   bool               // a goroutine waits
	// drained is closed when no message is ready and no handler runs; nil if no settle waits for that.
	drained chan struct{}
}

// settle settles m by ack. mu is held.
func (r *runner) settle(m *message, ack core.Ack) {
	r.load.unsettled++
	r.queueSettle(m, ack)
}

// queueSettle gives ack to its settleWorker, and starts a goroutine unless one works for that. mu is held.
func (r *runner) queueSettle(m *message, ack core.Ack) {
	l := m.session.settleWorker(ack.Verdict)
	if len(l.pending.list) == 0 {
		l.pending.more = r.ready.len() > 0
	}
	l.pending.list = append(l.pending.list, ack)
	l.pending.of = append(l.pending.of, m)
	if l.busy == 0 {
		r.startSettle(l)
	}
}

// hurry settles done messages beside the settle in progress, if the handlers have nothing left to do: no other
// message would join them, and they take the places of the next ones. While less than a quarter of the places is taken,
// there is no hurry. If the order is kept, the message that was done first is also settled first. mu is held.
func (r *runner) hurry(l *settleWorker) {
	idle := r.running == 0 && r.ready.len() == 0 && !r.sub.InOrder
	if idle && len(l.pending.list) > 0 && l.busy < mostSettles && 4*r.load.held >= r.load.bound(0) {
		r.startSettle(l)
	}
}

// startSettle has a goroutine settle what is pending: the one that waits, or a new one. mu is held.
func (r *runner) startSettle(l *settleWorker) {
	l.busy++
	if !r.settling.waits {
		go r.settleAll(l)
		return
	}
	r.settling.waits = false
	r.settling.workers <- l
}

// settleAlone settles m, which another program has locked, by ack: no other verdict waits for that. mu is held.
func (r *runner) settleAlone(m *message, ack core.Ack) {
	if !m.locked {
		m.locked = true
		r.load.locked++
	}
	r.startSettle(&settleWorker{session: m.session, pending: acks{list: []core.Ack{ack}, of: []*message{m}}})
}

// release releases messages that have not begun. mu is held.
func (r *runner) release(messages []*message) {
	for _, m := range messages {
		r.pause.endProbe(m)
		r.settle(m, core.AckRelease(m.d))
	}
}

// settleAll settles until nothing is pending. Then it waits for more, unless another goroutine does.
func (r *runner) settleAll(l *settleWorker) {
	for l != nil {
		r.gather(l)
		batch, waits := r.takePending(l)
		switch {
		case len(batch.list) > 0:
			r.awaitFlow(l, &batch)
			begin := time.Now()
			results := r.settleBatch(r.settleCtx, l.session, batch)
			r.announce(r.afterSettle(l, batch, results, time.Since(begin)))
		case waits:
			l = r.awaitWorker()
		default:
			return
		}
	}
}

// gather lets handlers end what is ready, for a moment, so that it is settled together. Whether to wait is what was
// true when the batch began: if this goroutine comes late, the handlers can be at the last message.
func (r *runner) gather(l *settleWorker) {
	r.mu.Lock()
	var drained chan struct{}
	if l == &l.session.quick && l.busy == 1 && len(l.pending.list) > 0 && l.pending.more && r.running > 0 && !r.stopping {
		drained = make(chan struct{})
		r.settling.drained = drained
	}
	r.mu.Unlock()
	if drained == nil {
		return
	}
	limit := time.NewTimer(gatherTime)
	defer limit.Stop()
	select {
	case <-drained:
	case <-limit.C:
	}
}

// tellDrained ends gather if the handlers are idle, and nothing is ready for them. mu is held.
func (s *settling) tellDrained(idle bool) {
	if s.drained != nil && idle {
		close(s.drained)
		s.drained = nil
	}
}

// takePending returns the batch to settle. If it is empty, the goroutine's work for l is over, and waits says whether
// the goroutine is to wait for more.
func (r *runner) takePending(l *settleWorker) (batch acks, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(l.pending.list) > 0 {
		batch = l.pending
		l.pending, l.spare = acks{list: l.spare.list[:0], of: l.spare.of[:0]}, acks{}
		return batch, false
	}
	l.busy--
	waits = !r.settling.waits
	r.settling.waits = true
	return acks{}, waits
}

// awaitWorker returns a settleWorker with pending verdicts, or nil if the run is over.
func (r *runner) awaitWorker() *settleWorker {
	select {
	case l := <-r.settling.workers:
		return l
	case <-r.ended:
	}
	r.mu.Lock()
	r.settling.waits = false
	r.mu.Unlock()
	select {
	case l := <-r.settling.workers: // of a handler that outlived the run
		return l
	default:
		return nil
	}
}

// afterSettle continues the work that waited for a settle: the next message of the key, a suspect, a stop. mu is not
// held. The steps:
//
//  1. A verdict that failed, and must be stored again, leaves its message held (retrySettle).
//  2. Any other message is over. If its key waited for that, the next one goes. With InOrder a message that was not
//     parked comes again: then those behind it go back (yield).
//  3. The number of held messages adapts to the rate, and the pauses of messages alone to the time that it took.
//  4. The first failure begins a pause; the last stored verdict ends it. The pause's change is for announce (pause.go).
//  5. Handlers begin what may begin now, and the receive loop asks for more.
func (r *runner) afterSettle(l *settleWorker, batch acks, results core.Results, took time.Duration) (t turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load.blames.settled(took)
	var failed error
	over, moved, unstored := 0, false, r.unstored.any()
	for i, m := range batch.of {
		if err := results[i]; err != nil && r.retrySettle(m, batch.list[i], err) {
			if m.unstored {
				failed = err
			}
			continue
		}
		over++
		delete(r.load.kept, m)
		r.load.left(m)
		r.unstored.stored(m)
		r.sentBack(m)
		if m.storing {
			m.storing, moved = false, true
			if results[i] == nil || !r.yield(m) {
				r.advance(m)
			}
		}
	}
	clear(batch.list)
	clear(batch.of)
	l.spare = batch
	r.active = time.Now()
	r.adapt(over, r.active)
	r.tel.held.Record(r.settleCtx, int64(r.load.held), r.tel.gauge...)
	r.load.unsettled -= over
	switch {
	case failed != nil:
		t = r.pauseUnstored(failed)
	case unstored && !r.unstored.any():
		t, moved = r.allStored(), true
	}
	switch {
	case r.stopping && moved:
		r.releaseWaiting() // the messages behind it
	case !r.stopping && (moved || len(r.suspects) > 0):
		r.kick() // a suspect waits until everything is settled
	}
	if r.load.unsettled == 0 && r.stopping && r.running == 0 { // nor is anything released just now
		r.settled.set()
	}
	r.bell.ring()
	return t
}

var errNoResult = errors.New("the transport returned no result for it")

// settleBatch settles acks, and returns one result for each, also if the transport returns fewer. Failures are logged
// and counted. If all failed, that counts as trouble of the session, for which the receive loop pauses; one that worked
// ends the trouble.
func (r *runner) settleBatch(ctx context.Context, s *session, batch acks) core.Results {
	acks := batch.list
	results := s.rcv.Settle(ctx, acks)
	for len(results) < len(acks) {
		results = append(results, errNoResult)
	}
	failed, debug := 0, r.log.Enabled(ctx, slog.LevelDebug)
	for i := range acks {
		err, d, step := results[i], acks[i].Delivery, steps[acks[i].Verdict]
		if err == nil {
			if debug {
				r.log.Event(r.tel.under(ctx, d), slog.LevelDebug, "consumer.settled", "the transport has stored what was decided",
					append(ofMessage(d), slog.String("step", step))...)
			}
			continue
		}
		if errors.Is(err, core.ErrLocked) {
			r.log.Event(r.tel.under(ctx, d), slog.LevelWarn, "consumer.settle_locked", "another program has locked the message: its settle waits, and no other one does",
				append(ofMessage(d), slog.String("step", step))...)
			continue
		}
		failed++
		if errors.Is(err, waybill.ErrLeaseLost) {
			r.tellLost(batch.of[i], err, slog.String("phase", "settle"), slog.String("step", step))
			continue
		}
		r.tel.failed(ctx, step, err)
		r.log.Event(r.tel.under(ctx, d), slog.LevelWarn, "consumer.settle", "cannot store what was decided about a message; will try again",
			append(ofMessage(d), slog.String("step", step), errAttr(err))...)
	}
	if failed < len(acks) {
		s.trouble.Store(0)
	} else {
		s.failed(batch.of)
	}
	return results
}

// steps names the verdicts in metrics and logs.
var steps = [...]string{
	core.VerdictNone: "none", core.VerdictDone: "ack", core.VerdictRetry: "retry", core.VerdictReject: "park", core.VerdictRelease: "release",
}
