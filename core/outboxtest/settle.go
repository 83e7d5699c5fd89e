package outboxtest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var settleChecks = []named{
	{"settle-twice-applies-once", settleTwiceAppliesOnce},
	{"settle-at-once-applies-once", settleAtOnceAppliesOnce},
	{"settle-of-locked-is-busy-alone", settleOfLockedIsBusyAlone},
	{"stale-version-changes-nothing", staleVersionChangesNothing},
	{"published-needs-no-version", publishedNeedsNoVersion},
	{"wrong-id-changes-nothing", wrongIDChangesNothing},
	{"lost-partition-fences-but-published", lostPartitionFencesButPublished},
	{"hold-settles-without-the-partition", holdSettlesWithoutThePartition},
	{"one-refused-outcome-is-alone", oneRefusedOutcomeIsAlone},
	{"version-grows-with-changes-only", versionGrowsWithChangesOnly},
	{"late-release-leaves-a-newer-hold", lateReleaseLeavesANewerHold},
	{"published-of-gone-is-nil", publishedOfGoneIsNil},
	{"group-settles-for-each-member", groupSettlesForEachMember},
	{"group-with-a-removed-session-is-refused", groupWithARemovedSessionIsRefused},
	{"group-with-a-locked-record-is-refused", groupWithALockedRecordIsRefused},
	{"group-with-another-record-is-refused", groupWithAnotherRecordIsRefused},
}

// every is each outcome once, Published first.
var every = []func(r *core.Record) core.Outcome{
	core.Published,
	func(r *core.Record) core.Outcome { return core.Retry(r, errNo, far) },
	func(r *core.Record) core.Outcome { return core.Abandon(r, waybill.ReasonAttempts, errNo) },
	func(r *core.Record) core.Outcome { return core.Release(r, 0, false) },
	func(r *core.Record) core.Outcome { return core.Cancel(r, waybill.ReasonSetAside) },
}

// applied fails unless o, an outcome of every, was applied to r, which was new, once.
func (m *member) applied(when string, o *core.Outcome, r *core.Record) {
	k := m.k
	switch o.Event() { //nolint:exhaustive // the events of outcomes
	case core.EventConfirmed:
		m.gone(when+" it was published", r.Ref)
	case core.EventAttemptFailed:
		m.retrying(r.Ref)
		k.stored(when, r.ID, Stored{State: core.StateFailed, Attempts: 1, LastError: errNo.Error()})
	case core.EventGivenUp:
		m.gone(when+" it was abandoned", r.Ref)
		k.stored(when, r.ID, Stored{State: core.StateAbandoned, Attempts: 1, Reason: waybill.ReasonAttempts, LastError: errNo.Error()})
	case core.EventCancelled:
		m.gone(when+" it was cancelled", r.Ref)
		k.stored(when, r.ID, Stored{State: core.StateAbandoned, Reason: waybill.ReasonSetAside})
	case core.EventReleased:
		m.released(when, r)
		k.stored(when, r.ID, Stored{State: core.StatePending})
	}
}

// untouched fails unless r is ready as it was, held by holder.
func (m *member) untouched(when string, holder core.Session, r *core.Record) {
	got := m.live(r.Ref)
	m.k.failIf(got.HeldBy != holder || got.Version != r.Version || got.Attempts != r.Attempts || got.Failed != r.Failed || got.Crashes != r.Crashes,
		"%s: holder %d, version %d after %d, attempts %d, failed %v, crashes %d; want the holder %d and all as it was",
		when, got.HeldBy, got.Version, r.Version, got.Attempts, got.Failed, got.Crashes, holder)
}

// released fails unless r is ready as it was, without a hold, with a greater version. It returns it.
func (m *member) released(when string, r *core.Record) core.Record {
	got := m.live(r.Ref)
	m.k.failIf(got.Version <= r.Version, "%s: a record was released, and has version %d after %d", when, got.Version, r.Version)
	same := *r
	same.Version = got.Version
	m.untouched(when, 0, &same)
	return got
}

