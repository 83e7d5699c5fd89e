package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// settleGather is how long an outcome that nobody waits for may wait for others before it is stored.
const settleGather = 10 * time.Millisecond

// settles is outcomes to be stored, and the items they are about.
type settles struct {
	outcomes []core.Outcome
	items    []*item
}

func (s *settles) len() int { return len(s.items) }

func (s *settles) add(o core.Outcome, it *item) {
	s.outcomes, s.items = append(s.outcomes, o), append(s.items, it)
}

func (s *settles) reset() {
	clear(s.items)
	clear(s.outcomes)
	s.outcomes, s.items = s.outcomes[:0], s.items[:0]
}

// conclude gives it its outcome. An item whose lease is known to be lost has nothing to settle.
func (e *engine) conclude(it *item, o core.Outcome) {
	if it.state == itemWaiting {
		it.route.unsent--
	}
	it.state = itemDone
	abandoned := o.State() == core.StateAbandoned && !it.route.BlockAfterAbandon && !it.lost
	it.broken = o.Event() != core.EventConfirmed && !abandoned
	if it.broken && it.rec.Envelope.Key != "" {
		e.breaks++
	}
	if it.limbo = abandoned && it.route.Order == core.OrderPerKey && it.rec.Envelope.Key != ""; it.limbo {
		e.limbo[it.lane()]++
	}
	it.batch.undone--
	it.route.tried(it)
	if it.lost {
		e.letGo(it)
		return
	}
	switch {
	case urgent(it, o):
		e.settleBy = e.now
	case e.pending.len() == 0:
		e.settleBy = e.now.Add(settleGather)
	}
	e.pending.add(o, it)
}

// urgent reports whether somebody may wait for the store to know of o: for the record itself, or for what follows it in
// its key and could not be claimed.
func urgent(it *item, o core.Outcome) bool {
	ordered := it.route.Order == core.OrderPerKey && it.rec.Envelope.Key != ""
	return o.Event() != core.EventConfirmed || ordered && it.next == nil
}

// letGo ends the engine's hold on it.
func (e *engine) letGo(it *item) {
	e.held--
	if it.rec.Envelope.Key != "" {
		key := it.lane()
		e.leaveLane(key, it.route)
		if it.broken {
			e.breaks--
			if e.claiming { // the claim may have seen it as still held, and bring what follows it
				e.severed[key] = true
			}
		}
	}
	rt := it.route
	if rt.held--; rt.starved && rt.held <= (e.opts.Window-1)*e.opts.BatchSize {
		rt.starved = false
		e.wakeBy(rt.unit, e.now)
	}
}

// leaveLimbo lets the lane of an abandoned record go on, once the store knows of all that were abandoned in it. Unless
// it was stored, somebody will try the record again, and what follows it must wait for that.
func (e *engine) leaveLimbo(it *item, stored bool) { //nolint:revive // what became of it
	if !it.limbo {
		return
	}
	it.limbo = false
	lane := it.lane()
	if e.limbo[lane]--; e.limbo[lane] == 0 {
		delete(e.limbo, lane)
	}
	if !stored {
		e.cut(it)
		if e.claiming {
			e.severed[lane] = true
		}
		return
	}
	if e.limbo[lane] > 0 {
		return
	}
	n := it.next
	for n != nil && n.state == itemDone {
		n = n.next
	}
	if n != nil && n.state == itemWaiting {
		it.route.ready = append(it.route.ready, n)
	}
}

// release hands it back unsent.
func (e *engine) release(it *item) {
	e.counts.Released++
	e.conclude(it, core.Release(it.rec, 0))
}

// releaseSent hands it back after it was sent and no result came: it may have arrived.
func (e *engine) releaseSent(it *item) {
	e.counts.Released++
	e.conclude(it, core.ReleaseUnknown(it.rec, 0))
}

func (e *engine) retry(it *item, err error, in time.Duration) {
	e.counts.Failed++
	e.conclude(it, core.Retry(it.rec, err, in))
	e.cut(it)
	e.warn(it, "retry", "publishing failed; it will be tried again", err, "class", core.ClassOf(err).String(), "retry_in", in)
	if e.opts.Hooks.OnRetry != nil {
		ev := it.event()
		ev.Err, ev.RetryIn = err, in
		e.observer.tell(e.opts.Hooks.OnRetry, ev)
	}
}

