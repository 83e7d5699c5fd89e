package checker

import (
	"time"

	"github.com/waybill-go/waybill"
)

// Decide makes an operator's decision by means of fn: the message was skipped or set aside (reason), or requeued
// (none).
func (l *Ledger) Decide(ref Ref, reason waybill.Reason, forced bool, fn func() (done bool)) {
	var done bool
	l.Do(func() { done = fn() }, func() {
		if !done {
			return
		}
		m := l.get(ref)
		l.note("decided %s/%s: %q forced %v", ref.Route, ref.ID, reason, forced)
		if n := len(m.givenUp); n > 0 && m.givenUp[n-1].to == 0 {
			m.givenUp[n-1].to = l.pos
		}
		m.forced, m.decided, m.due = m.forced || forced, false, time.Time{}
		l.moves(m, 0)
		if reason != waybill.ReasonNone {
			m.givenUp = append(m.givenUp, giving{reason: reason, from: l.pos})
		}
	})
}

// Ordered notes that an operator orders a message out that is due. Its owner takes it out, sooner or later, or it was
// handed out before.
func (l *Ledger) Ordered(ref Ref, reason waybill.Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note("ordered out: %s/%s: %s", ref.Route, ref.ID, reason)
	l.get(ref).ordered = true
}

// Swept notes by means of fn that an expired message was abandoned while it waited.
func (l *Ledger) Swept(refs func() []Ref) {
	var gone []Ref
	l.Do(func() { gone = refs() }, func() {
		for _, r := range gone {
			m := l.get(r)
			l.note("swept %s/%s", r.Route, r.ID)
			m.givenUp = append(m.givenUp, giving{reason: waybill.ReasonExpired, from: l.pos})
			l.moves(m, 0)
		}
	})
}
