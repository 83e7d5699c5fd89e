package consumer

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A worker takes a job, runs its handler without the lock, and then under the lock ends the job and takes the next one.
// So a handler that ends makes room for the next message at once, and the receive loop is not asked. A job that must
// wait, for a pause or for a batch to fill, is found again by the alarm.

// workers are the goroutines that run handlers. There are as many as were ever needed at once. They stay until the run
// ends, since a new goroutine has to grow its stack again. The runner's mu guards spare.
type workers struct {
	jobs  chan job // for idle workers; it has room for one job each
	spare int      // how many workers are idle
}

// kick starts workers while there is work and room for it. mu is held.
func (r *runner) kick() {
	r.storeAgain()
	for j := r.next(); !j.none(); j = r.next() {
		if r.workers.spare == 0 {
			go r.work(j)
			continue
		}
		r.workers.spare--
		r.workers.jobs <- j
	}
}

// next returns the job to run now, or none. While a paused subscription keeps the order, one message at a time probes,
// and the others wait where they are. mu is held.
func (r *runner) next() job {
	p := &r.pause
	probes := r.sub.InOrder && p.state != open
	if probes {
		if r.unstored.any() {
			return job{} // verdicts are stored first
		}
		if p.waits() {
			r.kickAt(p.until)
			return job{}
		}
		p.state = probing
		if p.probe != nil {
			return job{}
		}
	}
	pick := r.batching.next()
	r.release(pick.release)
	if !pick.again.IsZero() {
		r.kickAt(pick.again)
	}
	if m := pick.job.lead; probes && m != nil {
		r.try(m)
	}
	return pick.job
}

// alarm kicks the runner later. The runner's mu guards it.
type alarm struct {
	timer *time.Timer
	at    time.Time // zero: the timer does not run
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
		a.at = time.Time{}
	}
}

// kickAt kicks the runner at the time at, unless the alarm is set to an earlier time. mu is held.
func (r *runner) kickAt(at time.Time) {
	a := &r.alarm
	if !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	a.stop()
	a.at = at
	a.timer = time.AfterFunc(time.Until(at), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if a.at = (time.Time{}); !r.stopping {
			r.kick()
		}
	})
}

// work handles j and then the next jobs, until the run ends.
func (r *runner) work(j job) {
	defer func() {
		if !j.none() { // a handler ended its goroutine
			go r.work(r.goexited(j))
		}
	}()
	for {
		for !j.none() {
			if j.batch != nil {
				j = r.workBatch(j)
			} else {
				j = r.finish(j, r.process(j.lead))
			}
		}
		select {
		case j = <-r.workers.jobs:
		case <-r.ended:
			return
		}
	}
}

// goexited decides about the rest of j, after its handler ended the goroutine, and returns the next job.
func (r *runner) goexited(j job) job {
	decide := func(m *message) verdict {
		v := r.judge.decide(r.handlerCtx, m.d, waybill.HandlerProcessed, errGoexit)
		r.report(r.tel.under(r.handlerCtx, m.d), m.d, &v)
		return v
	}
	if j.batch == nil {
		return r.finish(j, decide(j.lead))
	}
	for n, m := range j.batch.members {
		if j.batch.open(n) {
			v := decide(m)
			r.mu.Lock()
			r.applyMember(j.batch, n, &v)
			r.mu.Unlock()
		}
	}
	return r.finishBatch(j)
}

// finish settles j's delivery by v, or holds it, and returns the next job.
func (r *runner) finish(j job, v verdict) job {
	r.mu.Lock()
	_, t := r.apply(j.lead, &v)
	next := r.proceed(j)
	r.mu.Unlock()
	r.announce(t)
	return next
}

// apply acts on the verdict v about m, and changes the pause accordingly. mu is held. m goes one of these ways:
//
//	verdict                     | the message
//	----------------------------|-----------------------------------------------------------
//	in place, outage            | is held with its key, for the time of the pause
//	in place, a failed attempt  | is held with its key until its retry: the broker would send
//	                            | later ones of the key
//	in place, at a stop         | goes back
//	outage (goesAway), retry,   | goes to the broker; its key waits until that is stored
//	reject                      |
//	done, release               | is settled; its key goes on at once
func (r *runner) apply(m *message, v *verdict) (held bool, t turn) {
	held = v.inPlace && !r.stopping
	away := r.goesAway(m, v)
	switch {
	case away: // below, when the pause is known
		r.keep(m)
	case held && v.outage:
		r.delayRetry(m, max(r.pauseDelay(max(r.pause.n+1, v.of.alone)), time.Until(r.pause.until)))
	case held:
		m.d.Attempt++
		r.delayRetry(m, v.ack.Delay)
	case v.inPlace:
		r.settle(m, core.AckRelease(m.d))
	default:
		if v.ack.Verdict == core.VerdictRetry || v.ack.Verdict == core.VerdictReject {
			r.keep(m)
		}
		r.settle(m, v.ack)
	}
	t = r.observe(m, v)
	if away {
		r.sendAway(m, v)
	}
	return held, t
}

// delayRetry keeps m in place for d, with its key behind it. mu is held.
func (r *runner) delayRetry(m *message, d time.Duration) {
	r.delay(m)
	m.retry = time.AfterFunc(d, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.wake(m) {
			r.kick()
		}
	})
}

// proceed ends j and returns the next job of the same worker. Jobs beyond that one, which became ready, too, get other
// workers (kick). mu is held.
func (r *runner) proceed(j job) job {
	// 1. The job ends, and messages behind it become ready.
	held := r.done(j)
	if r.stopping {
		r.releaseWaiting() // the messages behind it, if the order is kept
	}
	// 2. This worker takes the next job, or is idle.
	next := r.next()
	r.settling.tellDrained(r.running == 0 && r.ready.len() == 0)
	if next.none() {
		r.workers.spare++
		r.hurry(&j.lead.session.quick)
	}
	r.kick()
	if held {
		r.bell.ring() // nothing is settled, but a handler is free
	}
	if r.stopping && r.running == 0 {
		r.idle.set()
	}
	return next
}
