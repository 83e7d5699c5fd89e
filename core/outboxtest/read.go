package outboxtest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var readChecks = []named{
	{"envelope-comes-back", envelopeComesBack},
	{"times-come-back-as-durations", timesComeBackAsDurations},
	{"range-is-in-order", rangeIsInOrder},
	{"range-keeps-to-its-bounds", rangeKeepsToItsBounds},
	{"range-keeps-to-its-slots", rangeKeepsToItsSlots},
	{"range-keeps-to-its-limit", rangeKeepsToItsLimit},
	{"range-keeps-to-its-bytes", rangeKeepsToItsBytes},
	{"range-may-leave-keys-out", rangeMayLeaveKeysOut},
	{"range-of-keyed-records", rangeOfKeyedRecords},
	{"read-is-bounded-behind-a-blocked-key", readIsBoundedBehindABlockedKey},
	{"ready-is-what-is-due", readyIsWhatIsDue},
	{"uncommitted-is-not-ready", uncommittedIsNotReady},
	{"read-waits-for-no-lock", readWaitsForNoLock},
	{"owned-are-the-slots-of-the-session", ownedAreTheSlotsOfTheSession},
	{"epoch-is-stable", epochIsStable},
}

// Without this a message arrives with less, or other things, than the application staged.
func envelopeComesBack(k *kit) {
	m := k.owner(1)
	row := k.row(key("schlüssel\t\"1\""), cancellable, body(70_000), expires(time.Now().Add(far)))
	e := &row.Envelope
	for i := range e.Body {
		e.Body[i] = byte(i)
	}
	e.Subject, e.Tenant, e.CorrelationID, e.CausationID, e.RunID = "subject", "tenant", "correlation", "causation", "run"
	e.Lineage, e.Headers, e.Priority = []string{"a", "b"}, map[string]string{"h": "v", "Ü": ""}, 7
	e.HLC = 1<<60 + 12345
	want, wantBody := e.Clone(), bytes.Clone(e.Body)
	rs := m.find(k.stage(row, k.row())...)
	got := rs[0].Envelope
	switch {
	case !bytes.Equal(got.Body, wantBody):
		k.fail("a body of %d bytes came back with %d, or other ones", len(wantBody), len(got.Body))
	case !got.Time.Equal(want.Time) || !got.Expires.Equal(want.Expires):
		k.fail("times %s and %s came back as %s and %s", want.Time, want.Expires, got.Time, got.Expires)
	case !slices.Equal(got.Lineage, want.Lineage) || len(got.Headers) != 2 || got.Headers["h"] != "v":
		k.fail("lineage %v and headers %v came back as %v and %v", want.Lineage, want.Headers, got.Lineage, got.Headers)
	case got.Key != want.Key || got.Topic != want.Topic || got.Type != want.Type || got.Source != want.Source ||
		got.Subject != want.Subject ||
		got.ContentType != want.ContentType || got.Tenant != want.Tenant || got.CorrelationID != want.CorrelationID ||
		got.CausationID != want.CausationID || got.RunID != want.RunID || got.Priority != want.Priority || got.HLC != want.HLC:
		k.fail("an envelope came back as %+v, want %+v", got, want)
	case !rs[0].Cancellable || rs[1].Cancellable:
		k.fail("one of two records was staged as cancellable, and they came back as %v and %v", rs[0].Cancellable, rs[1].Cancellable)
	}
	for _, r := range rs {
		k.failIf(r.Attempts != 0 || r.Crashes != 0 || r.Deliveries != 0 || r.Failed || r.HeldBy != 0,
			"a new record has attempts %d, crashes %d, deliveries %d, failed %v and holder %d", r.Attempts, r.Crashes, r.Deliveries, r.Failed, r.HeldBy)
	}
}

// Without this records expire too early or never, and lag is shown wrongly.
func timesComeBackAsDurations(k *kit) {
	m := k.owner(1)
	before := k.now()
	rs := k.stage(k.row(), k.row(expires(k.now().Add(far))), k.row(expires(k.now().Add(-far))))
	k.sleep(short)
	for i, r := range m.find(rs...) {
		most := k.now().Sub(before) + k.slack()
		k.failIf(r.DueFor < short-k.slack() || r.DueFor > most, "a record was staged between %s and %s ago, and its age is %s", short, most, r.DueFor)
		k.failIf(r.Expires != (i > 0) || i == 1 && (r.ExpiresIn < far-time.Minute || r.ExpiresIn > far+time.Minute) || i == 2 && r.ExpiresIn > time.Minute-far,
			"record %d (no expiry, in an hour, an hour ago) has expiry %v and the life %s", i, r.Expires, r.ExpiresIn)
	}
}

