package relay

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// serves reports whether the relay serves a route.
func (r *Relay) serves(route string) bool {
	return slices.ContainsFunc(r.routes, func(rt served) bool { return rt.Name == route })
}

// neglected is a route that the relay does not serve and that has due records.
type neglected struct {
	route   string
	waiting int64
	oldest  time.Duration
}

// unserved finds the neglected routes with a record that is due for longer than StaleAfter.
func (r *Relay) unserved(counts []admin.Count) (out []neglected) {
	byRoute := map[string]neglected{}
	for i := range counts {
		n := &counts[i]
		if n.State != core.StatePending && n.State != core.StateFailed || r.serves(n.Route) {
			continue
		}
		l := byRoute[n.Route]
		byRoute[n.Route] = neglected{n.Route, l.waiting + n.N, max(l.oldest, n.Oldest)}
	}
	for _, name := range slices.Sorted(maps.Keys(byRoute)) {
		if l := byRoute[name]; l.oldest > r.opts.StaleAfter {
			out = append(out, l)
		}
	}
	return out
}

// hint describes what waits, and the likely cause.
func (n *neglected) hint(r *Relay) string {
	s := fmt.Sprintf("%d waiting, the oldest due one for %s", n.waiting, round(n.oldest))
	for i := range r.routes {
		if rt := &r.routes[i]; n.route != rt.base && waybill.BaseRoute(n.route) == rt.base && strings.HasPrefix(n.route, rt.base+"#") {
			return s + fmt.Sprintf(": a sub-route; set SubRoutes of route %s, which is %d, to what the producers use", rt.base, rt.SubRoutes)
		}
		for _, l := range lanes[:] {
			if !r.routes[i].Lanes && waybill.LaneRoute(r.routes[i].Name, l.lane) == n.route {
				return s + ": a priority lane; set Lanes of route " + r.routes[i].Name
			}
		}
	}
	return s
}
