package outboxtest

import (
	"reflect"
	"slices"

	"github.com/waybill-go/waybill/core"
)

var meetChecks = []named{
	{"join-makes-member-known", joinMakesMemberKnown},
	{"renewal-needs-a-member", renewalNeedsAMember},
	{"zero-session-only-looks", zeroSessionOnlyLooks},
	{"beat-is-renewed", beatIsRenewed},
	{"late-renewal-changes-nothing", lateRenewalChangesNothing},
	{"one-of-two-moves-wins", oneOfTwoMovesWins},
	{"meet-repeats", meetRepeats},
	{"units-are-made-once", unitsAreMadeOnce},
	{"number-of-units-is-kept", numberOfUnitsIsKept},
	{"moves-store-low-for-owner-only", movesStoreLowForOwnerOnly},
	{"late-move-stores-nothing", lateMoveStoresNothing},
	{"leave-frees-units", leaveFreesUnits},
	{"served-again-keeps-low", servedAgainKeepsLow},
	{"flag-is-set-and-cleared", flagIsSetAndCleared},
	{"unserved-routes-are-named", unservedRoutesAreNamed},
	{"left-routes-are-unserved", leftRoutesAreUnserved},
	{"dropped-routes-are-unserved", droppedRoutesAreUnserved},
	{"leave-comes-last", leaveComesLast},
	{"moves-of-nobody-store-nothing", movesOfNobodyStoreNothing},
}

// Without this the others of a fleet do not see what a member serves and can do, and share the units out wrongly.
func joinMakesMemberKnown(k *kit) {
	m := k.stranger(4)
	m.self.Serves = append(m.self.Serves, core.Serving{Route: k.route + "-2", Units: 1, Unable: true})
	m.self.Handlers, m.self.Free, m.self.Presence = 7, 3, 5
	m.join()
	for _, r := range []*core.Roster{m.meet(), k.look(), k.join(4).meet()} {
		got := find(r, m.self.Session)
		if got == nil {
			k.fail("a member joined and is not in the roster")
		}
		mine := m.self
		if !sameServing(got.Serves, mine.Serves) {
			k.fail("a member serves %v, the roster says %v", mine.Serves, got.Serves)
		}
		got.Serves, mine.Serves = nil, nil
		got.Missing = false // nobody has attended with that token
		if !reflect.DeepEqual(*got, mine) {
			k.fail("a member joined as %+v and the roster says %+v", mine, *got)
		}
	}
}

// sameServing ignores the order, and the wish for units, which only counts when they are made.
func sameServing(a, b []core.Serving) bool {
	name := func(s []core.Serving) map[string]bool {
		out := map[string]bool{}
		for _, v := range s {
			out[v.Route] = v.Unable
		}
		return out
	}
	return len(a) == len(b) && reflect.DeepEqual(name(a), name(b))
}

// Without this a member that was removed comes back by a late renewal, and owns what others own too.
func renewalNeedsAMember(k *kit) {
	watch := k.join(2)
	m := k.stranger(2)
	unit := k.units(watch.meet())[0].Unit
	r := m.meet(moves(core.Move{Unit: unit, To: m.self.Session}))
	if r.Known || find(r, m.self.Session) != nil {
		k.fail("a renewal without Join made a member")
	}
	if k.slotsOf(watch.meet(), m.self.Session) != 0 {
		k.fail("a session that is not a member took a unit")
	}
}

