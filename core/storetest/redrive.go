package storetest

import (
	"fmt"
	"maps"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/content"
)

var redriveChecks = []named{
	{"redrive-puts-back", redrivePutsBack},
	{"redrive-wakes", redriveWakes},
	{"redrive-goes-in-steps", redriveGoesInSteps},
	{"redrive-filters", redriveFilters},
	{"redrive-dry-run-changes-nothing", redriveDryRunChangesNothing},
	{"redrive-refuses-expired", redriveRefusesExpired},
	{"redrive-refuses-beyond-horizon", redriveRefusesBeyondHorizon},
	{"redrive-refuses-out-of-order", redriveRefusesOutOfOrder},
	{"redrive-asks-for-all", redriveAsksForAll},
	{"redrive-takes-no-held", redriveTakesNoHeld},
	{"redrive-minds-dedupe-keys", redriveMindsDedupeKeys},
	{"redrive-of-what-was-replaced", redriveOfWhatWasReplaced},
	{"redrive-remembers-maybe-sent", redriveRemembersMaybeSent},
	{"redrive-repairs", redriveRepairs},
	{"redrive-marks-repaired", redriveMarksRepaired},
}

func (k *kit) redriver() admin.Redriver { return capability[admin.Redriver](k) }

// redrive runs req on the check's route to the end and returns the sums.
func (k *kit) redrive(req admin.RedriveRequest) admin.Redriven {
	req.Filter = k.mine(req.Filter)
	sum := admin.Redriven{Refused: map[string]int{}}
	k.pages("redrive", req.Page, func(page admin.PageRequest) int64 {
		req.Page = page
		got, err := k.redriver().Redrive(k.ctx, req)
		k.must("redrive", err)
		refused := 0
		for cause, n := range got.Refused {
			sum.Refused[cause] += n
			refused += n
		}
		k.failIf(got.Matched != got.Changed+refused, "redrive: %d matched, but %d changed and %d refused", got.Matched, got.Changed, refused)
		k.failIf(page.Limit > 0 && got.Matched > page.Limit, "one step of at most %d matched %d", page.Limit, got.Matched)
		sum.Matched, sum.Changed = sum.Matched+got.Matched, sum.Changed+got.Changed
		return got.Next
	})
	return sum
}

// redriven is redrive, and it must count so.
func (k *kit) redriven(why string, req admin.RedriveRequest, changed int, refused map[string]int) {
	got := k.redrive(req)
	k.failIf(got.Changed != changed || !maps.Equal(got.Refused, refused),
		"redrive of %s: changed %d and refused %v, want %d and %v", why, got.Changed, got.Refused, changed, refused)
}

// Failed and abandoned records become pending and due at once, with attempts, crashes, reason and error reset, and are
// found although the store has long gone past them; others stay as they are. DB-12.
func redrivePutsBack(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(3)...)
	k.abandonKept(waybill.ReasonRejected, ids[0])
	k.retry(k.takeIDs(ids[1:2])[0], far)
	held := k.takeIDs(ids[2:])
	k.pass(50)
	k.redriven("one abandoned and one failed record", admin.RedriveRequest{}, 2, nil)
	for _, id := range ids[:2] {
		k.state("redriven", id, StoredRecord{State: core.StatePending})
	}
	for _, r := range k.takeIDs(ids[:2]) {
		k.failIf(r.Attempts != 0 || r.Crashes != 0 || r.Failed, "a redriven record has %d attempts, %d crashes, failed: %v", r.Attempts, r.Crashes, r.Failed)
		k.published(r)
	}
	k.none("the third one is held, and was not redriven")
	k.published(held...)
	k.redriven("nothing", admin.RedriveRequest{}, 0, nil)
}

// pass lets time go on: it stages n messages and publishes them.
func (k *kit) pass(n int) { k.drainIDs(k.stage(k.msgs(n)...)) }

// A relay that sleeps wakes up for a redriven record. DB-12 DB-10.
func redriveWakes(k *kit) {
	k.redriver()
	k.waiter()
	ids := k.stage(k.msg())
	k.abandonKept(waybill.ReasonRejected, ids...)
	k.none("it is abandoned")
	done := k.wait(k.ctx, far)
	k.redriven("one", admin.RedriveRequest{}, 1, nil)
	k.woken(done, soon(), "after a redrive")
	k.takeIDs(ids)
}

