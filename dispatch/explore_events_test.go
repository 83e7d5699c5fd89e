package dispatch

// The events of the world that is explored.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

type happening uint8

const (
	evCall    happening = iota // a call is executed, if it was not, and answered
	evSlow                     // it is executed, and answered later
	evLost                     // it is not executed, and its answer is lost
	evUnheard                  // it is executed, and its answer is lost
	evLate                     // its answer is lost, and it is executed some time
	evGhost                    // now
	evOut                      // a record that is out gets an outcome
	evTx                       // the next step of a producer's transaction
	evTick
	evCrash
	evFreeze
	evThaw
	evJoin
	evLeave
	evAble
	evPause
	evOpen
	evCancel
	evLock
	evCommit
	evRollback
	evSkip
	evRedrive
	evBlackout
)

var happenings = [...]string{
	"call", "slow", "lost", "unheard", "late", "ghost", "out", "tx", "tick", "crash", "freeze", "thaw", "join", "leave", "able", "pause", "open", "cancel", "lock",
	"commit", "rollback", "skip", "redrive", "blackout",
}

// act is one thing that can happen. Which of key and how count depends on the kind.
type act struct {
	kind happening
	m    int // a member, a transaction, or a letter
	key  uint64
	how  int
	name string // of a topic
	cost int    // delays
}

// String is how histories are written down; a world finds the event by it.
func (e act) String() string {
	switch e.kind { //nolint:exhaustive // the others are about a member
	case evCall, evSlow, evLost, evUnheard, evLate, evGhost:
		s := fmt.Sprintf("%s m%d %s", happenings[e.kind], e.m, CallKind(e.key>>40))
		if CallKind(e.key>>40) == CallRelease {
			s += fmt.Sprintf(" %d", e.key&0xFFFFF)
		}
		return s
	case evOut:
		return fmt.Sprintf("out m%d %d %s", e.m, e.key, outNames[e.how])
	case evTx, evCommit, evRollback:
		return fmt.Sprintf("%s %d", happenings[e.kind], e.m)
	case evTick, evBlackout:
		return happenings[e.kind]
	case evPause, evOpen:
		return happenings[e.kind] + " " + e.name
	case evCancel, evLock, evSkip, evRedrive:
		return fmt.Sprintf("%s letter %d", happenings[e.kind], e.m)
	}
	return fmt.Sprintf("%s m%d", happenings[e.kind], e.m)
}

// events returns the possible events. Calls are executed in the order of sending, and a record is published before the
// time goes on; each exception costs a delay. Faults, operators and producers come at any time.
func (w *world) events() (evs []act) {
	if w.wrong != "" {
		return nil
	}
	all := w.anyEvents()
	first, firstAt := -1, time.Time{}
	for i, e := range all {
		if e.kind != evCall {
			continue
		}
		if x := w.members[e.m].call(e.key); !x.done && (first < 0 || x.c.sent.Before(firstAt)) {
			first, firstAt = i, x.c.sent
		}
	}
	if first < 0 {
		first = slices.IndexFunc(all, func(e act) bool { return e.kind == evOut && (e.how == outDone || e.how == outExpired) })
	}
	free := []happening{evSlow, evLost, evUnheard, evLate, evTx, evCrash, evFreeze, evLeave, evAble, evPause, evOpen, evCancel, evLock, evCommit, evRollback, evSkip, evRedrive, evBlackout}
	for i, e := range all {
		answers := e.kind == evCall && w.members[e.m].call(e.key).done // what it costs was paid
		if i != first && first >= 0 && !answers && !slices.Contains(free, e.kind) && (e.kind != evOut || e.how == outDone || e.how == outExpired) {
			e.cost = 1
		}
		if e.cost <= w.left.Delays {
			evs = append(evs, e)
		}
	}
	return evs
}

