package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// maxRuns is how often a message may end its member before it is released.
const maxRuns = 5

// handled is what a world of queues remembers.
type handled struct {
	began     map[*simMsg]int // hand-outs that a Hold counted
	deaths    map[*simMsg]int // members that died while they handled it
	runs      int
	longest   time.Duration // that a message without a key waited although somebody was free
	freeSince time.Time     // since then somebody is free all the time; zero = nobody is
}

// limit is how many records the member takes at once.
func (m *simMember) limit() int {
	if m.s.cfg.handlers == 0 {
		return 1 + m.s.rnd.IntN(m.s.cfg.batch)
	}
	return m.freeHands()
}

func (m *simMember) freeHands() int { return m.s.cfg.handlers - len(m.out) }

func (m *simMember) setFree() {
	if m.s.cfg.handlers > 0 {
		m.d.SetFree(m.freeHands())
		m.s.noteFree()
	}
}

// noteFree notes since when a member that is awake is free.
func (s *sim) noteFree() {
	for _, m := range s.members {
		if !m.dead && !s.now.Before(m.frozen) && m.d.self.joined && !m.d.self.stopping && m.freeHands() > 0 {
			if s.hands.freeSince.IsZero() {
				s.hands.freeSince = s.now
			}
			return
		}
	}
	s.hands.freeSince = time.Time{}
}

// handle is a handler.
func (m *simMember) handle(item *Item, msg *simMsg) {
	s, h := m.s, &m.s.hands
	if h.began == nil {
		h.began, h.deaths = map[*simMsg]int{}, map[*simMsg]int{}
	}
	if !item.held {
		s.fail("not-held", "%s", msg.id)
	}
	if m.freeHands() <= 0 {
		s.fail("too-many", "member %d has %d out", m.name, len(m.out))
	}
	for _, o := range s.members {
		for other := range o.out {
			twin := s.msgs[other.Record.Envelope.ID]
			if msg.key != "" && twin.key == msg.key && !o.dead && !other.Lost() && s.now.Before(o.d.Deadline()) && s.now.After(o.frozen) {
				s.fail("key-at-once", "%s at member %d and %s at member %d", twin.id, o.name, msg.id, m.name)
			}
		}
	}
	if !item.retry {
		h.began[msg]++
	}
	if r := &item.Record; r.Deliveries < h.began[msg] && !msg.redriven {
		s.fail("deliveries", "%s (seq %d) was handed out %d times, counted %d", msg.id, r.Seq, h.began[msg], r.Deliveries)
	} else if !msg.retried && !msg.redriven && (r.Crashes < h.deaths[msg] || msg.poison && s.cfg.calmButPoison() && r.Crashes != h.deaths[msg]) {
		s.fail("crashes", "%s (seq %d): %d members died of it, counted %d", msg.id, r.Seq, h.deaths[msg], r.Crashes)
	}
	h.runs++
	if msg.key == "" && !msg.retried && !msg.scheduled && s.cfg.calmButPoison() && !h.freeSince.IsZero() {
		since := msg.committed
		if h.freeSince.After(since) {
			since = h.freeSince
		}
		h.longest = max(h.longest, s.now.Sub(since))
	}
	m.out[item] = true
	s.logf("member %d handles %s (seq %d, key %s)", m.name, msg.id, item.Record.Seq, msg.key)
	if item.Record.Crashes >= maxRuns && msg.poison {
		s.after(time.Millisecond, func() { m.do(func() { m.conclude(item, core.Abandon(&item.Record, waybill.ReasonCrashed, nil)) }) })
		return
	}
	if msg.poison {
		s.logf("member %d dies of %s", m.name, msg.id)
		m.perish()
		s.after(s.between(10*time.Millisecond, 100*time.Millisecond), s.join)
		return
	}
	takes := s.between(time.Millisecond, 10*time.Millisecond)
	if s.cfg.slow && !s.quiet && s.chance(0.03) {
		takes = s.between(200*time.Millisecond, 3*s.cfg.lease)
	}
	fails, back := s.cfg.refuse && !s.quiet && s.chance(0.06), s.cfg.refuse && s.chance(0.05)
	if !fails && !back {
		s.arrive(msg)
	}
	s.after(takes, func() {
		m.do(func() {
			switch r := &item.Record; {
			case back:
				msg.unknown = true
				m.conclude(item, core.Release(r, 0, false))
			case fails && s.chance(0.1):
				msg.abandoned = true
				m.conclude(item, core.Abandon(r, waybill.ReasonRejected, errors.New("no")))
			case fails:
				msg.retried = true
				m.conclude(item, core.Retry(r, errors.New("not now"), s.between(0, 400*time.Millisecond)))
			default:
				m.conclude(item, core.Published(r))
			}
		})
	})
}

