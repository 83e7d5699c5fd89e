package dispatch

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// An operator's command changes records that their owner remembers. So it writes a notice in the same
// transaction, each read brings those of the reader's partitions, and the owner acts on it and deletes it with a
// settle. It can be seen several times before it is gone: by reads that were sent before the settle, and by the next
// owner. So each is remembered by its number until it is deleted, and to carry it out twice must be harmless.

// notices knows the notices under way. Operators write them to tell owners about changes. A notice is
// carried out once. It is then deleted together with outcomes.
type notices struct {
	open     map[int64]*core.Notice // by number: carried out, and not deleted yet
	lowering []core.Notice          // to be deleted when a hint is lowered
	gone     map[int64]bool         // deleted since the read under way was sent
	more     bool                   // the last read brought as many as it may
	// A read begins behind those that are gone. after: those of this member's partitions up to it are gone, except
	// for records of watched transactions. visible: up to it all others can be seen. watch: by watched transaction,
	// its notices have greater numbers. news: a walk over all was asked for during the read under way, which may
	// not see its cause.
	after, visible int64
	watch          map[int64]int64
	news           bool
}

func newNotices() notices {
	return notices{open: map[int64]*core.Notice{}, gone: map[int64]bool{}, watch: map[int64]int64{}}
}

// reset forgets what the session has done.
func (cs *notices) reset() { *cs = newNotices() }

// forget forgets a notice: if it is seen once more, it is carried out again.
func (cs *notices) forget(c *core.Notice) { delete(cs.open, c.Number) }

// from returns the sequence from which a route is to be read again, but at most readAfter.
func (cs *notices) from(route string, readAfter int64) int64 {
	for _, c := range cs.open {
		if c.Kind == core.NoticeReread && c.Route == route {
			readAfter = min(readAfter, max(c.Seq-1, 0))
		}
	}
	return readAfter
}

// all has the next read look for all notices: there are partitions whose notices this member has not seen.
func (cs *notices) all() { cs.after, cs.news = 0, true }

// ask returns the number behind which the read that is about to be sent looks for notices.
func (cs *notices) ask() int64 {
	cs.news = false
	return cs.after
}

// transactions takes in which transactions are watched from now on, which watched ones have ended, and up to which
// number the notices of all others are visible.
func (cs *notices) transactions(watch, ended []int64, visible int64) {
	for _, id := range watch {
		cs.watch[id] = cs.visible
	}
	for _, id := range ended {
		if from, ok := cs.watch[id]; ok {
			delete(cs.watch, id)
			cs.after, cs.news = min(cs.after, from), true
		}
	}
	cs.visible = max(cs.visible, visible)
}

// seen takes in the notices of a read result.
func (cs *notices) seen(result *core.ReadResult) {
	if cs.news {
		return
	}
	to := cs.visible
	if len(result.Notices) > 0 {
		to = min(to, result.Notices[0].Number-1)
	}
	cs.after = max(cs.after, to)
}

// bound returns the number behind which a membership is to tell of notices. The records of a watched transaction
// are behind it: the next read may be the first to see that the transaction has ended.
func (cs *notices) bound() int64 {
	after := cs.after
	for _, from := range cs.watch {
		after = min(after, from)
	}
	return after
}

// takeNotices carries out notices. For each of them:
//
//  1. A notice that was deleted since the read was sent is skipped. So is one that was carried out before, and one of a
//     partition that is not this member's or is being released.
//  2. A decision goes to decide. Its notice is deleted when the record has met its end.
//  3. Any other notice has its records read again. The next settle deletes it; if the hint of the partition is above
//     the records, only after a Heartbeat has lowered the hint.
func (d *Dispatcher) takeNotices(result *core.ReadResult) {
	d.notices.seen(result)
	d.notices.more = len(result.Notices) >= noticeLimit
	for i := range result.Notices {
		c := result.Notices[i]
		rt := d.byName[c.Route]
		if d.notices.gone[c.Number] {
			d.readMoreNotices()
			continue
		}
		if rt == nil || d.notices.open[c.Number] != nil || !rt.affectedBy(&c) {
			continue
		}
		d.notices.open[c.Number] = &c
		if c.Kind == core.NoticeDecide {
			d.decide(rt, &c)
			continue
		}
		d.readAgain(rt, &c)
		d.timers.at = d.now
		if rt.isHinted(&c) {
			d.notices.lowering, d.self.renewNow = append(d.notices.lowering, c), true
		} else {
			d.settles.noticeDone(&c)
		}
	}
}

