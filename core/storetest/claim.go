package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

var timeChecks = []named{
	{"delay-is-honoured", delayIsHonoured},
	{"deliver-at-is-honoured", deliverAtIsHonoured},
	{"next-in-is-none-when-idle", nextInIsNoneWhenIdle},
	{"next-in-leads-to-timers", nextInLeadsToTimers},
}

// A message with a delay is claimable after it, by the store's clock, and holds up nobody. ST-07.
func delayIsHonoured(k *kit) {
	start := time.Now()
	later := k.stage(k.msg(core.Delay(short)))
	now := k.stage(k.msg(core.Delay(0)))
	k.published(k.takeIDs(now)...)
	k.takeIDs(later)
	if d := time.Since(start); d < short-slack {
		k.fail("a message with a delay of %s was claimed after %s", short, d)
	}
}

// A message with a time is claimable from then on; a time in the past is at once. ST-07.
func deliverAtIsHonoured(k *kit) {
	at := time.Now().Add(2 * short)
	later := k.stage(k.msg(core.DeliverAt(at)))
	past := time.Now()
	k.sleep(pause)
	k.published(k.takeIDs(k.stage(k.msg(core.DeliverAt(past))))...)
	k.takeIDs(later)
	// The store's clock may be another machine's; a second is what a test setup can be asked to keep.
	if d := time.Until(at); d > time.Second {
		k.fail("a message was claimed %s before its time", d)
	}
	k.stage(k.msg(core.DeliverAt(time.Now().Add(far))))
	k.none("it is due in an hour")
}

// A claim that found nothing and knows of no timer says so: NextIn is negative, never zero. ST-07, DB-10.
func nextInIsNoneWhenIdle(k *kit) {
	if c := k.idle(); c.NextIn >= 0 {
		k.fail("NextIn is %s on a route without records", c.NextIn)
	}
}

// Who sleeps for NextIn after an empty claim finds scheduled messages, retries and expired leases in time. ST-07, DB-10.
func nextInLeadsToTimers(k *kit) {
	follow := func(what, id string, start time.Time) []core.Record {
		for {
			c := k.claim(limit(1))
			if len(c.Records) > 0 {
				if got := c.Records[0].Envelope.ID; got != id {
					k.fail("%s: another record came", what)
				}
				if d := time.Since(start); d > short+2*time.Second {
					k.fail("%s: following NextIn took %s instead of %s", what, d, short)
				}
				return c.Records
			}
			switch {
			case c.More:
				continue
			case c.NextIn < 0 || c.NextIn > short+slack:
				k.fail("%s: NextIn is %s, but a record is due within %s", what, c.NextIn, short)
			case time.Since(start) > patience:
				k.fail("%s: NextIn was followed for %s", what, patience)
			}
			k.sleep(max(c.NextIn, pause))
		}
	}
	start := time.Now()
	id := k.stage(k.msg(core.Delay(short)))[0]
	rs := follow("scheduled", id, start)
	start = time.Now()
	k.settle(core.Retry(&rs[0], errors.New("no"), short))
	rs = follow("retry", id, start)
	k.settle(core.Release(&rs[0], 0))
	start = time.Now()
	k.take(1, lease(short))
	follow("lease", id, start)
}

// idle claims until nothing more is said to be there and returns the last answer.
func (k *kit) idle() core.Claim {
	for range 1000 {
		c := k.claim()
		if len(c.Records) > 0 {
			k.fail("an idle route has a record")
		}
		if !c.More {
			return c
		}
	}
	k.fail("1000 claims in a row returned no record and said that there are more")
	return core.Claim{}
}

var claimChecks = []named{
	{"claimers-never-share", claimersNeverShare},
	{"claim-is-bounded-in-records", claimIsBoundedInRecords},
	{"claim-is-bounded-in-bytes", claimIsBoundedInBytes},
	{"claim-keeps-to-its-routes", claimKeepsToItsRoutes},
	{"claim-returns-staging-order", claimReturnsStagingOrder},
	{"claim-skips-topics", claimSkipsTopics},
	{"claim-heeds-its-context", claimHeedsItsContext},
	{"claim-reports-unreadable-row", claimReportsUnreadableRow},
	{"age-counts-from-due", ageCountsFromDue},
	{"counts-per-state", countsPerState},
}

