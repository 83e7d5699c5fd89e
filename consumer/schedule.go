package consumer

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/chance"
)

//   a message             | where                          | until
//   ----------------------|--------------------------------|------------------------------------------
//   is ready              | ready, or its group's queue    | a handler is free
//   waits for its key     | behind, in keys                | the head of its key is done
//   runs                  | head of its key                | its handler returns
//   waits for its retry   | delayed, head of its key       | the delay is over (in order only)
//   is being stored       | head of its key                | the transport has its retry or parking
//   is a suspect          | suspects, a nil in ready       | nothing else runs, waits or is unsettled

// schedule keeps messages that have not begun, and says which may run. One message of a key runs at a time; the others
// wait in the key's queue. It knows only keys with messages in progress. It has neither a goroutine nor a lock: the
// runner's mu guards it. A message counts in its entry (h.waiting) from add until it begins or goes back.
type schedule struct {
	ready    fifo                  // messages that may run, in the order of arrival; nil stands for one of suspects
	suspects []*message            // messages that must run alone
	alone    bool                  // a suspect runs
	keys     map[string]keyQueue   // the keys in progress
	behind   int                   // how many wait behind the head of their key
	delayed  map[*message]struct{} // messages that wait for their retry in place
	inOrder  bool                  // the order of a key holds up to the handler
	seq      uint64                // of the latest arrival
	yields   map[string]*yielding  // the keys whose messages go back
	groups   *groups               // ready messages that their group's limit stops; nil without such a limit
}

// keyQueue holds the messages of one key that are in progress.
type keyQueue struct {
	head   *message   // it is ready, runs, waits for its retry in place, or its verdict is being stored
	behind []*message // messages behind the head, in the order of arrival
}

// add takes in a delivery: it is ready at once, or waits behind the others of its key, also behind one that is delayed.
func (s *schedule) add(m *message) {
	s.seq++
	m.seq = s.seq
	m.h.waiting++
	if key := m.key(); key != "" {
		if q, busy := s.keys[key]; busy {
			q.behind = append(q.behind, m)
			s.keys[key] = q
			s.behind++
			return
		}
		s.keys[key] = keyQueue{head: m}
	}
	s.push(m)
}

// push makes m ready.
func (s *schedule) push(m *message) {
	if m.suspect {
		s.suspects = append(s.suspects, m)
		m = nil
	}
	s.ready.push(m)
}

// isolate chooses the suspect to run next. It returns the other messages, which must be released first. If there are
// none, the suspect is taken out and counts as running alone. The choice is random: a released message may come again
// at once and be counted, and this way every suspect gets its chance before it is parked.
func (s *schedule) isolate(at int) (suspect *message, others []*message) {
	suspect = s.suspects[chance.N(len(s.suspects))]
	if s.ready.len() > 1 || s.behind > 0 || len(s.delayed) > 0 || s.groups != nil && s.groups.waiting > 0 {
		others = slices.DeleteFunc(s.takeAll(), func(m *message) bool { return m == suspect })
		s.add(suspect)
		return suspect, others
	}
	s.ready.remove(at)
	s.suspects, s.alone = nil, true
	return suspect, nil
}

// delay keeps m, which no longer runs, until wake: it waits for its retry in place, with its key behind it. The broker
// is not asked: it would deliver later messages of the key.
func (s *schedule) delay(m *message) {
	if s.delayed == nil {
		s.delayed = map[*message]struct{}{}
	}
	s.delayed[m] = struct{}{}
	m.h.waiting++
	if key := m.key(); key != "" {
		q := s.keys[key]
		q.head = m
		s.keys[key] = q
	}
}

// keep leaves the key with m, which no longer runs, until m's verdict is stored. Otherwise the next of its key could
// end before the retry of m is known to the broker.
func (s *schedule) keep(m *message) {
	m.storing = true
	if key := m.key(); key != "" {
		q := s.keys[key]
		q.head = m
		s.keys[key] = q
	}
}

// isDelayed reports whether m waits for its retry in place.
func (s *schedule) isDelayed(m *message) bool {
	_, ok := s.delayed[m]
	return ok
}

// wake makes m ready, which waited for its retry. It reports whether m was still there.
func (s *schedule) wake(m *message) bool {
	if !s.isDelayed(m) {
		return false
	}
	delete(s.delayed, m)
	s.push(m)
	return true
}

// putBack puts messages back behind their head.
func (s *schedule) putBack(head *message, taken []*message) {
	if len(taken) == 0 {
		return
	}
	for _, m := range taken {
		m.h.waiting++
	}
	s.behind += len(taken)
	q := s.keys[head.key()]
	q.behind = append(taken, q.behind...)
	s.keys[head.key()] = q
}

// advance makes the next one of its key ready, if m is the head.
func (s *schedule) advance(m *message) {
	key := m.key()
	if key == "" {
		return
	}
	q := s.keys[key]
	switch {
	case q.head != m:
	case len(q.behind) == 0:
		delete(s.keys, key)
	default:
		next := q.behind[0]
		q.behind[0] = nil
		s.keys[key] = keyQueue{head: next, behind: q.behind[1:]}
		s.behind--
		s.push(next)
	}
}

// takeAll removes and returns all messages that do not run, in the order of arrival. If the order is kept, it leaves
// those behind a running one: that one may have to go back first. It goes over the ready ones, those of groups, the
// suspects and the delayed ones, with all behind them in their keys. Then come those behind messages that run: their
// keys stay, with the head alone.
func (s *schedule) takeAll() []*message {
	all := make([]*message, 0, s.ready.len()+s.behind+len(s.delayed))
	for s.ready.len() > 0 {
		if m := s.ready.pop(); m != nil {
			if m.place != nil {
				m.place.woken = false
			}
			all = append(all, m)
		}
	}
	if s.groups != nil {
		all = s.groups.takeAll(all, time.Now())
	}
	all = append(all, s.suspects...)
	s.suspects = nil
	for m := range s.delayed {
		m.retry.Stop()
		all = append(all, m)
	}
	clear(s.delayed)
	for _, head := range all { // no message of their keys runs
		if key := head.key(); key != "" {
			all = append(all, s.keys[key].behind...)
			delete(s.keys, key)
		}
	}
	if !s.inOrder {
		for key, q := range s.keys {
			all = append(all, q.behind...)
			s.keys[key] = keyQueue{head: q.head}
		}
	}
	s.behind = 0
	for _, q := range s.keys {
		s.behind += len(q.behind)
	}
	for _, m := range all {
		m.h.waiting--
	}
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	return all
}
