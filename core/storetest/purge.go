package storetest

import (
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var purgeChecks = []named{
	{"purge-deletes-what-ended", purgeDeletesWhatEnded},
	{"purge-deletes-what-waits-if-asked", purgeDeletesWhatWaits},
	{"purge-filters", purgeFilters},
	{"purge-goes-in-steps", purgeGoesInSteps},
	{"purge-dry-run-changes-nothing", purgeDryRunChangesNothing},
	{"purge-frees-dedupe-keys", purgeFreesDedupeKeys},
	{"owner-is-notified-of-purge", ownerIsNotifiedOfPurge},
	{"purge-asks-for-all", purgeAsksForAll},
}

func (k *kit) purger() admin.Purger { return capability[admin.Purger](k) }

// purge runs req on the check's route to the end, and must count so.
func (k *kit) purge(why string, req admin.PurgeRequest, matched, deleted int) {
	req.Filter = k.mine(req.Filter)
	var sum admin.Purged
	k.pages("purge", req.Page, func(page admin.PageRequest) int64 {
		req.Page = page
		got, err := k.purger().PurgeRecords(k.ctx, req)
		k.must("purge", err)
		k.failIf(page.Limit > 0 && got.Matched > page.Limit, "one step of at most %d matched %d", page.Limit, got.Matched)
		sum.Matched, sum.Deleted = sum.Matched+got.Matched, sum.Deleted+got.Deleted
		return got.Next
	})
	k.failIf(sum.Matched != matched || sum.Deleted != deleted,
		"purge of %s: matched %d and deleted %d, want %d and %d", why, sum.Matched, sum.Deleted, matched, deleted)
}

// gone requires that there is no record of id.
func (k *kit) gone(when, id string) {
	st, err := k.inspector().Inspect(k.ctx, k.route, id)
	k.failIf(!errors.Is(err, waybill.ErrNotFound), "%s: message %s is %s, %v", when, id, st.State, err)
}

// A purge deletes abandoned records, and leaves those that are due, scheduled, wait for a retry, or are held. Its id
// can be staged again.
func purgeDeletesWhatEnded(k *kit) {
	k.purger()
	ids := k.stage(k.msg(), k.msg(), k.msg(), k.msg(waybill.Delay(far)), k.msg())
	k.abandonKept(waybill.ReasonRejected, ids[0])
	k.kept(ids[0])
	k.retry(k.takeIDs(ids[1:2])[0], far)
	held := k.takeIDs(ids[2:3])
	k.purge("one that was abandoned, among five", admin.PurgeRequest{}, 5, 1)
	k.gone("after a purge", ids[0])
	for i, id := range ids[1:] {
		want := []core.State{core.StateFailed, core.StateProcessing, core.StatePending, core.StatePending}[i]
		got := k.inspect(id).State
		k.failIf(got != want && (i != 1 || got != core.StatePending), "after a purge record %d is %s, want %s", i+1, got, want)
	}
	k.purge("nothing more", admin.PurgeRequest{}, 4, 0)
	k.published(held...)
	k.drainIDs(ids[4:])
	k.fresh("the id of a purged record", k.msg(waybill.ID(ids[0])))
	k.drainIDs(ids[:1])
}

// With Waiting, scheduled records and those that wait for a retry are deleted too, and are never sent.
func purgeDeletesWhatWaits(k *kit) {
	k.purger()
	ids := k.stage(k.msg(waybill.Key("a")), k.msg(waybill.Key("a")), k.msg(), k.msg(waybill.Delay(lax())))
	k.retry(k.takeIDs(ids[:1])[0], lax())
	k.purge("a retry and a scheduled one, among four", admin.PurgeRequest{Waiting: true}, 4, 2)
	k.gone("after a purge", ids[0])
	k.gone("after a purge", ids[3])
	k.drainIDs(ids[1:3])
	k.expire(lax())
	k.none("what waited was purged")
}

// A purge deletes the records that its filter selects, and no others: by tenant and by key, as for the erasure of a
// person's data.
func purgeFilters(k *kit) {
	k.purger()
	var msgs []waybill.Message
	for _, tenant := range []string{"x", "y"} {
		for _, key := range []string{"a", "b", ""} {
			msgs = append(msgs, k.msg(waybill.Tenant(tenant), waybill.Key(key)))
		}
	}
	ids := k.stage(msgs...)
	rs := k.takeIDs(ids)
	for i := range rs {
		k.settle(core.Abandon(&rs[i], waybill.ReasonSetAside, errNo))
	}
	k.kept(ids[0])
	k.purge("a tenant's key", admin.PurgeRequest{Filter: admin.Filter{Tenants: []string{"x"}, Keys: []string{"a"}}}, 1, 1)
	k.purge("a tenant", admin.PurgeRequest{Filter: admin.Filter{Tenants: []string{"x"}}}, 2, 2)
	k.purge("a key", admin.PurgeRequest{Filter: admin.Filter{Keys: []string{"b"}}}, 1, 1)
	k.purge("an id", admin.PurgeRequest{Filter: admin.Filter{IDs: ids[5:]}}, 1, 1)
	k.purge("another reason", admin.PurgeRequest{Filter: admin.Filter{Reasons: []waybill.Reason{waybill.ReasonRejected}}}, 0, 0)
	k.purge("another state", admin.PurgeRequest{Filter: admin.Filter{States: []core.State{core.StatePublished}}}, 0, 0)
	for i, id := range ids {
		if i != 3 {
			k.gone("after a purge", id)
		}
	}
	k.inspect(ids[3])
}

// A purge does what one page allows and goes on where it stopped.
func purgeGoesInSteps(k *kit) {
	k.purger()
	ids := k.stage(k.msgs(7)...)
	k.abandonKept(waybill.ReasonRejected, ids...)
	k.kept(ids[0])
	req := admin.PurgeRequest{Filter: k.mine(admin.Filter{}), Page: admin.PageRequest{Limit: 3}}
	got, err := k.purger().PurgeRecords(k.ctx, req)
	k.must("purge", err)
	k.failIf(got.Deleted != 3 || got.Next == 0, "a step of 3 of 7 deleted %d and says to go on after %d", got.Deleted, got.Next)
	req.Page.After = got.Next
	k.purge("the rest", req, 4, 4)
}

// A dry run counts and changes nothing.
func purgeDryRunChangesNothing(k *kit) {
	k.purger()
	ids := k.stage(k.msg(waybill.Delay(far)), k.msg())
	k.abandonKept(waybill.ReasonRejected, ids[1])
	k.kept(ids[1])
	for range 2 {
		k.purge("two in a dry run", admin.PurgeRequest{DryRun: true, Waiting: true}, 2, 2)
	}
	k.inspect(ids[0])
	k.inspect(ids[1])
	k.purge("the same two", admin.PurgeRequest{Waiting: true}, 2, 2)
}

// Without this a key whose head was purged stands until the owner's sweep. OR-05.
func ownerIsNotifiedOfPurge(k *kit) {
	k.purger()
	b := k.blocking()
	r := b.out(waybill.Key("b"))
	b.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
	k.kept(r.ID)
	k.told("a purge of a head that was abandoned", r, func() { b.purge("a head", admin.PurgeRequest{}, 1, 1) })
	r = k.out(waybill.Key("a"))
	k.retry(r, far)
	k.told("a purge of a head that waits for a retry", r, func() { k.purge("a head", admin.PurgeRequest{Waiting: true}, 1, 1) })
	k.drainIDs(k.stage(k.msg(waybill.Key("a")), k.msg(waybill.Key("b"))))
}

// The dedupe key of a purged message is free. ST-08.
func purgeFreesDedupeKeys(k *kit) {
	k.purger()
	k.canCancel()
	k.stage(k.msg(waybill.DedupeKey("d"), waybill.Delay(far)))
	k.purge("a scheduled message", admin.PurgeRequest{Waiting: true}, 1, 1)
	s := k.fresh("the dedupe key of a purged message", k.msg(waybill.DedupeKey("d")))[0]
	k.drainIDs([]string{s.ID})
}

// An empty filter is refused unless all are meant; states that cannot be purged are too.
func purgeAsksForAll(k *kit) {
	for _, req := range []admin.PurgeRequest{
		{},
		{DryRun: true},
		{All: true, Page: admin.PageRequest{Limit: -1}},
		{Filter: k.mine(admin.Filter{States: []core.State{core.StateProcessing}}), Waiting: true},
		{Filter: k.mine(admin.Filter{States: []core.State{core.StatePending}})},
		{Filter: k.mine(admin.Filter{States: []core.State{core.StateFailed}})},
	} {
		_, err := k.purger().PurgeRecords(k.ctx, req)
		k.invalid(fmt.Sprintf("purge %+v", req), err)
	}
}
