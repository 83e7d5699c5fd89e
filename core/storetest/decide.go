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
)

var decideChecks = []named{
	{"decide-without-owner", decideWithoutOwner},
	{"decide-through-owner", decideThroughOwner},
	{"decide-waits-for-what-is-out", decideWaitsForWhatIsOut},
	{"decide-stands-when-nobody-acts", decideStandsWhenNobodyActs},
	{"decide-heeds-its-context", decideHeedsItsContext},
	{"decisions-end-what-nobody-can-have-out", decisionsEndWhatIsFree},
	{"decisions-without-owner", decisionsWithoutOwner},
	{"decisions-through-owner", decisionsThroughOwner},
	{"decisions-of-an-owner-that-left", decisionsOfAnOwnerThatLeft},
	{"decisions-leave-what-ended", decisionsLeaveWhatEnded},
	{"decisions-are-void-after-a-redrive", decisionsVoidAfterRedrive},
	{"decisions-pass-over-what-is-locked", decisionsPassOverLocked},
	{"decisions-refuse-bad-input", decisionsRefuseBadInput},
	{"decide-all", decideAll},
	{"purge-all", purgeAll},
}

// stays bounds the wait for a decision that no owner carries out.
const stays = 10 * time.Second

// gone checks that an operator gave id up with reason, after so many attempts.
func (k *kit) gaveUp(id string, reason waybill.Reason, attempts int) {
	want := StoredRecord{State: core.StateAbandoned, Attempts: attempts, Reason: reason}
	if attempts > 0 {
		want.LastError = errNo.Error()
	}
	k.state("an operator decided about it", id, want)
}

// owned plays the owner of the route while fn runs: it carries out what is decided.
func (k *kit) owned(fn func()) {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- suitetest.Guard(func() { k.driver.serveNotices(k, stop) }) }()
	err := suitetest.Guard(fn)
	close(stop)
	if err = errors.Join(err, <-done); err != nil {
		suitetest.Raise(err)
	}
}

// deciding decides in the background, and returns when the owner was told.
func (k *kit) deciding(ctx context.Context, key, id string, a admin.HeadAction) <-chan error {
	done := make(chan error, 1)
	kk := k.keeper()
	go func() {
		_, err := suitetest.Call(func() (any, error) { return nil, kk.DecideHead(ctx, k.route, key, id, a) })
		done <- err
	}()
	for w := (suitetest.Wait{}); ; {
		for _, c := range k.notices() {
			if c.Kind == core.NoticeDecide && c.ID == id {
				return done
			}
		}
		select {
		case err := <-done:
			k.fail("a decision about a due message was answered before its owner carried it out: %w", err)
		default:
		}
		k.failIf(!w.Again(k.ctx), "the owner of a due message is not told of a decision about it")
	}
}

func (k *kit) answer(done <-chan error, within time.Duration) error {
	err, ok := suitetest.ComeWithin(done, within)
	k.failIf(!ok, "a decision was not answered within %s", within)
	return err
}

// notices returns the notices of the route.
func (k *kit) notices() []core.Notice { return k.driver.notices(k) }

// A due head in a partition without an owner is given up at once; no relay can have it out. OP-18 OR-05.
func decideWithoutOwner(k *kit) {
	k.keeper()
	never := k.other(k.h) // its route was never served
	tx := k.raw()
	first := never.mustStage(tx, never.msg(waybill.Key("a")))[0].ID
	k.commit(tx)
	never.decided("a", first, admin.HeadSkip)
	never.gaveUp(first, waybill.ReasonSkipped, 0)
	never.none("it was skipped")

	ids := k.keys(4, "a")["a"]
	k.unowned()
	k.answers("a decision about a due message behind another one of its key", waybill.ErrNotFound, k.decide("a", ids[1], admin.HeadSkip))
	k.decided("a", ids[0], admin.HeadSkip)
	k.decided("a", ids[1], admin.HeadSetAside)
	k.gaveUp(ids[0], waybill.ReasonSkipped, 0)
	k.gaveUp(ids[1], waybill.ReasonSetAside, 0)
	k.drainIDs(ids[2:])
}

