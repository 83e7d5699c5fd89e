package checker

import "time"

// waiting is since when messages could have been handed out, from when everything works.
type waiting struct {
	calm    time.Time               // zero = not yet
	keys    map[[2]string]time.Time // when a key last moved
	paused  map[string]time.Time    // until when routes rest after an outage
	longest time.Duration
}

// Calm notes that from now on nothing fails: a due and free record is handed out within Options.Limit. A record is free
// if it waits for no retry of its own, for no other message of its key, and for no route that rests.
func (l *Ledger) Calm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note("calm")
	l.waiting.calm = l.opts.Now()
}

// Paused notes that some process publishes nothing on a route for d, since its broker was out of order.
func (l *Ledger) Paused(route string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note("route %s rests for %s", route, d)
	l.waiting.paused[route] = later(l.waiting.paused[route], l.opts.Now().Add(d))
}

// Longest returns for how long a message that was due and free has waited at most.
func (l *Ledger) Longest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.longest
}

// moves notes that something has happened to a message, and that it is due again after in.
func (l *Ledger) moves(m *message, in time.Duration) {
	m.free = l.opts.Now().Add(in)
	if m.key != "" && l.opts.Routes[m.Route].PerKey {
		k := [2]string{m.Route, m.key}
		l.waiting.keys[k] = later(l.waiting.keys[k], m.free)
	}
}

// waited notes that a message is handed out, and reports if it waited for too long.
func (l *Ledger) waited(m *message) {
	w := &l.waiting
	since := later(later(w.calm, m.due), later(m.free, w.paused[m.Route]))
	if l.opts.Routes[m.Route].PerKey && m.key != "" {
		since = later(since, w.keys[[2]string{m.Route, m.key}])
	}
	if d := l.opts.Now().Sub(since); !w.calm.IsZero() && d > 0 {
		w.longest = max(w.longest, d)
		if l.opts.Limit > 0 && d > l.opts.Limit {
			l.problem("late: %s/%s (key %q) was due and free for %s before it was handed out; the limit is %s", m.Route, m.ID, m.key, d, l.opts.Limit)
		}
	}
	l.moves(m, 0)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
