package dispatch

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// sim is a world in virtual time: a database with open transactions and locks, members, a broker, and faults.
type sim struct {
	cfg      simConfig
	rnd      *rand.Rand
	now      time.Time
	queue    events
	n        int
	store    *memory.Store
	members  []*simMember
	sessions int64
	msgs     map[string]*simMsg
	ids      []string
	arrivals []string
	held     map[string]int64
	tokens   map[int64]bool // of presence, that are there
	token    int64
	wrong    map[string]int
	firsts   []string // what went wrong, the first few
	images   []image
	undone   map[*Item]bool // what was out when the database last went back
	quiet    bool           // faults and producers have stopped
	trace    bool
	log      []string
	down     time.Time // the database answers nobody until then
	hands    handled
}

type image struct {
	at  time.Time
	img *memory.Image
}

// simConfig says how a world is.
type simConfig struct {
	seed                 uint64
	members, keys, batch int
	lease                time.Duration
	// how long faults last, and how long there is to heal
	run, settle                                          time.Duration
	long                                                 bool // transactions of several leases
	cancel, freeze, kill, loseAnswers, restore, outage   bool
	refuse, redrive, join, delay, block, pipeline, owner bool
	poison                                               bool // one record kills whoever sends it
	unstored                                             bool // who gives up a message dies
	blackout                                             bool // the database is down for longer than a lease
	slow                                                 bool // some publishes take longer than a lease
	routes, depth                                        int
	presence                                             bool // members show that they are there
	decide                                               bool // an operator ends records that are due
	requeue                                              bool // an operator puts blocking heads back
	order                                                waybill.Order
	handlers                                             int // of a member; the routes are queues then
	noSweeps                                             bool
	broken                                               string // a rule of the store that is broken
}

// simMsg is a message and what became of it.
type simMsg struct {
	id, key   string
	tx        int
	seq       int64
	began     time.Time // when its transaction drew its first number
	committed time.Time // zero = it never was
	arrivals  int
	first     int
	cancelled bool // the caller was told that it was
	ended     time.Time
	redriven  bool // an operator changed its place
	retried   bool
	scheduled bool
	unknown   bool // a result never came
	abandoned bool
	poison    bool
	after     int // restores before it was staged
}

type simMember struct {
	s      *sim
	name   int
	d      *Dispatcher
	dead   bool
	frozen time.Time
	inbox  []func() // what waits for it to wake up
	wakeAt time.Time
	out    map[*Item]bool
	token  int64
	broken map[string]*Item   // by key: what failed, while others of it may be out
	behind map[string][]*Item // those
}

type event struct {
	at time.Time
	n  int
	fn func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

var epochStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newStore(now func() time.Time) *memory.Store {
	s, err := memory.New(memory.Options{Source: "/sim", Now: now})
	if err != nil {
		panic(err)
	}
	return s
}

func newSim(cfg simConfig) *sim {
	s := &sim{cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.seed, 1)), now: epochStart, msgs: map[string]*simMsg{}, wrong: map[string]int{}, held: map[string]int64{}, tokens: map[int64]bool{}}
	s.store = newStore(func() time.Time { return s.now })
	return s
}

func (s *sim) after(d time.Duration, fn func()) {
	s.n++
	heap.Push(&s.queue, event{s.now.Add(d), s.n, fn})
}

func (s *sim) between(a, b time.Duration) time.Duration {
	return a + time.Duration(s.rnd.Int64N(int64(b-a)+1))
}
func (s *sim) chance(p float64) bool { return s.rnd.Float64() < p }

func (s *sim) fail(what, format string, args ...any) {
	s.wrong[what]++
	if len(s.firsts) < 10 {
		s.firsts = append(s.firsts, fmt.Sprintf("%8s %s: %s", s.now.Sub(epochStart), what, fmt.Sprintf(format, args...)))
	}
}

func (s *sim) logf(format string, args ...any) {
	if s.trace {
		s.log = append(s.log, fmt.Sprintf("%12s %s", s.now.Sub(epochStart), fmt.Sprintf(format, args...)))
	}
}

