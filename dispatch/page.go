package dispatch

import (
	"cmp"
	"math"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// readDone takes in a page.
func (d *Dispatcher) readDone(r *reading, page *core.Page, c *Call) {
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
		d.calls.pause(callRead)
		return
	}
	if !page.Known || d.db.isOlder(page) {
		d.db.wentBack = true
		d.rejoin()
		return
	}
	drawn := page.Last - d.db.last
	d.db.epoch, d.db.last, d.db.told = page.Epoch, max(d.db.last, page.Last), max(d.db.told, page.Told)
	d.noteFlag(page.Flag, c)
	moved := page.Upper > 0
	visible := d.transactions(page)
	for i, rt := range r.parts {
		if lost := r.look.Parts[i].Slots &^ page.Owned[i] & rt.owned(); lost != 0 {
			d.drop(rt, lost)
			d.peers.lookAt = d.now
		}
	}
	d.reads.paging = true
	d.control(page)
	d.loadFresh(r, page)
	found := map[*route]bool{}
	d.positions(r, page, visible)
	d.keyPages(r, page)
	d.records(r, page, found)
	d.passPaused(r, page, visible)
	d.takeRevisits(r, page)
	d.reads.paging = false
	touched := d.reads.touched
	d.reads.touched = nil
	for _, k := range touched {
		k.touched = false
		d.advance(k)
	}
	for _, rt := range r.routes {
		rt.rest(found[rt] || moved && rt.unresolved())
		rt.merge(page.Last)
	}
	for _, g := range r.fresh {
		if g.loaded && !g.loads {
			g.route.pace.readAt = d.now // no range of it was read
		}
	}
	d.noteUnread(page, drawn)
}

// noteUnread has queues ask for records without a key if more numbers were drawn than the page brought records. A page
// does not bring those records; but a store takes the route for read, and does not wake any member for them.
func (d *Dispatcher) noteUnread(page *core.Page, drawn int64) {
	for i := range page.Ranges {
		drawn -= int64(len(page.Ranges[i].Records))
	}
	if drawn <= 0 {
		return
	}
	for _, rt := range d.routes {
		if rt.Queue {
			rt.queue.lookNext(d.now)
		}
	}
}

// rest decides when a route is read again.
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

// loadFresh takes in the records that wait in new units.
func (d *Dispatcher) loadFresh(r *reading, page *core.Page) {
	whole := !page.MoreWaiting || len(page.Waiting) == 0
	for _, g := range r.fresh {
		if whole && g.afterFresh == 0 && !g.loaded {
			g.complete, g.floor = true, math.MaxInt64
		}
	}
	for i := range page.Waiting {
		w := &page.Waiting[i]
		rt := d.byName[w.Route]
		if rt == nil {
			continue
		}
		if g := rt.groupOf(w.Slot); g != nil && slices.Contains(r.fresh, g) {
			rt.wait(w)
		}
	}
	for _, g := range r.fresh {
		full := g.forgot && len(g.route.keys) >= g.route.opts.MaxKeys // more cannot be remembered
		switch {
		case !whole && !full:
			g.afterFresh = page.Waiting[len(page.Waiting)-1].Seq
		case g.complete:
			g.loads = false
		default:
			g.endLoad()
		}
		if g.loaded || len(page.Control) >= controlPage { // there may be more, of its keys
			continue
		}
		g.loaded = true
		g.route.overdue.all()
		for s := range g.route.careful {
			if g.slots.Has(uint8(s)) {
				g.route.careful[s] = min(g.route.careful[s], page.Last)
			}
		}
		g.route.pace.more = true
		d.timers.at = d.now
	}
}

// positions moves cursors, walks and late passes to the end of the page, before its records are taken in.
func (d *Dispatcher) positions(r *reading, page *core.Page, visible int64) {
	late := map[*group]bool{}
	for _, rt := range r.routes {
		rt.pace.more = false
		for _, g := range rt.groups {
			g.hazards = math.MaxInt64
		}
	}
	for i := range r.ranges {
		a, ans := &r.ranges[i], &page.Ranges[i]
		g := a.group
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
				end = page.Last
			}
			g.cursor = max(g.cursor, end)
			g.route.pace.more = g.route.pace.more || !done || g.cursor < page.Last
		case rangeLate:
			late[g] = true
			if a.from == g.low {
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
			if g.sweep = end; done && end >= g.low {
				g.sweep, g.sweepAt = 0, d.now.Add(sweepEvery)
			}
		}
	}
	for i := range r.ranges {
		g := r.ranges[i].group
		if r.ranges[i].kind != rangeFront {
			continue
		}
		switch {
		case !late[g]: // there is nothing between low and the cursor
			if g.low >= r.ranges[i].from {
				g.goal = visible
				g.passDone()
			}
		case g.late >= r.ranges[i].from: // it goes up to where the front began
			g.passDone()
		default:
			g.route.pace.more = true
		}
	}
	for _, rt := range r.routes {
		for _, g := range rt.groups {
			g.hazards = min(g.hazards, g.hazard())
			// also for a group that was just loaded
			rt.pace.more = rt.pace.more || g.loaded && g.cursor < page.Last
		}
	}
}

