package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Numbers are drawn when records are staged, and become visible when their transaction commits. So a range that was
// read can get records later. A group is a set of slots with one place in the order:
//
//   0 ──────────── stable ───────────────── cursor ──────────── last
//      nothing more  │  read, but records  │  not read yet
//      can appear    │  may still appear   │
//
// The front moves the cursor. A late scan goes over (stable, cursor] again, one after the other, until stable has met
// the cursor. A transaction that runs for longer than a second would hold stable back for all that time. It is watched
// by itself instead: when it ends, a walk covers what it may have shown. Partitions that just came begin at their hint,
// as a group of their own, and join the others when they are at the same place.

const (
	// step is the width of a range of numbers where there may be dead rows.
	step = 50_000
	// tailPages is how many reads a front makes behind its jump over records of paused topics.
	tailPages = 10
	// loadEvery is the least pause between two readings of all that waits.
	loadEvery = 10 * time.Second
)

// group is a set of slots of a route that are read from one place.
type group struct {
	route *route
	slots core.Slots
	// The records that wait in the partitions of a new group are read part by part (loads). With the first part the
	// group begins to hand out (loaded); it stays so. When all of them are remembered it is complete: a key without
	// memory is free. Otherwise such a key may wait, and the store is asked about it.
	//
	//   loads | loaded | complete | the group
	//   ------|--------|----------|--------------------------------------------------------------------------
	//   yes   | no     | no       | is new: nothing is handed out
	//   no    | no     | yes      | knows all keys that wait, but there are more notices than one read brings
	//   yes   | yes    | no       | hands out; more parts are to come, or they are read again (beginLoad)
	//   no    | yes    | yes      | knows all keys that wait
	//   no    | yes    | no       | has forgotten some of them (forgot); with room beginLoad reads all again
	loads, loaded, complete, forgot bool
	floor                           int64     // the passed records of forgotten keys are behind it
	loadAt                          time.Time // not before
	newlyOwnedAfter                 int64     // while loads: waiting records up to here were taken in
	// cursor: the front has passed everything up to it. stable: nothing up to it can still appear, watched
	// transactions apart.
	cursor, stable int64
	// late is the position of the late scan over (stable, cursor]; goal is what stable becomes at its end. If late
	// is stable, no late scan is under way.
	late, goal int64
	hazards    int64 // the hazard for the result that is being taken in; positions sets it
	walks      []*walk
	watch      map[int64]int64 // by id of a watched transaction: it shows only records behind this number
	// The sweep under way, and when it made its latest step.
	sweep          int64
	sweepAt, swept time.Time
}

// walk goes over a range a second time, because records may have appeared in it.
type walk struct {
	pos, to int64
	asked   bool // a read of it is under way, which may not see what the next walk is for
}

// addSlots makes a group of partitions that the member has just got. It begins at the hint: the former owner has stored
// no greater one while a record before it was in memory, passed, or still to appear. Only the records that wait (loads)
// can be before it. Its notices are read from the first one on.
func (d *Dispatcher) addSlots(rt *route, slots core.Slots, readAfter int64) {
	if d.db.wentBack { // the hint may be of another life of the database
		readAfter = 0
	}
	readAfter = d.notices.from(rt.Name, readAfter) // the notice is about these slots, too
	g := &group{route: rt, slots: slots, cursor: readAfter, stable: readAfter, late: readAfter, watch: map[int64]int64{}, loads: true, floor: readAfter}
	for id := range d.db.watched {
		g.watch[id] = readAfter // the hint is below all records that the transaction may show
	}
	rt.groups = append(rt.groups, g)
	rt.pace.readAt = d.now
	rt.queue.progress.partitionCame(d.now)
	d.notices.all()
	d.adopt(rt, slots)
}