// run lets the world go until its end.
func (s *sim) run() {
	for range s.cfg.members {
		s.join()
	}
	for range 4 {
		s.after(s.between(0, 10*time.Millisecond), s.produce)
	}
	if s.cfg.cancel {
		s.after(s.between(0, 100*time.Millisecond), s.cancel)
	}
	if s.cfg.redrive {
		s.after(s.between(0, 300*time.Millisecond), s.redrive)
	}
	if s.cfg.decide {
		s.after(s.between(0, 300*time.Millisecond), s.decide)
	}
	if s.cfg.requeue {
		s.after(s.between(0, 300*time.Millisecond), s.requeue)
	}
	s.after(s.between(100*time.Millisecond, 400*time.Millisecond), s.fault)
	if s.cfg.blackout {
		s.after(time.Second, func() { s.down = s.now.Add(s.cfg.lease + s.between(0, s.cfg.lease)) })
	}
	s.until(epochStart.Add(s.cfg.run))
	s.quiet = true
	s.logf("quiet")
	if s.cfg.poison {
		s.cfg.settle += 40 * s.cfg.lease
	}
	s.until(epochStart.Add(s.cfg.run + s.cfg.settle))
	s.check()
}

func (s *sim) until(end time.Time) {
	for len(s.queue) > 0 && !s.queue[0].at.After(end) {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.fn()
	}
	s.now = end
}

// join starts a member.
func (s *sim) join() {
	m := &simMember{s: s, name: len(s.members), out: map[*Item]bool{}, broken: map[string]*Item{}, behind: map[string][]*Item{}}
	routes := make([]Route, max(s.cfg.routes, 1))
	for i := range routes {
		routes[i] = Route{Name: routeName(i), Partitions: 3, Blocks: s.cfg.block, Order: s.cfg.order, Queue: s.cfg.handlers > 0}
		if s.cfg.pipeline {
			routes[i].Pipelined = 4
		}
	}
	o := Options{
		Name: strconv.Itoa(m.name), Routes: routes, Lease: s.cfg.lease, Batch: s.cfg.batch, Window: 4 * s.cfg.batch, Gather: 3 * time.Millisecond, Handlers: s.cfg.handlers,
		NewSession: func() core.Session { s.sessions++; return core.Session(s.sessions) },
	}
	if s.cfg.handlers == 0 && s.cfg.seed%3 == 1 { // a relay that saves
		o.ReadEvery, o.Gather = 25*time.Millisecond, 100*time.Millisecond
	}
	m.d = New(o)
	m.d.noSweeps = s.cfg.noSweeps
	m.d.keyDepth = cmp.Or(s.cfg.depth, keyDepth)
	if s.cfg.handlers > 0 && s.cfg.seed%4 != 0 { // what takes thousands of records happens with a few
		m.d.passSlack, m.d.holdStep, m.d.maxPassed = int64(s.cfg.seed%3)*5, 1+int64(s.cfg.seed%7), int(s.cfg.seed%11)
	}
	s.members = append(s.members, m)
	s.logf("member %d joins", m.name)
	m.pump()
	m.showPresence()
	s.after(500*time.Millisecond, m.watch)
}

// showPresence has a member show that it is there, as long as its connection lasts.
func (m *simMember) showPresence() {
	s := m.s
	if m.dead || !s.cfg.presence || m.token != 0 && m.d.Presence() == m.token {
		return
	}
	delete(s.tokens, m.token)
	s.token++
	m.token = s.token
	s.tokens[m.token] = true
	s.logf("member %d shows %d", m.name, m.token)
	m.do(func() { m.d.SetPresence(m.token) })
}

// watch looks whether the token is still shown.
func (m *simMember) watch() {
	if m.dead {
		return
	}
	m.s.after(500*time.Millisecond, m.watch)
	m.do(m.showPresence)
}

// end is the end of its process, and of all its connections.
func (m *simMember) end() {
	m.dead = true
	delete(m.s.tokens, m.token)
}

