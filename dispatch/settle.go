package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Outcomes are stored together. While one Settle is under way, the outcomes that are concluded collect, and go with the
// next one. The store answers about each of them:
//
//   answer      | meaning                                     | the item
//   ------------|---------------------------------------------|---------------------------------------------
//   nil         | it is stored                                | stored: it goes, or its record waits
//   ErrChanged  | the record has another version              | changed: its key is read anew
//   ErrFenced   | the partition has another owner             | fencedOff: it is the other one's
//   ErrLocked     | a transaction has locked the record         | sent again, after 20 ms and longer each time
//   other       | an outage                                   | sent again; if all fail, after a pause
//
// A lost answer is followed by the same outcome once more. So ErrChanged after an earlier try may mean that the first
// one was stored.

const (
	// maxSettle bounds the outcomes of one call.
	maxSettle = 5000
	// fullSettle is how many outcomes do not wait for more.
	fullSettle = 500
	// lockedFor is when the outcome of a locked record is sent again. maxTries is how often that doubles.
	lockedFor = 20 * time.Millisecond
	maxTries  = 6
)

// settles keeps the changes to store: outcomes, and deletions of notices.
type settles struct {
	*env
	items   []*Item // concluded
	notices []core.Notice
	since   time.Time // when the oldest item was concluded, or when to try it again
	urgent  bool      // a key or a canceller waits for an outcome
}

// reset forgets the outcomes of a session that has ended.
func (s *settles) reset() { s.items, s.notices = nil, nil }

// empty reports whether nothing waits to be stored.
func (s *settles) empty() bool { return len(s.items) == 0 && len(s.notices) == 0 }

// add takes in an item whose outcome must be stored. A published or expired record can wait for others to be stored
// with it. Any other outcome blocks its key, so that it is urgent. So is that of a cancellable record with a key.
func (s *settles) add(item *Item) {
	item.tries, item.at = 0, s.now
	s.since = earliest(s.since, s.now)
	if item.outcome.Event() != core.EventConfirmed && item.outcome.Reason() != waybill.ReasonExpired || item.key != nil && item.Record.Cancellable {
		s.urgent = true
	}
	s.items = append(s.items, item)
}

// noticeDone takes in a notice that must be deleted.
func (s *settles) noticeDone(c *core.Notice) {
	s.notices = append(s.notices, *c)
	s.since = earliest(s.since, s.now)
}

// of returns the items of a partition that must be stored before it can be released.
func (s *settles) of(u *partition) (items []*Item) {
	for _, item := range s.items {
		if item.route == u.route && u.Slots().Has(item.Record.Slot) {
			items = append(items, item)
		}
	}
	return items
}

// pick chooses the items to settle now. Items that wait for a lock are tried again later.
func (s *settles) pick() (items, rest []*Item) {
	for i, item := range s.items {
		if len(items) >= maxSettle {
			return items, append(rest, s.items[i:]...)
		}
		if item.at.After(s.now) {
			rest = append(rest, item)
		} else {
			items = append(items, item)
		}
	}
	return items, rest
}

// schedule sets when the rest is due.
func (s *settles) schedule() {
	for _, item := range s.items {
		s.since = earliest(s.since, item.at)
	}
}

// settleDue returns when the next settle is due; zero = none. More outcomes make the settle cheaper, so it waits for
// Gather. It does not wait for an urgent outcome, with fullSettle outcomes or those of a whole read, when no more will
// come, before a release, or at a stop.
func (d *Dispatcher) settleDue() time.Time {
	s := &d.settles
	if s.empty() {
		return time.Time{}
	}
	at := s.since
	if !s.urgent && len(s.items) < min(d.opts.Batch, fullSettle) && !d.releases.busy() && !d.self.stopping {
		at = at.Add(d.gatherFor())
	}
	return later(at, d.calls.notBefore[CallSettle])
}

// gatherFor returns how long outcomes wait for others. A member that makes few reads waits also if no more are out, but
// not while a route has no room, or a crash window: the next records need the places of those that are published.
func (d *Dispatcher) gatherFor() time.Duration {
	few := d.opts.ReadEvery > 0
	switch {
	case few && !slices.ContainsFunc(d.routes, func(rt *route) bool { return rt.room() <= 0 || len(rt.suspects.crashWindow) > 0 }):
		return d.opts.Gather
	case !d.moreComing():
		return 0
	case few:
		return min(d.opts.Gather, usualGather)
	}
	return d.opts.Gather
}

