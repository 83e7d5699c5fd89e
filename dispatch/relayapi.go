package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core/outbox"
)

// Recall takes back what is ready of the key of it and behind it, so that it is handed out after it. Whoever gets several
// records of a key at once calls it before he concludes one with anything but success, the last of them first.
func (d *Dispatcher) Recall(it *Item) {
	k, rt := it.key, it.route
	if k == nil || it.state != itemOut || it.session != d.session {
		return
	}
	rt.ready = slices.DeleteFunc(rt.ready, func(o *Item) bool {
		if o.key != k || o.Record.Seq < it.Record.Seq {
			return false
		}
		d.window = slices.DeleteFunc(d.window, func(w *Item) bool { return w == o })
		o.state, o.Suspect, o.alone = itemQueued, false, false
		rt.held--
		k.busy--
		k.insert(o)
		return true
	})
}

// Idle reports that everything of a route was read that could be, and that no read of it is due. What is staged from now on
// is found at the next poll, or after a Wake.
func (d *Dispatcher) Idle(now time.Time, route string) bool {
	rt := d.byName[route]
	return rt != nil && d.joined && d.reading == nil && len(rt.groups) > 0 && d.routeRoom(rt) > 0 && d.routeDue(rt).After(now)
}

// RestingBut is Resting without regard to what waits on some routes, of which nothing is to be handed out now.
func (d *Dispatcher) RestingBut(barred []string) bool {
	if len(barred) == 0 {
		return d.Resting()
	}
	if !d.joined || d.reading != nil || d.taking != nil || d.dueing != nil || d.settling != nil || d.giving != nil || !d.dueSeen ||
		len(d.moves)+len(d.removals)+len(d.pending)+len(d.heeded) > 0 {
		return false
	}
	for i := range d.roster.Units {
		if o := &d.roster.Units[i]; o.Owner == 0 && d.byName[o.Unit.Route] != nil {
			return false
		}
	}
	return !slices.ContainsFunc(d.routes, func(rt *route) bool {
		if !slices.Contains(barred, rt.Name) {
			return rt.more || len(rt.toRead)+len(rt.known) > 0 || rt.unresolved() || slices.ContainsFunc(rt.groups, func(g *group) bool { return !g.loaded })
		}
		for _, it := range rt.known {
			if it.state == itemOut || it.state == itemSettling {
				return true
			}
		}
		return false
	})
}

// Elsewhere returns the units of the member's routes that others own, by owner.
func (d *Dispatcher) Elsewhere() map[outbox.Session]int {
	owners := map[outbox.Session]int{}
	for i := range d.roster.Units {
		if o := &d.roster.Units[i]; o.Owner != 0 && o.Owner != d.session && d.byName[o.Unit.Route] != nil {
			owners[o.Owner]++
		}
	}
	return owners
}