// Without this an outcome whose answer was lost is applied again: attempts count twice, and retries are put off twice.
func settleTwiceAppliesOnce(k *kit) {
	m := k.owner(1)
	for _, fn := range every {
		for _, held := range []bool{false, true} {
			r := m.one(key("k"))
			if held {
				m.hold(r.Ref)
			}
			o := fn(&r)
			m.settle(o)
			for range 2 {
				err := m.trySettle(o)[0]
				published := o.Event() == core.EventConfirmed
				k.failIf(err != nil && (published || !errors.Is(err, core.ErrChanged)),
					"settle (%s) a second time: got %v, want nil, or core.ErrChanged if it was not published", o.Event(), err)
			}
			m.applied("after three settles", &o, &r)
		}
	}
	r := m.one()
	o := core.Retry(&r, errNo, 0)
	m.settle(o)
	again := m.dueAll(1, 0)[0]
	err := m.trySettle(o)[0]
	k.failIf(!errors.Is(err, core.ErrChanged), "a failed attempt was settled again when its retry was out: got %v, want core.ErrChanged", err)
	m.settle(core.Release(&again, 0, false))
	k.counted("a failed attempt was settled twice", m.dueAll(1, 0)[0], 1, 0)
}

// Without this an outcome that was sent again before the first call ended is applied by both.
func settleAtOnceAppliesOnce(k *kit) {
	m := k.owner(1)
	for range 10 {
		r := m.one(key("k"))
		o := core.Retry(&r, errNo, 0)
		var applied atomic.Int32
		suitetest.Parallel(4, func(int) {
			switch err := m.trySettle(o)[0]; {
			case err == nil:
				applied.Add(1)
			case !errors.Is(err, core.ErrChanged) && !errors.Is(err, core.ErrLocked):
				k.fail("a failed attempt was settled four times at once: got %v", err)
			}
		})
		n := applied.Load()
		k.failIf(n == 0, "a failed attempt was settled four times at once, and none was applied")
		got := m.dueAll(1, 0)[0]
		k.counted("a failed attempt was settled four times at once", got, 1, 0)
		m.settle(core.Published(&got))
	}
}

// Without this an application that keeps one record locked stops all that is settled with it.
func settleOfLockedIsBusyAlone(k *kit) {
	m := k.owner(1)
	for _, fn := range every {
		rs := m.some(3, key("k"))
		m.hold(refs(rs)...)
		os := []core.Outcome{fn(&rs[0]), fn(&rs[1]), fn(&rs[2])}
		unlock := k.lock(rs[1].ID)
		k.soon("settle", func() {
			res := m.trySettle(os...)
			if res[0] != nil || res[2] != nil || !errors.Is(res[1], core.ErrLocked) {
				k.fail("settle (%s) of three, the second locked: got %v, want core.ErrLocked for it alone", os[0].Event(), res)
			}
			m.applied("beside a locked one", &os[0], &rs[0])
			m.applied("beside a locked one", &os[2], &rs[2])
			m.untouched("it was locked", m.self.Session, &rs[1])
		})
		unlock()
		m.settle(os[1])
		m.applied("after it was locked", &os[1], &rs[1])
	}
}

// Without this an outcome that comes late changes a record that was handed out anew, or redriven.
func staleVersionChangesNothing(k *kit) {
	m := k.owner(1)
	for _, fn := range every[1:] {
		for _, by := range []int64{-1, 1} {
			r := m.one(key("k"))
			m.hold(r.Ref)
			other := r
			other.Version += by
			m.refused("of another version", core.ErrChanged, fn(&other))
			m.untouched("another version was settled", m.self.Session, &r)
			m.settle(core.Published(&r))
		}
	}
}

// Without this a message that was published is published again, since it changed meanwhile.
func publishedNeedsNoVersion(k *kit) {
	m := k.owner(1)
	rs := m.some(2)
	m.settle(core.Retry(&rs[0], errNo, far))
	rs[1].Version--
	m.settle(core.Published(&rs[0]), core.Published(&rs[1]))
	m.gone("it was published", refs(rs)...)
	p := m.read(core.ReadRequest{NewlyOwned: []core.RouteSlots{k.all()}, BlockingLimit: 10})
	k.failIf(len(p.Blocking) > 0, "all was published, and %d wait", len(p.Blocking))
}

