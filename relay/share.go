package relay

import (
	"time"

	"github.com/waybill-go/waybill/core"
)

// lanes are the priority lanes of a route and their parts of it.
var lanes = [...]struct {
	lane core.Lane
	part int
}{{core.LaneHigh, 6}, {core.LaneNormal, 3}, {core.LaneLow, 1}}

// unit is routes that share claims: all those without a limit, or those of one limited route.
//
// If all its routes are equal, a claim asks for all of them at once, and the store gives each a fair share. Otherwise a
// route of which a claim left something behind is busy. A claim then asks for one busy route, the one whose turn it is, and
// for all that are not busy: mostly these are empty, and what one of them has is found at once.
type unit struct {
	routes   []*route
	limit    *bucket // nil = unbounded
	weighted bool
	turn     float64 // the virtual time: the count of the busy route that was chosen last

	suspects  bool      // a suspect of it waits to be claimed alone
	wakeAt    time.Time // not before: nothing was due; zero = now
	wokenBy   time.Time // what came up while a claim was in progress
	empties   int       // claims in a row that brought nothing
	hasty     int       // of these, the ones that followed at once
	lastClaim time.Time
}

// newUnits spreads routes over units.
func newUnits(routes []*route, limits map[string]*bucket) []*unit {
	common := &unit{}
	var units []*unit
	limited := map[string]*unit{}
	for _, rt := range routes {
		u := common
		if b := limits[rt.base]; b != nil {
			if u = limited[rt.base]; u == nil {
				u = &unit{limit: b}
				limited[rt.base], units = u, append(units, u)
			}
		}
		rt.unit = u
		u.routes = append(u.routes, rt)
		u.weighted = u.weighted || rt.Lanes || rt.Weight != u.routes[0].Weight
	}
	for _, rt := range routes {
		for _, k := range rt.unit.routes {
			if k.base == rt.base {
				rt.kin = append(rt.kin, k)
			}
		}
	}
	if len(common.routes) > 0 {
		units = append(units, common)
	}
	return units
}

// wakeBy makes the unit's next claim happen at t, if it was planned for later.
func (e *engine) wakeBy(u *unit, t time.Time) {
	if t.Before(u.wakeAt) {
		u.wakeAt = t
	}
	if e.claiming { // its answer must not put this off
		u.wokenBy = earliest(u.wokenBy, t)
	}
}

// barred reports whether nothing of the route is to be claimed for now.
func (rt *route) barred() bool { return rt.paused || !rt.breaker.closed() }

// share is how much of the unit the route is to get, in comparison with other busy routes. Lanes that are not busy leave
// their part to their siblings.
func (rt *route) share() float64 {
	parts := rt.part
	for _, k := range rt.kin {
		if k != rt && k.busy {
			parts += k.part
		}
	}
	return float64(rt.Weight*rt.part) / float64(parts)
}

// window is how many records of the route may be held, and step the least that is worth a claim. Busy routes of a
// weighted unit divide one window between them, so that they share what the publisher can do, too.
func (e *engine) window(rt *route) (window, step int) {
	window = e.opts.Window * e.opts.BatchSize
	if rt.unit.weighted && rt.busy {
		sum := 0.0
		for _, o := range rt.unit.routes {
			if o.busy {
				sum += o.share()
			}
		}
		window = max(int(float64(window)*rt.share()/sum), 1)
	}
	return window, max(window/e.opts.Window, 1)
}

// hasRoom reports whether the window of a busy route has room for a claim that is worth it.
func (e *engine) hasRoom(rt *route) bool {
	window, step := e.window(rt)
	return rt.held+step <= window
}

// choose returns the busy route whose turn it is, or nil: the one that got least so far of those that have room.
func (e *engine) choose(u *unit) *route {
	var best *route
	for _, rt := range u.routes {
		if rt.busy && rt.barred() {
			rt.busy = false
		}
	}
	for _, rt := range u.routes {
		if !rt.busy {
			continue
		}
		if !e.hasRoom(rt) {
			continue
		}
		rt.count = max(rt.count, u.turn) // who waited for room has no claim on what others got meanwhile
		if best == nil || rt.count < best.count {
			best = rt
		}
	}
	if best != nil {
		u.turn = best.count
	}
	return best
}

// plan fills in what to claim for u now. If that is nothing, it returns when to look again.
func (e *engine) plan(u *unit, req *core.ClaimRequest) (next time.Time) {
	if !u.weighted && e.now.Before(u.wakeAt) {
		return u.wakeAt
	}
	if u.limit != nil && !req.Alone {
		room, at := u.limit.room(e.now, u.unsent(), e.opts.BatchSize)
		if room == 0 {
			return at
		}
		req.MaxRecords = min(req.MaxRecords, room)
	}
	var chosen *route
	if u.weighted && !req.Alone {
		chosen = e.choose(u)
		if chosen == nil && e.now.Before(u.wakeAt) {
			return u.wakeAt
		}
	}
	for _, rt := range u.routes {
		if rt.barred() || rt.busy && rt != chosen && !req.Alone {
			continue
		}
		if rt != chosen {
			if rt.starved = rt.held > (e.opts.Window-1)*e.opts.BatchSize; rt.starved {
				continue
			}
		}
		o := rt.claimOrder((*breaker).bars)
		o.SkipKeys = e.deepLanes(rt)
		req.Routes = append(req.Routes, o)
	}
	if chosen != nil {
		window, _ := e.window(chosen)
		req.MaxRecords = min(req.MaxRecords, window-chosen.held)
	}
	return time.Time{}
}

// classify finds out from a claim which routes of the unit are busy, and counts what they got. It reports whether the
// claim had more because of busy routes.
func (e *engine) account(req *core.ClaimRequest, claim *core.Claim) (busy bool) {
	for i := range claim.Records {
		if rt := e.routes[claim.Records[i].Route]; rt != nil {
			rt.got++
		}
	}
	n := len(claim.Records)
	for i := range req.Routes {
		rt := e.routes[req.Routes[i].Route]
		// A store divides what it may return: who got less than its part has no more, unless the bytes were up.
		// Of who got nothing of a claim with fewer records than routes, nothing new is known.
		part := req.MaxRecords / len(req.Routes)
		rt.busy = claim.More && (rt.got > 0 && (rt.got >= part || n < req.MaxRecords) || rt.got == 0 && part == 0 && rt.busy)
		busy = busy || rt.busy
	}
	for i := range req.Routes {
		rt := e.routes[req.Routes[i].Route]
		rt.count = max(rt.count, rt.unit.turn) + float64(rt.got)/rt.share()
		rt.got = 0
	}
	return busy
}

// idle reports whether rt waits for the store's news: it can be claimed, and its latest claim left nothing.
func (rt *route) idle() bool { return !rt.barred() && !rt.busy && !rt.starved }
