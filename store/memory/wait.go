package memory

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.Waiter = (*Store)(nil)

// Wait blocks until there can be something to do on routes, a timer or a retry of them is due, limit has passed, or ctx
// ends. It needs no session. It returns at once until all owners of partitions of a route have read its new records and
// have asked for its due ones. For a route without owners it does so only once.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	alarm := time.NewTimer(max(limit, 0))
	defer alarm.Stop()
	start := time.Now()
	known := s.known(routes)
	for {
		signal, next, news := s.watch(known)
		if news {
			return core.WakeNotify, nil
		}
		if left := limit - time.Since(start); next < 0 || next > left {
			next = left
		}
		alarm.Reset(max(next, 0))
		select {
		case <-ctx.Done():
			return core.WakeStop, nil
		case <-alarm.C:
			s.ring(routes)
			return core.WakeLimit, nil
		case <-signal:
		}
	}
}

// known returns the versions of routes that their owners have seen.
func (s *Store) known(routes []string) map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make(map[string]uint64, len(routes))
	for _, name := range routes {
		known[name] = s.route(name).seen
	}
	return known
}

// watch reports whether a route has another version than the known one. Otherwise it returns the time until the next
// timer of the routes (negative: none) and a channel that is closed when either can have changed.
func (s *Store) watch(known map[string]uint64) (signal <-chan struct{}, next time.Duration, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	next = -1
	for name, version := range known {
		rt := s.route(name)
		if rt.version != version {
			news = true
			if !rt.served() {
				rt.seen = rt.version
			}
		}
		for _, x := range []*index{&rt.timers, &rt.retries} {
			if r := s.nextDue(rt, x); r != nil {
				if in := max(r.due.Sub(now), 0); next < 0 || in < next {
					next = in
				}
			}
		}
	}
	if !news {
		s.listened = true
	}
	return s.signal, next, news
}

// served reports whether a partition of the route has an owner.
func (rt *route) served() bool {
	return slices.ContainsFunc(rt.partitions, func(u *partition) bool { return u.Owner != 0 })
}

// nextDue returns the first record of an index by due time that no session holds, or nil. On an unserved route it
// leaves out records that a Wait has reported.
func (s *Store) nextDue(rt *route, x *index) *record {
	from := int64(math.MinInt64)
	if !rt.served() && !rt.rung.IsZero() {
		from = s.at(rt.rung)
	}
	for r := range x.after(from, math.MaxInt64) {
		if r.holder == 0 {
			return r
		}
	}
	return nil
}

// ring notes that a Wait has reported the due records of routes.
func (s *Store) ring(routes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, name := range routes {
		s.route(name).rung = now
	}
}

// looked notes that the member has looked at the ready records of the route.
func (s *Store) looked(m *member, route string) {
	rt := s.routes[route]
	if rt == nil || rt.seen == rt.version {
		return
	}
	m.seen[route] = rt.version
	for _, u := range rt.partitions {
		if o := s.members[u.Owner]; o != nil && o.seen[route] != rt.version {
			return
		}
	}
	rt.seen = rt.version
}

// changed tells waiting callers that r is ready, or waits for another time.
func (s *Store) changed(r *record) {
	switch {
	case r.ready(), r.waits() && !r.due.After(s.now()):
		s.news(r.route)
	case r.waits():
		s.retime()
	}
}

// news tells waiting callers that there can be something to do on the route.
func (s *Store) news(rt *route) {
	s.changes++
	rt.version = s.changes
	s.retime()
}

// retime tells waiting callers to look at the timers again.
func (s *Store) retime() {
	if s.listened {
		s.listened = false
		close(s.signal)
		s.signal = make(chan struct{})
	}
}