// Without this the messages of a key arrive in another order than they were staged in.
func rangeIsInOrder(k *kit) {
	m := k.owner(4)
	var want []string
	for i := range 5 {
		want = append(want, k.stage(k.rows(7, key(k.keyIn(core.AllSlots, i)))...)...)
		want = append(want, k.stage(k.rows(3)...)...)
	}
	k.same("records that were staged one after the other", ids(m.ready()), want, want)
}

// Without this the engine reads a record twice, or passes one over, at the edge of a page.
func rangeKeepsToItsBounds(k *kit) {
	m := k.owner(1)
	rs := m.some(6, key("k"))
	seq := func(i int) int64 { return rs[i].Seq }
	for _, c := range []struct {
		from, to    int64
		first, past int
	}{{0, forever, 0, 6}, {seq(0), forever, 1, 6}, {seq(1), seq(4), 2, 5}, {seq(1) - 1, seq(4) - 1, 1, 4}, {seq(5), forever, 6, 6}, {seq(2), seq(2), 6, 6}} {
		rg := wide(k.all())
		rg.AfterSeq, rg.UpToSeq = c.from, c.to
		p := m.read(core.ReadRequest{
			Ranges: []core.Range{rg}, BlockingLimit: 10, Bytes: 1 << 20,
			Keys: []core.KeyRange{{Route: k.route, Key: "k", AfterSeq: c.from, UpToSeq: c.to, Limit: 10}},
		})
		want := ids(rs[c.first:c.past])
		k.same("a range between two of six records", ids(p.Ranges[0].Records), want, ids(rs))
		k.same("a key between two of six records", ids(p.Keys[0].Records), want, ids(rs))
	}
}

// Without this a member hands out records of partitions that are not its own.
func rangeKeepsToItsSlots(k *kit) {
	m := k.owner(1)
	rs := m.some(150)
	for _, s := range []core.Slots{core.SlotRange(0, 32), core.SlotRange(63, 64), 1<<3 | 1<<40 | 1<<41, 0, core.AllSlots} {
		p := m.read(core.ReadRequest{
			Ranges: []core.Range{wide(k.part(s)), wide(core.RouteSlots{Route: k.route + "-x", Slots: s})}, BlockingLimit: 10, Bytes: 1 << 20,
		})
		var want []string
		for _, r := range rs {
			if s.Has(core.SlotOf(k.route, "", r.ID)) {
				want = append(want, r.ID)
			}
		}
		k.same(fmt.Sprintf("the records of the slots %b", s), ids(p.Ranges[0].Records), want, ids(rs))
		n := len(p.Ranges[1].Records)
		k.failIf(n > 0, "%d records of another route were read", n)
	}
}

// Without this a page is larger than the engine has room for, or it takes a page that was cut for all there is.
func rangeKeepsToItsLimit(k *kit) {
	m := k.owner(1)
	rs := m.some(5, key("k"))
	for n := 1; n <= 6; n++ {
		rg := wide(k.all())
		rg.Limit = n
		p := m.read(core.ReadRequest{
			Ranges: []core.Range{rg, wide(k.all())}, Keys: k.ofKey("k", n), BlockingLimit: 10, Bytes: 1 << 20,
		})
		k.checkCut("a range", p.Ranges[0], rs, n)
		k.checkCut("a key", core.Records{Records: p.Keys[0].Records, More: p.Keys[0].More}, rs, n)
		k.checkCut("a range beside one with a limit", p.Ranges[1], rs, 5)
	}
}

// checkCut fails unless the answer is the beginning of all, with More set if it is not all. It may be below its limit.
func (k *kit) checkCut(what string, answer core.Records, all []core.Record, limit int) {
	got := ids(answer.Records)
	k.failIf(len(got) == 0 || len(got) > limit, "%s of %d records with the limit %d answered %d", what, len(all), limit, len(got))
	k.beginning(what, got, ids(all), answer.More)
}