// A due head whose partition has an owner is given up by that owner. The owner is told, and the answer comes when it is
// done. No attempt counts. OP-18 OR-05.
func decideThroughOwner(k *kit) {
	k.keeper()
	ids := k.keys(4, "a")["a"]
	k.release(k.takeIDs(ids[:1])...)
	k.owned(func() {
		k.decided("a", ids[0], admin.HeadSkip)
		k.gaveUp(ids[0], waybill.ReasonSkipped, 0)
		k.decided("a", ids[1], admin.HeadSetAside)
		k.gaveUp(ids[1], waybill.ReasonSetAside, 0)
	})
	n := len(k.notices())
	k.failIf(n > 0, "decisions were carried out, and %d notices are left", n)
	k.drainIDs(ids[2:])
	if _, ok := core.As[admin.Redriver](k.store); ok {
		aside := admin.Filter{Reasons: []waybill.Reason{waybill.ReasonSetAside}}
		k.redriven("one that is set aside by force", admin.RedriveRequest{Filter: aside, Force: true}, 1, nil)
		k.drainIDs(ids[1:2])
	}
}

// A record that its owner has out is given up when it comes back, unless it was published; the answer says which.
// OP-18.
func decideWaitsForWhatIsOut(k *kit) {
	k.keeper()
	ids := k.keys(3, "a")["a"]
	out := k.driver.promise(k.mustLook()[:1])
	k.owned(func() {
		done := k.deciding(k.ctx, "a", ids[0], admin.HeadSkip)
		k.published(out...)
		k.answers("a decision about a message that was published meanwhile", waybill.ErrNotFound, k.answer(done, soon()))
	})
	out = k.driver.promise(k.mustLook()[:1])
	k.owned(func() {
		done := k.deciding(k.ctx, "a", ids[1], admin.HeadSetAside)
		k.retry(out[0], far)
		k.must("decide about a message that failed meanwhile", k.answer(done, soon()))
	})
	k.gaveUp(ids[1], waybill.ReasonSetAside, 1)
	k.drainIDs(ids[2:])
}

// mustLook returns the records in line.
func (k *kit) mustLook() []core.Record {
	ready := k.driver.look(k)
	k.failIf(len(ready) == 0, "nothing is in line")
	return ready
}

// A decision that the owner does not carry out is answered after some time, as in flight. It stands, and is carried out
// when the owner can. OP-18.
func decideStandsWhenNobodyActs(k *kit) {
	k.keeper()
	ids := k.keys(2, "a")["a"]
	done := k.deciding(k.ctx, "a", ids[0], admin.HeadSkip)
	k.answers("a decision that no owner carries out", waybill.ErrInFlight, k.answer(done, stays+soon()))
	k.drainIDs(ids[1:])
	k.gaveUp(ids[0], waybill.ReasonSkipped, 0)
}

// The caller need not wait: an ended context ends the call, and the decision stands. OP-18.
func decideHeedsItsContext(k *kit) {
	k.keeper()
	ids := k.keys(2, "a")["a"]
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	done := k.deciding(ctx, "a", ids[0], admin.HeadSetAside)
	cancel()
	err := k.answer(done, soon())
	k.failIf(err == nil, "a decision that was not carried out was answered with success when its context ended")
	k.drainIDs(ids[1:])
	k.gaveUp(ids[0], waybill.ReasonSetAside, 0)
}

func (k *kit) terminator() admin.Terminator { return capability[admin.Terminator](k) }

// decisions returns new decisions about the records with ids.
func (k *kit) decisions(ids ...string) (out []admin.Decision) {
	for _, id := range ids {
		out = append(out, admin.Decision{Route: k.route, Seq: k.inspect(id).Seq, ID: id})
	}
	return out
}

// results decides, and requires these results. It returns the decisions to ask about again.
func (k *kit) results(why string, reason waybill.Reason, asked []admin.Decision, want ...admin.DecisionResult) []admin.Decision {
	got, err := k.terminator().DecideRecords(k.ctx, admin.DecideRequest{Reason: reason, Decisions: asked})
	k.must("decide about records", err)
	k.failIf(len(got) != len(asked), "%s: %d answers to %d decisions", why, len(got), len(asked))
	for i, d := range got {
		same := d.Route == asked[i].Route && d.Seq == asked[i].Seq && d.ID == asked[i].ID
		k.failIf(!same || d.Result != want[min(i, len(want)-1)] || (d.Result == admin.DecisionPending) != (d.Number != 0) && asked[i].Number == 0,
			"%s: decision %d is answered with %+v, want it %s", why, i, d, want[min(i, len(want)-1)])
	}
	return got
}