// cut ends the connection that shows that a member is there.
func (m *simMember) cut() {
	if !m.s.tokens[m.token] {
		return
	}
	m.s.logf("member %d has lost %d", m.name, m.token)
	delete(m.s.tokens, m.token)
	m.s.after(m.s.between(0, 600*time.Millisecond), func() { m.do(func() { m.d.SetPresence(0) }) })
}

func routeName(i int) string { return fmt.Sprintf("r%d", i) }

// do runs fn as the member, when it is awake.
func (m *simMember) do(fn func()) {
	switch {
	case m.dead:
	case m.s.now.Before(m.frozen):
		m.inbox = append(m.inbox, fn)
	default:
		fn()
		m.pump()
	}
}

func (m *simMember) freeze(d time.Duration) {
	m.s.logf("member %d freezes for %s", m.name, d)
	m.frozen = m.s.now.Add(d)
	m.s.after(d, func() {
		if m.dead || m.s.now.Before(m.frozen) {
			return
		}
		inbox := m.inbox
		m.inbox = nil
		for _, fn := range inbox {
			fn()
		}
		m.pump()
	})
}

// pump starts the calls that the dispatcher asks for and sends the records that it hands out.
func (m *simMember) pump() {
	s := m.s
	if m.dead || s.now.Before(m.frozen) {
		return
	}
	for range 20 {
		m.setFree()
		calls := m.d.Calls(s.now)
		for _, c := range calls {
			m.call(c)
		}
		sent := 0
		for _, rt := range m.d.opts.Routes {
			for _, item := range m.d.HandOut(s.now, rt.Name, m.limit()) {
				if m.send(item); m.dead {
					return
				}
				sent++
			}
		}
		if len(calls) == 0 && sent == 0 {
			break
		}
	}
	if next := m.d.Next(); !next.IsZero() {
		at := max(next.Sub(s.now), 100*time.Microsecond)
		if m.wakeAt.After(s.now) && !m.wakeAt.After(s.now.Add(at)) {
			return
		}
		m.wakeAt = s.now.Add(at)
		s.after(at, func() { m.do(func() {}) })
	}
}

var errLost = &waybill.Error{Op: "sim", Class: waybill.ClassOutage, Err: errors.New("the answer was lost")}

// call runs a call of the store, with the time it takes and its faults.
func (m *simMember) call(c *Call) {
	s := m.s
	st := &simStore{OutboxStore: s.store, s: s}
	exec := func() { c.Do(context.Background(), st) }
	if c.kind == CallRead && (s.cfg.broken == "OneSnap" || s.cfg.broken == "KeySnap") {
		s.after(50*time.Microsecond, func() { c.Do(context.Background(), &simStore{OutboxStore: s.store, s: s, keep: &st.first}) })
	}
	there, back := s.between(100*time.Microsecond, 2*time.Millisecond), s.between(100*time.Microsecond, 2*time.Millisecond)
	lost := func(in time.Duration) {
		s.after(in, func() {
			c.Lose(errLost)
			m.do(func() { m.d.Done(s.now, c) })
		})
	}
	if s.now.Before(s.down) {
		lost(there)
		return
	}
	if s.cfg.loseAnswers && !s.quiet && s.chance(0.02) {
		switch s.rnd.IntN(3) {
		case 0: // never done
		case 1:
			s.after(there, exec)
		case 2: // done late; its answer comes to nobody
			s.logf("member %d: %s is done late", m.name, c.kind)
			late := *c
			s.after(s.between(there, 5*time.Second), func() { late.Do(context.Background(), st) })
		}
		s.logf("member %d: answer to %s is lost", m.name, c.kind)
		lost(there + back + 5*time.Millisecond)
		return
	}
	s.after(there, func() {
		exec()
		s.logf("member %d: %s is done (sent at %s)", m.name, c.kind, c.sent.Sub(epochStart))
		s.after(back, func() {
			m.do(func() {
				s.logf("member %d: %s is answered (sent at %s) %v", m.name, c.kind, c.sent.Sub(epochStart), c.err)
				m.d.Done(s.now, c)
			})
		})
	})
}

