package outboxtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// member is one member that a check plays.
type member struct {
	k     *kit
	store core.OutboxStore
	self  core.Member
}

// stranger returns a member that has not joined. Every second one uses the second store.
func (k *kit) stranger(units int) *member {
	m := &member{k: k, store: k.other(), self: core.Member{
		Session: core.Session(rand.Int64N(1<<62) + 1), Name: "outboxtest", Beat: 1, Lease: 10 * time.Second,
		Serves: []core.Serving{{Route: k.route, Units: units}}, Handlers: 1, Free: 1,
	}}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.members = append(k.members, m); len(k.members)%2 == 1 {
		m.store = k.store
	}
	return m
}

// join returns a member that has joined; it makes units if the route has none.
func (k *kit) join(units int) *member {
	m := k.stranger(units)
	if r := m.join(); !r.Known {
		k.fail("a member joined and the answer says that it is not known")
	}
	return m
}

func (m *member) join() *core.Roster {
	return m.meet(func(x *core.Meeting) { x.Join = true })
}

// joinCrowd is join for one of many at once. A store may answer one that waited for long for the others with an outage,
// as a busy database does. An engine asks again then, and so does this.
func (m *member) joinCrowd() *core.Roster {
	for range 20 {
		r, err := m.store.Meet(m.k.ctx, core.Meeting{Self: m.self, Join: true})
		if err == nil || waybill.ClassOf(err) != waybill.ClassOutage {
			m.k.must("meet", err)
			m.k.checkRoster(&r)
			return &r
		}
	}
	return m.join()
}

// owner returns a member that owns all of the route, in so many units.
func (k *kit) owner(units int) *member {
	m := k.join(units)
	m.claim(core.AllSlots)
	return m
}

// meet renews m and checks what every answer must be like.
func (m *member) meet(mods ...func(x *core.Meeting)) *core.Roster {
	x := core.Meeting{Self: m.self}
	for _, mod := range mods {
		mod(&x)
	}
	r, err := m.store.Meet(m.k.ctx, x)
	m.k.must("meet", err)
	m.k.checkRoster(&r)
	return &r
}

func moves(ms ...core.Move) func(x *core.Meeting) {
	return func(x *core.Meeting) { x.Moves = append(x.Moves, ms...) }
}

func (m *member) remove(dead *member) func(x *core.Meeting) {
	return func(x *core.Meeting) {
		x.Remove = append(x.Remove, core.Removal{Session: dead.self.Session, Beat: dead.self.Beat})
	}
}

// flag flags m, if its presence is still the given one.
func (m *member) flag(presence int64) func(x *core.Meeting) {
	return func(x *core.Meeting) {
		x.Flag = append(x.Flag, core.Flagging{Session: m.self.Session, Presence: presence})
	}
}

func leave(x *core.Meeting) { x.Leave = true }

func (k *kit) checkRoster(r *core.Roster) {
	seen := map[core.Session]bool{}
	for i := range r.Members {
		if s := r.Members[i].Session; s == 0 || seen[s] {
			k.fail("a roster has the session %d twice, or 0", s)
		}
		seen[r.Members[i].Session] = true
	}
	k.units(r)
}

// units returns the units of the check's route, in order; they must cover it exactly once.
func (k *kit) units(r *core.Roster) []core.OwnedUnit {
	var own []core.OwnedUnit
	for _, u := range r.Units {
		if u.Unit.Route == k.route {
			own = append(own, u)
		}
	}
	slices.SortFunc(own, func(a, b core.OwnedUnit) int { return int(a.Unit.From) - int(b.Unit.From) })
	next := uint8(0)
	for _, u := range own {
		if u.Unit.From != next || u.Unit.To <= u.Unit.From {
			k.fail("a unit has the slots [%d, %d), but the next one that no unit covers is %d", u.Unit.From, u.Unit.To, next)
		}
		next = u.Unit.To
	}
	if len(own) > 0 && next != core.NumSlots {
		k.fail("the units of a route cover the slots up to %d, want %d", next, core.NumSlots)
	}
	return own
}

// look returns the roster as it is, without being in it.
func (k *kit) look() *core.Roster {
	r, err := k.store.Meet(k.ctx, core.Meeting{})
	k.must("look", err)
	k.checkRoster(&r)
	return &r
}

// claim makes m the owner of all units within slots that are free, and fails if it owns not all of them afterwards.
func (m *member) claim(slots core.Slots) {
	r := m.meet()
	var ms []core.Move
	for _, u := range m.k.units(r) {
		if u.Owner == 0 && u.Unit.Slots()&^slots == 0 {
			ms = append(ms, core.Move{Unit: u.Unit, To: m.self.Session})
		}
	}
	r = m.meet(moves(ms...))
	if got := m.k.slotsOf(r, m.self.Session); got&slots != slots {
		m.k.fail("a member took free units and owns %d slots of them, want %d", (got & slots).Len(), slots.Len())
	}
}

