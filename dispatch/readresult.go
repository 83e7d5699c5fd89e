package dispatch

import (
	"cmp"
	"math"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// The answer to a read is from one snapshot of the database. readDone puts all of it in place before any
// record of it is handed out: a page of a key and a late range of the same snapshot belong together, and a notice can
// change the meaning of a record behind it. So the steps have an order:
//
//   1. A failed read ends here. A result of another life of the database ends the session.
//   2. transactions: the transactions that have ended since the last read begin their walks.
//   3. drop: this member forgets the partitions that the result says it has lost.
//   4. notices: decisions of operators take effect before the records that they are about.
//   5. loadNewlyOwned: the records that wait in new partitions block their keys. After that, records of them can go.
//   6. positions: cursors, late scans and walks move to the end of the read. Now the hazards are known.
//   7. keyPages, records, passPaused, takeRevisits: the records go into their keys, or are passed.
//   8. advance: each key that was touched lets its records go, once.
//   9. rest, merge: each route gets the time of its next read.

// readDone takes in a result, in the order above.
func (d *Dispatcher) readDone(r *reading, result *core.ReadResult, c *Call) {
	for i := range r.ranges {
		if w := r.ranges[i].walk; w != nil {
			w.asked = false
		}
	}
	if c.err != nil {
		for _, k := range r.keys {
			k.listed = false
			d.advance(k)
		}
		if fenced(c.err) {
			d.rejoin()
			return
		}
		d.calls.pause(CallRead)
		return
	}
	// A database that was restored does not know the session, or is behind the last read. The memory of this member
	// is about another life of it, and no hint can be believed.
	if !result.IsMember || d.db.isOlder(result) {
		d.db.wentBack = true
		d.rejoin()
		return
	}
	// drawn is how many numbers were drawn since the last read: an upper bound of the new records.
	drawn := result.LastSeq - d.db.last
	d.db.epoch, d.db.last, d.db.lastNotice = result.StoreEpoch, max(d.db.last, result.LastSeq), max(d.db.lastNotice, result.LastNotice)
	d.noteSuspected(result.Suspected, c)
	moved := result.LastSeqXmax > 0
	visible := d.transactions(result)
	if drawn > 0 || d.db.unsettled() { // it may be due later
		d.timers.wake(d.now, duePoll)
	}
	for i, rt := range r.parts {
		if lost := r.request.Slots[i].Slots &^ result.Owned[i] & rt.owned(); lost != 0 {
			d.drop(rt, lost)
			d.peers.heartbeatAt = d.now
		}
	}
	// From here to the end of takingIn, advance only notes the keys.
	d.reads.takingIn = true
	d.takeNotices(result)
	d.loadNewlyOwned(r, result)
	found := map[*route]int{}
	d.positions(r, result, visible)
	d.keyPages(r, result)
	d.records(r, result, found)
	d.passPaused(r, result, visible)
	d.takeRevisits(r, result)
	d.reads.takingIn = false
	touched := d.reads.touched
	d.reads.touched = nil
	for _, k := range touched {
		k.touched = false
		d.advance(k)
	}
	fresh := 0
	for _, rt := range r.routes {
		fresh += found[rt]
		rt.rest(found[rt] > 0 || moved && rt.unresolved())
		rt.merge(result.LastSeq)
	}
	for _, g := range r.newlyOwned {
		if g.loaded && !g.loads {
			g.route.pace.readAt = d.now // no range of it was read
		}
	}
	if d.opts.ReadEvery > 0 {
		d.gathering = fresh > 0
		d.timers.noteMissing(d.now, drawn-int64(fresh), result.LastSeq, visible)
	}
	d.noteUnread(result, drawn)
}

// noteUnread has queues ask for records without a key if more numbers were drawn than the read brought records. A read
// does not bring those records; but a store takes the route for read, and does not wake any member for them.
func (d *Dispatcher) noteUnread(result *core.ReadResult, drawn int64) {
	for i := range result.Ranges {
		drawn -= int64(len(result.Ranges[i].Records))
	}
	if drawn <= 0 {
		return
	}
	for _, rt := range d.routes {
		if rt.Queue {
			rt.queue.askNow(d.now)
		}
	}
}

// rest decides when a route is read again: after PollMin, doubled up to PollMax with each read that found nothing.
// While records may still appear behind a cursor the pause is short, since only a read tells that their transaction
// has ended. A key that is asked about without haste makes the pause longer: late ranges would meet it again and
// again. News that came during the read end the pause.
func (rt *route) rest(found bool) {
	if found {
		rt.pace.idle = 0
	} else {
		rt.pace.idle = min(rt.pace.idle+1, 12)
	}
	pause := doubled(rt.opts.PollMin, rt.opts.PollMax, max(rt.pace.idle-1, 0))
	if rt.unresolved() {
		pause = min(pause, 10*rt.opts.PollMin)
	}
	if slices.ContainsFunc(rt.toRead, func(k *key) bool { return k.slow }) {
		pause = max(pause, min(10*rt.opts.PollMin, rt.opts.PollMax))
	}
	if rt.pace.again {
		pause = 0
	}
	rt.pace.readAt = rt.now.Add(pause)
}

// loadNewlyOwned takes in the records that wait in new partitions. The first part of them is enough to begin: until
// the last one the group is not complete, and the store is asked about each key that it meets. As many notices as a
// read may bring delays the begin: the next one may be about these partitions.
func (d *Dispatcher) loadNewlyOwned(r *reading, result *core.ReadResult) {
	whole := !result.MoreBlocking || len(result.Blocking) == 0
	for _, g := range r.newlyOwned {
		if whole && g.newlyOwnedAfter == 0 && !g.loaded {
			// Until a key is forgotten; see forget.
			g.complete, g.floor = true, math.MaxInt64
		}
	}
	for i := range result.Blocking {
		w := &result.Blocking[i]
		rt := d.byName[w.Route]
		if rt == nil {
			continue
		}
		if g := rt.groupOf(w.Slot); g != nil && slices.Contains(r.newlyOwned, g) {
			rt.wait(w)
		}
	}
	for _, g := range r.newlyOwned {
		full := g.forgot && len(g.route.keys) >= g.route.opts.MaxKeys // more cannot be remembered
		switch {
		case !whole && !full:
			g.newlyOwnedAfter = result.Blocking[len(result.Blocking)-1].Seq
		case g.complete:
			g.loads = false
		default:
			g.endLoad()
		}
		if g.loaded || len(result.Notices) >= noticeLimit { // there may be more, of its keys
			continue
		}
		g.loaded = true
		// The former owner knew of retries that this member does not.
		g.route.overdue.all()
		for s := range g.route.uncertainUpTo {
			// No record that was staged later can have been out at the dead member.
			if g.slots.Has(uint8(s)) {
				g.route.uncertainUpTo[s] = min(g.route.uncertainUpTo[s], result.LastSeq)
			}
		}
		g.route.pace.more = true
		d.timers.at = d.now
	}
}

// positions moves cursors, walks and late scans to the end of the read, before its records are taken in. A range that
// was cut short ends at its last record, or where it began.
//
// A late scan goes over (stable, cursor] and can take several reads. Its goal is the number up to which everything was
// visible in its first read: at the end stable becomes that. A transaction can end between two reads and show records
// in the part that it is through with, from the goal on. So in the later reads the goal is the hazard.
func (d *Dispatcher) positions(r *reading, result *core.ReadResult, visible int64) {
	late := map[*group]bool{}
	for _, rt := range r.routes {
		rt.pace.more = false
		for _, g := range rt.groups {
			g.hazards = math.MaxInt64
		}
	}
	for i := range r.ranges {
		a, ans := &r.ranges[i], &result.Ranges[i]
		g := a.group
		// A range that was cut short ends at its last record. Without one it has not moved.
		end, done := a.to, !ans.More
		if ans.More {
			end = a.from
			if n := len(ans.Records); n > 0 {
				end = ans.Records[n-1].Seq
			}
		}
		switch a.kind {
		case rangeFront:
			if end == math.MaxInt64 {
				end = result.LastSeq
			}
			g.cursor = max(g.cursor, end)
			g.route.pace.more = g.route.pace.more || !done || g.cursor < result.LastSeq
		case rangeLate:
			late[g] = true
			if a.from == g.stable {
				g.goal = visible
			} else if g.goal < a.from {
				g.hazards = g.goal
			}
			g.late = end
		case rangeWalk:
			a.walk.pos = end
			if done && end >= a.walk.to {
				g.walks = slices.DeleteFunc(g.walks, func(w *walk) bool { return w == a.walk })
			}
			g.route.pace.more = g.route.pace.more || len(g.walks) > 0
		case rangeSweep:
			if g.sweep = end; done && end >= g.stable {
				g.sweep, g.sweepAt = 0, d.now.Add(sweepEvery)
			}
		}
	}
	for i := range r.ranges {
		g := r.ranges[i].group
		if r.ranges[i].kind != rangeFront {
			continue
		}
		// The late scan is over only if it has reached the place where the front of the same read began.
		switch {
		case !late[g]: // there is nothing between stable and the cursor
			if g.stable >= r.ranges[i].from {
				g.goal = visible
				g.lateDone()
			}
		case g.late >= r.ranges[i].from: // it goes up to where the front began
			g.lateDone()
		default:
			g.route.pace.more = true
		}
	}
	for _, rt := range r.routes {
		for _, g := range rt.groups {
			g.hazards = min(g.hazards, g.hazard())
			// also for a group that was just loaded
			rt.pace.more = rt.pace.more || g.loaded && g.cursor < result.LastSeq
		}
	}
}

// keyPages takes in the pages of keys.
func (d *Dispatcher) keyPages(r *reading, result *core.ReadResult) {
	for i, k := range r.keys {
		q := &r.request.Keys[i]
		g := k.route.groupOf(k.slot)
		if k.dropped || g == nil {
			k.listed = false
			continue
		}
		d.applyKeyPage(k.route, k, q.AfterSeq, q.UpToSeq, r.excluded[i], &result.Keys[i], g.hazards)
	}
}

// records takes in the records of the ranges, in the order of their numbers over all ranges: two ranges of a read can
// bring records of the same key. A sweep only finds keys: the records of a key that it read are read by key.
func (d *Dispatcher) records(r *reading, result *core.ReadResult, found map[*route]int) {
	type read struct {
		rec   *core.Record
		group *group
		kind  rangeKind
	}
	n := 0
	for i := range result.Ranges {
		n += len(result.Ranges[i].Records)
	}
	all := make([]read, 0, n)
	for i := range result.Ranges {
		for j := range result.Ranges[i].Records {
			all = append(all, read{&result.Ranges[i].Records[j], r.ranges[i].group, r.ranges[i].kind})
		}
	}
	if len(r.ranges) > 1 {
		slices.SortStableFunc(all, func(a, b read) int { return cmp.Compare(a.rec.Seq, b.rec.Seq) })
	}
	for i := range all {
		// The partition can have gone since the read was sent.
		rec, g := all[i].rec, all[i].group
		rt := g.route
		if !g.slots.Has(rec.Slot) || rt.known[rec.Seq] != nil {
			continue
		}
		d.reads.late = all[i].kind == rangeLate
		// A late scan meets records again that wait behind an earlier one of their key.
		if !d.reads.late || !rt.accountsFor(rec) {
			found[rt]++
		}
		if all[i].kind == rangeSweep && rt.ordered() && rec.Envelope.Key != "" {
			d.readForgotten(rt, rec)
			continue
		}
		d.admit(rt, rec, g.hazards)
	}
	d.reads.late = false
}

// passPaused has fronts go on near the end, if most records that they meet are of paused topics. Otherwise the records
// of other topics would wait until all of that was read. A walk follows over the rest. It is the only one, so that
// there is no walk for each jump.
func (d *Dispatcher) passPaused(r *reading, result *core.ReadResult, visible int64) {
	tail := d.tailPages * int64(d.opts.Batch)
	for i := range r.ranges {
		a, ans := &r.ranges[i], &result.Ranges[i]
		g := a.group
		if a.kind != rangeFront || !ans.More || result.LastSeq-g.cursor <= 2*tail || len(g.walks) > 0 {
			continue
		}
		paused := 0
		for j := range ans.Records {
			if g.route.topics.paused[ans.Records[j].Envelope.Topic] {
				paused++
			}
		}
		if paused > 0 && 2*paused >= len(ans.Records) {
			g.jump(result.LastSeq-tail, visible)
			g.route.pace.more = true
		}
	}
}

// readForgotten schedules a read of a key from a record that a sweep found, if nothing else accounts for the record.
func (d *Dispatcher) readForgotten(rt *route, rec *core.Record) {
	if rt.recent.read[rec.Seq] || rt.accountsFor(rec) {
		return
	}
	k := rt.key(rec.Envelope.Key, rec.Slot)
	k.passFrom(rec.Seq)
	d.advance(k)
}

// accountsFor reports whether a record is one that its key has passed, and will read when its turn comes, or one that
// is known to block its key.
func (rt *route) accountsFor(rec *core.Record) bool {
	k := rt.keys[rec.Envelope.Key]
	return k != nil && (k.resume != 0 && k.resume <= rec.Seq || k.blockers[rec.Seq] != 0)
}

// takeRevisits takes in the records that are read again. They end in one of these ways:
//
//   - A record that another session still holds stays in line.
//   - A record about which an operator has decided meets its end, unless the decision was taken back.
//   - A record without a key goes like one of a range. If it is gone, nothing happens.
//   - A record with a key is not handed out from here: earlier ones of its key can have come back, so the whole key is
//     read anew.
func (d *Dispatcher) takeRevisits(r *reading, result *core.ReadResult) {
	type place struct {
		route string
		seq   int64
	}
	waits := map[place]*core.BlockingRecord{}
	for i := range result.RecheckedBlocking {
		w := &result.RecheckedBlocking[i]
		waits[place{w.Route, w.Seq}] = w
	}
	live := map[place]*core.Record{}
	for i := range result.Rechecked {
		rec := &result.Rechecked[i]
		live[place{rec.Route, rec.Seq}] = rec
	}
	for i, rt := range r.recheck {
		seq := r.request.Recheck[i].Seq
		v := rt.revisits.bySeq[seq]
		if v == nil || v.ref.ID != r.request.Recheck[i].ID || rt.recent.read[seq] {
			continue
		}
		at := place{rt.Name, seq}
		w, rec := waits[at], live[at]
		if w != nil && d.foreign(w.HeldBy) || rec != nil && d.foreign(rec.HeldBy) {
			continue // still held
		}
		rt.revisits.remove(seq)
		if c := v.decision; c != nil {
			if !isVoid(c, result) {
				d.decideRead(rt, v, rec, w)
				continue
			}
			if d.notices.forget(c); rt.known[seq] != nil {
				continue
			}
		}
		// The record waits for a retry or a decision: a Due finds out whether it is due.
		if w != nil && w.Why != core.BlockedByHold {
			d.timers.askBy(d.now)
		}
		// If the record is as it was, its lock may still be there: it keeps its count of refusals. If it has
		// changed or is gone, its lock has ended.
		if v.locked {
			if rec == nil || rec.Version != v.ref.Version {
				rt.unlocked()
			} else {
				rt.revisits.tries[seq] = v.tries
			}
		}
		if v.key == "" || !rt.ordered() {
			if rec != nil {
				d.admit(rt, rec, math.MaxInt64)
			}
			continue
		}
		d.reread(rt, v.key, v.slot)
	}
}