// send publishes an item.
func (m *simMember) send(item *Item) {
	s := m.s
	msg := s.msgs[item.Record.Envelope.ID]
	if !s.now.Before(m.d.StartBy()) {
		s.fail("deadline", "member %d starts %s after its deadline", m.name, msg.id)
	}
	if result, err := s.store.Read(context.Background(), m.d.session, core.ReadRequest{}); err == nil && !result.IsMember && !s.cfg.restore {
		s.fail("removed-sends", "member %d starts %s after it was removed", m.name, msg.id)
	}
	for _, o := range s.members {
		for other := range o.out {
			if o != m && !o.dead && other.Record.Envelope.ID == msg.id && !other.Lost() && !s.undone[other] && s.now.Before(o.d.StartBy()) && s.now.After(o.frozen) {
				s.fail("two-at-once", "%s is out at members %d and %d", msg.id, o.name, m.name)
			}
		}
	}
	if s.cfg.handlers > 0 {
		m.handle(item, msg)
		return
	}
	m.out[item] = true
	s.logf("member %d sends %s (seq %d, key %s)", m.name, msg.id, item.Record.Seq, msg.key)
	if item.Record.Crashes >= core.MaxCrashes {
		s.after(time.Millisecond, func() { m.do(func() { m.conclude(item, core.Abandon(&item.Record, waybill.ReasonCrashed, nil)) }) })
		return
	}
	if msg.poison {
		s.logf("member %d dies of %s", m.name, msg.id)
		m.end()
		s.after(s.between(10*time.Millisecond, 100*time.Millisecond), s.join)
		return
	}
	ok, arrives := true, true
	if s.cfg.refuse && !s.quiet && s.chance(0.06) {
		ok, arrives = false, false
	}
	if s.cfg.outage && !s.quiet && s.chance(0.03) {
		ok, arrives = false, s.chance(0.5)
	}
	if s.cfg.pipeline && m.broken[msg.key] != nil { // it follows one that failed: the broker does not take it
		m.behind[msg.key] = append(m.behind[msg.key], item)
		return
	}
	if s.cfg.pipeline && !arrives {
		m.broken[msg.key] = item
	}
	if arrives {
		s.arrive(msg) // the broker takes what one connection sends in order
	}
	takes := s.between(200*time.Microsecond, 4*time.Millisecond)
	if s.cfg.slow && !s.quiet && s.chance(0.03) {
		takes = s.between(100*time.Millisecond, 3*s.cfg.lease)
	}
	s.after(takes, func() {
		m.do(func() {
			if m.broken[msg.key] == item {
				for _, behind := range slices.Backward(m.behind[msg.key]) { // the last one first
					m.conclude(behind, core.Release(&behind.Record, 0, false))
				}
				delete(m.broken, msg.key)
				delete(m.behind, msg.key)
			}
			switch r := &item.Record; {
			case ok:
				m.conclude(item, core.Published(r))
			case arrives || s.chance(0.3):
				msg.unknown = true
				m.conclude(item, core.Release(r, 0, true))
			case s.chance(0.1) || s.cfg.unstored || s.cfg.requeue && s.chance(0.5):
				msg.abandoned = true
				if s.cfg.unstored {
					s.after(s.between(0, 3*time.Millisecond), m.die)
				}
				m.conclude(item, core.Abandon(r, waybill.ReasonRejected, errors.New("no")))
			default:
				msg.retried = true
				m.conclude(item, core.Retry(r, errors.New("not now"), s.between(0, 400*time.Millisecond)))
			}
		})
	})
}

// die ends a member, and has another one come.
func (m *simMember) die() {
	if !m.dead {
		m.s.logf("member %d is killed", m.name)
		m.end()
		m.s.after(m.s.between(0, m.s.cfg.lease), m.s.join)
	}
}

func (m *simMember) conclude(item *Item, o core.Outcome) {
	delete(m.out, item)
	m.s.logf("member %d concludes %s: %s", m.name, item.Record.Envelope.ID, o.Event())
	m.d.Conclude(m.s.now, item, o)
}