// Claims that run at the same time never return the same record. DB-02.
func claimersNeverShare(k *kit) {
	const n, claimers = 300, 4
	msgs := k.msgs(n)
	for i := range msgs {
		if i%2 == 0 {
			msgs[i].Key = fmt.Sprint("key", i%20)
		}
	}
	k.stage(msgs...)
	var mu sync.Mutex
	seen := map[string]bool{}
	tokens := map[int64]string{}
	k.parallel(claimers, func(_ int, k *kit) {
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			rs := k.claim(limit(7)).Records
			mu.Lock()
			for i := range rs {
				id := rs[i].Envelope.ID
				again := seen[id]
				seen[id] = true
				tokens[rs[i].Lease.Token] = id
				if again {
					mu.Unlock()
					k.fail("two claims returned the same record")
				}
			}
			done := len(seen) == n
			mu.Unlock()
			if done {
				return
			}
			k.published(rs...)
			if len(rs) == 0 {
				k.sleep(pause)
			}
		}
	})
	if len(seen) != n {
		k.fail("%d claimers found %d of %d records", claimers, len(seen), n)
	}
}

// A claim never exceeds MaxRecords, and says More when it left something. DB-02.
func claimIsBoundedInRecords(k *kit) {
	k.stage(k.msgs(10)...)
	for left := 10; left > 0; {
		c := k.claim(limit(3)) // claim checks the bound
		if left -= len(c.Records); left > 0 && !c.More {
			k.fail("a claim of at most 3 that left %d of 10 records did not say that there are more", left)
		}
	}
	k.none("all ten are leased")
}

// A claim never exceeds MaxBytes of bodies, except for a single record. DB-02.
func claimIsBoundedInBytes(k *kit) {
	msgs := k.msgs(6)
	for i := range msgs {
		msgs[i].Body = make([]byte, 1000)
	}
	msgs[3].Body = make([]byte, 5000)
	k.stage(msgs...)
	for left, tries := 6, 0; left > 0; tries++ {
		c := k.claim(func(r *core.ClaimRequest) { r.MaxBytes = 2500 })
		size := 0
		for i := range c.Records {
			size += len(c.Records[i].Envelope.Body)
		}
		if size > 2500 && len(c.Records) > 1 {
			k.fail("a claim of at most 2500 bytes returned %d records with %d bytes", len(c.Records), size)
		}
		if left -= len(c.Records); left > 0 && !c.More {
			k.fail("a claim of at most 2500 bytes that left %d of 6 records did not say that there are more", left)
		}
		if tries > 1000 {
			k.fail("%d records are never claimed under a bound of 2500 bytes", left)
		}
	}
}

// A claim returns records of all routes it names and of no other. DB-02.
func claimKeepsToItsRoutes(k *kit) {
	second, third := newKit(k.ctx, k.h), newKit(k.ctx, k.h)
	k.stage(k.msgs(3)...)
	second.stage(second.msgs(3)...)
	ids := third.stage(third.msgs(3)...)
	both := func(r *core.ClaimRequest) {
		r.Routes = append(r.Routes, core.RouteOrder{Route: second.route, Order: r.Routes[0].Order})
	}
	got := map[string]int{}
	for _, r := range k.take(6, both) { // claim checks the routes
		got[r.Route]++
	}
	if got[k.route] != 3 || got[second.route] != 3 {
		k.fail("two routes with three records each gave %v", got)
	}
	k.none("the third route is not asked for", both)
	third.takeIDs(ids)
}

// Records come in staging order, also those that were released or whose lease expired in between. DB-02.
func claimReturnsStagingOrder(k *kit) {
	ids := k.stage(k.msgs(20)...)
	rs := k.takeIDs(ids)
	for _, i := range []int{7, 3, 11} {
		k.settle(core.Release(&rs[i], 0))
	}
	k.takeIDs([]string{ids[3], ids[7], ids[11]})
}

