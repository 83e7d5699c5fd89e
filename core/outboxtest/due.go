package outboxtest

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var dueChecks = []named{
	{"due-holds-retries", dueHoldsRetries},
	{"due-repeats", dueRepeats},
	{"due-new-leaves-out-own", dueNewLeavesOutOwn},
	{"due-keeps-to-its-limit", dueKeepsToItsLimit},
	{"due-leaves-others-retries", dueLeavesOthersRetries},
	{"timers-get-greater-numbers-once", timersGetGreaterNumbersOnce},
	{"moved-timer-is-a-new-version", movedTimerIsANewVersion},
	{"next-in-is-exact", nextInIsExact},
	{"due-leaves-what-is-locked", dueLeavesWhatIsLocked},
	{"due-repeats-what-is-locked", dueRepeatsWhatIsLocked},
	{"due-keeps-to-own-slots", dueKeepsToOwnSlots},
	{"due-leaves-out-slots-alone", dueLeavesOutSlotsAlone},
}

// retries stages n records and puts them off by in.
func (m *member) retries(n int, in time.Duration, opts ...option) []core.Record {
	rs := m.some(n, opts...)
	for i := range rs {
		m.settle(core.Retry(&rs[i], errNo, in))
	}
	return rs
}

// dueAll asks for due records until n retries and timers came.
func (m *member) dueAll(retries, timers int) (rs []core.Record) {
	moved := 0
	m.k.until("all that is due was answered", func() bool {
		d := m.due(100)
		for i := range d.Retries {
			if !slices.Contains(ids(rs), d.Retries[i].ID) {
				rs = append(rs, d.Retries[i])
			}
		}
		moved += d.TimersReady
		return len(rs) >= retries && moved >= timers
	})
	m.k.failIf(len(rs) > retries || moved > timers, "%d retries and %d timers are due, and %d and %d were answered", retries, timers, len(rs), moved)
	return rs
}

// dueIs asks for up to ten due records, and fails unless so many are.
func (m *member) dueIs(when string, retries, timers int) core.DueResult {
	d := m.due(10)
	m.k.failIf(len(d.Retries) != retries || d.TimersReady != timers,
		"%s: %d retries and %d timers are due, want %d and %d", when, len(d.Retries), d.TimersReady, retries, timers)
	return d
}

// dueLater is dueIs where nothing is due before least.
func (m *member) dueLater(when string, least, most time.Duration) {
	d := m.dueIs(when, 0, 0)
	m.k.failIf(d.NextIn < least || d.NextIn > most, "%s: NextIn is %s, want %s to %s", when, d.NextIn, least, most)
}

// nothingDue is dueIs where nothing waits for a time.
func (m *member) nothingDue(when string) {
	d := m.dueIs(when, 0, 0)
	m.k.failIf(d.NextIn >= 0, "%s: nothing waits for a time, and NextIn is %s", when, d.NextIn)
}

