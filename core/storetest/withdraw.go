package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

var withdrawChecks = []named{
	{"dedupe-key-makes-duplicate", dedupeKeyMakesDuplicate},
	{"dedupe-key-beside-others", dedupeKeyBesideOthers},
	{"dedupe-key-is-free-when-settled", dedupeKeyIsFreeWhenSettled},
	{"dedupe-key-of-running-transaction-waits", dedupeKeyOfRunningTransactionWaits},
	{"replace-takes-the-place", replaceTakesThePlace},
	{"replace-within-a-transaction", replaceWithinATransaction},
	{"replace-of-leased-lets-both-live", replaceOfLeasedLetsBothLive},
	{"replace-rolled-back-leaves-the-old", replaceRolledBackLeavesTheOld},
	{"replace-latest-of-many-wins", replaceLatestOfManyWins},
	{"cancel-withdraws", cancelWithdraws},
	{"cancel-of-leased-is-in-flight", cancelOfLeasedIsInFlight},
	{"cancel-says-maybe", cancelSaysMaybe},
	{"cancel-rolled-back-leaves-message", cancelRolledBackLeavesMessage},
	{"cancel-within-a-transaction", cancelWithinATransaction},
	{"cancel-of-head-frees-key", cancelOfHeadFreesKey},
	{"cancel-refuses-bad-keys", cancelRefusesBadKeys},
	{"cancel-races-with-claim", cancelRacesWithClaim},
	{"lane-is-claimed-apart", laneIsClaimedApart},
	{"expired-is-abandoned", expiredIsAbandoned},
}

// mustStage stages msgs in tx, whatever ids come back.
func (k *kit) mustStage(tx Tx, msgs ...core.Message) []core.Staged {
	staged, err := tx.Stage(k.ctx, msgs...)
	k.must("stage", err)
	n := 0
	for i := range msgs {
		n += max(len(msgs[i].Routes), 1)
	}
	if len(staged) != n {
		k.fail("stage returned %d results for %d messages and routes", len(staged), n)
	}
	return staged
}

func (k *kit) stageNow(msgs ...core.Message) []core.Staged {
	tx := k.begin()
	staged := k.mustStage(tx, msgs...)
	k.commit(tx)
	return staged
}

func (k *kit) expect(where string, got, want core.Staged) {
	if got != want {
		k.fail("%s: stage answered %+v, want %+v", where, got, want)
	}
}

func (k *kit) cancelIn(tx Tx, keys ...core.CancelKey) []core.CancelStatus {
	c, ok := tx.(Canceller)
	if !ok {
		k.undeclared("cancelling")
	}
	got, err := c.Cancel(k.ctx, keys...)
	k.must("cancel", err)
	if len(got) != len(keys) {
		k.fail("cancel returned %d answers for %d keys", len(got), len(keys))
	}
	return got
}

// cancel cancels in a transaction of its own, which must answer want.
func (k *kit) cancel(where string, want core.CancelStatus, key core.CancelKey) {
	tx := k.begin()
	got := k.cancelIn(tx, key)
	k.commit(tx)
	if got[0] != want {
		k.fail("%s: cancel answered %q, want %q", where, got[0], want)
	}
}

// canCancel ends the check if the harness cannot cancel.
func (k *kit) canCancel() {
	tx := k.begin()
	k.cancelIn(tx)
	k.rollback(tx)
}

func (k *kit) byID(id string) core.CancelKey { return core.CancelKey{Route: k.route, ID: id} }

func (k *kit) byKey(key string) core.CancelKey {
	return core.CancelKey{Route: k.route, Topic: k.topic, DedupeKey: key}
}