// moreComing reports whether more outcomes are likely to come soon.
func (d *Dispatcher) moreComing() bool {
	return d.work.out > 0 || slices.ContainsFunc(d.routes, func(rt *route) bool { return len(rt.ready) > 0 })
}

// settle returns the next settle, or nil.
func (d *Dispatcher) settle() *Call {
	if at := d.settleDue(); d.calls.busy(CallSettle) || at.IsZero() || at.After(d.now) {
		return nil
	}
	s := &d.settles
	items, rest := s.pick()
	notices := s.notices
	if len(items) == 0 && len(notices) == 0 {
		return nil
	}
	s.items, s.notices, s.urgent, s.since = rest, nil, false, time.Time{}
	s.schedule()
	outcomes := make([]core.Outcome, 0, len(items)+len(notices))
	for _, item := range items {
		outcomes = append(outcomes, item.outcome)
	}
	for i := range notices {
		outcomes = append(outcomes, core.DeleteNotice(&notices[i]))
	}
	c := &Call{kind: CallSettle, op: &settleOp{d: d, session: d.session, outcomes: outcomes, items: items, notices: notices}}
	d.calls.begin(c)
	return c
}

// settled takes in the results of a settle: first those of items, then those of notices, in the order of the call.
// Failed outcomes go before those that were concluded meanwhile. A notice that could not be deleted is not carried out
// again: it stays in notices.open until it is gone.
func (d *Dispatcher) settled(items []*Item, notices []core.Notice, res core.Results, c *Call) {
	s := &d.settles
	if c.err != nil {
		res = core.AllFailed(len(items)+len(notices), c.err)
	}
	var again []*Item
	outages := 0
	for i, item := range items {
		switch err := res[i]; {
		case err == nil:
			d.stored(item)
		case errors.Is(err, core.ErrChanged):
			d.changed(item)
		case fenced(err):
			d.fencedOff(item)
		default:
			if !errors.Is(err, core.ErrLocked) {
				d.err = err
				outages++
			}
			if errors.Is(err, core.ErrLocked) && !item.locked {
				item.route.lock(item)
				d.tell(item, core.ErrLocked)
			}
			item.at = d.now.Add(lockedFor << min(item.tries, maxTries))
			item.tries++
			again = append(again, item)
		}
	}
	for i := range notices {
		if err := res[len(items)+i]; err != nil && !fenced(err) && !errors.Is(err, core.ErrChanged) {
			s.notices = append(s.notices, notices[i])
		} else {
			d.notices.forget(&notices[i])
			d.notices.gone[notices[i].Number] = true
			d.readMoreNotices()
		}
	}
	// Outcomes that failed are sent again: at their own time, or with the next settle.
	s.items = append(again, s.items...)
	if len(s.notices) > 0 {
		s.since = earliest(s.since, d.now.Add(lockedFor))
	}
	s.schedule()
	d.calls.notBefore[CallSettle] = time.Time{}
	// Some outcomes were stored: then the others failed for reasons of their own, and a pause would only delay.
	if outages > 0 && outages == len(items) {
		d.calls.fails[CallSettle] = max(d.calls.fails[CallSettle], 1)
		d.calls.pause(CallSettle)
	}
}