func (w *world) anyEvents() (evs []act) {
	add := func(ok bool, e act) {
		if ok {
			evs = append(evs, e)
		}
	}
	b := &w.left
	for i, m := range w.members {
		if m.dead {
			continue
		}
		if m.absent {
			add(true, act{kind: evJoin, m: i})
			continue
		}
		if m.frozen {
			add(true, act{kind: evThaw, m: i})
			continue
		}
		for _, x := range m.calls {
			add(true, act{kind: evCall, m: i, key: x.key})
			add(b.Lose > 0, act{kind: evUnheard, m: i, key: x.key})
			if x.done {
				continue
			}
			add(b.Slow > 0, act{kind: evSlow, m: i, key: x.key})
			add(b.Lose > 0, act{kind: evLost, m: i, key: x.key})
			add(b.Late > 0, act{kind: evLate, m: i, key: x.key})
		}
		for _, item := range m.out {
			out := func(ok bool, how int) { add(ok, act{kind: evOut, m: i, key: uint64(item.Record.Seq), how: how}) }
			out(true, w.fate(item))
			out(b.Retry > 0, outRetry)
			out(b.Far > 0, outFar)
			out(b.Unknown > 0, outUnknown)
			out(b.Abandon > 0, outAbandon)
			out(b.Stuck > 0, outStuck)
		}
		add(b.Crash > 0, act{kind: evCrash, m: i})
		add(b.Freeze > 0, act{kind: evFreeze, m: i})
		add(b.Able > 0 && !m.d.self.stopping, act{kind: evAble, m: i})
		add(b.Leave > 0 && !m.d.self.stopping, act{kind: evLeave, m: i})
	}
	for i, x := range w.ghosts {
		add(true, act{kind: evGhost, m: i, key: x.key})
	}
	for i, t := range w.txs {
		switch {
		case t.ended:
		case t.locks == 0:
			add(true, act{kind: evTx, m: i})
		default:
			add(t.cancels, act{kind: evCommit, m: i})
			add(true, act{kind: evRollback, m: i})
		}
	}
	if b.Pause > 0 {
		for _, topic := range w.topics() {
			add(!w.paused[topic], act{kind: evPause, name: topic})
		}
	}
	for _, topic := range w.topics() {
		add(w.paused[topic], act{kind: evOpen, name: topic})
	}
	if b.Cancel+b.Lock+b.Skip+b.Redrive > 0 {
		states := w.states()
		for i, p := range w.letters {
			st := states[p.id]
			if !p.committed || st == nil {
				continue
			}
			add(b.Cancel > 0 && !st.Settled() && !st.Locked, act{kind: evCancel, m: i})
			add(b.Lock > 0 && !st.Settled() && !st.Locked, act{kind: evLock, m: i})
			add(b.Skip > 0 && p.key != "" && !st.Locked, act{kind: evSkip, m: i})
			add(b.Redrive > 0 && (st.State == core.StateAbandoned || st.State == core.StateFailed), act{kind: evRedrive, m: i})
		}
	}
	add(b.Blackout > 0, act{kind: evBlackout})
	add(b.Ticks > 0, act{kind: evTick})
	return evs
}

// topics returns the topics that can be paused, in order.
func (w *world) topics() (topics []string) {
	for _, l := range slices.Concat(append([][]letter{w.scope.staged}, w.scope.txs...)...) {
		if !slices.Contains(topics, l.topic) {
			topics = append(topics, l.topic)
		}
	}
	return topics
}

func (m *agent) call(key uint64) *sentCall {
	for _, x := range m.calls {
		if x.key == key {
			return x
		}
	}
	return nil
}