// Without this a message is lost after a restore, when its number was another's before.
func wrongIDChangesNothing(k *kit) {
	m := k.owner(1)
	for _, fn := range every {
		r := m.one(key("k"))
		m.hold(r.Ref)
		other := r
		other.ID = waybill.NewID()
		other.Envelope.ID = other.ID
		m.refused("of another id", core.ErrChanged, fn(&other))
		m.untouched("another id was settled", m.self.Session, &r)
		m.settle(core.Published(&r))
	}
}

// Without this a member that lost a partition changes what its successor has out, or its published records come again.
func lostPartitionFencesButPublished(k *kit) {
	k.mustFence()
	a, b := k.join(1), k.join(1)
	for _, taken := range []bool{false, true} {
		a.takeOwnership(core.AllSlots)
		rs := a.some(len(every), key("k"))
		a.free(core.AllSlots)
		holder := core.Session(0)
		if taken {
			b.takeOwnership(core.AllSlots)
			b.hold(refs(rs)...)
			holder = b.self.Session
		}
		for i, fn := range every[1:] {
			for range 20 { // each time, not mostly
				a.refused("of a partition that was lost", core.ErrFenced, fn(&rs[i]))
			}
			a.untouched("its partition was lost, and its former owner settled it", holder, &rs[i])
		}
		for i := range rs {
			a.settle(core.Published(&rs[i]))
			a.gone("its former owner published it", rs[i].Ref)
		}
	}
}

// Without this what a process took from another's partition, or had out when it gave one up, is not settled.
func holdSettlesWithoutThePartition(k *kit) {
	k.owner(1)
	other := k.join(1)
	for _, fn := range every {
		r := other.nextIs(k.stage(k.row())[0])
		o := fn(&r)
		other.settle(o)
		other.applied("by one that does not own the partition", &o, &r)
		if o.Event() == core.EventReleased {
			other.settle(core.Published(new(other.nextIs(r.ID))))
		}
	}
}

// Without this one record that cannot be settled keeps all others from being settled, and they are published again.
func oneRefusedOutcomeIsAlone(k *kit) {
	m := k.owner(1)
	rs := m.some(7, key("k"))
	os := make([]core.Outcome, len(rs))
	for i := range rs {
		os[i] = every[i%3](&rs[i])
	}
	stale, gone := rs[1], rs[3]
	stale.Version--
	os[1] = core.Retry(&stale, errNo, far)
	gone.ID = waybill.NewID()
	os[3] = core.Published(&gone)
	for i, err := range m.trySettle(os...) {
		switch i {
		case 1, 3:
			k.failIf(!errors.Is(err, core.ErrChanged), "settle of another version, or id, beside others: number %d got %v, want core.ErrChanged", i, err)
			m.untouched("another version, or id, was settled", 0, &rs[i])
		default:
			k.must("settle beside one that is refused", err)
			m.applied("beside one that is refused", &os[i], &rs[i])
		}
	}
	res := m.trySettle()
	k.failIf(len(res) != 0, "settle of nothing returned %d results", len(res))
}

// Without this a late outcome meets a version that was there before, or a hold makes the owner's own outcome stale.
func versionGrowsWithChangesOnly(k *kit) {
	m := k.owner(1)
	r := m.one(key("k"))
	for _, held := range []bool{true, false} {
		if held {
			m.hold(r.Ref)
			m.untouched("it was held", m.self.Session, &r)
		}
		m.settle(core.Release(&r, 0, false))
		r = m.released("it was handed back", &r)
	}
	last := r.Version
	for range 3 {
		m.settle(core.Retry(&r, errNo, 0))
		waiting := m.version(r.Ref)
		r = m.dueAll(1, 0)[0]
		k.failIf(waiting <= last || r.Version != waiting,
			"a record has version %d after a failed attempt, and %d when its retry is held; before it was %d", waiting, r.Version, last)
		last = r.Version
	}
}

