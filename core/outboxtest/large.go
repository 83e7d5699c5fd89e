package outboxtest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Numbers that are not small, and contexts that have ended: a bound or a shortcut of the store's own shows here.
var largeChecks = []named{
	{"hold-holds-many", holdHoldsMany},
	{"membership-has-many-partitions", membershipHasManyPartitions},
	{"attempts-count-to-ten", attemptsCountToTen},
	{"next-in-is-not-zero-in-vain", nextInIsNotZeroInVain},
	{"short-delays-are-kept", shortDelaysAreKept},
	{"settle-of-an-ended-context", settleOfAnEndedContext},
	{"release-of-an-ended-context", releaseOfAnEndedContext},
}

// Without this a crash of the holder is not counted, and a release does not show the records that are out.
func holdHoldsMany(k *kit) {
	const n = 500 // as many as the engine takes at a time
	m, by := k.owner(1), k.join(1)
	rs := m.some(n, key("k"))
	m.hold(refs(rs)...)
	by.holder("500 records were taken in one call", m.self.Session, refs(rs)...)
	m.die(by)
	by.takeOwnership(core.AllSlots)
	for _, r := range by.find(ids(rs)...) {
		k.counted("the holder of 500 records was removed", r, 0, 1)
	}
}

// Without this the messages of a partition are never published: no member knows that it is free.
func membershipHasManyPartitions(k *kit) {
	const most = 64
	m := k.stranger(most)
	routes := []string{k.route, k.route + "-2", k.route + "-3"}
	for _, route := range routes[1:] {
		m.self.Routes = append(m.self.Routes, core.ServedRoute{Route: route, InitialPartitions: most})
	}
	m.join()
	for _, route := range routes {
		m.takeOwnershipOf(core.RouteSlots{Route: route, Slots: core.AllSlots})
	}
	other := k.stranger(most)
	for _, r := range []*core.Membership{m.heartbeat(), other.join(), k.look()} {
		for _, route := range routes {
			slots := slotsOf(r, route, m.self.Session)
			k.failIf(slots != core.AllSlots,
				"a member took the %d partitions of each of three routes, and a membership says that it owns %d slots of one of them", most, slots.Len())
		}
	}
}

// Without this a message that fails again and again is never given up.
func attemptsCountToTen(k *kit) {
	m := k.owner(1)
	r := m.one(key("k"))
	for attempt := 1; attempt <= 10; attempt++ {
		m.settle(core.Retry(&r, errNo, 0))
		r = m.dueAll(1, 0)[0]
		k.failIf(r.Attempts != attempt, "after %d failed attempts a record has %d", attempt, r.Attempts)
	}
}

// Without this the engine asks without a pause until a record is due.
func nextInIsNotZeroInVain(k *kit) {
	const wait, most = 8 * time.Millisecond, 2 // a record can come due while the store answers
	m := k.owner(1)
	for range 3 {
		id := k.stage(k.row(delay(wait)))
		vain := 0
		for d := m.due(10); d.TimersReady == 0; d = m.due(10) {
			if d.NextIn <= 0 {
				vain++
			}
			k.failIf(vain > most, "a timer of %s is not due yet, and NextIn says %d times that something is due now", wait, vain)
			k.sleep(max(time.Millisecond, d.NextIn-pause))
		}
		r := m.find(id...)[0]
		m.settle(core.Published(&r))
	}
}

// Without this a short pause between attempts is none. On a real clock, delays within the slack show nothing: only a
// clock that stands still between two calls does.
func shortDelaysAreKept(k *kit) {
	m := k.owner(1)
	for _, wait := range []time.Duration{80 * time.Millisecond, 30 * time.Millisecond, time.Millisecond} {
		r := m.one()
		began := k.now()
		m.settle(core.Retry(&r, errNo, wait))
		timer := k.stage(k.row(delay(wait)))
		moved := 0
		k.until("a retry and a timer are due", func() bool {
			d := m.due(10)
			took := k.now().Sub(began)
			moved += d.TimersReady
			k.failIf((took == 0 || took < wait-k.slack()) && (len(d.Retries) > 0 || moved > 0),
				"after %s, %d retries and %d timers with a delay of %s are due", took, len(d.Retries), moved, wait)
			k.failIf(took == 0 && d.NextIn <= 0, "nothing is due yet, the next records are in %s, and NextIn is %s", wait, d.NextIn)
			return len(d.Retries) == 1 && moved == 1
		})
		r, late := m.find(timer...)[0], m.due(10).Retries[0]
		m.settle(core.Published(&r), core.Published(&late))
	}
}

// ended returns a context that has ended.
func (k *kit) ended() context.Context {
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	return ctx
}

// Without this the engine takes outcomes for stored that are not, at each stop: a message is published again, or never
// given up.
func settleOfAnEndedContext(k *kit) {
	m := k.owner(1)
	for _, held := range []bool{false, true} {
		rs := m.some(len(every), key("k"))
		var os []core.Outcome
		for i, fn := range every {
			if held {
				m.hold(rs[i].Ref)
			}
			os = append(os, fn(&rs[i]))
		}
		res := m.store.Settle(k.ended(), m.self.Session, os)
		k.failIf(len(res) != len(os), "settle under an ended context returned %d results for %d outcomes", len(res), len(os))
		for i := range os {
			if res[i] == nil {
				m.applied("under an ended context, with a success,", &os[i], &rs[i])
				continue
			}
			k.failIf(waybill.ClassOf(res[i]) != waybill.ClassOutage,
				"settle (%s) under an ended context: got %v, want an outage, after which it is sent again", os[i].Event(), res[i])
			// it can have been stored
			err := m.trySettle(os[i])[0]
			k.failIf(err != nil && !errors.Is(err, core.ErrChanged), "settle (%s), sent again after its context had ended: %w", os[i].Event(), err)
			m.applied("sent again after its context had ended", &os[i], &rs[i])
		}
		for _, r := range m.ready() { // those that were released
			m.settle(core.Published(&r))
		}
	}
}

// Without this a partition has no owner until its member's lease is over.
func releaseOfAnEndedContext(k *kit) {
	m, us, low, _ := k.handover()
	u := us[0]
	u.ReadAfter = 42
	ok, err := m.store.ReleasePartition(k.ended(), m.self.Session, u, refs(low[:1]))
	k.failIf(ok && err != nil, "a release under an ended context was made, and the error is %w", err)
	now := k.partitions(m.heartbeat())[0]
	free := now.Owner == 0
	k.failIf(ok && !free, "a release under an ended context was a success, and the partition is session %d's", now.Owner)
	m.release(us[0], 42, low[0].Ref) // again, as the engine does
	m.partitionIs("it was released, again after the context had ended", 0, 0, 42)
	m.holder("it is out, and its partition was released", m.self.Session, low[0].Ref)
	m.holder("it is not out, and its partition was released", 0, refs(low[1:])...)
	_, held := m.store.Hold(k.ended(), m.self.Session, core.HoldRequest{Refs: refs(low[1:2])})
	_, due := m.store.Due(k.ended(), m.self.Session, []core.RouteSlots{k.all()}, 1)
	for _, err := range []error{held, due} {
		k.failIf(err == nil || waybill.ClassOf(err) != waybill.ClassOutage, "take or due under an ended context: got %w, want an outage", err)
	}
	slices.Reverse(low)
	m.holder("a take of it had an ended context", 0, low[0].Ref)
}