// Without this a message that failed is never tried again, or tried before its time, or by two at once.
func dueHoldsRetries(k *kit) {
	m, other := k.owner(1), k.join(1)
	staged := k.now()
	rs := m.some(2, key("k"))
	began := k.now()
	m.settle(core.Retry(&rs[0], errNo, short), core.Retry(&rs[1], errNo, short))
	late := m.retries(1, far)
	d := m.due(10)
	k.failIf(len(d.Retries) > 0 && k.now().Sub(began) < short-k.slack(), "a retry in %s was answered %s later at most", short, k.now().Sub(began))
	got := m.dueAll(2, 0)
	slices.SortFunc(got, func(a, b core.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	for i, r := range got {
		k.failIf(r.ID != rs[i].ID || r.Seq != rs[i].Seq || r.Attempts != 1 || !r.Failed || r.Deliveries != 0 || r.Crashes != 0 || r.Envelope.Key != "k" || string(r.Envelope.Body) != "body",
			"two retries are due, and number %d came as %+v", i, r)
		k.failIf(r.Slot != rs[i].Slot || r.DueFor < -k.slack() || r.DueFor > k.now().Sub(staged)+k.slack(),
			"a retry came with slot %d after %d, and age %s", r.Slot, rs[i].Slot, r.DueFor)
	}
	m.none("it is a retry", append(ids(rs), late[0].ID)...)
	p := other.read(core.ReadRequest{NewlyOwned: []core.RouteSlots{k.all()}, BlockingLimit: 10})
	for _, w := range p.Blocking {
		k.failIf(w.HeldBy != m.self.Session, "retries are held, and another session sees %+v", w)
	}
	m.settle(core.Published(&got[0]), core.Retry(&got[1], errNo, far))
	m.gone("it was published", got[0].Ref)
	m.dueIs("one retry was published and one put off", 0, 0)
}

// Without this a call whose answer was lost leaves retries behind that no member tries.
func dueRepeats(k *kit) {
	m := k.owner(1)
	want := slices.Sorted(slices.Values(ids(m.retries(5, 0))))
	for range 3 {
		got := slices.Sorted(slices.Values(ids(m.due(10).Retries)))
		k.same("the retries that are due, each time", got, want, want)
	}
}

// Without this each Due brings all that is out once more, or leaves out what is new.
func dueNewLeavesOutOwn(k *kit) {
	m := k.owner(1)
	part := k.all()
	part.DueExcludeHeld = true
	var seen []string
	for _, n := range []int{2, 1} {
		m.retries(n, 0)
		var got []string
		k.until("the retries are due", func() bool {
			got = append(got, ids(m.duePart(part, n).Retries)...)
			return len(got) >= n
		})
		more := ids(m.duePart(part, n).Retries)
		k.failIf(len(got) != n || len(more) > 0 || slices.ContainsFunc(got, func(id string) bool { return slices.Contains(seen, id) }),
			"%d retries came due, and a Due for those that are not held answered %d, then %d", n, len(got), len(more))
		seen = append(seen, got...)
	}
	for _, limit := range []int{2, 3} {
		d := m.due(limit)
		k.failIf(len(d.Retries) != limit || (d.NextIn == 0) != (limit < 3),
			"three retries are held, and a Due for all with the limit %d answered %d; NextIn is %s", limit, len(d.Retries), d.NextIn)
	}
}

// Without this a hand-out is larger than the engine has room for, or a record held before is not answered again.
func dueKeepsToItsLimit(k *kit) {
	m := k.owner(1)
	m.retries(4, 0)
	k.stage(k.rows(4, delay(short))...)
	k.sleep(2 * short)
	first := m.due(3)
	k.failIf(len(first.Retries) == 0 || first.NextIn != 0,
		"four retries are due: %d were answered with the limit 3, and NextIn is %s, want 0", len(first.Retries), first.NextIn)
	second := m.due(len(first.Retries))
	for _, r := range second.Retries {
		k.failIf(!slices.Contains(ids(first.Retries), r.ID), "a retry was answered that the caller did not hold before, in place of one that it holds")
	}
	third := m.due(10)
	n := first.TimersReady + second.TimersReady + third.TimersReady
	k.failIf(len(third.Retries) != 4 || n != 4,
		"four retries and four timers are due, and with the limit 10 %d and %d were answered", len(third.Retries), n)
}

// Without this the retries that a former owner has out are published twice.
func dueLeavesOthersRetries(k *kit) {
	a, b := k.owner(1), k.join(1)
	a.retries(2, 0)
	rs := a.dueIs("at first", 2, 0).Retries
	partition := k.partitions(a.heartbeat())[0]
	a.release(partition, 0, rs[0].Ref)
	b.takeOwnership(core.AllSlots)
	k.same("the retries for a new owner, the former one has the first out", ids(b.due(10).Retries), ids(rs[1:]), ids(rs))
	a.settle(core.Release(&rs[0], 0, false))
	b.dueIs("the former owner released its retry", 2, 0)
}

// Without this a scheduled message is never published, or twice, or is behind the place from which its owner reads on.
func timersGetGreaterNumbersOnce(k *kit) {
	m := k.owner(1)
	const n = 30
	staged := k.now()
	timers := k.stage(k.rows(n, delay(short), key("k"))...)
	far1 := k.stage(k.row(delay(far)))
	before := m.some(3)
	last := m.read(core.ReadRequest{BlockingLimit: 1}).LastSeq
	k.sleep(2 * short)
	m.none("Due has not put it in line", timers...)
	var moved atomic.Int32
	suitetest.Parallel(4, func(int) {
		for range 20 {
			moved.Add(int32(m.due(7).TimersReady))
		}
	})
	k.failIf(moved.Load() != n, "%d timers are due, and four callers were told of %d", n, moved.Load())
	seen := map[int64]bool{}
	for _, r := range m.find(timers...) {
		k.failIf(r.Seq <= before[2].Seq || r.Seq <= last || seen[r.Seq],
			"a timer that came due has the number %d, and %d was drawn before, or it is not the only one", r.Seq, last)
		seen[r.Seq] = true
		k.failIf(r.Attempts != 0 || r.Failed || r.HeldBy != 0 || r.DueFor < 0 || r.DueFor > k.now().Sub(staged)-short+k.slack(),
			"a timer that came due has attempts %d, failed %v, holder %d and age %s", r.Attempts, r.Failed, r.HeldBy, r.DueFor)
	}
	m.none("it is due in an hour", far1...)
	rs := m.find(timers...)
	m.hold(refs(rs)...)
	for i := range rs {
		m.settle(core.Published(&rs[i]))
	}
	m.dueIs("all timers were published", 0, 0)
}

// Without this a call that was late changes a scheduled message that is in line meanwhile.
func movedTimerIsANewVersion(k *kit) {
	m := k.owner(1)
	want := k.stage(k.row(delay(short), key("k")))
	k.sleep(2 * short)
	m.dueAll(0, 1)
	r := m.find(want...)[0]
	old := r
	old.Version--
	for _, o := range every[1:] {
		m.refused("of a version before the timer came due", core.ErrChanged, o(&old))
	}
	m.settle(core.Retry(&r, errNo, 0))
	got := m.dueAll(1, 0)
	k.failIf(got[0].Attempts != 1 || got[0].Seq != r.Seq,
		"a timer failed once, and has %d attempts and the number %d after %d", got[0].Attempts, got[0].Seq, r.Seq)
}

// Without this a scheduled message is late by a poll, or the engine asks without a pause.
func nextInIsExact(k *kit) {
	m := k.owner(1)
	m.nothingDue("at first")
	// expect asks for due records; the earliest comes due between from+in and to+in.
	expect := func(what string, from, to time.Time, in time.Duration) {
		asked := k.now()
		d := m.due(10)
		least, most := from.Add(in).Sub(k.now())-k.slack(), to.Add(in).Sub(asked)+k.slack()
		k.failIf(d.NextIn < least || d.NextIn > most, "%s is due in %s to %s, and NextIn is %s", what, least, most, d.NextIn)
	}
	t0 := k.now()
	k.stage(k.row(delay(2 * far)))
	t1 := k.now()
	expect("a timer", t0, t1, 2*far)
	r := m.some(2)
	t0 = k.now()
	m.settle(core.Retry(&r[0], errNo, far))
	t1 = k.now()
	expect("a retry before a timer", t0, t1, far)
	k.sleep(short)
	expect("a retry before a timer, a while later,", t0, t1, far)
	t0 = k.now()
	k.stage(k.row(delay(far / 2)))
	t1 = k.now()
	expect("a timer before a retry", t0, t1, far/2)
	m.settle(core.Retry(&r[1], errNo, 0))
	k.stage(k.row(delay(short)))
	k.sleep(2 * short)
	m.dueAll(1, 1)
	expect("the records that wait beside a held retry", t0, t1, far/2)
}

// Without this an application that keeps a record locked keeps all retries and timers from being due.
func dueLeavesWhatIsLocked(k *kit) {
	m := k.owner(1)
	rs := m.retries(3, short)
	timers := k.stage(k.rows(3, delay(short))...)
	k.sleep(2 * short)
	unlock := k.lock(rs[1].ID, timers[1])
	k.soon("due", func() {
		got := m.dueAll(2, 2)
		names := suitetest.Names(ids(got), ids(rs))
		k.failIf(names != "[0 2]" && names != "[2 0]", "of three retries the second is locked, and %s were answered", names)
		m.find(timers[0], timers[2])
		m.none("it is locked", timers[1])
	})
	unlock()
	m.dueAll(3, 1)
	m.find(timers...)
}

// Without this a Due locks what its member settles. The results meet the lock, the member forgets the records, and asks
// for all that it holds once more.
func dueRepeatsWhatIsLocked(k *kit) {
	m := k.owner(1)
	rs := m.retries(3, short)
	k.sleep(2 * short)
	m.dueAll(3, 0)
	unlock := k.lock(rs[1].ID)
	m.dueIs("a member holds three retries, of which a transaction has locked one", 3, 0)
	unlock()
}

// Without this two members try one record again, or bring a timer into line twice.
func dueKeepsToOwnSlots(k *kit) {
	a, b := k.halves()
	a.retries(1, short, key(k.keyIn(low, 0)))
	b.retries(1, short, key(k.keyIn(high, 0)))
	k.stage(k.row(key(k.keyIn(low, 0)), delay(short)))
	k.stage(k.row(key(k.keyIn(high, 0)), delay(short)))
	k.sleep(2 * short)
	for _, p := range []core.RouteSlots{k.all(), k.part(high), k.part(core.SlotRange(16, 48))} {
		d := a.duePart(p, 10)
		for _, r := range d.Retries {
			k.failIf(!low.Has(r.Slot), "a member was answered a retry of a slot that is another's")
		}
	}
	if d := b.duePart(k.part(high), 10); len(d.Retries) != 1 || d.TimersReady != 1 || !high.Has(d.Retries[0].Slot) {
		k.fail("one retry and one timer are due in the slots of a member, and %d and %d were answered", len(d.Retries), d.TimersReady)
	}
	d, err := a.store.Due(k.ctx, a.self.Session, []core.RouteSlots{k.part(high), k.part(low)}, 10)
	k.must("due", err)
	k.failIf(len(d.Retries) != 1 || !low.Has(d.Retries[0].Slot),
		"due was asked for another's slots and for own ones, and answered %d retries, want the own one", len(d.Retries))
}

// Without this a member whose partitions change gets no due records, and those in the slots that it keeps are late.
func dueLeavesOutSlotsAlone(k *kit) {
	a := k.join(2)
	a.takeOwnership(core.AllSlots)
	a.retries(1, 0, key(k.keyIn(low, 0)))
	a.retries(1, 0, key(k.keyIn(high, 0)))
	k.stage(k.row(key(k.keyIn(low, 1)), delay(short)))
	k.stage(k.row(key(k.keyIn(high, 1)), delay(short)))
	a.free(high)
	k.sleep(2 * short)
	d := a.due(10)
	k.failIf(len(d.Retries) != 1 || !low.Has(d.Retries[0].Slot) || d.TimersReady != 1,
		"a retry and a timer are due in a half of a part that the caller owns, and two in the other half: %d and %d were answered, want 1 and 1", len(d.Retries), d.TimersReady)
	d = a.due(10)
	k.failIf(d.NextIn >= 0, "nothing else is due in the slots of the caller, and NextIn is %s", d.NextIn)
}