// adopt connects items that are still out to their keys, after their slots came back.
func (d *Dispatcher) adopt(rt *route, slots core.Slots) {
	for _, seq := range sortedSeqs(rt.known) {
		item := rt.known[seq]
		if !slots.Has(item.Record.Slot) || item.key != nil || !rt.ordered() || item.Record.Envelope.Key == "" {
			continue
		}
		k := rt.key(item.Record.Envelope.Key, item.Record.Slot)
		item.key = k
		if item.state == itemSettling {
			k.unstored = append(k.unstored, item)
		} else {
			k.busy++
		}
	}
}

// hazard returns the least position of a walk or a late scan under way in a group. Records behind it may lack earlier
// ones of their transaction. The late scan counts while it is under way: a transaction that ended since it began may
// have shown records in the range that it is through with, from goal on.
func (g *group) hazard() int64 {
	h := int64(math.MaxInt64)
	for _, w := range g.walks {
		h = min(h, w.pos)
	}
	if g.late > g.stable && g.late < g.cursor {
		h = min(h, g.late)
	}
	if g.late > g.stable && g.goal < g.late {
		h = min(h, g.goal)
	}
	return h
}

// addWalk begins a walk over (from, to]. A walk that begins there and was not asked for yet serves, too. One whose read
// is under way does not: its snapshot may be older than the reason for this one.
func (g *group) addWalk(from, to int64) {
	if from >= to {
		return
	}
	for _, w := range g.walks {
		if w.pos == from && w.to >= to && !w.asked {
			return
		}
	}
	g.walks = append(g.walks, &walk{pos: from, to: to})
}

// jump moves the front to a sequence. A walk follows over the numbers before it.
func (g *group) jump(to, visible int64) {
	g.walks = append(g.walks, &walk{pos: g.stable, to: to})
	g.cursor = to
	g.stable = max(g.stable, min(visible, to))
	g.late = g.stable
}

// transactions takes in a read result's transactions, before its records. It returns the sequence up to which
// everything is visible. Each group that watches a transaction notes its own stable: the transaction held that back
// until now, so all its records are behind it.
func (d *Dispatcher) transactions(result *core.ReadResult) (visible int64) {
	watch, least := d.db.observe(result)
	ended := d.db.unwatch(result)
	for _, id := range watch {
		for _, rt := range d.routes {
			for _, g := range rt.groups {
				g.watch[id] = g.stable
			}
		}
	}
	visible, lastNotice := d.db.visible(result, least)
	d.notices.transactions(watch, ended, lastNotice)
	for _, rt := range d.routes {
		for _, id := range slices.Concat(ended, result.MaybeEndedTxs) {
			rt.walkFor(id, slices.Contains(ended, id))
		}
		if rt.Queue {
			rt.queue.transactions(watch, ended, visible, d.now)
		}
	}
	return visible
}

// walkFor begins walks over the records of a watched transaction that has ended, or may have. Then it is watched
// further: the result that is taken in can show its later records, and the walk finds the earlier ones, if there are
// any.
func (rt *route) walkFor(id int64, ended bool) {
	for _, g := range rt.groups {
		if from, ok := g.watch[id]; ok {
			if ended {
				delete(g.watch, id)
			}
			g.addWalk(from, max(g.cursor, 0))
			rt.pace.readAt = rt.now
			rt.overdue.all()
		}
	}
}

// lateDone moves stable: the late scan has ended, and all records that were visible when it began were read. A
// transaction that ended since is found by the next late scan.
func (g *group) lateDone() {
	g.stable = max(g.stable, min(g.goal, g.cursor))
	g.late = g.stable
}

// unresolved reports whether records may still appear behind the cursor.
func (g *group) unresolved() bool { return g.stable < g.cursor || len(g.walks) > 0 }

// merge joins groups of a route that are at the same place: each group costs ranges of its own in every read. The
// joined group takes the least of their bounds.
func (rt *route) merge(last int64) {
	var first *group
	rt.groups = slices.DeleteFunc(rt.groups, func(g *group) bool {
		if !g.loaded || g.loads || g.cursor < last || len(g.walks) > 0 || g.late > g.stable {
			return false
		}
		if first == nil || first.cursor != g.cursor {
			first = g
			return false
		}
		first.slots |= g.slots
		first.sweep, first.sweepAt = 0, time.Time{}
		first.complete, first.floor, first.loadAt = first.complete && g.complete, min(first.floor, g.floor), later(first.loadAt, g.loadAt)
		first.stable = min(first.stable, g.stable)
		first.late = first.stable
		for id, from := range g.watch {
			if old, ok := first.watch[id]; ok {
				from = min(from, old)
			}
			first.watch[id] = from
		}
		return true
	})
}