// A second message with the dedupe key of a live one on its route and topic is a no-op that names the live one: within
// a call, a transaction, across them, and while it is leased or waits for a retry. ST-08.
func dedupeKeyMakesDuplicate(k *kit) {
	k.canCancel()
	other := newKit(k.ctx, k.h)
	first, elsewhere, topic := k.msg(core.DedupeKey("k")), other.msg(core.DedupeKey("k")), k.msg(core.DedupeKey("k"))
	topic.Topic = "storetest.other"
	dup := func(route string) core.Staged { return core.Staged{ID: first.ID, Route: route, Duplicate: true} }
	tx := k.begin()
	staged := k.mustStage(tx, first, k.msg(core.DedupeKey("k")), elsewhere, topic, k.msg(core.DedupeKey("l")))
	k.expect("the first", staged[0], core.Staged{ID: first.ID, Route: k.route})
	k.expect("within one call", staged[1], dup(k.route))
	k.expect("on another route", staged[2], core.Staged{ID: elsewhere.ID, Route: other.route})
	k.expect("on another topic", staged[3], core.Staged{ID: topic.ID, Route: k.route})
	if staged[4].Duplicate {
		k.fail("another key is reported as a duplicate")
	}
	k.expect("within one transaction", k.mustStage(tx, k.msg(core.DedupeKey("k")))[0], dup(k.route))
	k.commit(tx)
	k.expect("in a later transaction", k.stageNow(k.msg(core.DedupeKey("k")))[0], dup(k.route))
	own := first
	own.DedupeKey = "m"
	k.expect("the same id with another key", k.stageNow(own)[0], dup(k.route))
	if s := k.stageNow(k.msg(), k.msg()); s[0].Duplicate || s[1].Duplicate {
		k.fail("messages without a dedupe key are duplicates")
	}
	rs := k.take(5)
	if rs[0].Envelope.ID != first.ID || rs[1].Envelope.ID != topic.ID || rs[2].Envelope.ID != staged[4].ID {
		k.fail("claimed other messages than those that were staged first")
	}
	k.expect("while it is leased", k.stageNow(k.msg(core.DedupeKey("k")))[0], dup(k.route))
	k.settle(core.Retry(&rs[0], errors.New("no"), far))
	k.expect("while it waits for a retry", k.stageNow(k.msg(core.DedupeKey("k")))[0], dup(k.route))
	k.none("all are leased, or duplicates")
}

// Keyed messages among others, many in one call: the order of the input is kept. ST-08, ST-02.
func dedupeKeyBesideOthers(k *kit) {
	k.canCancel()
	msgs := k.msgs(300)
	for i := range msgs {
		if i%3 == 1 {
			msgs[i].DedupeKey = fmt.Sprint(i / 2) // i and i+... differ: no duplicates
		}
	}
	twice := k.msg(core.DedupeKey(msgs[1].DedupeKey))
	staged := k.stageNow(append(slices.Clone(msgs), twice)...)
	var want []string
	for i := range msgs {
		k.expect(fmt.Sprint("message ", i), staged[i], core.Staged{ID: msgs[i].ID, Route: k.route})
		want = append(want, msgs[i].ID)
	}
	k.expect("a duplicate", staged[300], core.Staged{ID: msgs[1].ID, Route: k.route, Duplicate: true})
	k.takeIDs(want)
	k.none("the last was a duplicate")
}

// A dedupe key is free again when its message is published, abandoned or cancelled, or was rolled back. ST-08.
func dedupeKeyIsFreeWhenSettled(k *kit) {
	k.canCancel()
	fresh := func(where string) core.Record {
		m := k.msg(core.DedupeKey("k"))
		k.expect(where, k.stageNow(m)[0], core.Staged{ID: m.ID, Route: k.route})
		return k.takeIDs([]string{m.ID})[0]
	}
	tx := k.begin()
	k.mustStage(tx, k.msg(core.DedupeKey("k")))
	k.rollback(tx)
	r := fresh("after a rollback")
	k.published(r)
	r = fresh("after publishing")
	k.settle(core.Abandon(&r, core.ReasonRejected, errors.New("no")))
	r = fresh("after abandoning")
	k.settle(core.Release(&r, 0))
	k.cancel("the released one", core.CancelDone, k.byKey("k"))
	r = fresh("after cancelling")
	k.published(r)
}

