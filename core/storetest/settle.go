package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/core"
)

var leaseChecks = []named{
	{"expired-lease-is-claimable", expiredLeaseIsClaimable},
	{"attempts-survive-crash", attemptsSurviveCrash},
	{"stale-token-changes-nothing", staleTokenChangesNothing},
	{"settled-token-is-stale", settledTokenIsStale},
	{"stale-one-in-batch", staleOneInBatch},
	{"expired-lease-settles-until-taken-over", expiredLeaseSettlesUntilTakenOver},
	{"suspects-are-claimed-alone", suspectsAreClaimedAlone},
	{"leases-extend", leasesExtend},
	{"stale-lease-does-not-extend", staleLeaseDoesNotExtend},
}

var errNo = errors.New("the broker said no")

// every is each outcome once.
var every = []func(r *core.Record) core.Outcome{
	core.Published,
	func(r *core.Record) core.Outcome { return core.Retry(r, errNo, 0) },
	func(r *core.Record) core.Outcome { return core.Release(r, 0) },
	func(r *core.Record) core.Outcome { return core.Abandon(r, core.ReasonRejected, errNo) },
}

// crash claims n records and lets the leases expire.
func (k *kit) crash(n int, mods ...mod) []core.Record {
	rs := k.take(n, append(mods, lease(short))...)
	k.expire(short)
	return rs
}

// A record whose lease expired is claimable without any help, with a new token; that counts as a crash and not as an
// attempt, and does not happen earlier. A release is not a crash. DB-04.
func expiredLeaseIsClaimable(k *kit) {
	ids := k.stage(k.msg())
	start := time.Now()
	first := k.takeIDs(ids, lease(short))[0]
	second := k.takeIDs(ids)[0]
	if d := time.Since(start); d < short-slack {
		k.fail("a lease of %s was taken over after %s", short, d)
	}
	if first.Crashes != 0 || first.Attempts != 0 || second.Crashes != 1 || second.Attempts != 0 {
		k.fail("(crashes, attempts) were (%d, %d), and after an expired lease (%d, %d); want (0, 0) and (1, 0)",
			first.Crashes, first.Attempts, second.Crashes, second.Attempts)
	}
	if first.Lease.Token == second.Lease.Token {
		k.fail("two claims of a record have the same token")
	}
	k.state("after a take-over", ids[0], StoredRecord{State: core.StateProcessing, Crashes: 1})
	k.settle(core.Release(&second, 0))
	if third := k.takeIDs(ids)[0]; third.Crashes != 1 || third.Attempts != 0 {
		k.fail("a release changed crashes to %d and attempts to %d", third.Crashes, third.Attempts)
	}
}

// Attempts and crashes are counted apart, and neither resets the other. DB-18, DB-04.
func attemptsSurviveCrash(k *kit) {
	ids := k.stage(k.msg())
	r := k.takeIDs(ids)[0]
	k.settle(core.Retry(&r, errNo, 0))
	if r = k.crash(1)[0]; r.Attempts != 1 || !r.Failed {
		k.fail("after a failed attempt: attempts %d, failed %v", r.Attempts, r.Failed)
	}
	if r = k.take(1)[0]; r.Attempts != 1 || r.Crashes != 1 || !r.Failed {
		k.fail("after a failed attempt and a crash: attempts %d, crashes %d, failed %v", r.Attempts, r.Crashes, r.Failed)
	}
	k.settle(core.Retry(&r, errNo, 0))
	k.state("after two attempts and a crash", ids[0], StoredRecord{State: core.StateFailed, Attempts: 2, Crashes: 1, LastError: errNo.Error()})
}

