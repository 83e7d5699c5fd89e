package memory

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.Waiter = (*Store)(nil)

// calm is the least time between two wake-ups without anything new in between. Without it the records of an owner that
// has died would wake the other relays again and again, until its lease ends.
const calm = 100 * time.Millisecond

// Wait blocks until there can be something to do on routes, a timer or a retry of them is due, limit has passed, or ctx
// ends. It needs no session. News ends all Waits at once. Until the owners of the partitions have read new records and
// taken due ones, Waits end every 100 ms. For a route without owners only one does.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	alarm := time.NewTimer(max(limit, 0))
	defer alarm.Stop()
	start := time.Now()
	known := s.known(routes)
	for {
		signal, next, news := s.watch(known)
		if news {
			s.ring(routes)
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
			_, _, news := s.watch(known)
			s.ring(routes)
			if news {
				return core.WakeNotify, nil
			}
			return core.WakeLimit, nil
		case <-signal:
		}
	}
}

// versions are those of a route when a Wait begins: the present one, and the one that all owners have seen.
type versions struct{ now, seen uint64 }

func (s *Store) known(routes []string) map[string]versions {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := make(map[string]versions, len(routes))
	for _, name := range routes {
		rt := s.route(name)
		known[name] = versions{rt.version, rt.seen}
	}
	return known
}

// watch reports whether a route has another version than the known one. Otherwise it returns the time until the next
// timer of the routes (negative: none) and a channel that is closed when either can have changed.
func (s *Store) watch(known map[string]versions) (signal <-chan struct{}, next time.Duration, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	next = -1
	for name, v := range known {
		rt := s.route(name)
		switch {
		case rt.version == v.seen:
		case rt.version == v.now && rt.served() && !s.remind(rt, now):
			next = sooner(next, rt.remindedAt.Add(calm).Sub(now))
		default:
			news = true
			if !rt.served() {
				rt.seen = rt.version
			}
		}
		for _, x := range []*index{&rt.timers, &rt.retries} {
			next = sooner(next, s.dueIn(rt, x, now))
		}
	}
	if !news {
		s.listened = true
	}
	return s.signal, next, news
}

// sooner returns the lesser of two durations that are not negative.
func sooner(a, b time.Duration) time.Duration {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// remind reports whether a Wait that begins behind the news of a route is to end now: as often at once as there are
// members, since a Wait does not say whose it is, and then after [calm].
func (s *Store) remind(rt *route, now time.Time) bool {
	if rt.reminded != rt.version || now.Sub(rt.remindedAt) >= calm {
		rt.reminded, rt.remindedAt, rt.reminders = rt.version, now, 0
	}
	rt.reminders++
	return rt.reminders <= max(len(s.members), 1)
}

// served reports whether a partition of the route has an owner.
func (rt *route) served() bool {
	return slices.ContainsFunc(rt.partitions, func(u *partition) bool { return u.Owner != 0 })
}

// dueIn returns the time until a Wait is to report the next record of an index by due time; negative = never. A record
// that was reported is reported again after [calm], and never on a route without owners.
func (s *Store) dueIn(rt *route, x *index, now time.Time) time.Duration {
	if rt.rung.IsZero() {
		return until(free(x, math.MinInt64), now)
	}
	next := until(free(x, s.at(rt.rung)), now)
	if first := free(x, math.MinInt64); first != nil && !first.due.After(rt.rung) && rt.served() {
		next = sooner(next, max(rt.rung.Add(calm).Sub(now), 0))
	}
	return next
}

// free returns the first record behind from that no session holds, or nil.
func free(x *index, from int64) *record {
	for r := range x.after(from, math.MaxInt64) {
		if r.holder == 0 {
			return r
		}
	}
	return nil
}

// until returns the time until a record is due; negative without one.
func until(r *record, now time.Time) time.Duration {
	if r == nil {
		return -1
	}
	return max(r.due.Sub(now), 0)
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