// Without this a program that only looks, such as an inspector or an idle outbox, joins or changes who owns what.
func zeroSessionOnlyLooks(k *kit) {
	m := k.owner(2)
	other := k.join(2)
	unit := k.units(m.meet())[0].Unit
	fresh := k.route + "-fresh"
	r, err := k.store.Meet(k.ctx, core.Meeting{
		Self: core.Member{Serves: []core.Serving{{Route: fresh, Units: 4}}}, Join: true,
		Remove: []core.Removal{{Session: other.self.Session, Beat: other.self.Beat}},
		Flag:   []core.Flagging{{Session: other.self.Session, Presence: other.self.Presence}},
		Moves:  []core.Move{{Unit: unit, From: m.self.Session}},
	})
	k.must("look", err)
	if r.Known {
		k.fail("the zero session is said to be a member")
	}
	now := k.look()
	if find(now, m.self.Session) == nil || find(now, other.self.Session) == nil || find(now, other.self.Session).Flag {
		k.fail("a look removed or flagged a member, or the roster does not show all")
	}
	if k.slotsOf(now, m.self.Session) != core.AllSlots {
		k.fail("a look moved a unit, or the roster does not show the owners")
	}
	if slices.ContainsFunc(now.Units, func(u core.OwnedUnit) bool { return u.Unit.Route == fresh }) {
		k.fail("a look made units")
	}
}

// Without this the others take a member that lives for dead, or do not see what it can still do.
func beatIsRenewed(k *kit) {
	m, other := k.join(2), k.join(2)
	for beat := int64(2); beat < 5; beat++ {
		m.self.Beat, m.self.Free, m.self.Serves[0].Unable = beat, int(beat)%2, beat%2 == 0
		m.self.Presence = beat
		m.meet()
		got := find(other.meet(), m.self.Session)
		if got == nil || got.Beat != beat || got.Free != m.self.Free || got.Presence != beat ||
			got.Serves[0].Unable != m.self.Serves[0].Unable {
			k.fail("a member renewed as %+v and the roster says %+v", m.self, got)
		}
	}
}

// Without this a renewal that was sent again sets a beat back, and its member is removed although it lives.
func lateRenewalChangesNothing(k *kit) {
	m, other := k.join(1), k.join(1)
	old := m.self
	m.self.Beat, m.self.Free = 3, 0
	m.meet()
	m.meet(func(x *core.Meeting) { x.Self = old })
	if got := find(other.meet(), m.self.Session); got == nil || got.Beat != 3 || got.Free != 0 {
		k.fail("an earlier renewal came after a later one, and the roster says %+v", got)
	}
}

// Without this two members own one unit and both publish its records.
func oneOfTwoMovesWins(k *kit) {
	a, b := k.join(1), k.join(1)
	unit := k.units(a.meet())[0].Unit
	for range 20 {
		var answers [2]core.Session
		k.parallel(2, func(i int) {
			m := []*member{a, b}[i]
			r := m.meet(moves(core.Move{Unit: unit, To: m.self.Session}))
			answers[i] = k.units(r)[0].Owner
		})
		owner := k.units(k.look())[0].Owner
		if answers[0] != owner || answers[1] != owner || owner != a.self.Session && owner != b.self.Session {
			k.fail("two members took one unit at once: one was told that it is session %d's, the other %d's, and it is %d's",
				answers[0], answers[1], owner)
		}
		a.meet(moves(core.Move{Unit: unit, From: owner}))
	}
}

// Without this a call that is sent again after a lost answer changes something a second time.
func meetRepeats(k *kit) {
	a, b := k.join(4), k.join(4)
	us := k.units(a.meet())
	ms := moves(core.Move{Unit: us[0].Unit, To: a.self.Session}, core.Move{Unit: us[1].Unit, To: b.self.Session})
	a.self.Beat++
	join := func(x *core.Meeting) { x.Join = true }
	first, second := a.meet(join, ms), a.meet(join, ms)
	if !reflect.DeepEqual(k.mine(first, a, b), k.mine(second, a, b)) || !reflect.DeepEqual(k.units(first), k.units(second)) {
		k.fail("a meeting that was sent twice was answered with %+v and %+v", first, second)
	}
	if us := k.units(second); us[0].Owner != a.self.Session || us[1].Owner != b.self.Session || us[2].Owner != 0 {
		k.fail("moves to two members made the owners %d, %d and %d", us[0].Owner, us[1].Owner, us[2].Owner)
	}
}

