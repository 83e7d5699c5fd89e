package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// Retainer is a harness that can open a store of the same kind with another retention, for a store with core.Cleaner.
type Retainer interface {
	// WithRetention returns a harness of a store with r. It can use the same tables. It closes everything that it
	// opens.
	WithRetention(ctx context.Context, r waybill.Retention) (Harness, error)
}

var cleanChecks = []named{
	{"clean-elects-one", cleanElectsOne},
	{"clean-sweeps-what-expired", cleanSweeps},
	{"clean-frees-the-keys-of-what-it-sweeps", cleanFreesKeys},
	{"clean-sweeps-what-nobody-owns", cleanSweepsUnowned},
	{"clean-leaves-what-is-due-to-its-owner", cleanLeavesOwned},
	{"clean-never-deletes-what-is-not-settled", cleanKeepsUnsettled},
	{"clean-keeps-what-retention-says", cleanHeedsRetention},
	{"published-records-are-kept-for-their-retention", publishedAreKept},
	{"clean-refuses-bad-input", cleanRefuses},
}

// atOnce is a retention of nothing.
const atOnce = time.Duration(1)

func (k *kit) cleaner() core.Cleaner { return capability[core.Cleaner](k) }

// retaining returns a kit on a store with retention r, on a route of its own.
func (k *kit) retaining(r waybill.Retention) *kit {
	k.cleaner()
	other, err := needs[Retainer](k, k.h).WithRetention(k.ctx, r)
	k.must("open with a retention", err)
	return k.other(other)
}

// clean cleans as a new owner until there is no more to do, and returns the sum of the results.
func (k *kit) clean() core.Cleaned {
	c, owner := k.cleaner(), "cleaner-"+waybill.NewID()
	all := core.Cleaned{Deleted: map[core.CleanedKind]int{}}
	n := 0
	for w := (suitetest.Wait{}); ; n++ {
		done, err := c.Clean(k.ctx, owner, short)
		k.must("clean", err)
		k.failIf(!done.Leader && (done.Expired > 0 || len(done.Deleted) > 0), "a cleaner that was not elected cleaned: %+v", done)
		all.Expired += done.Expired
		for kind, n := range done.Deleted {
			all.Deleted[kind] += n
		}
		if done.Leader && !done.More {
			return all
		}
		k.failIf(n > maxSteps || !done.Leader && !w.Again(k.ctx), "no end of cleaning, or no cleaner elected, after %d calls", n)
	}
}

// is fails unless the stored record has this state and reason; state none: is not stored.
func (k *kit) is(when, id string, state core.State, reason waybill.Reason) {
	rec, ok := k.stored(id)
	switch {
	case !ok:
	case rec == nil && state != core.StateNone:
		k.fail("%s: the record is not stored any more, want %s %s", when, state, reason)
	case rec != nil && state == core.StateNone:
		k.fail("%s: the record is still stored, %s %s", when, rec.State, rec.Reason)
	case rec != nil && (rec.State != state || rec.Reason != reason):
		k.fail("%s: stored as %s %s, want %s %s", when, rec.State, rec.Reason, state, reason)
	}
}

// One of many cleans: the lease is one's, can be renewed, and ends by itself. DB-09.
func cleanElectsOne(k *kit) {
	c := k.cleaner()
	a, b := "a-"+waybill.NewID(), "b-"+waybill.NewID()
	elected := func(owner string, lease time.Duration) bool {
		done, err := c.Clean(k.ctx, owner, lease)
		k.must("clean", err)
		return done.Leader
	}
	for w := (suitetest.Wait{}); !elected(a, short); {
		k.failIf(!w.Again(k.ctx), "no cleaner was elected within %s", suitetest.Patience)
	}
	start := time.Now()
	k.failIf(!elected(a, short), "the cleaner could not renew its lease")
	// A slow machine may let the lease end here.
	k.failIf(elected(b, short) && time.Since(start) < short-slack, "two cleaners were elected at once")
	k.expire(short)
	k.expire(short)
	start = time.Now() // the lease begins with the call, which may be slow to return
	k.failIf(!elected(b, short), "no cleaner was elected although the lease had ended")
	k.failIf(elected(a, short) && time.Since(start) < short-slack, "a cleaner was elected that had lost its lease, while another had it")
	k.expire(short)
	const cleaners = 8
	var won atomic.Int32
	start = time.Now()
	suitetest.Parallel(cleaners, func(int) {
		if elected("p-"+waybill.NewID(), short) {
			won.Add(1)
		}
	})
	k.failIf(won.Load() != 1 && time.Since(start) < short-slack, "%d of %d cleaners at once were elected", won.Load(), cleaners)
}

