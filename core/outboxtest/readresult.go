package outboxtest

import (
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// read asks once and checks what every answer must be like.
func (m *member) read(l core.ReadRequest) core.ReadResult {
	p, err := m.store.Read(m.k.ctx, m.self.Session, l)
	m.k.must("read", err)
	m.k.failIf(!p.IsMember, "read says that a member is not known that joined")
	m.k.checkPage(&l, &p)
	return p
}

func (k *kit) checkPage(l *core.ReadRequest, p *core.ReadResult) {
	k.failIf(len(p.Owned) != len(l.Slots) || len(p.Ranges) != len(l.Ranges) || len(p.Keys) != len(l.Keys),
		"a page answers %d parts, %d ranges and %d keys, want %d, %d and %d", len(p.Owned), len(p.Ranges), len(p.Keys), len(l.Slots), len(l.Ranges), len(l.Keys))
	k.failIf(len(p.Blocking) > l.BlockingLimit, "a page has %d that wait, with the limit %d", len(p.Blocking), l.BlockingLimit)
	k.failIf(p.LastSeqXmax == 0 && p.LastSeq > l.KnownLastSeq, "a page has no Upper, although numbers up to %d were drawn since the caller saw %d", p.LastSeq, l.KnownLastSeq)
	for i, r := range p.Ranges {
		asked := &l.Ranges[i]
		k.checkRecords(p, r.Records, asked.AfterSeq, asked.UpToSeq, asked.Limit)
		for j := range r.Records {
			switch rec := &r.Records[j]; {
			case rec.Route != asked.Route || !asked.Slots.Has(rec.Slot):
				k.fail("a range has a record of slot %d of route %q, which was not asked for", rec.Slot, rec.Route)
			case asked.KeyedOnly && rec.Envelope.Key == "":
				k.fail("a range of keyed records has one without a key")
			}
		}
	}
	for i, r := range p.Keys {
		asked := &l.Keys[i]
		k.checkRecords(p, r.Records, asked.AfterSeq, asked.UpToSeq, asked.Limit)
		for j := range r.Records {
			rec := &r.Records[j]
			k.failIf(rec.Route != asked.Route || rec.Envelope.Key != asked.Key, "the records of key %q have one of key %q", asked.Key, rec.Envelope.Key)
		}
		for _, w := range r.Blocking {
			k.failIf(w.Route != asked.Route || w.Key != asked.Key, "the waiting records of key %q contain one of key %q", asked.Key, w.Key)
		}
	}
	for i := range p.Rechecked {
		k.checkRecord(p, &p.Rechecked[i])
	}
}

func (k *kit) checkRecords(p *core.ReadResult, rs []core.Record, from, to int64, limit int) {
	k.failIf(len(rs) > limit, "%d records with the limit %d", len(rs), limit)
	last := from
	for i := range rs {
		k.failIf(rs[i].Seq <= last || rs[i].Seq > to, "a range from %d to %d has sequence %d after %d", from, to, rs[i].Seq, last)
		last = rs[i].Seq
		k.checkRecord(p, &rs[i])
	}
}

func (k *kit) checkRecord(p *core.ReadResult, r *core.Record) {
	switch {
	case r.Seq > p.LastSeq:
		k.fail("a page has a record with sequence %d and says that the last one is %d", r.Seq, p.LastSeq)
	case r.Err != nil:
		k.fail("a record cannot be read: %w", r.Err)
	case r.ID != r.Envelope.ID || r.ID == "":
		k.fail("a record is named %q, and its envelope %q", r.ID, r.Envelope.ID)
	case r.Slot != core.SlotOf(r.Route, r.Envelope.Key, r.ID):
		k.fail("the record with key %q and id %q of route %q has slot %d, want %d", r.Envelope.Key, r.ID, r.Route, r.Slot,
			core.SlotOf(r.Route, r.Envelope.Key, r.ID))
	case r.DueFor < -k.slack():
		k.fail("a record has the negative age %s", r.DueFor)
	}
}

// same fails unless got are the ids want, in this order. It names them by their numbers among all.
func (k *kit) same(what string, got, want, all []string) {
	k.failIf(!slices.Equal(got, want), "%s: got %s, want %s", what, suitetest.Names(got, all), suitetest.Names(want, all))
}

// beginning fails unless got is the beginning of all. If it is not all, the answer must say that there are more.
func (k *kit) beginning(what string, got, all []string, more bool) {
	k.same(what, got, all[:min(len(got), len(all))], all)
	k.failIf(len(got) < len(all) && !more, "%s has %d of %d records and does not say that there are more", what, len(got), len(all))
}

// counted fails unless a record has so many attempts and crashes.
func (k *kit) counted(when string, r core.Record, attempts, crashes int) {
	k.failIf(r.Attempts != attempts || r.Crashes != crashes,
		"%s: a record has %d attempts and %d crashes, want %d and %d", when, r.Attempts, r.Crashes, attempts, crashes)
}

// wide is a range of all there is in a part.
func wide(p core.RouteSlots) core.Range {
	return core.Range{RouteSlots: p, UpToSeq: forever, Limit: 10_000}
}

// everything is a look at all that is ready on the check's route.
func (k *kit) everything() core.ReadRequest {
	return core.ReadRequest{Slots: []core.RouteSlots{k.all()}, Ranges: []core.Range{wide(k.all())}, BlockingLimit: 1000, Bytes: 1 << 30}
}

// ready returns all ready records of the check's route.
func (m *member) ready() []core.Record {
	p := m.read(m.k.everything())
	return p.Ranges[0].Records
}

// inRange returns the records of one range.
func (m *member) inRange(rg core.Range) core.Records {
	return m.read(core.ReadRequest{Ranges: []core.Range{rg}, BlockingLimit: 10, Bytes: 1 << 20}).Ranges[0]
}

// find returns the ready records with these ids, in this order.
func (m *member) find(ids ...string) []core.Record {
	all := m.ready()
	out := make([]core.Record, len(ids))
	for i, id := range ids {
		at := slices.IndexFunc(all, func(r core.Record) bool { return r.ID == id })
		m.k.failIf(at < 0, "record %d of %d is not ready", i, len(ids))
		out[i] = all[at]
	}
	return out
}

// one stages a row and returns its record.
func (m *member) one(opts ...option) core.Record {
	return m.find(m.k.stage(m.k.row(opts...))...)[0]
}

// some stages n rows and returns their records.
func (m *member) some(n int, opts ...option) []core.Record {
	return m.find(m.k.stage(m.k.rows(n, opts...)...)...)
}

// none fails if one of ids is ready.
func (m *member) none(why string, ids ...string) {
	for _, r := range m.ready() {
		m.k.failIf(slices.Contains(ids, r.ID), "a record is ready, but %s", why)
	}
}

// again asks for refs again.
func (m *member) again(refs ...core.Ref) core.ReadResult {
	return m.read(core.ReadRequest{Recheck: refs, BlockingLimit: 1000, Bytes: 1 << 30})
}

// live returns the one record of refs that is ready.
func (m *member) live(ref core.Ref) core.Record {
	p := m.again(ref)
	m.k.failIf(len(p.Rechecked) != 1 || p.Rechecked[0].Seq != ref.Seq || p.Rechecked[0].ID != ref.ID,
		"a ready record was asked for again: %d answers, and %d that wait", len(p.Rechecked), len(p.RecheckedBlocking))
	return p.Rechecked[0]
}

// gone fails if the record is ready or waits.
func (m *member) gone(why string, refs ...core.Ref) {
	p := m.again(refs...)
	for i := range p.Rechecked {
		m.k.fail("record %d is still ready, but %s", p.Rechecked[i].Seq, why)
	}
	for i := range p.RecheckedBlocking {
		m.k.fail("record %d still waits, but %s", p.RecheckedBlocking[i].Seq, why)
	}
	for _, r := range m.ready() {
		m.k.failIf(slices.ContainsFunc(refs, func(ref core.Ref) bool { return ref.Seq == r.Seq && ref.ID == r.ID }),
			"record %d is still in its range, but %s", r.Seq, why)
	}
}

// retrying fails unless the record waits for its next attempt.
func (m *member) retrying(ref core.Ref) {
	p := m.again(ref)
	m.k.failIf(len(p.Rechecked) != 0 || len(p.RecheckedBlocking) != 1 || p.RecheckedBlocking[0].Why != core.BlockedByRetry,
		"after a failed attempt %d records are ready and %d wait, want one that waits for its next attempt", len(p.Rechecked), len(p.RecheckedBlocking))
	m.none("it waits for its next attempt", ref.ID)
}

// holder fails unless each record, which is ready, is held by want.
func (m *member) holder(when string, want core.Session, refs ...core.Ref) {
	for _, ref := range refs {
		got := m.live(ref).HeldBy
		m.k.failIf(got != want, "%s: a record is held by session %d, want %d", when, got, want)
	}
}

func refs(rs []core.Record) []core.Ref {
	return suitetest.Each(rs, func(r *core.Record) core.Ref { return r.Ref })
}

func heldRefs(ts []core.HoldResult) []core.Ref {
	return suitetest.Each(ts, func(t *core.HoldResult) core.Ref { return t.Ref })
}

func ids(rs []core.Record) []string {
	return suitetest.Each(rs, func(r *core.Record) string { return r.ID })
}