// abandon gives it up. Its lane goes on when that is stored, unless the route says that it blocks: were this relay to die
// before, another would send it after what follows it. What follows it and is not to be sent either need not wait.
func (e *engine) abandon(it *item, reason core.Reason, err error) {
	e.counts.Abandoned++
	e.conclude(it, core.Abandon(it.rec, reason, err))
	if it.broken {
		e.cut(it)
	}
	e.tel.abandoned(e.base, it.route, reason)
	event := "abandoned"
	if reason == core.ReasonUndecodable {
		event = "undecodable"
	}
	e.log.Error("message abandoned", "event", event, "route", it.route.Name, "id", it.rec.Envelope.ID, "attempt", it.attempt(),
		"topic", it.rec.Envelope.Topic, "reason", string(reason), "error", core.ErrorText(err))
	if e.opts.Hooks.OnAbandoned != nil {
		ev := it.event()
		ev.Err, ev.Reason = err, reason
		e.observer.tell(e.opts.Hooks.OnAbandoned, ev)
	}
	if n := it.next; it.limbo && n != nil && n.state == itemWaiting && e.judge(n) > handBack {
		e.screen(n)
	}
}

func (it *item) event() Event {
	m := &it.rec.Envelope
	return Event{Route: it.route.Name, ID: m.ID, Topic: m.Topic, Key: m.Key, Attempt: it.attempt(), Age: it.rec.Age}
}

// settle stores everything that was finished meanwhile, one call at a time.
func (e *engine) settle() (next time.Time) {
	if e.busySettling || e.pending.len() == 0 {
		return time.Time{}
	}
	if e.now.Before(e.settleAt) {
		return e.settleAt
	}
	if e.now.Before(e.settleBy) && e.gathers() {
		return e.settleBy
	}
	e.pending, e.settling = e.settling, e.pending
	e.busySettling = true
	limit := e.opts.Lease / 2
	if e.stopping {
		limit = min(limit, e.finalAt.Sub(e.now))
	}
	ctx, cancel := e.timeout(e.base, limit)
	sent, outcomes := e.now, e.settling.outcomes
	e.async(func() func() {
		defer cancel()
		n := len(outcomes)
		var res core.Results
		err := guardErr("settle", func() error {
			res = e.store.Settle(ctx, outcomes)
			guardEach("an error of the store", res)
			return nil
		})
		if err == nil && len(res) != n {
			err = fmt.Errorf("waybill/relay: settle: the store returned %d results for %d outcomes", len(res), n)
		}
		if err != nil {
			res = core.AllFailed(n, err)
		}
		return func() { e.settled(res, sent) }
	})
	return time.Time{}
}

// gathers reports whether what is pending may wait for more: a lane whose messages go one by one would otherwise cost a
// transaction each. Nobody waits when nothing more is about to come, nor for what makes room.
func (e *engine) gathers() bool {
	starved := slices.ContainsFunc(e.order, func(rt *route) bool { return rt.starved || rt.busy && !e.hasRoom(rt) })
	return len(e.calls) > 0 && e.pending.len() < e.laneDepth() && !starved && !e.stopping
}

// settled takes in the results of a settle. What failed is settled again, before anything newer: an outage for as long
// as it takes, another error until the lease is over.
func (e *engine) settled(res core.Results, sent time.Time) {
	e.busySettling = false
	e.tel.settled(e.base, e.now.Sub(sent))
	var again settles
	var cause error
	for i, it := range e.settling.items {
		o := &e.settling.outcomes[i]
		switch err := res[i]; {
		case err == nil:
			e.worked.settle = true
			if o.RetryIn() > 0 {
				e.wakeBy(it.route.unit, e.now.Add(o.RetryIn()))
			}
			if e.heldAtClaim && it.next == nil && it.rec.Envelope.Key != "" {
				e.wakeBy(it.route.unit, e.now) // what the last claim could not see behind this record can be claimed
			}
			e.leaveLimbo(it, true)
			e.letGo(it)
		case errors.Is(err, core.ErrLeaseLost):
			e.worked.settle = true
			e.leaseLost(it, "settle")
			e.leaveLimbo(it, false)
			e.letGo(it)
		case core.ClassOf(err) != core.ClassOutage && e.now.After(it.batch.deadline):
			e.log.Error("the outcome of a record could not be stored", "event", "settle_failed", "route", it.route.Name, "id", it.rec.Envelope.ID,
				"attempt", it.attempt(), "error", core.ErrorText(err))
			if it.broken || it.limbo {
				e.newSession()
			}
			e.leaveLimbo(it, false)
			e.letGo(it)
		default:
			cause = err
			again.add(*o, it)
		}
	}
	e.settleDown = again.len() > 0 && again.len() == len(res)
	e.settling.reset()
	e.open = slices.DeleteFunc(e.open, func(b *batch) bool { return b.undone == 0 })
	if again.len() == 0 {
		e.settleFails, e.settleAt = 0, time.Time{}
		return
	}
	e.settleFailed(cause)
	again.outcomes, again.items = append(again.outcomes, e.pending.outcomes...), append(again.items, e.pending.items...)
	e.pending = again
}