// A redrive does what one page allows and goes on where it stopped. DB-12.
func redriveGoesInSteps(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(7)...)
	k.abandonKept(waybill.ReasonForbidden, ids...)
	req := admin.RedriveRequest{
		Filter: k.mine(admin.Filter{Reasons: []waybill.Reason{waybill.ReasonForbidden}}),
		Page:   admin.PageRequest{Limit: 3},
	}
	got, err := k.redriver().Redrive(k.ctx, req)
	k.must("redrive", err)
	k.failIf(got.Changed != 3 || got.Next == 0, "a step of 3 of 7 changed %d and says to go on after %d", got.Changed, got.Next)
	k.drainIDs(ids[:3])
	k.none("the other four are abandoned")
	req.Page.After = got.Next
	k.redriven("the rest", req, 4, nil)
	k.drainIDs(ids[3:])
}

// A redrive takes the records that its filter selects, and no others. DB-12.
func redriveFilters(k *kit) {
	k.redriver()
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	var msgs []waybill.Message
	for i, tenant := range []string{"x", "y", "z", "w", "v"} {
		msgs = append(msgs, k.msg(waybill.Tenant(tenant), waybill.OccurredAt(at.Add(time.Duration(i)*time.Second)), onTopic("topic."+tenant)))
	}
	ids := k.stage(msgs...)
	rs := k.takeIDs(ids)
	for i := range rs {
		reason := waybill.ReasonRejected
		if i == 4 {
			reason = waybill.ReasonTooLarge
		}
		k.settle(core.Abandon(&rs[i], reason, errNo))
	}
	k.kept(ids[0])
	for i, f := range []admin.Filter{
		{IDs: ids[:1]},
		{Topics: []string{"topic.y"}},
		{Tenants: []string{"z"}},
		{Since: at.Add(3 * time.Second), Until: at.Add(4 * time.Second)},
		{Reasons: []waybill.Reason{waybill.ReasonTooLarge}},
	} {
		k.redriven("one of five", admin.RedriveRequest{Filter: f}, 1, nil)
		k.drainIDs(ids[i : i+1])
	}
}

// A dry run counts and changes nothing. DB-12.
func redriveDryRunChangesNothing(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(2)...)
	k.abandonKept(waybill.ReasonRejected, ids...)
	for range 2 {
		k.redriven("two in a dry run", admin.RedriveRequest{DryRun: true}, 2, nil)
	}
	k.none("the redrive was a dry run")
	k.state("after a dry run", ids[0], StoredRecord{State: core.StateAbandoned, Attempts: 1, Reason: waybill.ReasonRejected, LastError: errNo.Error()})
	_, err := k.redriver().Redrive(k.ctx, admin.RedriveRequest{All: true, DryRun: true})
	k.failIf(err != nil, "a dry run of all: %v", err)
	k.redriven("the same two", admin.RedriveRequest{}, 2, nil)
}

// An expired record is put back only with Force, and without its expiry. DB-12 ST-11.
func redriveRefusesExpired(k *kit) {
	k.redriver()
	ids := k.stage(k.msg(waybill.TTL(lax())), k.msg(waybill.TTL(far)))
	k.abandonKept(waybill.ReasonRejected, ids...)
	k.expire(lax())
	expired := map[string]int{admin.RefusedExpired: 1}
	k.redriven("two, one of them expired, in a dry run", admin.RedriveRequest{DryRun: true}, 1, expired)
	k.redriven("two, one of them expired", admin.RedriveRequest{}, 1, expired)
	k.drainIDs(ids[1:])
	k.redriven("an expired one by force", admin.RedriveRequest{Force: true}, 1, nil)
	r := k.takeIDs(ids[:1])[0]
	k.failIf(!r.Envelope.Expires.IsZero(), "an expired record was redriven by force and expires %s", r.Envelope.Expires)
}

// A record older than the inbox's memory is put back only with Force. DB-12.
func redriveRefusesBeyondHorizon(k *kit) {
	k.redriver()
	ids := k.stage(k.msg())
	k.abandonKept(waybill.ReasonRejected, ids...)
	k.expire(short)
	k.redriven("one that is older than the horizon", admin.RedriveRequest{InboxRetention: short}, 0,
		map[string]int{admin.RefusedInboxRetention: 1})
	k.none("it was refused")
	k.redriven("one that is younger", admin.RedriveRequest{InboxRetention: far}, 1, nil)
	k.abandonKept(waybill.ReasonRejected, ids...)
	k.redriven("one by force", admin.RedriveRequest{InboxRetention: short, Force: true}, 1, nil)
	k.takeIDs(ids)
}

