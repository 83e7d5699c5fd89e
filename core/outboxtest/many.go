package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var manyChecks = []named{
	{"ranges-have-their-own-limits", rangesHaveTheirOwnLimits},
	{"blocks-on-each-route", blocksOnEachRoute},
	{"large-answers-are-whole", largeAnswersAreWhole},
	{"names-are-compared-exactly", namesAreComparedExactly},
	{"crashes-count-to-ten", crashesCountToTen},
	{"long-delays-are-kept", longDelaysAreKept},
	{"next-in-counts-beside-retries", nextInCountsBesideRetries},
	{"hold-holds-many", holdHoldsMany},
	{"membership-has-many-partitions", membershipHasManyPartitions},
	{"attempts-count-to-ten", attemptsCountToTen},
	{"next-in-is-not-zero-in-vain", nextInIsNotZeroInVain},
	{"short-delays-are-kept", shortDelaysAreKept},
	{"settle-of-an-ended-context", settleOfAnEndedContext},
	{"release-of-an-ended-context", releaseOfAnEndedContext},
}

// second makes m the owner of another route too, and returns its name.
func (m *member) second() string {
	k := m.k
	route := k.route + "-2"
	m.self.Routes = append(m.self.Routes, core.ServedRoute{Route: route, InitialPartitions: 1})
	m.self.Heartbeats++
	m.join()
	m.takeOwnershipOf(core.RouteSlots{Route: route, Slots: core.AllSlots})
	return route
}

// Without this a busy route, or one with large bodies, starves the others: the engine divides by the limits of ranges.
func rangesHaveTheirOwnLimits(k *kit) {
	m := k.owner(1)
	other := m.second()
	large := k.stage(k.rows(60, body(1000))...)
	var rows []core.StagedRow
	for i := range 10 {
		rows = append(rows, k.row(onRoute(other), key([]string{"", "k"}[i%2])))
	}
	few := k.stage(rows...)
	busy, quiet := wide(k.all()), wide(core.RouteSlots{Route: other, Slots: core.AllSlots})
	busy.Limit, quiet.Limit = 20, 20
	for _, bytes := range []int64{1 << 20, 2010} {
		for _, ranges := range [][]core.Range{{busy, quiet}, {quiet, busy}} {
			p := m.read(core.ReadRequest{Ranges: ranges, BlockingLimit: 10, Bytes: bytes})
			for i, r := range p.Ranges {
				switch of := ranges[i].Route; {
				case of == other && !slices.Equal(ids(r.Records), few):
					k.fail("%d records are ready on a route beside a busy one, whose range has a limit of its own, and %s of them were read",
						len(few), suitetest.Names(ids(r.Records), few))
				case of != other && (len(r.Records) == 0 || !slices.Equal(ids(r.Records), large[:len(r.Records)]) || !r.More):
					k.fail("a busy route has %d records, and with the limit 20 and %d bytes %s were read, more: %v",
						len(large), bytes, suitetest.Names(ids(r.Records), large), r.More)
				}
			}
		}
	}
}

// Without this a key of a route that blocks goes on behind its abandoned head, since another route was asked for first.
func blocksOnEachRoute(k *kit) {
	m := k.owner(1)
	other := m.second()
	heads := map[string]string{}
	for _, route := range []string{k.route, other} {
		heads[route] = k.stage(k.row(onRoute(route), key("k")), k.row(onRoute(route), key("k")))[0]
		rs := m.inRange(wide(core.RouteSlots{Route: route, Slots: core.AllSlots})).Records
		m.settle(core.Abandon(&rs[0], waybill.ReasonAttempts, errNo))
	}
	routes := []string{k.route, other}
	for range 2 {
		request := core.ReadRequest{BlockingRoutes: routes, BlockingLimit: 10, Bytes: 1 << 20}
		for _, route := range routes {
			request.NewlyOwned = append(request.NewlyOwned, core.RouteSlots{Route: route, Slots: core.AllSlots})
			request.Keys = append(request.Keys, core.KeyRange{Route: route, Key: "k", UpToSeq: forever, Limit: 10})
		}
		p := m.read(request)
		fresh := map[string]string{}
		for _, w := range p.Blocking {
			fresh[w.Route] = w.ID
		}
		for i, route := range routes {
			ws := p.Keys[i].Blocking
			k.failIf(fresh[route] != heads[route] || len(ws) != 1 || ws[0].ID != heads[route] || ws[0].Why != core.BlockedByAbandoned,
				"two routes block, each with an abandoned head: of the %d. a look shows %+v in its slots and %+v of its key", i+1, p.Blocking, ws)
		}
		slices.Reverse(routes)
	}
}

// Without this a store that answers up to a bound of its own, and does not say so, loses what is behind it.
func largeAnswersAreWhole(k *kit) {
	const n = 1200
	m := k.owner(1)
	want := k.stage(k.rows(n, key("k"), body(1))...)
	p := m.read(core.ReadRequest{
		Ranges: []core.Range{wide(k.all())}, Keys: k.ofKey("k", 10_000), BlockingLimit: 10_000, Bytes: 1 << 30,
	})
	k.beginning("a range", ids(p.Ranges[0].Records), want, p.Ranges[0].More)
	k.beginning("a key", ids(p.Keys[0].Records), want, p.Keys[0].More)
	rs := p.Ranges[0].Records
	again := m.again(refs(rs)...)
	k.failIf(len(again.Rechecked) != len(rs), "%d ready records were asked for again, and %d were answered", len(rs), len(again.Rechecked))
	for from := 0; from < len(rs); from += 500 {
		part := rs[from:min(from+500, len(rs))]
		m.hold(refs(part)...)
		m.settle(suitetest.Each(part, func(r *core.Record) core.Outcome { return core.Retry(r, errNo, 0) })...)
	}
	p = m.read(core.ReadRequest{NewlyOwned: []core.RouteSlots{k.all()}, BlockingLimit: 10_000})
	var waiting []string
	for _, w := range p.Blocking {
		waiting = append(waiting, w.ID)
	}
	k.beginning("a look at what waits", waiting, want, p.MoreBlocking)
	left := len(rs)
	k.until("all retries that are due were answered", func() bool {
		d := m.due(10_000)
		left -= len(d.Retries)
		k.failIf(left > 0 && d.NextIn != 0,
			"with the limit 10000 %d of %d due retries were answered, %d are left, and NextIn is %s, not 0", len(d.Retries), len(rs), left, d.NextIn)
		m.settle(suitetest.Each(d.Retries, core.Published)...)
		return left <= 0
	})
}

