package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/patience"
)

var lastingChecks = []named{
	{"high-water-covers-what-was-staged", highWaterCoversStaged},
	{"high-water-survives-publishing", highWaterSurvivesPublishing},
	{"high-water-is-bounded", highWaterIsBounded},
	{"stale-settle-changes-nothing", staleSettleChangesNothing},
	{"stale-settle-of-kept-changes-nothing", staleSettleOfKeptChangesNothing},
	{"redrive-resets-crashes", redriveResetsCrashes},
	{"redrive-removes-the-expiry", redriveRemovesTheExpiry},
	{"deleted-head-frees-its-key", deletedHeadFreesItsKey},
	{"purged-head-frees-its-key", purgedHeadFreesItsKey},
	{"clean-passes-what-is-locked", cleanPassesWhatIsLocked},
	{"oldest-counts-from-due", oldestCountsFromDue},
	{"what-is-due-is-counted", whatIsDueIsCounted},
	{"deliver-at-knows-time-zones", deliverAtKnowsTimeZones},
}

// highWater returns the store's mark.
func (k *kit) highWater() hlc.Timestamp {
	ts, err := capability[core.ClockSeeder](k).HighWater(k.ctx)
	k.must("high water", err)
	return ts
}

// covers fails if the mark is below the stamp of one of rs, by more than behind.
func (k *kit) covers(when string, rs []core.Record, behind time.Duration) {
	ts := k.highWater()
	for i := range rs {
		stamp := rs[i].Envelope.HLC
		k.failIf(stamp > ts && (behind == 0 || stamp.Millis()-ts.Millis() > behind.Milliseconds()),
			"%s: the high water is %s, but message %d of %d has the stamp %s: the clock of a new process goes back", when, ts, i, len(rs), stamp)
	}
}

// late is how far the mark can be behind what was settled last.
const late = time.Second

// A clock that starts from the store's mark stamps nothing below what is stored: ready, scheduled, held or to be
// retried, with a key or without. OR-06.
func highWaterCoversStaged(k *kit) {
	k.highWater()
	ids := k.stage(k.msg(), k.msg(waybill.Key("a")))
	rs := k.takeIDs(ids)
	k.covers("two are held", rs, 0)
	k.retry(rs[1], 0)
	k.covers("one waits for a retry", rs[1:], 0)
	k.stage(k.msg(waybill.Delay(short)))
	k.published(rs[0])
	k.expire(short)
	k.covers("a timer came due", k.take(2), 0)
}

// The mark covers published and deleted records, too: their consumers have seen the stamps. The same holds for records
// that were given up, cancelled or purged. OR-06.
func highWaterSurvivesPublishing(k *kit) {
	k.highWater()
	// An old stamp that was published a moment before does not help.
	rs := k.takeIDs(k.stage(k.msg()))
	old := k.msg()
	old.HLC = rs[0].Envelope.HLC - hlc.Timestamp(far.Milliseconds())<<16
	k.published(k.takeIDs(k.stage(old))...)
	k.published(rs...)
	k.covers("one was published", rs, late)
	for range 3 {
		last := k.takeIDs(k.stage(k.msgs(2)...))
		k.settle(core.Published(&last[1]), core.Abandon(&last[0], waybill.ReasonRejected, errNo))
		rs = append(rs, last...)
		k.failIf(k.highWater() == 0, "messages were published, and the high water is 0")
		k.covers("all were published, or given up", rs, late)
	}
	if _, ok := core.As[admin.Purger](k.store); ok {
		_, err := k.purger().PurgeRecords(k.ctx, admin.PurgeRequest{Filter: k.mine(admin.Filter{})})
		k.must("purge", err)
		k.covers("all were published, and the others purged", rs, late)
	}
}

