package dispatch

// The world that is explored: members, a store in memory, producers, operators and callers whose transactions stay
// open. Each thing that can happen is an event. A call without an answer at its limit ends with an error. All bounds of
// the dispatcher are tiny, so that a history of ten events reaches them.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

const (
	// tiny worlds go by a grid of a second.
	worldLease, worldPoll = 3 * time.Second, time.Second
	// worldFar is the delay of a retry that is a block reason: it is due after the block reasons have ended.
	worldFar = 10 * time.Minute
)

// scope says how big a world is, and how often each thing can happen in it.
type scope struct {
	name            string
	members, joined int // joined have joined before the history begins
	partitions      int
	routes          []Route
	// staged has been committed before the history begins. txs are transactions that stage during it.
	staged      []letter
	txs         [][]letter
	locked      int // how many of those that were staged are locked by a transaction that stays open
	cancellable bool
	batch       int
	window      int
	keys        int // MaxKeys
	bounds      bounds
	budget      budget
	// breaks is a promise of the store that it breaks.
	breaks string
	// gate and night are how many states are visited in the gate and at night; 0 = all.
	gate, night int
}

// letter is a message to be staged.
type letter struct {
	route, key, topic string
	delay             time.Duration
	expires           time.Duration
}

// budget is how often each thing can still happen.
type budget struct {
	Ticks, Delays                          int // Delays: how often a call does not go in the order of sending
	Slow                                   int // Slow: how often the answer of a call comes late
	Crash, Lose, Late, Freeze, Leave, Able int
	// Outcomes. Far is a retry that is due much later, and Stuck no outcome at all.
	Retry, Far, Unknown, Abandon, Stuck          int
	Pause, Cancel, Lock, Skip, Redrive, Blackout int
}

// grid is the time of the world that runs, for the store, and the source of its sessions.
type grid struct {
	now      time.Time
	sessions *int64
}

// world is a state.
type world struct {
	scope    *scope
	grid     *grid
	store    *memory.Store
	now      time.Time
	sessions int64
	members  []*agent
	ghosts   []*sentCall // lost calls that are executed late
	txs      []*openTx
	letters  []*posted
	paused   map[string]bool // topics
	left     budget
	seen     []core.Session // all that were members at some time
	excused  bool           // a member died, or lost its session: records may go twice
	wrong    string
	phase    int // of the fair continuation
	log      []string
	logs     bool
}

// posted is a message, and its fate.
type posted struct {
	letter
	id        string
	ends      time.Time // when it expires; zero = never
	tx        int
	before    []int // letters of its key that must be done before it is handed out
	committed bool
	done      bool // published
	ended     bool // abandoned or cancelled
	cancelled bool // its cancel said that it was not delivered, and never will be
	handed    bool
	redriven  bool
	unknown   bool
}

// openTx is a transaction of a producer, or of a caller that cancels or locks.
type openTx struct {
	tx      *memory.Tx
	next    int // letters staged
	ended   bool
	locks   int // 1 + the letter that it has cancelled or locked
	cancels bool
	done    bool // its cancel says that the message was not delivered
}

// agent is a process with a dispatcher.
type agent struct {
	d                            *Dispatcher
	dead, frozen, absent, unable bool
	calls                        []*sentCall
	out                          []*Item
	stuck                        []*Item // handed out, and never answered
}

// sentCall is a call under way.
type sentCall struct {
	c    *Call
	done bool // executed
	key  uint64
}

func newWorld(s *scope) *world {
	g := &grid{now: epochStart}
	w := &world{scope: s, grid: g, now: epochStart, left: s.budget, paused: map[string]bool{}}
	g.sessions = &w.sessions
	w.store = newStore(func() time.Time { return g.now })
	w.enter()
	for range s.txs {
		w.txs = append(w.txs, &openTx{})
	}
	for range s.members {
		w.members = append(w.members, &agent{absent: true})
	}
	for i := range s.joined {
		w.join(w.members[i])
	}
	for range 6 { // they share the partitions
		w.drainAll()
		w.advance()
	}
	w.drainAll()
	for i, l := range s.staged {
		tx := w.store.Begin()
		w.stage(tx, l, fmt.Sprintf("s%d", i), -1-i)
		if err := tx.Commit(); err != nil {
			panic(err)
		}
		w.letters[i].committed = true
	}
	for i := range s.locked {
		t := &openTx{tx: w.store.Begin(), locks: i + 1}
		if err := t.tx.Lock(s.staged[i].route, w.letters[i].id); err != nil {
			panic(err)
		}
		w.txs = append(w.txs, t)
	}
	return w
}