// A settle with the token of an earlier claim is refused, whatever the outcome, and changes nothing. DB-03.
func staleTokenChangesNothing(k *kit) {
	for _, fn := range every {
		ids := k.stage(k.msg())
		old := k.crash(1)[0]
		now := k.takeIDs(ids)[0]
		k.lost("with the token of an earlier claim", fn(&old))
		k.state("after a stale settle", ids[0], StoredRecord{State: core.StateProcessing, Crashes: 1})
		k.none("its lease lasts, whatever a stale settle said")
		k.settle(core.Retry(&now, errNo, 0))
		if r := k.takeIDs(ids)[0]; r.Attempts != 1 {
			k.fail("after a stale settle and a failed attempt: %d attempts", r.Attempts)
		} else {
			k.published(r)
		}
	}
}

// A settle ends its claim: the same token is stale after it, even when the record is claimable again. DB-03.
func settledTokenIsStale(k *kit) {
	for _, first := range every {
		for _, then := range every {
			ids := k.stage(k.msg())
			r := k.takeIDs(ids)[0]
			k.settle(first(&r))
			k.lost("a second time", then(&r))
			if rest := k.try(1); len(rest) > 0 {
				if a, b := rest[0].Attempts, first(&r); (a == 1) != b.CountsAttempt() {
					k.fail("after %s and a second settle: %d attempts", b.Event(), a)
				}
				k.published(rest...)
			}
		}
	}
}

// One stale outcome does not spoil the batch; the results are in input order. DB-03.
func staleOneInBatch(k *kit) {
	ids := k.stage(k.msgs(5)...)
	rs := k.takeIDs(ids)
	k.published(rs[2])
	res := k.settleAll(core.Published(&rs[0]), core.Retry(&rs[1], errNo, far), core.Published(&rs[2]),
		core.Abandon(&rs[3], core.ReasonRejected, errNo), core.Release(&rs[4], 0))
	for i, err := range res {
		if stale := i == 2; errors.Is(err, core.ErrLeaseLost) != stale || !stale && err != nil {
			k.fail("outcome %d of 5 is stale: %v; got %v", i, stale, err)
		}
	}
	k.takeIDs(ids[4:])
	k.none("the others are published, abandoned or wait for a retry")
}

// An expired lease that nobody took over still settles: the token decides, not the clock. DB-03.
func expiredLeaseSettlesUntilTakenOver(k *kit) {
	k.stage(k.msgs(2)...)
	k.published(k.crash(2)...)
	k.none("they were published")
}

// A record whose lease expired for the second time is left for a claim of its own, which takes one. DB-04.
func suspectsAreClaimedAlone(k *kit) {
	bad := k.stage(k.msgs(2)...)
	if c := k.idleAlone(); c.Suspects {
		k.fail("suspects are reported before anything crashed")
	}
	k.crash(2)
	k.crash(2)
	good := k.stage(k.msgs(3)...)
	suspects := false
	for left := good; len(left) > 0; {
		c := k.claim() // claim checks that no suspect is among them
		suspects = suspects || c.Suspects
		left = left[len(c.Records):]
	}
	c := k.claim()
	for i := 0; c.More && i < 100; i++ {
		c = k.claim()
	}
	if !suspects && !c.Suspects {
		k.fail("claims that left two suspects did not report suspects")
	}
	for range bad {
		r := k.take(1, alone)[0] // claim checks that it is one, and a suspect
		if r.Crashes != core.SuspectCrashes {
			k.fail("a record whose lease expired twice has %d crashes", r.Crashes)
		}
		k.settle(core.Published(&r))
	}
	if c := k.idleAlone(); c.Suspects {
		k.fail("suspects are reported after they were settled")
	}
}

// idleAlone claims a suspect where there is none and returns the answer of an ordinary claim without records.
func (k *kit) idleAlone() core.Claim {
	k.none("it is no suspect", alone)
	c := k.claim(limit(1), skip(k.topic))
	return c
}

