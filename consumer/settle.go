package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// session is one receiver and the acks that go to it. The runner's mu guards its fields, but rcv and trouble.
type session struct {
	rcv     core.Receiver
	pending acks // what the next settle takes
	spare   acks // the memory of the one before
	busy    bool // a settle is in progress
	trouble atomic.Int32
}

// acks are acks and, for each, when its delivery arrived.
type acks struct {
	list  []core.Ack
	since []time.Time
}

// troubles returns how many settles in a row failed altogether.
func (s *session) troubles() int { return int(s.trouble.Load()) }

// settling is the state of the goroutine that waits for something to settle. The runner's mu guards it.
type settling struct {
	sessions chan *session // what it waits for
	waits    bool          // there is one
}

// settle queues ack. One settle of a session is in progress at a time. What comes meanwhile goes with the next one. mu
// is held.
func (r *runner) settle(m *message, ack core.Ack) {
	s := m.session
	s.pending.list = append(s.pending.list, ack)
	s.pending.since = append(s.pending.since, m.since)
	r.load.unsettled++
	if s.busy {
		return
	}
	s.busy = true
	if !r.settling.waits {
		go r.settleAll(s)
		return
	}
	r.settling.waits = false
	r.settling.sessions <- s
}

// release releases messages that were not started. mu is held.
func (r *runner) release(messages []*message) {
	for _, m := range messages {
		r.pause.endProbe(m)
		r.settle(m, core.AckRelease(m.d))
	}
}

// settleAll settles until nothing is pending. Then it waits for more, if nobody else does.
func (r *runner) settleAll(s *session) {
	for s != nil {
		batch, waits := r.takePending(s)
		switch {
		case len(batch.list) > 0:
			r.settleBatch(r.settleCtx, s, batch)
			r.settledBatch(s, batch)
		case waits:
			s = r.awaitSession()
		default:
			return
		}
	}
}

// takePending returns what is to be settled. If that is nothing, the session is idle, and waits says whether to wait
// for another one.
func (r *runner) takePending(s *session) (batch acks, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(s.pending.list) > 0 {
		batch = s.pending
		s.pending = acks{s.spare.list[:0], s.spare.since[:0]}
		return batch, false
	}
	s.busy = false
	waits = !r.settling.waits
	r.settling.waits = true
	return acks{}, waits
}

// awaitSession returns a session that has something to settle, or nil if the run is over.
func (r *runner) awaitSession() *session {
	select {
	case s := <-r.settling.sessions:
		return s
	case <-r.ended:
	}
	r.mu.Lock()
	r.settling.waits = false
	r.mu.Unlock()
	select {
	case s := <-r.settling.sessions: // of a handler that outlived the run
		return s
	default:
		return nil
	}
}

// settledBatch lets follow what waited for a settle.
func (r *runner) settledBatch(s *session, batch acks) {
	n := len(batch.list)
	clear(batch.list)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.spare = batch
	r.active = time.Now()
	r.load.held -= n
	if r.load.unsettled -= n; r.load.unsettled == 0 && r.stopping && r.running == 0 {
		r.settled.set()
	}
	if len(r.suspects) > 0 && !r.stopping {
		r.kick() // a suspect waits until everything is settled
	}
	r.bell.ring()
}

var errNoResult = errors.New("the transport returned no result for it")

// settleBatch settles acks. What fails is logged and counted; its messages come again.
func (r *runner) settleBatch(ctx context.Context, s *session, batch acks) {
	acks := batch.list
	results := s.rcv.Settle(ctx, acks)
	failed := 0
	for i := range acks {
		err := errNoResult
		if i < len(results) {
			err = results[i]
		}
		if err == nil {
			continue
		}
		failed++
		d, step := acks[i].Delivery, steps[acks[i].Verdict]
		if errors.Is(err, waybill.ErrLeaseLost) {
			r.tel.count(ctx, r.tel.lost, 1)
			r.log.Event(r.tel.under(ctx, d), slog.LevelWarn, "consumer.lease_lost", "the message is no longer this consumer's; another one has it, or it was settled",
				append(ofMessage(d), slog.String("phase", "settle"), slog.String("step", step), slog.Duration("held", round(time.Since(batch.since[i]))), errAttr(err))...)
			continue
		}
		r.tel.failed(ctx, step, err)
		r.log.Event(r.tel.under(ctx, d), slog.LevelWarn, "consumer.settle", "cannot settle a message; it will come again",
			append(ofMessage(d), slog.String("step", step), errAttr(err))...)
	}
	if failed < len(acks) {
		s.trouble.Store(0)
	} else {
		s.trouble.Add(1)
	}
}

// steps names the verdicts in metrics and logs.
var steps = [...]string{
	core.VerdictNone: "none", core.VerdictDone: "ack", core.VerdictRetry: "retry", core.VerdictReject: "park", core.VerdictRelease: "release",
}