// A record that expires while it waits for a time is abandoned as expired, whether it is scheduled or to be retried.
// Records that are held, not yet expired, or ready with an owner, are left alone. ST-11.
func cleanSweeps(k *kit) {
	k.clean()
	ttl := lax()
	held := k.takeIDs(k.stage(k.msg(waybill.TTL(ttl))))
	failed := k.stage(k.msg(waybill.TTL(ttl)))
	k.retry(k.takeIDs(failed)[0], far)
	lasting := k.stage(k.msg(), k.msg(waybill.TTL(far)))
	waiting := k.stage(k.msg(waybill.TTL(ttl)), k.msg(waybill.TTL(ttl), waybill.Delay(ttl/2)))
	done := k.clean()
	k.failIf(done.Expired != 0, "%d were swept before anything had expired", done.Expired)
	k.expire(ttl)
	due, scheduled := waiting[0], waiting[1]
	swept := k.clean().Expired
	for _, id := range []string{failed[0], scheduled} {
		k.is("after the sweep", id, core.StateAbandoned, waybill.ReasonExpired)
	}
	k.is("after the sweep", due, core.StatePending, waybill.ReasonNone)
	found := k.drainPast(append(lasting, due), due)
	want := len(failed) + len(waiting)
	k.failIf(swept != 2 || swept+found != want, "%d were swept, and %d were found expired by their owner, want %d in all", swept, found, want)
	k.none("the rest is expired or held")
	k.published(held...) // it was its member's
	done = k.clean()
	k.failIf(done.Expired != 0, "%d were swept again", done.Expired)
}

// A swept message no longer blocks its key. An expired message behind it is then due: its owner finds out. ST-11 OR-02.
func cleanFreesKeys(k *kit) {
	k.clean()
	ttl := lax()
	key := waybill.Key("k")
	head := k.stage(k.msg(key, waybill.TTL(ttl)))
	k.retry(k.takeIDs(head)[0], far)
	rest := k.stage(k.msg(key, waybill.TTL(ttl)), k.msg(key), k.msg(key, waybill.TTL(ttl)), k.msg(key))
	k.none("an earlier one of their key waits for a retry")
	k.expire(ttl)
	swept := k.clean().Expired
	k.is("after the sweep", head[0], core.StateAbandoned, waybill.ReasonExpired)
	found := k.drainPast(rest, rest[0], rest[2])
	k.failIf(swept != 1 || swept+found != 3, "%d were swept, and %d were found expired by their owner, want 1, and 3 in all", swept, found)
	k.none("all are settled")
}

// drainPast is drainIDs where some messages have expired: those of expired, and no others. It abandons them, as engines
// do, and returns their number.
func (k *kit) drainPast(ids []string, expired ...string) (n int) {
	for i, id := range ids {
		r := k.takeIDs(ids[i : i+1])[0]
		past := r.Expires && r.ExpiresIn <= 0
		k.failIf(past != slices.Contains(expired, id), "message %d of %d has %s left, expires: %v", i, len(ids), r.ExpiresIn, r.Expires)
		if !past {
			k.published(r)
			continue
		}
		n++
		k.settle(core.Abandon(&r, waybill.ReasonExpired, errNo))
		k.is("found expired by its owner", id, core.StateAbandoned, waybill.ReasonExpired)
	}
	return n
}