func (e *engine) settleFailed(err error) {
	if !e.stopping && (e.once || errors.Is(err, core.ErrMisconfigured) && !e.worked.settle) {
		e.fail(core.Within("waybill/relay: store", err))
	}
	if e.settleFails++; e.settleFails == 1 {
		e.settleSince = e.now
	}
	e.storeErr = core.ErrorText(err)
	backoff := core.Backoff{Base: 2 * e.opts.PollMin, Cap: max(min(e.opts.PollMax, e.opts.Lease/10), 2*e.opts.PollMin), Attempts: -1}
	d, _, _ := backoff.Next(e.settleFails, err)
	e.settleAt = e.now.Add(d)
	e.warn(nil, "settle_retry", "settling failed; trying again", err, "class", core.ClassOf(err).String(), "retry_in", d)
}

func (e *engine) leaseLost(it *item, phase string) {
	rt := it.route
	e.tel.leaseLost(e.base, rt)
	e.warn(it, "lease_lost", "another claim holds the record", core.ErrLeaseLost, "phase", phase, "held", e.now.Sub(it.batch.claimed))
	if e.opts.Hooks.OnLeaseLost != nil {
		e.observer.tell(e.opts.Hooks.OnLeaseLost, it.event())
	}
}

// extendLeases renews, at half time, the leases of what has no outcome yet.
func (e *engine) extendLeases() (next time.Time) {
	if e.extender == nil || e.extending {
		return time.Time{}
	}
	var due []*batch
	for _, b := range e.open {
		switch {
		case b.undone == 0 || !e.now.Before(b.deadline):
		case e.now.Before(b.renewAt):
			next = earliest(next, b.renewAt)
		default:
			due = append(due, b)
		}
	}
	if len(due) == 0 {
		return next
	}
	var items []*item
	var records []core.Record
	for _, b := range due {
		b.renewAt = e.now.Add(e.opts.Lease / 10) // again, if this fails
		for i := range b.items {
			if it := &b.items[i]; it.state != itemDone && !it.lost {
				items, records = append(items, it), append(records, *it.rec)
			}
		}
	}
	e.extending = true
	sent := e.now
	ctx, cancel := context.WithTimeout(e.base, e.opts.Lease/4)
	e.async(func() func() {
		defer cancel()
		var res core.Results
		err := guardErr("extend", func() error {
			res = e.extender.ExtendLeases(ctx, records, e.opts.Lease)
			return nil
		})
		return func() {
			e.extending = false
			if err != nil || len(res) != len(items) {
				return
			}
			e.extended(due, items, res, sent)
		}
	})
	return next
}

// extended takes in the results of an extension. A batch has a new deadline only if all its leases have.
func (e *engine) extended(due []*batch, items []*item, res core.Results, sent time.Time) {
	stuck := map[*batch]bool{}
	for i, it := range items {
		switch err := res[i]; {
		case err == nil:
		case errors.Is(err, core.ErrLeaseLost):
			if it.state == itemDone { // its settle says so too, or was faster
				continue
			}
			e.leaseLost(it, "extend")
			it.lost = true
			if it.state == itemWaiting {
				e.conclude(it, core.Outcome{})
				e.cut(it)
			}
		default:
			stuck[it.batch] = true
		}
	}
	for _, b := range due {
		if !stuck[b] {
			b.deadline = sent.Add(e.opts.Lease)
			b.renewAt = sent.Add(e.opts.Lease / 2)
		}
	}
}