// Two transactions that stage one dedupe key at once: exactly one message. ST-08.
func dedupeKeyOfRunningTransactionWaits(k *kit) {
	k.canCancel()
	for _, commit := range []bool{true, false} {
		a, b := k.msg(core.DedupeKey("k")), k.msg(core.DedupeKey("k"))
		first := k.begin()
		k.mustStage(first, a)
		second := make(chan error, 1)
		var got core.Staged
		go func() {
			second <- k.eager(func(k *kit, tx Tx) error { s, err := tx.Stage(k.ctx, b); got = one(s); return err })
		}()
		k.sleep(20 * pause)
		want, id := core.Staged{ID: b.ID, Route: k.route}, b.ID
		if commit {
			k.commit(first)
			want, id = core.Staged{ID: a.ID, Route: k.route, Duplicate: true}, a.ID
		} else {
			k.rollback(first)
		}
		k.must("second transaction", <-second)
		k.expect(fmt.Sprintf("the first transaction committed: %v", commit), got, want)
		k.drainIDs([]string{id})
		k.none("there was one message")
	}
}

func one(s []core.Staged) core.Staged {
	if len(s) != 1 {
		return core.Staged{}
	}
	return s[0]
}

// eager runs fn in a transaction, and again while that fails: a store that cannot wait is busy.
func (k *kit) eager(fn func(k *kit, tx Tx) error) error {
	mine := newKit(k.ctx, k.h)
	mine.route, mine.topic = k.route, k.topic
	return guard(mine, func(k *kit) {
		for deadline := time.Now().Add(patience); ; k.sleep(pause) {
			tx, err := k.h.Begin(k.ctx)
			if err == nil {
				if err = fn(k, tx); err == nil {
					err = tx.Commit(k.ctx)
				}
				_ = tx.Rollback(k.ctx)
			}
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				k.fail("a transaction beside others fails: %w", err)
			}
		}
	})
}

// The newest message with a dedupe key takes the place of the live one, whether that is due, scheduled, or waits for a
// retry, and says what became of it. ST-10.
func replaceTakesThePlace(k *kit) {
	k.canCancel()
	replace := func(where string, want core.CancelStatus, opts ...core.MessageOption) string {
		m := k.msg(append(opts, core.Replace("k"))...)
		k.expect(where, k.stageNow(m)[0], core.Staged{ID: m.ID, Route: k.route, Replaced: want})
		return m.ID
	}
	replace("nothing to replace", core.CancelNotFound)
	replace("a pending one", core.CancelDone, core.Delay(far))
	id := replace("a scheduled one", core.CancelDone)
	rs := k.takeIDs([]string{id})
	k.settle(core.Retry(&rs[0], errors.New("no"), far))
	id = replace("one that waits for a retry", core.CancelDone)
	rs = k.takeIDs([]string{id})
	k.settle(core.ReleaseUnknown(&rs[0], 0))
	id = replace("one that may have arrived", core.CancelMaybe)
	own := k.msg(core.ID(id), core.Replace("k"))
	k.expect("its own id again", k.stageNow(own)[0], core.Staged{ID: id, Route: k.route, Duplicate: true})
	k.expect("a duplicate of it", k.stageNow(k.msg(core.DedupeKey("k")))[0], core.Staged{ID: id, Route: k.route, Duplicate: true})
	rs = k.takeIDs([]string{id})
	k.published(rs...)
	k.none("the others were replaced")
	replace("a published one", core.CancelNotFound)
}

// Within one transaction and one call, too, the newest wins. ST-10.
func replaceWithinATransaction(k *kit) {
	k.canCancel()
	a, b, c, d, e := k.msg(core.DedupeKey("k")), k.msg(core.Replace("k")), k.msg(core.Replace("k")), k.msg(core.DedupeKey("k")), k.msg(core.Replace("k"))
	between := k.msg()
	tx := k.begin()
	k.mustStage(tx, a)
	staged := k.mustStage(tx, b, between, c, d)
	k.expect("of an earlier call", staged[0], core.Staged{ID: b.ID, Route: k.route, Replaced: core.CancelDone})
	k.expect("of the same call", staged[2], core.Staged{ID: c.ID, Route: k.route, Replaced: core.CancelDone})
	k.expect("a duplicate after it", staged[3], core.Staged{ID: c.ID, Route: k.route, Duplicate: true})
	k.expect("of the call before", k.mustStage(tx, e)[0], core.Staged{ID: e.ID, Route: k.route, Replaced: core.CancelDone})
	k.commit(tx)
	k.takeIDs([]string{between.ID, e.ID})
	k.none("the others were replaced")
}