func (s *sim) arrive(msg *simMsg) {
	msg.arrivals++
	if msg.cancelled {
		s.fail("cancelled-published", "%s (seq %d)", msg.id, msg.seq)
	}
	if msg.arrivals > 1 {
		if s.calm() && !msg.unknown && !msg.redriven {
			s.fail("doubled", "%s (seq %d) arrived again", msg.id, msg.seq)
		}
		return
	}
	s.arrivals = append(s.arrivals, msg.id)
	msg.first = len(s.arrivals)
}

// calm reports whether nothing may arrive twice in this world.
func (s *sim) calm() bool {
	c := &s.cfg
	return !c.freeze && !c.kill && !c.requeue && !c.loseAnswers && !c.restore && !c.outage && !c.poison && !c.slow && !c.blackout && !c.unstored
}

// calmer reports whether no member that is awake may be removed in this world.
func (s *sim) calmer() bool { return !s.cfg.freeze && !s.cfg.loseAnswers && !s.cfg.restore }

// renamed returns o for the record that has the number now.
func (s *sim) renamed(o core.Outcome) core.Outcome {
	if o.NoticeNumber() != 0 || o.Event() != core.EventConfirmed {
		return o
	}
	for _, st := range s.store.States() {
		if ref := o.Ref(); st.Route == ref.Route && st.Seq == ref.Seq {
			return core.Published(&core.Record{Ref: core.Ref{Route: st.Route, Seq: st.Seq, ID: st.ID, Version: st.Version}, Slot: o.Slot()})
		}
	}
	return o
}

// produce is one producer: transactions with some messages of a key each, one after the other.
func (s *sim) produce() {
	if s.quiet {
		return
	}
	tx := s.store.Begin()
	s.n++
	txn := s.n
	var staged []*simMsg
	key := fmt.Sprintf("k%d", s.rnd.IntN(s.cfg.keys))
	length := s.between(0, 20*time.Millisecond)
	switch {
	case s.chance(0.05):
		length = s.between(500*time.Millisecond, 1500*time.Millisecond)
	case s.cfg.long && s.chance(0.02):
		length = s.between(time.Second, 7*s.cfg.lease)
	}
	if left := epochStart.Add(s.cfg.run).Sub(s.now); length > left {
		length = max(left, 0)
	}
	n := 1 + s.rnd.IntN(4)
	restores := s.restores()
	stage := func() {
		id := fmt.Sprintf("m%d", len(s.ids))
		msg := &simMsg{id: id, key: key, tx: txn, after: restores, began: s.now}
		row := core.StagedRow{Envelope: waybill.Envelope{ID: id, Topic: "t", Key: key}, Route: routeName(s.rnd.IntN(max(s.cfg.routes, 1)))}
		if len(staged) > 0 {
			msg.began = staged[0].began
		}
		if s.chance(0.1) {
			row.Envelope.Key, msg.key = "", ""
		}
		if s.cfg.cancel && s.chance(0.3) {
			row.Cancellable = true
		}
		if s.cfg.poison && len(s.ids) == 150 {
			msg.poison = true
		}
		if s.cfg.delay && s.chance(0.1) {
			row.Delay, msg.scheduled = s.between(time.Millisecond, 500*time.Millisecond), true
		}
		if msg.key != "" {
			msg.key = row.Route + "/" + msg.key
		}
		seqs, err := tx.Stage(row)
		if err != nil {
			return // the transaction went away with a restore
		}
		msg.seq = seqs[0]
		s.ids = append(s.ids, id)
		s.msgs[id] = msg
		staged = append(staged, msg)
		s.logf("tx %d stages %s (seq %d, key %s)", txn, id, msg.seq, msg.key)
	}
	for i := range n {
		s.after(length*time.Duration(i)/time.Duration(n), stage)
	}
	s.after(length, func() {
		s.after(s.between(0, s.cfg.pause()), s.produce)
		if s.chance(0.08) {
			tx.Rollback()
			return
		}
		if err := tx.Commit(); err != nil {
			return
		}
		s.logf("tx %d commits", txn)
		for _, msg := range staged {
			msg.committed = s.now
		}
		if s.chance(0.8) {
			s.after(time.Millisecond, func() {
				for _, m := range s.members {
					m.do(func() { m.d.Wake(s.now) })
				}
			})
		}
	})
}