// An extended lease lasts as long as was asked for, from the extension on. DB-05.
func leasesExtend(k *kit) {
	ext, ok := core.As[core.LeaseExtender](k.store)
	if !ok {
		k.undeclared("core.LeaseExtender")
	}
	ids := k.stage(k.msgs(2)...)
	rs := k.takeIDs(ids, lease(2*short))
	res := ext.ExtendLeases(k.ctx, rs[:1], long)
	if len(res) != 1 {
		k.fail("extending one lease gave %d results", len(res))
	}
	k.must("extend", res[0])
	k.takeIDs(ids[1:])
	k.none("its lease was extended")
	res = ext.ExtendLeases(k.ctx, rs[:1], short)
	k.must("shorten", res.FirstErr())
	if r := k.take(1)[0]; r.Envelope.ID != ids[0] || r.Crashes != 1 {
		k.fail("after an extension that ended, a record with %d crashes came", r.Crashes)
	}
}

// Extending with a stale token is refused in its slot and changes nothing. DB-05, DB-03.
func staleLeaseDoesNotExtend(k *kit) {
	ext, ok := core.As[core.LeaseExtender](k.store)
	if !ok {
		k.undeclared("core.LeaseExtender")
	}
	ids := k.stage(k.msgs(3)...)
	rs := k.takeIDs(ids)
	k.settle(core.Release(&rs[1], 0), core.Published(&rs[2]))
	k.takeIDs(ids[1:2], lease(short))
	res := ext.ExtendLeases(k.ctx, rs, long)
	if len(res) != 3 || res[0] != nil || !errors.Is(res[1], core.ErrLeaseLost) || !errors.Is(res[2], core.ErrLeaseLost) {
		k.fail("extending a held, a taken over and a published record gave %v, want nil and twice core.ErrLeaseLost", res)
	}
	k.takeIDs(ids[1:2]) // the short lease was not extended
}

var settleChecks = []named{
	{"published-is-gone", publishedIsGone},
	{"retry-is-due-later", retryIsDueLater},
	{"retry-keeps-last-error", retryKeepsLastError},
	{"release-costs-nothing", releaseCostsNothing},
	{"abandoned-is-terminal", abandonedIsTerminal},
	{"settle-heeds-its-context", settleHeedsItsContext},
}

// A published record is terminal: gone, or kept as published. DB-01.
func publishedIsGone(k *kit) {
	ids := k.stage(k.msgs(2)...)
	k.published(k.takeIDs(ids)...)
	k.none("they were published")
	for _, id := range ids {
		if rec, ok := k.stored(id); ok && rec != nil && rec.State != core.StatePublished {
			k.fail("a published record is stored as %s", rec.State)
		}
	}
}

// A failed attempt counts, and the record is due again after the delay, by the store's clock. DB-01, DB-18.
func retryIsDueLater(k *kit) {
	ids := k.stage(k.msgs(2)...)
	rs := k.takeIDs(ids)
	if rs[0].Failed || rs[0].Attempts != 0 {
		k.fail("a fresh record: attempts %d, failed %v", rs[0].Attempts, rs[0].Failed)
	}
	start := time.Now()
	k.settle(core.Retry(&rs[0], errNo, short), core.Retry(&rs[1], errNo, far))
	k.state("after a failed attempt", ids[0], StoredRecord{State: core.StateFailed, Attempts: 1, LastError: errNo.Error()})
	r := k.takeIDs(ids[:1])[0]
	if d := time.Since(start); d < short-slack {
		k.fail("a retry after %s was claimed after %s", short, d)
	}
	if r.Attempts != 1 || r.Crashes != 0 || !r.Failed {
		k.fail("after a failed attempt: attempts %d, crashes %d, failed %v", r.Attempts, r.Crashes, r.Failed)
	}
	k.settle(core.Retry(&r, errNo, 0))
	if r = k.takeIDs(ids[:1])[0]; r.Attempts != 2 {
		k.fail("after two failed attempts: attempts %d", r.Attempts)
	}
	k.none("the other is due in an hour")
}

