package storetest

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var tellChecks = []named{
	{"owner-is-notified-of-redrive", ownerIsNotifiedOfRedrive},
	{"owner-is-notified-of-decisions", ownerIsNotifiedOfDecisions},
	{"owner-is-notified-of-cancel", ownerIsNotifiedOfCancel},
	{"owner-is-notified-of-sweep", ownerIsNotifiedOfSweep},
	{"owner-is-notified-of-deletion", ownerIsNotifiedOfDeletion},
	{"nobody-is-notified-of-a-route-never-served", nobodyIsNotified},
}

// told runs fn, which changes what the owner of r remembers, and fails unless a notice says so.
func (k *kit) told(of string, r core.Record, fn func()) {
	before := int64(0)
	for _, c := range k.notices() {
		before = max(before, c.Number)
	}
	fn()
	for _, c := range k.notices() {
		if c.Number > before && suitetest.Concerns(&c, &r) {
			return
		}
	}
	k.fail("%s: the owner of the message is not told", of)
}

// out hands out the only message that can be.
func (k *kit) out(opts ...waybill.MessageOption) core.Record {
	return k.takeIDs(k.stage(k.msg(opts...)))[0]
}

// Without this what was put back waits for the owner's sweep. DB-12.
func ownerIsNotifiedOfRedrive(k *kit) {
	k.redriver()
	for _, key := range []string{"", "a"} {
		r := k.out(waybill.Key(key))
		k.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
		k.kept(r.ID)
		k.told("a redrive of an abandoned message", r, func() {
			k.redriven("one", admin.RedriveRequest{Filter: admin.Filter{IDs: []string{r.ID}}, BlockAfterAbandon: true}, 1, nil)
		})
		r = k.takeIDs([]string{r.ID})[0]
		k.retry(r, far)
		k.told("a redrive of a failed message", r, func() {
			k.redriven("one", admin.RedriveRequest{Filter: admin.Filter{IDs: []string{r.ID}}}, 1, nil)
		})
		k.drainIDs([]string{r.ID})
	}
}

// Without this a key that an operator freed stands until the owner's sweep. OR-05.
func ownerIsNotifiedOfDecisions(k *kit) {
	k.keeper()
	for _, a := range every {
		r := k.out(waybill.Key("a"))
		k.retry(r, far)
		k.told("a decision about a head that waits for a retry", r, func() { k.decided("a", r.ID, a) })
		if a == admin.HeadRequeue {
			k.drainIDs([]string{r.ID})
		}
	}
	b := k.blocking()
	for _, a := range every {
		r := b.out(waybill.Key("b"))
		b.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
		k.kept(r.ID)
		k.told("a decision about a head that was abandoned", r, func() { k.decided("b", r.ID, a) })
		if a == admin.HeadRequeue {
			b.drainIDs([]string{r.ID})
		}
	}
}

// Without this a key whose head an application cancelled stands until the retry would have been due. ST-09 ST-10.
func ownerIsNotifiedOfCancel(k *kit) {
	k.canCancel()
	r := k.out(waybill.Key("a"))
	k.retry(r, far)
	k.told("a cancel of a head", r, func() { k.cancel("a head", waybill.CancelDone, k.byID(r.ID)) })
	r = k.out(waybill.Key("a"), waybill.DedupeKey("d"))
	k.retry(r, far)
	k.told("a replacement of a head", r, func() {
		s := k.stageNow(k.msg(waybill.Replace("d")))[0]
		k.failIf(s.Replaced != waybill.CancelDone, "a head that waits for a retry was replaced: %q, want %q", s.Replaced, waybill.CancelDone)
	})
}

// Without this a key whose head expired stands until the retry would have been due. ST-11.
func ownerIsNotifiedOfSweep(k *kit) {
	k.cleaner()
	r := k.out(waybill.Key("a"), waybill.TTL(lax()))
	k.retry(r, far)
	k.expire(lax())
	k.told("a sweep of a head", r, func() {
		done := k.clean()
		k.failIf(done.Expired != 1, "%d were swept, want 1", done.Expired)
	})
}

// Without this a key that waits for an operator goes on waiting when there is nothing left to decide about. DB-09.
func ownerIsNotifiedOfDeletion(k *kit) {
	k = k.retaining(waybill.Retention{Abandoned: atOnce}).blocking()
	r := k.out(waybill.Key("a"))
	k.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
	k.told("the deletion of an abandoned head", r, func() { k.clean() })
}

// Notices of commands on a route that no member serves would stay, each for ever.
func nobodyIsNotified(k *kit) {
	k.canCancel()
	never := k.other(k.h) // its route was never served
	tx := k.raw()
	staged := never.mustStage(tx, never.msg(waybill.DedupeKey("d"), waybill.Key("a")), never.msg(waybill.DedupeKey("e"), waybill.Key("b")), never.msg(waybill.Key("c"), waybill.Delay(far)))
	k.commit(tx)
	const what = "a message of a route that nobody has served"
	if _, ok := core.As[admin.BlockedKeys](k.store); ok {
		never.decided("b", staged[1].ID, admin.HeadSkip)
	} else {
		never.cancel(what, waybill.CancelDone, never.byID(staged[1].ID))
	}
	if _, ok := core.As[admin.Purger](k.store); ok {
		never.purge("what is scheduled", admin.PurgeRequest{Waiting: true, Filter: admin.Filter{IDs: []string{staged[2].ID}}}, 1, 1)
	} else {
		never.cancel(what, waybill.CancelDone, never.byID(staged[2].ID))
	}
	never.cancel(what, waybill.CancelDone, never.byID(staged[0].ID))
	never.none("all were taken away") // its route is served now
	k.failIf(len(never.notices()) > 0, "commands on a route that was never served left %d notices", len(never.notices()))
}
