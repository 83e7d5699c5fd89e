package outboxtest

import (
	"errors"

	"github.com/waybill-go/waybill/core"
)

var giveUpChecks = []named{
	{"give-up-holds-what-is-out", giveUpHoldsWhatIsOut},
	{"give-up-repeats", giveUpRepeats},
	{"give-up-leaves-out-what-changed", giveUpLeavesOutWhatChanged},
	{"give-up-ends-holds-of-other-versions", giveUpEndsHoldsOfOtherVersions},
	{"give-up-passes-over-what-changed-and-is-locked", giveUpPassesOverWhatChangedAndIsLocked},
	{"give-up-of-locked-changes-nothing", giveUpOfLockedChangesNothing},
	{"give-up-needs-the-owner", giveUpNeedsTheOwner},
	{"given-up-holds-settle", givenUpHoldsSettle},
	{"give-ups-run-at-once", giveUpsRunAtOnce},
}

// handover is a member with two units and records in both.
func (k *kit) handover() (m *member, units []core.OwnedUnit, low, high []core.Record) {
	m = k.owner(2)
	units = k.units(m.meet())
	low = m.some(4, key(k.keyIn(units[0].Unit.Slots(), 0)))
	high = m.some(3, key(k.keyIn(units[1].Unit.Slots(), 0)))
	return m, units, low, high
}

// Without this the new owner publishes a record that is still out at the former one, or waits for one that is not.
func giveUpHoldsWhatIsOut(k *kit) {
	m, us, low, high := k.handover()
	other := k.join(2)
	m.hold(low[0].Ref, low[2].Ref, high[0].Ref)
	m.giveUp(us[0], 42, low[0].Ref, low[1].Ref)
	got := k.units(other.meet())
	if got[0].Owner != 0 || got[0].Low != 42 || got[1].Owner != m.self.Session || got[1].Low != 0 {
		k.fail("one of two units was given up: it has the owner %d and Low %d, the other %d and %d; want 0 and 42, the former and 0",
			got[0].Owner, got[0].Low, got[1].Owner, got[1].Low)
	}
	other.holder("two are out, and the unit was given up", m.self.Session, low[0].Ref, low[1].Ref, high[0].Ref)
	other.holder("it was held and is not out, and the unit was given up", 0, low[2].Ref, low[3].Ref, high[1].Ref)
	if r := other.live(low[0].Ref); r.Version != low[0].Version || r.Crashes != 0 || r.Attempts != 0 {
		k.fail("a give-up changed a record: version %d after %d, crashes %d, attempts %d", r.Version, low[0].Version, r.Crashes, r.Attempts)
	}
	other.claim(us[0].Unit.Slots())
	other.hold(low[2].Ref, low[3].Ref)
	m.giveUp(us[1], 43)
	other.holder("nothing is out, and the unit was given up", 0, refs(high)...)
	other.holder("another unit was given up", m.self.Session, low[0].Ref, low[1].Ref)
}

// Without this a give-up whose answer was lost ends the member's session.
func giveUpRepeats(k *kit) {
	m, us, low, _ := k.handover()
	for range 3 {
		m.giveUp(us[0], 42, low[0].Ref)
	}
	if u := k.units(m.meet())[0]; u.Owner != 0 || u.Low != 42 {
		k.fail("a unit was given up three times: owner %d, Low %d", u.Owner, u.Low)
	}
	m.holder("it is out, and its unit was given up three times", m.self.Session, low[0].Ref)
	m.holder("it is not out, and its unit was given up three times", 0, refs(low[1:])...)
}

// Without this a settle that came first keeps a unit from being given up, or a hold is left on a settled record.
func giveUpLeavesOutWhatChanged(k *kit) {
	m, us, low, high := k.handover()
	m.settle(core.Published(&low[0]), core.Retry(&low[1], errNo, far))
	stale := low[2].Ref
	stale.Version--
	m.giveUp(us[0], 1, low[0].Ref, low[1].Ref, stale, low[3].Ref, high[0].Ref)
	other := k.join(2)
	other.holder("another version of it was out", 0, low[2].Ref)
	other.holder("it is of another unit", 0, high[0].Ref)
	other.holder("it is out", m.self.Session, low[3].Ref)
	p := other.read(core.Look{Fresh: []core.Part{{Route: k.route, Slots: us[0].Unit.Slots()}}, Limit: 10})
	k.expectWaiting("a unit was given up", p.Waiting,
		waits(&low[1], core.ObstacleRetrying, 0, m.version(low[1].Ref)), waits(&low[3], core.ObstacleHeld, m.self.Session, low[3].Version))
}