// A record after which later messages of its key can have been published is put back only with Force, unless the key
// was blocked. A failed record still blocks its key. DB-12.
func redriveRefusesOutOfOrder(k *kit) {
	k.redriver()
	ids := k.keys(2, "a")["a"]
	k.abandonKept(waybill.ReasonRejected, ids[0])
	k.drainIDs(ids[1:])
	order := map[string]int{admin.RefusedOrder: 1}
	k.redriven("one whose key went on", admin.RedriveRequest{}, 0, order)
	k.none("it was refused")
	k.redriven("one by force", admin.RedriveRequest{Force: true}, 1, nil)
	k.drainIDs(ids[:1])

	b := k.blocking()
	blocked := b.keys(3, "b")["b"]
	b.abandon(waybill.ReasonRejected, blocked[0])
	k.redriven("one whose key is blocked, in a dry run", admin.RedriveRequest{BlockAfterAbandon: true, DryRun: true}, 1, nil)
	k.redriven("one whose key is blocked", admin.RedriveRequest{BlockAfterAbandon: true}, 1, nil)
	b.drainIDs(blocked)

	failed := k.keys(2, "c")["c"]
	k.retry(k.takeIDs(failed[:1])[0], far)
	k.redriven("a failed one", admin.RedriveRequest{}, 1, nil)
	k.drainIDs(failed)
}

// An empty filter is refused unless all are meant; states that cannot be redriven are too. DB-12.
func redriveAsksForAll(k *kit) {
	for _, req := range []admin.RedriveRequest{
		{},
		{DryRun: true},
		{All: true, Page: admin.PageRequest{Limit: -1}},
		{All: true, DryRun: true, InboxRetention: -1},
		{Filter: k.mine(admin.Filter{States: []core.State{core.StatePending}})},
	} {
		_, err := k.redriver().Redrive(k.ctx, req)
		k.invalid(fmt.Sprintf("redrive %+v", req), err)
	}
}

// Held and pending records are left alone by every form of a redrive. DB-12.
func redriveTakesNoHeld(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(2)...)
	r := k.takeIDs(ids[:1])[0]
	k.redriven("a held and a pending one", admin.RedriveRequest{Filter: admin.Filter{IDs: ids}, Force: true}, 0, nil)
	k.published(r)
	k.drainIDs(ids[1:])
}

// A record is not put back beside a live one with its dedupe key, even by force; of several that were given up, one is.
// It then stands for the key again. DB-12 ST-08.
func redriveMindsDedupeKeys(k *kit) {
	k.redriver()
	k.canCancel()
	var ids []string
	for range 2 {
		ids = append(ids, k.stage(k.msg(waybill.DedupeKey("d")))...)
		k.abandonKept(waybill.ReasonRejected, ids[len(ids)-1])
	}
	k.failIf(k.inspect(ids[0]).DedupeKey != "d", "inspect does not show the dedupe key")
	live := k.stage(k.msg(waybill.DedupeKey("d")))
	refused := map[string]int{admin.RefusedDuplicate: 2}
	k.redriven("two for which a third one stands", admin.RedriveRequest{}, 0, refused)
	k.redriven("two for which a third one stands, by force", admin.RedriveRequest{Force: true}, 0, refused)
	k.drainIDs(live)
	one := map[string]int{admin.RefusedDuplicate: 1}
	k.redriven("two with one dedupe key, in a dry run", admin.RedriveRequest{DryRun: true}, 1, one)
	k.redriven("two with one dedupe key", admin.RedriveRequest{}, 1, one)
	s := k.stageNow(k.msg(waybill.DedupeKey("d")))[0]
	k.failIf(!s.Duplicate || s.ID != ids[0], "staging the dedupe key of a redriven message answered %+v, want a duplicate of it", s)
	k.drainIDs(ids[:1])
}

