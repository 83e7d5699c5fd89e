package storetest

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var cancelChecks = []named{
	{"cancel-ends", cancelEnds},
	{"cancel-of-due-is-in-flight", cancelOfDueIsInFlight},
	{"cancel-of-held-is-in-flight", cancelOfHeldIsInFlight},
	{"cancel-says-maybe", cancelSaysMaybe},
	{"cancel-after-a-leave", cancelAfterALeave},
	{"cancel-after-a-crash", cancelAfterACrash},
	{"cancel-after-an-end-and-a-redrive", cancelAfterAnEnd},
	{"cancel-rolled-back-leaves-message", cancelRolledBackLeavesMessage},
	{"cancel-within-a-transaction", cancelWithinATransaction},
	{"cancel-of-head-frees-key", cancelOfHeadFreesKey},
	{"cancel-refuses-bad-keys", cancelRefusesBadKeys},
	{"cancel-races-with-hand-out", cancelRacesWithHandOut},
	{"lane-is-handed-out-apart", laneIsHandedOutApart},
	{"expired-is-abandoned", expiredIsAbandoned},
}

// Messages are cancelled by id or by dedupe key: scheduled ones, those that wait for a retry, and due ones if they have
// a dedupe key. They are never handed out again. ST-09.
func cancelEnds(k *kit) {
	k.canCancel()
	other := k.other(k.h)
	ids := stagedIDs(k.stageNow(k.msg(waybill.DedupeKey("i")), k.msg(waybill.DedupeKey("k")), k.msg(waybill.Delay(far)),
		k.msg(), k.msg(waybill.DedupeKey("l"), waybill.Delay(short))))
	elsewhere := other.msg(waybill.ID(ids[0]), waybill.DedupeKey("k"))
	other.stageNow(elsewhere)
	tx := k.begin()
	got := k.cancelIn(tx, k.byKey("k"), k.byID("never staged"), k.byID(ids[2]), k.byID(ids[0]), k.byKey("never staged"),
		waybill.CancelKey{Route: k.route, Topic: "storetest.other", DedupeKey: "l"}, k.byID(ids[0]), k.byKey("l"))
	want := []waybill.CancelStatus{
		waybill.CancelDone, waybill.CancelNotFound, waybill.CancelDone, waybill.CancelDone, waybill.CancelNotFound, waybill.CancelNotFound, waybill.CancelDone, waybill.CancelDone,
	}
	if got[6] == waybill.CancelNotFound { // named for the second time: a store can work key by key
		want[6] = got[6]
	}
	k.failIf(!slices.Equal(got, want), "cancel answered %v, want %v", got, want)
	k.commit(tx)
	k.cancel("a second time, by id", waybill.CancelNotFound, k.byID(ids[0]))
	k.cancel("a second time, by dedupe key", waybill.CancelNotFound, k.byKey("k"))
	k.expire(short)
	rs := k.takeIDs(ids[3:4])
	k.none("the others were cancelled")
	k.retry(rs[0], far)
	k.cancel("one that waits for a retry", waybill.CancelDone, k.byID(ids[3]))
	k.cancel("one that waited for a retry, a second time", waybill.CancelNotFound, k.byID(ids[3]))
	other.takeIDs([]string{elsewhere.ID})
	id := k.stage(k.msg(waybill.DedupeKey("p")))[0]
	k.drainIDs([]string{id})
	k.cancel("a published one", waybill.CancelNotFound, k.byID(id))
	id = k.stage(k.msg(waybill.DedupeKey("a")))[0]
	k.abandon(waybill.ReasonRejected, id)
	k.cancel("an abandoned one", waybill.CancelNotFound, k.byID(id))
}

// A due message that is not cancellable is in flight, because its relay can have it out without a hold. It stays.
// ST-09.
func cancelOfDueIsInFlight(k *kit) {
	k.canCancel()
	ids := k.stage(k.msg(), k.msg(waybill.Key("a")))
	k.cancel("a due one", waybill.CancelInFlight, k.byID(ids[0]))
	k.cancel("a due one with a key", waybill.CancelInFlight, k.byID(ids[1]))
	k.drainIDs(ids)
}

// A message that a member holds is in flight, and nothing waits for the member. ST-09.
func cancelOfHeldIsInFlight(k *kit) {
	k.canCancel()
	m := k.msg(waybill.DedupeKey("k"))
	k.stageNow(m)
	rs := k.takeIDs([]string{m.ID})
	k.cancel("a held one, by id", waybill.CancelInFlight, k.byID(m.ID))
	k.cancel("a held one, by dedupe key", waybill.CancelInFlight, k.byKey("k"))
	k.retry(rs[0], 0)
	rs = k.takeIDs([]string{m.ID})
	k.cancel("a retry that is held", waybill.CancelInFlight, k.byID(m.ID))
	k.published(rs...)
	k.cancel("a published one", waybill.CancelNotFound, k.byID(m.ID))
}

