package consumer

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// item is a delivery in the consumer's hands.
type item struct {
	d       *waybill.Delivery
	session *session
	h       *entry
	seq     uint64      // its place in the order of arrival
	since   time.Time   // when it arrived
	refused *verdict    // it must not reach a handler; nil if it may
	suspect bool        // it may be what ends the process: nothing else runs beside it
	merged  bool        // its stamp was merged into the clock
	head    bool        // it was ready, and not only behind another one of its key
	batch   []*item     // what is handled together, itself included, in the order of arrival; nil if it goes alone
	retry   *time.Timer // wakes it, if it is held
	run     *batchRun   // of the batch that it leads, while it runs
}

// entry is a registered handler as one runner sees it.
type entry struct {
	handle  waybill.HandleFunc
	batch   func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error)
	size    int           // of a batch
	wait    time.Duration // for a batch to fill
	waiting int           // its items that were not started
}

// schedule decides what is handled next. It has no goroutine of its own, and knows only keys that have something in
// progress. Its user holds a lock.
type schedule struct {
	limit     int                // how many run at a time
	running   int                // how many run; a batch counts once, whatever its size
	alone     bool               // a suspect runs
	quiet     func() bool        // nothing waits to be settled
	giveBack  func(*item)        // gives back what was not started
	full      func() bool        // nothing more will arrive before something is settled
	again     func(time.Time)    // asks for another look at this time
	ready     fifo               // what may run, in the order of arrival; nil stands for one of suspects
	suspects  []*item            // what runs alone
	lanes     map[string][]*item // what waits behind each key in progress
	laneItems int                // how many wait in lanes
	delayed   map[*item]struct{} // what waits for its retry in place, its lane behind it
	seq       uint64
	keepBusy  bool // see takeAll
}

// add schedules it: at once, or behind the one of its key.
func (s *schedule) add(it *item) {
	s.seq++
	it.seq = s.seq
	it.h.waiting++
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
	it.head = true
	if it.suspect {
		s.suspects = append(s.suspects, it)
		it = nil
	}
	s.ready.push(it)
}