// Without this a member that is alive holds a record of another's unit that it does not have, and no member hands it
// out.
func giveUpEndsHoldsOfOtherVersions(k *kit) {
	m, us, low, _ := k.handover()
	m.hold(low[0].Ref, low[1].Ref)
	stale := low[0].Ref
	stale.Version--
	m.giveUp(us[0], 1, stale, low[1].Ref)
	m.holder("another version of it was out, and its unit was given up", 0, low[0].Ref)
	m.holder("it is out", m.self.Session, low[1].Ref)
}

// Without this a transaction of the application keeps a unit from being given up whose records are not out.
func giveUpPassesOverWhatChangedAndIsLocked(k *kit) {
	m, us, low, _ := k.handover()
	stale := low[0].Ref
	stale.Version--
	unlock := k.lock(low[0].ID)
	k.soon("a give-up", func() {
		m.giveUp(us[0], 1, stale, low[1].Ref)
		m.holder("it is out", m.self.Session, low[1].Ref)
	})
	unlock()
	m.holder("another version of it was out, and a transaction had locked it", 0, low[0].Ref)
}

// Without this a unit is free while a record of it is out, and no other member can see that.
func giveUpOfLockedChangesNothing(k *kit) {
	m, us, low, _ := k.handover()
	m.hold(low[3].Ref)
	unlock := k.lock(low[1].ID)
	k.soon("a give-up", func() {
		ok, err := m.tryGiveUp(us[0], 42, refs(low[:3])...)
		if k.must("give up a unit with a locked record", err); ok {
			k.fail("a unit was given up although one of its records is out and locked")
		}
		if u := k.units(m.meet())[0]; u.Owner != m.self.Session || u.Low != 0 {
			k.fail("a give-up answered false, and the unit has the owner %d and Low %d", u.Owner, u.Low)
		}
		m.holder("a give-up answered false", 0, refs(low[:3])...)
		m.holder("a give-up answered false, and it was held before", m.self.Session, low[3].Ref)
	})
	unlock()
	m.giveUp(us[0], 42, refs(low[:3])...)
	m.holder("it is out", m.self.Session, refs(low[:3])...)
	m.holder("it is not out", 0, low[3].Ref)
}

// Without this a member that is late frees the unit of its successor, or holds its records.
func giveUpNeedsTheOwner(k *kit) {
	m, us, low, _ := k.handover()
	other := k.join(2)
	if _, err := other.tryGiveUp(us[0], 42, low[0].Ref); !errors.Is(err, core.ErrFenced) {
		k.fail("a member gave up a unit that is another's: got %v, want core.ErrFenced", err)
	}
	if u := k.units(m.meet())[0]; u.Owner != m.self.Session || u.Low != 0 {
		k.fail("a member gave up a unit that is another's, and it has the owner %d and Low %d", u.Owner, u.Low)
	}
	m.holder("a member gave up a unit that is another's", 0, refs(low)...)
	m.giveUp(us[0], 1)
	other.claim(us[0].Unit.Slots())
	_, _ = m.tryGiveUp(us[0], 42, low[0].Ref) // sent again, late
	if u := k.units(m.meet())[0]; u.Owner != other.self.Session || u.Low == 42 {
		k.fail("a give-up came late, and the unit has the owner %d and Low %d", u.Owner, u.Low)
	}
	m.holder("a give-up came late", 0, refs(low)...)
}

// Without this what was out while a unit was handed over is lost or published twice.
func givenUpHoldsSettle(k *kit) {
	m, us, low, _ := k.handover()
	other := k.join(2)
	m.giveUp(us[0], 1, refs(low)...)
	other.claim(us[0].Unit.Slots())
	m.settle(core.Published(&low[0]), core.Retry(&low[1], errNo, far), core.Release(&low[2], 0, false), core.Abandon(&low[3], "", errNo))
	other.gone("its former owner settled the records that it held", low[0].Ref, low[3].Ref)
	other.retrying(low[1].Ref)
	other.holder("its former owner released it", 0, low[2].Ref)
	other.hold(other.live(low[2].Ref).Ref)
}

// Without this a member that leaves keeps most of its units until its lease is over.
func giveUpsRunAtOnce(k *kit) {
	m, other := k.owner(8), k.join(8)
	us := k.units(m.meet())
	var out, free []core.Ref
	for _, u := range us {
		rs := m.some(2, key(k.keyIn(u.Unit.Slots(), 0)))
		out, free = append(out, rs[0].Ref), append(free, rs[1].Ref)
	}
	m.hold(free...)
	k.parallel(len(us), func(i int) { m.giveUp(us[i], int64(40+i), out[i]) })
	for i, u := range k.units(other.meet()) {
		if u.Owner != 0 || u.Low != int64(40+i) {
			k.fail("%d units were given up at once: one has the owner %d and Low %d, want 0 and %d", len(us), u.Owner, u.Low, 40+i)
		}
	}
	other.holder("it is out, and its unit was given up beside others", m.self.Session, out...)
	other.holder("it is not out, and its unit was given up beside others", 0, free...)
}
