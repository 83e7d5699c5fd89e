package dispatch

// The dispatcher is explored: every interleaving of small worlds, with bounds that a few records reach.

import (
	"cmp"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/statespace"
	"github.com/waybill-go/waybill/internal/tier"
)

// worldRules say which fields of a world decide about nothing.
var worldRules = statespace.Rules{
	Age: 12 * time.Second,
	Unhashed: strings.Fields(`
		memory.Store.signal memory.Store.listened memory.Store.changes memory.Store.open memory.Store.limits memory.Store.stamp
		memory.Store.inbox memory.Store.cleaner memory.Store.holders memory.Store.told
		memory.member.held memory.member.seen
		memory.route.ready memory.route.free memory.route.timers memory.route.retries memory.route.unready memory.route.aged memory.route.expires
		memory.route.settled memory.route.counts memory.route.version memory.route.seen memory.route.rung memory.route.keys memory.route.byID
		memory.route.bySlot
		memory.record.since memory.record.settledAt memory.record.errAt memory.record.lastErr memory.Tx.done
		core.Record.DueFor core.Member.Name core.ServedRoute.HandedOut core.ServedRoute.OldestHandedOut
		dispatch.env.now dispatch.Dispatcher.err dispatch.reads.count
		dispatch.world.now dispatch.world.log dispatch.world.logs`),
	Shared: strings.Fields(`
		memory.Store.stamper memory.Store.now memory.Store.born memory.Store.retention memory.Store.bounds memory.Store.mu
		memory.step.undo
		dispatch.env.opts dispatch.env.noSweeps dispatch.env.bounds dispatch.route.Route
		dispatch.world.scope dispatch.world.grid`),
	While: map[string]string{"memory.record.due": "waiting"},
	Types: []reflect.Type{
		reflect.TypeFor[*readOp](), reflect.TypeFor[*holdOp](), reflect.TypeFor[*dueOp](), reflect.TypeFor[*settleOp](), reflect.TypeFor[*heartbeatOp](), reflect.TypeFor[*releaseOp](),
	},
	Order: func(a, b any) int {
		if x, ok := a.(*Item); ok {
			return cmp.Compare(x.Record.Seq, b.(*Item).Record.Seq)
		}
		seq := func(v any) int64 { return reflect.ValueOf(v).Elem().FieldByName("seq").Int() }
		return cmp.Compare(seq(a), seq(b))
	},
}

var worldModel = sync.OnceValues(func() (*statespace.Model[world], error) { return statespace.NewModel[world](worldRules) })

// space returns the state space of a scope.
func (s *scope) space(t *testing.T) statespace.Space[world, act] {
	t.Helper()
	m, err := worldModel()
	if err != nil {
		t.Fatal(err)
	}
	return statespace.Space[world, act]{
		Model: m, Start: func() *world { return newWorld(s) }, Now: func(w *world) time.Time { return w.now },
		Events: (*world).events, Do: (*world).do,
		Wrong:    func(w *world) string { return wrongKind(w.wrong) },
		Continue: func(w *world, good func() bool) string { return wrongKind(w.goOn(good)) },
	}
}

func history(acts []act) string {
	names := make([]string, len(acts))
	for i, a := range acts {
		names[i] = a.String()
	}
	return strings.Join(names, "; ")
}

// TestExplore visits the states of all scopes, and keeps every promise in each of them. From each state everything that
// nothing obstructs goes, and all goes when the block reasons end.
// TE-09.
func TestExplore(t *testing.T) { //nolint:tparallel // one search at a time: its worlds fill the memory
	t.Parallel()
	states := 0
	for i := range scopes {
		s := &scopes[i]
		t.Run(s.name, func(t *testing.T) { states += explore(t, s, uint64(i)) })
	}
	t.Logf("%d states", states)
}

// explore visits the states of one scope, and returns how many it has visited.
func explore(t *testing.T, s *scope, seed uint64) int {
	t.Helper()
	space := s.space(t)
	space.Limit, space.First = s.gate/modelled, true
	space.Random = rand.New(rand.NewPCG(1, seed))
	if tier.IsNightly() && modelled == 1 {
		space.Limit, space.First, space.Random = s.night, false, nil
	}
	r := space.Search()
	t.Logf("%d states, %d transitions, %d events deep, complete: %t", r.States, r.Transitions, r.Depth, r.Complete)
	for _, f := range r.Failures {
		t.Errorf("after %s\n%s", history(f.History), tell(s, history(f.History)))
	}
	return r.States
}

// tell returns the events of a history, and of its fair continuation.
func tell(s *scope, written string) string {
	w, err := replay(s, written, true)
	if err != nil {
		return err.Error()
	}
	w.goOn(func() bool { return false })
	return strings.Join(append(w.log, w.wrong), "\n")
}

