package relay

import (
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
)

// Pause stops a route: when Pause returns, nothing more of it is sent. A publish in progress finishes. Another relay
// that serves the route takes over this relay's partitions of it. The pause holds until Resume, over the end of a Run
// too, for this relay only. The name of a route stands for all its lanes and sub-routes, too; [waybill.LaneRoute] and
// [waybill.NthSubRoute] name one. Pausing twice is pausing once. An unknown route is an [*waybill.InvalidError]. It is
// safe for concurrent use, also from hooks, before and during Run.
func (r *Relay) Pause(route string) error { return r.setPaused("pause", route, true) }

// Resume ends a Pause; see there.
func (r *Relay) Resume(route string) error { return r.setPaused("resume", route, false) }

// setPaused pauses or resumes a route, or all its lanes.
func (r *Relay) setPaused(what, route string, paused bool) error {
	r.mu.Lock()
	known := false
	var names []string
	for i := range r.routes {
		if rt := &r.routes[i]; rt.Name == route || rt.base == route {
			known = true
			r.paused[rt.Name] = paused
		} else if !slices.Contains(names, rt.base) {
			names = append(names, rt.base)
		}
	}
	e := r.engine
	r.mu.Unlock()
	if !known {
		return waybill.Invalid("waybill/relay: "+what, fmt.Sprintf("route %q: this relay does not serve it; it serves %s", route, strings.Join(names, ", ")))
	}
	if e != nil {
		e.ask(nil, e.applyPauses)
	}
	return nil
}

// applyPauses takes over what Pause and Resume have set.
func (e *engine) applyPauses() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, rt := range e.order {
		paused := e.paused[rt.Name]
		if paused == rt.paused {
			continue
		}
		rt.paused = paused
		if paused {
			e.freeBehindKey(rt)
			e.log.Info("route paused", "event", "relay.pause", "route", rt.Name)
			continue
		}
		e.log.Info("route resumed", "event", "relay.resume", "route", rt.Name)
	}
}