// A message that a relay holds cannot be replaced: both are sent, the answer says so, and the key is the newer one's.
// ST-10.
func replaceOfLeasedLetsBothLive(k *kit) {
	k.canCancel()
	a, b := k.msg(core.DedupeKey("k")), k.msg(core.Replace("k"))
	k.stageNow(a)
	rs := k.takeIDs([]string{a.ID})
	k.expect("a leased one", k.stageNow(b)[0], core.Staged{ID: b.ID, Route: k.route, Replaced: core.CancelInFlight})
	k.expect("a duplicate of the newer", k.stageNow(k.msg(core.DedupeKey("k")))[0], core.Staged{ID: b.ID, Route: k.route, Duplicate: true})
	k.settle(core.Release(&rs[0], 0))
	k.drainIDs([]string{a.ID, b.ID})
	k.none("both were sent")
}

// A replacement that is rolled back leaves the old message as it was. ST-10.
func replaceRolledBackLeavesTheOld(k *kit) {
	k.canCancel()
	a := k.msg(core.DedupeKey("k"))
	k.stageNow(a)
	tx := k.begin()
	k.mustStage(tx, k.msg(core.Replace("k")))
	k.hidden()
	k.rollback(tx)
	k.expect("after the rollback", k.stageNow(k.msg(core.DedupeKey("k")))[0], core.Staged{ID: a.ID, Route: k.route, Duplicate: true})
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
	k.parallel(workers, func(_ int, mine *kit) {
		mine.topic = k.topic
		for range rounds {
			m := mine.msg(core.Replace("k"), core.Key("o"))
			var got core.Staged
			mine.must("replace", mine.eager(func(k *kit, tx Tx) error {
				s, err := tx.Stage(k.ctx, m, k.msg(core.DedupeKey("d-"+m.ID)))
				if err == nil {
					got = s[0]
				}
				return err
			}))
			if got.Duplicate || got.ID != m.ID {
				mine.fail("a replacement was answered with %+v", got)
			}
			mu.Lock()
			staged[m.ID] = true
			if got.Replaced == core.CancelDone {
				replaced++
			}
			mu.Unlock()
		}
	})
	if replaced != workers*rounds-1 {
		k.fail("%d of %d replacements found something to replace, want all but the first", replaced, workers*rounds)
	}
	left := 0
	for _, r := range k.take(workers*rounds + 1) {
		if staged[r.Envelope.ID] {
			left++
		}
	}
	if left != 1 {
		k.fail("%d messages with one dedupe key are live, want 1", left)
	}
	k.none("the others were replaced")
}

// Messages are withdrawn by id or by dedupe key, whatever they wait for, and never claimed again. ST-09.
func cancelWithdraws(k *kit) {
	k.canCancel()
	other := newKit(k.ctx, k.h)
	ids := stagedIDs(k.stageNow(k.msg(), k.msg(core.DedupeKey("k")), k.msg(core.Delay(far)), k.msg(), k.msg(core.DedupeKey("l"), core.Delay(short))))
	elsewhere := other.msg(core.ID(ids[0]), core.DedupeKey("k"))
	other.stageNow(elsewhere)
	tx := k.begin()
	got := k.cancelIn(tx, k.byKey("k"), k.byID("never staged"), k.byID(ids[2]), k.byID(ids[0]), k.byKey("never staged"),
		core.CancelKey{Route: k.route, Topic: "storetest.other", DedupeKey: "l"}, k.byID(ids[0]), k.byKey("l"))
	want := []core.CancelStatus{
		core.CancelDone, core.CancelNotFound, core.CancelDone, core.CancelDone, core.CancelNotFound, core.CancelNotFound, core.CancelDone, core.CancelDone,
	}
	if !slices.Equal(got, want) {
		k.fail("cancel answered %q, want %q", got, want)
	}
	k.commit(tx)
	k.cancel("a second time, by id", core.CancelNotFound, k.byID(ids[0]))
	k.cancel("a second time, by dedupe key", core.CancelNotFound, k.byKey("k"))
	k.expire(short)
	rs := k.takeIDs(ids[3:4])
	k.none("the others were cancelled")
	k.published(rs...)
	k.cancel("a published one", core.CancelNotFound, k.byID(ids[3]))
	other.takeIDs([]string{elsewhere.ID})
	id := k.stage(k.msg())[0]
	rs = k.takeIDs([]string{id})
	k.settle(core.Abandon(&rs[0], core.ReasonRejected, errors.New("no")))
	k.cancel("an abandoned one", core.CancelNotFound, k.byID(id))
}