// Without this a release that was sent again ends a hold that was written since, and the record is handed out twice.
func lateReleaseLeavesANewerHold(k *kit) {
	m, other := k.owner(1), k.join(1)
	for _, by := range []*member{m, other} {
		old := m.one()
		m.hold(old.Ref)
		late := core.Release(&old, 0, false)
		m.settle(late)
		by.nextIs(old.ID)
		now := m.live(old.Ref)
		m.refused("that was released, and is held anew", core.ErrChanged, late)
		m.untouched("it was released again, late", by.self.Session, &now)
		m.settle(core.Published(&now))
	}
}

// Without this a message that was published, and whose first answer was lost, looks as if another process had changed
// it.
func publishedOfGoneIsNil(k *kit) {
	m, other, gone := k.owner(1), k.join(1), k.join(1)
	rs := m.some(3, key("k"))
	m.hold(rs[1].Ref)
	r := rs[2]
	m.settle(core.Retry(&r, errNo, far))
	for i := range rs {
		m.settle(core.Published(&rs[i]))
		m.settle(core.Published(&rs[i]), core.Published(&rs[i]))
		other.settle(core.Published(&rs[i]))
	}
	if k.traits.SessionFence {
		gone.die(m)
		gone.refused("of a deleted record, by a removed session", core.ErrFenced, core.Published(&rs[0]))
	}
}

// groupSettler is table.GroupSettler.
type groupSettler interface {
	SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool
}

// group is two members of one process, with two records of each.
type group struct {
	k       *kit
	store   groupSettler
	members [2]*member
	records [2][]core.Record
}

func (k *kit) group() *group {
	g := &group{k: k, store: needs[groupSettler](k, k.store, "table.GroupSettler")}
	owner := k.owner(1)
	g.members = [2]*member{owner, k.join(1)}
	all := owner.some(4, key("k"))
	g.records = [2][]core.Record{all[:2], all[2:]}
	return g
}

// settle publishes all records together.
func (g *group) settle() (stored bool) {
	selves, outcomes := make([]core.Session, len(g.members)), make([][]core.Outcome, len(g.members))
	for i, m := range g.members {
		selves[i] = m.self.Session
		for j := range g.records[i] {
			outcomes[i] = append(outcomes[i], core.Published(&g.records[i][j]))
		}
	}
	g.k.soon("settle of a group", func() { stored = g.store.SettleGroup(g.k.ctx, selves, outcomes) })
	return stored
}

// aloneOf settles the records of one member without the group.
func (g *group) aloneOf(i int) {
	m := g.members[i]
	for j := range g.records[i] {
		m.settle(core.Published(&g.records[i][j]))
	}
	m.gone("it was published alone, after its group was refused", refs(g.records[i])...)
}

// Without this queues that share a process wait for each other's settles, or their messages come again.
func groupSettlesForEachMember(k *kit) {
	g := k.group()
	k.failIf(!g.settle(), "the records of two members were published, nothing is locked, and the settle of both is refused")
	for i, m := range g.members {
		m.gone("it was published in a group", refs(g.records[i])...)
	}
}

// Without this a process that was taken for dead ends messages that its successor has out.
func groupWithARemovedSessionIsRefused(k *kit) {
	k.mustFence()
	g := k.group()
	g.members[1].die(g.members[0])
	k.failIf(g.settle(), "one of two members was removed, and the settle of both counts")
	for i := range g.records[1] {
		g.members[0].untouched("a removed member settled it in a group", 0, &g.records[1][i])
	}
	g.aloneOf(0)
}

// Without this an application that keeps one record locked stops the settles of all queues of a process, or the locked
// record counts as settled.
func groupWithALockedRecordIsRefused(k *kit) {
	g := k.group()
	unlock := k.lock(g.records[1][0].ID)
	k.failIf(g.settle(), "one record of a group is locked, and all count as settled")
	g.aloneOf(0)
	unlock()
	g.aloneOf(1)
}

// Without this a message is lost after a restore, when its number was another's before.
func groupWithAnotherRecordIsRefused(k *kit) {
	g := k.group()
	r := &g.records[1][1]
	was := *r
	r.ID = waybill.NewID()
	k.failIf(g.settle(), "another record has the number of one of a group, and the settle counts")
	g.members[0].untouched("another id was settled in a group", 0, &was)
	*r = was
	g.aloneOf(0)
	g.aloneOf(1)
}