// do lets an event happen.
func (w *world) do(e act) {
	w.enter()
	b := &w.left
	b.Delays -= e.cost
	switch e.kind {
	case evCall:
		m := w.members[e.m]
		x := m.call(e.key)
		w.execOnce(x, e.m)
		w.answer(m, x)
	case evSlow:
		b.Slow--
		x := w.members[e.m].call(e.key)
		w.logf("m%d: %s: its answer comes later", e.m, x.c.kind)
		w.exec(x, e.m)
	case evLost, evUnheard, evLate:
		m := w.members[e.m]
		x := m.call(e.key)
		if e.kind != evLate {
			b.Lose--
			if e.kind == evUnheard {
				w.execOnce(x, e.m)
			}
		} else {
			b.Late--
			c := *x.c
			w.ghosts = append(w.ghosts, &sentCall{c: &c, key: x.key})
		}
		w.logf("m%d: %s: %s", e.m, x.c.kind, happenings[e.kind])
		x.c.Lose(errLost)
		w.answer(m, x)
	case evGhost:
		x := w.ghosts[e.m]
		w.ghosts = slices.Delete(slices.Clone(w.ghosts), e.m, e.m+1)
		w.exec(x, 9)
	case evOut:
		m := w.members[e.m]
		for _, item := range m.out {
			if uint64(item.Record.Seq) == e.key {
				*[...]*int{new(int), &b.Retry, &b.Far, &b.Unknown, &b.Abandon, &b.Stuck, new(int)}[e.how]--
				w.conclude(m, item, e.how)
				break
			}
		}
	case evTx:
		w.txStep(e.m)
	case evTick:
		b.Ticks--
		w.advance()
	case evCrash:
		b.Crash--
		m := w.members[e.m]
		w.logf("m%d dies", e.m)
		m.dead, w.excused, m.out, m.stuck = true, true, nil, nil
		if b.Late > 0 { // a call that was sent can still be executed
			w.ghosts = append(w.ghosts, slices.DeleteFunc(m.calls, func(x *sentCall) bool { return x.done })...)
		}
		m.calls = nil
	case evFreeze:
		b.Freeze--
		w.logf("m%d freezes", e.m)
		w.members[e.m].frozen = true
	case evThaw:
		w.logf("m%d goes on", e.m)
		w.members[e.m].frozen = false
		w.pump(w.members[e.m])
	case evJoin:
		w.logf("m%d joins", e.m)
		w.join(w.members[e.m])
	case evLeave:
		b.Leave--
		w.logf("m%d stops", e.m)
		w.members[e.m].d.Stop()
		w.pump(w.members[e.m])
	case evAble:
		b.Able--
		w.able(w.members[e.m])
	case evPause, evOpen:
		if e.kind == evPause {
			b.Pause--
		}
		w.pauseTopic(e.name, e.kind == evPause)
	case evCancel, evLock, evCommit, evRollback, evSkip, evRedrive:
		w.decide(e)
	case evBlackout:
		b.Blackout--
		w.blackout()
	}
	if w.wrong == "" {
		w.check()
	}
}

// decide carries out the act of a caller or an operator.
func (w *world) decide(e act) {
	b := &w.left
	if e.kind == evCommit || e.kind == evRollback {
		w.endTx(w.txs[e.m], e.kind == evCommit)
		return
	}
	p := w.letters[e.m]
	t := &openTx{tx: w.store.Begin(), locks: e.m + 1}
	switch e.kind { //nolint:exhaustive // do has the others
	case evCancel:
		b.Cancel--
		status, err := t.tx.Cancel(p.route, p.id)
		w.logf("cancel of %s: %v", p.id, status)
		if err != nil || status == waybill.CancelInFlight || status == waybill.CancelNotFound {
			t.tx.Rollback()
			return
		}
		t.cancels, t.done = true, status == waybill.CancelDone
		w.txs = append(w.txs, t)
	case evLock:
		b.Lock--
		if err := t.tx.Lock(p.route, p.id); err != nil {
			t.tx.Rollback()
			return
		}
		w.logf("%s is locked", p.id)
		w.txs = append(w.txs, t)
	case evRedrive:
		b.Redrive--
		if err := t.tx.Redrive(p.route, p.id); err != nil || t.tx.Commit() != nil {
			t.tx.Rollback()
			return
		}
		w.logf("%s is redriven", p.id)
		p.redriven, p.ended, p.unknown = true, false, true
	case evSkip:
		b.Skip--
		t.tx.Rollback()
		if _, err := w.store.Decide(p.route, p.key, p.id, admin.HeadSkip); err == nil {
			w.logf("an operator skips %s", p.id)
			p.ended = true
		}
	}
}

// blackout is a time without a store, longer than a lease.
func (w *world) blackout() {
	w.logf("the store is away")
	for end := w.now.Add(worldLease + time.Second); w.now.Before(end); {
		w.advance()
		for _, m := range w.members {
			for len(m.calls) > 0 && !m.dead && !m.frozen {
				x := m.calls[0]
				x.c.Lose(errLost)
				m.calls = m.calls[1:]
				m.d.Done(w.now, x.c)
			}
		}
	}
	for _, m := range w.members {
		w.pump(m)
	}
}

// replay lets a written history happen in a new world. It fails if an event cannot happen.
func replay(s *scope, history string, logs bool) (*world, error) {
	w := newWorld(s)
	w.logs = logs
	for name := range strings.SplitSeq(strings.TrimSpace(history), "; ") {
		if name == "" {
			continue
		}
		evs := w.events()
		i := slices.IndexFunc(evs, func(e act) bool { return e.String() == name })
		if i < 0 {
			return w, fmt.Errorf("%q cannot happen, only %v", name, evs)
		}
		w.do(evs[i])
	}
	return w, nil
}