// A message that was replaced in flight has no dedupe key any more. It is put back like any other, whether it waits for
// a retry or was given up, and its replacement stands for the key. DB-12 ST-08.
func redriveOfWhatWasReplaced(k *kit) {
	k.redriver()
	k.canCancel()
	for _, given := range []bool{false, true} {
		old, now := k.msg(waybill.DedupeKey("d")), k.msg(waybill.Replace("d"))
		k.stageNow(old)
		r := k.takeIDs([]string{old.ID})[0]
		s := k.stageNow(now)[0]
		k.failIf(s.Replaced != waybill.CancelInFlight, "staging a replacement of what is out answered %+v", s)
		if given {
			k.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
			k.kept(old.ID)
		} else {
			k.retry(r, far)
		}
		key := k.inspect(old.ID).DedupeKey
		k.failIf(key != "", "a message was replaced in flight, and still shows the dedupe key %q", key)
		k.redriven("one that was replaced in flight", admin.RedriveRequest{Filter: admin.Filter{IDs: []string{old.ID}}}, 1, nil)
		s = k.stageNow(k.msg(waybill.DedupeKey("d")))[0]
		k.failIf(!s.Duplicate || s.ID != now.ID, "staging the dedupe key of a replaced message answered %+v, want a duplicate of its replacement", s)
		k.drainIDs([]string{old.ID, now.ID})
	}
}

// A record that can have been delivered before it was given up is still known as such after it was put back. DB-12
// ST-09.
func redriveRemembersMaybeSent(k *kit) {
	k.redriver()
	k.canCancel()
	ids := k.stage(k.msg(waybill.DedupeKey("d")))
	k.settle(core.Abandon(&k.takeIDs(ids)[0], waybill.ReasonCrashed, errNo).WithUnknown())
	k.kept(ids[0])
	k.redriven("one that can have arrived", admin.RedriveRequest{}, 1, nil)
	k.cancel("after a redrive", waybill.CancelUncertain, k.byID(ids[0]))
}

// A redriven record is sent with the body that the request has, and only such a one. DB-12.
func redriveRepairs(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(3)...)
	k.abandonKept(waybill.ReasonRejected, ids[0], ids[1])
	k.retry(k.takeIDs(ids[2:])[0], far)
	for i, body := range [][]byte{[]byte("repaired"), {}} {
		req := admin.RedriveRequest{Filter: admin.Filter{IDs: ids[i : i+1]}, Body: body, Force: true, DryRun: true}
		k.redriven("a dry run", req, 1, nil)
		req.DryRun = false
		k.redriven("one with a new body", req, 1, nil)
	}
	k.redriven("one as it is", admin.RedriveRequest{}, 1, nil)
	for i, r := range k.takeIDs(ids) {
		body := string(r.Envelope.Body)
		want := [...]string{"repaired", ""}
		k.failIf(i < len(want) && body != want[i] || i == len(want) && body == "",
			"the record %d of 0, 1, 2 is sent with the body %q", i, body)
		k.published(r)
	}
}

// A record with a new body tells by a header what it was, so that an inbox which knows its id takes it for the same
// message. Its first repair counts. A record whose body stays has no such header, and neither has one with an encoded
// body. All other headers stay. DB-12 IN-10.
func redriveMarksRepaired(k *kit) {
	k.redriver()
	msgs := k.msgs(4)
	msgs[1].Headers = map[string]string{"a.b": "1", "$c": "2"}
	msgs[2].Headers = map[string]string{"content-encoding": "gzip"}
	ids := k.stage(msgs...)
	was := make([]string, len(ids))
	for round := range 3 {
		for i, r := range k.takeIDs(ids) {
			e := &r.Envelope
			if round == 0 {
				was[i] = content.Hash(e, false)
			}
			mark, marked := content.Before(e)
			if want := round > 0 && i < 2; marked != want || marked && mark != was[i] {
				k.fail("record %d after %d repairs has the header repaired-from %q; that is what it was at first: %t",
					i, round, e.Headers[content.Header], mark == was[i])
			}
			delete(e.Headers, content.Header)
			k.failIf(len(e.Headers)+len(msgs[i].Headers) > 0 && !maps.Equal(e.Headers, msgs[i].Headers),
				"record %d after %d repairs has the headers %v besides, want %v", i, round, e.Headers, msgs[i].Headers)
			if round < 2 {
				k.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
			} else {
				k.published(r)
			}
		}
		if round == 2 {
			return
		}
		for i, id := range ids[:3] {
			body := []byte{'r', byte('0' + round), byte('0' + i)}
			k.redriven("one with a new body", admin.RedriveRequest{Filter: admin.Filter{IDs: []string{id}}, Body: body, Force: true}, 1, nil)
		}
		k.redriven("one as it is", admin.RedriveRequest{Force: true}, 1, nil)
	}
}