// twins are names that a database can take for one: by case, space at the end, accents, and ways to write one letter.
var twins = []string{"name", "Name", "NAME", "name ", " name", "namé", "name\u0301", "nåme", "na\u030ame", "ｎame"}

// Without this two keys are one, or a message is taken for another and lost. A comparison by a language's rules, or one
// that ignores spaces at the end, does that; on many servers it is the default.
func namesAreComparedExactly(k *kit) {
	m := k.owner(1)
	own := k.route + "/"
	var rows []core.StagedRow
	for _, s := range twins {
		rows = append(rows, k.row(id(own+s), key(own+s)))
	}
	want := k.stage(rows...)
	rs := m.find(want...)
	request := core.ReadRequest{BlockingLimit: 100, Bytes: 1 << 20}
	for i := range rows {
		request.Keys = append(request.Keys, k.ofKey(own+twins[i], 10)...)
	}
	p := m.read(request)
	for i := range request.Keys {
		k.same(fmt.Sprintf("the records of key %q", request.Keys[i].Key), ids(p.Keys[i].Records), want[i:i+1], want)
	}
	rg := wide(k.all())
	rg.ExcludeKeys = []string{own + "NAME"}
	for _, i := range []int{0, 1, 3} {
		k.failIf(!slices.Contains(ids(m.inRange(rg).Records), want[i]), "key %q was to be left out, and so was key %q", rg.ExcludeKeys[0], own+twins[i])
	}
	for i := range rs {
		for j := range rs {
			if other := rs[i]; i != j {
				other.ID, other.Envelope.ID = rs[j].ID, rs[j].ID
				err := m.trySettle(core.Published(&other))[0]
				k.failIf(!errors.Is(err, core.ErrChanged), "the record %q was settled by the id %q: got %v, want core.ErrChanged", rs[i].ID, other.ID, err)
			}
		}
	}
	m.settle(core.Retry(&rs[0], errNo, far))
	m.find(want[1:]...)
	k.routesApart()
}

// routesApart checks that routes with names that are nearly the same are different routes.
func (k *kit) routesApart() {
	upper := strings.ToUpper(k.route)
	m := k.stranger(1)
	m.self.Routes = nil
	routes := []string{k.route + "é", upper + "É", k.route + "e", upper + "E", k.route + "e "}
	for _, route := range routes {
		m.self.Routes = append(m.self.Routes, core.ServedRoute{Route: route, InitialPartitions: 1})
	}
	m.join()
	for _, route := range routes {
		own := core.RouteSlots{Route: route, Slots: core.AllSlots}
		m.takeOwnershipOf(own)
		k.stage(k.row(onRoute(route), id("same")))
		rs := m.inRange(wide(own)).Records
		k.failIf(len(rs) != 1 || rs[0].Route != route,
			"one record was staged on route %q, beside others with nearly that name, and %d are ready", route, len(rs))
	}
}

// Without this a record that kills its process is handed out for ever: it is given up at ten crashes.
func crashesCountToTen(k *kit) {
	by := k.join(1)
	id := k.stage(k.row(key("k")))
	for want := 1; want <= core.MaxCrashes+1; want++ {
		m := k.join(1)
		m.takeOwnership(core.AllSlots)
		m.hold(refs(m.find(id...))...)
		m.die(by)
		by.takeOwnership(core.AllSlots)
		k.counted("its holders were removed", by.find(id...)[0], 0, want)
		by.free(core.AllSlots)
	}
}

// Without this a back-off of hours, or a message for next year, is due at once.
func longDelaysAreKept(k *kit) {
	m := k.owner(1)
	const day = 24 * time.Hour
	for _, in := range []time.Duration{2 * time.Hour, 26 * time.Hour, 40 * day, 25 * 365 * day} {
		r := m.one()
		m.settle(core.Retry(&r, errNo, in))
		m.dueLater("a long retry", in-time.Minute, in)
		m.retrying(r.Ref)
		r.Version = m.version(r.Ref)
		m.settle(core.Published(&r))
	}
	for _, in := range []time.Duration{300 * day, 26 * time.Hour} {
		id := k.stage(k.row(delay(in)))[0]
		m.dueLater("a long timer", in-time.Minute, in)
		m.none("its timer is not due", id)
	}
}

// Without this a timer waits for the poll whenever a retry was due in the look before.
func nextInCountsBesideRetries(k *kit) {
	m := k.owner(1)
	staged := k.now()
	m.retries(2, 0)
	k.stage(k.row(delay(far)))
	k.until("the retries are due", func() bool {
		d := m.due(10)
		if len(d.Retries) == 0 {
			return false
		}
		if d.NextIn == 0 && len(d.Retries) < 2 {
			return false // there are more already
		}
		least := far - k.now().Sub(staged) - k.slack()
		k.failIf(d.NextIn < least || d.NextIn > far, "%d retries were answered, a timer is due in %s, and NextIn is %s", len(d.Retries), least, d.NextIn)
		return true
	})
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