// slotHints are, by slot, the numbers behind which a member that takes over misses nothing.
type slotHints [core.NumSlots]int64

// note lowers those of slots.
func (l *slotHints) note(slots core.Slots, readAfter int64) {
	for s := range uint8(core.NumSlots) {
		if slots.Has(s) {
			l[s] = min(l[s], readAfter)
		}
	}
}

// of returns the hint with which slots are released.
func (l *slotHints) of(slots core.Slots) int64 {
	readAfter := int64(math.MaxInt64)
	for s := range uint8(core.NumSlots) {
		if slots.Has(s) {
			readAfter = min(readAfter, l[s])
		}
	}
	if readAfter == math.MaxInt64 {
		return 0
	}
	return max(readAfter, 0)
}

// slotHints goes over all that is remembered. A successor begins at the hint, so no record may be before it that is in
// memory, passed, or still to appear:
//
//   - of each group: the numbers up to which nothing can appear any more, forgotten keys, walks, and watched
//     transactions;
//   - items in memory, apart from records of a queue without a key: each Hold finds those;
//   - passed records of keys and of paused topics;
//   - records that are read again.
func (rt *route) slotHints() *slotHints {
	l := &slotHints{}
	for s := range l {
		l[s] = math.MaxInt64
	}
	for _, g := range rt.groups {
		readAfter := min(g.stable, g.cursor, g.floor)
		for _, w := range g.walks {
			readAfter = min(readAfter, w.pos)
		}
		for _, from := range g.watch {
			readAfter = min(readAfter, from)
		}
		l.note(g.slots, readAfter)
	}
	for seq, item := range rt.known {
		if s := item.Record.Slot; !rt.forAnyMember(item.Record.Envelope.Key) {
			l[s] = min(l[s], seq-1)
		}
	}
	for _, k := range rt.keys {
		if from := k.passedFrom(); from > 0 {
			l[k.slot] = min(l[k.slot], from-1)
		}
	}
	for _, p := range rt.topics.passed {
		l.note(core.AllSlots, p.from-1)
	}
	for seq, r := range rt.revisits.bySeq {
		l[r.slot] = min(l[r.slot], seq-1)
	}
	return l
}

// forget notes that a key that waits is forgotten, and that its records from a sequence on were passed; 0 = none.
func (g *group) forget(from int64) {
	g.complete, g.forgot = false, true
	if from > 0 {
		g.floor = min(g.floor, from-1)
	}
}

// beginLoad begins to read again all that waits, if there is room to remember it now.
func (g *group) beginLoad() {
	if rt := g.route; !g.loads && g.loaded && !g.complete && len(rt.keys) <= rt.opts.MaxKeys/2 && !rt.now.Before(g.loadAt) {
		g.loads, g.forgot, g.newlyOwnedAfter = true, false, 0
	}
}

// endLoad ends that. If all is remembered, the records of the keys that were forgotten are read once more.
func (g *group) endLoad() {
	rt := g.route
	g.loads, g.loadAt = false, rt.now.Add(loadEvery)
	for _, seq := range sortedSeqs(rt.revisits.bySeq) { // for the store they are ready
		if v := rt.revisits.bySeq[seq]; v.locked && g.slots.Has(v.slot) && v.key != "" && rt.ordered() {
			rt.blockKey(g, v.key, v.slot, seq, blockReasonLocked)
		}
	}
	if g.forgot {
		return
	}
	g.complete = true
	for _, k := range rt.keys {
		if k.asks && !k.anew && g.slots.Has(k.slot) {
			k.asks = false
		}
	}
	g.addWalk(g.floor, g.cursor)
	g.floor = math.MaxInt64
}