// pause bounds the pause of a producer between two transactions.
func (c *simConfig) pause() time.Duration {
	if c.handlers > 0 {
		return 100 * time.Millisecond
	}
	return 8 * time.Millisecond
}

// perish is the death of a member: the records that it handles count a crash.
func (m *simMember) perish() {
	if m.dead {
		return
	}
	m.end()
	for item := range m.out {
		if m.s.cfg.handlers > 0 && !item.Lost() {
			m.s.hands.deaths[m.s.msgs[item.Record.Envelope.ID]]++
		}
	}
}

// calmButPoison: nothing but the poison ends or delays members.
func (c *simConfig) calmButPoison() bool {
	return !c.freeze && !c.kill && !c.loseAnswers && !c.outage && !c.blackout && !c.restore && !c.join
}

// queueConfig is a world of queues as a seed says.
func queueConfig(seed uint64) simConfig {
	cfg := randomConfig(seed)
	bit := func(n uint64) bool { return seed*0xD1342543DE82EF95>>(30+n)&1 != 0 }
	cfg.handlers, cfg.members, cfg.slow = 1+int(seed%3), 2+int(seed%5), bit(0)
	cfg.pipeline, cfg.restore, cfg.unstored, cfg.owner = false, cfg.restore && bit(1), false, false
	cfg.poison, cfg.order = bit(2) && bit(3), waybill.OrderPerKey
	cfg.settle += 10 * time.Second
	return cfg
}

// TestQueueHistories: nothing is handled by two live members at once, nothing is lost, keys keep their order, and the
// records that members die of count their crashes.
func TestQueueHistories(t *testing.T) {
	t.Parallel()
	n, from := envInt("WAYBILL_DISPATCH_HISTORIES", max(12/modelled, 1)), envInt("WAYBILL_DISPATCH_SEED", 1)
	bad, runs := 0, 0
	for i := range n {
		s := newSim(queueConfig(uint64(from + i)))
		s.run()
		runs += s.hands.runs
		if r := s.report(); r != "" {
			t.Errorf("%s", r)
			if bad++; bad >= 5 {
				break
			}
		}
	}
	t.Logf("%d histories, %d runs of handlers", n, runs)
}

// TestQueueTrace prints the history of one seed: WAYBILL_DISPATCH_QUEUETRACE=17.
func TestQueueTrace(t *testing.T) {
	t.Parallel()
	seed := envInt("WAYBILL_DISPATCH_QUEUETRACE", -1)
	if seed < 0 {
		t.SkipNow()
	}
	s := newSim(queueConfig(uint64(seed)))
	s.trace = true
	s.run()
	for _, line := range s.log {
		t.Log(line)
	}
	t.Logf("%+v", s.cfg)
	t.Log(s.report())
}

// TestQueueShares: with slow handlers among quick ones, a record without a key never waits while a handler is free.
func TestQueueShares(t *testing.T) {
	t.Parallel()
	for seed := range max(2/uint64(modelled), 1) {
		s := newSim(simConfig{
			seed: seed, members: 12, handlers: 1, keys: 5, batch: 10, lease: 2 * time.Second, run: 20 * time.Second, settle: 20 * time.Second, slow: true, routes: 1,
		})
		s.cfg.slow = true
		s.run()
		if r := s.report(); r != "" {
			t.Error(r)
		}
		t.Logf("%d runs, longest wait %s", s.hands.runs, s.hands.longest)
		if s.hands.longest > time.Second {
			t.Errorf("seed %d: a message waited for %s although a handler was free", seed, s.hands.longest)
		}
	}
}