// A stamp far ahead of the store's clock, of a machine whose clock is fast or a forged one, does not become the mark:
// neither while its record is there, nor when it was published. The mark covers the others. OR-06.
func highWaterIsBounded(k *kit) {
	k.highWater()
	rs := k.takeIDs(k.stage(k.msg()))
	now := rs[0].Envelope.HLC
	bounded := func(when string, covered []core.Record, behind time.Duration) {
		ts := k.highWater()
		k.failIf(ts.Millis() >= now.Millis()+far.Milliseconds(),
			"%s: the high water is %s (%s): the stamp of one wrong clock stops every clock that follows it", when, ts, ts.Time())
		k.covers(when, covered, behind)
	}
	early, end := k.msg(), k.msg()
	early.HLC, end.HLC = now+hlc.Timestamp(2*far.Milliseconds())<<16, hlc.MaxTimestamp
	near := k.msg()
	near.HLC = now + hlc.Timestamp(hlc.DefaultMaxDrift.Milliseconds()/2)<<16
	rs = append(rs, k.takeIDs(k.stage(early, near, end))...)
	bounded("stamps of fast clocks are staged", []core.Record{rs[0], rs[2]}, 0)
	k.published(rs...)
	bounded("stamps of fast clocks were published", rs[:1], late)
}

// An outcome of an earlier version changes nothing, and says so, where published records are deleted. DB-03.
func staleSettleChangesNothing(k *kit) { k.stale() }

// An outcome of an earlier version changes nothing where published records are kept: that is another statement in many
// stores. A published record that is kept does not come back either. DB-03.
func staleSettleOfKeptChangesNothing(k *kit) {
	k.retaining(waybill.Retention{Published: waybill.Forever}).stale()
}

// stale settles by outcomes that are too late.
func (k *kit) stale() {
	tooLate := []func(r *core.Record) core.Outcome{
		func(r *core.Record) core.Outcome { return core.Retry(r, errNo, far) },
		func(r *core.Record) core.Outcome { return core.Abandon(r, waybill.ReasonAttempts, errNo) },
		func(r *core.Record) core.Outcome { return core.Release(r, 0, false) },
		func(r *core.Record) core.Outcome { return core.Cancel(r, waybill.ReasonSkipped) },
	}
	refused := func(when string, o core.Outcome) {
		res := k.store.Settle(k.ctx, k.driver.Session, []core.Outcome{o})
		k.failIf(len(res) != 1 || !errors.Is(res[0], core.ErrChanged),
			"%s, an earlier outcome (%s) was settled: got %v, want core.ErrChanged", when, o.Event(), res)
	}
	for _, fn := range tooLate {
		id := k.stage(k.msg(waybill.Key("a")))
		old := k.takeIDs(id)[0]
		k.retry(old, 0)
		now := k.takeIDs(id)[0]
		outcome := fn(&old)
		refused("while a retry is out", outcome)
		k.published(now)
		refused("after it was published", outcome)
		refused("after it was published", fn(&now))
		k.none("it was published")
		if rec, ok := k.stored(id[0]); ok && rec != nil && rec.State != core.StatePublished {
			k.fail("a published record is stored as %s after a late outcome (%s)", rec.State, outcome.Event())
		}
	}
	k.drainIDs(k.stage(k.msg(waybill.Key("a"))))
}

// A redriven record starts with no crash: otherwise its next crash is taken for the last. DB-12.
func redriveResetsCrashes(k *kit) {
	k.redriver()
	ids := k.stage(k.msg())
	for range 3 {
		k.crash(ids...)
	}
	r := k.takeIDs(ids)[0]
	k.failIf(r.Crashes != 3, "a record that three members held when they were removed has %d crashes", r.Crashes)
	k.settle(core.Abandon(&r, waybill.ReasonCrashed, errNo))
	k.kept(ids[0])
	k.redriven("one that was given up for its crashes", admin.RedriveRequest{}, 1, nil)
	k.state("redriven", ids[0], StoredRecord{State: core.StatePending})
	r = k.takeIDs(ids)[0]
	k.failIf(r.Crashes != 0 || r.Attempts != 0, "a redriven record has %d crashes and %d attempts, want none", r.Crashes, r.Attempts)
	k.crash()
	r = k.takeIDs(ids)[0]
	k.failIf(r.Crashes != 1, "a redriven record was held when its member was removed, and has %d crashes, want 1", r.Crashes)
}