// The last error is kept, capped and cleaned as core.ErrorText does, until a newer one replaces it. DB-18.
func retryKeepsLastError(k *kit) {
	ids := k.stage(k.msg())
	texts := []string{"first", "second ü 🗝 'quoted' \"twice\"", strings.Repeat("ü", 5*core.MaxErrorBytes), "nul \x00 and \xff"}
	for i, text := range texts {
		r := k.takeIDs(ids)[0]
		k.settle(core.Retry(&r, errors.New(text), 0))
		k.state(fmt.Sprintf("after error %d", i), ids[0],
			StoredRecord{State: core.StateFailed, Attempts: i + 1, LastError: core.ErrorText(errors.New(text))})
	}
	r := k.takeIDs(ids)[0]
	k.settle(core.Release(&r, 0))
	k.state("after a release", ids[0],
		StoredRecord{State: core.StateFailed, Attempts: len(texts), LastError: core.ErrorText(errors.New(texts[len(texts)-1]))})
}

// A released record is as it was before the claim: at once or after a delay, pending or failed. DB-01.
func releaseCostsNothing(k *kit) {
	ids := k.stage(k.msgs(2)...)
	rs := k.takeIDs(ids)
	k.settle(core.Release(&rs[0], 0), core.Release(&rs[1], far))
	k.state("after a release", ids[0], StoredRecord{State: core.StatePending})
	k.state("after a release with a delay", ids[1], StoredRecord{State: core.StatePending})
	r := k.takeIDs(ids[:1])[0]
	k.none("the other was released for an hour")
	if r.Attempts != 0 || r.Crashes != 0 || r.Failed {
		k.fail("after a release: attempts %d, crashes %d, failed %v", r.Attempts, r.Crashes, r.Failed)
	}
	k.settle(core.Retry(&r, errNo, 0))
	r = k.takeIDs(ids[:1])[0]
	k.settle(core.Release(&r, 0))
	k.state("after a failed attempt and a release", ids[0], StoredRecord{State: core.StateFailed, Attempts: 1, LastError: errNo.Error()})
	if r = k.takeIDs(ids[:1])[0]; r.Attempts != 1 || !r.Failed {
		k.fail("after a failed attempt and a release: attempts %d, failed %v", r.Attempts, r.Failed)
	}
	start := time.Now()
	k.settle(core.Release(&r, short))
	k.takeIDs(ids[:1])
	if d := time.Since(start); d < short-slack {
		k.fail("a release for %s was claimed after %s", short, d)
	}
}

// An abandoned record is never claimed again and keeps its reason and error; the attempt counts unless nobody made
// one. DB-01.
func abandonedIsTerminal(k *kit) {
	reasons := []core.Reason{core.ReasonRejected, core.ReasonAttempts, core.ReasonUndecodable, core.ReasonExpired, core.ReasonCrashed, core.Reason("an_adapter's_own")}
	ids := k.stage(k.msgs(len(reasons))...)
	rs := k.takeIDs(ids)
	out := make([]core.Outcome, len(rs))
	for i := range rs {
		out[i] = core.Abandon(&rs[i], reasons[i], errNo)
	}
	k.settle(out...)
	k.none("all are abandoned")
	for i, id := range ids {
		if rec, ok := k.stored(id); !ok || rec == nil {
			continue // a store may be told not to keep them
		}
		want := StoredRecord{State: core.StateAbandoned, Reason: reasons[i], LastError: errNo.Error()}
		if out[i].CountsAttempt() {
			want.Attempts = 1
		}
		k.state("abandoned for "+string(reasons[i]), id, want)
	}
}

// A settle with an ended context that fails, fails in every slot, and the records can be settled afterwards. DB-01.
func settleHeedsItsContext(k *kit) {
	ids := k.stage(k.msgs(2)...)
	rs := k.takeIDs(ids)
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	out := outcomes(rs, core.Published)
	res := k.store.Settle(ctx, out)
	if len(res) != 2 || (res[0] == nil) != (res[1] == nil) {
		k.fail("a settle of two outcomes with an ended context gave %v, want one result for each", res)
	}
	if res[0] != nil {
		k.published(rs...)
	}
	k.none("they were published")
}