// mine is what a roster says about members of the check.
func (k *kit) mine(r *core.Roster, ms ...*member) (out []core.Member) {
	for _, m := range ms {
		if got := find(r, m.self.Session); got != nil {
			out = append(out, *got)
		}
	}
	return out
}

// Without this members that start together make units that overlap, and one slot has two owners.
func unitsAreMadeOnce(k *kit) {
	const n = 16
	ms := make([]*member, n)
	for i := range ms {
		ms[i] = k.stranger(1 << (i % 7))
	}
	var made [n][]core.Unit
	k.parallel(n, func(i int) {
		for _, u := range k.units(ms[i].joinCrowd()) {
			made[i] = append(made[i], u.Unit)
		}
	})
	for i := range made {
		if len(made[i]) == 0 || !slices.Equal(made[i], made[0]) {
			k.fail("members that joined at once were told %d and %d units, or other ones", len(made[0]), len(made[i]))
		}
	}
}

// Without this a member with other options splits units that have an owner.
func numberOfUnitsIsKept(k *kit) {
	m := k.owner(4)
	if us := k.units(m.meet()); len(us) != 4 {
		k.fail("the first member wished 4 units, and %d were made", len(us))
	}
	for _, wish := range []int{1, 64} {
		if us := k.units(k.join(wish).meet()); len(us) != 4 || us[0].Owner != m.self.Session {
			k.fail("a member wished %d units of a route that has 4, and there are %d", wish, len(us))
		}
	}
}

// Without this a member that is late overwrites where the new owner must begin, and records are passed over.
func movesStoreLowForOwnerOnly(k *kit) {
	a, b := k.join(1), k.join(1)
	unit := k.units(a.meet())[0].Unit
	move := func(by *member, from, to core.Session, low, careful int64) core.OwnedUnit {
		r := by.meet(moves(core.Move{Unit: unit, From: from, To: to, Low: low, Careful: careful}))
		return k.units(r)[0]
	}
	expect := func(what string, got core.OwnedUnit, owner core.Session, low, careful int64) {
		if got.Term = 0; got != (core.OwnedUnit{Unit: unit, Owner: owner, Low: low, Careful: careful}) {
			k.fail("%s: the unit has owner %d, Low %d and Careful %d, want %d, %d and %d", what, got.Owner, got.Low,
				got.Careful, owner, low, careful)
		}
	}
	A, B := a.self.Session, b.self.Session
	expect("a member took a free unit", move(a, 0, A, 3, 4), A, 0, 0)
	expect("the owner stored both", move(a, A, A, 10, 20), A, 10, 20)
	expect("another stored both", move(b, B, B, 11, 21), A, 10, 20)
	expect("another took it, with a wrong owner", move(b, 0, B, 12, 22), A, 10, 20)
	expect("the owner freed it", move(a, A, 0, 13, 23), 0, 10, 20)
	expect("another took it", move(b, 0, B, 14, 24), B, 10, 20)
	expect("the former owner stored both", move(a, A, A, 15, 25), B, 10, 20)
	expect("the new owner stored less", move(b, B, B, 5, 0), B, 5, 0)
}

// Without this a call that comes late raises Low above a record that was put back, and the next owner passes over it.
func lateMoveStoresNothing(k *kit) {
	m := k.owner(1)
	unit := k.units(m.meet())[0].Unit
	for _, c := range []struct{ beat, low, want int64 }{{5, 40, 40}, {6, 10, 10}, {5, 40, 10}, {6, 20, 20}} {
		m.self.Beat = c.beat
		r := m.meet(moves(core.Move{Unit: unit, From: m.self.Session, To: m.self.Session, Low: c.low, Careful: c.low}))
		if u := k.units(r)[0]; u.Low != c.want || u.Careful != c.want {
			k.fail("a call of beat %d stored %d, and the unit has Low %d and Careful %d, want %d", c.beat, c.low, u.Low, u.Careful, c.want)
		}
	}
}

