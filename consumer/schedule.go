package consumer

import (
	"math/rand/v2"

	"github.com/waybill-go/waybill/core"
)

// item is a delivery in the consumer's hands.
type item struct {
	d       *core.Delivery
	session *session
	handle  core.HandleFunc
	refused *verdict // it must not reach a handler; nil if it may
	suspect bool     // it may be what ends the process: nothing else runs beside it
}

// schedule decides what is handled next. It has no goroutine of its own, and knows only keys that have something in
// progress. Its user holds a lock.
type schedule struct {
	limit     int                // how many run at a time
	running   int                // how many run
	alone     bool               // a suspect runs
	quiet     func() bool        // nothing waits to be settled
	giveBack  func(*item)        // gives back what was not started
	ready     fifo               // what may run, in the order of arrival; nil stands for one of suspects
	suspects  []*item            // what runs alone
	lanes     map[string][]*item // what waits behind each key in progress
	laneItems int                // how many wait in lanes
}

// add schedules it: at once, or behind the one of its key.
func (s *schedule) add(it *item) {
	if key := it.d.Envelope.Key; key != "" {
		behind, busy := s.lanes[key]
		if busy {
			s.lanes[key] = append(behind, it)
			s.laneItems++
			return
		}
		s.lanes[key] = nil
	}
	s.push(it)
}

func (s *schedule) push(it *item) {
	if it.suspect {
		s.suspects = append(s.suspects, it)
		it = nil
	}
	s.ready.push(it)
}

// next returns what to run now, counted as running, or nil. Before a suspect runs, everything else is given back and
// settled. Suspects are chosen at random: where what was given back comes again at once and counts, the others still get
// their chance before they are parked too.
func (s *schedule) next() *item {
	if s.ready.len() == 0 || s.alone || s.running >= s.limit {
		return nil
	}
	it := s.ready.peek()
	if it == nil {
		if s.running > 0 || !s.quiet() {
			return nil
		}
		it = s.suspects[rand.IntN(len(s.suspects))]
		if s.ready.len() > 1 || s.laneItems > 0 {
			for _, other := range s.takeAll() {
				if other != it {
					s.giveBack(other)
				}
			}
			s.add(it)
			return nil // until that is settled
		}
		s.suspects = nil
		s.alone = true
	}
	s.ready.pop()
	s.running++
	return it
}

// done ends it, which next returned, and lets the one behind it in its lane come up.
func (s *schedule) done(it *item) {
	s.running--
	if it.suspect {
		s.alone = false
	}
	key := it.d.Envelope.Key
	if key == "" {
		return
	}
	behind := s.lanes[key]
	if len(behind) == 0 {
		delete(s.lanes, key)
		return
	}
	s.lanes[key] = behind[1:]
	s.laneItems--
	s.push(behind[0])
	behind[0] = nil
}

// takeAll removes and returns everything that was not started: what is ready first, then what waits in lanes, each lane
// in order.
func (s *schedule) takeAll() []*item {
	all := make([]*item, 0, s.ready.len()+s.laneItems)
	heads := map[string]bool{} // lanes whose head was not started
	take := func(it *item) {
		all = append(all, it)
		if key := it.d.Envelope.Key; key != "" {
			heads[key] = true
		}
	}
	for s.ready.len() > 0 {
		if it := s.ready.pop(); it != nil {
			take(it)
		}
	}
	for _, it := range s.suspects {
		take(it)
	}
	s.suspects = nil
	for key, behind := range s.lanes {
		all = append(all, behind...)
		if heads[key] {
			delete(s.lanes, key)
		} else if behind != nil {
			s.lanes[key] = nil
		}
	}
	s.laneItems = 0
	return all
}

// fifo is a queue of items. It reuses its memory.
type fifo struct {
	items []*item
	head  int
}

func (q *fifo) len() int { return len(q.items) - q.head }

func (q *fifo) peek() *item { return q.items[q.head] }

func (q *fifo) push(it *item) {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, it)
}

func (q *fifo) pop() *item {
	it := q.items[q.head]
	q.items[q.head] = nil
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return it
}
