package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// watchAfter is how long a transaction may hold the late range back. Then it is watched by itself.
	watchAfter = time.Second
	// maxWatched bounds the watched transactions. Beyond it they hold the late range back.
	maxWatched = 1000
	// step is how many numbers a range covers at once where rows may be dead.
	step = 50_000
	// againAfter is when a record that another holds is read again.
	againAfter = time.Second
	// maxHorizons bounds what is remembered of pages; beyond it the newest two become one.
	maxHorizons = 4096
)

// group is slots of a route that are read from one place.
type group struct {
	route *route
	slots core.Slots
	// loaded: what waited in its units is known. Nothing is handed out before.
	loaded     bool
	afterFresh int64
	// cursor: the front has passed everything up to it. low: nothing up to it can appear any more, but for watched
	// transactions.
	cursor, low int64
	// late is the pass over (low, cursor] under way; goal is what low becomes at its end.
	late, goal int64
	hazards    int64 // hazard for the page that is taken in
	walks      []*walk
	watch      map[int64]int64 // by watched mark: what it may show has greater sequences
	// The sweep under way, and when it made its latest step.
	sweep          int64
	sweepAt, swept time.Time
}

// walk is a second pass over a range, because something may have appeared in it.
type walk struct{ pos, to int64 }

// horizon is what a page said about what it could not show: transactions with a mark below upper may show numbers up
// to last.
type horizon struct{ last, upper int64 }

// addSlots makes a group of units that the member has just got.
func (d *Dispatcher) addSlots(rt *route, slots core.Slots, low int64) {
	if d.distrust { // the hint may be of another life of the database
		low = 0
	}
	for _, c := range d.heeding { // it is about these slots, too, and is deleted for them with the others
		if c.Kind == core.ControlFrom && c.Route == rt.Name {
			low = min(low, max(c.Seq-1, 0))
		}
	}
	g := &group{route: rt, slots: slots, cursor: low, low: low, late: low, watch: map[int64]int64{}}
	for m := range d.watched {
		g.watch[m] = low // the hint is below whatever its transactions may show
	}
	rt.groups = append(rt.groups, g)
	rt.readAt = d.now
	d.adopt(rt, slots)
}

// adopt joins what is still out of slots that come back to the keys.
func (d *Dispatcher) adopt(rt *route, slots core.Slots) {
	for _, seq := range sortedSeqs(rt.known) {
		it := rt.known[seq]
		if !slots.Has(it.Record.Slot) || it.key != nil || !rt.ordered() || it.Record.Envelope.Key == "" {
			continue
		}
		k := rt.key(it.Record.Envelope.Key, it.Record.Slot)
		it.key = k
		if it.state == itemSettling {
			k.limbo = append(k.limbo, it)
		} else {
			k.busy++
		}
	}
}

// hazard returns the least position of a pass that stands in a group: what is behind it may lack earlier records. The
// late pass is one while it goes on; what has ended since it began may be in what it has passed, from goal on.
func (g *group) hazard() int64 {
	h := int64(math.MaxInt64)
	for _, w := range g.walks {
		h = min(h, w.pos)
	}
	if g.late > g.low && g.late < g.cursor {
		h = min(h, g.late)
	}
	if g.late > g.low && g.goal < g.late {
		h = min(h, g.goal)
	}
	return h
}

// addWalk begins a walk over (from, to].
func (g *group) addWalk(from, to int64) {
	if from >= to {
		return
	}
	for _, w := range g.walks {
		if w.pos == from && w.to >= to {
			return
		}
	}
	g.walks = append(g.walks, &walk{from, to})
}

// marks takes in what page says about transactions, before its records are. It returns the greatest sequence up to
// which everything is visible.
func (d *Dispatcher) marks(page *core.Page) (visible int64) {
	for m := range d.running {
		if m < page.Next && !slices.Contains(page.Running, m) {
			delete(d.running, m)
		}
	}
	least := page.Next
	for _, m := range page.Running {
		since, ok := d.running[m]
		if !ok {
			since = d.now
			d.running[m] = since
		}
		if !d.watched[m] && d.now.Sub(since) >= watchAfter && len(d.watched) < maxWatched {
			d.watched[m] = true
			for _, rt := range d.routes {
				for _, g := range rt.groups {
					g.watch[m] = g.low
				}
			}
		}
		if !d.watched[m] {
			least = min(least, m)
		}
	}
	for m := range d.watched {
		if m < page.Next && !slices.Contains(page.Running, m) {
			delete(d.watched, m)
			for _, rt := range d.routes {
				for _, g := range rt.groups {
					if from, ok := g.watch[m]; ok {
						delete(g.watch, m)
						g.addWalk(from, max(g.cursor, 0))
						rt.readAt = d.now
					}
				}
			}
		}
	}
	if upper := page.Upper; upper > 0 {
		if !d.has(ruleUpper) {
			upper = page.Next
		}
		if n := len(d.horizons); n >= maxHorizons {
			d.horizons[n-1] = horizon{page.Last, upper}
		} else {
			d.horizons = append(d.horizons, horizon{page.Last, upper})
		}
	}
	n := 0
	for n < len(d.horizons) && d.horizons[n].upper <= least {
		n++
	}
	if n > 0 {
		visible = d.horizons[n-1].last
		d.horizons = d.horizons[n-1:] // the last that is resolved stays: it says what is visible
	}
	return visible
}

// passDone moves low: the late pass is at its end, and all that was visible when it began was read.
func (g *group) passDone() {
	g.low = max(g.low, min(g.goal, g.cursor))
	g.late = g.low
}

// unresolved reports whether something may still appear behind the cursor.
func (g *group) unresolved() bool { return g.low < g.cursor || len(g.walks) > 0 }

// merge joins groups of a route that stand at the same place.
func (rt *route) merge(last int64) {
	var first *group
	rt.groups = slices.DeleteFunc(rt.groups, func(g *group) bool {
		if !g.loaded || g.cursor < last || len(g.walks) > 0 || g.late > g.low {
			return false
		}
		if first == nil || first.cursor != g.cursor {
			first = g
			return false
		}
		first.slots |= g.slots
		first.sweep, first.sweepAt = 0, time.Time{}
		first.low = min(first.low, g.low)
		first.late = first.low
		for m, from := range g.watch {
			if old, ok := first.watch[m]; ok {
				from = min(from, old)
			}
			first.watch[m] = from
		}
		return true
	})
}

// lowest returns the hint with which slots of a route are handed on: whoever begins behind it misses nothing.
func (d *Dispatcher) lowest(rt *route, slots core.Slots) int64 {
	low := int64(math.MaxInt64)
	for _, g := range rt.groups {
		if g.slots&slots == 0 {
			continue
		}
		if !d.has(ruleHint) {
			low = min(low, g.cursor)
			continue
		}
		low = min(low, g.low, g.cursor)
		for _, w := range g.walks {
			low = min(low, w.pos)
		}
		for _, from := range g.watch {
			low = min(low, from)
		}
	}
	for seq, it := range rt.known {
		if slots.Has(it.Record.Slot) && !rt.anyones(it.Record.Envelope.Key) {
			low = min(low, seq-1)
		}
	}
	for _, k := range rt.keys {
		if slots.Has(k.slot) && k.resume > 0 {
			low = min(low, k.resume-1)
		}
	}
	for _, seq := range rt.passed {
		low = min(low, seq-1)
	}
	for seq, r := range rt.again {
		if slots.Has(r.slot) {
			low = min(low, seq-1)
		}
	}
	if low == math.MaxInt64 {
		return 0
	}
	return max(low, 0)
}