// A cancelled message that can have arrived is answered as such: the result of a try is unknown, or its member died and
// no other has handed it out since. A message that has certainly not arrived is not. ST-09.
func cancelSaysMaybe(k *kit) {
	k.canCancel()
	no := func(in time.Duration) func(r *core.Record) core.Outcome {
		return func(r *core.Record) core.Outcome { return core.Retry(r, errNo, in) }
	}
	put := func(unknown bool) func(r *core.Record) core.Outcome {
		return func(r *core.Record) core.Outcome { return core.Release(r, 0, unknown) }
	}
	type outs = []func(r *core.Record) core.Outcome
	for i, tc := range []struct {
		name   string
		settle outs
		want   waybill.CancelStatus
	}{
		{"released", outs{put(false)}, waybill.CancelDone},
		{"rejected", outs{no(far)}, waybill.CancelDone},
		{"unknown", outs{put(true)}, waybill.CancelUncertain},
		{"unknown, then rejected", outs{put(true), no(far)}, waybill.CancelUncertain},
		{"rejected, with an earlier try unknown", outs{func(r *core.Record) core.Outcome { return core.Retry(r, errNo, far).WithUnknown() }}, waybill.CancelUncertain},
	} {
		id := k.stage(k.msg(waybill.DedupeKey(strconv.Itoa(i))))[0]
		for _, fn := range tc.settle {
			k.settle(fn(&k.takeIDs([]string{id})[0]))
		}
		k.cancel(tc.name, tc.want, k.byID(id))
	}
	ids := k.stage(k.msg(waybill.DedupeKey("a")), k.msg(waybill.DedupeKey("b")), k.msg(waybill.DedupeKey("c")),
		k.msg(waybill.DedupeKey("d")))
	k.crash(ids[:2]...)
	k.cancel("one that a dead member held", waybill.CancelUncertain, k.byID(ids[0]))
	k.cancel("one that a dead member can have had out", waybill.CancelUncertain, k.byID(ids[2]))
	k.driver.passed(k)
	k.cancel("one that a dead member did not have out", waybill.CancelDone, k.byID(ids[3]))
	k.drainIDs(ids[1:2])
	k.none("the others were cancelled")
}

// A due message whose holder has left is handed out without a hold, as it was before. It is in flight, also when it was
// a retry that was put back. One that is held first is cancelled, and can have been delivered. ST-09.
func cancelAfterALeave(k *kit) {
	k.canCancel()
	ids := k.stage(k.msg(), k.msg(waybill.DedupeKey("d")))
	k.takeIDs(ids)
	k.unowned()
	k.cancel("a due one whose holder has left", waybill.CancelInFlight, k.byID(ids[0]))
	k.cancel("a cancellable one whose holder has left", waybill.CancelUncertain, k.byID(ids[1]))
	k.drainIDs(ids[:1])
	if _, ok := core.As[admin.Redriver](k.store); !ok {
		return
	}
	id := k.stage(k.msg())
	k.retry(k.takeIDs(id)[0], 0)
	k.takeIDs(id)
	k.unowned()
	k.redriven("a retry whose holder has left", admin.RedriveRequest{}, 1, nil)
	k.cancel("a retry whose holder has left, after a redrive", waybill.CancelInFlight, k.byID(id[0]))
	k.drainIDs(id)
}

// A due message that a dead member held is held before it is handed out, for as long as its crash counts. So it is
// cancelled, and can have been delivered, although no member looks for the dead member's records any more. ST-09.
func cancelAfterACrash(k *kit) {
	k.canCancel()
	ids := k.stage(k.msgs(2)...)
	k.crash(ids[0])
	k.driver.passed(k)
	k.cancel("one that a dead member held", waybill.CancelUncertain, k.byID(ids[0]))
	k.cancel("one that a dead member did not hold", waybill.CancelInFlight, k.byID(ids[1]))
	k.drainIDs(ids[1:])
	k.none("the other was cancelled")
}

// An operator or the cleaning ends a due message that a dead member can have had out. Redriven and then cancelled, it
// can still have been delivered. ST-09.
func cancelAfterAnEnd(k *kit) {
	k.canCancel()
	k.redriver()
	ttl := 2 * short
	ids := k.stage(k.msg(), k.msg(waybill.DedupeKey("decided"), waybill.Key("k")), k.msg(waybill.DedupeKey("cleaned"), waybill.TTL(ttl)))
	k.crash(ids[0])
	k.unowned() // before its member has looked at what the dead one can have had out
	ended := map[string]string{}
	if _, ok := core.As[admin.BlockedKeys](k.store); ok {
		k.decided("k", ids[1], admin.HeadSetAside)
		ended[ids[1]] = "one that was set aside and redriven"
	}
	if _, ok := core.As[core.Cleaner](k.store); ok {
		k.expire(ttl)
		k.clean()
		ended[ids[2]] = "one that had expired and was redriven"
	}
	k.redriven("what was ended", admin.RedriveRequest{Force: true}, len(ended), nil)
	k.driver.own(k)
	k.driver.passed(k)
	for id, what := range ended {
		k.cancel(what, waybill.CancelUncertain, k.byID(id))
	}
}

