package checker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Final is how a message stands in the store at the end.
type Final struct {
	State             core.State
	Reason            waybill.Reason
	Attempts, Crashes int
}

// Verify judges the history, when everything is drained. final has the records that are left in the store; effects,
// unless nil, is how often each message had its effect. It returns the problems.
func (l *Ledger) Verify(final map[Ref]Final, effects map[Ref]int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pos++
	for ref := range final {
		if m := l.msgs[ref]; m == nil || m.fate == rolledBack {
			l.problem("phantom: %s/%s is stored and was never committed", ref.Route, ref.ID)
		}
	}
	keys := map[[2]string][]*message{}
	for _, m := range l.msgs {
		f, stored := final[m.Ref]
		l.delivered(m, f, stored)
		if effects != nil {
			want := min(m.first, 1)
			if n := effects[m.Ref]; n != want {
				l.problem("effects: %s/%s had its effect %d times, not %d", m.Route, m.ID, n, want)
			}
		}
		if m.key != "" && l.opts.Routes[m.Route].PerKey {
			k := [2]string{m.Route, m.key}
			keys[k] = append(keys[k], m)
		}
	}
	for ref := range effects {
		if l.msgs[ref] == nil {
			l.problem("effects: %s/%s had an effect and was never staged", ref.Route, ref.ID)
		}
	}
	for i := range l.arrivals {
		a := &l.arrivals[i]
		if m := l.msgs[a.Ref]; m.fate != rolledBack && (a.Key != m.key || a.Body != m.body) {
			l.problem("changed: %s/%s arrived with key %q and body %q", a.Route, a.ID, a.Key, a.Body)
		}
	}
	for k, msgs := range keys {
		l.ordered(msgs)
		if l.opts.Routes[k[0]].Block && !l.opts.Exact {
			l.blocked(msgs, final)
		}
	}
	slices.Sort(l.problems)
	return slices.Compact(l.problems)
}

// delivered judges what became of one message.
func (l *Ledger) delivered(m *message, f Final, stored bool) {
	if m.fate == open {
		l.problem("history: %s/%s was staged in a transaction that never ended", m.Route, m.ID)
		return
	}
	if m.fate == rolledBack {
		if m.first > 0 {
			l.problem("phantom: %s/%s arrived and was never committed", m.Route, m.ID)
		}
		return
	}
	gone := false // cancelled, and so deleted
	for _, w := range m.cancelled {
		if w.status == waybill.CancelDone && w.sure && m.first > 0 {
			l.problem("cancelled: %s/%s was cancelled unsent; it arrived", m.Route, m.ID)
		}
		gone = true
	}
	if stored {
		l.legal(m, f)
		return
	}
	if m.first == 0 && m.fate == committed && !gone {
		l.problem("lost: %s/%s (seq %d) was committed, is not stored, and never arrived", m.Route, m.ID, m.seq)
	}
}

// legal judges the state that m ended in.
func (l *Ledger) legal(m *message, f Final) {
	switch f.State {
	case core.StateAbandoned:
		var ok bool
		switch f.Reason {
		case waybill.ReasonExpired:
			ok = m.mayExpire
		case waybill.ReasonUnroutable:
			ok = m.unroutable || l.opts.Unseen
		case waybill.ReasonRejected, waybill.ReasonAttempts, waybill.ReasonTooLarge, waybill.ReasonForbidden, waybill.ReasonUndecodable:
			ok = m.refusals > 0 || l.opts.Unseen
		case waybill.ReasonCrashed:
			ok = f.Crashes >= core.MaxCrashes
		case waybill.ReasonSkipped, waybill.ReasonSetAside:
			ok = len(m.givenUp) > 0 || m.ordered
		case waybill.ReasonCancelled, waybill.ReasonReplaced:
			ok = len(m.cancelled) > 0
		case waybill.ReasonNone, waybill.ReasonDeliveries, waybill.ReasonNoHandler, waybill.ReasonNoID, waybill.ReasonIDConflict, waybill.ReasonRetryPolicy:
		}
		if !ok {
			l.problem("state: %s/%s was abandoned (%s) without cause: %d refusals, %d crashes", m.Route, m.ID, f.Reason, m.refusals, f.Crashes)
		}
	case core.StatePublished:
		if m.first == 0 {
			l.problem("lost: %s/%s is published and never arrived", m.Route, m.ID)
		}
	case core.StateNone, core.StatePending, core.StateProcessing, core.StateFailed:
		l.problem("stalled: %s/%s (seq %d, key %q) is %s at the end, attempts %d, crashes %d", m.Route, m.ID, m.seq, m.key, f.State, f.Attempts, f.Crashes)
	}
	if f.Attempts > m.refusals && !l.opts.Unseen {
		l.problem("attempts: %s/%s has %d attempts; it was refused %d times", m.Route, m.ID, f.Attempts, m.refusals)
	}
}