func (s *sim) restores() (n int) {
	for _, i := range s.images {
		if i.img == nil {
			n++
		}
	}
	return n
}

// pickMsg returns a random recent message.
func (s *sim) pickMsg() *simMsg {
	if len(s.ids) == 0 {
		return nil
	}
	from := max(len(s.ids)-60, 0)
	return s.msgs[s.ids[from+s.rnd.IntN(len(s.ids)-from)]]
}

// cancel is a caller that cancels messages, keeps its transaction open for a while, and commits or not.
func (s *sim) cancel() {
	if s.quiet {
		return
	}
	s.after(s.between(0, 60*time.Millisecond), s.cancel)
	tx := s.store.Begin()
	var done []*simMsg
	states := s.store.States()
	for range 1 + s.rnd.IntN(3) {
		var msg *simMsg
		if len(states) > 0 && s.chance(0.7) { // what is there
			msg = s.msgs[states[s.rnd.IntN(len(states))].ID]
		} else {
			msg = s.pickMsg()
		}
		if msg == nil {
			continue
		}
		for i := range max(s.cfg.routes, 1) {
			status, err := tx.Cancel(routeName(i), msg.id)
			if err == nil && status == waybill.CancelDone {
				done = append(done, msg)
			} else if err == nil && status == waybill.CancelUncertain {
				msg.redriven = true // it is gone, but not as if it had never been
				msg := msg
				done = append(done, &simMsg{id: msg.id, abandoned: true})
			}
		}
	}
	hold := s.between(0, 30*time.Millisecond)
	if s.chance(0.1) {
		hold = s.between(100*time.Millisecond, time.Second)
	}
	s.after(hold, func() {
		if s.chance(0.3) {
			tx.Rollback()
			return
		}
		if tx.Commit() != nil {
			return
		}
		for _, msg := range done {
			if real := s.msgs[msg.id]; msg.abandoned {
				real.abandoned = true
				s.logf("%s cancelled, maybe delivered", msg.id)
			} else {
				s.logf("%s cancelled", msg.id)
				msg.cancelled, msg.ended = true, s.now
				if msg.arrivals > 0 && !msg.redriven {
					s.fail("cancelled-published", "%s (seq %d) had arrived", msg.id, msg.seq)
				}
			}
		}
	})
}

// redrive is an operator.
func (s *sim) redrive() {
	if s.quiet {
		return
	}
	s.after(s.between(0, 200*time.Millisecond), s.redrive)
	if s.chance(0.2) {
		s.redriveMany()
		return
	}
	for _, st := range s.store.States() {
		if st.State != core.StateAbandoned && st.State != core.StateFailed || s.chance(0.5) {
			continue
		}
		tx := s.store.Begin()
		if err := tx.Redrive(st.Route, st.ID); err != nil || tx.Commit() != nil {
			tx.Rollback()
			continue
		}
		s.logf("%s is redriven", st.ID)
		s.msgs[st.ID].redriven, s.msgs[st.ID].abandoned = true, false
		return
	}
}

// redriveMany is an operator who puts back all that failed, in one go.
func (s *sim) redriveMany() {
	before := map[string]int64{}
	for _, st := range s.store.States() {
		before[st.Route+" "+st.ID] = st.Version
	}
	if _, err := s.store.Redrive(context.Background(), admin.RedriveRequest{All: true, Force: true}); err != nil {
		s.fail("redrive", "%v", err)
		return
	}
	for _, st := range s.store.States() {
		if before[st.Route+" "+st.ID] != st.Version {
			s.logf("%s is redriven with others", st.ID)
			s.msgs[st.ID].redriven, s.msgs[st.ID].abandoned = true, false
		}
	}
}

// decide is an operator who ends what is due.
func (s *sim) decide() {
	if s.quiet {
		return
	}
	s.after(s.between(0, 300*time.Millisecond), s.decide)
	if s.chance(0.3) {
		s.decideMany()
		return
	}
	for _, st := range s.store.States() {
		if st.State.Terminal() || s.chance(0.8) {
			continue
		}
		msg := s.msgs[st.ID]
		if c, err := s.store.Decide(st.Route, st.Key, st.ID, admin.HeadSkip); err == nil {
			s.logf("an operator ends %s (the owner does: %t)", st.ID, c != nil)
			msg.abandoned, msg.redriven = true, true
			return
		}
	}
}