// sweepable stages messages that expire after ttl, half of them with a key, and one behind them that does not.
func (k *kit) sweepable(ttl time.Duration) (expire []string, lasts string) {
	const each = 8
	for i := range each {
		expire = append(expire, k.stage(k.msg(waybill.TTL(ttl)), k.msg(waybill.Key(fmt.Sprint("k", i)), waybill.TTL(ttl)))...)
	}
	return expire, k.stage(k.msg(waybill.Key("k0")))[0]
}

// Expired due records are also abandoned if they have no owner: on a route that was never served, and when the owner
// has left. Otherwise they would stay until a member serves the route. ST-11.
func cleanSweepsUnowned(k *kit) {
	k.clean()
	k.join.Do(func() {}) // no member
	for _, of := range []string{"a route that was never served", "a route whose member has left"} {
		ids, lasts := k.sweepable(short)
		k.expire(short)
		done := k.clean()
		k.failIf(done.Expired != len(ids), "%s: %d were swept, want %d", of, done.Expired, len(ids))
		for _, id := range ids {
			k.is(of, id, core.StateAbandoned, waybill.ReasonExpired)
		}
		k.drainIDs([]string{lasts}) // by a member that joins for it
		k.none("the others are expired")
		k.unowned()
	}
}

// Of a route with several partitions, one owner's due messages are left to it. Those in partitions without an owner are
// swept. ST-11.
func cleanLeavesOwned(k *kit) {
	k.clean()
	k.join.Do(func() {}) // not the driver
	self := newMember(2, k.route)
	partitions := self.heartbeat(k, core.HeartbeatRequest{Join: true}).Partitions
	at := slices.IndexFunc(partitions, func(u core.PartitionState) bool { return u.Partition.Route == k.route })
	k.failIf(at < 0, "a route that is served has no partition")
	mine := partitions[at].Partition
	self.heartbeat(k, core.HeartbeatRequest{Transfers: []core.Transfer{{Partition: mine, To: self.Session}}})
	tx := k.begin()
	var owned, others []string
	for len(owned) < 4 || len(others) < 4 {
		m := k.msg(waybill.TTL(short))
		k.stageIn(tx, m)
		if mine.Slots().Has(core.SlotOf(k.route, "", m.ID)) {
			owned = append(owned, m.ID)
		} else {
			others = append(others, m.ID)
		}
	}
	k.commit(tx)
	k.expire(short)
	swept := k.clean().Expired
	k.failIf(swept != len(others), "%d were swept, though %d have no owner", swept, len(others))
	for _, id := range owned {
		k.is("in the partition of a live member", id, core.StatePending, waybill.ReasonNone)
	}
	self.heartbeat(k, core.HeartbeatRequest{Leave: true})
	want := len(owned) + len(others)
	// After a slow sweep a store may leave old records out for a while.
	for w := (suitetest.Wait{}); swept < want && w.Again(k.ctx); {
		swept += k.clean().Expired
	}
	k.failIf(swept != want, "%d were swept, want %d", swept, want)
}

// With no retention at all every unsettled record stays, and every abandoned one goes, counted by reason. DB-09.
func cleanKeepsUnsettled(k *kit) {
	k = k.retaining(waybill.Retention{Published: atOnce, Abandoned: atOnce, Cancelled: atOnce})
	abandoned := k.stage(k.msgs(3)...)
	k.abandon(waybill.ReasonUnroutable, abandoned...)
	dead := k.stage(k.msg())
	k.crash(dead...)
	k.release(k.takeIDs(dead)...)
	held := k.takeIDs(append(dead, k.stage(k.msg())...))
	failed := k.stage(k.msg())
	k.retry(k.takeIDs(failed)[0], far)
	ready := k.stage(k.msg(), k.msg(waybill.Delay(far)))
	done := k.clean()
	n := done.Deleted[core.CleanedKind{State: core.StateAbandoned, Reason: waybill.ReasonUnroutable}]
	k.failIf(n < len(abandoned), "%d abandoned records were reported as deleted, want %d: %v", n, len(abandoned), done.Deleted)
	for kind, n := range done.Deleted {
		k.failIf(!kind.State.Terminal() || n < 1, "%d records in state %s were reported as deleted", n, kind.State)
	}
	for _, id := range abandoned {
		k.is("after cleaning", id, core.StateNone, waybill.ReasonNone)
	}
	k.is("after cleaning", failed[0], core.StateFailed, waybill.ReasonNone)
	k.is("after cleaning", ready[1], core.StatePending, waybill.ReasonNone)
	k.release(held...)
	k.drainIDs(append(recordIDs(held), ready[0]))
	k.none("the others wait")
}