// ordered judges the first arrivals of one key.
func (l *Ledger) ordered(msgs []*message) {
	slices.SortFunc(msgs, func(a, b *message) int { return cmp.Compare(a.first, b.first) })
	for i, late := range msgs {
		for _, early := range msgs[:i] {
			if l.opts.Exact && !early.scheduled && !late.scheduled && early.seq != 0 && late.seq != 0 && (early.seq < late.seq) != l.staged(early, late) && l.staged(late, early) != l.staged(early, late) {
				l.problem("sequence: %s (seq %d) and %s (seq %d) of key %s were committed the other way round", early.ID, early.seq, late.ID, late.seq, late.key)
			}
			if early.first == 0 || early.fate != committed || late.fate != committed || !l.precedes(late, early) || l.excused(late) {
				continue
			}
			l.problem("order: %s/%s (seq %d) of key %s arrived as number %d, after %s (seq %d), number %d, although it was staged before it",
				late.Route, late.ID, late.seq, late.key, late.first, early.ID, early.seq, early.first)
		}
	}
}

// blocked judges what arrived behind messages of one key that are abandoned at the end and block it.
func (l *Ledger) blocked(msgs []*message, final map[Ref]Final) {
	for _, head := range msgs {
		if f := final[head.Ref]; head.scheduled || head.anew || f.State != core.StateAbandoned || !f.Reason.Blocks() {
			continue
		}
		for _, m := range msgs {
			behind := l.precedes(head, m)
			if head.last != head.seq { // it was published, and then staged again
				behind = m.last > head.last
			}
			if m.first > 0 && m.fate == committed && behind {
				l.problem("passed: %s/%s arrived behind %s, which is abandoned and blocks key %s", m.Route, m.ID, head.ID, m.key)
			}
		}
	}
}

// staged reports whether a was staged before b, as their producers know.
func (l *Ledger) staged(a, b *message) bool {
	return a.tx == b.tx && a.at < b.at || a.tx != b.tx && a.ended < b.began
}

// precedes reports whether a stands before b. A scheduled message gets its place in its key when it is due.
func (l *Ledger) precedes(a, b *message) bool {
	switch {
	case !a.scheduled:
		return l.staged(a, b)
	case b.scheduled:
		return !l.opts.TimersStay && a.seq != 0 && b.seq != 0 && a.seq < b.seq
	default:
		return a.seen != 0 && a.seen < b.began
	}
}

// excused reports whether m may arrive after one that it precedes: it was put back by force, given up once, or ordered
// out or cancelled while a copy was on its way.
func (l *Ledger) excused(m *message) bool {
	if m.forced {
		return true
	}
	if l.opts.Exact && !l.opts.Zombies {
		return false
	}
	return len(m.givenUp) > 0 || m.ordered || slices.ContainsFunc(m.cancelled, func(w cancellation) bool {
		return w.status == waybill.CancelUncertain && m.first > 0 && w.pos <= l.arrivals[m.first-1].pos
	})
}

// Size returns how many messages were staged, and how many arrivals there were.
func (l *Ledger) Size() (staged, arrivals int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.msgs), len(l.arrivals)
}

// Refs returns the names of all messages that were seen.
func (l *Ledger) Refs() []Ref {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.msgs))
}

// Missing returns up to n committed messages that have not arrived, and how many there are, for tests that wait.
func (l *Ledger) Missing(n int) (out []string, total int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.msgs {
		if m.fate == committed && m.first == 0 && len(m.givenUp) == 0 && len(m.cancelled) == 0 {
			total++
			if len(out) < n {
				out = append(out, fmt.Sprintf("%s/%s", m.Route, m.ID))
			}
		}
	}
	return out, total
}
