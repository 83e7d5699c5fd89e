package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var dedupeChecks = []named{
	{"dedupe-key-makes-duplicate", dedupeKeyMakesDuplicate},
	{"dedupe-key-beside-others", dedupeKeyBesideOthers},
	{"dedupe-keys-belong-to-tenants", dedupeKeysBelongToTenants},
	{"dedupe-key-of-another-source-is-refused", dedupeKeyOfAnotherSourceIsRefused},
	{"dedupe-key-is-free-when-settled", dedupeKeyIsFreeWhenSettled},
	{"dedupe-key-of-running-transaction-waits", dedupeKeyOfRunningTransactionWaits},
	{"replace-takes-the-place", replaceTakesThePlace},
	{"replace-within-a-transaction", replaceWithinATransaction},
	{"replace-of-held-lets-both-live", replaceOfHeldLetsBothLive},
	{"replace-rolled-back-leaves-the-old", replaceRolledBackLeavesTheOld},
	{"replace-latest-of-many-wins", replaceLatestOfManyWins},
}

// Each tenant has dedupe keys of its own: its message is no duplicate of another tenant's, replaces none, and is not
// cancelled with it. Operators see the key that was staged.
func dedupeKeysBelongToTenants(k *kit) {
	k.canCancel()
	of := func(tenant string, opts ...waybill.MessageOption) waybill.Message {
		return k.msg(append(opts, waybill.Tenant(tenant), waybill.Delay(far))...)
	}
	acme, evil, none := of("acme", waybill.DedupeKey("k")), of("evil", waybill.DedupeKey("k")), of("", waybill.DedupeKey("k"))
	k.fresh("a dedupe key of another tenant", acme, evil, none, of("ac", waybill.DedupeKey("mek")))
	for _, m := range []waybill.Message{acme, evil, none} {
		k.expect("again", k.stageNow(of(m.Tenant, waybill.DedupeKey("k")))[0], k.duplicate(m.ID))
	}
	newer := of("evil", waybill.Replace("k"))
	s := k.stageNow(newer)[0]
	k.failIf(s.Duplicate || s.Replaced != waybill.CancelDone, "a message that replaces its tenant's: %+v", s)
	if in, ok := core.As[admin.Inspector](k.store); ok {
		got, err := in.Inspect(k.ctx, k.route, acme.ID)
		k.must("inspect", err)
		k.failIf(got.DedupeKey != "k", "a message that was staged with dedupe key %q is shown with %q", "k", got.DedupeKey)
	}
	key := func(tenant string) waybill.CancelKey {
		return waybill.CancelKey{Route: k.route, Topic: k.topic, DedupeKey: "k", Tenant: tenant}
	}
	k.cancel("of nobody", waybill.CancelNotFound, key("nobody"))
	k.cancel("evil's", waybill.CancelDone, key("evil"))
	k.cancel("evil's again", waybill.CancelNotFound, key("evil"))
	k.expect("acme's after evil's was cancelled", k.stageNow(of("acme", waybill.DedupeKey("k")))[0], k.duplicate(acme.ID))
	k.cancel("acme's", waybill.CancelDone, key("acme"))
	k.cancel("that of no tenant", waybill.CancelDone, key(""))
}