// requeue is an operator who puts blocking heads back. They keep their place in their key, even if their owner dies.
func (s *sim) requeue() {
	if s.quiet {
		return
	}
	s.after(s.between(0, 400*time.Millisecond), s.requeue)
	for _, st := range s.store.States() {
		if st.State != core.StateAbandoned || !st.Reason.Blocks() || s.chance(0.5) || !s.hinted(&st) && s.chance(0.8) {
			continue
		}
		if _, err := s.store.Decide(st.Route, st.Key, st.ID, admin.HeadRequeue); err == nil {
			s.logf("%s is put back", st.ID)
			msg := s.msgs[st.ID]
			msg.abandoned = false
			delete(s.hands.began, msg) // it begins anew
			delete(s.hands.deaths, msg)
			for _, m := range s.members {
				if rt := m.d.byName[st.Route]; rt != nil && s.chance(0.5) && rt.owned().Has(st.Slot) {
					s.after(s.between(0, 20*time.Millisecond), m.die)
				}
			}
			return
		}
	}
}

// hinted reports whether a record is not above the hint of its partition.
func (s *sim) hinted(st *memory.State) bool {
	r, err := s.store.Heartbeat(context.Background(), core.HeartbeatRequest{})
	return err == nil && slices.ContainsFunc(r.Partitions, func(u core.PartitionState) bool {
		return u.Partition.Route == st.Route && u.Partition.Slots().Has(st.Slot) && u.ReadAfter >= st.Seq
	})
}

// undecided looks for decisions that no member has carried out.
func (s *sim) undecided() {
	request := core.ReadRequest{}
	for i := range max(s.cfg.routes, 1) {
		request.Slots = append(request.Slots, core.RouteSlots{Route: routeName(i), Slots: core.AllSlots})
	}
	for _, m := range s.members {
		if result, err := s.store.Read(context.Background(), m.d.session, request); err == nil && result.IsMember {
			for _, c := range result.Notices {
				s.fail("undecided", "%s of %s", c.ID, c.Route)
			}
			return
		}
	}
}

// fault is what goes wrong now and then.
func (s *sim) fault() {
	if s.quiet {
		return
	}
	s.after(s.between(50*time.Millisecond, 600*time.Millisecond), s.fault)
	alive := slices.DeleteFunc(slices.Clone(s.members), func(m *simMember) bool { return m.dead || m.d.self.stopping })
	if len(alive) == 0 {
		return
	}
	m := alive[s.rnd.IntN(len(alive))]
	if s.cfg.presence && s.chance(0.3) {
		m.cut()
	}
	switch s.rnd.IntN(6) {
	case 0:
		if s.cfg.freeze {
			m.freeze(s.between(10*time.Millisecond, 3*s.cfg.lease))
			if s.chance(0.5) {
				m.cut()
			}
		}
	case 1:
		if s.cfg.kill && len(alive) > 1 {
			s.logf("member %d is killed", m.name)
			m.perish()
			s.after(s.between(0, 2*s.cfg.lease), s.join)
		}
	case 2:
		if s.cfg.join {
			if len(alive) > s.cfg.members {
				s.logf("member %d stops", m.name)
				m.d.Stop()
				m.pump()
				s.after(2*s.cfg.lease, m.perish)
			} else {
				s.join()
			}
		}
	case 3:
		if s.cfg.restore {
			s.goBack()
		}
	case 4:
		if s.cfg.outage && s.chance(0.3) {
			s.down = s.now.Add(s.between(0, 2*s.cfg.lease))
			s.logf("the database is down until %s", s.down.Sub(epochStart))
		}
	case 5:
		if s.cfg.owner && len(alive) > 1 {
			m.d.SetAble(routeName(0), s.chance(0.5))
			m.pump()
		}
	}
}