// enter makes w the world whose time the store sees.
func (w *world) enter() { w.grid.now, w.grid.sessions = w.now, &w.sessions }

func (w *world) join(m *agent) {
	s, g := w.scope, w.grid
	m.absent = false
	routes := slices.Clone(s.routes)
	for i := range routes {
		routes[i].Partitions = s.partitions
	}
	m.d = New(Options{
		Name: "m", Routes: routes, Lease: worldLease, Batch: s.batch, Window: s.window, MaxKeys: s.keys, Gather: -1, PollMin: worldPoll, PollMax: worldPoll,
		Handlers:   w.handlers(),
		NewSession: func() core.Session { *g.sessions++; return core.Session(*g.sessions) },
	})
	m.d.noSweeps = true
	m.d.bounds = s.bounds
	for topic := range w.paused {
		w.block(m, topic, true)
	}
	w.pump(m)
}

func (w *world) logf(format string, args ...any) {
	if w.logs {
		w.log = append(w.log, fmt.Sprintf("%8s  ", w.now.Sub(epochStart))+fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

func (w *world) index(m *agent) int { return slices.Index(w.members, m) }

// pump makes a member send all calls and hand out all records that it can.
func (w *world) pump(m *agent) {
	if m.dead || m.frozen || m.absent {
		return
	}
	for range 20 {
		limit := w.setFree(m)
		calls := m.d.Calls(w.now)
		for _, c := range calls {
			key := uint64(c.kind)<<40 | uint64(c.gen)<<20
			if o, ok := c.op.(*releaseOp); ok {
				key |= uint64(o.u.From)<<8 | uint64(slices.IndexFunc(w.scope.routes, func(r Route) bool { return r.Name == o.u.Route }))
			}
			m.calls = append(m.calls, &sentCall{c: c, key: key})
		}
		if len(calls) > 0 {
			slices.SortStableFunc(m.calls, func(a, b *sentCall) int { return cmp.Compare(a.key, b.key) })
		}
		handed := 0
		for i := range w.scope.routes {
			for _, item := range m.d.HandOut(w.now, w.scope.routes[i].Name, limit) {
				handed++
				w.send(m, item)
			}
		}
		if len(calls)+handed == 0 {
			return
		}
	}
	w.fail("spins: member %d finds work for ever", w.index(m))
}

// setFree tells a member how many handlers are free, and returns how many records it may hand out.
func (w *world) setFree(m *agent) (limit int) {
	n := w.handlers()
	if n == 0 {
		m.d.SetFree(1)
		return 10
	}
	limit = n - len(m.out) - len(m.stuck)
	m.d.SetFree(limit)
	return limit
}

// handlers is how many records of queues a member may have out.
func (w *world) handlers() int {
	if w.scope.routes[0].Queue {
		return w.scope.window
	}
	return 0
}

func (w *world) posted(id string) *posted {
	for _, p := range w.letters {
		if p.id == id {
			return p
		}
	}
	return nil
}

// known reports whether a session is a member.
func (w *world) known(s core.Session) bool {
	result, err := w.store.Read(context.Background(), s, core.ReadRequest{})
	return err == nil && result.IsMember
}

// send checks that a member may hand a record out now.
func (w *world) send(m *agent, item *Item) {
	p := w.posted(item.Record.Envelope.ID)
	w.logf("m%d hands out %s (key %q, topic %s)", w.index(m), p.id, p.key, p.topic)
	if !w.now.Before(m.d.StartBy()) {
		w.fail("deadline: %s is handed out after it", p.id)
	}
	if !w.known(m.d.session) {
		w.fail("removed: a member that was removed hands out %s", p.id)
	}
	for _, o := range w.members {
		for _, other := range slices.Concat(o.out, o.stuck) {
			if !o.dead && !o.frozen && other.Record.Envelope.ID == p.id && (o == m || !other.Lost() && w.now.Before(o.d.StartBy())) {
				w.fail("two at once: %s", p.id)
			}
		}
		if o.d != nil && (o.dead || o.d.session != 0 && !w.known(o.d.session) && o.d.self.joined) {
			w.excused = true
		}
	}
	if p.done && !p.unknown && !w.excused {
		w.fail("doubled: %s", p.id)
	}
	for _, i := range p.before {
		if b := w.letters[i]; !b.done && !b.ended && !b.redriven && !p.redriven {
			w.fail("order: %s is handed out before %s", p.id, b.id)
		}
	}
	if !p.done {
		at := slices.Index(w.letters, p)
		for _, b := range w.letters {
			if b.handed && !p.redriven && b != p && slices.Contains(b.before, at) {
				w.fail("order: %s is handed out again after %s", p.id, b.id)
			}
		}
	}
	if p.cancelled && !w.excused {
		w.fail("cancelled: %s is handed out all the same", p.id)
	}
	if w.paused[p.topic] && !item.held && !p.expired(w.now) {
		w.fail("paused: %s is handed out although its topic is paused", p.id)
	}
	p.handed = true
	m.out = append(m.out, item)
}

// coarse makes transaction ids as coarse as those of Postgres, and breaks a promise if it is told to.
type coarse struct {
	core.OutboxStore
	w *world
}

func (st *coarse) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	result, err := st.OutboxStore.Read(ctx, self, request)
	ended := result.SnapshotXmax - 1
	for ended > 0 && slices.Contains(result.RunningTxs, ended) {
		ended--
	}
	result.SnapshotXmax = ended + 1
	result.RunningTxs = slices.DeleteFunc(result.RunningTxs, func(m int64) bool { return m >= result.SnapshotXmax })
	return result, err
}

func (st *coarse) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	if st.w.scope.breaks == "NoHolds" {
		out = nil
	}
	return st.OutboxStore.ReleasePartition(ctx, self, partition, out)
}

func (w *world) exec(x *sentCall, who int) {
	x.done = true
	before := w.known(x.c.gen)
	x.c.Do(context.Background(), &coarse{w.store, w})
	if !before && w.known(x.c.gen) {
		if slices.Contains(w.seen, x.c.gen) {
			w.fail("revived: a session that was removed is a member again")
		}
		w.seen = append(slices.Clone(w.seen), x.c.gen)
	}
	if x.c.err != nil {
		w.logf("m%d: %s: %v", who, x.c.kind, x.c.err)
	}
	if x.c.kind != CallHeartbeat {
		return
	}
	for i, m := range w.members {
		if m.d == nil || m.d.session == 0 || !m.d.self.joined || m.d.self.stopping || w.known(m.d.session) {
			continue
		}
		w.excused = true
		if b := &w.scope.budget; !m.dead && b.Freeze+b.Lose+b.Late == 0 && b.Delays <= 2 {
			w.fail("alive: member %d was removed", i)
		}
	}
}

func (w *world) execOnce(x *sentCall, who int) {
	if !x.done {
		w.exec(x, who)
	}
}

func (w *world) answer(m *agent, x *sentCall) {
	m.calls = slices.DeleteFunc(m.calls, func(y *sentCall) bool { return y == x })
	m.d.Done(w.now, x.c)
	w.pump(m)
}

// first returns the call of a member that was sent first, or nil.
func (m *agent) first() (x *sentCall) {
	for _, y := range m.calls {
		if x == nil || y.c.sent.Before(x.c.sent) {
			x = y
		}
	}
	return x
}

// drain executes and answers all calls of a member, and publishes all that it hands out, until it rests.
func (w *world) drain(m *agent) {
	for i := 0; !m.dead && !m.absent && w.wrong == ""; i++ {
		if i == 300 {
			w.fail("spins: member %d does not rest", w.index(m))
		}
		if x := m.first(); x != nil {
			w.execOnce(x, w.index(m))
			w.answer(m, x)
		} else if len(m.out) > 0 {
			w.conclude(m, m.out[0], w.fate(m.out[0]))
		} else {
			return
		}
	}
}

func (w *world) drainAll() {
	for _, m := range w.members {
		w.drain(m)
	}
}

// The ways in which a record is concluded.
const (
	outDone = iota
	outRetry
	outFar
	outUnknown
	outAbandon
	outStuck
	outExpired
)

var outNames = [...]string{"published", "retry", "far", "unknown", "abandoned", "stuck", "expired"}

func (w *world) conclude(m *agent, item *Item, how int) {
	m.out = slices.DeleteFunc(m.out, func(o *Item) bool { return o == item })
	p, r := w.posted(item.Record.Envelope.ID), &item.Record
	w.logf("m%d: %s: %s", w.index(m), p.id, outNames[how])
	var o core.Outcome
	switch how {
	case outDone:
		p.done, o = true, core.Published(r)
	case outRetry:
		o = core.Retry(r, nil, worldPoll)
	case outFar:
		o = core.Retry(r, nil, worldFar)
	case outUnknown:
		p.unknown, o = true, core.Release(r, 0, true)
	case outAbandon:
		p.ended, o = true, core.Abandon(r, waybill.ReasonRejected, nil)
	case outStuck:
		m.stuck = append(m.stuck, item)
		return
	case outExpired:
		p.ended, o = true, core.Abandon(r, waybill.ReasonExpired, nil)
	}
	m.d.Conclude(w.now, item, o)
	w.pump(m)
}

// fate is how a record is concluded if nothing goes wrong.
func (w *world) fate(item *Item) int {
	if w.posted(item.Record.Envelope.ID).expired(w.now) {
		return outExpired
	}
	return outDone
}

// expired reports whether a message has expired.
func (p *posted) expired(now time.Time) bool { return !p.ends.IsZero() && !p.ends.After(now) }

// advance moves the time to the next timer of a member, or to a limit of a call before it. Without a timer, all that
// can happen is under way: a little time passes.
func (w *world) advance() {
	var next, limit time.Time
	for _, m := range w.members {
		switch {
		case m.dead, m.absent:
		case m.frozen:
			next = earliest(next, m.d.Deadline())
		default:
			next = earliest(next, m.d.Next())
			for _, x := range m.calls {
				limit = earliest(limit, x.overdueAt())
			}
		}
	}
	if !next.IsZero() {
		next = earliest(next, limit)
	}
	w.at(later(next, w.now.Add(10*time.Millisecond)))
}

// at moves the time. A member that is frozen does not see that a call has reached its limit. When it goes on, the
// answer can come first.
func (w *world) at(t time.Time) {
	w.now = t
	w.enter()
	for _, m := range w.members {
		if !m.dead && !m.absent && !m.frozen {
			w.giveUp(m)
		}
		w.pump(m)
	}
}

// overdueAt returns when a call reaches its limit.
func (x *sentCall) overdueAt() time.Time { return x.c.sent.Add(x.c.Limit()) }

// giveUp ends the calls of a member that have no answer at their limit, whatever the store did: a call has a context
// with a deadline.
func (w *world) giveUp(m *agent) {
	for _, x := range slices.Clone(m.calls) {
		if w.now.Before(x.overdueAt()) {
			continue
		}
		w.logf("m%d: %s: no answer at its limit, executed: %t", w.index(m), x.c.kind, x.done)
		x.c.Lose(errLost)
		m.calls = slices.DeleteFunc(m.calls, func(y *sentCall) bool { return y == x })
		m.d.Done(w.now, x.c)
	}
}

func (w *world) stage(tx *memory.Tx, l letter, id string, i int) {
	p := &posted{letter: l, id: id, tx: i}
	e := waybill.Envelope{ID: id, Topic: l.topic, Key: l.key}
	if l.expires > 0 {
		p.ends = w.now.Add(l.expires)
		e.Expires = p.ends
	}
	if _, err := tx.Stage(core.StagedRow{Envelope: e, Route: l.route, Delay: l.delay, Cancellable: w.scope.cancellable}); err != nil {
		panic(err)
	}
	mine := slices.ContainsFunc(w.letters, func(o *posted) bool { return o.tx == i })
	for j, b := range w.letters { // of the same transaction, or committed before this one began
		if l.key != "" && l.delay == 0 && b.delay == 0 && b.key == l.key && b.route == l.route && (b.tx == i || b.committed && !mine) {
			p.before = append(p.before, j)
		}
	}
	if mine { // letters before the first are before the others
		first := w.letters[slices.IndexFunc(w.letters, func(o *posted) bool { return o.tx == i })]
		for _, j := range first.before {
			if b := w.letters[j]; l.key != "" && l.delay == 0 && b.key == l.key && b.route == l.route && !slices.Contains(p.before, j) {
				p.before = append(p.before, j)
			}
		}
	}
	w.letters = append(w.letters, p)
	w.logf("%s is staged (key %q, topic %s)", id, l.key, l.topic)
}

func (w *world) block(m *agent, topic string, blocked bool) {
	if m.d == nil || m.dead {
		return
	}
	for i := range w.scope.routes {
		m.d.PauseTopic(w.scope.routes[i].Name, topic, blocked)
	}
	w.pump(m)
}

func (w *world) pauseTopic(topic string, pause bool) {
	if pause {
		w.paused[topic] = true
	} else {
		delete(w.paused, topic)
	}
	w.logf("topic %s: paused: %t", topic, pause)
	for _, m := range w.members {
		w.block(m, topic, pause)
	}
}

// endTx ends the transaction of a caller. It reports whether it did so now.
func (w *world) endTx(t *openTx, commit bool) {
	t.ended = true
	p := w.letters[t.locks-1]
	if !commit {
		t.tx.Rollback()
		w.logf("the transaction that has locked %s rolls back", p.id)
		return
	}
	if err := t.tx.Commit(); err != nil {
		panic(err)
	}
	w.logf("the transaction that has cancelled %s commits", p.id)
	p.ended = true
	if t.done {
		p.cancelled = true
		if p.done && !p.unknown && !w.excused {
			w.fail("cancelled: %s was published before", p.id)
		}
	}
}

// states returns the stored records by id.
func (w *world) states() map[string]*memory.State {
	states := map[string]*memory.State{}
	all := w.store.States()
	for i := range all {
		states[all[i].ID] = &all[i]
	}
	return states
}

// check fails the world if a message is lost.
func (w *world) check() {
	states := w.states()
	for _, p := range w.letters {
		if p.committed && !p.ended && !p.done && states[p.id] == nil {
			w.fail("lost: %s", p.id)
		}
	}
	for i, m := range w.members {
		if m.d == nil || m.dead {
			continue
		}
		for _, rt := range m.d.routes {
			if n := rt.waitingKeys(); n > w.scope.keys {
				w.fail("memory: member %d remembers %d keys that wait", i, n)
			}
			if n := rt.load.locked; 2*n > 3*w.scope.window {
				w.fail("memory: member %d remembers %d outcomes that wait for locks", i, n)
			}
		}
	}
}

// waitingKeys is how many keys are remembered because they wait.
func (rt *route) waitingKeys() (n int) {
	for _, k := range rt.keys {
		if len(k.queue)+k.busy+len(k.unstored) == 0 && !k.listed && (len(k.blockers) > 0 || k.topic != "") {
			n++
		}
	}
	return n
}

// obstructed returns the letters that wait for a reason: a block reason that stays until another process ends it.
func (w *world) obstructed(states map[string]*memory.State) map[string]bool {
	out := map[string]bool{}
	stuck := map[string]bool{} // ids, and routes
	for _, m := range w.members {
		for _, item := range m.stuck {
			if !m.dead {
				stuck[item.Record.Envelope.ID], stuck["route "+item.Route()] = true, true
			}
		}
	}
	for _, p := range w.letters {
		st := states[p.id]
		own := st != nil && (st.Locked || st.Waits && st.DueIn > time.Minute) || w.paused[p.topic] && !p.expired(w.now) || stuck[p.id] || stuck["route "+p.route]
		if own && st != nil && !st.Settled() || st != nil && st.Settled() && st.State == core.StateAbandoned && st.Reason.Blocks() && w.blocks(p.route) {
			out[p.id] = true
			continue
		}
		if p.key == "" || st == nil {
			continue
		}
		for _, b := range w.letters {
			bs := states[b.id]
			if b.key == p.key && b.route == p.route && out[b.id] && bs.Seq < st.Seq {
				out[p.id] = true
			}
		}
	}
	return out
}

func (w *world) blocks(route string) bool {
	return slices.ContainsFunc(w.scope.routes, func(r Route) bool { return r.Name == route && r.Blocks })
}

// waiting returns the first letter that is committed and not settled, and waits for no reason; all: or for a reason.
func (w *world) waiting(all bool) string {
	states := w.states()
	why := w.obstructed(states)
	for _, p := range w.letters {
		st := states[p.id]
		if p.committed && !p.ended && st == nil && !p.done {
			w.fail("lost: %s", p.id)
		}
		if p.committed && st != nil && !st.Settled() && (all || !why[p.id]) {
			return p.id
		}
	}
	return ""
}

// rounds bounds the fair continuation. Each goes to the next timer.
const rounds = 150

// goOn is the fair continuation, in two phases. At first all block reasons stay: locks, paused topics, retries that are
// due much later, records that are never answered for, blocked keys. Letters without a block reason must go. Then the
// block reasons end, and all must go.
func (w *world) goOn(good func() bool) string {
	w.enter()
	w.phase, w.left = 1, budget{}
	w.logf("-- from here on fair; block reasons stay")
	for _, x := range w.ghosts {
		w.exec(x, 9)
	}
	w.ghosts = nil
	for _, m := range w.members {
		if m.frozen {
			m.frozen = false
			w.pump(m)
		}
		if m.absent {
			w.join(m)
		}
		if m.unable && !m.dead {
			w.able(m)
		}
	}
	if !slices.ContainsFunc(w.members, func(m *agent) bool { return !m.dead && !m.d.self.left && !m.d.self.stopping }) {
		m := &agent{}
		w.members = append(w.members, m)
		w.join(m)
	}
	for w.phase < 3 && w.wrong == "" {
		rest := ""
		for range rounds {
			w.drainAll()
			if rest = w.waiting(w.phase == 2); rest == "" || w.wrong != "" {
				break
			}
			if good() {
				return w.wrong
			}
			w.advance()
		}
		if w.wrong == "" && rest != "" {
			w.fail("%s: %s", map[int]string{1: "starved: waits for no reason", 2: "stuck: waits for ever"}[w.phase], rest)
		}
		if w.phase++; w.phase == 2 && w.wrong == "" {
			w.endBlockReasons()
		}
	}
	return w.wrong
}

func (w *world) endBlockReasons() {
	w.logf("-- all block reasons end")
	for i, t := range w.txs {
		for !t.ended {
			if t.locks > 0 {
				w.endTx(t, false)
			} else {
				w.txStep(i)
			}
		}
	}
	for topic := range w.paused { // one at most has several
		w.pauseTopic(topic, false)
	}
	for _, m := range w.members {
		if stuck := m.stuck; !m.dead {
			m.stuck = nil
			for _, item := range stuck {
				m.out = append(m.out, item)
				w.conclude(m, item, outDone)
			}
		}
	}
	for _, st := range w.store.States() {
		if st.State == core.StateAbandoned && st.Reason.Blocks() && w.blocks(st.Route) && st.Key != "" {
			if _, err := w.store.Decide(st.Route, st.Key, st.ID, admin.HeadSkip); err == nil {
				w.logf("an operator skips %s", st.ID)
			}
		}
	}
	w.at(w.now.Add(worldFar))
}

func (w *world) able(m *agent) {
	m.unable = !m.unable
	w.logf("m%d is able: %t", w.index(m), !m.unable)
	for i := range w.scope.routes {
		m.d.SetAble(w.scope.routes[i].Name, !m.unable)
	}
	w.pump(m)
}

// txStep makes the next step of a producer's transaction.
func (w *world) txStep(i int) {
	t := w.txs[i]
	if t.tx == nil {
		t.tx = w.store.Begin()
	}
	if letters := w.scope.txs[i]; t.next < len(letters) {
		w.stage(t.tx, letters[t.next], fmt.Sprintf("%c%d", 'a'+i, t.next), i)
		t.next++
		return
	}
	if err := t.tx.Commit(); err != nil {
		panic(err)
	}
	t.ended = true
	w.logf("transaction %c commits", 'a'+i)
	for _, p := range w.letters {
		if p.tx == i {
			p.committed = true
		}
	}
}

// wrongKind is the part of a failure that names the promise.
func wrongKind(wrong string) string {
	kind, _, _ := strings.Cut(wrong, ":")
	return kind
}