// An expired record that is put back by force does not expire again: no cleaning takes it. DB-12 ST-11.
func redriveRemovesTheExpiry(k *kit) {
	k.redriver()
	k.cleaner()
	ids := k.stage(k.msg(waybill.TTL(lax())))
	k.abandonKept(waybill.ReasonRejected, ids...)
	k.expire(lax())
	k.redriven("an expired one by force", admin.RedriveRequest{Force: true}, 1, nil)
	r := k.takeIDs(ids)[0]
	k.failIf(r.Expires || !r.Envelope.Expires.IsZero(),
		"an expired record was redriven by force, and has %s left, and expires %s", r.ExpiresIn, r.Envelope.Expires)
	k.retry(r, far) // what waits is the cleaner's
	k.clean()
	k.is("redriven by force, and cleaned", ids[0], core.StateFailed, waybill.ReasonNone)
	k.redriven("it once more", admin.RedriveRequest{}, 1, nil)
	k.unowned()
	k.clean()
	k.drainIDs(ids)
}

// A key whose abandoned head was deleted by its retention goes on: there is nothing left to skip. OR-04 DB-09.
func deletedHeadFreesItsKey(k *kit) {
	k = k.retaining(waybill.Retention{Abandoned: atOnce}).blocking()
	ids := k.keys(3, "a")["a"]
	k.abandon(waybill.ReasonRejected, ids[0])
	if rec, ok := k.stored(ids[0]); ok && rec != nil {
		k.none("its key is blocked")
	}
	k.clean()
	k.is("after cleaning", ids[0], core.StateNone, waybill.ReasonNone)
	k.drainIDs(ids[1:])
}

// A key whose abandoned head an operator deleted goes on. OR-04.
func purgedHeadFreesItsKey(k *kit) {
	k.purger()
	k = k.blocking()
	ids := k.keys(3, "a")["a"]
	k.abandon(waybill.ReasonRejected, ids[0])
	k.kept(ids[0])
	k.none("its key is blocked")
	k.purge("the head of a key", admin.PurgeRequest{Filter: admin.Filter{IDs: ids[:1]}}, 1, 1)
	k.drainIDs(ids[1:])
}

// A record that an application has locked stops neither the cleaning nor the purge of others. DB-25.
func cleanPassesWhatIsLocked(k *kit) {
	k.canCancel()
	k.clean()
	var ids []string
	for range 4 {
		ids = append(ids, k.stage(k.msg(waybill.TTL(lax())))...)
		k.retry(k.takeIDs(ids[len(ids)-1:])[0], far)
	}
	k.expire(lax())
	tx := k.begin()
	k.cancelIn(tx, k.byID(ids[1]))
	ctx, cancel := context.WithTimeout(k.ctx, patience.For(time.Second))
	defer cancel()
	if err := k.tryStage(ctx, k.msg(waybill.Delay(far))); err != nil {
		k.undeclared("transactions at the same time")
	}
	within, cancel := context.WithTimeout(k.ctx, patience.For(suitetest.Patience))
	defer cancel()
	owner := "cleaner-" + waybill.NewID()
	swept := 0
	for range 100 {
		done, err := k.cleaner().Clean(within, owner, short)
		k.must("clean while a transaction has locked one of four expired records", err)
		if swept += done.Expired; swept >= 3 || done.Leader && !done.More && done.Expired == 0 {
			break
		}
		if !done.Leader {
			k.sleep(short / 10)
		}
	}
	k.failIf(swept != 3, "of four expired records one was locked, and %d were swept, want 3", swept)
	k.rollback(tx)
	k.clean()
	for w := (suitetest.Wait{}); k.isStill(ids[1]); k.clean() { // after a long look the next may begin behind it
		k.failIf(!w.Again(k.ctx), "an expired record that is no longer locked was not swept")
	}
}