// Abandoned records are kept for ever unless the retention says otherwise, and then for that time. DB-09.
func cleanHeedsRetention(k *kit) {
	k.cleaner()
	kept := k.stage(k.msg())
	k.abandon(waybill.ReasonRejected, kept...)
	timed := k.retaining(waybill.Retention{Abandoned: short})
	start := time.Now()
	ids := timed.stage(timed.msg())
	timed.abandon(waybill.ReasonRejected, ids...)
	k.clean()
	k.is("with the default retention", kept[0], core.StateAbandoned, waybill.ReasonRejected)
	if timed.clean(); time.Since(start) < short-slack {
		timed.is("before its time was over", ids[0], core.StateAbandoned, waybill.ReasonRejected)
	}
	timed.expire(short)
	timed.clean()
	timed.is("after its time was over", ids[0], core.StateNone, waybill.ReasonNone)
	timed.drainIDs(timed.stage(timed.msg()))
}

// Published records stay for their retention: they are not handed out again, and staging their ids again is a no-op
// that says so. ST-05 DB-09.
func publishedAreKept(k *kit) {
	k.cleaner()
	const keep = time.Second
	timed := k.retaining(waybill.Retention{Published: keep})
	again := func(k *kit, id string) bool {
		tx := k.begin()
		defer k.rollback(tx)
		return k.stageIn(tx, k.msg(waybill.ID(id)))[0].Duplicate
	}
	start := time.Now()
	ids := timed.stage(timed.msgs(3, waybill.Key("k"))...)
	rs := timed.take(len(ids))
	timed.published(rs...)
	timed.published(rs...) // again, as after a lost answer
	timed.clean()
	timed.none("all are published")
	dup := again(timed, ids[0])
	if in := time.Since(start); in < keep-slack {
		k.failIf(!dup, "a published message could be staged again within its retention")
	}
	timed.expire(keep)
	done := timed.clean()
	n := done.Deleted[core.CleanedKind{State: core.StatePublished}]
	k.failIf(n < len(ids), "%d published records were reported as deleted, want %d: %v", n, len(ids), done.Deleted)
	k.failIf(again(timed, ids[0]), "a published message could not be staged again after its retention")
	always := k.retaining(waybill.Retention{Published: -1, Abandoned: atOnce})
	ids = always.stage(always.msg())
	always.published(always.takeIDs(ids)...)
	always.clean()
	always.is("with a retention for ever", ids[0], core.StatePublished, waybill.ReasonNone)
	k.failIf(!again(always, ids[0]), "a published message that is kept for ever could be staged again")
	for _, c := range always.counts() {
		k.failIf(c.State == core.StatePublished, "%d published records are counted, want only those that are to be done, or to be looked at", c.N)
	}
}

// An owner without a name, and a lease that is too short or too long, are refused as invalid. DB-09.
func cleanRefuses(k *kit) {
	c := k.cleaner()
	for _, bad := range []struct {
		owner string
		lease time.Duration
	}{{"", short}, {"me", 0}, {"me", -time.Second}, {"me", core.MaxCleanLease + 1}} {
		_, err := c.Clean(k.ctx, bad.owner, bad.lease)
		k.answers(fmt.Sprintf("clean by owner %q for %s", bad.owner, bad.lease), waybill.ErrInvalid, err)
	}
}
