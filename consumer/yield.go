package consumer

// With InOrder the messages behind one that was given up may begin when it is parked. If the transport does not hold it
// any more, it is not parked, and comes again: behind its successors, if these began now.

// yielding is a key whose first message comes again. The messages behind that one go back. So do the messages that were
// received before the receiver had all of them back. The runner's mu guards it.
type yielding struct {
	head *message
	back int // messages that are going back
}

// yield gives back the messages behind m, whose verdict could not be stored. It reports whether the key waits. mu is
// held.
func (r *runner) yield(m *message) bool {
	key := m.key()
	q := r.keys[key]
	if !r.sub.InOrder || key == "" || q.head != m {
		return false
	}
	y := &yielding{head: m}
	if r.yields == nil {
		r.yields = map[string]*yielding{}
	}
	r.yields[key] = y
	r.keys[key] = keyQueue{head: m}
	r.behind -= len(q.behind)
	for _, next := range q.behind {
		next.h.waiting--
		r.sendBack(y, next)
	}
	return true
}

// sendBack releases m, whose key yields. mu is held.
func (r *runner) sendBack(y *yielding, m *message) {
	y.back++
	m.yields = y
	r.release([]*message{m})
}

// sentBack notes that m went back. mu is held.
func (r *runner) sentBack(m *message) {
	if m.yields != nil {
		m.yields.back--
		m.yields = nil
	}
}

// endYields lets keys go on of which the receiver has everything back. The loop that receives calls it before it
// receives, so that nothing is on the way from the receiver to the schedule. It reports whether a key still waits.
// mu is held.
func (r *runner) endYields() (waiting bool) {
	for key, y := range r.yields {
		if y.back > 0 {
			waiting = true
			continue
		}
		delete(r.yields, key)
		r.advance(y.head)
	}
	return waiting
}