// free gives up all units within slots by moves.
func (m *member) free(slots core.Slots) {
	r := m.meet()
	var ms []core.Move
	for _, u := range m.k.units(r) {
		if u.Owner == m.self.Session && u.Unit.Slots()&^slots == 0 {
			ms = append(ms, core.Move{Unit: u.Unit, From: m.self.Session})
		}
	}
	r = m.meet(moves(ms...))
	if got := m.k.slotsOf(r, m.self.Session); got&slots != 0 {
		m.k.fail("a member freed its units and owns %d slots of them", (got & slots).Len())
	}
}

// slotsOf returns the slots of the check's route that s owns.
func (k *kit) slotsOf(r *core.Roster, s core.Session) (slots core.Slots) {
	for _, u := range k.units(r) {
		if u.Owner == s {
			slots |= u.Unit.Slots()
		}
	}
	return slots
}

// find returns a member of a roster, or nil.
func find(r *core.Roster, s core.Session) *core.Member {
	for i := range r.Members {
		if r.Members[i].Session == s {
			return &r.Members[i]
		}
	}
	return nil
}

// die has m removed by by, which must work soon: a removal may meet another statement's lock.
func (m *member) die(by *member) {
	m.k.until("a member whose beat stands still was removed", func() bool {
		return find(by.meet(by.remove(m)), m.self.Session) == nil
	})
}

func (m *member) take(w core.Want) []core.Taken {
	ts, err := m.store.Take(m.k.ctx, m.self.Session, w)
	m.k.must("take", err)
	if len(w.Refs) > 0 && w.N == 0 && len(ts) != len(w.Refs) {
		m.k.fail("take answered %d records for %d refs", len(ts), len(w.Refs))
	}
	return ts
}

// hold takes refs, each of which must be gripped.
func (m *member) hold(refs ...core.Ref) []core.Taken {
	ts := m.take(core.Want{Refs: refs})
	for i := range ts {
		if ts[i].Grip != core.GripHeld {
			m.k.fail("take of record %d of %d answered grip %d, want it gripped", i, len(refs), ts[i].Grip)
		}
	}
	return ts
}

// next takes the next n without a key.
func (m *member) next(n int, mods ...func(w *core.Want)) []core.Taken {
	w := core.Want{Part: m.k.all(), N: n, Bytes: 1 << 20}
	for _, mod := range mods {
		mod(&w)
	}
	ts := m.take(w)
	if len(ts) > n {
		m.k.fail("take of the next %d answered %d", n, len(ts))
	}
	for i := range ts {
		switch t := &ts[i]; {
		case t.Grip != core.GripHeld:
			m.k.fail("take of the next %d answered grip %d", n, t.Grip)
		case t.Record == nil || t.Record.Ref != t.Ref:
			m.k.fail("take of the next %d answered a record without its body, or another one's", n)
		case t.Record.Envelope.Key != "":
			m.k.fail("take of the next %d without a key answered one with the key %q", n, t.Record.Envelope.Key)
		}
	}
	return ts
}

func (m *member) due(limit int) core.DuePage { return m.duePart(m.k.all(), limit) }

func (m *member) duePart(p core.Part, limit int) core.DuePage {
	d, err := m.store.Due(m.k.ctx, m.self.Session, []core.Part{p}, limit)
	m.k.must("due", err)
	if len(d.Retries) > limit || d.Moved > limit {
		m.k.fail("due with the limit %d answered %d retries and moved %d timers", limit, len(d.Retries), d.Moved)
	}
	for i := range d.Retries {
		if d.Retries[i].Holder != m.self.Session {
			m.k.fail("due answered a retry that the caller does not hold")
		}
	}
	return d
}

func (m *member) tryGiveUp(u core.OwnedUnit, low int64, out ...core.Ref) (bool, error) {
	u.Low = low
	return m.store.GiveUp(m.k.ctx, m.self.Session, u, out)
}

func (m *member) giveUp(u core.OwnedUnit, low int64, out ...core.Ref) {
	ok, err := m.tryGiveUp(u, low, out...)
	if m.k.must("give up a unit", err); !ok {
		m.k.fail("a unit without locked records was not given up")
	}
}

// trySettle persists outcomes and returns their results.
func (m *member) trySettle(os ...core.Outcome) core.Results {
	res := m.store.Settle(m.k.ctx, m.self.Session, os)
	if len(res) != len(os) {
		m.k.fail("settle returned %d results for %d outcomes", len(res), len(os))
	}
	return res
}

// settle persists outcomes, which must all succeed.
func (m *member) settle(os ...core.Outcome) {
	res := m.trySettle(os...)
	for i := range os {
		m.k.must(fmt.Sprintf("settle outcome %d of %d (%s)", i, len(os), os[i].Event()), res[i])
	}
}

// refused settles o, which must be answered with want.
func (m *member) refused(why string, want error, o core.Outcome) {
	err := m.trySettle(o)[0]
	if !errors.Is(err, want) {
		m.k.fail("settle (%s) %s: got %v, want %v", o.Event(), why, err, want)
	}
	if class := waybill.ClassOf(err); class != waybill.ClassRejected {
		m.k.fail("settle (%s) %s: %v has the class %s, want rejected: build it with core.Refused or core.Fenced", o.Event(),
			why, err, class)
	}
}