// Without this large bodies fill the memory of the process, or one that is larger than the bound is never read.
func rangeKeepsToItsBytes(k *kit) {
	m := k.owner(1)
	rs := m.some(5, key("k"), body(1000))
	for _, most := range []int64{1, 999, 1000, 2500, 1 << 20} {
		p := m.read(core.ReadRequest{Ranges: []core.Range{wide(k.all()), wide(k.all())}, Keys: k.ofKey("k", 10), BlockingLimit: 10, Bytes: most})
		n := max(1, min(5, int(most/1000)))
		k.checkCut("a range with a bound of bytes", p.Ranges[0], rs, n)
		k.checkCut("a second range with a bound of bytes", p.Ranges[1], rs, n)
		k.checkCut("a key with a bound of bytes", core.Records{Records: p.Keys[0].Records, More: p.Keys[0].More}, rs, 5)
	}
}

// Without this a record stays behind for ever since another one was to be left out.
func rangeMayLeaveKeysOut(k *kit) {
	m := k.owner(1)
	var rows []core.StagedRow
	for i := range 12 {
		rows = append(rows, k.row(key([]string{"hot", "a", ""}[i%3])))
	}
	rs := m.find(k.stage(rows...)...)
	rg := wide(k.all())
	rg.ExcludeKeys, rg.ExcludeSeqs = []string{"hot"}, []int64{rs[1].Seq, rs[5].Seq}
	got := ids(m.inRange(rg).Records)
	for i, r := range rs {
		may := i%3 == 0 || i == 1 || i == 5
		k.failIf(!may && !slices.Contains(got, r.ID),
			"record %d of 12 has another key and number than those to leave out, and is missing: read %s", i, suitetest.Names(got, ids(rs)))
	}
}

// Without this every process of a queue reads the bodies of all records that have no key.
func rangeOfKeyedRecords(k *kit) {
	m := k.owner(1)
	rs := m.find(k.stage(k.row(), k.row(key("a")), k.row(), k.row(key("b")))...)
	rg := wide(k.all())
	rg.KeyedOnly = true
	k.same("the keyed ones of four records", ids(m.inRange(rg).Records), []string{rs[1].ID, rs[3].ID}, ids(rs))
}

// Without this a message is published before its time, during its back-off, or a second time.
func readyIsWhatIsDue(k *kit) {
	m := k.owner(1)
	rs := m.some(6, key("k"))
	timer := k.stage(k.row(key("k"), delay(short)))
	m.settle(core.Published(&rs[0]), core.Abandon(&rs[1], "", errNo), core.Retry(&rs[2], errNo, far),
		core.Retry(&rs[3], errNo, 0), core.Release(&rs[4], 0, false))
	m.hold(rs[5].Ref)
	k.sleep(2 * short) // what is due has to be put in line by Due first
	want := ids(rs[4:])
	p := m.read(core.ReadRequest{Ranges: []core.Range{wide(k.all())}, Keys: k.ofKey("k", 10), BlockingLimit: 10, Bytes: 1 << 20})
	for what, got := range map[string][]string{"a range": ids(p.Ranges[0].Records), "a key": ids(p.Keys[0].Records)} {
		k.same("published, abandoned, two that wait for an attempt, one released, one held, one timer, of which "+what+" has", got, want, append(ids(rs), timer...))
	}
}

// Without this a message of a transaction that is rolled back is published.
func uncommittedIsNotReady(k *kit) {
	m := k.owner(1)
	tx := k.begin()
	k.stageIn(tx, k.row())
	if !k.single() {
		n := len(m.ready())
		k.failIf(n > 0, "%d records of a running transaction are ready", n)
	}
	k.rollback(tx)
	tx = k.begin()
	if sp, ok := core.As[Savepointer](tx); ok {
		k.must("set a savepoint", sp.Savepoint(k.ctx))
		k.stageIn(tx, k.row())
		k.must("roll back to a savepoint", sp.RollbackTo(k.ctx))
	}
	want := k.row()
	k.stageIn(tx, want)
	k.commit(tx)
	got := ids(m.ready())
	k.failIf(len(got) != 1 || got[0] != want.Envelope.ID, "one record was committed, others rolled back, and %d are ready", len(got))
}

