package dispatch

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core/outbox"
)

const (
	waitingPage = 2000
	againPage   = 200
	sweepPage   = 100
	// sweepShare is how many reads there are to one step of a sweep, at the most; one that is under way makes one in
	// each sweepPause. sweepEvery is how often there is one.
	sweepShare = 20
	sweepEvery = 5 * time.Minute
	sweepStep  = 1_000_000
	sweepPause = time.Second
	// lookEvery is how often owners and control records are looked at when nothing is read.
	lookEvery = 400 * time.Millisecond
	// restEvery is how often a member that has nothing to do looks at the roster.
	restEvery = time.Second
)

type rangeKind uint8

const (
	rangeFront rangeKind = iota
	rangeLate
	rangeWalk
	rangeSweep
)

// asked says what a range of a look is.
type asked struct {
	kind     rangeKind
	group    *group
	walk     *walk
	from, to int64
}

// reading is a look under way and what its parts are about.
type reading struct {
	look   outbox.Look
	parts  []*route
	fresh  []*group
	ranges []asked
	keys   []*key
	lefts  []bool // the front of the look leaves the key out
	again  []*route
	routes []*route // of which ranges are read
}

// readDue returns when the next read is due; zero = none.
func (d *Dispatcher) readDue() time.Time {
	var at time.Time
	for _, rt := range d.routes {
		if len(rt.groups) == 0 {
			continue
		}
		at = earliest(at, d.routeDue(rt))
	}
	if !at.IsZero() && at.Before(d.readAt) {
		return d.readAt
	}
	return at
}