// goBack keeps images, and sometimes has the database go back to one.
func (s *sim) goBack() {
	if len(s.images) == 0 || s.images[len(s.images)-1].img == nil || s.chance(0.5) {
		s.images = append(s.images, image{s.now, s.store.Snapshot()})
		return
	}
	img := s.images[len(s.images)-1]
	s.store.Restore(img.img)
	s.logf("the database goes back to %s", img.at.Sub(epochStart))
	s.images = append(s.images, image{at: s.now})
	s.undone = map[*Item]bool{} // the database does not know any more that they are out
	for _, m := range s.members {
		for item := range m.out {
			s.undone[item] = true
		}
	}
	for _, msg := range s.msgs {
		if msg.committed.After(img.at) || msg.committed.IsZero() {
			msg.committed, msg.abandoned = time.Time{}, true // it never was
		} else {
			msg.redriven = true
		}
		msg.cancelled = msg.cancelled && msg.ended.Before(img.at)
	}
}

// check looks at the end of every record.
func (s *sim) check() {
	states := map[string]memory.State{}
	for _, st := range s.store.States() {
		states[st.ID] = st
	}
	for _, id := range s.ids {
		msg := s.msgs[id]
		st, there := states[id]
		switch {
		case msg.committed.IsZero():
		case msg.poison && there && st.State == core.StateAbandoned && st.Reason == waybill.ReasonCrashed:
		case msg.poison && (msg.cancelled || msg.abandoned || s.cfg.block && s.behindBlocking(states, msg)):
		case msg.poison:
			s.fail("poison", "%s is %v (crashes %d)", id, st.State, st.Crashes)
		case there && st.State == core.StateAbandoned && st.Reason == waybill.ReasonCrashed:
			s.fail("innocent", "%s (seq %d) was abandoned as crashed", id, msg.seq)
		case there && !st.State.Terminal() && (!s.cfg.block || !s.behindBlocking(states, msg)):
			s.fail("stuck", "%s (seq %d, key %q) is %s, holder %d, attempts %d", id, msg.seq, msg.key, st.State, st.Holder, st.Attempts)
		case !there && msg.arrivals == 0 && !msg.cancelled && !msg.abandoned:
			s.fail("lost", "%s (seq %d, key %q)", id, msg.seq, msg.key)
		}
	}
	s.checkOrder()
	s.undecided()
}

// behindBlocking reports whether an abandoned record holds the message's key.
func (s *sim) behindBlocking(states map[string]memory.State, msg *simMsg) bool {
	for id, st := range states {
		if st.State == core.StateAbandoned && st.Reason.Blocks() && s.msgs[id].key == msg.key && msg.key != "" {
			return true
		}
	}
	return false
}

// checkOrder compares first arrivals of each key: inside a transaction, and between two transactions if one ended
// before the other began.
func (s *sim) checkOrder() {
	if s.cfg.order != waybill.OrderPerKey {
		return
	}
	byKey := map[string][]*simMsg{}
	for _, id := range s.arrivals {
		if msg := s.msgs[id]; msg.key != "" && !msg.redriven && !msg.scheduled && !msg.committed.IsZero() && msg.after == s.restores() {
			byKey[msg.key] = append(byKey[msg.key], msg)
		}
	}
	for _, key := range slices.Sorted(maps0(byKey)) {
		list := byKey[key]
		slices.SortFunc(list, func(a, b *simMsg) int { return cmp.Compare(a.first, b.first) })
		for i, b := range list {
			for _, a := range list[i+1:] { // a came later
				switch {
				case a.tx == b.tx && a.seq < b.seq:
					s.fail("order-in-tx", "%s (seq %d) came after %s (seq %d)", a.id, a.seq, b.id, b.seq)
				case a.tx != b.tx && a.committed.Before(b.began):
					s.fail("order", "%s (seq %d) came after %s (seq %d)", a.id, a.seq, b.id, b.seq)
				}
			}
		}
	}
}

func maps0[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// report says what went wrong, or nothing.
func (s *sim) report() string {
	if len(s.wrong) == 0 {
		return ""
	}
	return fmt.Sprintf("seed %d: %v\n%s", s.cfg.seed, s.wrong, strings.Join(s.firsts, "\n"))
}