// A message that a relay holds, or held when it died, is in flight, and nothing waits for the relay. ST-09.
func cancelOfLeasedIsInFlight(k *kit) {
	k.canCancel()
	m := k.msg(core.DedupeKey("k"))
	k.stageNow(m)
	rs := k.takeIDs([]string{m.ID}, lease(short))
	k.cancel("a leased one, by id", core.CancelInFlight, k.byID(m.ID))
	k.cancel("a leased one, by dedupe key", core.CancelInFlight, k.byKey("k"))
	k.expire(short)
	k.cancel("one whose lease expired", core.CancelInFlight, k.byID(m.ID))
	rs = k.takeIDs([]string{m.ID})
	k.cancel("one that was taken over", core.CancelInFlight, k.byID(m.ID))
	k.published(rs...)
	k.cancel("a published one", core.CancelNotFound, k.byID(m.ID))
}

// A cancelled message that may have arrived says so: the result of a try is unknown, or a relay died with it. What is
// known not to have arrived does not. ST-09.
func cancelSaysMaybe(k *kit) {
	k.canCancel()
	for _, tc := range []struct {
		name   string
		settle []func(r *core.Record) core.Outcome
		want   core.CancelStatus
	}{
		{"released", []func(r *core.Record) core.Outcome{func(r *core.Record) core.Outcome { return core.Release(r, 0) }}, core.CancelDone},
		{"rejected", []func(r *core.Record) core.Outcome{func(r *core.Record) core.Outcome { return core.Retry(r, errors.New("no"), 0) }}, core.CancelDone},
		{"unknown", []func(r *core.Record) core.Outcome{func(r *core.Record) core.Outcome { return core.ReleaseUnknown(r, far) }}, core.CancelMaybe},
		{"unknown, then rejected", []func(r *core.Record) core.Outcome{
			func(r *core.Record) core.Outcome { return core.ReleaseUnknown(r, 0) },
			func(r *core.Record) core.Outcome { return core.Retry(r, errors.New("no"), far) },
		}, core.CancelMaybe},
	} {
		id := k.stage(k.msg())[0]
		for _, fn := range tc.settle {
			rs := k.takeIDs([]string{id})
			k.settle(fn(&rs[0]))
		}
		k.cancel(tc.name, tc.want, k.byID(id))
	}
	id := k.stage(k.msg())[0]
	k.takeIDs([]string{id}, lease(short))
	k.expire(short)
	rs := k.takeIDs([]string{id})
	k.settle(core.Release(&rs[0], 0))
	k.cancel("one that a dead relay held", core.CancelMaybe, k.byID(id))
	k.none("all were cancelled")
}

// A message is withdrawn by the commit: a transaction that rolls back leaves it as it was, at its place. ST-09.
func cancelRolledBackLeavesMessage(k *kit) {
	k.canCancel()
	ids := k.stage(k.msg(core.Key("a")), k.msg(core.DedupeKey("k")), k.msg(core.Delay(short)))
	behind := ""
	if k.traits.KeyOrder {
		behind = k.stage(k.msg(core.Key("a")))[0]
		ids = append(ids, behind)
	}
	tx := k.begin()
	if got := k.cancelIn(tx, k.byID(ids[0]), k.byKey("k"), k.byID(ids[2])); slices.ContainsFunc(got, func(s core.CancelStatus) bool { return s != core.CancelDone }) {
		k.fail("cancel answered %q", got)
	}
	k.hidden()
	k.rollback(tx)
	k.expire(short)
	got := recordIDs(k.drain(len(ids)))
	if behind != "" && slices.Index(got, ids[0]) > slices.Index(got, behind) {
		k.fail("a message was claimed before the head of its key, whose cancelling had been rolled back")
	}
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		k.fail("claimed other messages than those whose cancelling was rolled back")
	}
	k.none("all were sent")
}