// Without this a clean stop costs its records a crash, or leaves them without an owner until a lease is over.
func leaveFreesUnits(k *kit) {
	watch := k.join(2)
	m := k.owner(2)
	us := k.units(m.meet())
	m.meet(moves(core.Move{Unit: us[0].Unit, From: m.self.Session, To: m.self.Session, Low: 1, Careful: 2}))
	rs := m.some(2)
	m.hold(refs(rs)...)
	m.meet(leave, moves(core.Move{Unit: us[0].Unit, From: m.self.Session, To: m.self.Session, Low: 9, Careful: 2}))
	r := watch.meet()
	if find(r, m.self.Session) != nil {
		k.fail("a member left and is still in the roster")
	}
	for i, u := range k.units(r) {
		if u.Owner != 0 || i == 0 && u.Careful != 2 || i == 1 && u.Careful != 0 {
			k.fail("a member left and its unit has the owner %d and Careful %d", u.Owner, u.Careful)
		}
		if i == 0 && u.Low != 9 {
			k.fail("a member left, and its unit has Low %d, want 9, as it said", u.Low)
		}
	}
	watch.claim(core.AllSlots)
	watch.holder("its holder left", 0, refs(rs)...)
	for i := range rs {
		if got := watch.live(rs[i].Ref); got.Crashes != 0 {
			k.fail("its holder left, and the record has %d crashes", got.Crashes)
		}
	}
	watch.hold(refs(rs)...)
	if p, err := m.store.Read(k.ctx, m.self.Session, k.everything()); err != nil || p.Known {
		k.fail("a member that left reads on: known %v, %v", p.Known, err)
	}
}

// Without this the first who serves a route again passes over its records, or takes for unsent what a dead one had out.
func servedAgainKeepsLow(k *kit) {
	m := k.owner(2)
	var said []core.Move
	for _, u := range k.units(m.meet()) {
		said = append(said, core.Move{Unit: u.Unit, From: m.self.Session, To: m.self.Session, Low: 40, Careful: 8})
	}
	m.meet(leave, moves(said...))
	for _, u := range k.units(k.join(2).meet()) {
		if u.Low > 40 || u.Careful < 8 {
			k.fail("its last member left, and the route has a unit with Low %d and Careful %d, want at most 40, and at least 8", u.Low, u.Careful)
		}
	}
}

// Without this a member whose connection broke is not warned, or never starts again.
func flagIsSetAndCleared(k *kit) {
	a, b := k.stranger(1), k.join(1)
	a.self.Presence = 1
	a.join()
	flagged := func(want bool, when string) {
		mine, other := a.meet(), b.meet()
		page := a.read(k.everything())
		if x, y := find(mine, a.self.Session), find(other, a.self.Session); x == nil || y == nil || x.Flag != want ||
			y.Flag != want || page.Flag != want {
			k.fail("%s: the flag is not %v in its own roster, in another's, and in a page (%v)", when, want, page.Flag)
		}
	}
	flagged(false, "after joining")
	b.meet(a.flag(1))
	flagged(true, "after another set it")
	a.self.Beat++
	flagged(true, "after a renewal with the same presence")
	a.self.Beat, a.self.Presence = a.self.Beat+1, 2
	flagged(false, "after a renewal with a new presence")
	b.meet(a.flag(2))
	flagged(true, "after another set it again")
	a.self.Beat, a.self.Presence = a.self.Beat+1, 0
	flagged(false, "after a renewal without presence")
	if page := b.read(k.everything()); page.Flag {
		k.fail("a member has the flag that another one set for a third")
	}
}