// The dedupe key of another source's live message makes no duplicate, which would be lost without a word, and replaces
// nothing. Stage fails: alone and beside others, within a call and across transactions, and while that message is held.
// When the message is settled its key is free for every source. ST-08.
func dedupeKeyOfAnotherSourceIsRefused(k *kit) {
	k.canCancel()
	of := func(source string, opts ...waybill.MessageOption) waybill.Message {
		return k.msg(append(opts, fromSource(source))...)
	}
	const a, b = "/storetest/a", "/storetest/b"
	refused := func(where string, msgs ...waybill.Message) {
		k.conflict(where+": the dedupe key of another source's message", msgs...)
	}
	key, replace := waybill.DedupeKey("k"), waybill.Replace("k")
	refused("within one call", of(a, key), of(b, key))
	refused("within one call, to replace it", of(a, key), of(b, replace))
	tx, first := k.begin(), of(a, key)
	k.mustStage(tx, first)
	_, err := tx.Stage(k.ctx, of(b, key))
	k.failIf(waybill.ReasonOf(err) != waybill.ReasonIDConflict,
		"within one transaction: the dedupe key of another source's message: stage answered %v, want reason %q", err, waybill.ReasonIDConflict)
	k.rollback(tx)
	k.stageNow(first)
	refused("alone", of(b, key))
	refused("beside others", k.msg(key, waybill.Tenant("x")), k.msg(), of(b, key), k.msg())
	refused("to replace it", of(b, replace))
	refused("to replace it, beside others", k.msg(), of(b, replace), k.msg())
	k.expect("the same source", k.stageNow(of(a, key))[0], k.duplicate(first.ID))
	r := k.takeIDs([]string{first.ID})[0]
	refused("while it is held", of(b, key))
	refused("to replace it while it is held", of(b, replace))
	k.expect("the same source, while it is held", k.stageNow(of(a, key))[0], k.duplicate(first.ID))
	k.published(r)
	next := of(b, key)
	k.expect("another source after it is published", k.stageNow(next)[0], waybill.Staged{ID: next.ID, Route: k.route})
	refused("the first source then", of(a, key))
	k.published(k.takeIDs([]string{next.ID})...)
	for _, opt := range []waybill.MessageOption{key, replace} {
		mine, running := of(a, key), k.begin()
		k.mustStage(running, mine)
		_, err := k.stageBeside(of(b, opt), func() { k.commit(running) })
		k.failIf(waybill.ReasonOf(err) != waybill.ReasonIDConflict,
			"beside the transaction that staged the key: stage answered %v, want reason %q", err, waybill.ReasonIDConflict)
		k.published(k.takeIDs([]string{mine.ID})...)
	}
	k.none("all others were refused or are duplicates")
}

// A second message with the dedupe key of a live one on its route and topic is a no-op that names the live one: within
// a call, a transaction, across them, and while it is held or waits for a retry. ST-08.
func dedupeKeyMakesDuplicate(k *kit) {
	k.canCancel()
	other := k.other(k.h)
	first, elsewhere, topic := k.msg(waybill.DedupeKey("k")), other.msg(waybill.DedupeKey("k")), k.msg(waybill.DedupeKey("k"), onTopic("storetest.other"))
	dup := k.duplicate(first.ID)
	tx := k.begin()
	staged := k.mustStage(tx, first, k.msg(waybill.DedupeKey("k")), elsewhere, topic, k.msg(waybill.DedupeKey("l")))
	k.expect("the first", staged[0], waybill.Staged{ID: first.ID, Route: k.route})
	k.expect("within one call", staged[1], dup)
	k.expect("on another route", staged[2], waybill.Staged{ID: elsewhere.ID, Route: other.route})
	k.expect("on another topic", staged[3], waybill.Staged{ID: topic.ID, Route: k.route})
	k.failIf(staged[4].Duplicate, "another key is reported as a duplicate")
	k.expect("within one transaction", k.mustStage(tx, k.msg(waybill.DedupeKey("k")))[0], dup)
	k.commit(tx)
	k.expect("in a later transaction", k.stageNow(k.msg(waybill.DedupeKey("k")))[0], dup)
	own := first
	own.DedupeKey = "m"
	k.expect("the same id with another key", k.stageNow(own)[0], dup)
	k.fresh("a message without a dedupe key", k.msg(), k.msg())
	rs := k.take(5)
	k.failIf(rs[0].ID != first.ID || rs[1].ID != topic.ID || rs[2].ID != staged[4].ID,
		"handed out other messages than those that were staged first")
	k.expect("while it is held", k.stageNow(k.msg(waybill.DedupeKey("k")))[0], dup)
	k.retry(rs[0], far)
	k.expect("while it waits for a retry", k.stageNow(k.msg(waybill.DedupeKey("k")))[0], dup)
	k.none("all are out, wait, or are duplicates")
}

// Keyed messages among others, many in one call: the order of the input is kept. ST-08, ST-02.
func dedupeKeyBesideOthers(k *kit) {
	k.canCancel()
	msgs := k.msgs(300)
	for i := range msgs {
		if i%3 == 1 {
			msgs[i].DedupeKey = strconv.Itoa(i)
		}
	}
	twice := k.msg(waybill.DedupeKey(msgs[1].DedupeKey))
	staged := k.stageNow(append(slices.Clone(msgs), twice)...)
	var want []string
	for i := range msgs {
		k.expect(fmt.Sprint("message ", i), staged[i], waybill.Staged{ID: msgs[i].ID, Route: k.route})
		want = append(want, msgs[i].ID)
	}
	k.expect("a duplicate", staged[300], k.duplicate(msgs[1].ID))
	k.takeIDs(want)
	k.none("the last was a duplicate")
}