// What a transaction has staged it can cancel, and what it has cancelled it can stage anew. ST-09.
func cancelWithinATransaction(k *kit) {
	k.canCancel()
	m, old := k.msg(core.DedupeKey("k")), k.msg(core.DedupeKey("l"))
	k.stageNow(old)
	tx := k.begin()
	k.mustStage(tx, m)
	if got := k.cancelIn(tx, k.byKey("k"), k.byKey("l")); got[0] != core.CancelDone || got[1] != core.CancelDone {
		k.fail("cancel answered %q", got)
	}
	if got := k.cancelIn(tx, k.byKey("k"), k.byKey("l")); got[0] != core.CancelNotFound || got[1] != core.CancelNotFound {
		k.fail("cancel answered %q the second time", got)
	}
	again, anew := k.msg(core.DedupeKey("k")), k.msg(core.DedupeKey("l"))
	for i, s := range k.mustStage(tx, again, anew) {
		if s.Duplicate || s.Replaced != core.CancelNotFound {
			k.fail("message %d, staged after its twin was cancelled, is answered with %+v", i, s)
		}
	}
	k.commit(tx)
	k.drainIDs([]string{again.ID, anew.ID})
	k.none("the others were cancelled")
}

// Cancelling the head of a key lets the rest of it go on, also if the head waits for a retry. ST-09, OR-02.
func cancelOfHeadFreesKey(k *kit) {
	k.canCancel()
	if !k.traits.KeyOrder {
		k.undeclared("key order")
	}
	for _, in := range []time.Duration{0, far} {
		ids := k.stage(k.msgs(3, core.Key("a"))...)
		rs := k.take(1)
		k.settle(core.Retry(&rs[0], errors.New("no"), in))
		if in > 0 {
			k.none("the head of the key waits for a retry")
		}
		k.cancel("the head", core.CancelDone, k.byID(ids[0]))
		k.drainIDs(ids[1:])
	}
	k.none("all were sent or cancelled")
}

// Keys that name no message in a way that can be meant are refused, and the transaction goes on. ST-09, ST-15.
func cancelRefusesBadKeys(k *kit) {
	k.canCancel()
	long := strings.Repeat("x", core.MaxNameBytes+1)
	id := k.stage(k.msg())[0]
	tx := k.begin()
	for name, key := range map[string]core.CancelKey{
		"neither":     {Route: k.route, Topic: k.topic},
		"both":        {Route: k.route, ID: id, Topic: k.topic, DedupeKey: "k"},
		"no topic":    {Route: k.route, DedupeKey: "k"},
		"long key":    {Route: k.route, Topic: k.topic, DedupeKey: long},
		"long id":     {Route: k.route, ID: long},
		"not UTF-8":   {Route: k.route, Topic: k.topic, DedupeKey: "a\xff"},
		"NUL in it":   {Route: k.route, ID: "a\x00"},
		"a long lane": {Route: long, ID: id},
	} {
		_, err := tx.(Canceller).Cancel(k.ctx, k.byID(id), key) //nolint:forcetypeassert // canCancel has looked
		if !errors.Is(err, core.ErrInvalid) {
			k.fail("cancel, %s: got %v, want a match with core.ErrInvalid", name, err)
		}
	}
	for name, m := range map[string]core.Message{
		"replace without key": k.msg(core.Replace("")),
		"long dedupe key":     k.msg(core.DedupeKey(long)),
		"not UTF-8":           k.msg(core.DedupeKey("a\xff")),
	} {
		if _, err := tx.Stage(k.ctx, m); !errors.Is(err, core.ErrInvalid) {
			k.fail("stage, %s: got %v, want a match with core.ErrInvalid", name, err)
		}
	}
	k.commit(tx)
	k.drainIDs([]string{id})
	k.none("it was sent")
}