// TestExploredCopies: a copy of a world runs like the world, and does not change it.
func TestExploredCopies(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 1))
	for i := range scopes {
		s := &scopes[i]
		m := s.space(t).Model
		for range 60 / len(scopes) {
			w := newWorld(s)
			for range 40 {
				evs := w.events()
				if len(evs) == 0 {
					break
				}
				e := evs[rnd.IntN(len(evs))]
				before := m.Hash(w, w.now)
				a := m.Copy(w)
				if m.Hash(a, a.now) != before {
					t.Fatalf("%s: a copy has another hash than its original", s.name)
				}
				b := m.Copy(a)
				a.do(e)
				if m.Hash(w, w.now) != before || m.Hash(b, b.now) != before {
					t.Fatalf("%s: %v in a copy changes its original", s.name, e)
				}
				b.do(e)
				w.do(e)
				if after := m.Hash(w, w.now); m.Hash(a, a.now) != after || m.Hash(b, b.now) != after {
					t.Fatalf("%s: a copy runs differently after %v", s.name, e)
				}
			}
		}
	}
}

// TestExploredHistories lets the shortest histories happen that once broke a promise.
func TestExploredHistories(t *testing.T) {
	t.Parallel()
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			w, err := replay(scopeOf(h.in), h.events, true)
			if err != nil {
				t.Fatal(err)
			}
			w.goOn(func() bool { return false })
			if w.wrong != "" {
				t.Errorf("%s:\n%s", w.wrong, strings.Join(w.log, "\n"))
			}
		})
	}
}

// TestRenewalWithoutAnswerIsRepeated: a renewal that the store has carried out, and whose answer never comes, ends at
// its limit. The next one comes within the lease, so that the other member removes none.
func TestRenewalWithoutAnswerIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(scopeOf("a move at the bound of keys"))
	w.logs = true
	var hung *sentCall
	for end := w.now.Add(4 * worldLease); w.now.Before(end) && w.wrong == ""; w.advance() {
		m := w.members[1]
		for _, x := range slices.Clone(m.calls) {
			switch {
			case hung == nil && x.c.kind == CallHeartbeat:
				hung = x
				w.exec(x, 1)
			case x != hung:
				w.execOnce(x, 1)
				w.answer(m, x)
			}
		}
		for len(m.out) > 0 {
			w.conclude(m, m.out[0], outDone)
		}
		w.drain(w.members[0])
	}
	if w.wrong != "" || hung == nil || hung.c.Err() == nil {
		t.Errorf("hung: %v; %s:\n%s", hung, w.wrong, strings.Join(w.log, "\n"))
	}
}

// TestJoinWithoutAnswer: a member whose Join had no answer joins as another session. It removes the first one as soon
// as it sees it, whether that Join was executed at once or comes late. A member that stops instead removes it, too.
func TestJoinWithoutAnswer(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		w, m, ghost := lostJoin(!late)
		for !m.d.self.joined && w.wrong == "" {
			w.advance()
			w.drainAll()
		}
		if late {
			w.exec(&sentCall{c: ghost}, 9)
		}
		for end := w.now.Add(worldLease); late && w.known(ghost.gen) && w.now.Before(end) && w.wrong == ""; w.drainAll() {
			w.advance()
		}
		if w.wrong != "" || w.known(ghost.gen) || !w.known(m.d.session) || m.d.session == ghost.gen {
			t.Errorf("late %t: session %d is a member: %t; session %d: %t; %s", late, ghost.gen, w.known(ghost.gen), m.d.session, w.known(m.d.session), w.wrong)
		}
	}
	w, m, ghost := lostJoin(true)
	m.d.Stop()
	for !m.d.self.left && w.wrong == "" {
		w.advance()
		w.drainAll()
	}
	if w.wrong != "" || w.known(ghost.gen) {
		t.Errorf("after a stop session %d is a member: %t; %s", ghost.gen, w.known(ghost.gen), w.wrong)
	}
}

// lostJoin returns a world in which a Join of a second member had no answer, and that Join.
func lostJoin(executed bool) (*world, *agent, *Call) {
	w := newWorld(scopeOf("a join is lost, and executed late"))
	m := w.members[1]
	w.join(m)
	lost := m.calls[0]
	ghost := *lost.c
	if executed {
		w.exec(lost, 1)
	}
	lost.c.Lose(errLost)
	w.answer(m, lost)
	return w, m, &ghost
}

func scopeOf(name string) *scope {
	return &scopes[slices.IndexFunc(scopes, func(s scope) bool { return s.name == name })]
}
