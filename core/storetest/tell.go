package storetest

import (
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

var tellChecks = []named{
	{"owner-is-told-of-redrive", ownerIsToldOfRedrive},
	{"owner-is-told-of-decisions", ownerIsToldOfDecisions},
	{"owner-is-told-of-cancel", ownerIsToldOfCancel},
	{"owner-is-told-of-sweep", ownerIsToldOfSweep},
	{"owner-is-told-of-deletion", ownerIsToldOfDeletion},
}

// told runs fn, which changes what the owner of r remembers, and fails unless a control record says so.
func (k *kit) told(of string, r outbox.Record, fn func()) {
	before := int64(0)
	for _, c := range k.controls() {
		before = max(before, c.Number)
	}
	fn()
	for _, c := range k.controls() {
		if c.Number > before && concerns(&c, &r) {
			return
		}
	}
	k.fail("%s: the owner of the message is not told", of)
}

// concerns reports whether c makes the owner of r read it, or what waits for it, anew.
func concerns(c *outbox.Control, r *outbox.Record) bool {
	switch c.Kind {
	case outbox.ControlKey:
		return c.Key == r.Envelope.Key && c.Key != ""
	case outbox.ControlRecord:
		return c.ID == r.ID && c.Seq == r.Seq
	case outbox.ControlFrom:
		return c.Seq <= r.Seq
	case outbox.ControlDecide:
	}
	return false
}

// out hands out the only message that can be.
func (k *kit) out(opts ...core.MessageOption) outbox.Record {
	return k.takeIDs(k.stage(k.msg(opts...)))[0]
}

// Without this what was put back waits for the owner's sweep. DB-12.
func ownerIsToldOfRedrive(k *kit) {
	k.redriver()
	for _, key := range []string{"", "a"} {
		r := k.out(core.Key(key))
		k.settle(outbox.Abandon(&r, core.ReasonRejected, errNo))
		k.kept(r.ID)
		k.told("a redrive of an abandoned message", r, func() {
			k.redriven("one", core.RedriveRequest{Filter: core.Filter{IDs: []string{r.ID}}, BlockAfterAbandon: true}, 1, nil)
		})
		r = k.takeIDs([]string{r.ID})[0]
		k.retry(r, far)
		k.told("a redrive of a failed message", r, func() {
			k.redriven("one", core.RedriveRequest{Filter: core.Filter{IDs: []string{r.ID}}}, 1, nil)
		})
		k.drainIDs([]string{r.ID})
	}
}

// Without this a key that an operator freed stands until the owner's sweep. OR-05.
func ownerIsToldOfDecisions(k *kit) {
	k.keeper()
	for _, a := range every {
		r := k.out(core.Key("a"))
		k.retry(r, far)
		k.told("a decision about a head that waits for a retry", r, func() { k.decided("a", r.ID, a) })
		if a == core.HeadRequeue {
			k.drainIDs([]string{r.ID})
		}
	}
	b := k.blocking()
	for _, a := range every {
		r := b.out(core.Key("b"))
		b.settle(outbox.Abandon(&r, core.ReasonRejected, errNo))
		k.kept(r.ID)
		k.told("a decision about a head that was abandoned", r, func() { k.decided("b", r.ID, a) })
		if a == core.HeadRequeue {
			b.drainIDs([]string{r.ID})
		}
	}
}

// Without this a key whose head an application withdrew stands until the retry would have been due. ST-09 ST-10.
func ownerIsToldOfCancel(k *kit) {
	k.canCancel()
	r := k.out(core.Key("a"))
	k.retry(r, far)
	k.told("a cancel of a head", r, func() { k.cancel("a head", core.CancelDone, k.byID(r.ID)) })
	r = k.out(core.Key("a"), core.DedupeKey("d"))
	k.retry(r, far)
	k.told("a replacement of a head", r, func() {
		if s := k.stageNow(k.msg(core.Replace("d")))[0]; s.Replaced != core.CancelDone {
			k.fail("a head that waits for a retry was replaced: %q, want %q", s.Replaced, core.CancelDone)
		}
	})
}

// Without this a key whose head expired stands until the retry would have been due. ST-11.
func ownerIsToldOfSweep(k *kit) {
	k.cleaner()
	r := k.out(core.Key("a"), core.TTL(short))
	k.retry(r, far)
	k.expire(short)
	k.told("a sweep of a head", r, func() {
		if done := k.clean(); done.Expired != 1 {
			k.fail("%d were swept, want 1", done.Expired)
		}
	})
}

// Without this a key that waits for an operator goes on waiting when there is nothing left to decide about. DB-09.
func ownerIsToldOfDeletion(k *kit) {
	k = k.retaining(core.Retention{Abandoned: atOnce}).blocking()
	r := k.out(core.Key("a"))
	k.settle(outbox.Abandon(&r, core.ReasonRejected, errNo))
	k.told("the deletion of an abandoned head", r, func() { k.clean() })
}
