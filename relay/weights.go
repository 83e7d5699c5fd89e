package relay

import (
	"time"

	"github.com/waybill-go/waybill"
)

// lanes are the priority lanes of a route, and their parts of its capacity.
var lanes = [...]struct {
	lane waybill.Lane
	part int
}{{waybill.LaneHigh, 6}, {waybill.LaneNormal, 3}, {waybill.LaneLow, 1}}

// group is a set of routes with something in common: all routes without a limit, or the lanes and sub-routes of a
// limited route, which use the same tokens.
//
// Routes without a limit do not wait for each other if all have the same weight. Otherwise the routes with work divide
// one window of records in flight by their weights; a single one gets all of it. In a limited route the lane that got
// least by its part is next.
type group struct {
	routes   []*route
	limit    *bucket // nil = unbounded
	weighted bool    // the routes divide one window; false: each has a window of its own
	virtual  float64 // got of the route that was chosen last, before its records were added
}

// newGroups spreads routes over groups.
func newGroups(routes []*route, limits map[string]*bucket) []*group {
	common := &group{}
	groups := []*group{common}
	limited := map[string]*group{}
	for _, rt := range routes {
		g := common
		if b := limits[rt.base]; b != nil {
			if g = limited[rt.base]; g == nil {
				g = &group{limit: b}
				limited[rt.base], groups = g, append(groups, g)
			}
		}
		g.routes = append(g.routes, rt)
		g.weighted = g.weighted || rt.Lanes || rt.SubRoutes > 0 || rt.Weight != g.routes[0].Weight
		for _, k := range routes {
			if k.base == rt.base {
				rt.lanes = append(rt.lanes, k)
			}
		}
	}
	return groups
}

// handOut sends ready records of the routes of g. It returns when more may be sent; zero = after a result.
func (e *engine) handOut(g *group) (next time.Time) {
	if g.limit != nil {
		return e.handLimited(g)
	}
	for progress := true; progress; {
		progress = false
		for _, rt := range g.routes {
			if n := e.window(g, rt) - rt.out; n > 0 && e.feed(rt, n) > 0 {
				progress = true
			}
		}
	}
	return time.Time{}
}

// busy reports whether the route has more to send than it may send.
func (e *engine) busy(rt *route) bool {
	return !rt.handOutBlocked() && (e.d.Ready(rt.Name) > 0 || len(rt.keys.behindKey) > 0 || e.d.More(rt.Name))
}

// weight is the route's part of the group, compared with other busy routes. Lanes that are not busy leave their part to
// their siblings.
func (e *engine) weight(rt *route) float64 {
	parts := rt.part
	for _, k := range rt.lanes {
		if k != rt && e.busy(k) {
			parts += k.part
		}
	}
	return float64(rt.Weight*rt.part) / float64(parts)
}

// window is how many records of the route may be in calls.
func (e *engine) window(g *group, rt *route) int {
	window := e.opts.Window * e.opts.BatchSize
	if !g.weighted || !e.busy(rt) {
		return window
	}
	sum := 0.0
	for _, o := range g.routes {
		if e.busy(o) {
			sum += e.weight(o)
		}
	}
	return max(int(float64(window)*e.weight(rt)/sum), 1)
}

// handLimited sends ready records of the routes of a limited group, as its tokens allow. It returns when to go on. In
// each round the busy route with the least virtual time (got) is next, and its virtual time grows by the number of
// records sent, divided by its weight. A route that rested begins at the virtual time of the group, so that it cannot
// catch up on the time when it had no work.
func (e *engine) handLimited(g *group) time.Time {
	stuck := map[*route]bool{}
	for {
		var rt *route
		ready := 0
		for _, r := range g.routes {
			if stuck[r] || !e.busy(r) || !e.mayHand(r) {
				continue
			}
			ready += e.d.Ready(r.Name)
			if r.got = max(r.got, g.virtual); rt == nil || r.got < rt.got {
				rt = r
			}
		}
		if rt == nil {
			return time.Time{}
		}
		n, at := g.limit.take(e.now, max(ready, 1))
		if n == 0 {
			return at
		}
		g.virtual = rt.got
		weight := e.weight(rt)
		sent := e.feed(rt, min(n, rt.maxCall))
		if sent == 0 {
			stuck[rt] = true
			continue
		}
		rt.got += float64(sent) / weight
		g.limit.tokens -= float64(sent)
	}
}