// A record that waits for a time, or is cancellable, is out only if a member holds it. Without a hold it is ended at
// once, though its partition has an owner. That owner is told that its key goes on. OP-18 OR-05.
func decisionsEndWhatIsFree(k *kit) {
	k.terminator()
	r := k.out(waybill.Key("a"))
	k.retry(r, far)
	ids := k.stage(k.msg(waybill.Key("a")), k.msg(waybill.Delay(far)))
	k.told("a decision about a head that waits for a retry", r, func() {
		k.results("a retry", waybill.ReasonSkipped, k.decisions(r.ID), admin.DecisionCarriedOut)
	})
	k.results("a scheduled one", waybill.ReasonSetAside, k.decisions(ids[1]), admin.DecisionCarriedOut)
	k.gaveUp(r.ID, waybill.ReasonSkipped, 1)
	k.gaveUp(ids[1], waybill.ReasonSetAside, 0)
	k.drainIDs(ids[:1])
	k.canCancel()
	dedupe := k.stage(k.msg(waybill.Key("a"), waybill.DedupeKey("d")), k.msg(waybill.Key("a")))
	k.results("a cancellable one", waybill.ReasonSkipped, k.decisions(dedupe[0]), admin.DecisionCarriedOut)
	k.drainIDs(dedupe[1:])
	k.fresh("the dedupe key of an ended message", k.msg(waybill.DedupeKey("d")))
}

// Due records in partitions without an owner are ended at once, wherever they are in their key. The rest keeps its
// order, also on a route on which an abandoned record blocks its key. OP-18 OR-05.
func decisionsWithoutOwner(k *kit) {
	k.terminator()
	k = k.blocking()
	ids := k.keys(5, "a", "")
	k.unowned()
	ended := slices.Concat([]string{ids["a"][0], ids["a"][2]}, ids[""][1:3])
	asked := k.results("due ones without an owner", waybill.ReasonSkipped, k.decisions(ended...), admin.DecisionCarriedOut)
	k.results("the same again", waybill.ReasonSkipped, asked, admin.DecisionCarriedOut)
	for _, id := range ended {
		k.gaveUp(id, waybill.ReasonSkipped, 0)
	}
	rest := slices.DeleteFunc(slices.Concat(ids["a"], ids[""]), func(id string) bool { return slices.Contains(ended, id) })
	got := recordIDs(k.drain(len(rest)))
	of := func(key string) []string {
		return slices.DeleteFunc(slices.Clone(got), func(id string) bool { return !slices.Contains(ids[key], id) })
	}
	want := []string{ids["a"][1], ids["a"][3], ids["a"][4]}
	k.failIf(!slices.Equal(of("a"), want) || len(of("")) != 3, "after decisions about others these were handed out: %s", suitetest.Names(got, rest))
	k.none("the others were ended")
}

// Due records whose partition has an owner are ended by it. A record that it has out, held or not, is ended when it
// comes back, unless it was published. OP-18 OR-05.
func decisionsThroughOwner(k *kit) {
	k.terminator()
	ids := k.stage(k.msg(waybill.Key("a")), k.msg(waybill.Key("b")), k.msg(), k.msg(waybill.Key("b")), k.msg(waybill.Key("b")))
	held := k.takeIDs(ids[:1])
	line := slices.DeleteFunc(k.mustLook(), func(r core.Record) bool { return !slices.Contains(ids[1:3], r.ID) })
	out := k.driver.promise(line) // b, and the one without a key
	asked := k.results("those of an owner", waybill.ReasonSetAside, k.decisions(ids[:4]...), admin.DecisionPending)
	again := k.results("those of an owner, asked again", waybill.ReasonSetAside, asked, admin.DecisionPending)
	k.failIf(!slices.Equal(asked, again) || len(k.notices()) != len(asked),
		"asked again about %+v the answer is %+v, with %d notices", asked, again, len(k.notices()))
	for _, id := range ids[:4] {
		st := k.inspect(id).State
		k.failIf(st.Terminal(), "message %s, which its owner can have out, is %s before its owner knows", id, st)
	}
	k.owned(func() {
		k.published(held[0], out[0])
		k.retry(out[1], far)
		for w := (suitetest.Wait{}); len(k.notices()) > 0; {
			if !w.Again(k.ctx) {
				k.fail("the owner does not carry out %d decisions", len(k.notices()))
			}
		}
	})
	other, ended := admin.DecisionSuperseded, admin.DecisionCarriedOut
	k.results("carried out", waybill.ReasonSetAside, asked, other, other, ended, ended)
	k.gaveUp(ids[2], waybill.ReasonSetAside, 1)
	k.gaveUp(ids[3], waybill.ReasonSetAside, 0)
	k.drainIDs(ids[4:])
}

