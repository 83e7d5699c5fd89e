package check

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// TTL returns the problems of a store's time to live and of those of its routes.
func TTL(ttl time.Duration, routes map[string]time.Duration) (p []string) {
	if ttl < 0 {
		p = append(p, fmt.Sprintf("TTL: %s is negative; 0 means none", ttl))
	}
	for _, route := range slices.Sorted(maps.Keys(routes)) {
		switch s := Name(route); {
		case route == "":
			p = append(p, "RouteTTL: a route has no name; the default one is \"default\"")
		case s != "":
			p = append(p, "RouteTTL: the route "+s)
		case routes[route] == 0:
			p = append(p, fmt.Sprintf("RouteTTL: %q has 0; give it a time, a negative one for none, or leave it out for TTL", Clip(route, 80)))
		}
	}
	return p
}