// readMoreNotices has the next notices read, when some of a full read result are deleted.
func (d *Dispatcher) readMoreNotices() {
	if !d.notices.more {
		return
	}
	d.notices.more = false
	for _, rt := range d.routes {
		rt.pace.readAt, rt.pace.askedAt = d.now, time.Time{}
	}
}

// readNotices has the routes read now: notices are there, and nothing else may wake this member for them.
func (d *Dispatcher) readNotices() {
	for _, rt := range d.routes {
		if rt.pace.readAt.After(d.now) {
			rt.pace.readAt = d.now
		}
	}
}

// readAgain schedules another read of the records that a notice is about.
func (d *Dispatcher) readAgain(rt *route, c *core.Notice) {
	rt.overdue.all()
	switch c.Kind {
	case core.NoticeDecide:
	case core.NoticeKey:
		d.recheck(rt, c)
		if g := rt.groupOf(c.Slot); g != nil && !rt.ordered() { // nothing is remembered of keys
			g.addWalk(max(c.Seq-1, 0), g.cursor)
			rt.pace.readAt = d.now
		}
	case core.NoticeRecord:
		if c.Key != "" && rt.ordered() {
			d.recheck(rt, c)
		} else if item := rt.known[c.Seq]; item != nil {
			item.recheck = true
		} else if rt.forAnyMember(c.Key) {
			rt.queue.progress.pass(c.Seq)
			rt.queue.askNow(d.now)
		} else {
			rt.visit(&revisit{ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, at: d.now})
		}
	case core.NoticeReread:
		rt.queue.progress.back(max(c.Seq-1, 0))
		rt.queue.askNow(d.now)
		for _, g := range rt.groups {
			g.addWalk(max(c.Seq-1, 0), g.cursor)
		}
	}
}

// affectedBy reports whether this member carries out a notice. Notices of a partition that is being released
// belong to its next owner. A release whose answer was lost may still be carried out. It then stores the hint that it
// was sent with.
func (rt *route) affectedBy(c *core.Notice) bool {
	if c.Kind == core.NoticeReread {
		return len(rt.groups) > 0 && rt.releasing == 0
	}
	return rt.owned().Has(c.Slot) && !rt.isReleasing(c.Slot)
}

// A notice can bring back records below the stored hint of their partition. A member that takes over from a dead one
// does not look there. So the hint is lowered before the notice is deleted.

// isHinted reports whether the hint in the store can be above the records that a notice brings back.
func (rt *route) isHinted(c *core.Notice) bool {
	if rt.forAnyMember(c.Key) {
		return false
	}
	for _, u := range rt.partitions {
		if u.affectedBy(c) && u.readAfter >= c.Seq {
			return true
		}
	}
	return false
}

// loweredHints returns at most maxTransfers that store lower hints, and the notices that are done with them: all, or
// none while there are more hints.
func (d *Dispatcher) loweredHints() (moves []core.Transfer, done []core.Notice) {
	for _, rt := range d.routes {
		for _, u := range rt.sortedPartitions() {
			readAfter := u.readAfter
			for i := range d.notices.lowering {
				if c := &d.notices.lowering[i]; c.Route == rt.Name && u.affectedBy(c) {
					readAfter = min(readAfter, c.Seq-1)
				}
			}
			if readAfter = max(readAfter, 0); readAfter >= u.readAfter {
				continue
			}
			if len(moves) == maxTransfers {
				return moves, nil
			}
			moves = append(moves, u.hint(readAfter))
		}
	}
	return moves, d.notices.lowering
}

