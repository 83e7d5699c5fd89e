package storetest

import (
	"errors"
	"slices"
	"strconv"
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
	k.takeIDs([]string{m.ID}, lease(short))
	k.cancel("a leased one, by id", core.CancelInFlight, k.byID(m.ID))
	k.cancel("a leased one, by dedupe key", core.CancelInFlight, k.byKey("k"))
	k.expire(short)
	k.cancel("one whose lease expired", core.CancelInFlight, k.byID(m.ID))
	rs := k.takeIDs([]string{m.ID})
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
		msgs = append(msgs, k.msg(core.DedupeKey(strconv.Itoa(i)), core.Key([]string{"", "a", "b"}[i%3])))
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
			keys := []core.CancelKey{mine.byID(msgs[i].ID), mine.byKey(strconv.Itoa(max(i-2, 0)))}
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