// Without this no operator learns that there is work on a route that no process serves.
func unservedRoutesAreNamed(k *kit) {
	served := k.owner(1)
	route := k.route + "-unserved"
	later := k.route + "-later"
	k.stage(k.row(), k.row(onRoute(route)), k.row(onRoute(later), delay(far)))
	r := served.meet()
	if len(r.Unserved) > 100 {
		k.fail("a roster names %d unserved routes, at most 100 are allowed", len(r.Unserved))
	}
	if len(r.Unserved) < 100 && !slices.Contains(r.Unserved, route) {
		k.fail("a route has a due record and no unit, and is not among the unserved ones")
	}
	if slices.Contains(r.Unserved, k.route) || slices.Contains(r.Unserved, later) {
		k.fail("a route that has units, or no due record, is among the unserved ones")
	}
}

// unserved fails unless the check's route has no units and is among the unserved routes.
func (k *kit) unserved(when string) {
	r := k.look()
	if us := k.units(r); len(us) > 0 {
		k.fail("%s: the route still has %d units", when, len(us))
	}
	if len(r.Unserved) < 100 && !slices.Contains(r.Unserved, k.route) {
		k.fail("%s: the route has a due record, and is not among the unserved ones", when)
	}
}

// Without this no operator learns that the last process of a route is gone.
func leftRoutesAreUnserved(k *kit) {
	m := k.owner(2)
	k.stage(k.row())
	units := k.units(m.meet())
	m.meet(leave)
	k.unserved("its last member has left")
	for _, u := range k.units(k.join(1).meet()) {
		if u.Owner != 0 || u.Term <= units[0].Term {
			k.fail("a route is served again: a unit has the owner %d and the term %d, want 0, and more than the %d of before",
				u.Owner, u.Term, units[0].Term)
		}
	}
}

// Without this no operator learns that a route was taken out of the configuration of a process that lives on.
func droppedRoutesAreUnserved(k *kit) {
	m := k.owner(2)
	k.stage(k.row())
	m.meet(moves(core.Move{Unit: k.units(m.meet())[0].Unit, From: m.self.Session, To: m.self.Session, Low: 40, Careful: 8}))
	m.self.Beat++
	m.self.Serves = []core.Serving{{Route: k.route + "-other", Units: 1}}
	if us := k.units(m.meet()); len(us) == 0 {
		k.fail("a route has no units, and a member owned them")
	}
	for _, u := range k.units(m.meet()) {
		m.giveUp(u, 40)
	}
	m.self.Beat++
	m.meet()
	k.unserved("its last member serves another one")
	for _, u := range k.units(k.join(1).meet()) {
		if u.Low > 40 || u.Careful < 8 {
			k.fail("a route is served again: a unit has Low %d and Careful %d, want at most 40, and at least 8", u.Low, u.Careful)
		}
	}
}

// Without this a dead member that the leaving one has noticed keeps its units until others notice, too.
func leaveComesLast(k *kit) {
	m, dead := k.join(2), k.join(2)
	dead.claim(core.SlotRange(0, 32))
	m.claim(core.SlotRange(32, 64))
	by := k.join(2)
	unit := k.units(m.meet())[1].Unit
	r := m.meet(leave, m.remove(dead), moves(core.Move{Unit: unit, From: m.self.Session, To: by.self.Session}))
	if r.Known || find(r, m.self.Session) != nil {
		k.fail("a member left, and is still in the roster")
	}
	if find(r, dead.self.Session) != nil {
		k.fail("a member removed another one and left in one meeting, and the other one is still in the roster")
	}
	us := k.units(by.meet())
	if us[0].Owner != 0 || us[1].Owner != by.self.Session {
		k.fail("a member removed another one, gave a unit away and left: the units have the owners %d and %d, want 0 and %d",
			us[0].Owner, us[1].Owner, by.self.Session)
	}
}

// Without this a member hides records that a dead one can have had out, in a unit without an owner.
func movesOfNobodyStoreNothing(k *kit) {
	m := k.join(1)
	was := k.units(m.meet())[0]
	got := k.units(m.meet(moves(core.Move{Unit: was.Unit, Low: was.Low + 40, Careful: was.Careful + 8})))[0]
	if got != was {
		k.fail("a move from session 0 to session 0 changed a unit from %+v to %+v", was, got)
	}
}