// Topics to skip are not claimed; under key order a skipped message holds the later ones of its key. DB-02, OR-02.
func claimSkipsTopics(k *kit) {
	msgs := k.msgs(4)
	msgs[1].Topic = "storetest.other"
	msgs[2].Topic = "storetest.full"
	ids := k.stage(msgs...)
	k.takeIDs([]string{ids[0], ids[3]}, skip("storetest.full", "storetest.other"))
	k.none("the rest is skipped", skip("storetest.full", "storetest.other"))
	k.takeIDs([]string{ids[1]}, skip("storetest.full"))
	k.takeIDs([]string{ids[2]})
	if !k.traits.KeyOrder {
		return
	}
	msgs = k.msgs(3, core.Key("key"))
	msgs[0].Topic = "storetest.full"
	ids = k.stage(msgs...)
	k.none("the head of the key is skipped", skip("storetest.full"))
	k.drainIDs(ids)
	msgs = k.msgs(3, core.Key("key"))
	msgs[1].Topic = "storetest.full"
	ids = k.stage(msgs...)
	rs := k.claim(skip("storetest.full")).Records
	if len(rs) == 0 { // the route's keys were busy
		rs = k.take(1, skip("storetest.full"))
	}
	if got := recordIDs(rs); !slices.Equal(got, ids[:1]) {
		k.fail("claimed %s of a key whose second message is skipped, want the first alone", names(got, ids))
	}
	k.published(rs...)
	k.none("the head of the key is skipped", skip("storetest.full"))
	k.drainIDs(ids[1:])
}

// A claim with an ended context fails at once and leases nothing for long. DB-02.
func claimHeedsItsContext(k *kit) {
	ids := k.stage(k.msg())
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	start := time.Now()
	if c, err := k.store.Claim(ctx, k.request()); err == nil {
		k.fail("a claim with an ended context succeeded with %d records", len(c.Records))
	}
	if d := time.Since(start); d > patience/2 {
		k.fail("a claim with an ended context took %s", d)
	}
	k.takeIDs(ids)
}

// A row that cannot be read is claimed with Record.Err, beside its siblings, and can be abandoned. DB-01.
func claimReportsUnreadableRow(k *kit) {
	c, ok := core.As[Corrupter](k.h)
	if !ok {
		k.undeclared("a harness that can spoil a row")
	}
	ids := k.stage(k.msgs(3)...)
	rs := k.takeIDs(ids)
	k.must("spoil a row", c.Corrupt(k.ctx, k.route, rs[1].Seq))
	k.settle(outcomes(rs, func(r *core.Record) core.Outcome { return core.Release(r, 0) })...)
	rs = k.take(3)
	for i := range rs {
		if bad := i == 1; (rs[i].Err != nil) != bad {
			k.fail("record %d is unreadable: %v; Record.Err is %v", i, bad, rs[i].Err)
		}
	}
	k.settle(core.Published(&rs[0]), core.Abandon(&rs[1], core.ReasonUndecodable, rs[1].Err), core.Published(&rs[2]))
	k.none("one is abandoned, the others are published")
}

// Record.Age is the time since the record became due, not since a retry or a claim. DB-11.
func ageCountsFromDue(k *kit) {
	k.stage(k.msg(core.Delay(short)))
	r := k.take(1)[0]
	if r.Age > patience {
		k.fail("a record that was due a moment ago has the age %s", r.Age)
	}
	k.sleep(short)
	k.settle(core.Retry(&r, errors.New("no"), 0))
	if r = k.take(1)[0]; r.Age < short-slack {
		k.fail("a record that was due more than %s ago has the age %s", short, r.Age)
	}
}

// Counts per route and state follow the records. Exact for few records. DB-11.
func countsPerState(k *kit) {
	counter, ok := core.As[core.Counter](k.store)
	if !ok {
		k.undeclared("core.Counter")
	}
	ids := k.stage(k.msgs(6)...)
	rs := k.takeIDs(ids[:4], limit(4))
	k.settle(core.Published(&rs[0]), core.Abandon(&rs[1], core.ReasonRejected, errors.New("no")), core.Retry(&rs[2], errors.New("no"), far))
	kept, ok := k.stored(ids[1])
	all, err := counter.Counts(k.ctx)
	k.must("counts", err)
	got := map[core.State]int64{}
	for _, c := range all {
		if c.Route == k.route {
			got[c.State] += c.N
			if c.Oldest < 0 || c.Oldest > patience {
				k.fail("the oldest of some fresh records in state %s has the age %s", c.State, c.Oldest)
			}
		}
	}
	want := map[core.State]int64{core.StatePending: 2, core.StateProcessing: 1, core.StateFailed: 1}
	if ok && kept != nil {
		want[core.StateAbandoned] = 1
	}
	for state, n := range want {
		if got[state] != n {
			k.fail("counted %d records in state %s, want %d", got[state], state, n)
		}
	}
}