// A dedupe key is free again when its message is published, abandoned or cancelled, or was rolled back. ST-08.
func dedupeKeyIsFreeWhenSettled(k *kit) {
	k.canCancel()
	fresh := func(where string) core.Record {
		m := k.msg(waybill.DedupeKey("k"))
		k.expect(where, k.stageNow(m)[0], waybill.Staged{ID: m.ID, Route: k.route})
		return k.takeIDs([]string{m.ID})[0]
	}
	tx := k.begin()
	k.mustStage(tx, k.msg(waybill.DedupeKey("k")))
	k.rollback(tx)
	r := fresh("after a rollback")
	k.published(r)
	r = fresh("after publishing")
	k.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
	r = fresh("after abandoning")
	k.release(r)
	k.cancel("the released one", waybill.CancelDone, k.byKey("k"))
	r = fresh("after cancelling")
	k.published(r)
}

// Two transactions that stage one dedupe key at once: exactly one message. ST-08.
func dedupeKeyOfRunningTransactionWaits(k *kit) {
	k.canCancel()
	for _, commit := range []bool{true, false} {
		a, b := k.msg(waybill.DedupeKey("k")), k.msg(waybill.DedupeKey("k"))
		first := k.begin()
		k.mustStage(first, a)
		want := waybill.Staged{ID: b.ID, Route: k.route}
		if commit {
			want = k.duplicate(a.ID)
		}
		got, err := k.stageBeside(b, func() { k.end(first, commit) })
		k.must("second transaction", err)
		k.expect(fmt.Sprintf("the first transaction committed: %v", commit), got, want)
		k.drainIDs([]string{want.ID})
		k.none("there was one message")
	}
}

// end commits tx, or rolls it back.
func (k *kit) end(tx Tx, commit bool) {
	if commit {
		k.commit(tx)
	} else {
		k.rollback(tx)
	}
}

// stageBeside stages m in a transaction that begins before end, which ends another one.
func (k *kit) stageBeside(m waybill.Message, end func()) (waybill.Staged, error) {
	var got []waybill.Staged
	done := make(chan error, 1)
	go func() {
		done <- k.eager(func(tx Tx) (err error) { got, err = tx.Stage(k.ctx, m); return err })
	}()
	k.sleep(20 * pause)
	end()
	if err := <-done; err != nil {
		return waybill.Staged{}, err
	}
	k.failIf(len(got) != 1, "stage returned %d results for one message", len(got))
	return got[0], nil
}

// eager runs fn in a transaction, and again while that fails, since a store that cannot wait is busy. A conflict of ids
// is not tried again.
func (k *kit) eager(fn func(tx Tx) error) (err error) {
	failed := suitetest.Guard(func() {
		for w := (suitetest.Wait{}); ; {
			var tx Tx
			if tx, err = k.h.Begin(k.ctx); err == nil {
				if err = fn(tx); err == nil {
					err = tx.Commit(k.ctx)
				}
				_ = tx.Rollback(k.ctx)
			}
			if err == nil || waybill.ReasonOf(err) == waybill.ReasonIDConflict {
				return
			}
			k.failIf(!w.Again(k.ctx), "a transaction beside others fails: %w", err)
		}
	})
	return cmp.Or(failed, err)
}

// The newest message with a dedupe key takes the place of the live one, whether that is due, scheduled, or waits for a
// retry, and says what became of it. ST-10.
func replaceTakesThePlace(k *kit) {
	k.canCancel()
	replace := func(where string, want waybill.CancelStatus, opts ...waybill.MessageOption) string {
		m := k.msg(append(opts, waybill.Replace("k"))...)
		k.expect(where, k.stageNow(m)[0], waybill.Staged{ID: m.ID, Route: k.route, Replaced: want})
		return m.ID
	}
	replace("nothing to replace", waybill.CancelNotFound)
	replace("a pending one", waybill.CancelDone, waybill.Delay(far))
	id := replace("a scheduled one", waybill.CancelDone)
	rs := k.takeIDs([]string{id})
	k.retry(rs[0], far)
	id = replace("one that waits for a retry", waybill.CancelDone)
	rs = k.takeIDs([]string{id})
	k.settle(core.Release(&rs[0], 0, true))
	id = replace("one that can have arrived", waybill.CancelUncertain)
	own := k.msg(waybill.ID(id), waybill.Replace("k"))
	k.expect("its own id again", k.stageNow(own)[0], k.duplicate(id))
	k.expect("a duplicate of it", k.stageNow(k.msg(waybill.DedupeKey("k")))[0], k.duplicate(id))
	rs = k.takeIDs([]string{id})
	k.published(rs...)
	k.none("the others were replaced")
	replace("a published one", waybill.CancelNotFound)
}