// stored is called when the outcome of item is stored. The notes about it end first: it no longer blocks its key as an
// item. Then it goes one of these ways:
//
//	outcome, record            | the item
//	---------------------------|-----------------------------------------------------------------
//	of a lost partition        | leaves memory: the record is the next owner's
//	changed meanwhile          | leaves memory, and the record or its key is read again
//	released                   | is ready again, in memory as in the store
//	rejected; a released retry | leaves memory; the stored record blocks the key, and a Due brings it
//	abandoned, and blocks      | leaves memory; the stored record blocks the key until a notice
//	any other                  | leaves memory
func (d *Dispatcher) stored(item *Item) {
	k, rt := item.key, item.route
	o := &item.outcome
	delete(rt.unreported, item.Record.Seq)
	item.freeKey()
	d.tell(item, nil)
	if rt.forAnyMember(item.Record.Envelope.Key) { // it may go to any member again
		rt.queue.askNow(d.now)
	}
	d.endDecision(item)
	// it is gone, or waits for a time
	item.stored = !item.recheck && (o.Event() != core.EventReleased || item.retry)
	if item.isLost() {
		d.finish(item)
		d.advance(k)
		return
	}
	switch {
	case item.recheck:
		d.revise(item)
	case o.Event() == core.EventReleased && !item.retry && !rt.forAnyMember(item.Record.Envelope.Key):
		// The release has ended the hold and raised the version in the store. With the old version the next
		// outcome would be refused as ErrChanged.
		item.held = false
		item.Record.HeldBy = 0
		item.Record.Version++
		d.putBack(item)
		return
	case o.Event() == core.EventAttemptFailed, o.Event() == core.EventReleased:
		d.finish(item)
		d.timers.askBy(d.now.Add(o.In()))
		if k != nil {
			k.block(item.Record.Seq, core.BlockedByRetry)
		}
	case o.State() == core.StateAbandoned && rt.Blocks && o.Reason().Blocks():
		d.finish(item)
		if k != nil {
			k.block(item.Record.Seq, core.BlockedByAbandoned)
		}
	default:
		d.finish(item)
	}
	d.advance(k)
}

// revise forgets a record that may have changed, and schedules another read: of its key, of the next records of its
// queue, or of the record alone.
func (d *Dispatcher) revise(item *Item) {
	d.finish(item)
	if item.key != nil {
		d.reread(item.route, item.key.name, item.key.slot)
		return
	}
	if item.route.forAnyMember(item.Record.Envelope.Key) {
		item.route.queue.askNow(d.now)
		return
	}
	item.route.visit(&revisit{ref: item.Record.Ref, slot: item.Record.Slot, at: d.now})
}

// changed is called when the record has changed since it was handed out: its key is read again.
func (d *Dispatcher) changed(item *Item) {
	rt, k := item.route, item.key
	item.freeKey()
	if item.tries > 0 { // its outcome was sent before, and may be stored
		d.tell(item, nil)
	} else {
		d.tell(item, core.ErrChanged)
	}
	d.finish(item)
	if c := item.decision; c != nil { // read what it is now
		item.decision = nil
		d.decide(rt, c)
	}
	if item.isLost() {
		return
	}
	if item.outcome.Event() != core.EventConfirmed || item.recheck {
		d.revise(item)
	}
	d.timers.askBy(d.now)
	d.advance(k)
}

// fencedOff is called when the record belongs to another member.
func (d *Dispatcher) fencedOff(item *Item) {
	k := item.key
	item.freeKey()
	d.tell(item, core.ErrFenced)
	delete(item.route.unreported, item.Record.Seq)
	if item.lost = true; item.decision != nil { // the decision belongs to the owner
		d.notices.forget(item.decision)
	}
	d.finish(item)
	d.peers.heartbeatAt = d.now // to see who owns what
	if k != nil && !k.dropped {
		d.reread(item.route, k.name, k.slot)
	}
	d.advance(k)
}

type settleOp struct {
	d        *Dispatcher
	session  core.Session
	outcomes []core.Outcome
	items    []*Item
	notices  []core.Notice
	res      core.Results
}

func (o *settleOp) do(ctx context.Context, s core.OutboxStore) error {
	o.res = s.Settle(ctx, o.session, o.outcomes)
	if len(o.res) != len(o.outcomes) {
		return fmt.Errorf("waybill/dispatch: settle: the store returned %d results for %d outcomes", len(o.res), len(o.outcomes))
	}
	return nil
}

// Publishes returns the session and the outcomes of a settle if it says of each record that it was published; else
// none. They can be settled together with those of other dispatchers; see [Call.Settled].
func (c *Call) Publishes() (core.Session, []core.Outcome) {
	o, ok := c.op.(*settleOp)
	if !ok || len(o.notices) > 0 || slices.ContainsFunc(o.outcomes, func(x core.Outcome) bool { return x.Event() != core.EventConfirmed }) {
		return 0, nil
	}
	return o.session, o.outcomes
}

// Settled is in place of Do for a settle whose outcomes are stored.
func (c *Call) Settled() {
	o := c.op.(*settleOp)
	o.res = make(core.Results, len(o.outcomes))
}

func (o *settleOp) done(c *Call) { o.d.settled(o.items, o.notices, o.res, c) }