// A claim and a cancel that meet: exactly one wins. ST-09.
func cancelRacesWithClaim(k *kit) {
	k.canCancel()
	const n = 48
	var msgs []core.Message
	for i := range n {
		msgs = append(msgs, k.msg(core.DedupeKey(fmt.Sprint(i)), core.Key([]string{"", "a", "b"}[i%3])))
	}
	k.stageNow(msgs...)
	var mu sync.Mutex
	claimed, cancelled := map[string]int{}, map[string]int{}
	k.parallel(4, func(w int, mine *kit) {
		mine.topic = k.topic
		if w < 2 {
			for deadline := time.Now().Add(patience); ; mine.sleep(pause / 5) {
				rs := mine.try(5)
				mine.published(rs...)
				mu.Lock()
				for _, r := range rs {
					claimed[r.Envelope.ID]++
				}
				all := len(claimed) + len(cancelled)
				mu.Unlock()
				if all >= n {
					return
				}
				if time.Now().After(deadline) {
					mine.fail("%d of %d messages were claimed or cancelled: the others are lost, or held for no reason", all, n)
				}
			}
		}
		for i := n - 1 - (w - 2); i >= 0; i -= 4 { // from the end, two at a time
			keys := []core.CancelKey{mine.byID(msgs[i].ID), mine.byKey(fmt.Sprint(max(i-2, 0)))}
			var got []core.CancelStatus
			mine.must("cancel", mine.eager(func(k *kit, tx Tx) (err error) {
				got, err = tx.(Canceller).Cancel(k.ctx, keys...) //nolint:forcetypeassert // canCancel has looked
				return err
			}))
			mu.Lock()
			for j, s := range got {
				if s == core.CancelDone {
					cancelled[msgs[[2]int{i, max(i-2, 0)}[j]].ID]++
				}
			}
			mu.Unlock()
		}
	})
	for i := range msgs {
		if c, w := claimed[msgs[i].ID], cancelled[msgs[i].ID]; c+w != 1 {
			k.fail("message %d was claimed %d times and cancelled %d times", i, c, w)
		}
	}
	k.none("all were published or cancelled")
}

// A lane is claimed by its own name, apart from its route, and its messages are cancelled by it. ST-19.
func laneIsClaimedApart(k *kit) {
	high, low, normal := k.msg(core.InLane(core.LaneHigh)), k.msg(core.InLane(core.LaneLow)), k.msg()
	staged := k.stageNow(high, low, normal)
	for i, l := range []core.Lane{core.LaneHigh, core.LaneLow, core.LaneNormal} {
		if staged[i].Route != core.LaneRoute(k.route, l) {
			k.fail("a message in lane %q was staged on route %q", l, staged[i].Route)
		}
	}
	k.takeIDs([]string{normal.ID})
	k.none("the others are in other lanes")
	lane := func(l core.Lane) mod {
		return func(r *core.ClaimRequest) { r.Routes = []core.RouteOrder{{Route: core.LaneRoute(k.route, l)}} }
	}
	k.published(k.takeIDs([]string{high.ID}, lane(core.LaneHigh))...)
	tx := k.begin()
	if _, ok := tx.(Canceller); ok {
		if got := k.cancelIn(tx, k.byID(low.ID), core.CancelKey{Route: core.LaneRoute(k.route, core.LaneLow), ID: low.ID}); got[0] != core.CancelNotFound || got[1] != core.CancelDone {
			k.fail("cancel of a message in a lane, by its route and by its lane: %q", got)
		}
		k.commit(tx)
		k.none("it was cancelled", lane(core.LaneLow))
		return
	}
	k.rollback(tx)
	k.takeIDs([]string{low.ID}, lane(core.LaneLow))
}

// A message keeps its expiry; one that is given up for it is abandoned with reason expired, at no attempt. ST-11.
func expiredIsAbandoned(k *kit) {
	before := time.Now()
	id := k.stage(k.msg(core.TTL(far)))[0]
	r := k.takeIDs([]string{id})[0]
	if d := r.Envelope.Expires.Sub(before); d < far-time.Second || d > far+patience {
		k.fail("a message with a time to live of %s expires in %s", far, d)
	}
	k.settle(core.Abandon(&r, core.ReasonExpired, errors.New("its time was over")))
	k.none("it was abandoned")
	if rec, ok := k.stored(id); ok && rec != nil {
		k.state("after it expired", id, StoredRecord{State: core.StateAbandoned, Reason: core.ReasonExpired, LastError: "its time was over"})
	}
}