// Without this an application that keeps a record locked stops everything that its owner has to do.
func readWaitsForNoLock(k *kit) {
	m := k.owner(1)
	rs := m.some(2, key("k"))
	unlock := k.lock(rs[0].ID)
	k.soon("a read", func() {
		m.holder("a record is locked", 0, refs(rs)...)
		n := len(m.ready())
		k.failIf(n != 2, "one of two records is locked, and %d are ready, want 2", n)
	})
	k.soon("a renewal", func() { m.heartbeat() })
	unlock()
}

// Without this a member hands out records of a partition that it lost, or stops at partitions that it owns.
func ownedAreTheSlotsOfTheSession(k *kit) {
	a, b := k.join(4), k.join(4)
	a.takeOwnership(low)
	b.takeOwnership(core.SlotRange(32, 48))
	request := core.ReadRequest{Slots: []core.RouteSlots{
		k.all(), k.part(core.SlotRange(8, 40)), {Route: k.route + "-x", Slots: core.AllSlots}, k.part(core.SlotRange(48, 64)),
	}, BlockingLimit: 1}
	for m, want := range map[*member][]core.Slots{
		a: {core.SlotRange(0, 32), core.SlotRange(8, 32), 0, 0},
		b: {core.SlotRange(32, 48), core.SlotRange(32, 40), 0, 0},
	} {
		got := m.read(request).Owned
		k.failIf(!slices.Equal(got, want), "a page says that its session owns %b, want %b", got, want)
	}
	a.free(core.SlotRange(0, 16))
	got := a.read(request).Owned[0]
	k.failIf(got != core.SlotRange(16, 32), "after a partition was freed a page says %b", got)
}

// Without this members take an epoch that changes for a restore, and start anew for nothing.
func epochIsStable(k *kit) {
	a, b := k.owner(1), k.join(1)
	first := a.read(k.everything()).StoreEpoch
	a.settle(core.Published(new(a.one())))
	for _, m := range []*member{a, b, k.join(1)} {
		p, r := m.read(k.everything()).StoreEpoch, m.heartbeat().StoreEpoch
		k.failIf(p != first || r != first, "the epoch is %q, and then %q in a page and %q in a membership", first, p, r)
	}
	r := k.look()
	k.failIf(r.StoreEpoch != first, "the epoch is %q, and %q for a call that only looks", first, r.StoreEpoch)
}

// Without this each read goes through all records of a key that waits for a retry, and a relay stands still. DB-20.
func readIsBoundedBehindABlockedKey(k *kit) {
	meter := needs[Meter](k, k.h, "Meter")
	m := k.owner(1)
	touched := func() int64 {
		n, err := meter.Touched(k.ctx)
		k.must("touched", err)
		return n
	}
	hot, other := k.keyIn(core.AllSlots, 0), k.keyIn(core.AllSlots, 1)
	head := m.find(k.stage(k.row(key(hot)))...)
	m.settle(core.Retry(&head[0], errNo, far))
	// cost stages n more records of the key, and returns the cost of going on behind them, as an engine does that
	// has passed the key: it reads the front, the key's first record, and the waiting records that a new owner asks
	// for.
	cost := func(n int) int64 {
		k.stage(k.rows(n, key(hot))...)
		front := m.read(core.ReadRequest{Slots: []core.RouteSlots{k.all()}}).LastSeq
		id := k.stage(k.row(key(other)))[0]
		rg := wide(k.all())
		rg.AfterSeq, rg.Limit, rg.ExcludeKeys = front, 10, []string{hot}
		before := touched()
		p := m.read(core.ReadRequest{
			Slots: []core.RouteSlots{k.all()}, NewlyOwned: []core.RouteSlots{k.all()}, Ranges: []core.Range{rg}, Keys: k.ofKey(hot, 1), BlockingLimit: 10, Bytes: 1 << 20,
		})
		after := touched()
		got := ids(p.Ranges[0].Records)
		k.failIf(!slices.Equal(got, []string{id}), "behind %d records of a key that waits one of another key was staged, and %d were read", n, len(got))
		return after - before
	}
	cost(20) // prepares what has to be
	few := cost(20)
	many := cost(2000)
	k.failIf(many > 2*few+50, "a read behind 40 records of a key that waits touches %d rows or the like, and %d behind 2,040", few, many)
}