// A decision stands when the owner leaves before it has carried it out. Asked again, the store does it, and nothing is
// left for the next owner: a record that is redriven then goes out. OP-18.
func decisionsOfAnOwnerThatLeft(k *kit) {
	k.terminator()
	ids := k.stage(k.msg(), k.msg(waybill.Key("a")), k.msg(waybill.Key("a")))
	k.release(k.takeIDs(ids[:1])...)
	asked := k.results("those of an owner", waybill.ReasonSetAside, k.decisions(ids[:2]...), admin.DecisionPending)
	k.unowned()
	k.results("those of an owner that left", waybill.ReasonSetAside, asked, admin.DecisionCarriedOut)
	if _, ok := core.As[admin.Redriver](k.store); ok {
		k.redriven("both", admin.RedriveRequest{Filter: admin.Filter{IDs: ids[:2]}, Force: true}, 2, nil)
		k.results("those that were redriven", waybill.ReasonSetAside, asked, admin.DecisionSuperseded)
		k.drainIDs(ids)
		return
	}
	k.drainIDs(ids[2:])
}

// A decision comes too late for an ended record, and for a number or id that is another's. OP-18.
func decisionsLeaveWhatEnded(k *kit) {
	k.terminator()
	ids := k.stage(k.msgs(5)...)
	asked := k.decisions(ids...)
	k.published(k.takeIDs(ids[:1])...)
	k.abandonKept(waybill.ReasonRejected, ids[1])
	k.abandonKept(waybill.ReasonSkipped, ids[2])
	wrong := asked[3]
	wrong.ID, wrong.Seq = asked[4].ID, asked[4].Seq+1000
	asked = append(asked[:3:3], wrong, admin.Decision{Route: "no-" + k.route, Seq: asked[4].Seq, ID: ids[4]})
	k.results("those that ended", waybill.ReasonSkipped, asked,
		admin.DecisionSuperseded, admin.DecisionSuperseded, admin.DecisionCarriedOut, admin.DecisionSuperseded, admin.DecisionSuperseded)
	st := k.inspect(ids[1])
	k.failIf(st.Reason != waybill.ReasonRejected, "a decision changed the reason of an abandoned message to %s", st.Reason)
	k.drainIDs(ids[3:])
}

// The later command counts: a record that an operator puts back goes out, although its owner has not yet carried out an
// earlier decision to end it. OP-18 DB-12.
func decisionsVoidAfterRedrive(k *kit) {
	k.terminator()
	k.redriver()
	ids := k.stage(k.msg(), k.msg(waybill.Key("a")), k.msg(waybill.Key("b")))
	held := k.takeIDs(ids)
	k.results("those that their owner holds", waybill.ReasonSetAside, k.decisions(ids...), admin.DecisionPending)
	k.settle(core.Abandon(&held[0], waybill.ReasonRejected, errNo), core.Abandon(&held[1], waybill.ReasonRejected, errNo))
	k.retry(held[2], far)
	k.redriven("both", admin.RedriveRequest{Filter: admin.Filter{IDs: ids[:2]}, Force: true}, 2, nil)
	if _, ok := core.As[admin.BlockedKeys](k.store); ok {
		k.decided("b", ids[2], admin.HeadRequeue)
	} else {
		k.redriven("a failed one", admin.RedriveRequest{Filter: admin.Filter{IDs: ids[2:]}}, 1, nil)
	}
	k.drainIDs(ids)
}

// A record that a transaction has locked is passed over, without waiting. OP-18.
func decisionsPassOverLocked(k *kit) {
	k.terminator()
	k.canCancel()
	ids := k.stage(k.msg(waybill.Delay(far)), k.msg(waybill.Delay(far)))
	asked := k.decisions(ids...)
	tx := k.begin()
	k.cancelIn(tx, k.byID(ids[0]))
	type answer struct {
		got []admin.Decision
		err error
	}
	done := make(chan answer, 1)
	go func() {
		got, err := k.terminator().DecideRecords(k.ctx, admin.DecideRequest{Reason: waybill.ReasonSkipped, Decisions: asked})
		done <- answer{got, err}
	}()
	a, answered := suitetest.ComeWithin(done, soon()) // a store with a single writer may be busy, or wait for it
	if answered && a.err == nil && (a.got[0].Result != admin.DecisionLocked || a.got[1].Result != admin.DecisionCarriedOut) {
		k.fail("of two records, the first of which is locked, the results are %s and %s", a.got[0].Result, a.got[1].Result)
	}
	k.rollback(tx)
	k.results("after the transaction", waybill.ReasonSkipped, asked, admin.DecisionCarriedOut)
}