// storedLowered notes that the transfers for notices were made.
func (d *Dispatcher) storedLowered(moves []core.Transfer, notices []core.Notice) {
	for _, m := range moves {
		if u := d.byName[m.Partition.Route].partitions[m.Partition]; u != nil {
			u.readAfter = m.ReadAfter
		}
	}
	for i := range notices {
		c := &notices[i]
		if d.byName[c.Route].affectedBy(c) {
			d.settles.noticeDone(c)
		} else {
			d.notices.forget(c)
		}
	}
}

// recheck schedules two reads of a key: one now, and one after the outcomes under way are stored.
func (d *Dispatcher) recheck(rt *route, c *core.Notice) {
	for _, item := range rt.known {
		if item.Record.Envelope.Key == c.Key && item.state == itemSettling {
			item.recheck = true
		}
	}
	d.reread(rt, c.Key, c.Slot)
}

// An operator decides about a due record by writing a notice. The owner cancels the record when it is not
// out. It deletes the notice when the cancellation is stored.

// decide carries out an operator's decision about a record. If there is another decision about it, this one waits until
// that one is carried out. A record in memory that is not out is cancelled at once. One that is out is overruled or
// cancelled when it comes back. One that is not in memory is read first; see decideRead.
func (d *Dispatcher) decide(rt *route, c *core.Notice) {
	item, v := rt.known[c.Seq], rt.revisits.bySeq[c.Seq]
	if item != nil && item.decision != nil || v != nil && v.decision != nil {
		d.notices.forget(c)
		return
	}
	if item == nil || item.Record.ID != c.ID {
		rt.revisits.add(&revisit{ref: core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, key: c.Key, at: d.now, decision: c})
		return
	}
	item.decision = c
	if !item.isBusy() { // else it is cancelled when it comes back
		d.cancel(item)
	}
}

// cancel ends an item that is not out, by an operator's decision. remove undoes the counts of its state, and the item
// begins again as one that settles.
func (d *Dispatcher) cancel(item *Item) {
	rt, k := item.route, item.key
	d.remove(item)
	rt.keep(item)
	rt.load.inWindow++
	item.state, item.outcome = itemSettling, core.Cancel(&item.Record, item.decision.Reason)
	if item.unknown {
		item.outcome = item.outcome.WithUnknown()
	}
	if k != nil {
		k.unstored = append(k.unstored, item)
		k.topic = "" // if it was its head, another one is now
	}
	d.settles.add(item)
	d.advance(k)
}

// isVoid reports whether an operator has taken a decision back before it was carried out: a redrive deletes it. A read
// brings the notices of lower numbers first. Without its notice in a result that must have it, the decision is void.
func isVoid(c *core.Notice, result *core.ReadResult) bool {
	for i := range result.Notices {
		if result.Notices[i].Number == c.Number {
			return false
		}
	}
	n := len(result.Notices)
	return n < noticeLimit || c.Number < result.Notices[n-1].Number
}

// decideRead takes in a record that was not in memory when an operator decided about it.
func (d *Dispatcher) decideRead(rt *route, v *revisit, rec *core.Record, w *core.BlockingRecord) {
	c := v.decision
	switch {
	case rt.known[c.Seq] != nil && rt.known[c.Seq].Record.ID == c.ID:
		d.decide(rt, c)
		return
	case rec != nil:
	case w != nil && w.Why == core.BlockedByRetry: // it failed meanwhile
		rec = &core.Record{Ref: w.Ref, Slot: w.Slot, Envelope: waybill.Envelope{ID: w.ID, Key: w.Key}}
	default:
		d.settles.noticeDone(c)
		d.reread(rt, c.Key, c.Slot)
		return
	}
	item := rt.newItem(rec)
	item.state = itemSettling // it is in no list; remove counts it as beyond its queue
	rt.load.inWindow++
	if rt.ordered() && rec.Envelope.Key != "" {
		item.key = rt.key(rec.Envelope.Key, rec.Slot)
		delete(item.key.blockers, rec.Seq)
	}
	item.decision = c
	d.cancel(item)
}

// endDecision ends a decision. It was carried out, or is no longer needed, or belongs to the next owner.
func (d *Dispatcher) endDecision(item *Item) {
	if c := item.decision; c != nil {
		item.decision = nil
		d.settles.noticeDone(c)
	}
}