// A message is cancelled by the commit: a transaction that rolls back leaves it as it was, at its place. ST-09.
func cancelRolledBackLeavesMessage(k *kit) {
	k.canCancel()
	ids := k.stage(k.msg(waybill.Key("a"), waybill.DedupeKey("a")), k.msg(waybill.DedupeKey("k")), k.msg(waybill.Delay(lax())),
		k.msg(waybill.Key("a")))
	tx := k.begin()
	if got := k.cancelIn(tx, k.byID(ids[0]), k.byKey("k"), k.byID(ids[2])); slices.ContainsFunc(got,
		func(s waybill.CancelStatus) bool { return s != waybill.CancelDone }) {
		k.fail("cancel answered %v", got)
	}
	k.withheld("all are being cancelled, or wait for one that is")
	k.rollback(tx)
	k.expire(lax())
	got := recordIDs(k.drain(len(ids)))
	k.failIf(slices.Index(got, ids[0]) > slices.Index(got, ids[3]),
		"a message was handed out before the head of its key, whose cancelling had been rolled back")
	slices.Sort(got)
	slices.Sort(ids)
	k.failIf(!slices.Equal(got, ids), "handed out other messages than those whose cancelling was rolled back")
	k.none("all were sent")
}

// A transaction can cancel messages that it has staged, and stage again messages that it has cancelled. ST-09.
func cancelWithinATransaction(k *kit) {
	k.canCancel()
	m, old := k.msg(waybill.DedupeKey("k")), k.msg(waybill.DedupeKey("l"))
	k.stageNow(old)
	tx := k.begin()
	k.mustStage(tx, m)
	got := k.cancelIn(tx, k.byKey("k"), k.byKey("l"))
	k.failIf(got[0] != waybill.CancelDone || got[1] != waybill.CancelDone, "cancel answered %v", got)
	got = k.cancelIn(tx, k.byKey("k"), k.byKey("l"))
	k.failIf(got[0] != waybill.CancelNotFound || got[1] != waybill.CancelNotFound,
		"cancel answered %v the second time", got)
	again, anew := k.msg(waybill.DedupeKey("k")), k.msg(waybill.DedupeKey("l"))
	for i, s := range k.mustStage(tx, again, anew) {
		k.failIf(s.Duplicate || s.Replaced != waybill.CancelNotFound, "message %d, staged after its twin was cancelled, is answered with %+v", i, s)
	}
	k.commit(tx)
	k.drainIDs([]string{again.ID, anew.ID})
	k.none("the others were cancelled")
}

// Cancelling the head of a key lets the rest of it go on, whether the head is due or waits for a retry. ST-09, OR-02.
func cancelOfHeadFreesKey(k *kit) {
	k.canCancel()
	for _, in := range []time.Duration{0, far} {
		ids := k.stage(k.msg(waybill.Key("a"), waybill.DedupeKey("a")), k.msg(waybill.Key("a")), k.msg(waybill.Key("a")))
		k.retry(k.take(1)[0], in)
		if in > 0 {
			k.none("the head of the key waits for a retry")
		}
		k.cancel("the head", waybill.CancelDone, k.byID(ids[0]))
		k.drainIDs(ids[1:])
	}
	k.none("all were sent or cancelled")
}

// Keys that name no message in a way that can be meant are refused, and the transaction goes on. ST-09, ST-15.
func cancelRefusesBadKeys(k *kit) {
	k.canCancel()
	long := strings.Repeat("x", waybill.MaxNameBytes+1)
	id := k.stage(k.msg())[0]
	tx := k.begin()
	for name, key := range map[string]waybill.CancelKey{
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
		k.answers("cancel, "+name, waybill.ErrInvalid, err)
	}
	for name, m := range map[string]waybill.Message{
		"replace without key": k.msg(waybill.Replace("")),
		"long dedupe key":     k.msg(waybill.DedupeKey(long)),
		"not UTF-8":           k.msg(waybill.DedupeKey("a\xff")),
	} {
		_, err := tx.Stage(k.ctx, m)
		k.answers("stage, "+name, waybill.ErrInvalid, err)
	}
	k.commit(tx)
	k.drainIDs([]string{id})
	k.none("it was sent")
}