// Bad input is refused with everything that is wrong. OP-18.
func decisionsRefuseBadInput(k *kit) {
	d := admin.Decision{Route: k.route, Seq: 1, ID: "x"}
	for _, req := range []admin.DecideRequest{
		{Reason: waybill.ReasonCancelled},
		{Decisions: []admin.Decision{d}},
		{Reason: waybill.ReasonSkipped, Decisions: []admin.Decision{d, d}},
		{Reason: waybill.ReasonSkipped, Decisions: []admin.Decision{{Route: k.route, ID: "x"}}},
		{Reason: waybill.ReasonSkipped, Decisions: make([]admin.Decision, admin.MaxPageLimit+1)},
	} {
		_, err := k.terminator().DecideRecords(k.ctx, req)
		k.invalid(fmt.Sprintf("%d decisions for reason %q", len(req.Decisions), req.Reason), err)
	}
	got, err := k.terminator().DecideRecords(k.ctx, admin.DecideRequest{Reason: waybill.ReasonSkipped})
	k.failIf(err != nil || len(got) > 0, "no decision: %v, %v", got, err)
}

// purgeTerminator ends records, and deletes them.
type purgeTerminator interface {
	admin.Terminator
	admin.Purger
}

func (k *kit) purgeTerminator() purgeTerminator {
	return struct {
		admin.Terminator
		admin.Purger
	}{k.terminator(), k.purger()}
}

// mixed stages messages of two tenants in all live states, one of them out, and returns the ids of each.
func (k *kit) mixed() (x, y []string) {
	var msgs []waybill.Message
	for _, tenant := range []string{"x", "y"} {
		of := waybill.Tenant(tenant)
		msgs = append(msgs, k.msg(of), k.msg(of, waybill.Key("a")), k.msg(of), k.msg(of, waybill.Key("a")), k.msg(of, waybill.Delay(far)))
	}
	ids := k.stage(msgs...)
	k.retry(k.takeIDs(ids[:1])[0], far)
	return ids[:5], ids[5:]
}

// All that a filter selects is ended, by the owner or at once, and each result is told. OP-18 ST-09.
func decideAll(k *kit) {
	e := k.purgeTerminator()
	x, y := k.mixed()
	req := admin.TerminateRequest{Filter: k.mine(admin.Filter{Tenants: []string{"x"}}), Reason: waybill.ReasonSkipped, Page: admin.PageRequest{Limit: 2}}
	dry := req
	dry.DryRun = true
	sum, err := admin.DecideAll(k.ctx, e, dry, admin.TerminateOptions{})
	k.failIf(err != nil || sum != (admin.TerminateResult{Matched: 5}), "a dry run: %+v, %v", sum, err)
	told := map[string]admin.DecisionResult{}
	k.owned(func() {
		sum, err := admin.DecideAll(k.ctx, e, req, admin.TerminateOptions{Result: func(d admin.Decision) { told[d.ID] = d.Result }})
		k.failIf(err != nil || sum != (admin.TerminateResult{Matched: 5, Ended: 5}), "five of a tenant: %+v, %v", sum, err)
	})
	for i, id := range x {
		k.failIf(told[id] != admin.DecisionCarriedOut || len(told) != 5, "the result of record %d is told as %s, with %d others", i, told[id], len(told)-1)
		k.gaveUp(id, waybill.ReasonSkipped, map[int]int{0: 1}[i])
	}
	k.drainIDs(y[:4])
}

// All records that a filter selects are deleted, in every state. OP-18.
func purgeAll(k *kit) {
	e := k.purgeTerminator()
	x, y := k.mixed()
	k.owned(func() {
		sum, err := admin.PurgeAll(k.ctx, e, admin.PurgeRequest{Filter: k.mine(admin.Filter{Tenants: []string{"x"}})}, admin.TerminateOptions{})
		k.failIf(err != nil || sum.Ended.Ended != 5 || sum.Purged.Matched != 5 || sum.Purged.Deleted != 5,
			"five of a tenant: %+v, %v", sum, err)
	})
	for _, id := range x {
		k.gone("after a purge", id)
	}
	k.fresh("the id of a purged record", k.msg(waybill.ID(x[1])))
	k.drainIDs(append(y[:4:4], x[1]))
}