// routeDue returns when a route is to be read.
func (d *Dispatcher) routeDue(rt *route) time.Time {
	if slices.ContainsFunc(rt.groups, func(g *group) bool { return !g.loaded }) {
		return d.now
	}
	at := rt.readAt
	if d.routeRoom(rt) <= 0 {
		at = later(at, rt.lookedAt.Add(lookEvery))
	} else if rt.more || len(rt.toRead) > 0 {
		return d.now
	}
	for _, r := range rt.again {
		at = earliest(at, r.at)
	}
	for _, g := range rt.groups {
		if g.low > 0 && !d.now.Before(g.sweepAt) && d.routeRoom(rt) > 0 {
			at = earliest(at, later(d.now, g.swept.Add(sweepPause)))
		}
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// read returns the next read, or nil.
func (d *Dispatcher) read() *Call {
	if at := d.readDue(); d.reading != nil || d.giving != nil || at.IsZero() || at.After(d.now) {
		return nil
	}
	r := d.newReading()
	d.ranges++
	c := &Call{kind: callRead}
	session := d.session
	var page outbox.Page
	c.do = func(ctx context.Context, s outbox.Store) (err error) {
		page, err = s.Read(ctx, session, r.look)
		return err
	}
	c.done = func() { d.readDone(r, &page, c) }
	d.reading = c
	for _, rt := range d.routes {
		clear(rt.recent)
	}
	return c
}

// newReading puts together what is to be read now.
func (d *Dispatcher) newReading() *reading {
	r := &reading{look: outbox.Look{Last: d.last, Limit: waitingPage, Bytes: d.opts.Bytes / 4}}
	keys := keyReads
	after := int64(-1)
	for _, rt := range d.routes {
		at := d.routeDue(rt)
		if len(rt.groups) == 0 {
			continue
		}
		r.look.Parts = append(r.look.Parts, outbox.Part{Route: rt.Name, Slots: rt.owned()})
		r.parts = append(r.parts, rt)
		if rt.Blocks {
			r.look.Blocks = append(r.look.Blocks, rt.Name)
		}
		for _, g := range rt.groups {
			if !g.loaded && (after < 0 || g.afterFresh == after) {
				after = g.afterFresh
				r.look.Fresh = append(r.look.Fresh, outbox.Part{Route: rt.Name, Slots: g.slots})
				r.fresh = append(r.fresh, g)
			}
		}
		r.look.AfterFresh = max(after, 0)
		d.addAgain(r, rt)
		if at.After(d.now) {
			continue
		}
		rt.lookedAt = d.now
		r.routes = append(r.routes, rt)
		if room := d.routeRoom(rt); room > 0 {
			left := d.addRanges(r, rt, room)
			keys -= d.addKeys(r, rt, keys, left) // only beside the late range: see hazard
		}
	}
	return r
}

// addRanges adds the ranges of a route's groups, and returns the keys that its fronts leave out.
func (d *Dispatcher) addRanges(r *reading, rt *route, room int) (left map[string]bool) {
	left = map[string]bool{}
	add := func(g *group, kind rangeKind, w *walk, from, to int64, limit int) *outbox.Range {
		q := outbox.Range{Part: outbox.Part{Route: rt.Name, Slots: g.slots}, From: from, To: to, Keyed: rt.Queue, Limit: limit}
		r.look.Ranges = append(r.look.Ranges, q)
		r.ranges = append(r.ranges, asked{kind, g, w, from, to})
		return &r.look.Ranges[len(r.look.Ranges)-1]
	}
	limit := min(d.opts.Batch, room)
	for _, g := range rt.groups {
		if !g.loaded {
			continue
		}
		if g.sweeps(d) {
			g.swept = d.now
			add(g, rangeSweep, nil, g.sweep, min(g.low, g.sweep+sweepStep), min(limit, sweepPage))
		}
		for _, w := range g.walks[:min(len(g.walks), 2)] {
			q := add(g, rangeWalk, w, w.pos, min(w.to, w.pos+step), limit)
			q.Skip = rt.knownIn(g, q.From, q.To)
			q.Limit += len(q.Skip)
		}
		if g.late < g.cursor {
			q := add(g, rangeLate, nil, g.late, min(g.cursor, g.late+step), limit)
			q.Skip = rt.knownIn(g, q.From, q.To)
			q.Limit += len(q.Skip)
		}
		to := int64(math.MaxInt64)
		if d.last > g.cursor+step {
			to = g.cursor + step
		}
		q := add(g, rangeFront, nil, g.cursor, to, limit)
		q.Leave = d.deepKeys(rt, g)
		for _, k := range q.Leave {
			left[k] = true
		}
	}
	return left
}

// sweeps reports whether the next step of a sweep is due.
func (g *group) sweeps(d *Dispatcher) bool {
	return g.sweep < g.low && !d.now.Before(g.sweepAt) && (d.ranges%sweepShare == 0 || d.now.Sub(g.swept) >= sweepPause)
}

// knownIn returns the sequences of (from, to] that are in memory.
func (rt *route) knownIn(g *group, from, to int64) (seqs []int64) {
	for seq, it := range rt.known {
		if seq > from && seq <= to && g.slots.Has(it.Record.Slot) {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs
}

// deepKeys returns the keys of which the front passed most.
func (d *Dispatcher) deepKeys(rt *route, g *group) (names []string) {
	if len(rt.keys) == 0 {
		return nil
	}
	var deep []*key
	for _, k := range rt.keys {
		if k.passed > d.keyDepth/4 && k.resume > 0 && k.resume <= g.cursor && g.slots.Has(k.slot) {
			deep = append(deep, k)
		}
	}
	slices.SortFunc(deep, func(a, b *key) int { return cmp.Or(cmp.Compare(b.passed, a.passed), cmp.Compare(a.name, b.name)) })
	for _, k := range deep[:min(len(deep), maxLeave)] {
		names = append(names, k.name)
	}
	return names
}

// addKeys adds up to limit keys of a route whose next page is to be read.
func (d *Dispatcher) addKeys(r *reading, rt *route, limit int, left map[string]bool) (n int) {
	for n < limit && len(rt.toRead) > 0 {
		k := rt.toRead[0]
		rt.toRead = rt.toRead[1:]
		g := rt.groupOf(k.slot)
		if g == nil || !g.loaded {
			k.listed = false
			continue
		}
		if k.resume > g.cursor && !k.anew { // the front will bring it
			k.resume, k.passed, k.listed = 0, 0, false
			d.advance(k)
			continue
		}
		from := k.resume - 1
		if d.has(ruleHazardKeys) {
			from = min(from, g.hazard())
		}
		if k.anew {
			from = 0
		}
		k.asked, k.stale = k.resume, false
		r.look.Keys = append(r.look.Keys, outbox.KeyRange{Route: rt.Name, Key: k.name, From: from, To: g.cursor, Limit: d.keyDepth})
		r.keys = append(r.keys, k)
		r.lefts = append(r.lefts, left[k.name])
		n++
	}
	return n
}

// addAgain adds what others held.
func (d *Dispatcher) addAgain(r *reading, rt *route) {
	n := 0
	for _, seq := range sortedSeqs(rt.again) {
		if v := rt.again[seq]; !v.at.After(d.now) && n < againPage {
			r.look.Again = append(r.look.Again, v.ref)
			r.again = append(r.again, rt)
			v.at = d.now.Add(againAfter)
			n++
		}
	}
}

// readDone takes in a page.
func (d *Dispatcher) readDone(r *reading, page *outbox.Page, c *Call) {
	if c.err != nil {
		for _, k := range r.keys {
			k.listed = false
			d.advance(k)
		}
		if fenced(c.err) {
			d.rejoin()
			return
		}
		d.readAt = d.now.Add(d.backoff(callRead))
		return
	}
	if !page.Known || d.has(ruleRestore) && (page.Epoch != d.epoch && d.epoch != "" || page.Last < d.last) {
		d.distrust = true
		d.rejoin()
		return
	}
	d.epoch, d.last = page.Epoch, max(d.last, page.Last)
	moved := page.Upper > 0
	visible := d.marks(page)
	if d.has(ruleUnitFence) {
		for i, rt := range r.parts {
			if lost := r.look.Parts[i].Slots &^ page.Owned[i] & rt.owned(); lost != 0 {
				d.drop(rt, lost)
				d.meetAt = d.now
			}
		}
	}
	d.paging = true
	d.control(page)
	d.loadFresh(r, page)
	found := map[*route]bool{}
	d.positions(r, page, visible)
	d.keyPages(r, page)
	d.records(r, page, found)
	d.revisits(r, page)
	d.paging = false
	touched := d.touched
	d.touched = nil
	for _, k := range touched {
		k.touched = false
		d.advance(k)
	}
	for _, rt := range r.routes {
		rt.rest(d, found[rt] || moved && rt.unresolved())
		rt.merge(page.Last)
	}
	for _, g := range r.fresh {
		if g.loaded {
			g.route.readAt = d.now // nothing of it was read
		}
	}
}

// rest decides when a route is read again.
func (rt *route) rest(d *Dispatcher, found bool) { //nolint:revive // a fact
	if found {
		rt.idle = 0
	} else {
		rt.idle = min(rt.idle+1, 12)
	}
	pause := min(d.opts.PollMin<<max(rt.idle-1, 0), d.opts.PollMax)
	if rt.unresolved() {
		pause = min(pause, 10*d.opts.PollMin)
	}
	rt.readAt = d.now.Add(pause)
}

func (rt *route) unresolved() bool { return slices.ContainsFunc(rt.groups, (*group).unresolved) }

// loadFresh takes in what waits in units that are new.
func (d *Dispatcher) loadFresh(r *reading, page *outbox.Page) {
	for i := range page.Waiting {
		w := &page.Waiting[i]
		rt := d.byName[w.Route]
		if rt == nil {
			continue
		}
		if w.Why == outbox.Held && !d.has(ruleLoadOut) || w.Why != outbox.Held && !d.has(ruleLoadHeld) {
			continue
		}
		if g := rt.groupOf(w.Slot); g != nil && slices.Contains(r.fresh, g) {
			d.wait(rt, w)
		}
	}
	for _, g := range r.fresh {
		if page.MoreWaiting && len(page.Waiting) > 0 {
			g.afterFresh = page.Waiting[len(page.Waiting)-1].Seq
			continue
		}
		g.loaded = true
		for s := range g.route.careful {
			if g.slots.Has(uint8(s)) {
				g.route.careful[s] = min(g.route.careful[s], page.Last)
			}
		}
		g.route.more = true
		d.dueAt = d.now
	}
}

// positions moves cursors, walks and late passes as far as the page goes, before its records are looked at.
func (d *Dispatcher) positions(r *reading, page *outbox.Page, visible int64) {
	late := map[*group]bool{}
	for _, rt := range r.routes {
		rt.more = false
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
			g.route.more = g.route.more || !done || g.cursor < page.Last
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
			g.route.more = g.route.more || len(g.walks) > 0
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
		case !late[g]: // there was nothing between low and the cursor
			if g.low >= r.ranges[i].from {
				g.goal = visible
				g.passDone()
			}
		case g.late >= r.ranges[i].from: // up to where the front began
			g.passDone()
		default:
			g.route.more = true
		}
	}
	for _, rt := range r.routes {
		for _, g := range rt.groups {
			g.hazards = min(g.hazards, g.hazard())
			rt.more = rt.more || g.loaded && g.cursor < page.Last // one that was just loaded, too
		}
	}
}

// keyPages takes in the pages of keys.
func (d *Dispatcher) keyPages(r *reading, page *outbox.Page) {
	for i, k := range r.keys {
		q := &r.look.Keys[i]
		g := k.route.groupOf(k.slot)
		if k.gone || g == nil {
			k.listed = false
			continue
		}
		d.takeKey(k.route, k, q.From, q.To, r.lefts[i], &page.Keys[i], g.hazards)
	}
}

// records takes in what the ranges brought, in order.
func (d *Dispatcher) records(r *reading, page *outbox.Page, found map[*route]bool) {
	type read struct {
		rec   *outbox.Record
		group *group
		sweep bool
	}
	n := 0
	for i := range page.Ranges {
		n += len(page.Ranges[i].Records)
	}
	all := make([]read, 0, n)
	for i := range page.Ranges {
		for j := range page.Ranges[i].Records {
			all = append(all, read{&page.Ranges[i].Records[j], r.ranges[i].group, r.ranges[i].kind == rangeSweep})
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
		if all[i].sweep && rt.ordered() && rec.Envelope.Key != "" {
			d.forgotten(rt, rec)
			continue
		}
		d.admit(rt, rec, g.hazards)
	}
}

// forgotten has a key read from a record on that a sweep found, if nothing accounts for it.
func (d *Dispatcher) forgotten(rt *route, rec *outbox.Record) {
	k := rt.keys[rec.Envelope.Key]
	if rt.recent[rec.Seq] || k != nil && (k.resume != 0 && k.resume <= rec.Seq || k.holds[rec.Seq] != 0) {
		return
	}
	k = rt.key(rec.Envelope.Key, rec.Slot)
	k.passFrom(rec.Seq)
	d.advance(k)
}

// revisits takes in what became of records that others held.
func (d *Dispatcher) revisits(r *reading, page *outbox.Page) {
	type place struct {
		route string
		seq   int64
	}
	waits := map[place]*outbox.Waiting{}
	for i := range page.AgainWaiting {
		w := &page.AgainWaiting[i]
		waits[place{w.Route, w.Seq}] = w
	}
	live := map[place]*outbox.Record{}
	for i := range page.Again {
		rec := &page.Again[i]
		live[place{rec.Route, rec.Seq}] = rec
	}
	for i, rt := range r.again {
		seq := r.look.Again[i].Seq
		v := rt.again[seq]
		if v == nil || v.ref.ID != r.look.Again[i].ID || rt.recent[seq] {
			continue
		}
		at := place{rt.Name, seq}
		w, rec := waits[at], live[at]
		if w != nil && w.Holder != 0 && w.Holder != d.session || rec != nil && rec.Holder != 0 && rec.Holder != d.session {
			continue // still
		}
		delete(rt.again, seq)
		if w != nil && w.Why != outbox.Held {
			d.dueAt = earliest(d.dueAt, d.now)
		}
		if v.key == "" || !rt.ordered() {
			if rec != nil {
				d.admit(rt, rec, math.MaxInt64)
			}
			continue
		}
		d.renew(rt, v.key, v.slot)
	}
}

// control does what control records say.
func (d *Dispatcher) control(page *outbox.Page) {
	if !d.has(ruleControl) {
		return
	}
	for i := range page.Control {
		c := page.Control[i]
		rt := d.byName[c.Route]
		if rt == nil || d.heeding[c.Number] {
			continue
		}
		switch c.Kind {
		case outbox.ControlKey:
			d.recheck(rt, &c)
		case outbox.ControlRecord:
			if c.Key != "" && rt.ordered() {
				d.recheck(rt, &c)
			} else if it := rt.known[c.Seq]; it != nil {
				it.recheck = true
			} else if rt.anyones(c.Key) {
				rt.lookNext(d.now)
			} else {
				rt.again[c.Seq] = &revisit{ref: outbox.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, at: d.now}
			}
		case outbox.ControlFrom:
			rt.lookNext(d.now)
			for _, g := range rt.groups {
				g.addWalk(max(c.Seq-1, 0), g.cursor)
			}
		}
		d.dueAt = d.now
		d.heeding[c.Number] = true
		d.heeded = append(d.heeded, c)
		if d.pendedAt.IsZero() {
			d.pendedAt = d.now
		}
	}
}

// recheck has a key read anew, once now and once more when what is being stored of it is.
func (d *Dispatcher) recheck(rt *route, c *outbox.Control) {
	for _, it := range rt.known {
		if it.Record.Envelope.Key == c.Key && it.state == itemSettling {
			it.recheck = true
		}
	}
	d.renew(rt, c.Key, c.Slot)
}