// next returns what to run now, counted as running, or nil. Before a suspect runs, everything else is given back and
// settled. Suspects are chosen at random: where what was given back comes again at once and counts, the others still
// get their chance before they are parked too.
func (s *schedule) next() *item {
	if s.ready.len() == 0 || s.alone || s.running >= s.limit {
		return nil
	}
	at := s.eligible()
	if at < 0 {
		return nil
	}
	it := s.ready.items[at]
	if it == nil {
		if s.running > 0 || !s.quiet() {
			return nil
		}
		it = s.suspects[rand.IntN(len(s.suspects))]
		if s.ready.len() > 1 || s.laneItems > 0 || len(s.delayed) > 0 {
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
	s.ready.remove(at)
	s.running++
	it.h.waiting--
	it.batch = nil
	if it.h.batch != nil && !it.suspect && it.h.waiting > 0 {
		s.collect(it)
	}
	return it
}

// eligible returns the index in ready of what may run now: the first that need not wait for its batch to fill; or -1.
func (s *schedule) eligible() int {
	if first := s.ready.peek(); first == nil || first.h.wait == 0 {
		return s.ready.head
	}
	var soonest time.Time
	now := time.Now()
	for i := s.ready.head; i < len(s.ready.items); i++ {
		it := s.ready.items[i]
		if it == nil || it.h.wait == 0 || it.h.waiting >= it.h.size || s.full() {
			return i
		}
		end := it.since.Add(it.h.wait)
		if !end.After(now) {
			return i
		}
		if soonest.IsZero() || end.Before(soonest) {
			soonest = end
		}
	}
	s.again(soonest)
	return -1
}

// collect makes a batch of it and what may be handled with it: what is ready for the same handler, and behind each of
// these what its key has for that handler.
func (s *schedule) collect(lead *item) {
	h := lead.h
	lead.batch = append(make([]*item, 0, min(h.size, h.waiting+1)), lead)
	take := func(it *item) bool { // it, which is in the batch, brings along what waits behind it
		key := it.d.Envelope.Key
		if key == "" {
			return len(lead.batch) < h.size
		}
		behind := s.lanes[key]
		for len(behind) > 0 && len(lead.batch) < h.size && behind[0].h == h && !behind[0].suspect {
			lead.batch = append(lead.batch, behind[0])
			behind[0] = nil
			behind = behind[1:]
			s.laneItems--
			h.waiting--
		}
		s.lanes[key] = behind
		return len(lead.batch) < h.size
	}
	if take(lead) {
		kept := s.ready.items[s.ready.head:s.ready.head]
		more := true
		for _, it := range s.ready.items[s.ready.head:] {
			if !more || it == nil || it.h != h {
				kept = append(kept, it)
				continue
			}
			h.waiting--
			lead.batch = append(lead.batch, it)
			more = take(it)
		}
		s.ready.cut(s.ready.head + len(kept))
	}
	if len(lead.batch) == 1 {
		lead.batch = nil
		return
	}
	slices.SortFunc(lead.batch, func(a, b *item) int { return cmp.Compare(a.seq, b.seq) })
}

// hold keeps it, which next returned and which runs no more, for d, with its lane behind it; then it is ready again.
// The caller lets go of it with wake.
func (s *schedule) hold(it *item) {
	if s.delayed == nil {
		s.delayed = map[*item]struct{}{}
	}
	s.delayed[it] = struct{}{}
	it.h.waiting++
}

// wake makes it ready that hold kept, and reports whether it was still there.
func (s *schedule) wake(it *item) bool {
	if _, ok := s.delayed[it]; !ok {
		return false
	}
	delete(s.delayed, it)
	s.push(it)
	return true
}

// putBack puts items of it's key, which were taken with it in a batch, in front of its lane again.
func (s *schedule) putBack(it *item, items []*item) {
	key := it.d.Envelope.Key
	for _, other := range items {
		other.h.waiting++
	}
	s.laneItems += len(items)
	s.lanes[key] = append(slices.Clone(items), s.lanes[key]...)
}

// done ends it, which next returned, and its batch, and lets what is behind them in their lanes come up. Keys with an
// item in held stay as they are.
func (s *schedule) done(it *item, held map[string]*item) {
	s.running--
	if it.suspect {
		s.alone, it.suspect = false, false // if it is held for a retry: it has not ended the process
	}
	if it.batch == nil {
		s.release(it, held)
	}
	for _, member := range it.batch {
		if member.head {
			s.release(member, held)
		}
	}
	it.batch = nil
}

func (s *schedule) release(it *item, held map[string]*item) {
	key := it.d.Envelope.Key
	if key == "" || held[key] != nil {
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

// takeAll removes and returns everything that does not run, in the order of arrival. With keepBusy it leaves what waits
// behind one that runs, since that may have to go back before it.
func (s *schedule) takeAll() []*item {
	all := make([]*item, 0, s.ready.len()+s.laneItems+len(s.delayed))
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
	for it := range s.delayed {
		it.retry.Stop()
		take(it)
	}
	clear(s.delayed)
	for key, behind := range s.lanes {
		if s.keepBusy && !heads[key] {
			continue
		}
		all = append(all, behind...)
		if heads[key] {
			delete(s.lanes, key)
		} else if behind != nil {
			s.lanes[key] = nil
		}
		s.laneItems -= len(behind)
	}
	for _, it := range all {
		it.h.waiting--
	}
	slices.SortFunc(all, func(a, b *item) int { return cmp.Compare(a.seq, b.seq) })
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

// remove takes out the item at index i of items.
func (q *fifo) remove(i int) {
	if i == q.head {
		q.pop()
		return
	}
	copy(q.items[i:], q.items[i+1:])
	q.cut(len(q.items) - 1)
}

// cut keeps the items before index n.
func (q *fifo) cut(n int) {
	clear(q.items[n:])
	if q.items = q.items[:n]; q.head == n {
		q.items, q.head = q.items[:0], 0
	}
}

func (q *fifo) pop() *item {
	it := q.items[q.head]
	q.items[q.head] = nil
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return it
}