// A hand-out and a cancel that meet: exactly one wins. ST-09.
func cancelRacesWithHandOut(k *kit) {
	k.canCancel()
	const n = 48
	var msgs []waybill.Message
	for i := range n {
		msgs = append(msgs, k.msg(waybill.DedupeKey(strconv.Itoa(i)), waybill.Key([]string{"", "a", "b"}[i%3])))
	}
	k.stageNow(msgs...)
	var mu sync.Mutex
	sent, cancelled := map[string]int{}, map[string]int{}
	rs := k.try(5) // some are out before the first cancel
	suitetest.Parallel(3, func(w int) {
		if w == 0 {
			for wait := (suitetest.Wait{}); ; {
				rs = append(rs, k.try(5)...)
				k.published(rs...)
				mu.Lock()
				for _, r := range rs {
					sent[r.ID]++
				}
				moved := len(rs) > 0
				rs = nil
				done := len(sent) + len(cancelled)
				mu.Unlock()
				if done >= n {
					return
				}
				if moved {
					wait.Moved()
				} else if !wait.Again(k.ctx) {
					k.fail("%d of %d messages were published or cancelled: the others are lost, or held for no reason", done, n)
				}
			}
		}
		for i := n - w; i >= 0; i -= 4 { // from the end, two at a time
			keys := []waybill.CancelKey{k.byID(msgs[i].ID), k.byKey(strconv.Itoa(max(i-2, 0)))}
			var got []waybill.CancelStatus
			k.must("cancel", k.eager(func(tx Tx) (err error) {
				got, err = tx.(Canceller).Cancel(k.ctx, keys...) //nolint:forcetypeassert // canCancel has looked
				return err
			}))
			mu.Lock()
			for j, s := range got {
				if s == waybill.CancelDone {
					cancelled[msgs[[2]int{i, max(i-2, 0)}[j]].ID]++
				}
			}
			mu.Unlock()
		}
	})
	for i := range msgs {
		s, c := sent[msgs[i].ID], cancelled[msgs[i].ID]
		k.failIf(s+c != 1, "message %d was published %d times and cancelled %d times", i, s, c)
	}
	k.none("all were published or cancelled")
}

// A lane has a name of its own: its messages are handed out apart from those of its route, and cancelled by it. ST-19.
func laneIsHandedOutApart(k *kit) {
	high, low, normal := k.msg(waybill.InLane(waybill.LaneHigh)), k.msg(waybill.InLane(waybill.LaneLow), waybill.DedupeKey("l")), k.msg()
	staged := k.stageNow(high, low, normal)
	for i, l := range []waybill.Lane{waybill.LaneHigh, waybill.LaneLow, waybill.LaneNormal} {
		k.failIf(staged[i].Route != waybill.LaneRoute(k.route, l), "a message in lane %q was staged on route %q", l, staged[i].Route)
	}
	k.takeIDs([]string{normal.ID})
	k.none("the others are in other lanes")
	k.inLane(waybill.LaneHigh).drainIDs([]string{high.ID})
	tx := k.begin()
	if _, ok := tx.(Canceller); ok {
		got := k.cancelIn(tx, k.byID(low.ID), waybill.CancelKey{
			Route: waybill.LaneRoute(k.route, waybill.LaneLow),
			ID:    low.ID,
		})
		k.failIf(got[0] != waybill.CancelNotFound || got[1] != waybill.CancelDone,
			"cancel of a message in a lane, by its route and by its lane: %v, want %v and %v", got, waybill.CancelNotFound, waybill.CancelDone)
		k.commit(tx)
		k.inLane(waybill.LaneLow).none("it was cancelled")
		return
	}
	k.rollback(tx)
	k.inLane(waybill.LaneLow).takeIDs([]string{low.ID})
}

// A message keeps its expiry; one that is given up for it is abandoned with reason expired, at no attempt. ST-11.
func expiredIsAbandoned(k *kit) {
	before := time.Now()
	id := k.stage(k.msg(waybill.TTL(far)))[0]
	r := k.takeIDs([]string{id})[0]
	d := r.Envelope.Expires.Sub(before)
	k.failIf(d < far-time.Second || d > far+time.Since(before)+time.Second,
		"a message with a time to live of %s expires in %s", far, d)
	k.failIf(!r.Expires || r.ExpiresIn <= 0 || r.ExpiresIn > far, "a message with a time to live of %s has %s left, expires: %v", far, r.ExpiresIn, r.Expires)
	k.settle(core.Abandon(&r, waybill.ReasonExpired, errors.New("its time was over")))
	k.none("it was abandoned")
	if rec, ok := k.stored(id); ok && rec != nil {
		k.state("after it expired", id, StoredRecord{State: core.StateAbandoned, Reason: waybill.ReasonExpired, LastError: "its time was over"})
	}
}