// keyPages takes in the pages of keys.
func (d *Dispatcher) keyPages(r *reading, page *core.Page) {
	for i, k := range r.keys {
		q := &r.look.Keys[i]
		g := k.route.groupOf(k.slot)
		if k.dropped || g == nil {
			k.listed = false
			continue
		}
		d.takeKey(k.route, k, q.From, q.To, r.lefts[i], &page.Keys[i], g.hazards)
	}
}

// records takes in the records of the ranges, in order.
func (d *Dispatcher) records(r *reading, page *core.Page, found map[*route]bool) {
	type read struct {
		rec   *core.Record
		group *group
		kind  rangeKind
	}
	n := 0
	for i := range page.Ranges {
		n += len(page.Ranges[i].Records)
	}
	all := make([]read, 0, n)
	for i := range page.Ranges {
		for j := range page.Ranges[i].Records {
			all = append(all, read{&page.Ranges[i].Records[j], r.ranges[i].group, r.ranges[i].kind})
		}
	}
	if len(r.ranges) > 1 {
		slices.SortStableFunc(all, func(a, b read) int { return cmp.Compare(a.rec.Seq, b.rec.Seq) })
	}
	for i := range all {
		rec, g := all[i].rec, all[i].group
		rt := g.route
		if !g.slots.Has(rec.Slot) || rt.known[rec.Seq] != nil {
			continue
		}
		found[rt] = true
		d.reads.late = all[i].kind == rangeLate
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
// there is no walk for each jump; and nothing may still appear behind the front, so that no late pass does the same.
func (d *Dispatcher) passPaused(r *reading, page *core.Page, visible int64) {
	tail := d.tailPages * int64(d.opts.Batch)
	for i := range r.ranges {
		a, ans := &r.ranges[i], &page.Ranges[i]
		g := a.group
		if a.kind != rangeFront || !ans.More || page.Last-g.cursor <= 2*tail || visible < g.cursor || len(g.walks) > 0 {
			continue
		}
		paused := 0
		for j := range ans.Records {
			if g.route.topics.blocked[ans.Records[j].Envelope.Topic] {
				paused++
			}
		}
		if paused > 0 && 2*paused >= len(ans.Records) {
			g.jump(page.Last-tail, visible)
			g.route.pace.more = true
		}
	}
}

// readForgotten schedules a read of a key from a record that a sweep found, if nothing else accounts for the record.
func (d *Dispatcher) readForgotten(rt *route, rec *core.Record) {
	k := rt.keys[rec.Envelope.Key]
	if rt.recent.read[rec.Seq] || k != nil && (k.resume != 0 && k.resume <= rec.Seq || k.holds[rec.Seq] != 0) {
		return
	}
	k = rt.key(rec.Envelope.Key, rec.Slot)
	k.passFrom(rec.Seq)
	d.advance(k)
}

// takeRevisits takes in records that other sessions held.
func (d *Dispatcher) takeRevisits(r *reading, page *core.Page) {
	type place struct {
		route string
		seq   int64
	}
	waits := map[place]*core.Waiting{}
	for i := range page.AgainWaiting {
		w := &page.AgainWaiting[i]
		waits[place{w.Route, w.Seq}] = w
	}
	live := map[place]*core.Record{}
	for i := range page.Again {
		rec := &page.Again[i]
		live[place{rec.Route, rec.Seq}] = rec
	}
	for i, rt := range r.again {
		seq := r.look.Again[i].Seq
		v := rt.again.bySeq[seq]
		if v == nil || v.ref.ID != r.look.Again[i].ID || rt.recent.read[seq] {
			continue
		}
		at := place{rt.Name, seq}
		w, rec := waits[at], live[at]
		if w != nil && d.foreign(w.Holder) || rec != nil && d.foreign(rec.Holder) {
			continue // still held
		}
		rt.again.remove(seq)
		if c := v.decision; c != nil {
			if !isVoid(c, page) {
				d.decideRead(rt, v, rec, w)
				continue
			}
			if d.controls.forget(c); rt.known[seq] != nil {
				continue
			}
		}
		if w != nil && w.Why != core.ObstacleHeld {
			d.timers.askBy(d.now)
		}
		if v.locked {
			if rec == nil || rec.Version != v.ref.Version {
				rt.unlocked()
			} else {
				rt.again.tries[seq] = v.tries
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
