package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// recall takes back what is ready of the key of it and behind it, so that it is handed out after it.
func (d *Dispatcher) recall(it *Item) {
	k, rt := it.key, it.route
	if k == nil {
		return
	}
	for seq, o := range rt.known {
		if o.key != k || o == it || seq < it.Record.Seq {
			continue
		}
		is := func(w *Item) bool { return w == o }
		switch o.state {
		case itemReady:
			rt.ready = slices.DeleteFunc(rt.ready, is)
		case itemWanting:
			rt.wants = slices.DeleteFunc(rt.wants, is)
		case itemSuspect:
			d.suspects = slices.DeleteFunc(d.suspects, is)
		case itemQueued, itemOut, itemSettling:
			continue
		}
		d.window = slices.DeleteFunc(d.window, is)
		o.state, o.Suspect, o.alone = itemQueued, false, false
		rt.held--
		k.busy--
		k.insert(o)
	}
}

// SetHanding says whether records of a route are handed out now. While they are not, no suspect of it keeps others
// waiting.
func (d *Dispatcher) SetHanding(route string, handing bool) {
	if rt := d.byName[route]; rt != nil {
		rt.shut = !handing
	}
}

// Idle reports that everything of a route was read that could be, and that no read of it is due or under way. What is
// staged from now on is found at the next poll, or after a Wake.
func (d *Dispatcher) Idle(now time.Time, route string) bool {
	rt := d.byName[route]
	if rt == nil || !d.joined || d.reading != nil && slices.Contains(d.readFor, rt) {
		return false
	}
	return len(rt.groups) > 0 && d.routeRoom(rt) > 0 && d.routeDue(rt).After(now)
}

// Unsettled returns how many outcomes wait to be stored, as far as no call is under way with them.
func (d *Dispatcher) Unsettled() int {
	if d.settling != nil {
		return len(d.pending) + 1
	}
	return len(d.pending)
}

// More reports that there is more of a route to read.
func (d *Dispatcher) More(route string) bool {
	rt := d.byName[route]
	return rt != nil && (rt.more || len(rt.toRead) > 0)
}

// Resting reports that the member owns what it can get, has read all of it, holds nothing, and that nothing of it is
// due. What waits on barred routes does not count: nothing of these is to be handed out now.
func (d *Dispatcher) Resting(barred []string) bool {
	if !d.joined || d.meeting != nil || d.reading != nil || d.taking != nil || d.dueing != nil || d.settling != nil || len(d.giving) > 0 || !d.dueSeen ||
		len(d.moves)+len(d.removals)+len(d.pending)+len(d.heeded) > 0 {
		return false
	}
	for i := range d.roster.Units {
		if o := &d.roster.Units[i]; o.Owner == 0 && d.byName[o.Unit.Route] != nil {
			return false
		}
	}
	return !slices.ContainsFunc(d.routes, func(rt *route) bool { return !d.rests(rt, slices.Contains(barred, rt.Name)) })
}

func (d *Dispatcher) rests(rt *route, barred bool) bool { //nolint:revive // a fact
	if barred {
		for _, it := range rt.known {
			if it.state == itemOut || it.state == itemSettling {
				return false
			}
		}
		return true
	}
	return !rt.more && len(rt.toRead)+len(rt.known) == 0 && !rt.unresolved() &&
		!slices.ContainsFunc(rt.groups, func(g *group) bool { return !g.loaded || g.cursor < d.last })
}

// Elsewhere returns the units of the member's routes that others own, by owner.
func (d *Dispatcher) Elsewhere() map[core.Session]int {
	owners := map[core.Session]int{}
	for i := range d.roster.Units {
		if o := &d.roster.Units[i]; o.Owner != 0 && o.Owner != d.session && d.byName[o.Unit.Route] != nil {
			owners[o.Owner]++
		}
	}
	return owners
}