// isStill reports whether a record is stored as failed.
func (k *kit) isStill(id string) bool {
	rec, ok := k.stored(id)
	return ok && rec != nil && rec.State == core.StateFailed
}

func (k *kit) counter() admin.Counter { return capability[admin.Counter](k) }

// counts returns the counts of the check's route, and none without a counter.
func (k *kit) counts() (out []admin.Count) {
	counter, ok := core.As[admin.Counter](k.store)
	if !ok {
		return nil
	}
	all, err := counter.Counts(k.ctx)
	k.must("counts", err)
	return slices.DeleteFunc(all, func(c admin.Count) bool { return c.Route != k.route })
}

// The age of the oldest record that was due counts from then, in each state, and is that of the oldest: operators page
// on it. A record that is scheduled for later has none. DB-11.
func oldestCountsFromDue(k *kit) {
	k.counter()
	oldest := func(state core.State) (time.Duration, bool) {
		for _, c := range k.counts() {
			if c.State == state {
				return c.Oldest, c.Estimated
			}
		}
		k.fail("messages are %s, and are not counted", state)
		return 0, false
	}
	k.stage(k.msg(waybill.Delay(far)))
	d, _ := oldest(core.StatePending)
	k.failIf(d != 0, "only a message that is scheduled waits, and the oldest due one has the age %s, want 0", d)
	start := time.Now()
	rs := k.takeIDs(k.stage(k.msgs(2)...))
	k.settle(core.Abandon(&rs[0], waybill.ReasonRejected, errNo))
	k.stage(k.msg())
	staged := time.Now()
	k.sleep(short)
	k.stage(k.msgs(5)...)
	least := time.Since(staged)
	states := []core.State{core.StatePending, core.StateProcessing}
	if kept, ok := k.stored(rs[0].Envelope.ID); ok && kept != nil {
		states = append(states, core.StateAbandoned)
	}
	for _, state := range states {
		d, estimated := oldest(state)
		most := time.Since(start) + slack
		k.failIf(!estimated && (d < least-slack || d > most),
			"the oldest message that was due and is %s has the age %s to %s, and it is counted as %s", state, least, most, d)
	}
}

// Due records are counted apart from those that are scheduled, wait for a retry, or are out. OP-05.
func whatIsDueIsCounted(k *kit) {
	k.counter()
	ids := k.stage(k.msgs(6)...)
	k.retry(k.takeIDs(ids[:1])[0], far)
	k.takeIDs(ids[1:2])
	k.stage(k.msg(waybill.Delay(far)), k.msg(waybill.Delay(far)))
	var got []string
	for _, c := range k.counts() {
		got = append(got, fmt.Sprint(c.State, " ", c.N, " ", c.Due))
	}
	want := []string{"pending 6 4", "processing 1 0", "failed 1 0"}
	k.failIf(!slices.Equal(got, want),
		"four due, two scheduled, one out and one that waits for a retry are counted as (state, number, due) %q, want %q", got, want)
}

// A time of delivery is the same moment in every time zone. ST-07.
func deliverAtKnowsTimeZones(k *kit) {
	for _, zone := range []*time.Location{time.UTC, time.FixedZone("east", 14*3600), time.FixedZone("west", -12*3600), time.FixedZone("odd", 20700)} {
		k.drainIDs(k.stage(k.msg(waybill.DeliverAt(time.Now().In(zone)))))
		k.stage(k.msg(waybill.DeliverAt(time.Now().Add(time.Hour).In(zone))))
		k.none("it is due in an hour, in the zone " + zone.String())
	}
}
