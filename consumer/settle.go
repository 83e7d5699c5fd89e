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

// session is one receiver and the acks that go to it. Its fields but rcv and trouble are guarded by the runner's mu.
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

// settle queues ack. One settle is in progress at a time; what comes meanwhile goes with the next. mu is held.
func (r *runner) settle(it *item, ack core.Ack) {
	s := it.session
	s.pending.list = append(s.pending.list, ack)
	s.pending.since = append(s.pending.since, it.since)
	r.unsettled++
	if s.busy {
		return
	}
	s.busy = true
	if !r.settler {
		go r.flush(s)
		return
	}
	r.settler = false
	r.settles <- s
}

// flush settles until nothing is pending, and then waits for more, if nobody else does.
func (r *runner) flush(s *session) {
	for {
		r.mu.Lock()
		if len(s.pending.list) == 0 {
			s.busy = false
			wait := !r.settler
			r.settler = true
			r.mu.Unlock()
			if !wait {
				return
			}
			select {
			case s = <-r.settles:
				continue
			case <-r.ended:
				r.mu.Lock()
				r.settler = false
				r.mu.Unlock()
				select {
				case s = <-r.settles: // of a handler that outlived the run
					continue
				default:
					return
				}
			}
		}
		batch := s.pending
		s.pending = acks{s.spare.list[:0], s.spare.since[:0]}
		r.mu.Unlock()

		r.settleBatch(r.settleCtx, s, batch)

		n := len(batch.list)
		clear(batch.list)
		r.mu.Lock()
		s.spare = batch
		r.active = time.Now()
		r.held -= n
		if r.unsettled -= n; r.unsettled == 0 && r.stopping && r.running == 0 {
			r.settled.set()
		}
		if len(r.suspects) > 0 && !r.stopping {
			r.kick() // a suspect waits until everything is settled
		}
		r.wakeReceiver()
		r.mu.Unlock()
	}
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
			r.log.warn(ctx, "lease_lost", "the message is no longer this consumer's; another one has it, or it was settled", slog.String("phase", "settle"),
				slog.String("step", step), slog.String("id", d.Envelope.ID), slog.Int("attempt", d.Attempt), slog.Duration("held", time.Since(batch.since[i])), errAttr(err))
			continue
		}
		r.tel.failed(ctx, step, err)
		r.log.warn(ctx, "consumer.settle", "cannot settle a message; it will come again", slog.String("step", step),
			slog.String("id", d.Envelope.ID), slog.Int("attempt", d.Attempt), errAttr(err))
	}
	if failed < len(acks) {
		s.trouble.Store(0)
	} else {
		s.trouble.Add(1)
	}
}

// steps names the verdicts in metrics and logs.
var steps = [...]string{
	core.VerdictNone: "none", core.VerdictDone: "ack", core.VerdictRetry: "retry", core.VerdictReject: "park", core.VerdictRelease: "give_back",
}