// Within one transaction and one call, too, the newest wins. ST-10.
func replaceWithinATransaction(k *kit) {
	k.canCancel()
	a, b, c, d, e := k.msg(waybill.DedupeKey("k")), k.msg(waybill.Replace("k")), k.msg(waybill.Replace("k")), k.msg(waybill.DedupeKey("k")), k.msg(waybill.Replace("k"))
	between := k.msg()
	tx := k.begin()
	k.mustStage(tx, a)
	staged := k.mustStage(tx, b, between, c, d)
	k.expect("of an earlier call", staged[0], waybill.Staged{ID: b.ID, Route: k.route, Replaced: waybill.CancelDone})
	k.expect("of the same call", staged[2], waybill.Staged{ID: c.ID, Route: k.route, Replaced: waybill.CancelDone})
	k.expect("a duplicate after it", staged[3], k.duplicate(c.ID))
	k.expect("of the call before", k.mustStage(tx, e)[0], waybill.Staged{ID: e.ID, Route: k.route, Replaced: waybill.CancelDone})
	k.commit(tx)
	k.takeIDs([]string{between.ID, e.ID})
	k.none("the others were replaced")
}

// A message that a member holds cannot be replaced: both are sent, the answer says so, and the key is the newer one's.
// ST-10.
func replaceOfHeldLetsBothLive(k *kit) {
	k.canCancel()
	a, b := k.msg(waybill.DedupeKey("k")), k.msg(waybill.Replace("k"))
	k.stageNow(a)
	rs := k.takeIDs([]string{a.ID})
	k.expect("a held one", k.stageNow(b)[0], waybill.Staged{ID: b.ID, Route: k.route, Replaced: waybill.CancelInFlight})
	k.expect("a duplicate of the newer", k.stageNow(k.msg(waybill.DedupeKey("k")))[0], k.duplicate(b.ID))
	k.release(rs[0])
	k.drainIDs([]string{a.ID, b.ID})
	k.none("both were sent")
}

// A replacement that is rolled back leaves the old message as it was. ST-10.
func replaceRolledBackLeavesTheOld(k *kit) {
	k.canCancel()
	a := k.msg(waybill.DedupeKey("k"))
	k.stageNow(a)
	tx := k.begin()
	k.mustStage(tx, k.msg(waybill.Replace("k")))
	k.withheld("it is being replaced")
	k.rollback(tx)
	k.expect("after the rollback", k.stageNow(k.msg(waybill.DedupeKey("k")))[0], k.duplicate(a.ID))
	k.drainIDs([]string{a.ID})
	k.none("the newer one was rolled back")
}

// Many transactions replace one key at once, while others cancel other messages: one message is live in the end, and no
// replacement was dropped as a duplicate. ST-10.
func replaceLatestOfManyWins(k *kit) {
	k.canCancel()
	const workers, rounds = 4, 6
	var mu sync.Mutex
	staged, replaced := map[string]bool{}, 0
	suitetest.Parallel(workers, func(int) {
		for range rounds {
			m := k.msg(waybill.Replace("k"), waybill.Key("o"))
			var got waybill.Staged
			k.must("replace", k.eager(func(tx Tx) error {
				s, err := tx.Stage(k.ctx, m, k.msg(waybill.DedupeKey("d-"+m.ID)))
				if err == nil {
					got = s[0]
				}
				return err
			}))
			k.failIf(got.Duplicate || got.ID != m.ID, "a replacement was answered with %+v", got)
			mu.Lock()
			staged[m.ID] = true
			if got.Replaced == waybill.CancelDone {
				replaced++
			}
			mu.Unlock()
		}
	})
	k.failIf(replaced != workers*rounds-1, "%d of %d replacements found something to replace, want all but the first", replaced, workers*rounds)
	left := 0
	for _, r := range k.take(workers*rounds + 1) {
		if staged[r.ID] {
			left++
		}
	}
	k.failIf(left != 1, "%d messages with one dedupe key are live, want 1", left)
	k.none("the others were replaced")
}
